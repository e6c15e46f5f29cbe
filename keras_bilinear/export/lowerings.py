"""How z_k = sum_l a_{l,k}^T X b_{l,k} is computed in a file: the weights, in float32, and the operators.

Weights are constants, and there are five lowerings:

    factored, K >= 2            X B, times A element by element, one sum      L times the multiply-adds of merged
    the same, to be quantised   X B, then A as a depthwise convolution        both factors int8, one scale a class
    factored, ranks differ      as either, columns in use only, added up by a matrix of 0 and 1
    factored, K = 1             X B, flattened, times A
    merged                      flattened X times W = sum_l a b^T             M N K weights, fewest multiply-adds

Factored lowerings hold L (M + N) K weights, balanced: a_{l,k} and b_{l,k} are alike in size. Symbols as in
`maths.bilinear`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.maths.bilinear import Tensor


def lowered_weights(A: Any, B: Any, layout: str, input_scale: float = 1.0) -> tuple[np.ndarray, ...]:
    """(A, B), or the kernel (M N, K) that W makes: computed in float64 and rounded once."""
    A, B = np.asarray(A, "float64"), np.asarray(B, "float64") * input_scale
    if layout == "merged":
        return (rounded(np.einsum("lmk,lnk->mnk", A, B).reshape(-1, A.shape[2])),)
    return tuple(map(rounded, in_use(*balanced(A, B))))


def balanced(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same W from columns a_{l,k} and b_{l,k} of like size, for products say nothing about sizes.

    Otherwise one of them may leave the range of float16, and one scale of int8 fits none. The factors are powers of
    two, which round nothing: in float32 the scores are the same to the last bit.
    """
    a, b = (np.linalg.norm(factor, axis=1, keepdims=True) for factor in (A, B))
    powers = np.where((a > 0) & (b > 0), np.trunc((np.frexp(b)[1] - np.frexp(a)[1]) / 2), 0).astype(int)
    return np.ldexp(A, powers), np.ldexp(B, -powers)


def in_use(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The factors without the ranks that no class uses; those of each class in front. W is unchanged."""
    order = np.argsort(~used(A, B), axis=0, kind="stable")[:, None, :]
    L = max(1, int(used(A, B).sum(axis=0).max()))
    return np.take_along_axis(A, order, axis=0)[:L], np.take_along_axis(B, order, axis=0)[:L]


def used(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Which ranks of which classes are in use, (L, K): the factors of the others are zero."""
    return np.logical_and(A.any(axis=1), B.any(axis=1))


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


def rounded(weights: np.ndarray) -> np.ndarray:
    """Finite `weights` as float32, or a ValueError if none of them is large enough for it."""
    single = finite_float32(weights)
    if weights.any() and np.abs(single).max() < np.finfo("float32").tiny:
        raise ValueError(
            f"Expected weights that float32 can hold, input scale included. Received: {np.abs(weights).max():.1e} "
            "for the largest"
        )
    return single


def finite_float32(weights: np.ndarray) -> np.ndarray:
    """`weights` as float32, or a ValueError if NaN or infinity is among them."""
    with np.errstate(over="ignore"):  # An overflow is reported below.
        single = weights.astype("float32")
    if not np.isfinite(single).all():
        raise ValueError("Expected a model with finite float32 weights. Received: NaN or infinity among them")
    return single


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
    """FULLY_CONNECTED, RESHAPE, MUL, SUM. The einsums of `maths.bilinear` do not convert, not even with Flex."""
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
