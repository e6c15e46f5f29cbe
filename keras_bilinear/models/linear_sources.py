"""Fitted linear models of Keras and scikit-learn: their weights, and the proof that these say all they compute."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import probabilities
from keras_bilinear.models.linear import LinearBaseline
from keras_bilinear.parts.image_layout import ImageLayout
from keras_bilinear.parts.networks import is_functional, only

PROBES = 8
"""Random images of each size on which a model is compared with its weights."""
LARGEST_PROBE = 1e4
"""Size of their pixels and of their scores: float16 ends at 65,504."""
ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7}
"""Of numbers with fewer bits than float32."""


class LinearSource(NamedTuple):
    """A model of the scores z = X kernel + bias, as its weights say, and what it makes of images itself.

    Fields:
        kernel: (M N, K).
        bias: (K,), or None.
        outputs: What the model gives for images (T, M, N): the probabilities (T, K) of z, or z.
        name: What to call the model in an error.
        size: (M, N), or (M, N, C), where the model knows it.
        classes: The labels of its classes in order, or None for 0..K-1.
        rounding: By how much of themselves the numbers it computes with are rounded; 0 for float32 and better.
        loss: What a Keras model was compiled with.
        spread: How much each pixel varies, (M N,), where a scaler has told.
    """

    kernel: np.ndarray
    bias: np.ndarray | None
    outputs: Callable[[np.ndarray], np.ndarray]
    name: str
    size: tuple[int, ...] | None = None
    classes: list[Any] | None = None
    rounding: float = 0.0
    loss: Any = None
    spread: np.ndarray | None = None


def source_of(model: Any) -> LinearSource:
    """What `compress` takes, as a source, or a ValueError that says what was received."""
    if hasattr(model, "steps"):
        return pipeline_source(model)
    return scikit_learn_source(model) if hasattr(model, "coef_") else keras_source(model)


# Keras ----------------------------------------------------------------------------------------------------------


def keras_source(model: keras.Model | keras.layers.Dense) -> LinearSource:
    """A built `Dense` layer, LLR or LSR, or a model of one image whose only layer with weights is one."""
    layer = the_dense_layer(model)
    shape = (layer.kernel.shape[0],) if layer is model else shape_of_an_image(model)

    def outputs(images: np.ndarray) -> np.ndarray:
        x = images if shape is None else images.reshape(-1, *shape)
        with tf.device("CPU"):  # whose products are those of float32: a GPU may round them to 11 bits
            return ops.convert_to_numpy(ops.cast(keras.tree.flatten(model(x))[0], "float32"))

    # With what LoRA has added to it, and in the order of the pixels of an image.
    kernel = ops.convert_to_numpy(ops.cast(layer.kernel, "float32"))
    if isinstance(model, LinearBaseline) and model._layout is not None:
        kernel = model._layout.images(kernel.T).reshape(model.units, -1).T
    return LinearSource(
        kernel=kernel * float32(getattr(model, "input_scale", 1)),  # for pixels as the model takes them
        bias=None if layer.bias is None else ops.convert_to_numpy(ops.cast(layer.bias, "float32")),
        outputs=outputs,
        name=type(model).__name__,
        size=size_of(shape),
        rounding=max(ROUNDING.get(part.compute_dtype, 0.0) for part in getattr(model, "layers", [layer])),
        loss=getattr(model, "loss", None),
    )


def the_dense_layer(model: keras.Model | keras.layers.Dense) -> keras.layers.Dense:
    """The one `Dense` layer that holds all the weights, or a ValueError that says what was received."""
    parts = model.layers if isinstance(model, keras.Model) else [model]
    parts = [model.head] if isinstance(model, LinearBaseline) else parts
    layers = [part for part in parts if isinstance(part, keras.layers.Layer) and part.weights]
    if len(layers) != 1 or not isinstance(layers[0], keras.layers.Dense):
        names = ", ".join(type(layer).__name__ for layer in layers) or f"{type(model).__name__} without weights"
        raise ValueError(
            "Expected one built Dense layer, alone or as the only layer with weights of a model, or a fitted "
            f"LogisticRegression of scikit-learn. Received: {names}"
        )
    if getattr(layers[0], "quantization_mode", None):
        raise ValueError(
            "Expected a Dense layer with floating weights; an exported file may be quantised, by "
            f"`export_tflite`. Received: one quantised to {layers[0].quantization_mode}"
        )
    return layers[0]


def shape_of_an_image(model: keras.Model) -> tuple[int | None, ...] | None:
    """What a model of this package, functional or sequential takes; None for any other, which gets images."""
    if isinstance(model, LinearBaseline):
        return model.image_shape
    if not is_functional(model):
        return None
    only("output", model, "output_shape")
    return only("input", model, "input_shape")[1:]


def size_of(shape: tuple[int | None, ...] | None) -> Any:
    """(M, N) of an image (M, N), (M, N, 1) or (1, M, N), or (M, N, C) of one with channels; None for flat ones."""
    if shape is None or len(shape) == 1:
        return None
    if len(shape) == 2:
        return shape
    if len(shape) != 3:
        raise ValueError(f"Expected a model of images (M, N) or (M, N, C). Received: images of shape {shape}")
    if 1 not in (shape[0], shape[2]):
        return shape
    return shape[:2] if shape[2] == 1 else shape[1:]


def laid_out(source: LinearSource, layout: ImageLayout | None) -> LinearSource:
    """The source on the matrices that `rows` makes of its images, or a ValueError if those have another shape."""
    if layout is None:
        return source
    pixels = int(np.prod(layout.shape))
    if source.size not in (None, layout.shape) or len(source.kernel) != pixels:
        raise ValueError(
            f"Expected a model of images {layout.shape} with {pixels} pixels, as `input_shape` says. Received: a "
            f"kernel of shape {source.kernel.shape}, for images {source.size or 'of a shape that is not known'}"
        )
    order = layout.matrices(np.arange(pixels).reshape(1, *layout.shape)).reshape(-1)
    return source._replace(
        kernel=source.kernel[order],
        outputs=lambda matrices: source.outputs(layout.images(matrices)),
        size=None,
        spread=None if source.spread is None else source.spread[order],
    )


# scikit-learn ---------------------------------------------------------------------------------------------------


def scikit_learn_source(model: Any) -> LinearSource:
    """A fitted linear classifier that knows probabilities: scores of a support vector machine are no log-odds."""
    if not hasattr(model, "predict_proba"):
        raise ValueError(
            "Expected a linear classifier with `predict_proba`, such as LogisticRegression: other scores are no "
            f"log-odds. Received: {type(model).__name__}"
        )
    coefficients = model.coef_.toarray() if hasattr(model.coef_, "toarray") else np.atleast_2d(model.coef_)
    intercept = np.atleast_1d(model.intercept_)
    classifier = nameless(model)

    def outputs(images: np.ndarray) -> np.ndarray:
        p = np.asarray(classifier.predict_proba(images.reshape(len(images), -1).astype("float64")))
        return p[:, 1:] if p.shape[1:] == (2,) else p  # two classes have one score

    return LinearSource(
        kernel=float32(coefficients.T),
        bias=float32(intercept) if intercept.any() else None,
        outputs=outputs,
        name=type(model).__name__,
        classes=np.asarray(model.classes_).tolist(),
    )


def pipeline_source(model: Any) -> LinearSource:
    """A fitted `Pipeline` of a `StandardScaler` and such a classifier: the scaler is folded into the weights."""
    steps = [step for _, step in model.steps]
    if len(steps) != 2 or not all(hasattr(steps[0], name) for name in ("with_mean", "scale_")):
        names = ", ".join(type(step).__name__ for step in steps)
        raise ValueError(
            f"Expected a fitted Pipeline of a StandardScaler and a linear classifier. Received: one of {names}"
        )
    scaler, source = nameless(steps[0]), scikit_learn_source(steps[1])
    kernel, bias = source.kernel.astype("float64"), 0.0 if source.bias is None else source.bias.astype("float64")
    kernel = kernel if scaler.scale_ is None else kernel / scaler.scale_[:, None]
    bias = bias if not scaler.with_mean else bias - scaler.mean_ @ kernel

    def outputs(images: np.ndarray) -> np.ndarray:
        return source.outputs(scaler.transform(images.reshape(len(images), -1).astype("float64")))

    bias = float32(np.broadcast_to(bias, (kernel.shape[1],)))
    return source._replace(
        kernel=float32(kernel), bias=bias if bias.any() else None, outputs=outputs, spread=scaler.scale_
    )


def nameless(model: Any) -> Any:
    """A copy that takes arrays without a warning, though the model was fitted to a table."""
    copied = copy.copy(model)
    vars(copied).pop("feature_names_in_", None)
    return copied


def float32(weights: Any) -> np.ndarray:
    """In float32, where too large a number is infinite, which is refused later on."""
    with np.errstate(over="ignore"):
        return np.asarray(weights).astype("float32")


# The proof ------------------------------------------------------------------------------------------------------


def gives_logits(source: LinearSource, size: tuple[int, int]) -> bool:
    """Proves on random images that a model computes what its weights say: whether it gives z, not probabilities."""
    images = probes(source, size)
    rows, kernel = images.reshape(len(images), -1).astype("float64"), source.kernel.astype("float64")
    bias = np.zeros(kernel.shape[1]) if source.bias is None else source.bias.astype("float64")
    z, given = rows @ kernel + bias, source.outputs(images)
    p = ops.convert_to_numpy(probabilities(z))
    # Of sums of M N products, added up in float32 or, for the shorter types, maybe in float16.
    precision = 3 * source.rounding + len(kernel) ** 0.5 * (2**-12 if source.rounding else 2**-23)
    tolerance = 1e-4 + precision * (np.sqrt(rows**2 @ kernel**2) + np.abs(bias)).max(axis=1, keepdims=True)
    for expected, is_logits in ((p, False), (z, True)):
        if given.shape == z.shape and np.all(np.abs(given - expected) <= tolerance):
            expect_classes(source, is_logits)
            return is_logits
    raise ValueError(
        "Expected a model that gives z = W x + bias of the pixels x, in the order of `input_shape`, or the "
        "probabilities of z: no other scale of the pixels, no other layer or activation, one score for each class. "
        f"Received: a {source.name} that gives {describe(given)} for random images where its weights say "
        f"{describe(p)}"
    )


def describe(outputs: np.ndarray) -> str:
    """The first of them, for an error."""
    return np.array2string(outputs.ravel()[:3], precision=3, separator=", ")


def expect_classes(source: LinearSource, is_logits: bool) -> None:
    """Raises a ValueError if scores were compiled with a loss of Keras that is no cross-entropy, as "mse"."""
    losses = keras.tree.flatten(source.loss)
    losses = [keras.losses.get(loss) if isinstance(loss, str) else loss for loss in losses]
    kinds: list[Any] = [loss if hasattr(loss, "__name__") else type(loss) for loss in losses]
    for kind in kinds if is_logits else []:
        if kind.__module__.startswith("keras.") and "crossentropy" not in kind.__name__.replace("_", "").lower():
            raise ValueError(
                "Expected scores that are log-odds, trained by a cross-entropy from logits. Received: a "
                f"{source.name} compiled with loss={source.loss!r}"
            )


def probes(source: LinearSource, size: tuple[int, int]) -> np.ndarray:
    """Random images (T, M, N): of the sizes people use, and of those where no saturated soft-max hides a fault."""
    spread = float(np.linalg.norm(source.kernel.astype("float64"), axis=0).max()) or 1.0
    offset = 0.0 if source.bias is None else float(np.abs(source.bias).max())
    scales = np.minimum([1 / spread, (8 + offset) / spread, 1.0, 255.0], LARGEST_PROBE * min(1.0, 1 / spread))
    images = np.random.default_rng(0).normal(size=(len(scales), PROBES, *size))
    return (images * scales[:, None, None, None]).reshape(-1, *size).astype("float32")
