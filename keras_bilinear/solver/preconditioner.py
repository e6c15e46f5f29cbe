"""What a descent divides its gradient by, so that the unit and the offset of a pixel play no part.

The Gauss-Newton matrix of class k is the sum over images of c_t f_t f_t^T, c = w p (1 - p), and the penalty's
alpha Q; f holds what the parameters of the class multiply: pixels, or the columns X b_{l,k} and X^T a_{l,k}. About
the mean m of the features, with mass = sum_t c_t, it is

    H_k = S + mass m m^T,        S = sum_t c_t (f_t - m) (f_t - m)^T + alpha Q.

Where pixels lie far from zero, say from 1000 to 1001, m m^T outweighs all that tells images apart, and float32
holds nothing else of H. So S alone is inverted, or only its diagonal. m enters exactly: by the bias, which is free
to shift all logits, or without one by the formula of Sherman and Morrison.

S is damped by a fraction of the squared range of each feature, in its own unit whatever that is, and scaled to a
diagonal of ones before it is inverted.
"""

from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Tensor

DAMPING = 0.3
"""The damping of S is on average this fraction of its diagonal. It goes by the range of a feature, not by the
variance: what only a few images have would move their logits the farthest, and the sample may not hold them."""
FLOOR = 1e-3
"""By this fraction the diagonal is raised in any case, for the ranks of a class may be parallel."""
RESOLUTION = 1e-4
"""Features that vary by less than this fraction of their mean are too coarse in float32 to tell images apart."""
LEAST_CURVATURE = 1e-8
"""Added to p (1 - p): there is always some curvature."""
NOTHING = 1e-36
"""A diagonal below this is that of parameters which move no logit."""


class Preconditioner(NamedTuple):
    """P, approximately the inverse of H_k for each class, applied to gradients shaped like U (D, K) or (D + 1, K).

    Fields:
        inverse: S^-1 (K, D, D); or only its blocks, one for each factor, (K, L, M, M) and (K, L, N, N); or only
            its diagonal (K, D).
        mean: m (K, D).
        mass: The sum of c (K, 1).
        lean: S^-1 m / (1 / mass + m^T S^-1 m), (K, D).
        along: S^-1 m / (m^T S^-1 m), (K, D).
        damping: What was added to the diagonal of S, (K, D).
    """

    inverse: "Tensor | Blocks"
    mean: Tensor
    mass: Tensor
    lean: Tensor
    along: Tensor
    damping: Tensor

    def damping_of(self, has_bias: bool) -> Tensor:
        """The damping shaped like U. A bias has next to none, for soft-max leaves a shift of all of them free."""
        rows = [self.damping, FLOOR * self.mass] if has_bias else [self.damping]
        return ops.transpose(ops.concatenate(rows, axis=1))

    def apply(self, g: Tensor, has_bias: bool) -> Tensor:
        """P_k g_k for each class; the last row is that of the bias if there is one."""
        if not has_bias:
            return ops.transpose(self.without_bias(ops.transpose(g)))
        weights, bias = ops.transpose(g[:-1]), ops.transpose(g[-1:])
        u = product(self.inverse, weights - self.mean * bias)
        return ops.transpose(ops.concatenate([u, bias / self.mass - dot(self.mean, u)], axis=1))

    def without_bias(self, g: Tensor) -> Tensor:
        """S^-1 (g - m share) with share = lean^T g, for which m^T P g = share / mass; g (K, D).

        The last is forced upon it: m is so long that rounding errors of u would move the mean logit.
        """
        share = dot(self.lean, g)
        u = product(self.inverse, g - self.mean * share)
        return u - self.along * (dot(self.mean, u) - share / self.mass)


class Curvature(NamedTuple):
    """S in parts that float32 holds, for images of any unit: S = unit / (scale scale^T).

    Fields:
        unit: (K, D, D), with a diagonal near one; symmetric positive definite. Or only its blocks, one for each
            factor, (K, L, M, M) and (K, L, N, N); or None for its diagonal alone.
        scale: (K, D); 0 for parameters that move nothing.
        mean: m (K, D).
        mass: (K, 1).
        damping: What was added to the diagonal of S, (K, D).
    """

    unit: "Tensor | Blocks | None"
    scale: Tensor
    mean: Tensor
    mass: Tensor
    damping: Tensor

    def inverted(self) -> Preconditioner:
        """The preconditioner with what there is of S."""
        if self.unit is None:
            inverse: Tensor | Blocks = ops.square(self.scale) / (1 + FLOOR)
        elif isinstance(self.unit, Blocks):
            inverse = Blocks(*map(unscaled, self.unit, self.unit.parted(self.scale)))
        else:
            inverse = unscaled(self.unit, self.scale)
        return about_the_mean(inverse, self.mean, self.mass, self.damping)


