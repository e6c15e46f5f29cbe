"""How good a fit is on held-out images, and how sure that is."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear.data.arrays import Batch, class_indices
from keras_bilinear.data.survey import is_data_set
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.selection.grid import Fit

NAMES = ("accuracy", "balanced_accuracy")
"""The measures that have a name: images weigh as they are given, or every class as much as any other."""
RESAMPLES = 200
"""So often the images are drawn anew, for the standard error of a measure of which nothing is known."""

Scoring = str | Callable[[np.ndarray, np.ndarray], float]


def checked_scoring(scoring: Any) -> Scoring:
    """A name or a function, or a ValueError."""
    if scoring in NAMES or callable(scoring):
        return scoring
    raise ValueError(
        f"Expected `scoring` to be one of {list(NAMES)}, or a function of labels and probabilities. "
        f"Received: scoring={scoring!r}"
    )


def name_of(scoring: Scoring) -> str:
    """What a table calls it."""
    return scoring.replace("_", " ") if isinstance(scoring, str) else getattr(scoring, "__name__", "score")


def held_out_batches(template: BilinearRegression, validation_data: Any) -> Iterable[Batch]:
    """The batches of what is held out, checked; none of None."""
    if validation_data is None:
        return []
    if is_data_set(validation_data):
        return template._batches(validation_data)
    return [template._checked(*validation_data)]


def scores(
    template: BilinearRegression,
    fits: Iterable[Fit],
    held_out: Iterable[Batch],
    scoring: Scoring = "accuracy",
    groups: np.ndarray | None = None,
) -> list[tuple[float, float]]:
    """The score of each fit on images that come in batches, and its standard error.

    Images of a group are alike: with `groups` the error is that of drawing other groups.
    """
    fits, look = list(fits), is_right if isinstance(scoring, str) else predictions
    seen: list[list[np.ndarray]] = []
    for x, labels, weights in held_out:
        X, y = template._images(ops.convert_to_tensor(x)), class_indices(labels, template.units)
        seen.append([y, weights, *(look(ops.convert_to_numpy(X.logits(*fit.factors)), y) for fit in fits)])
    y, weight, *found = map(np.concatenate, zip(*seen, strict=True))
    members = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    if not isinstance(scoring, str):
        return [resampled(scoring, y, p, members) for p in found]
    weight = weight.astype("float64")
    if scoring == "balanced_accuracy":
        weight = weight / np.maximum(np.bincount(y, weight)[y], np.finfo(float).tiny)
    return [share_of(right, weight, members) for right in found]


def predictions(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probabilities, (T, K), or (T,) of class 1. z (T, K)."""
    p = ops.convert_to_numpy(bm.probabilities(z))
    return p[:, 0] if z.shape[1] == 1 else p


def is_right(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the largest score is that of the class, (T,). z (T, K)."""
    return (z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(axis=1)) == y


def share_of(right: np.ndarray, weight: np.ndarray, members: np.ndarray) -> tuple[float, float]:
    """The mean, with weights (T,), and the standard error of independent groups of images."""
    mean, count = float(np.average(right, weights=weight)), members.max() + 1
    weight = weight / weight.sum()
    if count == len(right) or count == 1:  # a single group says nothing of others
        return mean, math.sqrt(max(mean * (1 - mean), 0.0) * np.sum(weight**2))
    deviations = np.bincount(members, weight * (right - mean))
    return mean, math.sqrt(count / (count - 1) * np.sum(deviations**2))


def resampled(
    scoring: Callable[[np.ndarray, np.ndarray], float], y: np.ndarray, p: np.ndarray, members: np.ndarray
) -> tuple[float, float]:
    """A score, and how it spreads where as many groups are drawn anew, with replacement."""
    random, count = np.random.default_rng(0), members.max() + 1
    parts = np.split(np.argsort(members, kind="stable"), np.cumsum(np.bincount(members))[:-1])
    drawn = [np.concatenate([parts[g] for g in random.integers(count, size=count)]) for _ in range(RESAMPLES)]
    return float(scoring(y, p)), float(np.std([scoring(y[part], p[part]) for part in drawn], ddof=1))
