"""Whether a fit has arrived: by how much J could still fall, whatever the units of the pixels.

That a sweep has lowered J by little proves nothing: a solver that creeps does not move either. A Newton step from
where the fit stands says how far the optimum is, by the same curvature in every unit.
"""

import math

import numpy as np
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Samples
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.model_protocol import BlockModel, is_on_arrays
from keras_bilinear.solver.descent import in_sight
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.preconditioner import RESOLUTION
from keras_bilinear.stopping.certificate import data_of_fit

HIDDEN = 10
"""Where the solver's damping for the digits of float32 is so many times the curvature, it hides what is to see."""


def decrease_in_sight(model: BlockModel) -> float | None:
    """How much J would fall, as a fraction of it, if every block took a Newton step; 0 at an optimum.

    None where the images are not at hand: for networks, and for data sets on mini-batches; infinite where float32
    does not tell. A stream has it from its last step. Else it costs as much as a sweep of no iterations: one
    product with the images to look at J, one for the gradient, and the curvature on a part of them.
    """
    if model._streaming is not None:
        return model._streaming.decrease_in_sight
    if not is_on_arrays(model):
        return None
    pixels, y, weight = map(ops.convert_to_tensor, data_of_fit(model))
    X = model._images(pixels)
    if too_far_from_zero(X, model.alpha):
        return math.inf
    samples = Samples(targets(y, model.units, weight.dtype), bm.normalised_weights(weight))
    blocks = len(model.block_names) if model.is_exact else 1  # of the default solver
    numbers = (ops.convert_to_tensor(number, "int32") for number in range(blocks))
    solutions = (model._solved(X, samples, number, max_inner=0)[1] for number in numbers)
    return sum(float(in_sight(solution, samples)) for solution in solutions)


def too_far_from_zero(X: Images, alpha: float) -> bool:
    """Whether there are pixels that vary so little about a value so far from zero that float32 hardly tells.

    Pixels that never change tell nothing, and where a penalty outweighs what they tell it does not matter.
    """
    pixels = ops.convert_to_numpy(X.part().values()).astype("float64")
    variance, coarse = pixels.var(axis=0), np.square(RESOLUTION * pixels.mean(axis=0))
    varies = pixels.max(axis=0) > pixels.min(axis=0)
    return bool(np.any(varies & (coarse > HIDDEN * (variance + alpha))))
