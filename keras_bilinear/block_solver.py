"""One block of Algorithms 1 and 2: minimise J over some parameters U in which the logits are affine.

With everything outside the block fixed, z(U) = F U + offset and alpha R(U) is quadratic, so J(U) is convex and
along any direction d the logits are z + eta F d: an inner iteration touches the cached features F and (T, K)
arrays, never the images. "Which way" (`Direction`) and "how far" (`line_search`) are separate.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_bilinear.bilinear_math import (
    Tensor,
    covariance_product,
    cross_entropy,
    log_partition,
    margins,
    probabilities,
)
from keras_bilinear.line_search import minimise_convex
from keras_bilinear.penalties import couple

MAX_CG = 25
"""Linear conjugate gradient products per Newton direction, at most."""


class Block(NamedTuple):
    """J restricted to one block: S ranks of one side, stacked into U (S D, K).

    Fields:
        features: F, (K, T, S D) with one matrix per class, or (T, S D) shared by all classes.
        offset: Logits of everything outside the block, (T, K).
        coupling: alpha Q among the ranks of the block, (S, S, K).
        pull: Gradient of the penalty at U = 0, shaped like U.
        constant: alpha R at U = 0, scalar.
        has_bias: Whether U has one more row that is added to the logits and not penalised.
    """

    features: Tensor
    offset: Tensor
    coupling: Tensor
    pull: Tensor
    constant: Tensor
    has_bias: bool

    def forward(self, U: Tensor) -> Tensor:
        """F U, (T, K)."""
        weights = U[:-1] if self.has_bias else U
        if len(self.features.shape) == 2:
            z = ops.matmul(self.features, weights)
        else:
            z = ops.transpose(ops.matmul(self.features, ops.transpose(weights)[:, :, None])[:, :, 0])
        return z + U[-1] if self.has_bias else z

    def adjoint(self, r: Tensor) -> Tensor:
        """F^T r, shaped like U."""
        if len(self.features.shape) == 2:
            g = ops.matmul(ops.transpose(self.features), r)
        else:
            g = ops.einsum("ktd,tk->dk", self.features, r)
        return ops.concatenate([g, ops.sum(r, axis=0, keepdims=True)]) if self.has_bias else g

    def penalty_product(self, U: Tensor) -> Tensor:
        """alpha Q U, the Hessian of the penalty along U, shaped like U."""
        weights = U[:-1] if self.has_bias else U
        stacked = ops.reshape(weights, (self.coupling.shape[0], -1, U.shape[1]))
        product = ops.reshape(couple(self.coupling, stacked), weights.shape)
        return ops.concatenate([product, ops.zeros_like(U[-1:])]) if self.has_bias else product

    def penalty(self, U: Tensor) -> Tensor:
        """alpha R(U), scalar."""
        return self.constant + inner(U, self.pull) + 0.5 * inner(U, self.penalty_product(U))


class Samples(NamedTuple):
    """What the likelihood needs besides the logits: targets C (T, K) and weights w (T,)."""

    targets: Tensor
    weights: Tensor


class Solution(NamedTuple):
    """The solved block and how it got there: U, its logits z (T, K), J before and after, last eta, |gradient|."""

    parameters: Tensor
    logits: Tensor
    initial_objective: Tensor
    objective: Tensor
    step_size: Tensor
    grad_norm: Tensor
    iterations: Tensor


class Point(NamedTuple):
    """Where the solver stands: parameters, logits, J, gradient and probabilities there."""

    U: Tensor
    z: Tensor
    J: Tensor
    g: Tensor
    p: Tensor


Direction = Callable[[Block, Samples, Point, Tensor, Tensor], Tensor]
"""(block, samples, point, previous gradient, previous direction) -> descent direction, all shaped like U."""


def inner(U: Tensor, V: Tensor) -> Tensor:
    """<U, V>, scalar."""
    return ops.sum(U * V)


def steepest_descent(block: Block, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """d = -g, the paper's choice (Algorithms 1 and 2, the line A_l <- A_l - eta G_l)."""
    return -point.g


