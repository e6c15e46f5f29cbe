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
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import keras_bilinear as kb
from keras_bilinear.certificate import Certificate

BLUE, ORANGE = "#0072b2", "#d55e00"


class Watch(keras.callbacks.Callback):
    """Takes a certificate after every sweep, which costs a tenth of it."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        super().__init__()
        self.x, self.y, self.seen = x, y, list[Certificate]()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.seen.append(self.model.certificate(self.x, self.y))
        print(f"  sweep {epoch + 1:3}   {str(self.seen[-1]).splitlines()[0]}", flush=True)


def draw(seen: list[Certificate], path: Path) -> None:
    """J and its bound over the sweeps; the ratio and the singular values of each class at the end."""
    drawing = Figure(figsize=(10, 3.2), layout="constrained")
    course, ratios, values = drawing.subplots(1, 3)
    sweeps, end = range(1, len(seen) + 1), seen[-1]
    course.plot(sweeps, [proof.objective for proof in seen], color=BLUE, label="J")
    course.plot(sweeps, [proof.lower_bound for proof in seen], color=ORANGE, linestyle="--", label="lower bound")
    course.set(xlabel="sweep", title="no model has a J below the bound")
    course.legend(frameon=False)
    K = len(end.effective_ranks)
    ratios.bar(range(K), end.ratios, color=BLUE)
    ratios.axhline(1.0, color=ORANGE, linestyle="--")
    ratios.set(
        xlabel="class", xticks=range(K), ylim=(0.9, None), title="$|G_k|_2 / \\alpha$: 1 where no rank helps"
    )
    for rank in range(int(end.effective_ranks.max())):
        bottom = end.singular_values[:, :rank].sum(axis=1)
        shade = 1 - 0.8 * rank / end.effective_ranks.max()
        values.bar(
            range(K), end.singular_values[:, rank], bottom=bottom, color=BLUE, alpha=shade, edgecolor="white"
        )
    values.set(xlabel="class", xticks=range(K), title="singular values of $W_k$: the ranks in use")
    for panel in (course, ratios, values):
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=120)


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
