"""The float32 graph that is left of a model at inference: rebuilt from its NumPy factors, never the training graph.

Weights are constants, and z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k is computed in one of three lowerings:

    factored, K >= 2    X B, times A element by element, one sum      L (M + N) K weights, L times the multiply-adds
    factored, K = 1     X B, flattened, times A                       L (M + N) weights
    merged              flattened X times W = sum_l a b^T             M N K weights, fewest multiply-adds

Symbols as in `bilinear_math`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of, positive
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.models import BilinearRegression, LinearBaseline

ImageModel = BilinearRegression | LinearBaseline
LAYOUTS = ("factored", "merged")
OUTPUTS = ("probabilities", "logits")
SIGNATURE = "serving_default"


class InferenceGraph(NamedTuple):
    """What is left of a model at inference: `scores` maps X (T, M, N) to z (T, K), all in float32."""

    scores: Callable[[Tensor], Tensor]
    image_size: tuple[int, int]
    output: str
    layout: str
    parameters: int

    def traced(self, batch_size: int | None) -> tuple[tf.Module, Any]:
        """A module and its concrete function `image` -> {output: ...}, for the converter and for saving."""

        def serve(image: Tensor) -> dict[str, Tensor]:
            z = self.scores(image)
            if self.output == "logits":
                return {"logits": z}
            return {"probabilities": tf.sigmoid(z) if z.shape[-1] == 1 else tf.nn.softmax(z)}

        image = tf.TensorSpec((batch_size, *self.image_size), tf.float32, name="image")
        module = tf.Module()
        module.serve = tf.function(serve, input_signature=[image])
        return module, module.serve.get_concrete_function()


def inference_graph(model: ImageModel, layout: str, output: str, input_scale: float | None) -> InferenceGraph:
    """The graph of a checked model, with the input scale multiplied into the weights."""
    check_model(model)
    one_of("layout", layout, LAYOUTS)
    one_of("output", output, OUTPUTS)
    layout = "merged" if isinstance(model, LinearBaseline) else layout
    weights = float32_weights(model, layout, (1.0 if input_scale is None else positive("input_scale", input_scale)))
    bias = None if model.head.bias is None else finite_float32(as_numpy(model.head.bias))
    if layout == "merged":
        z = merged_scores(*weights)
    else:
        z = single_score(*weights) if model.units == 1 else factored_scores(*weights)
    scores = z if bias is None else lambda X: z(X) + bias
    parameters = sum(w.size for w in weights) + (0 if bias is None else bias.size)
    return InferenceGraph(scores, model.image_size, output, layout, parameters)


def float32_weights(model: ImageModel, layout: str, input_scale: float) -> tuple[np.ndarray, ...]:
    """(A, B), or the kernel (M N, K) that W makes; the scale is in B or W. Computed in float64, rounded once."""
    if isinstance(model, LinearBaseline):
        kernel = as_numpy(model.head.kernel).astype("float64")
        return (finite_float32(kernel * input_scale),)
    A, B = (factors.astype("float64") for factors in model.factors())
    if layout == "merged":
        W = np.einsum("lmk,lnk->mnk", A, B * input_scale)
        return (finite_float32(W.reshape(-1, model.units)),)
    return finite_float32(A), finite_float32(B * input_scale)


def as_numpy(variable: Any) -> np.ndarray:
    """The value of a Keras variable, by TensorFlow: NumPy 2 deprecates the `__array__` that Keras gives it."""
    return variable.value.numpy()


def finite_float32(weights: np.ndarray) -> np.ndarray:
    """`weights` as float32, or a ValueError if NaN or infinity is among them."""
    with np.errstate(over="ignore"):  # An overflow is reported below.
        single = weights.astype("float32")
    if not np.isfinite(single).all():
        raise ValueError("Expected a model with finite float32 weights. Received: NaN or infinity among them")
    return single


def factored_scores(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, MUL, SUM. The einsums of `bilinear_math` do not convert, not even with Flex."""
    L, M, K = A.shape
    N = B.shape[1]
    rows = A.transpose(1, 0, 2).reshape(M * L, K)
    columns = B.transpose(1, 0, 2).reshape(N, L * K)

    def z(X: Tensor) -> Tensor:
        # To two axes first: a product of three by two with a dynamic batch adds SHAPE, GATHER, CONCAT and PACK.
        XB = tf.matmul(tf.reshape(X, (-1, N)), columns)
        return tf.reduce_sum(tf.reshape(XB, (-1, M * L, K)) * rows, axis=1)

    return z


def single_score(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, FULLY_CONNECTED: for K = 1 product and sum are one matrix product."""
    L, M, _ = A.shape
    N = B.shape[1]
    rows = A[:, :, 0].T.reshape(M * L, 1)
    columns = B[:, :, 0].T
    return lambda X: tf.matmul(tf.reshape(tf.matmul(tf.reshape(X, (-1, N)), columns), (-1, M * L)), rows)


def merged_scores(kernel: np.ndarray) -> Callable[[Tensor], Tensor]:
    """RESHAPE, FULLY_CONNECTED. W is merged before: inside the graph it would be rebuilt at every call."""
    return lambda X: tf.matmul(tf.reshape(X, (-1, len(kernel))), kernel)


def check_model(model: Any) -> None:
    """Raises a ValueError unless `model` is one of the four models, with weights."""
    if not isinstance(model, BilinearRegression | LinearBaseline):
        raise ValueError(
            "Expected a model of keras_bilinear: BilinearSoftmaxRegression, BilinearLogisticRegression, "
            f"LinearSoftmaxRegression or LinearLogisticRegression. Received: a {type(model).__name__}"
        )
    model.expect_built()
