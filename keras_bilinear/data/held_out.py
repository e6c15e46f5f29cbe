"""Which images are held out: every class in its share, and no group on both sides."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_bilinear.arguments import finite
from keras_bilinear.data.arrays import Batch, class_indices


def held_out_count(T: int, fraction: float) -> int:
    """How many of T images `fraction` of them are, at least one and not all, or a ValueError."""
    number = finite(fraction)
    count = 0 if number is None else T - math.floor(T * (1.0 - number))
    if not 0 < count < T:
        raise ValueError(f"Expected `validation_split` to leave samples on both sides of {T}. Received: {fraction}")
    return count


def train_validation_split(batch: Batch, fraction: float) -> tuple[Batch, Batch]:
    """The last `fraction` of the samples for validation, as Keras splits."""
    T = len(batch.x)
    last = np.arange(T) >= T - held_out_count(T, fraction)
    return parted(batch, last)


def stratified(classes: np.ndarray, fraction: float, groups: np.ndarray | None = None) -> np.ndarray:
    """Which images to hold out, (T,): the last `fraction` of every class, or whole `groups`, about so much."""
    T = len(classes)
    count = held_out_count(T, fraction)
    if groups is not None:
        return spread(classes, groups, [1 - count / T, count / T]) == 1
    order = np.argsort(places(classes), kind="stable")
    return np.isin(np.arange(T), order[T - count :])


def folds_of(batch: Batch, K: int, folds: int, groups: np.ndarray | None = None) -> Iterator[tuple[Batch, Batch]]:
    """(training, held out) for each of `folds` parts, one at a time.

    Each class is spread evenly over the parts; with `groups` as evenly as whole groups can be.
    """
    classes = class_indices(batch.y, K)
    if groups is None:
        part = np.empty(len(classes), "int64")
        part[np.argsort(classes, kind="stable")] = np.arange(len(classes)) % folds
    else:
        part = spread(classes, groups, [1 / folds] * folds)
    for fold in range(folds):
        yield parted(batch, part == fold)


def checked_groups(groups: Any, T: int, folds: int | None) -> np.ndarray | None:
    """The number of each image's group, (T,), or a ValueError; None for None."""
    if groups is None:
        return None
    names = np.asarray(groups)
    if names.shape != (T,):
        raise ValueError(f"Expected `groups` of shape ({T},), one for each image. Received: {names.shape}")
    distinct, numbers = np.unique(names, return_inverse=True)
    least = 2 if folds is None else folds
    if len(distinct) < least:
        raise ValueError(f"Expected `groups` of {least} kinds or more, to hold some out. Received: {len(distinct)}")
    return numbers


def places(classes: np.ndarray) -> np.ndarray:
    """Where each image stands among those of its class, from 0 for the first to 1 for the last, (T,)."""
    place = np.empty(len(classes))
    for k in np.unique(classes):
        (members,) = np.nonzero(classes == k)
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return place


def spread(classes: np.ndarray, groups: np.ndarray, shares: list[float]) -> np.ndarray:
    """The part of each image, (T,): whole groups, the largest first, each to the part that lacks most of it.

    What a part lacks of a class is counted in fractions of that class, so that rare ones count as much.
    """
    counts = np.zeros((groups.max() + 1, classes.max() + 1))
    np.add.at(counts, (groups, classes), 1)
    counts /= np.maximum(counts.sum(axis=0), 1)
    lacking = np.outer(shares, np.ones(counts.shape[1]))
    part, is_empty = np.empty(len(counts), "int64"), np.ones(len(shares), bool)
    for done, group in enumerate(np.argsort(-counts.sum(axis=1), kind="stable")):
        # The squares of all that is lacking fall most where this product is the largest.
        gain = lacking @ counts[group]
        if len(counts) - done <= is_empty.sum():
            gain = np.where(is_empty, gain, -np.inf)  # no more groups than parts that have none
        part[group] = here = np.argmax(gain)
        lacking[here] -= counts[group]
        is_empty[here] = False
    return part[groups]


def parted(batch: Batch, is_held_out: np.ndarray) -> tuple[Batch, Batch]:
    """The images that are not held out, and those that are."""
    first, last = (Batch(*(array[which] for array in batch)) for which in (~is_held_out, is_held_out))
    return first, last
