"""A part of a stream of images that is kept in memory: drawn at random while all of them pass by."""

import numpy as np

from keras_bilinear.data.arrays import Batch

FEW = 8
"""A class of which chance has drawn fewer images is represented by its first so many."""


class Reservoir:
    """So many images of a stream, each subset of that size with the same probability (Vitter's algorithm R).

    Args:
        size: How many images are kept.
        seed: Of the random numbers, so that the same stream leaves the same images.
    """

    def __init__(self, size: int, seed: int = 0):
        self.size, self.seen = size, 0
        self.random = np.random.default_rng(seed)
        self.kept: Batch | None = None

    def add(self, batch: Batch) -> None:
        """Lets a batch pass by: image number t takes the place of a kept one with the probability size / t."""
        numbers = np.arange(self.seen, self.seen + len(batch.x))
        self.seen += len(numbers)
        drawn = (self.random.random(len(numbers)) * (numbers + 1)).astype("int64")
        places = np.where(numbers < self.size, numbers, drawn)
        chosen = np.flatnonzero(places < self.size)
        if self.kept is None:
            self.kept = Batch(*(np.empty((self.size, *part.shape[1:]), part.dtype) for part in batch))
        if len(chosen):
            for kept, part in zip(self.kept, batch, strict=True):
                kept[places[chosen]] = part[chosen]  # where two take one place, the later one stays

    def images(self) -> Batch:
        """What is kept: fewer images than `size` of a shorter stream."""
        assert self.kept is not None
        return Batch(*(part[: self.seen] for part in self.kept))


class FirstOfEachClass:
    """The first `FEW` images of each class, for chance may pass rare ones by, and how many there are of each."""

    def __init__(self, classes: int):
        self.counts = np.zeros(classes, "int64")
        self.kept: list[list[Batch]] = [[] for _ in range(classes)]

    def add(self, batch: Batch, classes: np.ndarray) -> None:
        """Lets a batch pass by, with the class of each image, (T,)."""
        for k in np.flatnonzero(self.counts < FEW):
            first = np.flatnonzero(classes == k)[: FEW - self.counts[k]]
            if len(first):
                self.kept[k].append(Batch(*(part[first] for part in batch)))
        self.counts += np.bincount(classes, minlength=len(self.counts))

    def complete(self, drawn: Batch, classes: np.ndarray) -> Batch:
        """What was drawn, with the first images of rare classes in place of those that chance has left of them.

        Weights are divided by the number of images drawn, as V is a mean, and such that a class has the same share
        of all as in the stream.
        """
        T, counts = len(drawn.x), np.bincount(classes, minlength=len(self.counts))
        rare = np.flatnonzero(counts < np.minimum(self.counts, FEW))
        parts = [Batch(*(part[~np.isin(classes, rare)] for part in drawn))]
        for k in rare:
            first = Batch(*map(np.concatenate, zip(*self.kept[k], strict=True)))
            share = T * self.counts[k] / self.counts.sum()
            parts.append(first._replace(weight=first.weight * (share / len(first.x))))
        x, y, weight = map(np.concatenate, zip(*parts, strict=True))
        return Batch(x, y, weight / T)
