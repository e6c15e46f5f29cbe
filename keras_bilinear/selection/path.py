"""Which rank and which alpha: the fits of a grid, measured on held-out images, and the choice among them."""

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.data.arrays import Batch, class_indices
from keras_bilinear.data.held_out import checked_groups, folds_of, parted, stratified
from keras_bilinear.data.survey import is_data_set
from keras_bilinear.data.unusual import warn_of_one_class, warn_of_rank, warn_of_scale
from keras_bilinear.export import inference_graph, slim, tflite_content
from keras_bilinear.maths.bilinear import Factors
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.selection.grid import Fit, Grid
from keras_bilinear.selection.path_settings import check_ways, checked_settings, resized
from keras_bilinear.selection.scoring import Scoring, checked_scoring, held_out_batches, name_of, scores
from keras_bilinear.selection.walk import settings_of, walked
from keras_bilinear.stopping.convergence import ADVICE_IF_STALLED, ConvergenceWarning
from keras_bilinear.stopping.separation import ADVICE, is_separated
from keras_bilinear.tables import Report, Table

WIDTHS = (4, 9, 9, 9, 17, 11, 0)
"""Of the columns of a printed path."""


@dataclass(frozen=True, repr=False)
class PathPoint(Report):
    """One fit of a path.

    Attributes:
        rank: L.
        alpha: Weight of the penalty.
        objective: J = V + alpha R on the images it was fitted to.
        cross_entropy: V there.
        accuracy: Fraction of held-out images classified correctly, weighted as they are, or what `scoring` says;
            over folds, their mean.
        standard_error: Of that accuracy: binomial, or from the spread over groups, folds or images drawn anew.
        factors: A (L, M, K), B (L, N, K) and the bias (K,) or None.
        template: A model with the settings of all fits.
    """

    rank: int
    alpha: float
    objective: float
    cross_entropy: float
    accuracy: float
    standard_error: float
    factors: Factors
    template: BilinearRegression

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(part.size for part in self.factors if part is not None)

    @functools.cached_property
    def bytes(self) -> int:
        """Size of its float32 TFLite file with factored layout, which is written to memory when first asked for."""
        return len(slim(tflite_content(inference_graph(self.model()))))

    def cells(self) -> tuple[str, ...]:
        """The point as a row of a table."""
        accuracy = f"{self.accuracy:.4f} +- {self.standard_error:.4f}"
        values = f"{self.alpha:.2e}", f"{self.objective:.5f}", f"{self.cross_entropy:.5f}", accuracy
        return f"{self.rank}", *values, f"{self.parameters:,}"

    def __str__(self) -> str:
        return ", ".join(f"{name} {cell}" for name, cell in zip(header("accuracy"), self.cells(), strict=True))

    def _parts(self) -> Iterator[Table]:
        yield Table(header("accuracy"), [self.cells()])

    def model(self) -> BilinearRegression:
        """The fitted model, ready to predict, export or train on."""
        model = resized(self.template, self.rank, self.alpha)
        model._assign(self.factors)
        return model


@dataclass(frozen=True, repr=False)
class RegularizationPath(Report):
    """The fits of `regularization_path`, in the order they were made.

    Attributes:
        points: One `PathPoint` for each rank and alpha.
        scoring: What the accuracy of a point is, in words.
    """

    points: list[PathPoint]
    scoring: str = "accuracy"

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
        return (point or self.one_standard_error).model()

    def __str__(self) -> str:
        (table,) = self._parts()
        lines = (zip(line, WIDTHS, strict=True) for line in (table.header, *table.rows))
        return "\n".join(" ".join(cell.rjust(width) for cell, width in line).rstrip() for line in lines)

    def _parts(self) -> Iterator[Table]:
        choices = ("best", self.best), ("1 s.e.", self.one_standard_error)
        notes = [", ".join(note for note, choice in choices if point is choice) for point in self.points]
        rows = [(*point.cells(), note) for point, note in zip(self.points, notes, strict=True)]
        yield Table((*header(self.scoring), ""), rows)


def header(scoring: str) -> tuple[str, ...]:
    """What the cells of a point are."""
    return "rank", "alpha", "J", "V", scoring, "parameters"


