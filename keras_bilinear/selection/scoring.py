"""How good a fit is on held-out images, and how sure that is."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear.data.arrays import Batch, class_indices
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


def scores(
    template: BilinearRegression,
    fits: Iterable[Fit],
    held_out: Batch,
    scoring: Scoring = "accuracy",
    groups: np.ndarray | None = None,
) -> list[tuple[float, float]]:
    """The score of each fit on the images, and its standard error.

    Images of a group are alike: with `groups` the error is that of drawing other groups.
    """
    X, y = template._images(ops.convert_to_tensor(held_out.x)), class_indices(held_out.y, template.units)
    members = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
    found = []
    for fit in fits:
        z = X.logits(*fit.factors)
        if not isinstance(scoring, str):
            p = ops.convert_to_numpy(bm.probabilities(z))
            found.append(resampled(scoring, y, p[:, 0] if template.units == 1 else p, members))
            continue
        weight = held_out.weight.astype("float64")
        if scoring == "balanced_accuracy":
            weight = weight / np.maximum(np.bincount(y, weight)[y], np.finfo(float).tiny)
        z = ops.convert_to_numpy(z)
        right = (z[:, 0] > 0 if template.units == 1 else z.argmax(axis=1)) == y
        found.append(share_of(right, weight, members))
    return found


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
