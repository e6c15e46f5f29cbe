"""Data that can be fitted, but hardly are as they were meant: told by a warning."""

import warnings
from typing import Any

import numpy as np

MOST_OF_WHOLE_PIXELS = 2
"""Images of whole numbers up to this are counts or marks, beyond it most likely bytes."""


def warn_of_one_class(classes: np.ndarray) -> None:
    """Warns when only one class occurs in training data, for then there is nothing to separate."""
    if len(np.unique(classes)) == 1:
        warnings.warn("`y` holds one class only, so the model will predict it for every image.", stacklevel=2)


def warn_of_scale(given: Any, images: np.ndarray, input_scale: float = 1.0) -> None:
    """Warns of whole numbers for pixels, as they were given, that nothing scales, and of pixels far from 1."""
    warn_of_pixels(largest_pixel(images), np.asarray(given).dtype.kind in "iu", input_scale)


def warn_of_pixels(largest: float, are_whole: bool, input_scale: float) -> None:
    """The same, given the largest pixel, and whether all are of a type of whole numbers.

    The solver takes fourth powers of pixels, which must stay within float32.
    """
    largest *= input_scale
    if input_scale == 1 and largest > MOST_OF_WHOLE_PIXELS and are_whole:
        warnings.warn(
            f"The images are whole numbers up to {largest:.0f}, and nothing scales them. Give the model "
            "`input_scale=1/255` for bytes, with which it takes them as they are, or divide the images yourself.",
            stacklevel=2,
        )
    if largest and not 1e-6 <= largest <= 1e6:
        warnings.warn(
            f"The largest pixel is {largest:.0e}, whose powers leave the range of float32: the fit may not move. "
            "Scale the images to sizes near 1.",
            stacklevel=2,
        )


def warn_of_rank(rank: int, size: tuple[int, int]) -> None:
    """Warns of more ranks than an M x N matrix can have, or than the linear model has numbers."""
    M, N = size
    product = f"{rank} ({M} + {N}) = {rank * (M + N):,}"
    numbers = f"rank={rank} takes {product} numbers a class, the linear model {M * N:,}"
    if rank > min(M, N):
        warnings.warn(
            f"{numbers}; no matrix of {M} x {N} has a rank above {min(M, N)}. Give a smaller rank.", stacklevel=2
        )
    elif rank * (M + N) > M * N:
        warnings.warn(f"{numbers}. Give a smaller rank, or take the linear model.", stacklevel=2)


def warn_of_guess(pixels: int, size: tuple[int, ...], name: str) -> None:
    """Warns that flat rows are taken for images of a shape nobody has told, as the argument `name` does."""
    effect = ": a linear model, in more numbers" if size[0] == 1 else " row by row, which nothing confirms"
    images = f"images of {size[0]} x {size[1]}{effect}"
    warnings.warn(
        f"Rows of {pixels} numbers are taken for {images}. Give `{name}`, the (M, N) of an image.", stacklevel=2
    )


def largest_pixel(images: np.ndarray) -> float:
    """The largest absolute value, without a copy of the images."""
    return float(max(images.max(), -float(images.min())))