class Blocks(NamedTuple):
    """One matrix for each factor of each class, nothing between factors.

    Fields:
        left: (K, L, M, M).
        right: (K, L, N, N).
    """

    left: Tensor
    right: Tensor

    def parted(self, v: Tensor) -> list[Tensor]:
        """v (K, D) as (K, L, M) and (K, L, N)."""
        return in_factors(v, [ops.shape(side)[:3] for side in self])


def unscaled(unit: Tensor, scale: Tensor) -> Tensor:
    """The inverse of unit / (scale scale^T), (..., D, D)."""
    return scale[..., :, None] * ops.inv(unit) * scale[..., None, :]


def in_factors(v: Tensor, sides: list[Any]) -> list[Tensor]:
    """v (..., D) as (..., L, M) and (..., L, N), given (K, L, M) and (K, L, N) as `sides`."""
    parts = tf.split(v, [L * D for _, L, D in sides], axis=-1)
    return [ops.reshape(part, (*ops.shape(v)[:-1], L, D)) for part, (_, L, D) in zip(parts, sides, strict=True)]


def curvature(F: Tensor, c: Tensor, penalty: Tensor) -> Curvature:
    """S of each class. F (K, S, D), c (K, S), alpha Q (K, D, D)."""
    mass, mean = moments(F, c)
    varying = ops.sqrt(c)[:, :, None] * (F - mean[:, None, :])
    # One array serves both sides; `ops.matmul` would make a copy of its transpose.
    S = tf.matmul(varying, varying, transpose_a=True)
    variance = ops.diagonal(S, axis1=1, axis2=2)
    added = damping(variance, ranges(F), mean, mass)
    damped = variance + added + ops.diagonal(penalty, axis1=1, axis2=2)
    scale = ops.where(damped > NOTHING, ops.rsqrt(ops.maximum(damped, NOTHING)), 0.0)
    one = ops.eye(ops.shape(F)[2], dtype=F.dtype)
    # The diagonal is one where anything moves, whatever is added to it.
    unit = scale[:, :, None] * (S + penalty) * scale[:, None, :] * (1 - one) + (1 + FLOOR) * one
    return Curvature(unit, scale, mean, mass, added)


def curvature_of_parts(F: Tensor, c: Tensor, penalty: Tensor, sides: list[Any] | None) -> Curvature:
    """S without what is between factors, or with None for `sides` without all but its diagonal.

    F (K, S, D), c (K, S), the diagonal of alpha Q (K, D); `sides` as of `in_factors`.
    """
    mass, mean = moments(F, c)
    varying = ops.sqrt(c)[:, :, None] * (F - mean[:, None, :])
    variance = ops.sum(ops.square(varying), axis=1)
    added = damping(variance, ranges(F), mean, mass)
    damped = variance + added + penalty
    scale = ops.where(damped > NOTHING, ops.rsqrt(ops.maximum(damped, NOTHING)), 0.0)
    if sides is None:
        return Curvature(None, scale, mean, mass, added)
    units = []
    for part in in_factors(varying * scale[:, None, :], sides):
        one = ops.eye(ops.shape(part)[3], dtype=F.dtype)
        units.append(ops.einsum("kslm,kslp->klmp", part, part) * (1 - one) + (1 + FLOOR) * one)
    return Curvature(Blocks(*units), scale, mean, mass, added)


def diagonal(F: Tensor, c: Tensor, penalty: Tensor) -> Preconditioner:
    """With the diagonal of S. F (K, S, D), or (S, D) for all classes; c (K, S); alpha Q (K, D)."""
    if len(F.shape) == 3:
        mass, mean = moments(F, c)
        variance = ops.einsum("ks,ksd->kd", c, ops.square(F - mean[:, None, :]))
    else:
        # About the plain mean first: squares of large numbers have no digits left for what varies.
        middle = ops.mean(F, axis=0)
        varying = F - middle
        mass, shift = moments(varying, c)
        mean = middle + shift
        variance = ops.maximum(ops.matmul(c, ops.square(varying)) - mass * ops.square(shift), 0)
    added = damping(variance, ranges(F), mean, mass)
    damped = (1 + FLOOR) * (variance + added + penalty)
    inverse = ops.where(damped > NOTHING, 1 / ops.maximum(damped, NOTHING), 0.0)
    return about_the_mean(inverse, mean, mass, added)


