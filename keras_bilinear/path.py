"""Many fits for the price of a few: every rank and every alpha, each started from its neighbour."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.callbacks import BlockConvergence, ConvergenceWarning
from keras_bilinear.data import Batch, checked_batch, class_indices, train_validation_split
from keras_bilinear.models import BilinearRegression


class PathPoint(NamedTuple):
    """One fit of a path, with its accuracy on the held-out images and the standard error of that accuracy."""

    rank: int
    alpha: float
    objective: float
    cross_entropy: float
    accuracy: float
    standard_error: float
    parameters: int
    factors: tuple[np.ndarray, ...]


class RegularizationPath:
    """The fits of `regularization_path`, in the order they were made.

    Attributes:
        points: One `PathPoint` for each rank and alpha.
    """

    def __init__(self, template: BilinearRegression, points: list[PathPoint]):
        self.template, self.points = template, points

    @property
    def best(self) -> PathPoint:
        """The most accurate fit on the held-out images; of equals the smallest, then the most penalised."""
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
        model = resized(self.template, point.rank, point.alpha)
        restore(model, point.factors)
        return model

    def __str__(self) -> str:
        best, chosen = self.best, self.one_standard_error
        lines = [f"{'rank':>4} {'alpha':>9} {'J':>9} {'V':>9} {'accuracy':>17} {'parameters':>11}"]
        for point in self.points:
            notes = [note for note, choice in (("best", best), ("1 s.e.", chosen)) if point is choice]
            accuracy = f"{point.accuracy:.4f} +- {point.standard_error:.4f}"
            lines.append(
                f"{point.rank:4} {point.alpha:9.2e} {point.objective:9.5f} {point.cross_entropy:9.5f} "
                f"{accuracy:>17} {point.parameters:11,} {', '.join(notes)}".rstrip()
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
    rtol: float = 1e-3,
    max_sweeps: int = 50,
    verbose: int = 1,
) -> RegularizationPath:
    """Fits every rank with every alpha, and measures each fit on held-out images.

    The ranks grow one by one, alpha falls from the largest to the smallest; each fit starts from the factors of its
    neighbour. All of them run in one model of the largest rank, whose unused ranks are zero and stay zero, so
    nothing is compiled twice.

    Args:
        model: BLR or BSR with the settings all fits share; its own rank, alpha and weights play no part.
        x: Images (T, M, N) or (T, M, N, 1).
        y: Labels, as for `fit`.
        alphas: Penalty weights, >= 0.
        ranks: Numbers of ranks, >= 1.
        validation_data: (x, y) or (x, y, sample_weight) held out; by default a part of x and y.
        validation_split: The fraction of x and y that is held out, from their end, without `validation_data`.
        rtol: A fit has converged when a sweep improves J by less than this fraction.
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
    falling = sorted({non_negative("alphas", alpha) for alpha in alphas}, reverse=True)
    rising = sorted({positive_integer("ranks", rank) for rank in ranks})
    if not falling or not rising:
        raise ValueError(f"Expected at least one alpha and one rank. Received: alphas={alphas}, ranks={ranks}")
    train = checked_batch(x, y, model.units, size=model.image_size if model.built else None)
    template = resized(model, rising[-1], falling[0], train.x.shape[1:])
    if validation_data is None:
        train, held_out = train_validation_split(train, validation_split)
    else:
        held_out = template.checked(*validation_data)
    progress = keras.utils.Progbar(len(falling) * len(rising), verbose=verbose, unit_name="fit")
    points: list[PathPoint] = []
    root = switched_off(template)
    for rank in range(1, rising[-1] + 1):
        root = with_rank(root, rank)
        factors = root
        # A rank nobody asked for is passed through at the largest alpha only, on the way to the next.
        for alpha in falling if rank in rising else falling[:1]:
            template.alpha = alpha
            restore(template, factors)
            fit(template, train, rtol, max_sweeps)
            factors = state(template)
            if alpha == falling[0]:
                root = factors
            if rank in rising:
                points.append(measured(template, rank, train, held_out))
                progress.add(1)
    return RegularizationPath(template, points)


def resized(
    model: BilinearRegression, rank: int, alpha: float, image: tuple[int, int] | None = None
) -> BilinearRegression:
    """A new model with the settings of `model` but another rank and alpha, built."""
    size = model.image_size if image is None else image
    config = {**model.get_config(), "rank": rank, "alpha": alpha, "input_shape": tuple(size)}
    return type(model).from_config(config)


def state(model: BilinearRegression) -> tuple[np.ndarray, ...]:
    """A, B and, where there is one, the bias."""
    bias = () if model.head.bias is None else (keras.ops.convert_to_numpy(model.head.bias.value),)
    return (*model.factors(), *bias)


def restore(model: BilinearRegression, factors: tuple[np.ndarray, ...]) -> None:
    """Sets what `state` gave."""
    model.head.assign_factors(*factors[:2])
    if model.head.bias is not None:
        model.head.bias.assign(factors[2])


def switched_off(model: BilinearRegression) -> tuple[np.ndarray, ...]:
    """All zero: no rank is in use."""
    return tuple(np.zeros_like(part) for part in state(model))


def with_rank(factors: tuple[np.ndarray, ...], rank: int) -> tuple[np.ndarray, ...]:
    """The factors with one more rank that waits to be woken: any b but zero, and a zero (see `growth`)."""
    A, B, *bias = (np.array(part) for part in factors)
    A[rank - 1], B[rank - 1] = 0.0, np.ones_like(B[0]) / math.sqrt(B.shape[1])
    return (A, B, *bias)


def fit(model: BilinearRegression, train: Batch, rtol: float, max_sweeps: int) -> None:
    """Fits the model as it stands; that some fits of a path run out of sweeps is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        stop = BlockConvergence(rtol)
        model.fit(train.x, train.y, sample_weight=train.weight, epochs=max_sweeps, verbose=0, callbacks=[stop])


def measured(model: BilinearRegression, rank: int, train: Batch, held_out: Batch) -> PathPoint:
    """What the table says of the fit in `model`, whose first `rank` ranks are in use."""
    J = model.objective(*train)
    # One product: `predict` would spend longer on setting up than many of the fits take.
    z = keras.ops.convert_to_numpy(model.logits(keras.ops.convert_to_tensor(held_out.x)))
    guess = z[:, 0] > 0 if model.units == 1 else z.argmax(axis=1)
    truth = class_indices(held_out.y, model.units)
    accuracy = float(np.mean(guess == truth))
    A, B, *bias = state(model)
    factors = (A[:rank], B[:rank], *bias)
    return PathPoint(
        rank=rank,
        alpha=model.alpha,
        objective=J,
        cross_entropy=J - float(model.penalty()),
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(truth)),
        parameters=sum(part.size for part in factors),
        factors=factors,
    )
