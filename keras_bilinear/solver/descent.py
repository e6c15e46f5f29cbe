"""Descent with exact line searches: how far (`line_search`), when to stop (`minimise`); `directions` say which way.

What is minimised is a `Problem`: J as a function of some parameters U of the model. Along a line in U its logits
are z + eta z' + eta^2 z'', so once z' and z'' are known a line search touches (T, K) arrays only, never the images,
and an iteration costs one product with the data to look ahead and one for the gradient.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from keras import ops

from keras_bilinear.maths.bilinear import (
    Samples,
    Tensor,
    covariance_product,
    cross_entropy,
    log_partition,
    margins,
    probabilities,
)
from keras_bilinear.solver.compiled import loop, traced_once
from keras_bilinear.solver.line_search import minimise_curve
from keras_bilinear.solver.linear_cg import inner, linear_cg

SLOW = 1e-3
"""Iterations that lower J by less than this fraction hardly move: a descent that ends here loses its directions."""

SKETCH_CG, SKETCH_TARGET = 20, 2.5e-3
"""Linear conjugate gradient products on a sketch, at most, and to what fraction r^T P r shall fall."""
FIRST_DAMPING, DAMPINGS = 1 / 3, (3e-6, 30.0)
"""Of a sketch, in terms of that of the preconditioner: at first, and the least and the most."""
SHORT, LONG = 0.3, 0.8
"""A step of which a line search takes less asks for more damping, one of which it takes more for less."""


class Budget(NamedTuple):
    """When a descent ends: after so many iterations, or after one that lowers J by no more than tolerance |J|."""

    max_iterations: int | Tensor
    tolerance: float | Tensor


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

    def gauss_newton(self, U: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The part of `hessian` that is never negative: v -> J_z^T curve(J_z v) and what the penalty adds to it."""

    def precondition(self, g: Tensor) -> Tensor:
        """h = P g, an approximation of H^-1 g, positive definite."""

    def steepest(self, g: Tensor, h: Tensor) -> Tensor:
        """What steepest descent takes for the gradient: g itself, or h = P g."""


class Sketch(NamedTuple):
    """The same problem on a part of the images, on which Newton's equations are solved without a pass over all.

    Its curvature couples the classes, which P does not. What the part does not tell is left to the damping.

    Fields:
        problem: On the part of the images.
        samples: Of these, with the weight of all.
        damping: Added to the diagonal of the curvature for a trust of 1, shaped like U.
    """

    problem: Problem
    samples: Samples
    damping: Tensor

    def newton_step(
        self,
        U: Tensor,
        g: Tensor,
        damping: Tensor,
        most: int = SKETCH_CG,
        target: float = SKETCH_TARGET,
        bent: Callable[[Tensor], Tensor] = ops.zeros_like,
    ) -> Tensor:
        """h = (H + damping)^-1 g with H of Gauss and Newton, by linear conjugate gradient, truncated.

        `bent` is what H lacks: a product v -> B v that leaves H + B positive.
        """
        p, weights = probabilities(self.problem.logits(U)), self.samples.weights[:, None]
        curved = self.problem.gauss_newton(U, lambda dz: weights * covariance_product(p, dz))
        ridge = damping * self.damping
        return linear_cg(lambda v: curved(v) + bent(v) + ridge * v, self.problem.precondition, g, most, target)


class Solution(NamedTuple):
    """The minimum and how it was found: U, its logits z (T, K), J before and after, last eta, |gradient|.

    `decrement` is by how much a Newton step from there would still lower J, by what the preconditioner knows of its
    curvature: 1/2 g^T P g, which no unit of the pixels changes.
    """

    parameters: Tensor
    logits: Tensor
    initial_objective: Tensor
    objective: Tensor
    step_size: Tensor
    grad_norm: Tensor
    iterations: Tensor
    decrement: Tensor


def in_sight(solution: Solution, samples: Samples) -> Tensor:
    """How much lower J could be by a Newton step from where a descent has ended, as a fraction of it.

    What float32 cannot tell from nothing is nothing: 1e-6 of J, and 1e-7 of the largest logit.
    """
    J = ops.abs(solution.objective)
    rounding = 1e-6 * J + 1e-7 * ops.sum(samples.weights) * ops.max(ops.abs(solution.logits))
    return ops.maximum(solution.decrement - rounding, 0) / ops.maximum(J, 1e-30)


class Point(NamedTuple):
    """Where the descent stands: parameters, logits, J, probabilities and gradient there."""

    U: Tensor
    z: Tensor
    J: Tensor
    p: Tensor
    g: Tensor


class Step(NamedTuple):
    """The last one: the gradient where it began, g^T h there, and its direction."""

    g: Tensor
    gh: Tensor
    d: Tensor


