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

Step = Callable[[Images, Samples, Factors], tuple[Factors, Solution]]


def may_begin_on_a_part(images: Images, factors: Factors) -> bool:
    """Whether the images are very many and the factors those of a new model, a = 0."""
    T: Any = ops.shape(images.pixels)[0]
    return T >= MANY and not bool(ops.any(factors.A != 0))


def first_step(
    images: Images, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty], step: Step
) -> tuple[Factors, Solution] | None:
    """Where a step on a part of the images leads to, with J and the logits of all; None if J is no lower.

    It is one step, for more fit the part so closely that the way back costs more than they save. The gradient and
    the last eta in the solution are those on the part.
    """
    part, (C, w) = images.part(SKETCH), sample(*samples, most=SKETCH)
    found, solution = step(part, Samples(C, same_total(w, samples.weights)), factors)
    before, after = (at(images, samples, tried, alpha, penalty) for tried in (factors, found))
    if not bool(after.J < before.J):
        return None
    return found, solution._replace(logits=after.z, initial_objective=before.J, objective=after.J)
