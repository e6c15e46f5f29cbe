"""Images as flat rows, which scikit-learn passes on, and what shape these have as images."""

import math
from typing import Any

import numpy as np

from keras_bilinear.arguments import positive_integer


def as_rows(X: Any, channels: bool) -> tuple[Any, tuple[int, ...] | None]:
    """Images as rows (T, M N), and their (M, N), or (M, N, C) with channels; anything else as it is, and None."""
    try:
        shape = X.shape if hasattr(X, "shape") else np.asarray(X).shape
    except ValueError:  # a ragged list, of which scikit-learn says what is wrong
        return X, None
    is_fit = len(shape) in (2, 4) if channels else len(shape) < 4 or (len(shape) == 4 and shape[3] == 1)
    if not is_fit:
        expected = (
            "(T, M, N, C), or rows (T, M N C), with"
            if channels
            else "(T, M, N) or (T, M, N, 1), or rows (T, M N), without"
        )
        raise ValueError(f"Expected images `X` of shape {expected} `rows`. Received: X of shape {tuple(shape)}")
    if len(shape) < 3:
        return X, None
    size = tuple(int(each) for each in shape[1 : 4 if channels else 3])
    return np.reshape(np.asarray(X), (int(shape[0]), math.prod(size))), size


def image_shape(
    declared: Any, given: tuple[int, ...] | None, pixels: int, channels: bool = False
) -> tuple[int, ...]:
    """(M, N): as declared, as the images given have it, or what rows of so many pixels can be cut into.

    With `channels` (M, N, C), at which rows of pixels give no hint.
    """
    if declared is None:
        side = math.isqrt(pixels)
        if channels and given is None:
            raise ValueError(
                f"Expected `image_shape` (M, N, C) with `rows`. Received: none, and rows of {pixels} pixels"
            )
        return given or ((side, side) if side**2 == pixels else (1, pixels))
    if not isinstance(declared, list | tuple | np.ndarray) or len(declared) != (3 if channels else 2):
        form = "(M, N, C) with `rows`" if channels else "(M, N)"
        raise ValueError(f"Expected `image_shape` to be {form}. Received: image_shape={declared!r}")
    shape = tuple(positive_integer("image_shape", size) for size in declared)
    if given not in (None, shape) or pixels != math.prod(shape):
        received = f"rows of {pixels} pixels" if given is None else f"images of {given}"
        raise ValueError(f"Expected images of image_shape={shape}, {math.prod(shape)} pixels. Received: {received}")
    return shape
