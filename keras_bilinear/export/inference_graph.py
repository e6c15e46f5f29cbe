"""The float32 graph that is left of a model at inference: rebuilt from its NumPy weights, never the training graph.

Weights are constants, and bilinear forms are lowered as `lowerings` says. Symbols as in `bilinear_math`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of, positive
from keras_bilinear.export.litert import MOST_NUMBERS
from keras_bilinear.export.lowerings import count, finite_float32, lowered_weights, rounded, scores
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.models.linear import LinearBaseline
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.layers import BilinearDense, refuse_quantized
from keras_bilinear.parts.networks import float32_copy, image_shape, units

ImageModel: TypeAlias = "ImageRegression | keras.Model"
LAYOUTS = ("factored", "merged")
OUTPUTS = ("probabilities", "logits")
SIGNATURE = "serving_default"
LEAST_SCALE, LARGEST_SCALE = 1e-30, 1e30


class InferenceGraph(NamedTuple):
    """What is left of a model at inference: images to `scores` (T, K), and those to its output, all in float32."""

    scores: Callable[[Tensor], Tensor]
    squash: Callable[[Tensor], Tensor]
    image_shape: tuple[int, ...]
    units: int
    output: str
    layout: str
    parameters: int

    def traced(self, batch_size: int | None) -> tuple[tf.Module, Any]:
        """A module and its concrete function `image` -> {output: ...}, for the converter and for saving."""
        image = tf.TensorSpec((batch_size, *self.image_shape), tf.float32, name="image")
        module = tf.Module()
        module.serve = tf.function(
            lambda image: {self.output: self.squash(self.scores(image))}, input_signature=[image]
        )
        return module, module.serve.get_concrete_function()


def inference_graph(
    model: ImageModel,
    layout: str = "factored",
    output: str = "probabilities",
    input_scale: float | None = None,
    quantized: bool = False,
) -> InferenceGraph:
    """The graph of a checked model, with the input scale multiplied into the weights."""
    check_model(model)
    one_of("layout", layout, LAYOUTS)
    one_of("output", output, OUTPUTS)
    scale = 1.0 if input_scale is None else positive("input_scale", input_scale)
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        raise ValueError(f"Expected `input_scale` within float32. Received: input_scale={input_scale!r}")
    if not isinstance(model, ImageRegression):
        return network_graph(model, layout, output, scale, quantized)
    layout = "merged" if isinstance(model, LinearBaseline) else layout
    weights = model_weights(model, layout, scale)
    bias = None if model.head.bias is None else finite_float32(as_numpy(model.head.bias))
    z = scores(weights, bias, quantized)
    squash = {"logits": tf.identity, "probabilities": tf.sigmoid if model.units == 1 else tf.nn.softmax}[output]
    parameters = count(weights, bias)
    return InferenceGraph(z, squash, model.image_size, model.units, output, layout, parameters)


def model_weights(model: Any, layout: str, input_scale: float) -> tuple[np.ndarray, ...]:
    """(A, B), or the kernel (M N, K) that W makes; the scale is in B or W."""
    if isinstance(model, LinearBaseline):
        return (rounded(as_numpy(model.head.kernel).astype("float64") * input_scale),)
    A, B = model.factors()
    return lowered_weights(A, B, layout, input_scale)


def network_graph(
    network: keras.Model, layout: str, output: str, input_scale: float, quantized: bool
) -> InferenceGraph:
    """The graph of a functional Keras model; its bilinear layers are lowered as those of our own models are."""
    bilinear: list[LoweredBilinear] = []

    def replace(layer: BilinearDense) -> LoweredBilinear:
        bilinear.append(LoweredBilinear(layer, layout, quantized))
        return bilinear[-1]

    lowered = float32_copy(network, replace)
    trainable, others = (
        [constant(variable) for variable in variables]
        for variables in (lowered.trainable_variables, lowered.non_trainable_variables)
    )

    def outputs(X: Tensor) -> Tensor:
        X = X if input_scale == 1.0 else X * tf.constant(input_scale, tf.float32)
        # With constants for its variables, which a TFLite file could not read when it runs.
        return lowered.stateless_call(trainable, others, X, training=False)[0]

    check_output(outputs, network, output, input_scale)
    parameters = lowered.count_params() + sum(layer.parameters for layer in bilinear)
    return InferenceGraph(outputs, tf.identity, image_shape(network), units(network), output, layout, parameters)


def check_output(
    outputs: Callable[[Tensor], Tensor], network: keras.Model, output: str, input_scale: float
) -> None:
    """Raises a ValueError where the scores of some random images are plainly not what `output` says they are."""
    images = np.random.default_rng(0).uniform(size=(16, *image_shape(network))) / input_scale
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


def as_numpy(variable: Any) -> np.ndarray:
    """The value of a Keras variable, by TensorFlow: NumPy 2 deprecates the `__array__` that Keras gives it."""
    return variable.value.numpy()


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


def check_model(model: Any) -> None:
    """Raises a ValueError unless `model` has weights and maps images to scores."""
    if isinstance(model, ImageRegression):
        model._expect_built()
        return
    image_shape(model)
    units(model)
    refuse_quantized(model)
