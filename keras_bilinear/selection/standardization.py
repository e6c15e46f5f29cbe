"""Means and scales of images that bilinear factors take in: any mean, one scale for each row and each column."""

import numpy as np

from keras_bilinear.arguments import shown
from keras_bilinear.models.normalization import Moments

WAYS = (None, True, "rows", "columns")
ROUNDING = 1e-7
"""A spread below this part of the mean is none."""
ROUNDS = 20
"""In turns, rows and columns settle to float64's last digits where a few numbers are not all of the variance."""


def checked_way(standardize: object) -> None:
    """Raises a ValueError for what is no way to standardise."""
    if standardize is not True and standardize not in (None, "rows", "columns"):
        raise ValueError(
            f"Expected `standardize` to be one of {list(WAYS)}. Received: standardize={shown(standardize)}"
        )


def moments_of_images(X: np.ndarray, weight: np.ndarray, way: object) -> Moments:
    """The mean of each pixel, and its scale: of its row, of its column, or the product of both. X (T, M, N)."""
    share = weight / weight.sum()
    mean = np.tensordot(share, X.astype("float64"), 1)
    variance = np.tensordot(share, (X - mean) ** 2, 1)
    variance[variance <= (ROUNDING * mean) ** 2] = 0.0
    if way is True:
        return Moments(mean, balanced(variance))
    scale = np.sqrt(variance.mean(axis=1 if way == "rows" else 0, keepdims=True))
    return Moments(mean, np.broadcast_to(positive_or_one(scale), variance.shape))


def balanced(variance: np.ndarray) -> np.ndarray:
    """r_m c_n, divided by which every row and every column has the mean variance 1. variance (M, N)."""
    rows, columns = np.ones((len(variance), 1)), np.ones((1, variance.shape[1]))
    for _ in range(ROUNDS):
        rows = spread_of(variance / columns**2, axis=1)
        columns = spread_of(variance / rows**2, axis=0)
    return rows * columns


def spread_of(variance: np.ndarray, axis: int) -> np.ndarray:
    """The root of the mean variance of what changes."""
    count = np.maximum(np.count_nonzero(variance, axis=axis, keepdims=True), 1)
    return positive_or_one(np.sqrt(variance.sum(axis=axis, keepdims=True) / count))


def positive_or_one(scale: np.ndarray) -> np.ndarray:
    """What never changes is left as it is."""
    return np.where(scale > 0, scale, 1.0)
