"""The curvature that makes a descent of all factors fast: of each class for itself, whole or in parts.

At M + N = 56 and L = 4 the whole of it has K 224^2 numbers. At 512 x 512 it would have 168 million, and inverting
them would take longer than the passes it saves: then each factor has a block, and beyond that each number its own.
"""

import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty, identity
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.preconditioner import (
    CURVATURE,
    Curvature,
    curvature,
    curvature_of_parts,
    curvature_weights,
    same_total,
    sample,
)

WHOLE, FACTORS, DIAGONAL = "whole", "factors", "diagonal"
"""How much of the curvature of a class is kept: all of it, a block for each factor, or its diagonal."""
MOST_NUMBERS = 2**24
"""So many numbers the curvature of all classes may have: to invert more takes longer than it saves."""
FEW = 256
"""So many images tell the curvature of large ones, whose features would take more memory than it does."""


def grain_of(factors: Factors) -> str:
    """How much of the curvature of such factors is kept."""
    (L, M, K), N = factors.A.shape, factors.B.shape[1]
    if K * (L * (M + N)) ** 2 <= MOST_NUMBERS:
        return WHOLE
    return FACTORS if K * L * (M**2 + N**2) <= MOST_NUMBERS else DIAGONAL


def curvature_of(
    images: Images,
    samples: Samples,
    factors: Factors,
    alpha: Tensor,
    penalty: type[Penalty],
    grain: str = WHOLE,
) -> Curvature:
    """The Gauss-Newton matrix of each class, whose parameters multiply X_t b_{l,k} and X_t^T a_{l,k}.

    It is taken on a part of the images only, so that it costs no more than a few gradients; as much of it as
    `grain` says.
    """
    (A, B, bias), most = factors, CURVATURE if grain == WHOLE else FEW
    X, (w,) = images.part(most).values(), sample(samples.weights, most=most)
    c = curvature_weights(bm.probabilities(bm.logits(X, A, B, bias)), same_total(w, samples.weights))
    if bias is not None:
        X = X - ops.mean(X, axis=0)  # as `Joint` takes them
    (L, M, K), N = ops.shape(A), ops.shape(B)[1]
    left = ops.reshape(ops.einsum("tmn,lnk->ktlm", X, B), (K, -1, L * M))
    right = ops.reshape(ops.einsum("tmn,lmk->ktln", X, A), (K, -1, L * N))
    if grain != WHOLE:
        ties = [ops.diagonal(penalty.coupling(other), axis1=0, axis2=1) for other in (B, A)]  # (K, L)
        Q = ops.concatenate([ops.repeat(tie, size, axis=1) for tie, size in zip(ties, (M, N), strict=True)], axis=1)
        sides = [(K, L, M), (K, L, N)] if grain == FACTORS else None
        return curvature_of_parts(ops.concatenate([left, right], axis=2), c, alpha * Q, sides)
    Q = spread(penalty.coupling(B), (K, L, M), after=L * N) + spread(penalty.coupling(A), (K, L, N), before=L * M)
    return curvature(ops.concatenate([left, right], axis=2), c, alpha * Q)


def spread(Q: Tensor, sizes: tuple[Tensor, Tensor, Tensor], before: Tensor = 0, after: Tensor = 0) -> Tensor:
    """Q (L, L, K) of ranks with D entries each, as the matrix (K, L D, L D) it is on them, between zeros."""
    K, L, D = sizes
    matrix = ops.reshape(ops.einsum("lmk,de->kldme", Q, identity(D, Q.dtype)[:, :, 0]), (K, L * D, L * D))
    return tf.pad(matrix, ((0, 0), (before, after), (before, after)))
