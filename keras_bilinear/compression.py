"""A fitted linear model as a bilinear one: fewer numbers, nearly the same predictions."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_bilinear.arguments import finite, positive_integer
from keras_bilinear.conversion import from_dense, the_dense_layer
from keras_bilinear.export import tflite_content
from keras_bilinear.inference_graph import inference_graph
from keras_bilinear.models import BilinearRegression


def compress(
    model: Any,
    rank: int | None = None,
    input_shape: tuple[int, int] | None = None,
    tolerance: float | None = None,
    alpha: float = 0.0,
    penalty: str = "product",
) -> BilinearRegression:
    """The bilinear model nearest to a fitted linear one: every W_k replaced by its truncated SVD.

    Fit the result to the training images for a few sweeps to get back most of what the truncation lost; it starts
    from there.

    Args:
        model: A built `Dense` layer on flattened images, a Keras model whose only layer with weights is one, or a
            fitted `LogisticRegression` of scikit-learn on flattened images.
        rank: L of the result.
        input_shape: (M, N) of the images. May be left out where a Keras model says it, or for square images.
        tolerance: In place of `rank`: the least L that changes every W_k by at most this fraction of its norm.
        alpha: Weight of the penalty in the result, for further training.
        penalty: "product", "sum" or "frobenius".

    Returns:
        A `BilinearSoftmaxRegression`, or a `BilinearLogisticRegression` for two classes of one score.

    Raises:
        ValueError: if not exactly one of `rank` and `tolerance` is given, the model is of another kind, or the
            shape of the images is not that of its weights.

    Example:
        >>> small = compress(LogisticRegression().fit(x.reshape(len(x), -1), y), rank=4)
        >>> small.fit(x, y, epochs=10)
        >>> print(compression_report(linear, small, x_test, y_test))
    """
    if (rank is None) == (tolerance is None):
        raise ValueError(f"Expected either `rank` or `tolerance`. Received: rank={rank}, tolerance={tolerance}")
    dense = as_dense(model)
    layer = the_dense_layer(dense)
    M, N = image_size(dense, layer.kernel.shape[0], input_shape)
    if tolerance is not None:
        rank = least_rank(np.asarray(layer.kernel.value).T.reshape(-1, M, N), tolerance)
    return from_dense(dense, positive_integer("rank", rank), (M, N), alpha, penalty)


def as_dense(model: Any) -> Any:
    """`model` itself, or a `Dense` layer with the coefficients of scikit-learn's."""
    if not hasattr(model, "coef_"):
        return model
    coefficients, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    dense = keras.layers.Dense(len(coefficients), use_bias=bool(np.any(intercept)))
    dense.build((None, coefficients.shape[1]))
    dense.set_weights([coefficients.T, intercept] if dense.use_bias else [coefficients.T])
    return dense


def image_size(dense: Any, pixels: int, input_shape: tuple[int, int] | None) -> tuple[int, int]:
    """(M, N) as given, as the model has it, or square."""
    if input_shape is not None:
        return tuple(input_shape)[:2]  # type: ignore[return-value]
    shape = tuple(getattr(dense, "input_shape", ())[1:]) if isinstance(dense, keras.Model) else ()
    side = round(pixels**0.5)
    if len(shape) < 2 and side * side != pixels:
        raise ValueError(f"Expected `input_shape`, the (M, N) of images of {pixels} pixels. Received: none")
    return (shape[0], shape[1]) if len(shape) >= 2 else (side, side)


def least_rank(W: np.ndarray, tolerance: float) -> int:
    """The least L whose best approximation of every W_k is off by at most tolerance |W_k|. W (K, M, N)."""
    fraction = finite(tolerance)
    if fraction is None or not 0 <= fraction < 1:
        raise ValueError(f"Expected `tolerance` to be a number >= 0 and < 1. Received: tolerance={tolerance!r}")
    squares = np.linalg.svd(W.astype("float64"), compute_uv=False) ** 2
    total = squares.sum(axis=1, keepdims=True)
    lost = total - np.cumsum(squares, axis=1)
    enough = np.all(lost <= fraction**2 * total + 1e-12 * total, axis=0)
    return int(np.argmax(enough)) + 1


@dataclass(frozen=True)
class CompressionReport:
    """Before and after: accuracies (fractions), numbers, bytes of the float32 file."""

    accuracy: tuple[float, float]
    parameters: tuple[int, int]
    bytes: tuple[int, int]

    def __str__(self) -> str:
        rows = [f"{'':12}{'before':>10}{'after':>10}{'ratio':>8}"]
        rows.append(f"{'accuracy':12}{self.accuracy[0]:>10.4f}{self.accuracy[1]:>10.4f}")
        for name, (before, after) in (("parameters", self.parameters), ("bytes", self.bytes)):
            rows.append(f"{name:12}{before:>10,}{after:>10,}{after / before:>8.2f}")
        return "\n".join(rows)


def compression_report(before: Any, after: BilinearRegression, x: Any, y: Any) -> CompressionReport:
    """What was lost and won, on held-out images.

    Args:
        before: What was given to `compress`.
        after: What it gave, fitted further or not.
        x: Images (T, M, N).
        y: Labels, as for `fit`; for scikit-learn's models they must be 0..K-1.
    """
    batch = after.checked(x, y)
    full = from_dense(as_dense(before), min(after.image_size), after.image_size)
    scores = [accuracy(model, batch.x, batch.y) for model in (full, after)]
    graphs = (inference_graph(full, "merged"), inference_graph(after))
    return CompressionReport(
        accuracy=(scores[0], scores[1]),
        parameters=(graphs[0].parameters, graphs[1].parameters),
        bytes=(len(tflite_content(graphs[0])), len(tflite_content(graphs[1]))),
    )


def accuracy(model: BilinearRegression, x: np.ndarray, y: np.ndarray) -> float:
    """Fraction of the images that get their class."""
    if not model.compiled:
        model.compile()
    return float(model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"])
