"""The sheets that pictures are drawn on: as wide as a README, in colours that the colour-blind tell apart."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
"""Okabe and Ito's palette."""

WIDTH = 8.3
"""Inches at 100 pixels each: web pages show a README no wider, and shrink what is."""

SHARPNESS = 200
"""Pixels an inch in a saved picture, for screens that have two for each one of a web page."""


def empty_figure(width: float, height: float, layout: Any = None) -> "Figure":
    """A figure of its own, in inches: no pyplot, so no global state and no window system is touched."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        advice = "Drawing needs matplotlib: pip install matplotlib"
        raise ImportError(advice) from error

    class Picture(Figure):
        """A figure that notebooks show as it is, without `%matplotlib inline`."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=SHARPNESS / 2)
            return content.getvalue()

    return Picture(figsize=(width, height), dpi=100, layout=layout)


def dress(panel: "Axes", title: str, xlabel: str) -> None:
    """What a panel of curves has around it: a title instead of a label on its side, which few read."""
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(xlabel, fontsize=9)
    panel.tick_params(which="both", labelsize=8)
    panel.grid(color="0.9")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """The figure, written to `path` unless that is None."""
    if path is not None:
        figure.savefig(path, dpi=SHARPNESS)
    return figure
