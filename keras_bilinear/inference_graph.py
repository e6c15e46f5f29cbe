"""The float32 graph that is left of a model at inference: rebuilt from its NumPy weights, never the training graph.

Weights are constants, and z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k is computed in one of five lowerings:

    factored, K >= 2            X B, times A element by element, one sum      L times the multiply-adds of merged
    the same, to be quantised   X B, then A as a depthwise convolution        both factors int8, one scale a class
    factored, ranks differ      as either, columns in use only, added up by a matrix of 0 and 1
    factored, K = 1             X B, flattened, times A
    merged                      flattened X times W = sum_l a b^T             M N K weights, fewest multiply-adds

Factored lowerings hold L (M + N) K weights. Symbols as in `bilinear_math`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of, positive
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.layers import BilinearDense
from keras_bilinear.models import LinearBaseline
from keras_bilinear.networks import float32_copy, image_shape, units
from keras_bilinear.regression import ImageRegression

ImageModel: TypeAlias = "ImageRegression | keras.Model"
LAYOUTS = ("factored", "merged")
OUTPUTS = ("probabilities", "logits")
SIGNATURE = "serving_default"


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
    if not 1e-30 <= scale <= 1e30:
        raise ValueError(f"Expected `input_scale` within float32. Received: input_scale={input_scale!r}")
    if not isinstance(model, ImageRegression):
        return network_graph(model, layout, output, scale, quantized)
    layout = "merged" if isinstance(model, LinearBaseline) else layout
    weights = float64_weights(model, layout, scale)
    bias = None if model.head.bias is None else finite_float32(as_numpy(model.head.bias))
    z = scores(tuple(map(finite_float32, weights)), bias, quantized)
    squash = {"logits": tf.identity, "probabilities": tf.sigmoid if model.units == 1 else tf.nn.softmax}[output]
    parameters = count(weights, bias)
    return InferenceGraph(z, squash, model.image_size, model.units, output, layout, parameters)


def float64_weights(model: Any, layout: str, input_scale: float) -> tuple[np.ndarray, ...]:
    """(A, B), or the kernel (M N, K) that W makes; the scale is in B or W. In float64, to be rounded once."""
    if isinstance(model, LinearBaseline):
        return (as_numpy(model.head.kernel).astype("float64") * input_scale,)
    A, B = (factor.astype("float64") for factor in model.factors())
    return (merged_kernel(A, B * input_scale),) if layout == "merged" else in_use(A, B * input_scale)


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
        A, B = (np.asarray(factor, "float64") for factor in (layer.A, layer.B))
        weights = (merged_kernel(A, B),) if layout == "merged" else in_use(A, B)
        bias = None if layer.bias is None else finite_float32(as_numpy(layer.bias))
        self.scores = scores(tuple(map(finite_float32, weights)), bias, quantized)
        self.activation, self.matrix_shape = layer.activation, layer.matrix_shape
        self.compute_output_shape = layer.compute_output_shape
        self.parameters = count(weights, bias)

    def call(self, X: Tensor) -> Tensor:
        z = self.scores(tf.reshape(X, (-1, *self.matrix_shape)))
        shape = self.compute_output_shape(X.shape)
        return self.activation(z if len(shape) == 2 else tf.reshape(z, (-1, *shape[1:])))


def scores(weights: tuple[np.ndarray, ...], bias: np.ndarray | None, quantized: bool) -> Callable[[Tensor], Tensor]:
    """X (T, M, N) -> z (T, K), from the kernel (M N, K) or from A (L, M, K) and B (L, N, K)."""
    if len(weights) == 1:
        z = merged_scores(*weights)
    elif weights[0].shape[2] == 1:
        z = single_score(*weights)
    elif is_ragged(*weights):
        z = ragged_scores(weights[0], weights[1], quantized)
    else:
        z = depthwise_scores(*weights) if quantized else factored_scores(*weights)
    return z if bias is None else lambda X: z(X) + bias


def factored_scores(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, MUL, SUM. The einsums of `bilinear_math` do not convert, not even with Flex."""
    L, M, K = A.shape
    rows = A.transpose(1, 0, 2).reshape(M * L, K)
    XB = row_products(B)
    return lambda X: tf.reduce_sum(tf.reshape(XB(X), (-1, M * L, K)) * rows, axis=1)


