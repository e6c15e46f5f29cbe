"""Where the filters of a model stand on a sheet, and their factors: below them, or beside those that are wide."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_bilinear.plots.drawn import Drawn
from keras_bilinear.plots.panels import (
    MOST_NAMES,
    AxisLabels,
    add_legend,
    add_panel,
    draw_bars,
    draw_curves,
    draw_matrix,
    largest,
    mark_columns,
    name_rows,
    round_values,
    row_label,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IN_A_ROW = 10
"""Filters that stand side by side; of more, factors are not drawn."""
WIDE = 2.0
"""From so many columns a row on, filters stand below each other."""


class Places(NamedTuple):
    """Inches. Panels are placed by hand: automatic layouts pull them out of line to fit labels in."""

    left: float = 0.9
    right: float = 0.72
    title: float = 0.3
    gap: float = 0.065
    curves: float = 0.6
    column: float = 0.6
    lone: float = 1.6
    long: float = 2.05
    square: float = 1.1
    bars: float = 0.9
    ticks: float = 0.17
    name: float = 0.12
    between: float = 0.4
    scale: float = 0.09


PLACES = Places()


def is_beside(part: Drawn, labels: AxisLabels) -> bool:
    """Whether factors stand beside their filter: a lone one, wide ones, and those whose rows have names."""
    K, M, N = part.shown.shape[:3]
    is_named = labels.row_names is not None and M <= MOST_NAMES
    return K == 1 or (K <= IN_A_ROW and (N > WIDE * M or is_named))


def panel_size(part: Drawn, labels: AxisLabels) -> tuple[float, float]:
    """Width and height of a panel with W_k, in its shape; bounded, or strips would be a thread or a tower."""
    K, M, N = part.shown.shape[:3]
    if is_beside(part, labels) and K > 1:
        names = PLACES.name * M if labels.row_names is not None and M <= MOST_NAMES else 0.0
        width = PLACES.long if N > WIDE * M else PLACES.square
        return width, max(width * min(max(M / N, 0.2), 2.0), names)
    width = PLACES.lone if K == 1 else PLACES.column
    return width, width * min(max(M / N, 0.5 if K > 1 else 0.7), 2.0)


def bottom(labels: AxisLabels) -> float:
    """Room below the last panel for values and words."""
    return 0.17 * ((labels.column_values is not None) + bool(labels.xlabel))


def left_of(labels: AxisLabels) -> float:
    """Room for the name of the model, and between it and the panels for those of the rows."""
    return PLACES.left + 0.065 * max(map(len, labels.row_names or [""]))


def width_of(part: Drawn, labels: AxisLabels) -> float:
    """Of all that is drawn of it."""
    K, width = len(part.W), panel_size(part, labels)[0]
    if not is_beside(part, labels):
        return left_of(labels) + min(K, IN_A_ROW) * (width + PLACES.gap) + PLACES.right
    if K == 1:
        return left_of(labels) + 3 * width + 2 * PLACES.right + 0.75
    if part.A is None:
        return left_of(labels) + width + PLACES.right
    return left_of(labels) + 2 * (width + PLACES.right) + PLACES.bars + PLACES.between + 0.1


def height_of(part: Drawn, labels: AxisLabels) -> float:
    """From the titles of its filters to the last of its factors."""
    K, height = len(part.W), panel_size(part, labels)[1]
    if is_beside(part, labels):
        ticks = PLACES.ticks if part.A is not None else 0.0
        return PLACES.title + K * (height + PLACES.gap) + max(ticks, bottom(labels))
    bands = -(-K // IN_A_ROW)
    factors = 0.0 if part.A is None or bands > 1 else 2 * (PLACES.curves + PLACES.gap)
    return bands * (PLACES.title + height + PLACES.gap) + factors + bottom(labels)


def draw_drawn(figure: "Figure", part: Drawn, names: list[str], labels: AxisLabels, top: float) -> None:
    """The filters of one model, and its factors."""
    if is_beside(part, labels):
        draw_lines(figure, part, names, labels, top)
    else:
        draw_bands(figure, part, names, labels, top)


def draw_bands(figure: "Figure", part: Drawn, names: list[str], labels: AxisLabels, top: float) -> None:
    """Filters side by side, ten in a row, and the factors of up to ten below them."""
    (width, height), left, K = panel_size(part, labels), left_of(labels), len(part.W)
    lefts = [left + (k % IN_A_ROW) * (width + PLACES.gap) for k in range(K)]
    tops = [top + k // IN_A_ROW * (PLACES.title + height + PLACES.gap) for k in range(K)]
    panels = filter_panels(figure, part, lefts, tops, (width, height))
    for panel, name in zip(panels, names, strict=True):
        title(panel, name, names)
    name_model(panels[0], part, labels)
    add_scale(figure, panels[0], max(lefts) + width + PLACES.gap, top, height, "$W_k$")
    if part.A is None or K > IN_A_ROW:
        mark_columns(panels[-1], labels)
    else:
        draw_below(figure, part, labels, lefts, width, top + height + PLACES.gap)


def draw_lines(figure: "Figure", part: Drawn, names: list[str], labels: AxisLabels, top: float) -> None:
    """Filters below each other, with their factors beside them."""
    (width, height), left, K = panel_size(part, labels), left_of(labels), len(part.W)
    tops = [top + k * (height + PLACES.gap) for k in range(K)]
    panels = filter_panels(figure, part, [left] * K, tops, (width, height))
    if K == 1:
        title(panels[0], names[0], names)
        name_model(panels[0], part, labels)
    else:
        for panel, name in zip(panels, names, strict=True):
            name_rows(panel, labels)
            row_label(panel, name)
        words = f"{part.name}, {part.numbers:,} weights".replace("\n", ", ")
        panels[0].set_title(words, fontsize=8, pad=3, loc="right")
    mark_columns(panels[-1], labels)
    add_scale(figure, panels[0], left + width + PLACES.gap, top, height, "$W_k$" if K > 1 else "$W$")
    if part.A is not None:
        draw_beside(figure, part, labels, left + width + PLACES.right, tops, (width, height))


def filter_panels(
    figure: "Figure", part: Drawn, lefts: list[float], tops: list[float], size: tuple[float, float]
) -> list["Axes"]:
    """W_k at their places, all on one scale."""
    limit = largest(part.W)
    panels = [add_panel(figure, *place, *size) for place in zip(lefts, tops, strict=True)]
    for panel, W in zip(panels, part.shown, strict=True):
        draw_matrix(panel, W, limit)
    return panels


def name_model(panel: "Axes", part: Drawn, labels: AxisLabels) -> None:
    """To the left of its first filter."""
    name_rows(panel, labels)
    row_label(panel, f"{part.name}\n{part.numbers:,}\nweights")


def draw_below(
    figure: "Figure", part: Drawn, labels: AxisLabels, lefts: list[float], width: float, top: float
) -> None:
    """The factors, two rows of panels as wide as the filters above them."""
    assert part.A is not None
    tops = (top, top + PLACES.curves + PLACES.gap)
    above, under = ([add_panel(figure, left, each, width, PLACES.curves) for left in lefts] for each in tops)
    draw_factors(above, under, part, labels)
    for panel in (*above[1:], *under[1:]):
        panel.tick_params(labelleft=False, left=False)
    row_label(above[0], f"$a_{{l,k}}$\n{labels.ylabel or 'rows'}")
    row_label(under[0], "$b_{l,k}$\n" + ("columns" if labels.xlabel is None else ""))
    mark_values(under[0], labels)
    add_legend(under[-1], len(part.A))


def draw_beside(
    figure: "Figure", part: Drawn, labels: AxisLabels, left: float, tops: list[float], size: tuple[float, float]
) -> None:
    """The factors, two panels beside each filter and as high as it is."""
    assert part.A is not None
    (width, height), is_lone = size, len(tops) == 1
    near, wide = (left + PLACES.between, width) if is_lone else (left + 0.1, PLACES.bars)
    beside = [add_panel(figure, near, top, wide, height) for top in tops]
    far = [add_panel(figure, near + wide + PLACES.between, top, width, height) for top in tops]
    draw_factors(beside, far, part, labels, lying=True)
    for panel in (*beside[:-1], *far[:-1]):
        panel.tick_params(labelbottom=False)
    index = "l" if is_lone else "l,k"
    beside[0].set_title(f"$a_{{{index}}}$, {labels.ylabel or 'rows'}", fontsize=9, pad=3)
    far[0].set_title(f"$b_{{{index}}}$, {labels.xlabel or 'columns'}", fontsize=9, pad=3)
    mark_values(far[-1], labels._replace(xlabel=None))
    add_legend(far[0], len(part.A))


def draw_factors(
    a_panels: list["Axes"], b_panels: list["Axes"], part: Drawn, labels: AxisLabels, lying: bool = False
) -> None:
    """a_{l,k} as bars where rows have names, else as curves, and b_{l,k}, all on one scale."""
    assert part.A is not None
    assert part.B is not None
    limit = 1.08 * largest(np.nan_to_num(part.A), np.nan_to_num(part.B))
    for k, (left, right) in enumerate(zip(a_panels, b_panels, strict=True)):
        if labels.row_names is None:
            draw_curves(left, part.A[:, :, k], np.arange(part.A.shape[1]), limit)
        else:
            draw_bars(left, part.A[:, :, k], limit, lying)
        draw_curves(right, part.B[:, :, k], labels.x(part.B.shape[1]), limit)


def mark_values(panel: "Axes", labels: AxisLabels) -> None:
    """A few values below curves, which have places of their own along the axis."""
    if labels.column_values is not None:
        panel.set_xticks(round_values(labels.column_values))
    if labels.xlabel:
        panel.set_xlabel(labels.xlabel, fontsize=8, labelpad=2)


def add_scale(figure: "Figure", panel: "Axes", left: float, top: float, height: float, name: str) -> None:
    """What the colours mean."""
    scale = add_panel(figure, left, top, PLACES.scale, height)
    figure.colorbar(panel.images[0], cax=scale)
    scale.set_title(name, fontsize=8, pad=3)
    scale.locator_params(nbins=5 if height > 0.6 else 3)
