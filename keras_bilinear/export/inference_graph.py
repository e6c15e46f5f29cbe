"""The float32 graph that is left of a model at inference: rebuilt from its NumPy weights, never the training graph.

Weights are constants, and bilinear forms are lowered as `lowerings` says. Symbols as in `maths.bilinear`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of, positive
from keras_bilinear.export.exportable import LAYOUTS, Exportable, as_numpy, exportable
from keras_bilinear.export.float32_copy import float32_copy
from keras_bilinear.export.judges import SCORES
from keras_bilinear.export.litert import MOST_NUMBERS
from keras_bilinear.export.lowerings import count, finite_float32, lowered_weights, rounded, scores
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.parts.layers import BilinearDense

OUTPUTS = ("probabilities", "logits")
"""Those of classes; networks may have any other, "scores"."""
SIGNATURE = "serving_default"
LEAST_SCALE, LARGEST_SCALE = 1e-30, 1e30


class InferenceGraph(NamedTuple):
    """What is left of a model at inference: images to `scores` (T, K), and those to its output, all in float32.

    Fields:
        model: What it was made of.
        scores: Logits, or of a network what its last layer gives; several outputs side by side.
        squash: From those to the output.
        output: Its name.
        ends_in_probabilities: Whether `scores` are probabilities already.
        layout: "factored" or "merged".
        parameters: How many weights it holds.
        outputs: Of a network, each output for itself.
    """

    model: Exportable
    scores: Callable[[Tensor], Tensor]
    squash: Callable[[Tensor], Tensor]
    output: str
    ends_in_probabilities: bool
    layout: str
    parameters: int
    outputs: Callable[[Tensor], list[Tensor]] = lambda image: []

    def served(self, image: Tensor) -> dict[str, Tensor]:
        """All outputs by their names."""
        if self.model.outputs is None:
            return {self.output: self.squash(self.scores(image))}
        parts = zip(self.model.outputs, self.outputs(image), strict=True)
        return {name: tf.identity(part) for name, part in parts}

    def traced(self, batch_size: int | None) -> tuple[tf.Module, Any]:
        """A module and its concrete function `image` -> {output: ...}, for the converter and for saving."""
        image = tf.TensorSpec((batch_size, *self.model.image_shape), tf.float32, name="image")
        module = tf.Module()
        module.serve = tf.function(self.served, input_signature=[image])
        return module, module.serve.get_concrete_function()


def inference_graph(
    model: keras.Model,
    layout: str = "factored",
    output: str = "probabilities",
    input_scale: float | None = None,
    quantized: bool = False,
) -> InferenceGraph:
    """The graph of a model, with the input scale, by default its own, multiplied into the weights.

    `quantized`: the weights become whole numbers, for which factored models are lowered in another way.
    """
    one_of("output", output, (*OUTPUTS, SCORES))
    source = exportable(model, output)
    one_of("layout", layout, LAYOUTS)
    if output == SCORES and source.network is None:
        raise ValueError(
            f"Expected `output` to be one of {list(OUTPUTS)}, for a model of classes. Received: {output!r}"
        )
    input_scale = source.scale_of_file(input_scale)
    scale = 1.0 if input_scale is None else positive("input_scale", input_scale)
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        raise ValueError(f"Expected `input_scale` within float32. Received: input_scale={input_scale!r}")
    graph = graph_of_ours if source.network is None else graph_of_network
    return graph(source, layout, output, scale, quantized)


def graph_of_ours(
    model: Exportable, layout: str, output: str, input_scale: float, quantized: bool
) -> InferenceGraph:
    """The graph of one of the four models: logits, and what makes probabilities of them."""
    if model.factors is not None:
        weights = lowered_weights(*model.factors, layout, input_scale)
    else:
        assert model.kernel is not None
        layout, weights = "merged", (rounded(model.kernel.astype("float64") * input_scale),)
    bias = None if model.bias is None else finite_float32(model.bias)
    of_matrices, parameters = scores(weights, bias, quantized), count(weights, bias)
    squash = {"logits": tf.identity, "probabilities": tf.sigmoid if model.units == 1 else tf.nn.softmax}[output]
    z = lambda X: of_matrices(model.as_matrices(X))
    return InferenceGraph(model, z, squash, output, False, layout, parameters)


def graph_of_network(
    model: Exportable, layout: str, output: str, input_scale: float, quantized: bool
) -> InferenceGraph:
    """The graph of a functional Keras model; its bilinear layers are lowered as those of our own models are."""
    bilinear: list[LoweredBilinear] = []

    def replace(layer: BilinearDense) -> LoweredBilinear:
        bilinear.append(LoweredBilinear(layer, layout, quantized))
        return bilinear[-1]

    lowered = float32_copy(model.network, replace)
    trainable, others = (
        [constant(variable) for variable in variables]
        for variables in (lowered.trainable_variables, lowered.non_trainable_variables)
    )

    def outputs(X: Tensor) -> list[Tensor]:
        X = X if input_scale == 1.0 else X * tf.constant(input_scale, tf.float32)
        # With constants for its variables, which a TFLite file could not read when it runs.
        return keras.tree.flatten(lowered.stateless_call(trainable, others, X, training=False)[0])

    def side_by_side(X: Tensor) -> Tensor:
        parts = outputs(X)
        if model.outputs is None:
            return parts[0]
        return tf.concat([tf.reshape(part, (tf.shape(X)[0], -1)) for part in parts], axis=1)

    if model.outputs is None:
        check_output(side_by_side, model.image_shape, output, input_scale)
    parameters = lowered.count_params() + sum(layer.parameters for layer in bilinear)
    certain = output == "probabilities"
    return InferenceGraph(model, side_by_side, tf.identity, output, certain, layout, parameters, outputs)


def check_output(
    outputs: Callable[[Tensor], Tensor], image_shape: tuple[int, ...], output: str, input_scale: float
) -> None:
    """Raises a ValueError where the scores of some random images are plainly not what `output` says they are."""
    images = np.random.default_rng(0).uniform(size=(16, *image_shape)) / input_scale
    scores = outputs(tf.constant(images, tf.float32)).numpy()
    within = bool(np.all((scores >= 0) & (scores <= 1)))
    distributions = within and (scores.shape[1] == 1 or np.allclose(scores.sum(axis=1), 1, atol=1e-3))
    if distributions if output == "logits" else not within:
        raise ValueError(
            f"Expected `output` to say what the network's last layer gives. Received: output={output!r} for scores "
            f"from {scores.min():.2g} to {scores.max():.2g}"
        )


class LoweredBilinear(keras.layers.Layer):
    """Stands for a `BilinearDense` in a network that is exported: the same function, with constants for weights."""

    def __init__(self, layer: BilinearDense, layout: str, quantized: bool):
        super().__init__(name=layer.name, dtype="float32")
        weights = lowered_weights(layer.A, layer.B, layout)
        bias = None if layer.bias is None else finite_float32(as_numpy(layer.bias))
        self.scores = scores(weights, bias, quantized)
        self.activation, self.matrix_shape = layer.activation, layer.matrix_shape
        self.compute_output_shape = layer.compute_output_shape
        self.parameters = count(weights, bias)

    def call(self, X: Tensor) -> Tensor:
        z = self.scores(tf.reshape(X, (-1, *self.matrix_shape)))
        shape = self.compute_output_shape(X.shape)
        return self.activation(z if len(shape) == 2 else tf.reshape(z, (-1, *shape[1:])))


def constant(variable: Any) -> Tensor:
    """The present value of a Keras variable.

    The state of a random generator is a whole number. Where training stands may be infinite, and is not read.
    """
    value = as_numpy(variable)
    checked = value.dtype.kind == "f" and not getattr(variable, "is_training_state", False)
    return tf.constant(finite_float32(value) if checked else value)


def check_batch(batch_size: int, image_shape: tuple[int, ...]) -> None:
    """Raises a ValueError for more images a call than any runtime holds."""
    most = max(1, MOST_NUMBERS // math.prod(image_shape))
    if batch_size > most:
        size = " x ".join(map(str, image_shape))
        raise ValueError(f"Expected at most {most:,} images of {size} a call. Received: batch_size={batch_size}")
