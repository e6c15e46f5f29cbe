"""What a data set holds: every batch is looked at once, before anything is computed."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bilinear.data.arrays import (
    Batch,
    checked_images,
    checked_labels,
    checked_weights,
    class_indices,
    class_weights,
    expect_labels_within,
    expect_weight,
)
from keras_bilinear.data.sketch import FirstOfEachClass, Reservoir
from keras_bilinear.data.unusual import largest_pixel

MOST, LEAST, PIXELS = 8192, 256, 2**25
"""So many images of a data set are kept in memory: fewer of large ones, but not too few."""


class Survey(NamedTuple):
    """What is known of a data set after one reading.

    Fields:
        images: T.
        batches: How many batches they come in.
        counts: Images of each class, (classes,).
        largest_pixel: The largest absolute value, as it is given.
        whole_pixels: Whether pixels are given in a type of whole numbers.
        each_has_a_class: Whether labels are classes, and not probabilities.
        sketch: Some images, drawn at random and with every class among them, and the weights, `class_weight` in
            them, with which V of them stands for V of all.
    """

    images: int
    batches: int
    counts: np.ndarray
    largest_pixel: float
    whole_pixels: bool
    each_has_a_class: bool
    sketch: Batch


def survey(
    dataset: tf.data.Dataset,
    K: int,
    class_weight: Mapping[Any, float] | None = None,
    size: tuple[int, int] | None = None,
    dtype: str = "float32",
) -> Survey:
    """Reads a data set that yields (x, y) or (x, y, weight) once, and checks all of it as `checked_batch` does."""
    drawn, firsts = None, FirstOfEachClass(max(K, 2))
    total, largest, is_whole, batches = 0.0, 0.0, True, 0
    for batch in checked_batches(dataset, K, class_weight, size, dtype):
        drawn = drawn or Reservoir(sketch_size(batch.x.shape[1:]))
        drawn.add(batch)
        firsts.add(batch, class_indices(batch.y, K))
        total, largest = total + batch.weight.sum(), max(largest, largest_pixel(batch.x))
        is_whole, batches = is_whole and bool(np.all(batch.y == np.round(batch.y))), batches + 1
    assert drawn is not None  # there was a batch
    expect_weight(total, dtype)
    kept = drawn.images()
    sketch = firsts.complete(kept, class_indices(kept.y, K))
    whole_pixels = bool(dataset.element_spec[0].dtype.is_integer)
    return Survey(drawn.seen, batches, firsts.counts, largest, whole_pixels, is_whole, sketch)


def checked_batches(
    dataset: Iterable[Any],
    K: int,
    class_weight: Mapping[Any, float] | None = None,
    size: tuple[int, int] | None = None,
    dtype: str = "float32",
) -> Iterator[Batch]:
    """The batches of a data set, each checked as arrays are; images of one size."""
    weights, number = class_weights(class_weight or {}, max(K, 2)), 0
    for number, parts in enumerate(dataset, start=1):
        batch = numbered(number, parts, K, size, dtype)
        size = batch.x.shape[1:]
        yield batch._replace(weight=batch.weight * weights[class_indices(batch.y, K)])
    if not number:
        raise ValueError("Expected data that yield batches. Received: none")


def is_data_set(data: Any, y: Any = None, sample_weight: Any = None) -> bool:
    """Whether data come in batches, as a `tf.data.Dataset`; a ValueError if labels or weights are beside it."""
    is_one = isinstance(data, tf.data.Dataset)
    if is_one:
        expect_labels_within(y, sample_weight)
    return is_one


def is_stream(data: Any) -> bool:
    """Whether it is a data set with an end, and more than one batch before that."""
    if not isinstance(data, tf.data.Dataset):
        return False
    batches = int(data.cardinality())
    if batches == tf.data.UNKNOWN_CARDINALITY:
        batches = sum(1 for _ in data.take(2))  # the only way to know
    return batches > 1


def sketch_size(size: tuple[int, ...]) -> int:
    """How many images of this size are kept."""
    return max(LEAST, min(MOST, PIXELS // math.prod(size)))


def numbered(number: int, parts: Any, K: int, size: Any, dtype: str) -> Batch:
    """The batch of this number, checked."""
    try:
        x, y, *weight = (np.asarray(part) for part in parts)
        images = checked_images(x, size, dtype)
        weights = checked_weights(weight[0] if weight else None, len(images))
        return Batch(images, checked_labels(y, K, len(images)), weights)
    except ValueError as error:
        raise ValueError(f"{error} (batch {number} of the data set)") from error
