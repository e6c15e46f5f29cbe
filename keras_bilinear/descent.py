"""Descent with exact line searches: which way (`Direction`), how far (`line_search`), when to stop (`minimise`).

What is minimised is a `Problem`: J as a function of some parameters U of the model. Along a line in U its logits
are z + eta z' + eta^2 z'', so once z' and z'' are known a line search touches (T, K) arrays only, never the images,
and an iteration costs one product with the data to look ahead and one for the gradient.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from keras import ops

from keras_bilinear.bilinear_math import (
    Tensor,
    covariance_product,
    cross_entropy,
    log_partition,
    margins,
    probabilities,
)
from keras_bilinear.line_search import minimise_curve

SLOW = 1e-3
"""Iterations that lower J by less than this fraction hardly move: a descent that ends here loses its directions."""

MAX_CG = 25
"""Linear conjugate gradient products per Newton direction, at most."""


class Samples(NamedTuple):
    """What the likelihood needs besides the logits: targets C (T, K) and weights w (T,)."""

    targets: Tensor
    weights: Tensor

    def residual(self, p: Tensor) -> Tensor:
        """dV/dz = w (p - c), (T, K) (Eqs. "cost gradient: bsr")."""
        return self.weights[:, None] * (p - self.targets)


class Path(NamedTuple):
    """The way from U along d: z' and z'' (T, K), None where the logits are affine, and the penalty.

    `penalty` maps eta to alpha R(U + eta d) and its first two derivatives in eta.
    """

    dz: Tensor
    ddz: Tensor | None
    penalty: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Problem(Protocol):
    """J = V(z(U)) + alpha R(U) for parameters U of any one shape."""

    def logits(self, U: Tensor) -> Tensor:
        """z(U), (T, K)."""

    def penalty(self, U: Tensor) -> Tensor:
        """alpha R(U), scalar."""

    def gradient(self, U: Tensor, residual: Tensor) -> Tensor:
        """dJ/dU given dV/dz = residual (T, K)."""

    def path(self, U: Tensor, d: Tensor) -> Path:
        """The way from U along d."""

    def hessian(self, U: Tensor, residual: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> H v, given dV/dz = residual and the curvature of V, dz -> d^2V/dz^2 dz."""

    def precondition(self, g: Tensor) -> Tensor:
        """An approximation of H^-1 g, positive definite."""


class Solution(NamedTuple):
    """The minimum and how it was found: U, its logits z (T, K), J before and after, last eta, |gradient|."""

    parameters: Tensor
    logits: Tensor
    initial_objective: Tensor
    objective: Tensor
    step_size: Tensor
    grad_norm: Tensor
    iterations: Tensor


class Point(NamedTuple):
    """Where the descent stands: parameters, logits, J, gradient and probabilities there."""

    U: Tensor
    z: Tensor
    J: Tensor
    g: Tensor
    p: Tensor


Direction = Callable[[Problem, Samples, Point, Tensor, Tensor], Tensor]
"""(problem, samples, point, previous gradient, previous direction) -> descent direction, all shaped like U."""


def inner(U: Tensor, V: Tensor) -> Tensor:
    """<U, V>, scalar."""
    return ops.sum(U * V)


