"""A fitted linear model as a bilinear one: fewer numbers, nearly the same predictions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear.arguments import finite, positive_integer
from keras_bilinear.data.arrays import class_indices
from keras_bilinear.data.unusual import warn_of_guess, warn_of_rank
from keras_bilinear.export import inference_graph, slim, tflite_content
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.models.conversion import checked_size, in_spreads, nearest, on_matrices
from keras_bilinear.models.linear_sources import LinearSource, gives_logits, laid_out, source_of
from keras_bilinear.tables import Report, Table

BATCH = 4096
"""Images classified at once, so that it needs little memory."""


def compress(
    model: object,
    rank: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    tolerance: float | None = None,
    alpha: float = 1e-3,
    penalty: str = "product",
    rows: int | tuple[int, ...] | None = None,
) -> BilinearRegression:
    """The bilinear model nearest to a fitted linear one: every W_k replaced by its truncated SVD.

    Fit the result to the training images for a few sweeps to get back most of what the truncation lost; it starts
    from there.

    Args:
        model: A built `Dense` layer on flattened images, a Keras model whose only layer with weights is one, or a
            fitted linear classifier of scikit-learn with `predict_proba`, such as `LogisticRegression`, on
            flattened images, alone or behind a `StandardScaler` in a `Pipeline`. Random images prove that it gives
            z = W x + bias of the pixels x, or the soft-max.
        rank: L of the result.
        input_shape: (M, N) of the images, or (M, N, C) with `rows`. May be left out where a Keras model says it,
            or, with a warning, for square images.
        tolerance: In place of `rank`: the least L that changes every W_k by at most this fraction of its norm.
        alpha: Weight of the penalty in the result, for further training.
        penalty: "product", "sum" or "frobenius".
        rows: The axes of images (M, N, C) that make the rows of a matrix, as for the models.

    Returns:
        A `BilinearSoftmaxRegression`, or a `BilinearLogisticRegression` for two classes of one score.

    Raises:
        ValueError: if not exactly one of `rank` and `tolerance` is given, the model is of another kind or not what
            its weights say, or the shape of the images is not that of its weights.

    Example:
        >>> linear = LogisticRegression().fit(x.reshape(len(x), -1), y)
        >>> small = compress(linear, rank=4, input_shape=x.shape[1:])
        >>> small.fit(x, y, epochs=10)
        >>> print(compression_report(linear, small, x_test, y_test))
    """
    if (rank is None) == (tolerance is None):
        raise ValueError(f"Expected either `rank` or `tolerance`. Received: rank={rank}, tolerance={tolerance}")
    source = source_of(model)
    shape = image_size(source) if input_shape is None else input_shape
    matrices, size = on_matrices(source, shape, rows)
    if tolerance is not None:
        rank = least_rank(in_spreads(matrices, size), tolerance)
    rank = positive_integer("rank", rank)
    model = nearest(source, rank, size if rows is None else shape, alpha, penalty, rows)
    if input_shape is None and source.size is None:
        warn_of_guess(len(source.kernel), size, "input_shape")
    warn_of_rank(model.rank, size)
    return model


def image_size(source: LinearSource) -> tuple[int, ...]:
    """(M, N), or (M, N, C), as the model has it, or square."""
    pixels = len(source.kernel)
    side = round(pixels**0.5)
    if source.size is None and side * side != pixels:
        raise ValueError(f"Expected `input_shape`, the (M, N) of images of {pixels} pixels. Received: none")
    return source.size or (side, side)


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


@dataclass(frozen=True, repr=False)
class CompressionReport(Report):
    """Before and after: accuracies (fractions), numbers, bytes of the float32 file."""

    accuracy: tuple[float, float]
    parameters: tuple[int, int]
    bytes: tuple[int, int]

    def __str__(self) -> str:
        (table,) = self._parts()
        lines = (table.header, *table.rows)
        return "\n".join(f"{line[0]:12}{line[1]:>10}{line[2]:>10}{line[3]:>8}".rstrip() for line in lines)

    def _parts(self) -> Iterator[Table]:
        rows = [("accuracy", *(f"{accuracy:.4f}" for accuracy in self.accuracy), "")]
        for name, (before, after) in (("parameters", self.parameters), ("bytes", self.bytes)):
            rows.append((name, f"{before:,}", f"{after:,}", f"{after / before:.2f}"))
        yield Table(("", "before", "after", "ratio"), rows)


def compression_report(before: object, after: BilinearRegression, x: Any, y: Any) -> CompressionReport:
    """What was lost and won, on held-out images: both models are measured as they are.

    Args:
        before: What was given to `compress`.
        after: What it gave, fitted further or not.
        x: Images (T, M, N), or as `after` takes them.
        y: Labels, as for `fit`; for a model of scikit-learn its own labels, of any kind.

    Raises:
        ValueError: for images or labels that the models do not know, or models of different classes or images.
    """
    if not isinstance(after, BilinearRegression) or not after.built:
        raise ValueError(f"Expected what `compress` has given. Received: after={type(after).__name__}")
    source = source_of(before)
    if source.kernel.shape[1] != after.units:
        raise ValueError(f"Expected models of {source.kernel.shape[1]} scores each. Received: {after.units} after")
    source = laid_out(source, after._layout)
    checked_size(source, after.image_size)
    threshold = 0.0 if gives_logits(source, after.image_size) else 0.5
    batch = after._checked(x, class_numbers(y, source.classes))
    truth = class_indices(batch.y, after.units)
    found = predicted(source.outputs, batch.x, threshold), predicted(after, batch.x, 0.5)
    full = nearest(source, min(after.image_size), after.image_size, alpha=0.0, penalty="product")
    graphs = (inference_graph(full, "merged"), inference_graph(after))
    return CompressionReport(
        accuracy=(float(np.mean(found[0] == truth)), float(np.mean(found[1] == truth))),
        parameters=(graphs[0].parameters, graphs[1].parameters),
        bytes=(len(slim(tflite_content(graphs[0]))), len(slim(tflite_content(graphs[1])))),
    )


def class_numbers(y: Any, labels: list[Any] | None) -> Any:
    """`y` as numbers of `labels`; one-hot rows, and any `y` where there are no labels, stay as they are."""
    given = np.asarray(y)
    if labels is None or (given.ndim == 2 and given.shape[1] > 1):
        return y
    number = {label: k for k, label in enumerate(labels)}
    unknown = [label for label in given.reshape(-1).tolist() if label not in number]
    if unknown:
        raise ValueError(f"Expected labels `y` of the model, {labels[:10]}. Received: {unknown[:5]}")
    return np.array([number[label] for label in given.reshape(-1).tolist()])


def predicted(outputs: Callable[[np.ndarray], Any], x: np.ndarray, threshold: float) -> np.ndarray:
    """The class of each image, (T,): that of the largest output, or whether the only one is above `threshold`."""
    parts = (x[first : first + BATCH] for first in range(0, len(x), BATCH))
    z = np.concatenate([ops.convert_to_numpy(outputs(part)) for part in parts])
    return z[:, 0] > threshold if z.shape[1] == 1 else z.argmax(axis=1)
