"""Checks of arguments: each returns the value in the type the caller needs, or says what was received."""

import math
import operator
from typing import Any


def positive_integer(name: str, value: Any) -> int:
    """`value` as an int >= 1, or a ValueError."""
    return integer(name, value, least=1)


def count(name: str, value: Any) -> int:
    """`value` as an int >= 0, or a ValueError."""
    return integer(name, value, least=0)


def integer(name: str, value: Any, least: int) -> int:
    """`value` as an int >= `least`, or a ValueError."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"Expected `{name}` to be an integer >= {least}. Received: {name}={value!r}")
    return number


def non_negative(name: str, value: Any) -> float:
    """`value` as a finite float >= 0, or a ValueError."""
    number = finite(value)
    if number is None or number < 0.0:
        raise ValueError(f"Expected `{name}` to be a finite number >= 0. Received: {name}={value!r}")
    return number


def positive(name: str, value: Any) -> float:
    """`value` as a finite float > 0, or a ValueError."""
    number = finite(value)
    if number is None or number <= 0.0:
        raise ValueError(f"Expected `{name}` to be a finite number > 0. Received: {name}={value!r}")
    return number


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """`value` if it is allowed, or a ValueError."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"Expected `{name}` to be one of {list(allowed)}. Received: {name}={value!r}")
    return value


def finite(value: Any) -> float | None:
    """`value` as a finite float; None where it is no such number."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
