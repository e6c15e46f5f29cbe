"""Tables of what run.py and questions.py have measured, as Markdown.

python examples/paper/page.py --out out/paper       # writes out/paper/tables.md
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from draw import MODELS, accuracies, names
from published import FIGURES
from run import done, write
from scipy import stats


def cell_text(cell: dict[str, Any]) -> str:
    """Our mean and interval, and the figure of the paper."""
    spread = "" if cell["interval"] is None else f" ± {cell['interval']:.2f}"
    ours = f"{cell['mean']:.2f}{spread}"
    return f"{ours} / {'-' if cell['paper'] is None else format(cell['paper'], '.2f')}"


def figure_table(figure: int, cells: list[dict[str, Any]]) -> list[str]:
    """A row for each T."""
    by_place = {(cell["T"], cell["model"]): cell for cell in cells if cell["figure"] == figure}
    sizes = sorted({T for T, _ in by_place})
    lines = ["| T | " + " | ".join(names(figure)) + " |", "|---|" + "---|" * len(MODELS)]
    return lines + [f"| {T:,} | " + " | ".join(cell_text(by_place[T, m]) for m in MODELS) + " |" for T in sizes]


def verdict(cells: list[dict[str, Any]]) -> list[str]:
    """How our accuracies stand to the paper's."""
    known = [cell for cell in cells if cell["paper"] is not None]
    below = [c for c in known if c["deviation"] is not None and c["paper"] > c["mean"] + 2 * c["deviation"]]
    ahead = np.mean([cell["mean"] - cell["paper"] for cell in known])
    lines = [
        f"{len(known) - len(below)} of {len(known)} of the paper's figures are at most our mean + 2 standard "
        f"deviations over the splits. On average over them we are {ahead:+.2f} points from the paper."
    ]
    return lines + [
        f"- Figure {c['figure']}, T = {c['T']:,}, {c['model']}: {c['paper']:.2f} in the paper, "
        f"{c['mean']:.2f} (deviation {c['deviation']:.2f}) here"
        for c in below
    ]


def paired(results: list[dict[str, Any]], figure: int, T: int, model: str, other: str) -> str:
    """The difference of two models on the same splits, in points, with its 95 % interval."""
    difference = 100 * np.subtract(accuracies(results, figure, T, model), accuracies(results, figure, T, other))
    return interval(difference)


def interval(values: np.ndarray) -> str:
    """mean ± half the 95 % interval."""
    n = len(values)
    if n < 2:
        return f"{np.mean(values):+.2f}"
    half = stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return f"{np.mean(values):+.2f} ± {half:.2f}"


def against_linear(results: list[dict[str, Any]]) -> list[str]:
    """What each rank gains or loses against the linear model on the same splits."""
    lines = []
    for figure in FIGURES:
        sizes = sorted({row["T"] for row in results if row["figure"] == figure})
        lines += [
            "",
            f"Figure {figure}:",
            "",
            "| T | " + " | ".join(names(figure)[1:]) + " |",
            "|---|---|---|---|---|",
        ]
        for T in sizes:
            lines.append(
                f"| {T:,} | " + " | ".join(paired(results, figure, T, m, "linear") for m in MODELS[1:]) + " |"
            )
    return lines


def question_tables(path: Path) -> list[str]:
    """A table for each question: settings in rows, means and deviations over the seeds."""
    if not path.exists():
        return []
    found: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["question"]][row["setting"]][row["figure"]].append(float(row["value"]))
    lines = []
    for question, settings in found.items():
        figures = list(next(iter(settings.values())))
        lines += ["", f"## {question}", "", "| | " + " | ".join(figures) + " |", "|---|" + "---|" * len(figures)]
        for setting, values in settings.items():
            lines.append(f"| {setting} | " + " | ".join(spread(name, values[name]) for name in figures) + " |")
    return lines


def spread(figure: str, values: list[float]) -> str:
    """Mean and range of a figure over the seeds, in its own units."""
    scale, digits = {"accuracy": (100, 2), "J": (1, 5)}.get(figure, (1, 0))
    low, mean, high = (
        format(scale * value, f",.{digits}f") for value in (min(values), np.mean(values), max(values))
    )
    return mean if low == high else f"{mean} ({low} to {high}, {len(values)} seeds)"


def main() -> None:
    """Writes the tables of everything that has been measured."""
    parser = argparse.ArgumentParser(description="Tables of the paper's figures.")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    args = parser.parse_args()
    results = done(args.out / "results.csv")
    cells = json.loads((args.out / "results.json").read_text(encoding="utf-8"))["cells"]
    lines = [
        "# Tables",
        "",
        "Test accuracy in per cent: our mean ± 95 % interval / the paper.",
        "",
        *verdict(cells),
    ]
    for figure in sorted({cell["figure"] for cell in cells}):
        lines += ["", f"## Figure {figure}", "", *figure_table(figure, cells)]
    lines += ["", "## Points gained on the linear model, on the same splits", *against_linear(results)]
    lines += question_tables(args.out / "questions.csv")
    write(args.out / "tables.md", "\n".join(lines) + "\n")
    print(f"Written: {args.out / 'tables.md'}")


if __name__ == "__main__":
    main()
