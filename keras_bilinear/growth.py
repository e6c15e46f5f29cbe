"""How a rank comes to life: the steepest direction that one more bilinear form can take.

With a_{l,k} = 0 the gradient for b_{l,k} vanishes: such a rank can only be started from outside. V falls fastest,
to first order, along W_k + eta u v^T with (u, v) the top singular pair of -G_k, G_k = dV/dW_k.
"""

from collections.abc import Callable
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


NEGLIGIBLE = 2e-2
"""A rank that moves no logit of a typical image by more than this is silent."""


def silent_ranks(X: Tensor, factors: Factors) -> Tensor:
    """Which ranks wait to be started, (L, K): those that move no logit, but not those switched off by a = b = 0.

    They were not started yet (a = 0), or a large alpha has shrunk both factors to almost nothing: next to such a
    saddle the gradient of either is as small as the other.
    """
    A, B, _ = factors
    # Some images tell: the squares of all of them would be as large as the images.
    some = ops.reshape(X[:: ops.maximum(1, ops.shape(X)[0] // 1024)], (-1, *X.shape[1:]))
    typical = ops.sqrt(ops.sum(ops.square(some)) / ops.cast(ops.shape(some)[0], X.dtype))
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

    Pairs that would not lower J stay silent: under the sum penalty those whose singular value is below alpha. Keeps
    the factors as they are if J would rise, and ranks beyond min(M, N). X (T, M, N).
    """
    A, B, bias = factors
    (L, M, K), N = A.shape, B.shape[1]
    start = at(X, samples, factors, alpha, penalty)
    G = ops.matmul(ops.transpose(samples.residual(start.p)), ops.reshape(X, (-1, M * N)))
    u, v = bm.truncated_factors(ops.reshape(-G, (K, M, N)), rank=L)
    silent = silent_ranks(X, factors)
    turn = ops.maximum(ops.cumsum(ops.cast(silent, "int32"), axis=0) - 1, 0)[:, None, :]
    u, v = ops.take_along_axis(u, turn, axis=0), ops.take_along_axis(v, turn, axis=0)
    # Both factors have the root of the singular value for their norm; a pair enters by how much it promises.
    value = ops.sum(u * u, axis=1, keepdims=True)
    promise = ops.maximum(value - alpha * penalty.entry_cost, 0) / ops.maximum(value, 1e-30)
    woken = ops.logical_and(silent[:, None, :], promise > 0)
    u, v = (ops.where(woken, ops.sqrt(promise) * part, ops.zeros_like(part)) for part in (u, v))

    def grown(eta: Tensor | float) -> Factors:
        size = ops.sqrt(ops.cast(eta, A.dtype))
        return Factors(ops.where(woken, size * u, A), ops.where(woken, size * v, B), bias)

    def tried(eta: Tensor) -> tuple[Factors, Tensor]:
        factors = grown(eta)
        return factors, at(X, samples, factors, alpha, penalty).J

    dz = bm.logits(X, u, v)
    near, J_near = tried(reach(samples, start, dz, lambda eta: alpha * penalty.value(*grown(eta)[:2])))
    far, J_far = tried(reach(samples, start, dz, lambda eta: ops.zeros_like(start.J)))
    # From nothing, V alone may say how far: what the penalty takes back later costs less than what is missing.
    leaps = ops.logical_and(ops.logical_not(ops.any(A != 0)), J_far <= start.J)
    falls = ops.logical_or(leaps, J_near <= start.J)

    def chosen(near: Tensor, far: Tensor, old: Tensor) -> Tensor:
        return ops.where(falls, ops.where(leaps, far, near), old)

    return Factors(chosen(near.A, far.A, A), chosen(near.B, far.B, B), bias)


def reach(samples: Samples, start: Start, dz: Tensor, penalty: Callable[[float], Tensor]) -> Tensor:
    """The eta > 0 that minimises J along W + eta sum_l u v^T, which moves z by eta dz; a convex function.

    `penalty` maps eta to alpha R there. All three are quadratic in eta, for factors grow with its root.
    """
    nothing = ops.zeros_like(start.J)
    V = bm.cross_entropy(start.z, samples.targets, samples.weights)
    R0, R1, R2 = penalty(0.0), penalty(1.0), penalty(2.0)
    bent, slope = R2 - 2 * R1 + R0, (4 * R1 - 3 * R0 - R2) / 2

    def quadratic(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return R0 + eta * (slope + eta * bent / 2), slope + eta * bent, bent

    # line_search reads the slope off the gradient and the direction: here both are the scalar eta's.
    point = Point(nothing, start.z, V + R0, inner(samples.residual(start.p), dz) + slope, start.p)
    return line_search(Path(dz, None, quadratic), samples, point, ops.ones_like(slope))[0]


def at(X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Start:
    """z, p and J of the factors."""
    A, B, bias = factors
    z = bm.logits(X, A, B, bias)
    V = bm.cross_entropy(z, samples.targets, samples.weights)
    return Start(z, bm.probabilities(z), V + alpha * penalty.value(A, B))
