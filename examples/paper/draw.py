"""The figures and their summary: means over the splits with 95 % intervals, the paper's values marked."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from published import FIGURES
from scipy import stats

MODELS = ("linear", "rank 1", "rank 2", "rank 3", "rank 4")
COLOURS = ("#7f7f7f", "#fde0c5", "#f59c73", "#d8605b", "#8c2981")
"""Grey for the linear model; the ranks from light to dark, which is legible to the colour-blind and in print."""
EDGE: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}
WHISKER: dict[str, Any] = {"fmt": "none", "ecolor": "black", "elinewidth": 0.9, "capsize": 1.5}
MARK: dict[str, Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 4,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each cell, accuracies in per cent."""
    cells = []
    for figure, T, model in sorted({(row["figure"], row["T"], row["model"]) for row in results}):
        test = 100 * np.array(accuracies(results, figure, T, model))
        spread = float(test.std(ddof=1)) if len(test) > 1 else float("nan")
        half = float(stats.t.ppf(0.975, len(test) - 1)) * spread / np.sqrt(len(test)) if len(test) > 1 else spread
        cells.append(
            {
                "figure": figure,
                "T": T,
                "model": model,
                "splits": len(test),
                "mean": round(float(test.mean()), 3),
                "deviation": number(spread),
                "interval": number(half),
                "paper": published(figure, T, model),
            }
        )
    return cells


def number(value: float) -> float | None:
    """Rounded; None where one split leaves nothing to compute a spread from, for which JSON has no number."""
    return None if np.isnan(value) else round(value, 3)


def accuracies(results: list[dict[str, Any]], figure: int, T: int, model: str) -> list[float]:
    """The test accuracies of a cell in the order of the splits."""
    chosen = [row for row in results if (row["figure"], row["T"], row["model"]) == (figure, T, model)]
    return [row["test"] for row in sorted(chosen, key=lambda row: row["split"])]


def published(figure: int, T: int, model: str) -> float | None:
    """The paper's accuracy of a cell, in per cent; None where it has none."""
    values = FIGURES[figure].accuracy[model]
    return values[FIGURES[figure].sizes.index(T)] if values else None


def draw(figure: int, results: list[dict[str, Any]], out: Path, dataset: str) -> Path:
    """Bars of one figure, as the paper draws them."""
    cells = {(cell["T"], cell["model"]): cell for cell in summary(results) if cell["figure"] == figure}
    sizes = sorted({T for T, _ in cells})
    drawing = Drawing(figsize=(1.5 + 1.4 * len(sizes), 3.6))
    panel = drawing.add_subplot()
    for offset, (model, colour) in enumerate(zip(MODELS, COLOURS, strict=True)):
        row = [cells[T, model] for T in sizes]
        place = np.arange(len(sizes)) + 0.16 * (offset - 2)
        errors = [cell["interval"] or 0.0 for cell in row]
        name = names(figure)[offset]
        panel.bar(place, [cell["mean"] for cell in row], 0.15, color=colour, label=name, **EDGE)
        panel.errorbar(place, [cell["mean"] for cell in row], errors, **WHISKER)
        if dataset == "mnist":
            panel.plot(place, [cell["paper"] for cell in row], **MARK)
    if dataset == "mnist":
        panel.plot([], [], **MARK, label="the paper")
    low = min(cell["mean"] - (cell["interval"] or 0) for cell in cells.values())
    panel.set_ylim(5 * np.floor(min(low, 95) / 5) - 2.5, 100)
    panel.set_xticks(range(len(sizes)), [f"{T:,}" for T in sizes])
    digits = FIGURES[figure].classes
    title = f"{digits[0]} against {digits[1]}" if len(digits) == 2 else "ten classes"
    panel.set(xlabel="training images T", ylabel="test accuracy, %", title=f"{dataset}: {title}")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(ncols=6, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False)
    path = out / f"figure-{figure}.png"
    drawing.savefig(path, dpi=130, bbox_inches="tight")
    return path


def names(figure: int) -> list[str]:
    """What the paper calls the models."""
    linear, bilinear = ("LLR", "BLR") if len(FIGURES[figure].classes) == 2 else ("LSR", "BSR")
    return [linear, *(f"rank-{rank} {bilinear}" for rank in (1, 2, 3, 4))]
