"""Watches a fit become provably optimal: J and its lower bound, sweep by sweep, while the ranks grow.

    python examples/certificate.py                      # handwritten digits of scikit-learn, no download
    python examples/certificate.py --dataset mnist      # 5,120 images, by tensorflow-datasets

Needs: pip install -e .[examples]
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from benchmark_inner import mnist
from matplotlib.axes import Axes
from sklearn.datasets import load_digits

import keras_bilinear as kb
from keras_bilinear.plots.sheets import BLUE, VERMILION, WIDTH, empty_figure, saved
from keras_bilinear.stopping.certificate import Certificate


class Watch(keras.callbacks.Callback):
    """Takes a certificate after every sweep, which costs a tenth of the sweep."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        super().__init__()
        self.x, self.y, self.seen = x, y, list[Certificate]()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.seen.append(self.model.certificate(self.x, self.y))
        print(f"  sweep {epoch + 1:3}   {str(self.seen[-1]).splitlines()[0]}", flush=True)


def draw(seen: list[Certificate], path: Path) -> None:
    """J and its bound, and the ratio of every class, over the sweeps; the singular values in use at the end."""
    drawing = empty_figure(WIDTH, 2.9, layout="constrained")
    course, ratios, values = drawing.subplots(1, 3)
    draw_course(course, seen)
    draw_ratios(ratios, seen)
    draw_values(values, seen[-1])
    for panel in (course, ratios):
        panel.set_xlabel("sweep", fontsize=9)
        panel.locator_params(axis="x", integer=True)
    for panel in (course, ratios, values):
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    saved(drawing, path)


def draw_course(panel: Axes, seen: list[Certificate]) -> None:
    """J falls, the bound rises: no model has a J below it."""
    sweeps = range(1, len(seen) + 1)
    panel.plot(sweeps, [proof.objective for proof in seen], color=BLUE, label="$J$ of the fit")
    panel.plot(sweeps, [proof.lower_bound for proof in seen], color=VERMILION, linestyle="--", label="lower bound")
    panel.set_ylim(0, None)
    panel.set_title("$J$ and its lower bound", fontsize=10)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


def draw_ratios(panel: Axes, seen: list[Certificate]) -> None:
    """A line for every class, which falls to 1 as it gets its ranks."""
    sweeps = range(1, len(seen) + 1)
    panel.plot(sweeps, np.array([proof.ratios for proof in seen]), color=BLUE, linewidth=1, alpha=0.6)
    panel.axhline(1.0, color=VERMILION, linestyle="--", label="1: no rank helps")
    panel.set_title("$|G_k|_2 / \\alpha$ of each class", fontsize=10)
    panel.legend(frameon=False, fontsize=8)


def draw_values(panel: Axes, end: Certificate) -> None:
    """The singular values of each W_k, one on another: the ranks in use."""
    K, ranks = len(end.effective_ranks), int(end.effective_ranks.max())
    for rank in range(ranks):
        height, bottom = end.singular_values[:, rank], end.singular_values[:, :rank].sum(axis=1)
        shade = 1 - 0.8 * rank / ranks
        panel.bar(range(K), height, bottom=bottom, color=BLUE, alpha=shade, edgecolor="white", label=f"{rank + 1}")
    panel.set(xticks=range(K))
    panel.set_xlabel("class $k$", fontsize=9)
    panel.set_title("singular values of $W_k$", fontsize=10)
    panel.legend(
        title="rank",
        title_fontsize=8,
        fontsize=8,
        frameon=False,
        reverse=True,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=1.0,
    )


def main() -> None:
    """Fits with automatic rank and draws how it went."""
    parser = argparse.ArgumentParser(description="A fit that proves itself optimal.")
    parser.add_argument("--dataset", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--alpha", type=float, default=3e-3)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    if args.dataset == "mnist":
        x, y = mnist("train[:5120]")
    else:
        data = load_digits()
        x, y = data.images / 16, data.target
    model = kb.BilinearSoftmaxRegression(10, rank="auto", alpha=args.alpha, penalty="sum", seed=0)
    watch = Watch(x, y)
    model.fit(x, y, epochs=100, verbose=0, callbacks=[watch])
    print(f"ranks of the classes: {model.ranks().tolist()}\n{watch.seen[-1].note}")
    draw(watch.seen, args.out / "certificate.png")
    print(f"Written: {args.out / 'certificate.png'}")


if __name__ == "__main__":
    main()
