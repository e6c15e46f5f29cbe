"""How a fit went, and what a path offers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_bilinear.parts.log_names import ACCURACY, HELD_OUT, INNER_ITERATIONS, LOSS, OBJECTIVE
from keras_bilinear.parts.schedule import relative_decrease
from keras_bilinear.plots.sheets import BLUE, GREEN, ORANGE, VERMILION, WIDTH, dress, empty_figure, saved
from keras_bilinear.selection.path import PathPoint, RegularizationPath

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"training": (BLUE, "-"), "validation": (VERMILION, "--")}

FEW = 60
"""Up to so many sweeps each has a dot; more would make a band of them."""


def plot_convergence(
    history: keras.callbacks.History | Mapping[str, Sequence[float]], path: str | Path | None = None
) -> "Figure":
    """Draws J, by how much every sweep lowered it, and the accuracy; on held-out images too, if any were given.

    The relative decrease of J, on a log scale, is what `callbacks.BlockConvergence` compares with its `rtol`, a
    dotted line if the fit had this callback. It begins with the second sweep, for no log holds the J before the
    first. Triangles on the axis are sweeps in which J did not fall, crosses values that are not finite.

    Args:
        history: What `fit` returned, or its logs, as read from a JSON file for example. On mini-batches the steps
            along the axis are epochs, and the dotted line is `block_rtol`, below which the next block is up.
        path: Where to save the picture; the suffix sets the format. None saves nothing.

    Raises:
        ValueError: if `history` holds no objective.
        ImportError: if matplotlib is not installed.

    Example:
        >>> plot_convergence(model.fit(x, y, epochs=30, validation_data=(x_test, y_test)), "convergence.png")
    """
    logs = checked_logs(history)
    J = np.asarray(logs[OBJECTIVE], float)
    epochs = getattr(history, "epoch", range(len(J)))
    # A History that was given to a second `fit` has logs of both, but numbers of the second alone.
    steps = 1 + np.asarray(epochs if len(epochs) == len(J) else range(len(J)))
    by_sweep = epochs_are_sweeps(history, logs)
    objective, accuracy = measured(logs, OBJECTIVE, LOSS), measured(logs, ACCURACY, ACCURACY)
    decrease = {"training": relative_decrease(np.append(np.nan, J[:-1]), J)} if len(J) > 1 else {}
    curves = {"objective $J$": objective, "relative decrease of $J$": decrease, "accuracy": accuracy}
    drawn = [(title, lines) for title, lines in curves.items() if lines]
    figure = empty_figure(WIDTH * len(drawn) / 3, 2.6, layout="constrained")
    for i, (title, lines) in enumerate(drawn):
        panel = figure.add_subplot(1, len(drawn), i + 1)
        dress(panel, title, xlabel="sweep" if by_sweep else "epoch")
        if lines is decrease:
            panel.set_yscale("log", nonpositive="mask")
            if by_sweep or INNER_ITERATIONS not in logs:
                draw_tolerance(panel, getattr(history, "params", None) or {}, "rtol" if by_sweep else "block_rtol")
        for name, values in lines.items():
            draw_course(panel, steps, values, *STYLES[name], label=name if len(lines) > 1 else None)
        room = max(0.5, 0.03 * np.ptp(steps))  # half a sweep at least: a single one has a place too
        panel.set_xlim(steps.min() - room, steps.max() + room)
        panel.locator_params(axis="x", integer=True, min_n_ticks=1)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, fontsize=8)
    return saved(figure, path)


def checked_logs(history: Any) -> Mapping[str, Sequence[float]]:
    """The logs of a History, or those given instead of one; a ValueError if they hold no objective."""
    logs = getattr(history, "history", history)
    if not isinstance(logs, Mapping) or not len(logs.get(OBJECTIVE, ())):
        raise ValueError(
            "Expected the History that `fit` of a bilinear or linear model returned, or its logs, with the key "
            f"{OBJECTIVE!r}. Received: {sorted(logs) if isinstance(logs, Mapping) else repr(history)}"
        )
    return logs


def epochs_are_sweeps(history: Any, logs: Mapping[str, Sequence[float]]) -> bool:
    """Whether the exact regime wrote the logs, one epoch a sweep unless it was told otherwise."""
    steps = (getattr(history, "params", None) or {}).get("steps")
    blocks = getattr(getattr(history, "model", None), "block_names", None)
    return INNER_ITERATIONS in logs and (steps is None or blocks is None or steps == len(blocks))


def measured(logs: Mapping[str, Sequence[float]], training: str, validation: str) -> dict[str, np.ndarray]:
    """What was measured in every sweep, of two names; with `validation_freq` nobody knows which sweeps it was."""
    curves = {"training": logs.get(training, ()), "validation": logs.get(HELD_OUT + validation, ())}
    sweeps = len(logs[OBJECTIVE])
    return {name: np.asarray(values, float) for name, values in curves.items() if len(values) == sweeps}


def draw_course(
    panel: "Axes", steps: np.ndarray, values: np.ndarray, colour: str, style: str, label: str | None
) -> None:
    """A curve, and marks on the axis for the values that have no place in it."""
    if panel.get_yscale() == "log":
        lost, mark, what = values <= 0, "v", "no decrease"
    else:
        lost, mark, what = ~np.isfinite(values), "x", "not finite"
    marker = "." if len(steps) <= FEW else ""
    panel.plot(steps, np.where(lost, np.nan, values), style, color=colour, marker=marker, label=label)
    if lost.any():
        # Heights are those of the panel, whatever its scale.
        on_axis: dict[str, Any] = {"transform": panel.get_xaxis_transform(), "clip_on": False, "zorder": 3}
        panel.plot(steps[lost], np.zeros(lost.sum()), mark, color=colour, markersize=4, label=what, **on_axis)


def draw_tolerance(panel: "Axes", params: Mapping[str, Any], name: str) -> None:
    """Below what decrease a fit with `BlockConvergence` ends, or the turn of a block; nothing for one without."""
    if params.get(name):
        panel.axhline(params[name], color="0.35", linestyle=":", label=f"{name} = {params[name]:g}")


def plot_path(path: RegularizationPath, file: str | Path | None = None) -> "Figure":
    """Draws the held-out accuracy of every fit of a path against its number of parameters.

    A line joins the best fit of each rank, with its standard error; dots are the others, the darker the smaller
    alpha. Rings mark the best fit of all and the one-standard-error choice, the smallest above the dashed line.

    Args:
        path: What `regularization_path` returned.
        file: Where to save the picture; the suffix sets the format. None saves nothing.

    Raises:
        ValueError: if `path` is no regularisation path.
        ImportError: if matplotlib is not installed.

    Example:
        >>> plot_path(regularization_path(model, x, y, alphas=[1e-3, 1e-2], ranks=[1, 2, 3]), "path.png")
    """
    if not isinstance(path, RegularizationPath):
        raise ValueError(f"Expected the path that `regularization_path` returned. Received: {type(path).__name__}")
    figure = empty_figure(WIDTH, 3.9, layout="constrained")
    panel = figure.add_subplot()
    dress(panel, f"{path.scoring} on held-out images", xlabel="parameters")
    draw_fits(panel, path.points)
    best, chosen = path.best, path.one_standard_error
    ring(panel, best, "best", ORANGE, size=10)
    ring(panel, chosen, "smallest within a standard error of it", GREEN, size=14)
    panel.axhline(best.accuracy - best.standard_error, color="0.35", linestyle="--", linewidth=0.8, zorder=1)
    panel.margins(x=0.12, y=0.08)
    panel.legend(frameon=False, fontsize=9, loc="lower right")
    return saved(figure, file)


def draw_fits(panel: "Axes", points: Sequence[PathPoint]) -> None:
    """A dot for every fit, and a line through the best one of each rank."""
    alphas = sorted({point.alpha for point in points}, reverse=True)
    shades = {alpha: str(0.75 - 0.6 * i / max(len(alphas) - 1, 1)) for i, alpha in enumerate(alphas)}
    named = {alphas[0], alphas[-1]}
    for point in sorted(points, key=lambda point: -point.alpha):
        label = f"$\\alpha$ = {point.alpha:.2g}" if point.alpha in named else None
        named.discard(point.alpha)
        panel.plot(point.parameters, point.accuracy, "o", ms=4, color=shades[point.alpha], label=label)
    bests = [
        max((point for point in points if point.rank == rank), key=lambda point: point.accuracy)
        for rank in dict.fromkeys(point.rank for point in points)
    ]
    sizes, heights = [point.parameters for point in bests], [point.accuracy for point in bests]
    panel.errorbar(sizes, heights, [point.standard_error for point in bests], color=BLUE, capsize=3)
    for point in bests:
        place = (point.parameters, point.accuracy)
        panel.annotate(f"$L$ = {point.rank}", place, (10, -13), textcoords="offset points", fontsize=9)


def ring(panel: "Axes", point: PathPoint, name: str, colour: str, size: float) -> None:
    """A ring around one fit, which the legend names."""
    label = f"{name}: $L$ = {point.rank}, $\\alpha$ = {point.alpha:.2g}"
    panel.plot(point.parameters, point.accuracy, "o", mfc="none", mew=2, ms=size, color=colour, label=label)
