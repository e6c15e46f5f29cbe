"""Between bilinear and dense models: the factors of a dense kernel by SVD, the dense kernel of factors."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import image_shape, positive_integer
from keras_bilinear.maths.bilinear import Factors, truncated_factors
from keras_bilinear.models.bilinear import BilinearLogisticRegression, BilinearRegression, BilinearSoftmaxRegression
from keras_bilinear.models.linear_sources import LinearSource, gives_logits, laid_out, source_of
from keras_bilinear.models.normalization import nearest_product
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.image_layout import declared_layout


def to_dense(model: ImageRegression) -> keras.Sequential:
    """The same predictions as plain Keras: `Flatten` + `Dense` with the kernel W_k = sum_l a_{l,k} b_{l,k}^T.

    Args:
        model: A fitted BLR, BSR, LLR or LSR.

    Returns:
        A model from images (T, M, N), or (T, M, N, C), to probabilities (T, K) that loads without this package.

    Raises:
        ValueError: if the model is of another kind or has no weights yet.
    """
    if not isinstance(model, ImageRegression):
        raise ValueError(f"Expected a regression model of keras_bilinear. Received: {type(model).__name__}")
    W, bias = model.filter_images(), model.head.bias
    activation = "sigmoid" if model.units == 1 else "softmax"
    dense = keras.layers.Dense(model.units, activation=activation, use_bias=bias is not None)
    result = keras.Sequential([keras.Input(model.image_shape), keras.layers.Flatten(), dense])
    kernel = W.reshape(model.units, -1).T
    dense.set_weights([kernel] if bias is None else [kernel, ops.convert_to_numpy(bias.value)])
    return result


def from_dense(
    dense: Any,
    rank: int,
    input_shape: tuple[int, int] | tuple[int, int, int],
    alpha: float = 1e-3,
    penalty: str = "product",
    rows: int | tuple[int, ...] | None = None,
) -> BilinearRegression:
    """The bilinear model of rank L closest to a dense soft-max or logistic model on flattened images.

    Each W_k is replaced by its truncated SVD (Eq. SVD.decomposition): exactly W_k when L = min(M, N), the best
    approximation in the Frobenius norm below that.

    Args:
        dense: A built `Dense` layer with K units, or a model whose only layer with weights is one and that gives
            z = W x + bias of the pixels x, or the probabilities of z; or one of scikit-learn, as for `compress`.
            Random images are the proof of it.
        rank: L of the result.
        input_shape: (M, N) or (M, N, 1) of the images, row by row in the dense kernel's input; (M, N, C) with
            `rows`.
        alpha: Weight of the penalty in the result, for further training.
        penalty: "product", "sum" or "frobenius".
        rows: The axes of images (M, N, C) that make the rows of a matrix, as for the models.

    Returns:
        A `BilinearSoftmaxRegression`, or a `BilinearLogisticRegression` for K = 1.

    Raises:
        ValueError: if there is not exactly one `Dense` layer with weights, its kernel has not M N rows, it holds
            NaN or infinity, or what the model gives for random images is not what its kernel says.
    """
    return nearest(source_of(dense), rank, input_shape, alpha, penalty, rows)


def nearest(
    source: LinearSource, rank: int, input_shape: Any, alpha: float, penalty: str, rows: Any = None
) -> BilinearRegression:
    """The bilinear model of rank L closest to `source`, which is proven to be what its weights say.

    Where the spread of the pixels is known, what is truncated is W of pixels in this unit.
    """
    source, size = on_matrices(source, input_shape, rows)
    rank = positive_integer("rank", rank)
    gives_logits(source, size)
    K = source.kernel.shape[1]
    settings: dict[str, Any] = {
        "rank": rank,
        "alpha": alpha,
        "penalty": penalty,
        "use_bias": source.bias is not None,
        "input_shape": input_shape,
        "rows": rows,
    }
    model = BilinearLogisticRegression(**settings) if K == 1 else BilinearSoftmaxRegression(K, **settings)
    r, c = spreads(source, size)
    A, B = truncated_factors(ops.convert_to_tensor(in_spreads(source, size)), rank)
    model._assign(Factors(A / r[:, None], B / c[:, None], source.bias))
    return model


def in_spreads(source: LinearSource, size: tuple[int, int]) -> np.ndarray:
    """W (K, M, N) of pixels that are measured in their spreads: what counts is what changes scores."""
    rows, columns = spreads(source, size)
    return source.kernel.T.reshape(-1, *size) * np.outer(rows, columns).astype("float32")


def spreads(source: LinearSource, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """r (M,) and c (N,), whose product is how much a pixel varies; ones where nothing is known of it."""
    spread = np.ones(size) if source.spread is None else source.spread.reshape(size)
    rows, columns = nearest_product(spread)
    return rows.astype("float32"), columns.astype("float32")


def on_matrices(source: LinearSource, input_shape: Any, rows: Any) -> tuple[LinearSource, tuple[int, int]]:
    """The source on matrices, and their (M, N); a ValueError as of `checked_size`, or for wrong `rows`."""
    layout = declared_layout(image_shape("input_shape", input_shape, channels=True), rows)
    source = laid_out(source, layout)
    return source, checked_size(source, input_shape if layout is None else layout.size)


def checked_size(source: LinearSource, input_shape: Any) -> tuple[int, int]:
    """(M, N) of `input_shape`, or a ValueError if it does not fit the source, or that is not finite."""
    M, N = image_shape("input_shape", input_shape)[:2]
    kernel = source.kernel
    if len(kernel) != M * N:
        raise ValueError(
            f"Expected a kernel with M N = {M} x {N} = {M * N} rows, one for each pixel of `input_shape`. "
            f"Received: a kernel of shape {kernel.shape}"
        )
    if source.size not in (None, (M, N)):
        raise ValueError(f"Expected `input_shape` to be that of the model, {source.size}. Received: {(M, N)}")
    if not all(np.isfinite(weight).all() for weight in (kernel, source.bias) if weight is not None):
        raise ValueError("Expected a linear model with finite weights in float32. Received: NaN or infinity")
    return M, N