def steepest_descent(problem: Problem, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """d = -g, the paper's choice (Algorithms 1 and 2, the line A_l <- A_l - eta G_l), preconditioned."""
    return -problem.precondition(point.g)


def conjugate_gradient(problem: Problem, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """Nonlinear conjugate gradient, Polak-Ribiere with restarts (PR+): d = -h + max(0, beta) d_old, h = P g."""
    h = problem.precondition(point.g)
    scale = inner(g_old, problem.precondition(g_old))
    beta = ops.where(scale > 0, inner(point.g - g_old, h) / scale, ops.zeros_like(scale))
    d = -h + ops.maximum(beta, 0) * d_old
    return ops.where(inner(d, point.g) < 0, d, -h)


def newton_cg(problem: Problem, samples: Samples, point: Point, g_old: Tensor, d_old: Tensor) -> Tensor:
    """The Newton direction H d = -g by preconditioned linear conjugate gradient.

    Truncated at |r| <= min(0.5, sqrt|g|) |g|, or where the curvature is not positive.
    """
    norm = ops.norm(point.g)
    target = ops.minimum(0.5, ops.sqrt(norm)) * norm
    weights = samples.weights[:, None]
    residual = samples.residual(point.p)
    product = problem.hessian(point.U, residual, lambda dz: weights * covariance_product(point.p, dz))

    def unsolved(i: Tensor, d: Tensor, r: Tensor, h: Tensor, v: Tensor) -> Tensor:
        return ops.logical_and(i < MAX_CG, ops.norm(r) > target)

    def improve(i: Tensor, d: Tensor, r: Tensor, h: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        Hv, rh = product(v), inner(r, h)
        curvature = inner(v, Hv)
        step = ops.where(curvature > 0, rh / curvature, ops.zeros_like(rh))
        r_new = r - step * Hv
        h_new = problem.precondition(r_new)
        v_new = h_new + inner(r_new, h_new) / rh * v
        return ops.where(curvature > 0, i + 1, MAX_CG), d + step * v, r_new, h_new, v_new

    h = problem.precondition(-point.g)
    start = (ops.zeros((), "int32"), ops.zeros_like(point.g), -point.g, h, h)
    d = ops.while_loop(unsolved, improve, start)[1]
    return ops.where(inner(d, point.g) < 0, d, h)


DIRECTIONS: dict[str, Direction] = {
    "gradient_descent": steepest_descent,
    "cg": conjugate_gradient,
    "newton_cg": newton_cg,
}


def minimise(
    problem: Problem,
    samples: Samples,
    U: Tensor,
    direction: Direction,
    max_iterations: int | Tensor = 50,
    tolerance: float | Tensor = 1e-6,
    patience: int = 1,
) -> Solution:
    """Minimises J from U, never raising it (the while loops of Algorithms 1 and 2).

    Stops when an iteration lowers J by no more than `tolerance` |J|, when the gradient vanishes, or after
    `max_iterations`; while those together have lowered J by less than `SLOW` of it, after `patience` times as many.
    A step is taken only if the objective it leads to is finite and not above the present one.
    """
    z = problem.logits(U)
    J = cross_entropy(z, samples.targets, samples.weights) + problem.penalty(U)
    begin = differentiate(problem, samples, U, z, J)
    zeros = ops.zeros_like(U)
    state = (ops.zeros((), "int32"), ops.equal(ops.norm(begin.g), 0), *begin, zeros, zeros, ops.zeros_like(J))

    def unfinished(i: Tensor, done: Tensor, U: Tensor, z: Tensor, J: Tensor, *_: Tensor) -> Tensor:
        slow = SLOW * ops.abs(J) > begin.J - J
        within = i < max_iterations * ops.where(slow, patience, 1)
        return ops.logical_and(within, ops.logical_not(done))

    def iterate(i: Tensor, done: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        point, (g_old, d_old, last_eta) = Point(*rest[:5]), rest[5:]
        d = direction(problem, samples, point, g_old, d_old)
        path = problem.path(point.U, d)
        eta, J_new = line_search(path, samples, point, d)
        moved = ops.logical_and(eta > 0, J_new <= point.J)
        dz = path.dz if path.ddz is None else path.dz + eta * path.ddz
        after = differentiate(problem, samples, point.U + eta * d, point.z + eta * dz, J_new)
        kept = tuple(ops.where(moved, new, old) for new, old in zip(after, point, strict=True))
        stalled = point.J - kept[2] <= tolerance * ops.abs(point.J)
        return i + 1, stalled, *kept, point.g, d, ops.where(moved, eta, last_eta)

    i, _, U, z, J, g, _, _, _, eta = ops.while_loop(unfinished, iterate, state)
    return Solution(U, z, begin.J, J, eta, ops.norm(g), i)


def differentiate(problem: Problem, samples: Samples, U: Tensor, z: Tensor, J: Tensor) -> Point:
    """The gradient at U, from the residual w (p - c) (Eqs. "cost gradient: bsr")."""
    p = probabilities(z)
    return Point(U, z, J, problem.gradient(U, samples.residual(p)), p)


def line_search(path: Path, samples: Samples, point: Point, d: Tensor) -> tuple[Tensor, Tensor]:
    """The eta that minimises J(U + eta d), and that J: O(T K) an evaluation."""
    C, w = samples
    u0, u1 = margins(point.z, C), margins(path.dz, C)
    u2 = None if path.ddz is None else margins(path.ddz, C)

    def phi(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        R, dR, ddR = path.penalty(eta)
        if u2 is None:
            u, du = u0 + eta * u1, u1
        else:
            u, du = u0 + eta * (u1 + eta * u2), u1 + 2 * eta * u2
        p = probabilities(u)
        return (
            ops.sum(w * log_partition(u)) + R,
            ops.sum(w * ops.sum(p * du, axis=1)) + dR,
            curvature(p, du) + ddR,
        )

    def curvature(p: Tensor, du: Tensor) -> Tensor:
        bent = ops.sum(du * covariance_product(p, du), axis=1)
        return ops.sum(w * (bent if u2 is None else bent + 2 * ops.sum(p * u2, axis=1)))

    here = path.penalty(ops.zeros_like(point.J))
    return minimise_curve(phi, (point.J, inner(point.g, d), curvature(probabilities(u0), u1) + here[2]))