class State(NamedTuple):
    """Of a descent: iterations made, whether it has ended, whether the last one found nothing, the last eta > 0.

    `damping` is that of the sketch: more where line searches stop short of its steps, less where they do not.
    """

    iterations: Tensor
    done: Tensor
    stuck: Tensor
    point: Point
    last: Step
    eta: Tensor
    damping: Tensor


Direction = Callable[[Problem, Samples, Point, Tensor, Step], Tensor]
"""(problem, samples, point, h, last step) -> descent direction, shaped like U; h is the preconditioned gradient."""


def minimise(
    problem: Problem,
    samples: Samples,
    U: Tensor,
    direction: Direction,
    budget: Budget,
    patience: int = 1,
    sketch: Sketch | None = None,
) -> Solution:
    """Minimises J from U, never raising it (the while loops of Algorithms 1 and 2).

    Stops as the `budget` says, or when the gradient vanishes; while all iterations together have lowered J by less
    than `SLOW` of it, it may make `patience` times as many. With a `sketch`, h is the Newton step it gives.
    A step is taken only if the objective it leads to is finite and not above the present one.
    """
    z = problem.logits(U)
    J = cross_entropy(z, samples.targets, samples.weights) + problem.penalty(U)
    nothing, zero = ops.zeros_like(U), ops.zeros_like(J)

    @traced_once
    def point_at(U: Tensor, z: Tensor, J: Tensor) -> Point:
        return differentiate(problem, samples, U, z, J)

    @traced_once
    def preconditioned(U: Tensor, g: Tensor, damping: Tensor) -> Tensor:
        return problem.precondition(g) if sketch is None else sketch.newton_step(U, g, damping)

    begin = point_at(U, z, J)

    def is_slow(point: Point) -> Tensor:
        return SLOW * ops.abs(point.J) > begin.J - point.J

    def unfinished(state: State) -> Tensor:
        within = state.iterations < budget.max_iterations * ops.where(is_slow(state.point), patience, 1)
        return ops.logical_and(within, ops.logical_not(state.done))

    def iterate(state: State) -> tuple[State]:
        point = state.point
        h = preconditioned(point.U, point.g, state.damping)
        d = direction(problem, samples, point, h, state.last)
        path = problem.path(point.U, d)
        eta, J_new = line_search(path, samples, point.z, point.J, inner(point.g, d))
        moved = ops.logical_and(eta > 0, J_new <= point.J)
        dz = path.dz if path.ddz is None else path.dz + eta * path.ddz
        after = point_at(point.U + eta * d, point.z + eta * dz, J_new)
        kept = Point(*(ops.where(moved, new, old) for new, old in zip(after, point, strict=True)))
        stalled = budget.tolerance * ops.abs(point.J) >= point.J - kept.J
        # Where nothing is found along a direction, the next one owes nothing to it.
        done = ops.logical_and(stalled, ops.logical_or(moved, state.stuck))
        last, damping = Step(point.g, inner(point.g, h), d), adapted(state.damping, eta)
        eta = ops.where(moved, eta, state.eta)
        return (State(state.iterations + 1, done, ops.logical_not(moved), kept, last, eta, damping),)

    at_rest = ops.equal(ops.norm(begin.g), 0)
    still = Step(nothing, zero, nothing)
    start = State(ops.zeros((), "int32"), at_rest, ops.zeros((), "bool"), begin, still, zero, zero + FIRST_DAMPING)
    (end,) = loop(unfinished, iterate, (start,))
    U, z, J, _, g = end.point
    # Where J falls fast a rough answer will do: to solve the equations takes as long as an iteration.
    h = ops.cond(is_slow(end.point), lambda: preconditioned(U, g, end.damping), lambda: problem.precondition(g))
    return Solution(U, z, begin.J, J, end.eta, ops.norm(g), end.iterations, 0.5 * inner(g, h))


def differentiate(problem: Problem, samples: Samples, U: Tensor, z: Tensor, J: Tensor) -> Point:
    """The gradient at U, from the residual w (p - c) (Eqs. "cost gradient: bsr")."""
    p = probabilities(z)
    return Point(U, z, J, p, problem.gradient(U, samples.residual(p)))


def adapted(damping: Tensor, eta: Tensor) -> Tensor:
    """The damping of the next step, after one of which a line search has taken the part eta."""
    factor = ops.where(eta < SHORT, 3.0, ops.where(eta > LONG, 1 / 3, 1.0))
    return ops.clip(damping * ops.cast(factor, damping.dtype), *DAMPINGS)


def line_search(path: Path, samples: Samples, z: Tensor, J: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The eta that minimises J(U + eta d), and that J: O(T K) an evaluation.

    z (T, K), J and its derivative `slope` along d are those at eta = 0.
    """
    C, w = samples
    u0, u1 = margins(z, C), margins(path.dz, C)
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

    bend = path.penalty(ops.zeros_like(J))[2]
    return minimise_curve(phi, (J, slope, curvature(probabilities(u0), u1) + bend))