def regularization_path(
    model: BilinearRegression,
    x: Any,
    y: Any,
    alphas: Sequence[float] | None = None,
    ranks: Sequence[int] | str = "auto",
    validation_data: tuple[Any, ...] | None = None,
    validation_split: float = 0.2,
    folds: int | None = None,
    groups: Any = None,
    scoring: Scoring = "accuracy",
    rtol: float = 1e-3,
    max_sweeps: int = 50,
    verbose: int = 1,
) -> RegularizationPath:
    """Fits every rank with every alpha by the default solver, and measures each fit on held-out images.

    The ranks grow one by one, alpha falls from the largest to the smallest; each fit starts from the factors of its
    neighbour. All of them are fits of the largest rank, whose unused ranks are zero and stay zero, so the solver is
    traced once.

    Args:
        model: BLR or BSR with the settings all fits share. Its weights play no part, its rank and alpha only where
            none are given here.
        x: Images (T, M, N) or (T, M, N, 1); or a `tf.data.Dataset` of (x, y) or (x, y, weight) in batches, which is
            never in memory: one fit to it, in passes, goes through the whole grid.
        y: Labels, as for `fit`; None with a data set.
        alphas: Penalty weights, >= 0; by default that of the model.
        ranks: Numbers of ranks, >= 1. "auto" for all up to 8 that take no more numbers than the linear model; where
            a fit with rank="auto" has found fewer, up to those.
        validation_data: (x, y), (x, y, sample_weight) or a data set held out; by default a part of x and y, but a
            data set cannot be divided.
        validation_split: The fraction of x and y that is held out without `validation_data`: of every class its
            last images.
        folds: Cross-validation instead: each of so many parts of x and y, over which every class is spread evenly,
            is held out once; the factors of the path are then fitted to all images.
        groups: (T,) numbers or names, of the person in each image for example: those of a group are held out
            together, so that fits are measured on people they have not seen.
        scoring: "accuracy", "balanced_accuracy", in which all classes weigh alike, or a function of labels (T,) and
            probabilities, (T, K) or (T,) of class 1, whose value is the larger the better; it sees no weights.
        rtol: A fit has converged when J improves by less than this fraction a sweep, at the pace of an iteration.
        max_sweeps: Sweeps a fit may take, or passes over a data set.
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
    scoring = checked_scoring(scoring)
    is_stream = is_data_set(x, y)
    falling, rising = checked_settings(model, x, alphas, ranks)
    rtol, max_sweeps = non_negative("rtol", rtol), positive_integer("max_sweeps", max_sweeps)
    folds = None if folds is None else positive_integer("folds", folds)
    check_ways(validation_data, folds, groups, is_stream)
    template = resized(model, rising[-1], falling[0])
    count = len(falling) * len(rising) * (1 + (folds or 0))
    progress = keras.utils.Progbar(count, verbose=verbose, unit_name="fit")
    if is_stream:
        fits = walked(template, x, list(settings_of(falling, rising)), rtol, max_sweeps, progress)
        warn_of_rank(rising[-1], template.image_size)
        measured = scores(template, fits, held_out_batches(template, validation_data), scoring)
        return gathered(template, fits, measured, scoring, rtol, max_sweeps)
    train = template._checked(x, y)
    if folds is not None and not 2 <= folds <= len(train.x):
        raise ValueError(f"Expected `folds` from 2 to the number of images, {len(train.x)}. Received: {folds}")
    groups = checked_groups(groups, len(train.x), folds)
    held_out = held_out_batches(template, validation_data)
    if validation_data is None and folds is None:
        last = stratified(class_indices(train.y, model.units), validation_split, groups)
        groups = None if groups is None else groups[last]
        train, part = parted(train, last)
        held_out = [part]
    warn_of_rank(rising[-1], template.image_size)
    warn_of_one_class(class_indices(train.y, model.units))
    warn_of_scale(x, train.x, template.input_scale)
    grid = Grid(template, falling, rising, rtol, max_sweeps, progress)
    fits = list(grid.fits(train))
    if folds is None:
        measured = scores(template, fits, held_out, scoring, groups)
    else:
        measured = cross_validated(grid, train, folds, scoring, groups)
    return gathered(template, fits, measured, scoring, rtol, max_sweeps)


def gathered(
    template: BilinearRegression,
    fits: list[Fit],
    measured: list[tuple[float, float]],
    scoring: Scoring,
    rtol: float,
    max_sweeps: int,
) -> RegularizationPath:
    """The path of these fits and their scores, with a warning for those that have not converged."""
    warn_of_unfinished(fits, rtol, max_sweeps)
    both = zip(fits, measured, strict=True)
    points = [PathPoint(*fit[:4], *accuracy, fit.factors, template) for fit, accuracy in both]
    return RegularizationPath(points, name_of(scoring))


def cross_validated(
    grid: Grid, train: Batch, folds: int, scoring: Scoring, groups: np.ndarray | None
) -> list[tuple[float, float]]:
    """For each fit of the grid the mean score over the folds, and the standard error of that mean."""
    found = [
        [mean for mean, _ in scores(grid.template, grid.fits(part), [held_out], scoring)]
        for part, held_out in folds_of(train, grid.template.units, folds, groups)
    ]
    errors = np.std(found, axis=0, ddof=1) / math.sqrt(folds)
    return list(zip(np.mean(found, axis=0).tolist(), errors.tolist(), strict=True))


def warn_of_unfinished(fits: list[Fit], rtol: float, max_sweeps: int) -> None:
    """Warns, once for the whole path, when fits ran out of sweeps, or of what they could tell apart."""
    if any(is_separated(fit.objective, fit.alpha) for fit in fits):
        warnings.warn(f"Fits with alpha = 0 end where V is zero: {ADVICE}.", ConvergenceWarning, stacklevel=4)
    unfinished = sum(not fit.converged for fit in fits)
    if unfinished:
        warnings.warn(
            f"{unfinished} of {len(fits)} fits have not converged: J could still fall by more than rtol={rtol:g} "
            f"after max_sweeps={max_sweeps} sweeps, or where they stalled. Raise one of them; {ADVICE_IF_STALLED}.",
            ConvergenceWarning,
            stacklevel=4,
        )
