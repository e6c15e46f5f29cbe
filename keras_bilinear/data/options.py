"""Checks of what `fit`, `evaluate` and `predict` are told beside arrays, before anything is built or changed."""

from collections.abc import Callable, Collection, Iterator
from types import GeneratorType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_bilinear.arguments import count, finite, positive_integer
from keras_bilinear.data.arrays import check_image_shape, check_label_shape, is_array

NUMBERS: dict[str, Callable[[str, Any], int]] = {
    "epochs": count,
    "initial_epoch": count,
    "batch_size": positive_integer,
    "steps": positive_integer,
    "steps_per_epoch": positive_integer,
    "validation_steps": positive_integer,
    "validation_batch_size": positive_integer,
}
"""What counts epochs, steps and images, and how it is checked unless it is None."""


class Forms(NamedTuple):
    """The batches that a model takes: images of `size`, (M, N) or None if any will do, and labels of K classes."""

    size: tuple[int, int] | None
    K: int

    def expect(self, name: str, batch: Any, needs_labels: bool = True) -> None:
        """Raises a ValueError for a batch of other parts or shapes, as far as these are known."""
        parts = batch if isinstance(batch, tuple | list) else (batch,)
        if isinstance(batch, dict):
            raise ValueError(
                f"Expected `{name}` to yield (x, y) or (x, y, weight). Received: dicts of "
                f"{', '.join(map(str, batch))}; `data.map(lambda row: (row[...], row[...]))` makes pairs of them"
            )
        if needs_labels and not 2 <= len(parts) <= 3:
            raise ValueError(
                f"Expected `{name}` to yield (x, y) or (x, y, weight). Received: {type(batch).__name__} of "
                f"{len(parts)}"
            )
        images, labels = (known_shape(name, part) for part in (*parts[:2], None)[:2])
        if labels == () or (images is not None and len(images) == 2 and not needs_labels):
            raise ValueError(
                f"Expected `{name}` to yield batches of images (T, M, N). Received: images of shape {images}. "
                "Batch the data set: `.batch(32)`, or with BlockLineSearch `.batch(len(data))`."
            )
        if images is not None:
            check_image_shape(name, images, self.size)
        if needs_labels and labels is not None:
            check_label_shape("y", labels, self.K)


def checked_options(options: dict[str, Any], forms: Forms | None = None, repeats: bool = False) -> dict[str, Any]:
    """The options of `fit` with its numbers as ints, or a ValueError for the first that is wrong.

    Arrays are not looked at. What data sets yield is, by `forms`; none means that a network takes it as it is.
    `repeats` tells that a training set without an end is no fault.
    """
    options = {**options, **checked_numbers(options)}
    has_arrays = is_array(options.get("x"))
    check_split(options.get("validation_split"), has_arrays or forms is None or repeats)
    check_frequency(options.get("validation_freq", 1))
    check_callbacks(options.get("callbacks"))
    if not has_arrays and forms is not None:
        ends = repeats or options.get("steps_per_epoch") is not None
        options["x"] = checked_data_set("x", options.get("x"), forms, "steps_per_epoch", ends)
    validation = options.get("validation_data")
    if validation is not None and not has_parts(validation, any_kind=forms is None):
        ends = options.get("validation_steps") is not None
        seen = forms if forms is None or forms.size else forms._replace(size=image_size(options["x"]))
        options["validation_data"] = checked_data_set("validation_data", validation, seen, "validation_steps", ends)
    return options


def image_size(data: Any) -> tuple[int, int] | None:
    """(M, N) of arrays or of what a data set yields; None if that is not known."""
    spec = getattr(data, "element_spec", [data])[0]
    shape = tuple(getattr(spec, "shape", ()))[1:3]
    return (shape[0], shape[1]) if len(shape) == 2 and None not in shape else None


def known_size(data: Any) -> tuple[int, int]:
    """(M, N) of what a data set yields, or a ValueError."""
    size = image_size(data)
    if size is None:
        raise ValueError(
            "Expected a model with weights, or a data set that tells the shape of an image, under several "
            "replicas: give the model an `input_shape`. Received: neither"
        )
    return size


def checked_numbers(options: dict[str, Any]) -> dict[str, int]:
    """Those of the options that count something, as ints, or a ValueError."""
    return {name: check(name, options[name]) for name, check in NUMBERS.items() if options.get(name) is not None}


