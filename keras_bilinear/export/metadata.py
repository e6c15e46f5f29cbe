"""What a file says of itself: how to feed it and what its scores mean, under a seal on every bit of the file."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_bilinear.arguments import finite
from keras_bilinear.export import litert
from keras_bilinear.export.converter import QUANTIZE
from keras_bilinear.export.inference_graph import LARGEST_SCALE, LEAST_SCALE

KEYS = {"quantize", "input_scale", "input_range", "labels", "seal"}
SEAL = re.compile(rb'"seal":"([0-9a-f]{16})"')
FAR = 8.0
"""Images that reach so many times less or more far than the file's range are in other units."""


def sealed(content: bytes, facts: dict[str, Any]) -> bytes:
    """The file with `facts` in its metadata, and among them a digest of all that is in it."""
    content = litert.with_metadata(content, {**facts, "seal": "0" * 16})
    return SEAL.sub(b'"seal":"%b"' % digest(content), content)


def digest(content: bytes) -> bytes:
    """16 hexadecimal digits of SHA-256, over the file with zeros in the place of those."""
    return hashlib.sha256(SEAL.sub(b'"seal":"%b"' % (b"0" * 16), content)).hexdigest()[:16].encode()


def sealed_facts(content: bytes) -> dict[str, Any]:
    """What a file says of itself, or a ValueError if it has been changed since it was sealed.

    Files that say nothing, and those of earlier releases, have no seal.
    """
    facts, seals = litert.metadata(content), SEAL.findall(content)
    if seals != ([digest(content)] if "seal" in facts else []):
        raise ValueError("Expected a file as it was written. Received: one that was changed, or damaged, since")
    return facts


def checked_facts(content: bytes, units: int) -> dict[str, Any]:
    """What the file of a model of K = `units` says of itself; a ValueError for what no export could write."""
    facts = sealed_facts(content)
    if not set(facts) <= KEYS:
        raise ValueError(f"Expected metadata {sorted(KEYS)}. Received: {sorted(facts)}")
    quantize, scale, pixels = (facts.get(key) for key in ("quantize", "input_scale", "input_range"))
    if quantize not in QUANTIZE:
        raise ValueError(f"Expected a file quantised as one of {list(QUANTIZE)}. Received: {quantize!r}")
    if scale is not None and not (finite(scale) is not None and LEAST_SCALE <= scale <= LARGEST_SCALE):
        raise ValueError(f"Expected an `input_scale` that is a number > 0 in the metadata. Received: {scale!r}")
    if pixels is not None and not is_range(pixels, scale):
        raise ValueError(
            "Expected an `input_range` of pixels from 0, or from the negative of white, to white in the metadata. "
            f"Received: {pixels!r} with input_scale={scale!r}"
        )
    if "labels" in facts:
        checked_names(facts["labels"], units)
    return facts


def is_range(pixels: Any, scale: float | None) -> bool:
    """Whether `input_range` can have given these two numbers, for any images."""
    if not isinstance(pixels, list) or len(pixels) != 2 or None in map(finite, pixels):
        return False
    return pixels == input_range(np.asarray(pixels, "float64"), scale)


def check_span(X: np.ndarray, facts: dict[str, Any], input_scale: float | None) -> None:
    """Raises a ValueError for images that are plainly not in the units of the file: nothing can be seen on them.

    Where the file has no range, it is that of a scale that was given.
    """
    pixels = facts.get("input_range") or (None if input_scale is None else input_range(None, input_scale))
    if pixels is None:
        return
    white, largest = max(map(abs, pixels)), float(np.abs(X).max())
    if not white / FAR <= largest <= white * FAR:
        raise ValueError(
            f"Expected images in the units of the file, pixels from {pixels[0]:g} to {pixels[1]:g}. Received: "
            f"pixels from {X.min():g} to {X.max():g}"
        )


def facts_of(
    units: int,
    quantize: str | None,
    input_scale: float | None,
    images: np.ndarray | None,
    labels: Sequence[str] | None,
) -> dict[str, Any]:
    """What a reader of the file needs to know and cannot see: only what was said, so a plain file has none."""
    facts: dict[str, Any] = {}
    if quantize is not None:
        facts["quantize"] = quantize
    if input_scale is not None:
        facts["input_scale"] = float(input_scale)
    if images is not None or input_scale is not None:
        facts["input_range"] = input_range(images, input_scale)
    if labels is not None:
        facts["labels"] = checked_names(labels, units)
    return facts


def input_range(images: np.ndarray | None, input_scale: float | None) -> list[float]:
    """The least and the largest pixel the file is meant for, black and white: not just those of some images.

    Scaled pixels go from 0 to 1, or from -1 if some are negative; without a scale, so do those that fit.
    """
    white = 1.0 if input_scale is None else 1.0 / float(input_scale)
    low, high = (0.0, white) if images is None else (float(images.min()), float(images.max()))
    if input_scale is None:
        return [0.0 if low >= 0 else min(-1.0, low), white if high <= white else high]
    return [0.0 if low >= 0 else -white, white]


def checked_names(labels: Any, units: int) -> list[str]:
    """One name for each class, all different, or a ValueError."""
    classes = max(units, 2)
    names = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else []
    if len(names) != classes or not all(map(is_text, names)) or len(set(names)) != classes:
        raise ValueError(f"Expected `labels` to be {classes} different names. Received: labels={labels!r}")
    return [str(name) for name in names]


def is_text(name: Any) -> bool:
    """Whether it is a name that a file can hold: not empty, and no half of a character."""
    return isinstance(name, str) and bool(name) and name.encode(errors="ignore").decode() == name
