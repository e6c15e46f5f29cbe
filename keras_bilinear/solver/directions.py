"""Which way a descent goes from where it stands."""

from keras import ops

from keras_bilinear.maths.bilinear import Samples, Tensor, covariance_product
from keras_bilinear.solver.descent import Direction, Point, Problem, Step
from keras_bilinear.solver.linear_cg import inner, linear_cg

MAX_CG = 25
"""Linear conjugate gradient products per Newton direction, at most."""


def steepest_descent(problem: Problem, samples: Samples, point: Point, h: Tensor, last: Step) -> Tensor:
    """d = -g, the paper's choice (Algorithms 1 and 2, the line A_l <- A_l - eta G_l)."""
    return -problem.steepest(point.g, h)


def conjugate_gradient(problem: Problem, samples: Samples, point: Point, h: Tensor, last: Step) -> Tensor:
    """Nonlinear conjugate gradient, Polak-Ribiere with restarts (PR+): d = -h + max(0, beta) d_old, h = P g."""
    rise = inner(point.g - last.g, h)
    beta = ops.where(last.gh > 0, rise / last.gh, ops.zeros_like(rise))
    d = -h + ops.maximum(beta, 0) * last.d
    return ops.where(inner(d, point.g) < 0, d, -h)


def newton_cg(problem: Problem, samples: Samples, point: Point, h: Tensor, last: Step) -> Tensor:
    """The Newton direction H d = -g by preconditioned linear conjugate gradient.

    Truncated where r^T P r has fallen to the fraction min(1/4, g^T P g / |J|) of what it was, or where the
    curvature is not positive.
    """
    start = inner(point.g, h)
    fraction = ops.minimum(0.25, start / ops.maximum(ops.abs(point.J), 1e-30))
    weights = samples.weights[:, None]
    product = problem.hessian(
        point.U, samples.residual(point.p), lambda dz: weights * covariance_product(point.p, dz)
    )
    d = -linear_cg(product, problem.precondition, point.g, MAX_CG, fraction)
    return ops.where(inner(d, point.g) < 0, d, -h)


DIRECTIONS: dict[str, Direction] = {
    "gradient_descent": steepest_descent,
    "cg": conjugate_gradient,
    "newton_cg": newton_cg,
}
