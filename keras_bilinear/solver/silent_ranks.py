"""How a rank comes to life: the steepest direction that one more bilinear form can take.

With a_{l,k} = 0 the gradient for b_{l,k} vanishes: such a rank can only be started from outside. V falls fastest,
to first order, along W_k + eta u v^T with (u, v) the top singular pair of -G_k, G_k = dV/dW_k.
"""

from typing import NamedTuple

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver.descent import Path, line_search
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint import of_mean
from keras_bilinear.solver.linear_cg import inner


class Start(NamedTuple):
    """What is known where the ranks are silent: z (T, K), p (T, K) and J."""

    z: Tensor
    p: Tensor
    J: Tensor


class Woken(NamedTuple):
    """The factors after their silent ranks have been woken, and by how much that lowered J."""

    factors: Factors
    gain: Tensor


TELLING_IMAGES = 256
"""Of very many images about so many tell whether a rank is silent."""
SILENT_BELOW = 2e-2
"""A rank that moves no logit of a typical image by more than this is silent."""
TELLING = 1e-2
"""Ranks start along the pairs where that lowers V by this fraction of it."""


def silent_ranks(X: Images, factors: Factors) -> Tensor:
    """Which ranks wait to be started, (L, K): those that move no logit, but not those switched off by a = b = 0.

    They were not started yet (a = 0), a large alpha has shrunk both factors to almost nothing, or they were started
    beside a rank that moves a far brighter pixel: next to such a saddle the gradient of either is as small as the
    other.
    """
    A, B, _ = factors
    L, M, K = A.shape
    W = ops.reshape(ops.einsum("lmk,lnk->lkmn", A, B), (L * K, M, -1))
    # Some images tell.
    effect = ops.reshape(ops.sqrt(ops.mean(ops.square(X.part(TELLING_IMAGES).forward(W)), axis=0)), (L, K))
    return ops.logical_and(ops.any(A != 0, axis=1) | ops.any(B != 0, axis=1), effect <= SILENT_BELOW)


def wake_if_silent(X: Images, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Woken:
    """The factors with their silent ranks woken, if there are any: most steps have none, and pay nothing."""
    (A, B, bias), gain = ops.cond(
        ops.any(silent_ranks(X, factors)),
        lambda: wake_silent_ranks(X, samples, factors, alpha, penalty),
        lambda: Woken(factors, ops.zeros_like(alpha)),
    )
    return Woken(Factors(A, B, bias), gain)


def wake_silent_ranks(
    X: Images, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]
) -> Woken:
    """Gives the silent ranks of each class the leading singular pairs of -G_k, as far as an exact line search goes.

    Pairs that would not lower J stay silent: under the sum penalty those whose singular value is below alpha. Keeps
    the factors as they are if J would rise, and ranks beyond min(M, N).
    """
    start = at(X, samples, factors, alpha, penalty)
    pairs = leading_pairs(X, samples.residual(start.p), factors, alpha, penalty)
    way = (start.z, pairs.dz)
    # alpha R on the way is a parabola in eta, for factors grow with its root: three points tell it.
    R = [alpha * penalty.value(*pairs.grown(factors, eta)[:2]) for eta in (0.0, 1.0, 2.0)]
    near = pairs.grown(factors, reach(way, samples, ops.stack(R))[0])
    eta, V_far = reach(way, samples, ops.zeros_like(ops.stack(R)))
    far = pairs.grown(factors, eta)
    J_near, J_far = (at(X, samples, tried, alpha, penalty).J for tried in (near, far))
    # From nothing, V alone may say how far: what the penalty takes back later costs less than what is missing.
    fresh = ops.logical_not(ops.any(factors.A != 0))
    leaps = ops.logical_and(fresh, J_far <= start.J)
    falls = ops.logical_or(leaps, J_near <= start.J)
    # Pairs that say nothing are no start, as those of images far from zero: any b is better.
    V = bm.cross_entropy(start.z, *samples)
    falls = ops.logical_and(falls, ops.logical_not(fresh & (V - V_far < TELLING * V)))

    def chosen(near: Tensor, far: Tensor, old: Tensor) -> Tensor:
        return ops.where(falls, ops.where(leaps, far, near), old)

    parts = zip(near, far, factors, strict=True)
    grew = Factors(*(None if old is None else chosen(here, there, old) for here, there, old in parts))
    return Woken(grew, start.J - chosen(J_near, J_far, start.J))


