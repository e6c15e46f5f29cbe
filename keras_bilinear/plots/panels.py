"""Panels at a place in inches, and what is drawn into one: a matrix in colours, curves, bars, a legend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_bilinear.plots.sheets import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RED_TO_BLUE = "RdBu_r"
"""Red raises the score of a class, blue lowers it: told apart by the colour-blind, and white is zero."""

RANK_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
"""One colour a rank. Weaker ranks than these are not drawn."""

MOST_NAMES = 16
"""Of more rows than this, names would lie on each other."""


class AxisLabels(NamedTuple):
    """What rows and columns are: the names of the rows, the values of the columns, and words for both."""

    row_names: list[str] | None = None
    column_values: np.ndarray | None = None
    xlabel: str | None = None
    ylabel: str | None = None

    def x(self, N: int) -> np.ndarray:
        """Where each column stands along an axis."""
        return np.arange(N) if self.column_values is None else self.column_values


def add_panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """A new panel at a place in inches from the top left corner, with the small ticks of a small picture."""
    W, H = figure.get_size_inches()
    panel = figure.add_axes((left / W, 1.0 - (top + height) / H, width / W, height / H))
    panel.tick_params(labelsize=8, length=2, pad=2)
    return panel


def draw_matrix(panel: "Axes", W: np.ndarray, limit: float) -> None:
    """W (M, N) on a symmetric colour scale, or (M, N, 3) in its own colours around grey."""
    # The scale beside colours is that of each channel, from black to its full light.
    picture, colours = (W, RED_TO_BLUE) if W.ndim == 2 else ((1 + W / limit) / 2, "gray")
    panel.imshow(picture, cmap=colours, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    panel.set(xticks=[], yticks=[])


def name_rows(panel: "Axes", labels: AxisLabels) -> None:
    """The names of the rows, to the left of a matrix or of bars that lie like its rows."""
    names = labels.row_names
    if names is not None and len(names) <= MOST_NAMES:
        panel.set_yticks(range(len(names)), names, fontsize=8)


def round_values(values: np.ndarray) -> list[float]:
    """A few round numbers among the values of the columns."""
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(3).tick_values(values[0], values[-1])
    return [float(tick) for tick in ticks if values[0] <= tick <= values[-1]]


def mark_columns(panel: "Axes", labels: AxisLabels) -> None:
    """A few values of the columns, below a matrix."""
    values = labels.column_values
    if values is not None:
        ticks = round_values(values)
        panel.set_xticks(np.interp(ticks, values, np.arange(len(values))), [f"{tick:g}" for tick in ticks])
    if labels.xlabel:
        panel.set_xlabel(labels.xlabel, fontsize=8, labelpad=2)


def draw_curves(panel: "Axes", factors: np.ndarray, x: np.ndarray, limit: float) -> None:
    """Those of a class, one curve a rank, the strongest above the others. factors (L, M)."""
    M = factors.shape[1]
    panel.axhline(0.0, color="0.8", linewidth=0.8)
    for rank, (curve, colour) in enumerate(zip(factors, RANK_COLOURS, strict=False)):
        # A dot, for a factor of one entry is no line.
        panel.plot(x, curve, color=colour, linewidth=1.2, marker="." if M == 1 else "", zorder=9 - rank)
    # Half a column on both sides: entry n of b_{l,k} stands below column n of W_k.
    half = (x[-1] - x[0]) / (2 * (M - 1)) if M > 1 else 0.5
    panel.set(xlim=(x[0] - half, x[-1] + half), ylim=(-limit, limit), xticks=[])
    panel.locator_params(axis="y", nbins=3)


def draw_bars(panel: "Axes", factors: np.ndarray, limit: float, lying: bool) -> None:
    """Those of a class, for every row a bar of each rank; `lying` as the rows of a matrix do. factors (L, M)."""
    L, M = min(len(factors), len(RANK_COLOURS)), factors.shape[1]
    thickness = 0.8 / L
    for rank in range(L):
        places = np.arange(M) - 0.4 + (rank + 0.5) * thickness
        bars: Any = panel.barh if lying else panel.bar
        bars(places, factors[rank], thickness, color=RANK_COLOURS[rank], label=str(rank + 1))
    along: Any = panel.axvline if lying else panel.axhline
    along(0.0, color="0.6", linewidth=0.6)
    if lying:
        panel.set(xlim=(-limit, limit), ylim=(M - 0.5, -0.5), yticks=[])
    else:
        panel.set(ylim=(-limit, limit), xlim=(-0.5, M - 0.5), xticks=[])
    panel.locator_params(axis="x" if lying else "y", nbins=3)


def add_legend(panel: "Axes", L: int) -> None:
    """Which colour is which of L ranks, to the right of the last panel, which holds curves."""
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


def row_label(panel: "Axes", text: str, pad: float = 4) -> None:
    """Text to the left of a row of panels, upright so that it can be read."""
    panel.set_ylabel(text, fontsize=8, rotation=0, ha="right", va="center", labelpad=pad)


def title(panel: "Axes", name: str, names: Sequence[str]) -> None:
    """A name above its panel: "Ankle boot" is as wide as its filter."""
    size = 9 if max(map(len, names)) < 8 or len(names) == 1 else 8
    panel.set_title(name, fontsize=size, pad=3)


def largest(*arrays: np.ndarray) -> float:
    """The largest absolute value; positive even for a model of zeros, which needs a scale too."""
    return max(float(np.finfo("float32").tiny), *(float(np.abs(array).max()) for array in arrays))
