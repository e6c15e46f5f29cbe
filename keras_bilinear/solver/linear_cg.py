"""Linear equations H h = g that are solved by products with H alone."""

from collections.abc import Callable

from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.solver.compiled import loop


def inner(U: Tensor, V: Tensor) -> Tensor:
    """<U, V>, scalar."""
    return ops.sum(U * V)


def linear_cg(
    product: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    g: Tensor,
    most: int,
    fraction: Tensor | float,
) -> Tensor:
    """h with H h = g for H v = product(v), by preconditioned conjugate gradient from h = 0.

    Truncated after `most` products, where r^T P r has fallen to a `fraction` of what it was, or where the curvature
    is not positive.
    """
    begin = precondition(g)
    first = inner(g, begin)
    target = fraction * first

    def unsolved(i: Tensor, h: Tensor, r: Tensor, rp: Tensor, v: Tensor) -> Tensor:
        return ops.logical_and(i < most, rp > target)

    def improve(i: Tensor, h: Tensor, r: Tensor, rp: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        Hv = product(v)
        curvature = inner(v, Hv)
        step = ops.where(curvature > 0, rp / curvature, ops.zeros_like(rp))
        r_new = r - step * Hv
        p_new = precondition(r_new)
        rp_new = inner(r_new, p_new)
        return ops.where(curvature > 0, i + 1, most), h + step * v, r_new, rp_new, p_new + rp_new / rp * v

    start = (ops.zeros((), "int32"), ops.zeros_like(g), g, first, begin)
    return loop(unsolved, improve, start)[1]
