"""Draws what a rank-4 model of MNIST has learned: W_k beside the linear model's, and the factors of some digits.

    python examples/paper/pictures.py           # writes out/paper/filters.png and factors.png

Needs: pip install -e .[examples]
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from matplotlib.figure import Figure
from protocol import pooled, random_split

import keras_bilinear as kb

DIGITS = (0, 3, 8)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8c2981")


def draw_factors(model: kb.BilinearSoftmaxRegression, path: Path) -> None:
    """a_l along the rows and b_l along the columns of an image, a line for each rank, the strongest first."""
    A, B = model.factors()
    drawing = Figure(figsize=(7.2, 1.9 * len(DIGITS)))
    panels = drawing.subplots(len(DIGITS), 2, sharex=True, sharey=True)
    for row, digit in zip(panels, DIGITS, strict=True):
        for panel, side, name in ((row[0], A, "a"), (row[1], B, "b")):
            panel.axhline(0, color="grey", linewidth=0.5)
            for rank, colour in enumerate(COLOURS):
                panel.plot(side[rank, :, digit], color=colour, linewidth=1.2, label=f"${name}_{rank + 1}$")
            panel.set_title(f"digit {digit}, {'rows' if name == 'a' else 'columns'}", fontsize=8)
            panel.tick_params(labelsize=7)
            panel.legend(fontsize=6, ncols=4, frameon=False, loc="upper center")
    low, high = panels[0, 0].get_ylim()
    panels[0, 0].set_ylim(low, high + 0.25 * (high - low))  # room for the legends
    drawing.savefig(path, dpi=130, bbox_inches="tight")


def main() -> None:
    """Fits both models to one split of the paper's Figure 4."""
    parser = argparse.ArgumentParser(description="Filters and factors of a rank-4 model.")
    parser.add_argument("--samples", type=int, default=5120)
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    args = parser.parse_args()
    split = random_split(pooled("mnist", range(10)), args.samples, 10_000, seed=0)
    models = [kb.BilinearSoftmaxRegression(10, 4, alpha=1e-3, seed=0), kb.LinearSoftmaxRegression(10, alpha=1e-3)]
    for model in models:
        stop = kb.callbacks.BlockConvergence(rtol=1e-4)
        model.fit(*split.train, epochs=50, verbose=0, callbacks=[stop])
        accuracy = np.mean(model.predict(split.test.x, batch_size=1000, verbose=0).argmax(axis=1) == split.test.y)
        print(f"{model.name}: {100 * accuracy:.2f} % of {len(split.test.y):,} test images")
    models[0].canonicalize()
    args.out.mkdir(parents=True, exist_ok=True)
    kb.plots.plot_filters(models, args.out / "filters.png")
    draw_factors(models[0], args.out / "factors.png")
    print("Written:", args.out / "filters.png", args.out / "factors.png", sep="\n  ")


if __name__ == "__main__":
    main()
