"""Watches three fits in TensorBoard: all factors at once, the paper's blocks in turn, and Adam on mini-batches.

    python examples/tensorboard.py                            # handwritten digits of scikit-learn, no download
    python examples/tensorboard.py --dataset mnist            # 5,120 images, by tensorflow-datasets
    python examples/tensorboard.py --pictures                 # the pages as a headless Chromium sees them, too
    python examples/tensorboard.py --overhead 5120 60000      # what watching costs, on so many images of MNIST

Needs: pip install -e .[examples], and Chromium for pictures
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(sys.path.pop(0))  # this folder last: `tensorboard` is the package, not this file
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from benchmark_inner import mnist
from sklearn.datasets import load_digits

import keras_bilinear as kb

RUNS = {
    "joint": kb.BlockLineSearch,
    "factor": lambda: kb.BlockLineSearch(blocks="factor"),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
PAGES = {"custom_scalars&_smoothingWeight=0": "curves", "images": "pictures"}


def fit(optimizer: keras.optimizers.Optimizer, data: Any, folder: Path | None, **options: Any) -> float:
    """Fits twenty epochs, watched if there is a folder; returns the seconds they took."""
    model = kb.BilinearSoftmaxRegression(10, rank=3, alpha=1e-3, input_shape=data[0].shape[1:], seed=0)
    model.compile(optimizer)
    callbacks = [kb.callbacks.BilinearTensorBoard(folder)] if folder else []
    begin = time.perf_counter()
    model.fit(data[0], data[1], epochs=20, verbose=0, callbacks=callbacks, **options)
    return time.perf_counter() - begin


def print_overhead(samples: int) -> None:
    """Prints the time of watched fits in times of the same fits unwatched: pairs, one after the other."""
    data = mnist(f"train[:{samples}]")
    for name in RUNS if samples <= 10_000 else ("joint",):
        pairs = []
        for _ in range(9):
            with tempfile.TemporaryDirectory() as folder:
                pairs.append((fit(RUNS[name](), data, None), fit(RUNS[name](), data, Path(folder))))
        bare, watched = np.transpose(pairs[1:])  # the first one traces
        ratios = watched / bare
        print(
            f"{samples:7,} images, {name:7} {np.median(bare):6.2f} s, watched {np.median(watched):6.2f} s: ratio "
            f"{np.median(ratios):.3f} ({ratios.min():.3f} to {ratios.max():.3f})",
            flush=True,
        )


def take_pictures(logs: Path, out: Path) -> None:
    """Saves pages of a TensorBoard, served to this machine only, as Chromium shows them."""
    chromium = shutil.which("chromium") or sys.exit("Expected chromium on the PATH for --pictures. Received: none")
    options = ["--logdir", logs.name, "--host", "127.0.0.1", "--port", "0"]
    # From the folder above the logs: in this file's own folder Python would find this file again.
    command, folder = [sys.executable, "-m", "tensorboard.main", *options], logs.resolve().parent
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        try:
            for page, name in PAGES.items():
                file = out / f"tensorboard-{name}.png"
                # The page draws as its data come in: twenty seconds by its own clock, which runs as fast as it can.
                options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1500,1000"]
                options += ["--virtual-time-budget=20000", f"--screenshot={file}", f"{address}#{page}"]
                subprocess.run([chromium, *options], check=True, stderr=subprocess.DEVNULL)
                print(f"Written: {file}")
        finally:
            server.terminate()


def main() -> None:
    """Fits the three runs and says how to look at them."""
    parser = argparse.ArgumentParser(description="Fits to watch in TensorBoard.")
    parser.add_argument("--dataset", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--pictures", action="store_true", help="save the pages as pictures")
    parser.add_argument("--overhead", type=int, nargs="+", metavar="T", help="measure what watching T images costs")
    parser.add_argument("--out", type=Path, default=Path("out/tensorboard"))
    args = parser.parse_args()
    if args.overhead:
        for samples in args.overhead:
            print_overhead(samples)
        return
    if args.dataset == "mnist":
        data, held_out = mnist("train[:5120]"), mnist("test")
    else:
        x, y = load_digits().images / 16, load_digits().target
        data, held_out = (x[:1300], y[:1300]), (x[1300:], y[1300:])
    for name, optimizer in RUNS.items():
        seconds = fit(optimizer(), data, args.out / name, validation_data=held_out)
        print(f"{name}: {seconds:.1f} s")
    if args.pictures:
        take_pictures(args.out, args.out)
    print(f"Look at them with: tensorboard --logdir {args.out}")


if __name__ == "__main__":
    main()
