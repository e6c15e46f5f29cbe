"""Many fits for the price of a few: every rank and every alpha, each started from its neighbour."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.data.arrays import Batch
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.optimizers import MAX_INNER, BlockLineSearch
from keras_bilinear.solver.descent import in_sight
from keras_bilinear.solver.images import Images
from keras_bilinear.stopping.convergence import SLACK
from keras_bilinear.stopping.separation import is_separated

STANDSTILL = 1e-6
"""A sweep that lowers J by no more than this fraction of it has not moved, in float32."""


class Fit(NamedTuple):
    """What a walk over the grid leaves behind at a rank and an alpha: J and V, and the factors of these ranks."""

    rank: int
    alpha: float
    objective: float
    cross_entropy: float
    factors: Factors
    converged: bool


class Grid(NamedTuple):
    """The fits to make: every rank of `rising` with every alpha of `falling`, to `rtol` or for `max_sweeps`."""

    template: BilinearRegression
    falling: list[float]
    rising: list[int]
    rtol: float
    max_sweeps: int
    progress: keras.utils.Progbar

    def fits(self, train: Batch) -> Iterator[Fit]:
        """Makes them on `train`, each from its neighbour."""
        pixels, y, weight = map(ops.convert_to_tensor, train)
        X, w = self.template._images(pixels), bm.normalised_weights(weight)
        samples = Samples(targets(y, self.template.units, X.dtype), w)
        penalty = type(self.template.head.factor_penalty)
        # A sweep ends early where iterations no longer add up to `rtol`: most fits start close to their end.
        solver = BlockLineSearch(tolerance=self.rtol / MAX_INNER["joint"])
        root = switched_off(self.template, X.dtype)
        for rank in range(1, self.rising[-1] + 1):
            root = factors = with_rank(root, rank)
            # A rank nobody asked for is passed through at the largest alpha only, on the way to the next.
            for alpha in self.falling if rank in self.rising else self.falling[:1]:
                weight = ops.cast(alpha, X.dtype)
                factors, J, converged = self.descend(solver, X, samples, factors, weight, penalty)
                if alpha == self.falling[0]:
                    root = factors
                if rank in self.rising:
                    V = J - weight * penalty.value(factors.A, factors.B)
                    self.progress.add(1)
                    yield Fit(rank, alpha, float(J), float(V), first_ranks(factors, rank), converged)

    def descend(
        self,
        solver: BlockLineSearch,
        X: Images,
        samples: Samples,
        factors: Factors,
        alpha: Tensor,
        penalty: type[Penalty],
    ) -> tuple[Factors, Tensor, bool]:
        """Sweeps until one ends early or improves J by at most `rtol` of it; where, J there, whether it converged.

        No further sweep confirms it: that would cost two fifths of all of them, to lower J by less than `rtol`. But
        where a Newton step would clearly lower J further, sweeps go on while they move at all.
        """
        for _ in range(self.max_sweeps):
            factors, solution = solver.solve_factors(X, samples, factors, ops.array(0), alpha, penalty, jit=False)
            J = solution.objective
            fall = solution.initial_objective - J
            has_arrived = bool(in_sight(solution, samples) <= SLACK * self.rtol)
            is_slow = solution.iterations < solver.max_inner or fall <= self.rtol * abs(J)
            if is_slow and (has_arrived or fall <= STANDSTILL * abs(J)):
                return factors, J, has_arrived
            if is_separated(float(J), float(alpha)):
                return factors, J, True
        return factors, J, False


def switched_off(template: BilinearRegression, dtype: str) -> Factors:
    """All zero: no rank is in use."""
    A, B = (ops.zeros(part.shape, dtype) for part in template.factors())
    return Factors(A, B, None if template.head.bias is None else ops.zeros(template.units, dtype))


def first_ranks(factors: Factors, rank: int) -> Factors:
    """The first `rank` ranks, as NumPy arrays."""
    A, B = (ops.convert_to_numpy(part)[:rank] for part in factors[:2])
    return Factors(A, B, None if factors.bias is None else ops.convert_to_numpy(factors.bias))


def with_rank(factors: Factors, rank: int) -> Factors:
    """The factors with one more rank that waits to be woken: any b but zero, and a zero (see `silent_ranks`)."""
    A, B = (ops.convert_to_numpy(part).copy() for part in factors[:2])
    A[rank - 1], B[rank - 1] = 0.0, np.ones_like(B[0]) / math.sqrt(B.shape[1])
    return Factors(ops.convert_to_tensor(A), ops.convert_to_tensor(B), factors.bias)
