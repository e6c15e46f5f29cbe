"""The first step on very many images: from nothing, a part of them tells the way as well as all do."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver.descent import Solution
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.preconditioner import SKETCH, same_total, sample
from keras_bilinear.solver.silent_ranks import at

MANY = 4 * SKETCH
"""From so many images on."""
STEPS = 3
"""So many steps are taken on the part."""

Step = Callable[[Images, Samples, Factors], tuple[Factors, Solution]]


def may_begin_on_a_part(images: Images, factors: Factors) -> bool:
    """Whether the images are very many and the factors those of a new model, a = 0."""
    T: Any = ops.shape(images.pixels)[0]
    return T >= MANY and not bool(ops.any(factors.A != 0))


def first_step(
    images: Images, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty], step: Step
) -> tuple[Factors, Solution] | None:
    """Where `STEPS` steps on a part of the images lead to, with J and the logits of all; None if J is no lower.

    The gradient and the last eta in the solution are those on the part.
    """
    part, (C, w) = images.part(SKETCH), sample(*samples, most=SKETCH)
    part_samples, found = Samples(C, same_total(w, samples.weights)), factors
    iterations = ops.zeros((), "int32")
    for _ in range(STEPS):
        found, solution = step(part, part_samples, found)
        iterations += solution.iterations
    before, after = (at(images, samples, tried, alpha, penalty) for tried in (factors, found))
    if not bool(after.J < before.J):
        return None
    whole = {"logits": after.z, "initial_objective": before.J, "objective": after.J, "iterations": iterations}
    return found, solution._replace(**whole)
