"""A safeguarded search for a minimum of a smooth function of one variable. It knows no model."""

from collections.abc import Callable

from keras import ops

from keras_bilinear.maths.bilinear import Tensor

Curve = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""eta -> (phi(eta), phi'(eta), phi''(eta)), all scalars."""


def minimise_curve(
    phi: Curve, start: tuple[Tensor, Tensor, Tensor], slope_tolerance: float = 0.1, max_evaluations: int = 12
) -> tuple[Tensor, Tensor]:
    """Finds eta >= 0 with phi(eta) <= phi(0) and, where the budget allows, |phi'(eta)| <= tolerance |phi'(0)|.

    For convex phi that is close to the minimum; otherwise, close to one of the stationary points.

    Newton's method inside a bracket lo < eta* < hi. Plain Newton from 0 overshoots into saturation, where
    phi'' vanishes, so a proposal outside the bracket is replaced by expansion (while hi is unknown) or by
    bisection, geometric once lo > 0. If the budget ends beyond the minimum the answer is lo, where phi was seen
    to be no higher than at 0. Never raises phi, never returns a non-finite value.

    Args:
        phi: The function with its two derivatives.
        start: (phi(0), phi'(0), phi''(0)); the caller has them already.
        slope_tolerance: Stop when the slope has fallen to this fraction of the slope at 0.
        max_evaluations: Budget of evaluations of phi.

    Returns:
        (eta, phi(eta)); eta = 0 when no decrease was found.
    """
    phi0, slope0, curvature0 = start
    zero = ops.zeros_like(phi0)
    infinity = zero + float("inf")
    first = ops.where(curvature0 > 0, -slope0 / curvature0, ops.ones_like(phi0))
    first = ops.where(ops.isfinite(first) & (first > 0), first, ops.ones_like(phi0))

    def searching(count: Tensor, done: Tensor, *_: Tensor) -> Tensor:
        return ops.logical_and(count < max_evaluations, ops.logical_not(done))

    def evaluate(
        count: Tensor, done: Tensor, eta: Tensor, lo: Tensor, phi_lo: Tensor, hi: Tensor
    ) -> tuple[Tensor, ...]:
        value, slope, curvature = phi(eta)
        sound = ops.isfinite(value) & ops.isfinite(slope)
        falls = sound & (value <= phi0)
        flat = falls & (ops.abs(slope) <= slope_tolerance * ops.abs(slope0))
        advance = flat | (falls & (slope <= 0))
        lo, phi_lo = ops.where(advance, eta, lo), ops.where(advance, value, phi_lo)
        hi = ops.where(advance, hi, eta)
        newton = eta - slope / curvature
        midpoint = ops.where(lo > 0, ops.sqrt(lo) * ops.sqrt(hi), 0.25 * hi)
        fallback = ops.where(ops.isfinite(hi), midpoint, 4.0 * eta)
        # Where phi is above phi(0), the minimum of a parabola would lie before half the way.
        limit = ops.where(falls, ops.minimum(hi, 16.0 * eta), 0.5 * eta)
        inside = sound & ops.isfinite(newton) & (newton > lo) & (newton < limit)
        return count + 1, flat, ops.where(inside, newton, fallback), lo, phi_lo, hi

    state = (ops.zeros((), "int32"), slope0 >= 0, first, zero, phi0, infinity)
    _, _, _, eta, phi_eta, _ = ops.while_loop(searching, evaluate, state)
    return eta, phi_eta
