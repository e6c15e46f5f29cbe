"""Reproduces the paper's Figures 2 to 4 on random splits of real images, cell by cell, and can be interrupted.

    python examples/paper/run.py                    # all three figures, 10 splits
    python examples/paper/run.py --figure 2         # 8 against 9
    python examples/paper/run.py --quick            # a few cells, one split
    python examples/paper/run.py --dataset fashion_mnist

Writes results.csv (a row for each model, split and T), results.json (versions, settings, a summary of every cell)
and figure-2.png ... into --out. What is there already is not computed again. Needs: pip install -e .[examples]
"""

import argparse
import csv
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import scipy
import sklearn
import tensorflow as tf
from draw import draw, summary
from protocol import ALPHAS, Images, pooled, random_split, tuned_bilinear, tuned_linear
from published import FIGURES

import keras_bilinear as kb

RANKS = (1, 2, 3, 4)
COLUMNS = ("figure", "T", "split", "model", "alpha", "validation", "test", "parameters")
QUICK = {2: (32, 512), 3: (128,), 4: (160,)}
"""Sizes of the reduced version."""


class Unit(NamedTuple):
    """What is computed at once: all models on one split."""

    figure: int
    T: int
    split: int

    @property
    def cost(self) -> int:
        """Rough, for the time left: fits of ten classes and of more images take longer."""
        return (self.T + 1500) * (10 if self.figure == 4 else 2) // 1000


def units(figures: list[int], splits: int, quick: bool) -> list[Unit]:
    """The work, split by split: an early end leaves every cell with equally many."""
    sizes = QUICK if quick else {figure: FIGURES[figure].sizes for figure in figures}
    return [Unit(f, T, s) for s in range(splits) for f in figures for T in sizes[f]]


def rows(unit: Unit, dataset: str, alphas: tuple[float, ...], cache: dict[int, Images]) -> Iterator[dict[str, Any]]:
    """The results of all models on one split; the images of one figure are kept in `cache`."""
    figure = FIGURES[unit.figure]
    if unit.figure not in cache:
        cache.clear()
        cache[unit.figure] = pooled(dataset, figure.classes)
    split = random_split(cache[unit.figure], unit.T, figure.held_out, unit.split)
    with warnings.catch_warnings():
        # The smallest alphas on separable images have no minimum to converge to; validation passes them over.
        warnings.simplefilter("ignore")
        for result in (tuned_linear(split, alphas), *tuned_bilinear(split, RANKS, alphas)):
            yield dict(zip(COLUMNS, (*unit, *result), strict=True))


def done(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier run; a unit that was cut off while it was written is left out."""
    if not path.exists():
        return []
    kinds = dict(zip(COLUMNS, (int, int, int, str, float, float, float, int), strict=True))
    with path.open(newline="") as file:
        found = [
            {name: kinds[name](row[name]) for name in COLUMNS}
            for row in csv.DictReader(file)
            if None not in row.values()
        ]
    counts = {key: sum(unit_of(row) == key for row in found) for key in set(map(unit_of, found))}
    return [row for row in found if counts[unit_of(row)] == 1 + len(RANKS)]


def unit_of(row: dict[str, Any]) -> Unit:
    """The unit that a row belongs to."""
    return Unit(row["figure"], row["T"], row["split"])


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    new = path.with_suffix(".tmp")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def table(results: list[dict[str, Any]]) -> str:
    """The results as CSV, in an order that does not depend on when they were computed."""
    ordered = sorted(results, key=lambda row: (*unit_of(row), row["model"]))
    lines = [
        ",".join(f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS) for row in ordered
    ]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def facts(args: argparse.Namespace, alphas: tuple[float, ...]) -> dict[str, Any]:
    """What one must know to get the same results again."""
    modules = (kb, tf, keras, np, scipy, sklearn)
    return {
        "dataset": args.dataset,
        "seeds": list(range(args.splits)),
        "alphas": [float(f"{alpha:.6g}") for alpha in alphas],
        "penalty": "product",
        "versions": {"python": platform.python_version()} | {m.__name__: m.__version__ for m in modules},
    }


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The paper's figures, with error bars.")
    parser.add_argument("--figure", type=int, nargs="+", choices=sorted(FIGURES), default=sorted(FIGURES))
    parser.add_argument("--splits", type=int, help="random splits (10; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="few sizes and alphas")
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    args = parser.parse_args()
    args.splits = args.splits or (1 if args.quick else 10)
    if args.splits < 1:
        parser.error(f"Expected --splits >= 1. Received: {args.splits}")
    return args


def main() -> None:
    """Computes what is missing, then draws and sums up everything there is."""
    args = parsed_arguments()
    # The same sums in the same order, whatever else the machine does.
    tf.config.experimental.enable_op_determinism()
    alphas = ALPHAS[::3] if args.quick else ALPHAS
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "results.csv"
    results = done(path)
    wanted = units(args.figure, args.splits, args.quick)
    missing = [unit for unit in wanted if unit not in set(map(unit_of, results))]
    print(f"{len(wanted):,} splits to measure, {len(wanted) - len(missing):,} of them done before", flush=True)
    progress = keras.utils.Progbar(sum(unit.cost for unit in missing), unit_name="part")
    cache: dict[int, Images] = {}
    for unit in sorted(missing, key=lambda unit: (unit.split, unit)):
        try:
            results += list(rows(unit, args.dataset, alphas, cache))
        except KeyboardInterrupt:
            sys.exit("\nInterrupted. The same command goes on from here.")
        write(path, table(results))
        progress.add(unit.cost)
    write(args.out / "results.json", json.dumps(facts(args, alphas) | {"cells": summary(results)}, indent=1) + "\n")
    pictures = [draw(figure, results, args.out, args.dataset) for figure in args.figure]
    print("\nWritten:", path, args.out / "results.json", *pictures, sep="\n  ")


if __name__ == "__main__":
    main()
