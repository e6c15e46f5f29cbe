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
        >>> plot_filters(watch, row_names=["x", "y", "z"], column_values=frequencies, xlabel="frequency in Hz")
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


<<<<<<< HEAD
def filter_size(model: ImageRegression) -> tuple[float, float]:
    """Width and height of a panel with W_k; bounded, or strips of pixels would be a thread or a tower."""
    M, N = model.image_shape[:2] if has_colours(model) else model.image_size
    width = COLUMN if model.units > 1 else LONE_COLUMN
    return width, width * min(max(M / N, 0.7), 2.0)


def model_height(model: ImageRegression) -> float:
    """Height of all that is drawn of one model, from the titles of its filters to its last factors."""
    factor_rows = 2 if model.units > 1 and isinstance(model, BilinearRegression) else 0
    return TITLE + filter_size(model)[1] + GAP + factor_rows * (CURVES + GAP)


def draw_model(figure: "Figure", model: ImageRegression, names: list[str], top: float) -> None:
    """The filters of one model and, below them or beside a lone one, its factors."""
    K, (width, height) = model.units, filter_size(model)
    lefts = [LEFT + k * (width + GAP) for k in range(K)]
    filters = [add_panel(figure, left, top, width, height) for left in lefts]
    draw_filters(filters, model.filter_images() if has_colours(model) else model.weight_matrices(), names)
    row_label(filters[0], f"{short_name(model)}\n{parameter_count(model):,}\nweights")
    scale = add_panel(figure, lefts[-1] + width + GAP, top, 0.09, height)
    figure.colorbar(filters[0].images[0], cax=scale)
    scale.set_title("$W_k$" if K > 1 else "$W$", fontsize=8, pad=3)
    scale.locator_params(nbins=5)
    if not isinstance(model, BilinearRegression):
        return
    A, B = (ops.convert_to_numpy(part) for part in bm.canonical_factors(*model.factors()))
    limit = 1.08 * largest(A, B)
    for i, (part, name, axis) in enumerate(((A, "a", "rows"), (B, "b", "columns"))):
        if K > 1:
            below = top + height + GAP + i * (CURVES + GAP)
            panels = [add_panel(figure, left, below, width, CURVES) for left in lefts]
            row_label(panels[0], f"${name}_{{l,k}}$\n{axis}")
        else:
            beside = LEFT + width + RIGHT + 0.4 + i * (width + 0.4)
            panels = [add_panel(figure, beside, top, width, height)]
            panels[0].set_title(f"${name}_l$, {axis}", fontsize=9, pad=3)
        draw_curves(panels, part, limit)
    add_legend(panels[-1], model.rank)


def draw_filters(panels: Sequence["Axes"], W: np.ndarray, names: list[str]) -> None:
    """The row of W_k on one symmetric colour scale. W (K, M, N), or (K, M, N, 3) for colours around grey."""
    limit = largest(W)
    size = 9 if max(map(len, names)) < 8 or len(names) == 1 else 8  # "Ankle boot" is as wide as its filter
    for panel, filter_k, name in zip(panels, W, names, strict=True):
        # The scale beside colours is that of each channel, from black to its full light.
        picture, colours = (filter_k, RED_TO_BLUE) if W.ndim == 3 else ((1 + filter_k / limit) / 2, "gray")
        panel.imshow(picture, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
        panel.set(xticks=[], yticks=[])
        panel.set_title(name, fontsize=size, pad=3)


def has_colours(model: ImageRegression) -> bool:
    """Whether its images have a red, a green and a blue channel."""
    return model.image_shape[2:] == (3,)


def draw_curves(panels: Sequence["Axes"], factors: np.ndarray, limit: float) -> None:
    """The row of a_{l,k}, or of b_{l,k}, one curve a rank. factors (L, M, K)."""
    _, M, K = factors.shape
    for k in range(K):
        panel = panels[k]
        panel.axhline(0.0, color="0.8", linewidth=0.8)
        for rank, (curve, colour) in enumerate(zip(factors[:, :, k], RANK_COLOURS, strict=False)):
            # The strongest rank lies above the others. A dot, for a factor of one entry is no line.
            panel.plot(curve, color=colour, linewidth=1.2, marker="." if M == 1 else "", zorder=9 - rank)
        # The width of the filter, so that entry n of b_{l,k} stands below column n of W_k.
        panel.set(xlim=(-0.5, M - 0.5), ylim=(-limit, limit), xticks=[])
        panel.locator_params(axis="y", nbins=3)
        panel.tick_params(labelleft=k == 0, left=k == 0)


def add_legend(panel: "Axes", L: int) -> None:
    """Which colour is which rank, to the right of the last panel."""
    shown = min(L, len(RANK_COLOURS))
    panel.legend(
        panel.lines[1:],  # without the zero line
        [str(rank + 1) for rank in range(shown)],
        title="rank $l$" if shown == L else f"rank $l$\n(of {L})",
        loc="center left",
        bbox_to_anchor=(1.0, 0.9),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=0.2,
        handlelength=1.2,
    )


def add_panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """A new panel at a place in inches from the top left corner, with the small ticks of a small picture."""
    W, H = figure.get_size_inches()
    panel = figure.add_axes((left / W, 1.0 - (top + height) / H, width / W, height / H))
    panel.tick_params(labelsize=8, length=2, pad=2)
    return panel


def row_label(panel: "Axes", text: str) -> None:
    """Text to the left of a row of panels, upright so that it can be read."""
    panel.set_ylabel(text, fontsize=8, rotation=0, ha="right", va="center", labelpad=4)


def largest(*arrays: np.ndarray) -> float:
    """The largest absolute value; positive even for a model of zeros, which needs a scale too."""
    return max(float(np.finfo("float32").tiny), *(float(np.abs(array).max()) for array in arrays))


def short_name(model: ImageRegression) -> str:
    """The paper's name of a model, BSR for BilinearSoftmaxRegression, and its rank."""
    initials = "".join(letter for letter in type(model).__name__ if letter.isupper())
    return f"{initials}\n$L$ = {model.rank}" if isinstance(model, BilinearRegression) else initials
=======
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
>>>>>>> sensors
