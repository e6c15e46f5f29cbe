"""The table of training times in `training.md`, as `benchmark_training.py --table` writes it from its own runs."""

import os
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmark_peers import Problem, Run

START, END = (
    "<!-- times: python examples/benchmark_training.py --table examples/training.md -->",
    "<!-- times end -->",
)
NAMES = {
    "ours": "`BlockLineSearch()`, the default",
    "ours, compiled with XLA": "the same with `jit_compile=True`",
    "the paper's (ours, factor by factor)": "the paper's schedule and gradient descent, on our features",
    "SciPy L-BFGS-B, all factors": "SciPy L-BFGS-B on all factors",
    "Keras Adam, all factors": "Keras Adam on all factors",
    "scikit-learn LSR, lbfgs": "scikit-learn's linear model, lbfgs: whole fit",
    "scikit-learn LSR, newton-cg": "the same, newton-cg: whole fit",
}
"""The solvers of the table, by what the benchmark calls them."""


class Column:
    """What was measured on one problem: every solver's runs, and the least J known."""

    def __init__(self, problem: "Problem", runs: dict[str, list["Run"]], star: float, budget: float):
        self.problem, self.runs, self.star, self.budget = problem, runs, star, budget

    def seconds(self, name: str, factor: float) -> float:
        """The median time to `factor` J*; of a linear model, of its whole fit."""
        whole = "LSR" in name
        return median(run.seconds[-1] if whole else run.time_to(factor * self.star) for run in self.runs[name])

    def accuracy(self, name: str, test: tuple[np.ndarray, np.ndarray]) -> float:
        """The share of test images that the first of its runs got right."""
        (x, y), W = test, self.runs[name][0].W
        assert W is not None, f"{name} has no weights"
        return float(np.mean(np.argmax(np.tensordot(x, W, ((1, 2), (1, 2))), 1) == y))

    def cells(self, name: str, test: tuple[np.ndarray, np.ndarray]) -> list[str]:
        """Its cells in the line of a solver."""
        near, nearer = (in_words(self.seconds(name, factor), self.budget) for factor in (1.01, 1.001))
        return [near, "" if "LSR" in name else nearer, f"{100 * self.accuracy(name, test):.1f} %"]

    def ratio(self, factor: float) -> float:
        """Our time to `factor` J* as a multiple of newton-cg's whole fit."""
        return self.seconds("ours", factor) / self.seconds("scikit-learn LSR, newton-cg", factor)

    def searches(self) -> float:
        """Our line searches to 1.001 J*, in the median; infinite where we do not get there."""
        return median(run.searches_to(1.001 * self.star) for run in self.runs["ours"])

    def __str__(self) -> str:
        x, _, rank, penalty, alpha = self.problem
        return f"{len(x):,} images, L = {rank}, {penalty} penalty, alpha = {alpha:g}, J* = {self.star:.5g}"


def in_words(seconds: float, budget: float) -> str:
    """A time with two digits, or that there was none within the budget."""
    return f"{seconds:.2g} s" if np.isfinite(seconds) else f"> {budget:g} s"


def table(columns: list[Column], test: tuple[np.ndarray, np.ndarray], repeats: int) -> str:
    """The table in Markdown, and what it says of newton-cg."""
    said = "; ".join(str(column) for column in columns)
    counted = f"medians of {repeats} runs of our default and of scikit-learn" if repeats > 1 else "single runs"
    lines = [
        START,
        f"MNIST on {os.cpu_count()} cores, {counted}, tracing not counted. From left to right: {said}.",
        "",
        "| |" + " to 1.01 J* | to 1.001 J* | accuracy |" * len(columns),
        "|" + "---|" * (1 + 3 * len(columns)),
    ]
    for name, title in NAMES.items():
        cells = [cell for column in columns for cell in column.cells(name, test)]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    ratios = " and ".join(f"{column.ratio(1.01):.2f} / {column.ratio(1.001):.2f}" for column in columns)
    searches = " and ".join(f"{column.searches():g}" for column in columns)
    lines += [
        "",
        "Our time to 1.01 / 1.001 J* over that of newton-cg's whole fit of the linear model: "
        f"{ratios}. Line searches to 1.001 J*: {searches}.",
        END,
    ]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Puts the table in the place of the one before."""
    before = page.read_text(encoding="utf-8")
    after, count = re.subn(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: text, before, flags=re.S)
    if count != 1:
        raise SystemExit(f"Expected one table between {START} and {END} in {page}. Received: {count}")
    page.write_text(after, encoding="utf-8")