def conjugate_gradient(block: Block, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """Nonlinear conjugate gradient, Polak-Ribiere with restarts (PR+): d = -g + max(0, beta) d_old."""
    scale = inner(g_old, g_old)
    beta = ops.where(scale > 0, inner(point.g, point.g - g_old) / scale, ops.zeros_like(scale))
    d = -point.g + ops.maximum(beta, 0) * d_old
    return ops.where(inner(d, point.g) < 0, d, -point.g)


def newton_cg(block: Block, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """The Newton direction H d = -g by linear conjugate gradient, truncated at |r| <= min(0.5, sqrt|g|) |g|."""
    norm = ops.norm(point.g)
    target = ops.minimum(0.5, ops.sqrt(norm)) * norm

    def hessian_product(v: Tensor) -> Tensor:
        curved = covariance_product(point.p, block.forward(v))
        return block.adjoint(samples.weights[:, None] * curved) + block.penalty_product(v)

    def unsolved(i: Tensor, d: Tensor, r: Tensor, v: Tensor) -> Tensor:
        return ops.logical_and(i < MAX_CG, ops.norm(r) > target)

    def improve(i: Tensor, d: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        Hv, rr = hessian_product(v), inner(r, r)
        curvature = inner(v, Hv)
        step = ops.where(curvature > 0, rr / curvature, ops.zeros_like(rr))
        r_new = r - step * Hv
        v_new = r_new + inner(r_new, r_new) / rr * v
        return ops.where(curvature > 0, i + 1, MAX_CG), d + step * v, r_new, v_new

    start = (ops.zeros((), "int32"), ops.zeros_like(point.g), -point.g, -point.g)
    d = ops.while_loop(unsolved, improve, start)[1]
    return ops.where(inner(d, point.g) < 0, d, -point.g)


DIRECTIONS: dict[str, Direction] = {
    "gradient_descent": steepest_descent,
    "cg": conjugate_gradient,
    "newton_cg": newton_cg,
}


def solve(
    block: Block,
    samples: Samples,
    U: Tensor,
    direction: Direction,
    max_iterations: int | Tensor = 50,
    tolerance: float | Tensor = 1e-6,
) -> Solution:
    """Minimises J over the block from U, never raising it (the while loops of Algorithms 1 and 2).

    Stops when an iteration lowers J by no more than `tolerance` |J|, when the gradient vanishes, or after
    `max_iterations`. A step is taken only if the objective it leads to is finite and not above the present one.
    """
    z = block.offset + block.forward(U)
    J = cross_entropy(z, samples.targets, samples.weights) + block.penalty(U)
    begin = differentiate(block, samples, U, z, J)
    zeros = ops.zeros_like(U)
    state = (ops.zeros((), "int32"), ops.equal(ops.norm(begin.g), 0), *begin, zeros, zeros, ops.zeros_like(J))

    def unfinished(i: Tensor, done: Tensor, *_: Tensor) -> Tensor:
        return ops.logical_and(i < max_iterations, ops.logical_not(done))

    def iterate(i: Tensor, done: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        point, (g_old, d_old, last_eta) = Point(*rest[:5]), rest[5:]
        d = direction(block, samples, point, g_old, d_old)
        dz = block.forward(d)
        eta, J_new = line_search(block, samples, point, d, dz)
        moved = ops.logical_and(eta > 0, J_new <= point.J)
        after = differentiate(block, samples, point.U + eta * d, point.z + eta * dz, J_new)
        kept = tuple(ops.where(moved, new, old) for new, old in zip(after, point, strict=True))
        stalled = point.J - kept[2] <= tolerance * ops.abs(point.J)
        return i + 1, stalled, *kept, point.g, d, ops.where(moved, eta, last_eta)

    i, _, U, z, J, g, _, _, _, eta = ops.while_loop(unfinished, iterate, state)
    return Solution(U, z, begin.J, J, eta, ops.norm(g), i)


def differentiate(block: Block, samples: Samples, U: Tensor, z: Tensor, J: Tensor) -> Point:
    """The gradient g = F^T w (p - c) + alpha (Q U + q) at U (Eqs. "cost gradient: bsr")."""
    p = probabilities(z)
    residual = samples.weights[:, None] * (p - samples.targets)
    return Point(U, z, J, block.adjoint(residual) + block.penalty_product(U) + block.pull, p)


def line_search(block: Block, samples: Samples, point: Point, d: Tensor, dz: Tensor) -> tuple[Tensor, Tensor]:
    """The eta that minimises J(U + eta d), and that J: O(T K) an evaluation."""
    C, w = samples
    penalty0, bend = block.penalty(point.U), inner(d, block.penalty_product(d))
    tilt = inner(d, block.penalty_product(point.U) + block.pull)
    u0, du = margins(point.z, C), margins(dz, C)

    def phi(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = u0 + eta * du
        p = probabilities(u)
        value = ops.sum(w * log_partition(u))
        slope = ops.sum(w * ops.sum(p * du, axis=1))
        return (
            value + penalty0 + eta * tilt + 0.5 * eta * eta * bend,
            slope + tilt + eta * bend,
            curvature(p) + bend,
        )

    def curvature(p: Tensor) -> Tensor:
        return ops.sum(w * ops.sum(du * covariance_product(p, du), axis=1))

    return minimise_convex(phi, (point.J, inner(point.g, d), curvature(probabilities(u0)) + bend))
