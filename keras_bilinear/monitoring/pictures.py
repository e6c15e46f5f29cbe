"""Filters and factors as pixels: what a picture of them needs where there is no plotting library."""

import math

import numpy as np

BLUE_TO_RED = {
    -1.0: (5, 48, 97),
    -0.6: (67, 147, 195),
    -0.2: (209, 229, 240),
    0.0: (247, 247, 247),
    0.2: (253, 219, 199),
    0.6: (214, 96, 77),
    1.0: (103, 0, 31),
}
"""ColorBrewer's RdBu: red raises a score, blue lowers it, near-white is zero. Told apart by the colour-blind."""

GREY = 128
"""Between the tiles: told apart from zero, and from both ends of the scale."""


def mosaic(tiles: np.ndarray) -> np.ndarray:
    """Tiles side by side, in reading order, on one symmetric colour scale; a pixel an entry.

    tiles (K, H, W), any real numbers -> RGB (H', W', 3), uint8.
    """
    K, H, W = tiles.shape
    pixels = np.full((K, H + 1, W + 1, 3), GREY, "uint8")  # a grey line below and to the right of each
    pixels[:, :H, :W] = colours(tiles)
    columns = min(K, math.ceil(math.sqrt(2.5 * K)))
    missing = -K % columns
    pixels = np.concatenate([pixels, np.full((missing, *pixels.shape[1:]), GREY, "uint8")])
    rows = pixels.reshape(-1, columns, H + 1, W + 1, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, columns * (W + 1), 3)[:-1, :-1]


def colours(values: np.ndarray) -> np.ndarray:
    """Blue for the most negative, red for the most positive, white for zero and for what is not finite.

    values, any shape -> (..., 3), uint8.
    """
    values = np.where(np.isfinite(values), values, 0.0)
    largest = np.abs(values).max(initial=0.0)
    scaled = values / largest if largest > 0 else values
    stops, colour = list(BLUE_TO_RED), np.array(list(BLUE_TO_RED.values()), float)
    return np.stack([np.interp(scaled, stops, channel) for channel in colour.T], axis=-1).round().astype("uint8")