def check_split(fraction: Any, is_divisible: bool) -> None:
    """Raises a ValueError for a `validation_split` that is no fraction, or of data that cannot be divided."""
    if fraction is None or fraction == 0:
        return
    number = finite(fraction)
    if number is None or not 0 < number < 1:
        raise ValueError(f"Expected `validation_split` to be a number >= 0 and < 1. Received: {fraction!r}")
    if not is_divisible:
        raise ValueError(
            "Expected arrays with `validation_split`, for a data set cannot be divided: give `validation_data`. "
            f"Received: validation_split={fraction!r} and a data set"
        )


def check_frequency(frequency: Any) -> None:
    """Raises a ValueError unless it is a number of epochs, or the epochs themselves."""
    are_epochs = isinstance(frequency, Collection) and not isinstance(frequency, str | bytes)
    for epoch in frequency if are_epochs else [frequency]:
        positive_integer("validation_freq", epoch)


def check_callbacks(callbacks: Any) -> None:
    """Raises a ValueError for a callback that is none, such as a class in place of an object of it."""
    given = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks))
    others = [item for item in given if item is not None and not isinstance(item, keras.callbacks.Callback)]
    if others:
        raise ValueError(f"Expected `callbacks` to be objects of keras.callbacks.Callback. Received: {others[0]!r}")


def has_parts(data: Any, any_kind: bool = False) -> bool:
    """Whether they come as (x, y) or (x, y, weight), arrays or of `any_kind`; a ValueError for other tuples."""
    if (is_array(data) and not isinstance(data, list)) or (isinstance(data, tuple | list) and len(data) == 1):
        raise ValueError("Expected labels in `validation_data`, (x, y). Received: images alone")
    if isinstance(data, tuple | list):
        if 2 <= len(data) <= 3 and all(any_kind or part is None or is_array(part) for part in data):
            return True
        raise ValueError(
            f"Expected `validation_data` to be (x, y) or (x, y, weight). Received: a {type(data).__name__} of "
            f"{len(data)}: {', '.join(type(part).__name__ for part in data[:4])}"
        )
    return False


def checked_data_set(name: str, data: Any, forms: Forms | None, steps: str, ends: bool) -> Any:
    """A data set whose first batch is as expected and that is known to end, or a ValueError.

    A generator is returned as another one, for its first batch had to be taken out of it.
    """
    if data is None or isinstance(data, str | bytes | dict) or not hasattr(data, "__iter__"):
        raise ValueError(
            f"Expected `{name}` to be arrays or a data set that yields (x, y). Received: {type(data).__name__}"
        )
    if not ends and is_endless(data):
        raise ValueError(f"Expected `{steps}` with data that never end. Received: {steps}=None")
    if isinstance(data, tf.data.Dataset) and data.cardinality() == 0:
        raise ValueError(f"Expected `{name}` to yield batches. Received: an empty data set")
    if forms is None:
        return data
    if isinstance(data, tf.data.Dataset):
        forms.expect(name, data.element_spec)
    elif isinstance(data, keras.utils.PyDataset):
        forms.expect(name, data[0])
    elif isinstance(data, GeneratorType):
        return peeked(name, data, forms)
    return data


def peeked(name: str, batches: Iterator[Any], forms: Forms) -> Iterator[Any]:
    """The same batches, of which the first has been checked."""
    first = next(batches, None)
    if first is None:
        raise ValueError(f"Expected `{name}` to yield batches. Received: a generator that yields nothing")
    forms.expect(name, first)

    def again() -> Iterator[Any]:
        yield first
        yield from batches

    return again()


def is_endless(data: Any) -> bool:
    """Whether a data set says of itself that it never ends."""
    if isinstance(data, tf.data.Dataset):
        return bool(data.cardinality() == tf.data.INFINITE_CARDINALITY)
    return isinstance(data, keras.utils.PyDataset) and getattr(data, "num_batches", 0) is None


def known_shape(name: str, part: Any) -> tuple[int | None, ...] | None:
    """The shape of a dense part of a batch as far as it is known; None for no part, or an unknown rank."""
    if part is None:
        return None
    if isinstance(part, tf.RaggedTensorSpec | tf.SparseTensorSpec) or not hasattr(part, "shape"):
        raise ValueError(f"Expected `{name}` to yield dense arrays. Received: {type(part).__name__}")
    if tf.as_dtype(part.dtype) == tf.string:
        raise ValueError(
            f"Expected `{name}` to yield numbers; BilinearClassifier takes labels of any kind. Received: strings"
        )
    return None if getattr(part.shape, "rank", 0) is None else tuple(part.shape)
