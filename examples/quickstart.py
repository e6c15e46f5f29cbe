"""Trains a bilinear classifier and its linear baseline, draws both and the fit, and exports both for the edge.

    python examples/quickstart.py                       # handwritten digits of scikit-learn, no download
    python examples/quickstart.py --dataset mnist       # or fashion_mnist, by tensorflow-datasets
    python examples/quickstart.py --pair 8 9            # two classes: logistic instead of soft-max regression

Needs: pip install -e .[examples]
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

# TensorFlow's notes on its start would bury the results.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_bilinear as kb
from keras_bilinear.plots import plot_convergence, plot_filters


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Bilinear against linear: train, draw, export, verify.")
    parser.add_argument("--dataset", choices=["digits", "mnist", "fashion_mnist"], default="digits")
    parser.add_argument("--pair", type=int, nargs=2, metavar=("A", "B"), help="only classes A (0) and B (1)")
    parser.add_argument("--rank", type=int, default=3, help="L, bilinear forms in each class (3)")
    parser.add_argument("--alpha", type=float, default=1e-3, help="weight of the penalty of both models (0.001)")
    parser.add_argument("--penalty", choices=["product", "sum", "frobenius"], default="product")
    parser.add_argument("--epochs", type=int, default=100, help="sweeps at most (100)")
    parser.add_argument("--samples", type=int, help="training images at most (digits: all, others: 5120)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/quickstart"), help="folder for the files written")
    args = parser.parse_args()
    if args.samples is not None and args.samples < 1:
        parser.error(f"Expected --samples >= 1. Received: {args.samples}")
    if args.pair and (args.pair[0] == args.pair[1] or not set(args.pair) <= set(range(10))):
        parser.error(f"Expected --pair to be two different classes from 0 to 9. Received: {args.pair}")
    return args


def load(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images in [0, 1] with their labels: x, y, x_test, y_test."""
    if args.dataset == "digits":
        data = load_digits()
        images, labels, brightest = data.images, data.target, 16
        x, x_test, y, y_test = train_test_split(images, labels, stratify=labels, random_state=args.seed)
    else:
        print(f"Loading {args.dataset} with tensorflow-datasets, which downloads it the first time")
        try:
            import tensorflow_datasets as tfds

            parts = tfds.load(args.dataset, split=["train", "test"], as_supervised=True, batch_size=-1)
        except Exception as error:  # its own errors, and those of requests and TensorFlow, under many names
            where = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
            sys.exit(
                f"Expected tensorflow-datasets to find {args.dataset} in {where}, the folder of TFDS_DATA_DIR, or "
                f"to download it there. Received: {type(error).__name__}: {error}\n"
                "Without a network, use --dataset digits."
            )
        (x, y), (x_test, y_test) = tfds.as_numpy(parts)
        x, x_test, brightest = x[..., 0], x_test[..., 0], 255
    if args.pair:
        (x, y), (x_test, y_test) = of_pair(x, y, args.pair), of_pair(x_test, y_test, args.pair)
    limit = args.samples or (None if args.dataset == "digits" else 5120)
    return x[:limit] / brightest, y[:limit], x_test / brightest, y_test


def of_pair(x: np.ndarray, y: np.ndarray, pair: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The images of two classes, labelled 0 and 1."""
    keep = np.isin(y, pair)
    return x[keep], (y[keep] == pair[1]).astype(int)


def train(
    name: str, model: keras.Model, x: np.ndarray, y: np.ndarray, test: tuple[np.ndarray, np.ndarray], epochs: int
) -> keras.callbacks.History:
    """Fits until a sweep over all blocks lowers J by less than 1e-4 of it; the test images are only watched."""
    print(f"Training {name} on {len(x):,} images")
    convergence = kb.callbacks.BlockConvergence(rtol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kb.callbacks.ConvergenceWarning)  # the reason below says the same
        history = model.fit(x, y, epochs=epochs, verbose=2, validation_data=test, callbacks=[convergence])
    print(f"  stopped after {len(history.epoch)} sweeps: {convergence.reason}")
    return history


def main() -> None:
    """Trains both models and writes what the module's docstring promises."""
    args = parsed_arguments()
    x, y, x_test, y_test = load(args)
    bilinear = {"rank": args.rank, "alpha": args.alpha, "penalty": args.penalty, "seed": args.seed}
    if args.pair:
        names = [f"BLR, rank {args.rank}", "LLR"]
        models = [kb.BilinearLogisticRegression(**bilinear), kb.LinearLogisticRegression(alpha=args.alpha)]
    else:
        names = [f"BSR, rank {args.rank}", "LSR"]
        models = [kb.BilinearSoftmaxRegression(10, **bilinear), kb.LinearSoftmaxRegression(10, alpha=args.alpha)]
    histories = [
        train(name, model, x, y, (x_test, y_test), args.epochs) for name, model in zip(names, models, strict=True)
    ]

    args.out.mkdir(parents=True, exist_ok=True)
    paths = [args.out / "bilinear.tflite", args.out / "linear.tflite"]
    reports = [kb.export_tflite(model, path) for model, path in zip(models, paths, strict=True)]
    print(f"\n{args.dataset}, {len(x_test):,} test images, alpha {args.alpha:g}, penalty {args.penalty}")
    print(f"{'model':<12}{'parameters':>12}{'test accuracy':>16}{'J':>10}{'TFLite bytes':>15}")
    for name, model, report in zip(names, models, reports, strict=True):
        accuracy, J = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"], model.objective(x, y)
        print(f"{name:<12}{report.parameters:>12,}{accuracy:>16.4f}{J:>10.5f}{report.bytes:>15,}")
    small, large = (report.bytes for report in reports)
    print(f"The bilinear file has {small / large:.0%} of the size of the linear one.\n\nChecked on LiteRT:")
    for model, path in zip(models, paths, strict=True):
        print(kb.verify_tflite(path, model, x_test, y_test))

    pictures = [args.out / "convergence.png", args.out / "filters.png"]
    plot_convergence(histories[0], pictures[0])
    titles = [f"{args.pair[1]} (red) or {args.pair[0]} (blue)"] if args.pair else None
    plot_filters(models, pictures[1], class_names=titles)
    print("\nWritten:", *paths, *pictures, sep="\n  ")


if __name__ == "__main__":
    main()
