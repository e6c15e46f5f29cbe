"""Images in a file that NumPy maps into memory: read a part at a time, never as a whole."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.data.arrays import as_array, check_label_shape

PART = 1024
"""So many images are read at a time."""


def unmapped(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """x, y and sample_weight as they are, but of images in a mapped file one data set of all three."""
    if not isinstance(x, np.memmap) or y is None:
        return x, y, sample_weight
    parts = [x, as_array(y, "y")]
    if sample_weight is not None:
        parts.append(as_array(sample_weight, "sample_weight"))
    for name, part in zip(("y", "sample_weight"), parts[1:], strict=False):
        check_label_shape(name, part.shape, part.shape[-1], len(x))
    types = [part.dtype.newbyteorder("=") for part in parts]

    def read(start: np.ndarray) -> list[np.ndarray]:
        return [np.array(part[start : start + PART], kind) for part, kind in zip(parts, types, strict=True)]

    def batch(start: Any) -> tuple[Any, ...]:
        read_parts = tf.numpy_function(read, [start], [tf.as_dtype(kind) for kind in types])
        return tuple(
            tf.ensure_shape(part, (None, *whole.shape[1:])) for part, whole in zip(read_parts, parts, strict=True)
        )

    return tf.data.Dataset.range(0, len(x), PART).map(batch).prefetch(1), None, None