def depthwise_scores(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, DEPTHWISE_CONV_2D, RESHAPE: X B seen as an image of M x L with K channels.

    A product and a sum keep A in float under dynamic quantisation, and their int8 and int16 kernels err; the
    convolution has neither fault, and quantises A with a scale for each class.
    """
    L, M, K = A.shape
    kernel = A.transpose(1, 0, 2)[..., None]
    XB = row_products(B)

    def z(X: Tensor) -> Tensor:
        maps = tf.reshape(XB(X), (-1, M, L, K))
        return tf.reshape(tf.nn.depthwise_conv2d(maps, kernel, [1, 1, 1, 1], "VALID"), (-1, K))

    return z


def ragged_scores(A: np.ndarray, B: np.ndarray, quantized: bool) -> Callable[[Tensor], Tensor]:
    """As the two above, for classes of different ranks: the columns in use, and a matrix of 0 and 1 that adds."""
    M, N = A.shape[1], B.shape[1]
    rank, k = np.nonzero(used(A, B))
    rows, columns = A[rank, :, k].T, B[rank, :, k].T
    adds = np.eye(A.shape[2], dtype="float32")[k]

    def z(X: Tensor) -> Tensor:
        XB = tf.matmul(tf.reshape(X, (-1, N)), columns)
        if quantized:
            maps = tf.reshape(XB, (-1, M, 1, len(k)))
            forms = tf.nn.depthwise_conv2d(maps, rows[:, None, :, None], [1, 1, 1, 1], "VALID")
            return tf.matmul(tf.reshape(forms, (-1, len(k))), adds)
        return tf.matmul(tf.reduce_sum(tf.reshape(XB, (-1, M, len(k))) * rows, axis=1), adds)

    return z


def used(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Which ranks of which classes are in use, (L, K): the factors of the others are zero."""
    return np.logical_and(A.any(axis=1), B.any(axis=1))


def in_use(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The factors without the ranks that no class uses; those of each class in front. W is unchanged."""
    order = np.argsort(~used(A, B), axis=0, kind="stable")[:, None, :]
    L = max(1, int(used(A, B).sum(axis=0).max()))
    return np.take_along_axis(A, order, axis=0)[:L], np.take_along_axis(B, order, axis=0)[:L]


def is_ragged(A: np.ndarray, B: np.ndarray) -> bool:
    """Whether the columns in use, and the matrix that adds them up, are fewer numbers than all columns."""
    (L, M, K), N = A.shape, B.shape[1]
    return int(used(A, B).sum()) * (M + N + K) < L * K * (M + N)


def count(weights: tuple[np.ndarray, ...], bias: np.ndarray | None) -> int:
    """Numbers of the model that are stored: without columns that are not in use."""
    if len(weights) == 2 and weights[0].shape[2] > 1 and is_ragged(*weights):
        A, B = weights
        stored = int(used(A, B).sum()) * (A.shape[1] + B.shape[1])
    else:
        stored = sum(w.size for w in weights)
    return stored + (0 if bias is None else bias.size)


def single_score(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, FULLY_CONNECTED: for K = 1 product and sum are one matrix product."""
    L, M, _ = A.shape
    rows = A[:, :, 0].T.reshape(M * L, 1)
    XB = row_products(B)
    return lambda X: tf.matmul(tf.reshape(XB(X), (-1, M * L)), rows)


def merged_scores(kernel: np.ndarray) -> Callable[[Tensor], Tensor]:
    """RESHAPE, FULLY_CONNECTED. W is merged before: inside the graph it would be rebuilt at every call."""
    return lambda X: tf.matmul(tf.reshape(X, (-1, len(kernel))), kernel)


def row_products(B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """X (T, M, N) -> every row of every image times all columns b_{l,k}, (T M, L K)."""
    L, N, K = B.shape
    columns = B.transpose(1, 0, 2).reshape(N, L * K)
    # To two axes first: a product of three by two with a dynamic batch adds SHAPE, GATHER, CONCAT and PACK.
    return lambda X: tf.matmul(tf.reshape(X, (-1, N)), columns)


def merged_kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """W = sum_l a b^T as a dense kernel (M N, K), in the precision of the factors."""
    return np.einsum("lmk,lnk->mnk", A, B).reshape(-1, A.shape[2])


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


def finite_float32(weights: np.ndarray) -> np.ndarray:
    """`weights` as float32, or a ValueError if NaN or infinity is among them."""
    with np.errstate(over="ignore"):  # An overflow is reported below.
        single = weights.astype("float32")
    if not np.isfinite(single).all():
        raise ValueError("Expected a model with finite float32 weights. Received: NaN or infinity among them")
    return single


def check_model(model: Any) -> None:
    """Raises a ValueError unless `model` has weights and maps images to scores."""
    if isinstance(model, ImageRegression):
        model.expect_built()
        return
    image_shape(model)
    units(model)
