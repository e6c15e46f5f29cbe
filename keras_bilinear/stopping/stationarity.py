"""Whether a fit has arrived: by how much J could still fall, whatever the units of the pixels.

That a sweep has lowered J by little proves nothing: a solver that creeps does not move either. A Newton step from
where the fit stands says how far the optimum is, by the same curvature in every unit.
"""

import math
from collections.abc import Iterator

import numpy as np
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.model_protocol import BlockModel, LinearModel, RegressionModel, is_linear, is_on_arrays
from keras_bilinear.parts.optimizers import BlockLineSearch
from keras_bilinear.solver.blocks import block_names
from keras_bilinear.solver.descent import Solution, in_sight
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
    solver, jit = (model.optimizer, model._jit_solver) if model.is_exact else (BlockLineSearch(), False)
    if is_linear(model):
        return float(in_sight(of_linear(model, X, samples, solver, jit), samples))
    return sum(float(in_sight(solution, samples)) for solution in of_factors(model, X, samples, solver, jit))


def too_far_from_zero(X: Images, alpha: float) -> bool:
    """Whether there are pixels that vary so little about a value so far from zero that float32 hardly tells.

    Pixels that never change tell nothing, and where a penalty outweighs what they tell it does not matter.
    """
    pixels = ops.convert_to_numpy(X.part().values()).astype("float64")
    variance, coarse = pixels.var(axis=0), np.square(RESOLUTION * pixels.mean(axis=0))
    varies = pixels.max(axis=0) > pixels.min(axis=0)
    return bool(np.any(varies & (coarse > HIDDEN * (variance + alpha))))


def of_linear(model: LinearModel, X: Images, samples: Samples, solver: BlockLineSearch, jit: bool) -> Solution:
    """The one block of a linear model, looked at from where it stands."""
    alpha = ops.cast(ops.copy(model.ridge.alpha), X.dtype)
    kernel, bias = model._parameters(X.dtype)
    return solver.solve_linear(X, samples, kernel, bias, alpha, jit, max_inner=0)


def of_factors(
    model: RegressionModel, X: Images, samples: Samples, solver: BlockLineSearch, jit: bool
) -> Iterator[Solution]:
    """Every block of a bilinear model, looked at from where it stands."""
    head = model.head
    bias = None if head.bias is None else ops.cast(ops.copy(head.bias), X.dtype)
    factors = Factors(ops.cast(head.A, X.dtype), ops.cast(head.B, X.dtype), bias)
    alpha, penalty = ops.cast(ops.copy(head.alpha), X.dtype), type(head.factor_penalty)
    for active in range(len(block_names(solver.blocks, head.rank))):
        block = ops.convert_to_tensor(active, "int32")
        yield solver.solve_factors(X, samples, factors, block, alpha, penalty, jit, max_inner=0)[1]
