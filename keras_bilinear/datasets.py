"""Checks of tf.data sets by what they say they yield, before any of it is read."""

from typing import Any

import tensorflow as tf


def check_dataset(data: Any, name: str) -> None:
    """Raises a ValueError for a data set that does not yield (images, labels) or (images, labels, weights).

    Anything else, such as arrays and generators, says nothing beforehand.
    """
    if not isinstance(data, tf.data.Dataset):
        return
    received = fault(data.element_spec)
    if received is None and data.cardinality() == 0:
        received = "an empty one"
    if received is not None:
        raise ValueError(
            f"Expected the data set `{name}` to yield batches (images, labels) or (images, labels, weights) of "
            f"numbers. Received: {received}"
        )


def fault(spec: Any) -> str | None:
    """What is wrong with the elements of a data set."""
    if isinstance(spec, dict):
        return f"dicts of {', '.join(map(str, spec))}; `data.map(lambda row: (row[...], row[...]))` makes pairs"
    if not isinstance(spec, tuple) or len(spec) < 2:
        return "images without labels"
    if len(spec) > 3:
        return f"{len(spec)} parts"
    return next((f"{part} among its parts" for part in spec if not is_numeric(part)), None)


def is_numeric(part: Any) -> bool:
    """Whether it is a plain tensor of real numbers."""
    kind = part.dtype if isinstance(part, tf.TensorSpec) else tf.string
    return kind.is_floating or kind.is_integer or kind.is_bool
