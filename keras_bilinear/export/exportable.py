"""What the export asks of a model, answered once: of one of our four, or of a network of Keras layers."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.export.float32_copy import computes_in_float32, float32_copy
from keras_bilinear.export.judges import SCORES, Outputs
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.layers_within import refuse_quantized
from keras_bilinear.parts.networks import image_shape, is_functional, outputs, units

LAYOUTS = ("factored", "merged")
BATCH = 256
"""Images a call where nothing says how many."""


@dataclass(frozen=True)
class Exportable:
    """A built model that maps an image to scores.

    Attributes:
        image_shape: The shape of one image.
        units: K.
        layouts: Those that make different files: only "merged" where nothing has factors.
        is_fitted: False for one of our models that gives every image the same scores.
        keras_scores: Images (T, ...) and the name of an output -> what a file must return, (T, K).
        factors: A (L, M, K) and B (L, N, K) of one of our bilinear models.
        kernel: (M N, K), of one of our linear models.
        bias: (K,), if one of our models has one.
        network: The model, if it is none of ours: a functional one, whose scores are what its last layer gives.
        outputs: The name and the shape, for an image, of all that a network gives where it is taken as it is; then
            K is the number of all of them, side by side.
        input_scale: Of one of our models that scales its pixels itself; None for any other.
        as_matrices: Of one of our models, from images (T, ...) to the matrices that its weights are for.
    """

    image_shape: tuple[int, ...]
    units: int
    layouts: tuple[str, ...]
    is_fitted: bool
    keras_scores: Callable[[np.ndarray, str], np.ndarray]
    factors: tuple[np.ndarray, np.ndarray] | None = None
    kernel: np.ndarray | None = None
    bias: np.ndarray | None = None
    network: keras.Model | None = None
    outputs: Outputs | None = None
    input_scale: float | None = None
    as_matrices: Callable[[Any], Any] = lambda X: X

    def scale_of_file(self, asked: float | None) -> float | None:
        """The `input_scale` of what is written: as asked for, or the model's own."""
        return self.input_scale if asked is None else asked


def exportable(model: keras.Model, output: str = "probabilities") -> Exportable:
    """A model as files see it, or a ValueError unless it has weights and maps images to scores.

    For `output` "scores" a network may give anything, and several of them; the four models know no such output.
    """
    if not isinstance(model, ImageRegression):
        shape, given = image_shape(model), outputs(model) if output == SCORES else None
        K = units(model) if given is None else sum(map(math.prod, given.values()))
        refuse_quantized(model)
        layouts = LAYOUTS if has_bilinear_layers(model) else LAYOUTS[1:]

        def scores_of_network(X: np.ndarray, output: str) -> np.ndarray:
            return called(model if computes_in_float32(model) else float32_copy(model), X)

        return Exportable(shape, K, layouts, True, scores_of_network, network=model, outputs=given)
    W, bias, is_bilinear = model.weight_matrices(), model.head.bias, isinstance(model, BilinearRegression)
    return Exportable(
        model.image_shape,
        model.units,
        layouts=LAYOUTS if is_bilinear else LAYOUTS[1:],
        is_fitted=bool(W.any()),
        keras_scores=functools.partial(scores_of_ours, model),
        factors=model.factors() if is_bilinear else None,
        kernel=None if is_bilinear else as_numpy(model.head.kernel),
        bias=None if bias is None else as_numpy(bias),
        input_scale=None if model.input_scale == 1 else model.input_scale,
        as_matrices=model._as_matrices,
    )


def has_bilinear_layers(network: keras.Model) -> bool:
    """Whether a layer of the network, or of one within, is lowered; not those of other layers and models."""
    return any(
        has_bilinear_layers(layer) if is_functional(layer) else type(layer) is BilinearDense
        for layer in network.layers
    )


def scores_of_ours(model: ImageRegression, X: np.ndarray, output: str) -> np.ndarray:
    """`predict`, or the logits under it; for half precision in that of the variables, as the file is.

    X is in the unit that the weights are for.
    """
    X = X if model.input_scale == 1 else X / np.float32(model.input_scale)
    if output == "probabilities" and model.compute_dtype in ("float32", "float64"):
        return called(model, X)
    z = model.logits(ops.convert_to_tensor(X, dtype=model._solver_dtype))
    return ops.convert_to_numpy(z if output == "logits" else bm.probabilities(z))


def called(network: keras.Model, X: np.ndarray) -> np.ndarray:
    """What `predict` gives, all outputs side by side, (T, ...), without the graph that it would trace for it."""
    rows = []
    for start in range(0, len(X), BATCH):
        batch = X[start : start + BATCH]
        parts = map(ops.convert_to_numpy, keras.tree.flatten(network(batch, training=False)))
        rows.append(np.concatenate([part.reshape(len(batch), -1) for part in parts], axis=1))
    return np.concatenate(rows)


def as_numpy(variable: Any) -> np.ndarray:
    """The value of a Keras variable, by TensorFlow: NumPy 2 deprecates the `__array__` that Keras gives it."""
    return variable.value.numpy()
