"""The filters that a model lays over an image, and the factors they are made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bilinear.plots.bands import PLACES, draw_drawn, height_of, width_of
from keras_bilinear.plots.drawn import Drawn, drawn_of
from keras_bilinear.plots.panels import AxisLabels
from keras_bilinear.plots.sheets import empty_figure, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_filters(
    model: Any,
    path: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    row_names: Sequence[str] | None = None,
    column_values: Sequence[float] | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
) -> "Figure":
    """Draws W_k for each class and, for bilinear models, the factors a_{l,k} and b_{l,k} it is made of.

    The factors are in canonical form: the strongest rank first, a_{l,k} and b_{l,k} of equal length
    sqrt(s_{l,k}), so the height of a curve tells how much its rank matters. Ranks that are zero are left out. The
    model itself is not changed.

    Panels have the shape of the matrix, within bounds. Matrices that are wide stand below each other, with their
    factors beside them; others side by side, with their factors below. Of more than ten classes or units only W_k
    is drawn, in rows of ten.

    Filters of images with three channels are drawn in their colours: grey is zero, and what is brighter in a
    channel raises the score where the image is bright in it. Those of other numbers of channels are drawn as the
    matrices that `rows` makes of the images.

    Args:
        model: A fitted model, a built `BilinearDense`, a network with such layers, or several, drawn one below the
            other.
        path: Where to save the picture; the suffix sets the format. None saves nothing.
        class_names: K titles, "0" to "K - 1" by default.
        row_names: M names, of sensors for example: a_{l,k} is then drawn as bars.
        column_values: N rising numbers, of frequencies for example, for the axis of the columns.
        xlabel: What columns are.
        ylabel: What rows are.

    Raises:
        ValueError: if there is no model, or models, names or values do not fit together.
        ImportError: if matplotlib is not installed.

    Example:
        >>> plot_filters([bilinear, linear], "filters.png")
        >>> plot_filters(bilinear, row_names=list("abcdefgh"), column_values=range(8), xlabel="frequency in Hz")
    """
    parts = drawn_of(list(model) if isinstance(model, list | tuple) else [model])
    labels = [checked_labels(part, row_names, column_values, xlabel, ylabel) for part in parts]
    names = [checked_names(class_names, len(part.W)) for part in parts]
    heights = [height_of(*pair) for pair in zip(parts, labels, strict=True)]
    width = max(width_of(part, label) for part, label in zip(parts, labels, strict=True))
    figure = empty_figure(width, sum(heights) + PLACES.gap)
    for i, part in enumerate(parts):
        draw_drawn(figure, part, names[i], labels[i], top=sum(heights[:i]) + PLACES.title)
    return saved(figure, path)


def checked_names(class_names: Sequence[str] | None, K: int) -> list[str]:
    """One title for each W_k; a logistic model has a single one, whose score is that of class 1."""
    if class_names is None:
        return [str(k) for k in range(K)] if K > 1 else ["1 (red) or 0 (blue)"]
    if isinstance(class_names, str) or len(class_names) != K:
        raise ValueError(f"Expected a list of {K} `class_names`. Received: class_names={class_names!r}")
    return [str(name) for name in class_names]


def checked_labels(part: Drawn, row_names: Any, column_values: Any, xlabel: Any, ylabel: Any) -> AxisLabels:
    """What rows and columns are, or a ValueError."""
    M, N = part.W.shape[1:]
    if row_names is not None and (isinstance(row_names, str) or len(row_names) != M):
        raise ValueError(f"Expected a list of {M} `row_names`. Received: row_names={row_names!r}")
    values = None if column_values is None else np.asarray(column_values, float)
    if values is not None and (values.shape != (N,) or not (np.diff(values) > 0).all()):
        raise ValueError(f"Expected {N} rising `column_values`. Received: of shape {values.shape}")
    names = None if row_names is None else [str(name) for name in row_names]
    return AxisLabels(names, values, xlabel, ylabel)