def about_the_mean(inverse: Tensor | Blocks, mean: Tensor, mass: Tensor, damping: Tensor) -> Preconditioner:
    """The preconditioner for S^-1, or its diagonal, and m."""
    turned = product(inverse, mean)
    length = dot(mean, turned)
    lean, along = turned / (1 / mass + length), turned / ops.maximum(length, NOTHING)
    return Preconditioner(inverse, mean, mass, lean, along, damping)


def dot(v: Tensor, u: Tensor) -> Tensor:
    """v_k . u_k for each class, (K, 1)."""
    return ops.sum(v * u, axis=1, keepdims=True)


def product(S: Tensor | Blocks, v: Tensor) -> Tensor:
    """S_k v_k for each class. S (K, D, D), or its blocks, or its diagonal (K, D); v (K, D)."""
    if isinstance(S, Blocks):
        parts = [ops.einsum("klmp,klp->klm", side, part) for side, part in zip(S, S.parted(v), strict=True)]
        return ops.concatenate([ops.reshape(part, (ops.shape(v)[0], -1)) for part in parts], axis=1)
    return S * v if len(S.shape) == 2 else ops.matmul(S, v[:, :, None])[:, :, 0]


def moments(F: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The mass (K, 1) and the mean feature (K, D) of each class."""
    mass = ops.maximum(ops.sum(c, axis=1, keepdims=True), NOTHING)  # all weights may be zero
    total = ops.matmul(c, F) if len(F.shape) == 2 else ops.matmul(c[:, None, :], F)[:, 0]
    return mass, total / mass


def ranges(F: Tensor) -> Tensor:
    """How far apart the values of each feature lie: (K, D), or (D,) where all classes share them."""
    return ops.max(F, axis=-2) - ops.min(F, axis=-2)


def damping(variance: Tensor, span: Tensor, mean: Tensor, mass: Tensor) -> Tensor:
    """What is added to the diagonal of S, (K, D)."""
    square = ops.broadcast_to(ops.square(span), ops.shape(variance))
    varies = square > 0
    # A pixel that never changes has its own value for a unit.
    square = ops.where(varies, square, ops.square(mean))
    share = ops.where(varies, variance / ops.where(varies, square, 1.0), 0.0)
    count = ops.maximum(ops.sum(ops.cast(varies, share.dtype), axis=1, keepdims=True), 1)
    typical = ops.sum(share, axis=1, keepdims=True) / count
    return DAMPING * typical * square + mass * ops.square(RESOLUTION * mean)


CURVATURE, SKETCH = 2048, 4096
"""So many images are a part of very many, for the curvature and for a sketch."""


def stride(T: Tensor, most: int = CURVATURE) -> Tensor:
    """Every how many of T images one is taken: all of few, a fourth of them, or some `most` of very many."""
    if isinstance(T, int):
        return max(1, min(4, T // 1024), T // most)
    return ops.maximum(ops.maximum(1, ops.minimum(4, T // 1024)), T // most)


def sample(*arrays: Tensor, most: int = CURVATURE) -> tuple[Tensor, ...]:
    """Evenly spaced images of arrays (T, ...)."""
    chosen = slice(None, None, stride(ops.shape(arrays[0])[0], most))
    # A slice with a computed stride forgets all of the shape.
    return tuple(tf.ensure_shape(array[chosen], (None, *array.shape[1:])) for array in arrays)


def same_total(w: Tensor, weights: Tensor) -> Tensor:
    """The weights w (S,) of a sample, scaled to those of all images (T,)."""
    return w * ops.sum(weights) / ops.maximum(ops.sum(w), 1e-30)


def curvature_weights(p: Tensor, w: Tensor) -> Tensor:
    """c_k = w p (1 - p), (K, S)."""
    return ops.transpose(w[:, None] * (p * (1 - p) + LEAST_CURVATURE))
