"""How a rank comes to life: the steepest direction that one more bilinear form can take.

With a_{l,k} = 0 the gradient for b_{l,k} vanishes: such a rank can only be started from outside. V falls fastest,
to first order, along W_k + eta u v^T with (u, v) the top singular pair of -G_k, G_k = dV/dW_k.
"""

from typing import NamedTuple

from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.blocks import Factors
from keras_bilinear.descent import Path, Point, Samples, inner, line_search
from keras_bilinear.penalties import Penalty


class Start(NamedTuple):
    """What is known where the ranks are silent: z (T, K), p (T, K) and J."""

    z: Tensor
    p: Tensor
    J: Tensor


NEGLIGIBLE = 1e-3
"""A rank that moves no logit of a typical image by more than this is silent."""


def silent_ranks(X: Tensor, factors: Factors) -> Tensor:
    """Which ranks wait to be started, (L, K): those that move no logit, but not those switched off by a = b = 0.

    They were not started yet (a = 0), or a large alpha has shrunk both factors to almost nothing: next to such a
    saddle the gradient of either is as small as the other.
    """
    A, B, _ = factors
    typical = ops.sqrt(ops.sum(ops.square(X)) / ops.cast(ops.shape(X)[0], X.dtype))
    effect = ops.norm(A, axis=1) * ops.norm(B, axis=1) * typical
    return ops.logical_and(ops.any(A != 0, axis=1) | ops.any(B != 0, axis=1), effect <= NEGLIGIBLE)


def wake_if_silent(X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Factors:
    """The factors with their silent ranks woken, if there are any: most steps have none, and pay nothing."""
    return Factors(
        *ops.cond(
            ops.any(silent_ranks(X, factors)),
            lambda: wake_silent_ranks(X, samples, factors, alpha, penalty),
            lambda: factors,
        )
    )


def wake_silent_ranks(
    X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]
) -> Factors:
    """Gives the silent ranks of each class the leading singular pairs of -G_k, as far as an exact line search goes.

    Keeps the factors as they are if J would rise, and ranks beyond min(M, N). X (T, M, N).
    """
    A, B, bias = factors
    (L, M, K), N = A.shape, B.shape[1]
    start = at(X, samples, factors, alpha, penalty)
    G = ops.matmul(ops.transpose(samples.residual(start.p)), ops.reshape(X, (-1, M * N)))
    u, v = bm.truncated_factors(ops.reshape(-G, (K, M, N)), rank=L)
    silent = silent_ranks(X, factors)
    turn = ops.maximum(ops.cumsum(ops.cast(silent, "int32"), axis=0) - 1, 0)[:, None, :]
    u, v = ops.take_along_axis(u, turn, axis=0), ops.take_along_axis(v, turn, axis=0)
    woken = ops.logical_and(silent[:, None, :], ops.any(u != 0, axis=1, keepdims=True))
    u, v = ops.where(woken, u, ops.zeros_like(u)), ops.where(woken, v, ops.zeros_like(v))
    size = ops.sqrt(reach(X, samples, start, u, v))
    grown = Factors(ops.where(woken, size * u, A), ops.where(woken, size * v, B), bias)
    falls = at(X, samples, grown, alpha, penalty).J <= start.J
    return Factors(ops.where(falls, grown.A, A), ops.where(falls, grown.B, B), bias)


def reach(X: Tensor, samples: Samples, start: Start, u: Tensor, v: Tensor) -> Tensor:
    """The eta > 0 that minimises V along W + eta sum_l u v^T, a convex function."""
    dz, nothing = bm.logits(X, u, v), ops.zeros_like(start.J)
    V = bm.cross_entropy(start.z, samples.targets, samples.weights)
    slope = inner(samples.residual(start.p), dz)
    # line_search reads the slope off the gradient and the direction: here both are the scalar eta's.
    point = Point(nothing, start.z, V, slope, start.p)
    return line_search(Path(dz, None, lambda eta: (nothing,) * 3), samples, point, ops.ones_like(slope))[0]


def at(X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Start:
    """z, p and J of the factors."""
    A, B, bias = factors
    z = bm.logits(X, A, B, bias)
    V = bm.cross_entropy(z, samples.targets, samples.weights)
    return Start(z, bm.probabilities(z), V + alpha * penalty.value(A, B))
