"""The factors of a bilinear map: which rows and which columns it mixes."""

from pathlib import Path
from typing import TYPE_CHECKING

from keras import ops

from keras_bilinear.parts.bilinear_map import BilinearMap
from keras_bilinear.plots.panels import RED_TO_BLUE, add_panel, largest
from keras_bilinear.plots.sheets import empty_figure, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches. A cell of a factor is a square, unless it is so large that the picture would not fit.
CELL, LARGEST_PANEL = 0.12, 3.4
LEFT, TOP, BETWEEN, SCALE, RIGHT = 0.6, 0.4, 0.7, 0.09, 0.6


def plot_map(layer: BilinearMap, path: str | Path | None = None) -> "Figure":
    """Draws A, whose column p weighs the rows of X for row p of Y, and B, which does so for the columns.

    Both on one scale of colours: red is positive, blue negative. Row m of the picture of A stands for row m of X.

    Args:
        layer: A built `BilinearMap`.
        path: Where to save the picture; the suffix sets the format. None saves nothing.

    Raises:
        ValueError: if it is no such layer, or one that is not built.
        ImportError: if matplotlib is not installed.

    Example:
        >>> layer = BilinearMap(4, 3)
        >>> layer.build((None, 8, 8))
        >>> figure = plot_map(layer, "map.png")
    """
    if not isinstance(layer, BilinearMap) or not layer.built:
        raise ValueError(f"Expected a BilinearMap that is built. Received: {layer!r}")
    factors = [ops.convert_to_numpy(factor.value).astype("float64") for factor in layer.factor_blocks]
    sizes = [[min(CELL * n, LARGEST_PANEL) for n in (factor.shape[1], factor.shape[0])] for factor in factors]
    width = LEFT + sum(size[0] for size in sizes) + 2 * BETWEEN + SCALE + RIGHT
    figure = empty_figure(width, TOP + max(size[1] for size in sizes) + TOP)
    limit, left = largest(*factors), LEFT
    for factor, size, name, axis in zip(factors, sizes, "AB", ("row", "column"), strict=True):
        panel = add_panel(figure, left, TOP, *size)
        panel.imshow(factor, cmap=RED_TO_BLUE, vmin=-limit, vmax=limit, aspect="auto")
        panel.set_title(f"${name}$", fontsize=9, pad=3)
        panel.set_ylabel(f"{axis} of $X$", fontsize=8)
        panel.set_xlabel(f"{axis} of $Y$", fontsize=8)
        left += size[0] + BETWEEN
    scale = add_panel(figure, left, TOP, SCALE, sizes[0][1])
    figure.colorbar(figure.axes[0].images[0], cax=scale)
    return saved(figure, path)
