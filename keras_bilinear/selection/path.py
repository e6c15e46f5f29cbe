"""Many fits for the price of a few: every rank and every alpha, each started from its neighbour."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.data.arrays import (
    Batch,
    class_indices,
    folds_of,
    train_validation_split,
    warn_of_one_class,
    warn_of_scale,
)
from keras_bilinear.data.options import has_parts
from keras_bilinear.export import inference_graph, tflite_content
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.optimizers import MAX_INNER, BlockLineSearch
from keras_bilinear.solver.blocks import Factors
from keras_bilinear.solver.descent import Samples, in_sight
from keras_bilinear.stopping.convergence import ADVICE_IF_STALLED, SLACK, ConvergenceWarning

STANDSTILL = 1e-6
"""A sweep that lowers J by no more than this fraction of it has not moved, in float32."""


class PathPoint(NamedTuple):
    """One fit of a path.

    Fields:
        rank: L.
        alpha: Weight of the penalty.
        objective: J = V + alpha R on the images it was fitted to.
        cross_entropy: V there.
        accuracy: Fraction of held-out images classified correctly, weighted as they are; over folds, their mean.
        standard_error: Of that accuracy: binomial, or from the spread over the folds.
        parameters: How many numbers the model has.
        bytes: Size of its float32 TFLite file with factored layout.
        factors: A (L, M, K), B (L, N, K) and the bias (K,) or None.
    """

    rank: int
    alpha: float
    objective: float
    cross_entropy: float
    accuracy: float
    standard_error: float
    parameters: int
    bytes: int
    factors: Factors


class RegularizationPath:
    """The fits of `regularization_path`, in the order they were made.

    Attributes:
        points: One `PathPoint` for each rank and alpha.
    """

    def __init__(self, template: BilinearRegression, points: list[PathPoint]):
        self.template, self.points = template, points

    @property
    def best(self) -> PathPoint:
        """The most accurate fit on held-out images; of equals the smallest, then the most penalised."""
        return max(self.points, key=lambda point: (point.accuracy, -point.parameters, point.alpha))

    @property
    def one_standard_error(self) -> PathPoint:
        """The smallest fit within one standard error of the best: fewest parameters, then the most accurate."""
        bar = self.best.accuracy - self.best.standard_error
        good = [point for point in self.points if point.accuracy >= bar]
        return min(good, key=lambda point: (point.parameters, -point.accuracy, -point.alpha))

    def model(self, point: PathPoint | None = None) -> BilinearRegression:
        """The fitted model of a point, by default of `one_standard_error`, ready to predict, export or train on."""
        point = self.one_standard_error if point is None else point
        return fitted(self.template, point.factors, point.alpha)

    def __str__(self) -> str:
        best, chosen = self.best, self.one_standard_error
        lines = [f"{'rank':>4} {'alpha':>9} {'J':>9} {'V':>9} {'accuracy':>17} {'parameters':>11} {'bytes':>9}"]
        for point in self.points:
            notes = [note for note, choice in (("best", best), ("1 s.e.", chosen)) if point is choice]
            accuracy = f"{point.accuracy:.4f} +- {point.standard_error:.4f}"
            lines.append(
                f"{point.rank:4} {point.alpha:9.2e} {point.objective:9.5f} {point.cross_entropy:9.5f} "
                f"{accuracy:>17} {point.parameters:11,} {point.bytes:9,} {', '.join(notes)}".rstrip()
            )
        return "\n".join(lines)


def regularization_path(
    model: BilinearRegression,
    x: Any,
    y: Any,
    alphas: Sequence[float],
    ranks: Sequence[int],
    validation_data: tuple[Any, ...] | None = None,
    validation_split: float = 0.2,
    folds: int | None = None,
    rtol: float = 1e-3,
    max_sweeps: int = 50,
    verbose: int = 1,
) -> RegularizationPath:
    """Fits every rank with every alpha by the default solver, and measures each fit on held-out images.

    The ranks grow one by one, alpha falls from the largest to the smallest; each fit starts from the factors of its
    neighbour. All of them are fits of the largest rank, whose unused ranks are zero and stay zero, so the solver is
    traced once.

    Args:
        model: BLR or BSR with the settings all fits share; its own rank, alpha and weights play no part.
        x: Images (T, M, N) or (T, M, N, 1).
        y: Labels, as for `fit`.
        alphas: Penalty weights, >= 0.
        ranks: Numbers of ranks, >= 1.
        validation_data: (x, y) or (x, y, sample_weight) held out; by default a part of x and y.
        validation_split: The fraction of x and y that is held out, from their end, without `validation_data`.
        folds: Cross-validation instead: each of so many parts of x and y, over which every class is spread evenly,
            is held out once; the factors of the path are then fitted to all images.
        rtol: A fit has converged when J improves by less than this fraction a sweep, at the pace of an iteration.
        max_sweeps: Sweeps a fit may take.
        verbose: 0 is silent, 1 shows a progress bar.

    Returns:
        The path, with the best fit, the one-standard-error choice, and a table as its text.

    Raises:
        ValueError: for settings or data that no fit could use.

    Example:
        >>> path = regularization_path(kb.BilinearSoftmaxRegression(10, rank=1), x, y, [1e-3, 1e-2], [1, 2, 3])
        >>> print(path)
        >>> small = path.model()
    """
    if not isinstance(model, BilinearRegression):
        raise ValueError(
            f"Expected a BilinearSoftmaxRegression or BilinearLogisticRegression. Received: {type(model).__name__}"
        )
    for name, values in (("alphas", alphas), ("ranks", ranks)):
        if not isinstance(values, list | tuple | range) and getattr(values, "ndim", 0) != 1:
            raise ValueError(f"Expected `{name}` to be a list of numbers. Received: {values!r}")
    falling = sorted({non_negative("alphas", alpha) for alpha in alphas}, reverse=True)
    rising = sorted({positive_integer("ranks", rank) for rank in ranks})
    if not falling or not rising:
        raise ValueError(f"Expected at least one alpha and one rank. Received: alphas={alphas}, ranks={ranks}")
    rtol, max_sweeps = non_negative("rtol", rtol), positive_integer("max_sweeps", max_sweeps)
    folds = None if folds is None else positive_integer("folds", folds)
    if folds is not None and validation_data is not None:
        raise ValueError("Expected either `validation_data` or `folds`. Received: both")
    if validation_data is not None and not has_parts(validation_data):
        raise ValueError(
            "Expected `validation_data` to be arrays, (x, y) or (x, y, weight). Received: "
            f"{type(validation_data).__name__}"
        )
    template = resized(model, rising[-1], falling[0])
    train = template._checked(x, y)
    if folds is not None and not 2 <= folds <= len(train.x):
        raise ValueError(f"Expected `folds` from 2 to the number of images, {len(train.x)}. Received: {folds}")
    if folds is None and validation_data is None:
        train, held_out = train_validation_split(train, validation_split)
    elif validation_data is not None:
        held_out = template._checked(*validation_data)
    warn_of_one_class(train, model.units)
    warn_of_scale(train.x)
    rounds = 1 + (folds or 0)
    progress = keras.utils.Progbar(len(falling) * len(rising) * rounds, verbose=verbose, unit_name="fit")
    grid = Grid(template, falling, rising, rtol, max_sweeps, progress)
    fits = list(grid.fits(train))
    measured = accuracies(fits, held_out) if folds is None else cross_validated(grid, train, folds)
    warn_of_unfinished(fits, rtol, max_sweeps)
    return RegularizationPath(template, summary(template, fits, measured))


class Fit(NamedTuple):
    """What a walk leaves behind at a rank and an alpha: J and V, and the factors of the ranks in use."""

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
        X, penalty = ops.convert_to_tensor(train.x), type(self.template.head.factor_penalty)
        C = targets(ops.convert_to_tensor(train.y), self.template.units, X.dtype)
        samples = Samples(C, bm.normalised_weights(ops.convert_to_tensor(train.weight)))
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
                    yield Fit(rank, alpha, float(J), float(V), in_use(factors, rank), converged)

    def descend(
        self,
        solver: BlockLineSearch,
        X: Tensor,
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
            factors, solution = solver.solve_factors(X, samples, factors, ops.array(0), penalty, alpha, jit=False)
            J = solution.objective
            fall = solution.initial_objective - J
            has_arrived = bool(in_sight(solution, samples) <= SLACK * self.rtol)
            is_slow = solution.iterations < solver.max_inner or fall <= self.rtol * abs(J)
            if is_slow and (has_arrived or fall <= STANDSTILL * abs(J)):
                return factors, J, has_arrived
        return factors, J, False


def switched_off(template: BilinearRegression, dtype: str) -> Factors:
    """All zero: no rank is in use."""
    A, B = (ops.zeros(part.shape, dtype) for part in template.factors())
    return Factors(A, B, None if template.head.bias is None else ops.zeros(template.units, dtype))


def in_use(factors: Factors, rank: int) -> Factors:
    """The first `rank` ranks, as NumPy arrays."""
    A, B = (ops.convert_to_numpy(part)[:rank] for part in factors[:2])
    return Factors(A, B, None if factors.bias is None else ops.convert_to_numpy(factors.bias))


def with_rank(factors: Factors, rank: int) -> Factors:
    """The factors with one more rank that waits to be woken: any b but zero, and a zero (see `growth`)."""
    A, B = (ops.convert_to_numpy(part).copy() for part in factors[:2])
    A[rank - 1], B[rank - 1] = 0.0, np.ones_like(B[0]) / math.sqrt(B.shape[1])
    return Factors(ops.convert_to_tensor(A), ops.convert_to_tensor(B), factors.bias)


def accuracies(fits: Iterable[Fit], held_out: Batch) -> list[tuple[float, float]]:
    """For each fit the weighted fraction of images whose class has the largest score, and its standard error."""
    X, w = ops.convert_to_tensor(held_out.x), held_out.weight.astype("float64")
    effective = np.sum(w**2) / np.sum(w) ** 2
    found = []
    for fit in fits:
        z = ops.convert_to_numpy(bm.logits(X, *fit.factors))
        K = z.shape[1]
        right = (z[:, 0] > 0 if K == 1 else z.argmax(axis=1)) == class_indices(held_out.y, K)
        mean = float(np.average(right, weights=w))
        found.append((mean, math.sqrt(mean * (1 - mean) * effective)))
    return found


def cross_validated(grid: Grid, train: Batch, folds: int) -> list[tuple[float, float]]:
    """For each fit of the grid the mean accuracy over the folds, and the standard error of that mean."""
    scores = [
        [mean for mean, _ in accuracies(grid.fits(part), held_out)]
        for part, held_out in folds_of(train, grid.template.units, folds)
    ]
    errors = np.std(scores, axis=0, ddof=1) / math.sqrt(folds)
    return list(zip(np.mean(scores, axis=0).tolist(), errors.tolist(), strict=True))


def warn_of_unfinished(fits: list[Fit], rtol: float, max_sweeps: int) -> None:
    """Warns, once for the whole path, when fits ran out of sweeps."""
    unfinished = sum(not fit.converged for fit in fits)
    if unfinished:
        warnings.warn(
            f"{unfinished} of {len(fits)} fits have not converged: J could fall by more than rtol={rtol:g} of it "
            f"after max_sweeps={max_sweeps} sweeps, or where they stalled. Raise one of them; {ADVICE_IF_STALLED}.",
            ConvergenceWarning,
            stacklevel=3,
        )


def summary(template: BilinearRegression, fits: list[Fit], measured: list[tuple[float, float]]) -> list[PathPoint]:
    """The points of the path; the file of a rank is written to memory once, from its least penalised fit."""
    file_bytes = {fit.rank: len(tflite(template, fit)) for fit in fits if fit.alpha == fits[-1].alpha}
    return [
        PathPoint(
            rank=fit.rank,
            alpha=fit.alpha,
            objective=fit.objective,
            cross_entropy=fit.cross_entropy,
            accuracy=mean,
            standard_error=error,
            parameters=sum(part.size for part in fit.factors if part is not None),
            bytes=file_bytes[fit.rank],
            factors=fit.factors,
        )
        for fit, (mean, error) in zip(fits, measured, strict=True)
    ]


def tflite(template: BilinearRegression, fit: Fit) -> bytes:
    """The TFLite file of a fit, as `export_tflite` writes it by default."""
    return tflite_content(inference_graph(fitted(template, fit.factors, fit.alpha)))


def fitted(template: BilinearRegression, factors: Factors, alpha: float) -> BilinearRegression:
    """A model with the settings of `template` and these factors."""
    model = resized(template, factors.A.shape[0], alpha)
    model.head.assign_factors(factors.A, factors.B)
    if factors.bias is not None:
        model.head.bias.assign(factors.bias)
    return model


def resized(model: BilinearRegression, rank: int, alpha: float) -> BilinearRegression:
    """A new model with another rank and alpha, and all other settings of `model`, its image size included."""
    config = {**model.get_config(), "rank": rank, "alpha": alpha}
    if model.built:
        config["input_shape"] = model.image_size
    return type(model).from_config(config)