class Pairs(NamedTuple):
    """What silent ranks may take: the way from W to W + eta sum_l u v^T.

    Fields:
        woken: The ranks that take it, (L, 1, K).
        u: (L, M, K), zero for the others.
        v: (L, N, K), zero for the others.
        dz: What that adds to the logits for eta = 1, (T, K).
        shift: What the bias gives back for it, (K,); None where there is no bias.
    """

    woken: Tensor
    u: Tensor
    v: Tensor
    dz: Tensor
    shift: Tensor | None

    def grown(self, factors: Factors, eta: Tensor | float) -> Factors:
        """The factors at eta: both of a pair grow with its root."""
        A, B, bias = factors
        eta = ops.cast(eta, A.dtype)
        size, beta = ops.sqrt(eta), None if bias is None else bias - eta * self.shift
        return Factors(ops.where(self.woken, size * self.u, A), ops.where(self.woken, size * self.v, B), beta)


def leading_pairs(X: Images, residual: Tensor, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Pairs:
    """The leading singular pairs of -G_k for the silent ranks of each class, given dV/dz = residual (T, K)."""
    return pairs_along(X, X.adjoint(residual), ops.sum(residual, axis=0), factors, alpha, penalty)


def pairs_along(
    X: Images, G: Tensor, shares: Tensor, factors: Factors, alpha: Tensor, penalty: type[Penalty]
) -> Pairs:
    """The same, given dV/dW = G (K, M, N) and dV/dbias = shares (K,)."""
    mean = None if factors.bias is None else X.mean()
    # About the mean image: what it adds to the logits is taken from the bias.
    G = G if mean is None else G - shares[:, None, None] * mean
    u, v = bm.truncated_factors(-G, rank=factors.A.shape[0])
    silent = silent_ranks(X, factors)
    turn = ops.maximum(ops.cumsum(ops.cast(silent, "int32"), axis=0) - 1, 0)[:, None, :]
    u, v = ops.take_along_axis(u, turn, axis=0), ops.take_along_axis(v, turn, axis=0)
    # Both factors have the root of the singular value for their norm; a pair enters by how much it promises.
    value = ops.sum(u * u, axis=1, keepdims=True)
    top = ops.maximum(ops.max(value), 1e-30)
    promise = ops.maximum(value - alpha * penalty.entry_cost, 0) / ops.maximum(value, 1e-30)
    woken = ops.logical_and(silent[:, None, :], promise > 0)
    # By the largest of all, for its square would leave float32 where pixels are tiny or huge.
    u, v = (ops.where(woken, ops.sqrt(promise / top) * part, ops.zeros_like(part)) for part in (u, v))
    dz, shift = X.logits(u, v), None if mean is None else of_mean(mean, u, v)
    return Pairs(woken, u, v, dz if shift is None else dz - shift, shift)


def wake_along(
    X: Images, samples: Samples, factors: Factors, G: Tensor, shares: Tensor, alpha: Tensor, penalty: type[Penalty]
) -> Factors:
    """The factors with their silent ranks on the leading singular pairs of -G_k, where X is a part of all images.

    G (K, M, N) and shares (K,) are those of all images: on a part, noise has pairs of its own. V of the part says
    how far, tilted to the slope of all.
    """
    pairs = pairs_along(X, G, shares, factors, alpha, penalty)
    z = X.logits(*factors)
    rise = inner(G, bm.merged_weights(pairs.u, pairs.v))
    rise = rise if pairs.shift is None else rise - inner(shares, pairs.shift)
    tilt = rise - inner(samples.residual(bm.probabilities(z)), pairs.dz)
    R = [alpha * penalty.value(*pairs.grown(factors, eta)[:2]) + eta * tilt for eta in (0.0, 1.0, 2.0)]
    grown = pairs.grown(factors, reach((z, pairs.dz), samples, ops.stack(R))[0])
    # What waits in vain costs a penalty all the same.
    in_vain = ops.logical_and(ops.all(factors.A == 0, axis=1, keepdims=True), ops.logical_not(pairs.woken))
    return grown._replace(B=ops.where(in_vain, ops.zeros_like(grown.B), grown.B))


def reach(way: tuple[Tensor, Tensor], samples: Samples, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """The eta > 0 that minimises J along W + eta sum_l u v^T, and J there; it is convex.

    way is z and what it moves by for eta = 1, (T, K) both; `penalty` holds alpha R at eta = 0, 1 and 2.
    """
    z, dz = way
    V = bm.cross_entropy(z, samples.targets, samples.weights)
    R0, R1, R2 = penalty[0], penalty[1], penalty[2]
    bent, slope = R2 - 2 * R1 + R0, (4 * R1 - 3 * R0 - R2) / 2

    def quadratic(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return R0 + eta * (slope + eta * bent / 2), slope + eta * bent, bent

    slope_J = inner(samples.residual(bm.probabilities(z)), dz) + slope
    return line_search(Path(dz, None, quadratic), samples, z, V + R0, slope_J)


def at(X: Images, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Start:
    """z, p and J of the factors."""
    A, B, bias = factors
    z = X.logits(A, B, bias)
    V = bm.cross_entropy(z, samples.targets, samples.weights)
    return Start(z, bm.probabilities(z), V + alpha * penalty.value(A, B))
