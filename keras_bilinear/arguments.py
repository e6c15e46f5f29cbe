"""Checks of arguments: each returns the value in the type the caller needs, or says what was received.

Numbers end in variables of float32 and int32, so none is taken that these cannot hold.
"""

import math
import numbers
import operator
from decimal import Decimal
from typing import Any

import numpy as np
import tensorflow as tf

LARGEST_INT32 = 2**31 - 1
SMALLEST_FLOAT32, LARGEST_FLOAT32 = float(np.finfo("float32").tiny), float(np.finfo("float32").max)


def positive_integer(name: str, value: Any) -> int:
    """`value` as an int >= 1, or a ValueError."""
    return integer(name, value, least=1)


def count(name: str, value: Any) -> int:
    """`value` as an int >= 0, or a ValueError."""
    return integer(name, value, least=0)


def integer(name: str, value: Any, least: int, most: int = LARGEST_INT32) -> int:
    """`value` as an int from `least` to `most`, or a ValueError."""
    number = whole(value)
    if number is None or number < least:
        raise ValueError(f"Expected `{name}` to be an integer >= {least}. Received: {name}={shown(value)}")
    if number > most:
        raise ValueError(f"Expected `{name}` to be an integer <= {most}. Received: {name}={shown(value)}")
    return number


def non_negative(name: str, value: Any) -> float:
    """`value` as a finite float >= 0 within float32, or a ValueError."""
    number = finite(value)
    if number is None or number < 0.0:
        raise ValueError(f"Expected `{name}` to be a finite number >= 0. Received: {name}={shown(value)}")
    return within_float32(name, number)


def positive(name: str, value: Any) -> float:
    """`value` as a finite float > 0 within float32, or a ValueError."""
    number = finite(value)
    if number is None or number <= 0.0:
        raise ValueError(f"Expected `{name}` to be a finite number > 0. Received: {name}={shown(value)}")
    return within_float32(name, number)


def at_least_two(units: Any) -> int:
    """`units` as an int >= 2, or a ValueError that says what was received."""
    if positive_integer("units", units) == 1:
        raise ValueError(
            "Expected `units` >= 2, one for each class: a soft-max over one class is always 1. Received: units=1. "
            "For two classes with a single score use the logistic models."
        )
    return int(units)


def within_float32(name: str, number: float) -> float:
    """`number`, or a ValueError if it would become infinite, or zero though it is not."""
    if number and not SMALLEST_FLOAT32 <= abs(number) <= LARGEST_FLOAT32:
        bounds = f"from {SMALLEST_FLOAT32:.2g} to {LARGEST_FLOAT32:.2g}"
        raise ValueError(f"Expected `{name}` within float32, {bounds}. Received: {name}={number!r}")
    return number


def boolean(name: str, value: Any) -> bool:
    """`value` as a bool, or a ValueError: "False" and 0 are none."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"Expected `{name}` to be True or False. Received: {name}={shown(value)}")
    return bool(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """`value` if it is allowed, or a ValueError."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"Expected `{name}` to be one of {list(allowed)}. Received: {name}={shown(value)}")
    return value


def plain_text(value: Any) -> Any:
    """NumPy's text as Python's, for Keras cannot save a layer that is named by the former; all else as it is."""
    return str(value) if isinstance(value, str) else value


def image_shape(name: str, value: Any, channels: bool = False) -> tuple[int, ...]:
    """`value` as (M, N) or (M, N, 1), with `channels` as (M, N, C), too, or a ValueError."""
    sizes = list(value) if isinstance(value, list | tuple | np.ndarray | tf.TensorShape) else []
    shape = tuple(size for size in map(whole, sizes) if size is not None and 1 <= size <= LARGEST_INT32)
    if len(shape) != len(sizes) or len(shape) not in (2, 3) or not (channels or shape[2:] in ((), (1,))):
        raise ValueError(
            f"Expected `{name}` to be (M, N) or (M, N, 1), whole numbers{', or (M, N, C) with `rows`' * channels}: "
            f"the models take a batch of matrices. Received: {name}={shown(value)}"
        )
    return shape


def whole(value: Any) -> int | None:
    """`value` as an int; None where it is no whole number by its type."""
    try:
        return operator.index(value) if is_number(value) else None
    except (TypeError, AttributeError):  # the latter is what TensorFlow raises for a float
        return None


def finite(value: Any) -> float | None:
    """`value` as a finite float; None where it is no such number."""
    try:
        number = float(value) if is_number(value) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def is_number(value: Any) -> bool:
    """Whether it is one real number: of Python, or a scalar, array or tensor without axes.

    Truth values, text and bytes are none, though Python turns them into numbers.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    kind = str(getattr(dtype, "name", dtype))
    return getattr(value, "shape", None) == () and kind.startswith(("int", "uint", "float", "bfloat"))


def shown(value: Any) -> str:
    """`value` as an error shows it, on one line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
