"""How much memory a fit takes beyond the images that it is given, and what models leave behind that are dropped.

Each figure comes from a process of its own, in which the solver has been prepared before. The peak is that of the
process's resident memory.

    python examples/benchmark_memory.py                         # 60,000 images of MNIST, as float32 and as bytes
    python examples/benchmark_memory.py --samples 5120 --models 20
"""

import argparse
import gc
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_bilinear as kb

KINDS = ("float32", "uint8")


def resident() -> int:
    """Bytes of memory that the process holds now; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak(threading.Thread):
    """Watches the resident memory while a block runs."""

    def __enter__(self) -> "Peak":
        self.begin = self.most = resident()
        self.ends = threading.Event()
        self.start()
        return self

    def run(self) -> None:
        while not self.ends.is_set():
            self.most = max(self.most, resident())
            time.sleep(0.002)

    def __exit__(self, *_: Any) -> None:
        self.ends.set()
        self.join()


def model(kind: str) -> kb.BilinearSoftmaxRegression:
    """BSR for images of either kind."""
    scale = 1 / 255 if kind == "uint8" else 1.0
    return kb.BilinearSoftmaxRegression(10, 4, 1e-4, "sum", seed=0, input_scale=scale)


def of_a_fit(kind: str, samples: int) -> None:
    """Prints the peak above what the process held with the images, as a share of their size in float32."""
    from benchmark_inner import mnist

    x, y = mnist(f"train[:{samples}]")
    x = np.round(255 * x).astype("uint8") if kind == "uint8" else x
    model(kind).fit(x[:2048], y[:2048], epochs=2, verbose=0)  # prepares the solver
    x = x.copy()  # pages that have not been read lately need not be resident
    gc.collect()
    with Peak() as peak:
        model(kind).fit(x, y, epochs=6, verbose=0)
    above = (peak.most - peak.begin) / (4 * x.size)
    print(f"{kind:8} {len(x):,} images: peak {above:.2f} of the float32 images above the caller's own", flush=True)


def of_dropped_models(optimizer: str, models: int) -> None:
    """Prints by how much memory grows a model that is made, fitted and dropped, after the first ten."""
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 28, 28), dtype="float32"), rng.integers(0, 10, 300)

    def fitted() -> None:
        if optimizer == "plain Keras":
            made = keras.Sequential(
                [keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
            )
            made.compile("adam", "sparse_categorical_crossentropy")
        else:
            made = kb.BilinearSoftmaxRegression(10, 2, 1e-3)
            made.compile(None if optimizer == "exact" else "adam")
        made.fit(x, y, epochs=2, verbose=0)

    held = []
    for i in range(10 + models):
        fitted()
        if i >= 9:
            gc.collect()
            held.append(resident())
    growth = np.polyfit(range(len(held)), held, 1)[0]
    print(f"{optimizer:12} {models} models: {growth / 2**20:.2f} MB a model", flush=True)


def main() -> None:
    """Measures each in a fresh process."""
    parser = argparse.ArgumentParser(description="Memory of a fit and of models that are dropped.")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--models", type=int, default=100)
    options = parser.parse_args()
    fresh = multiprocessing.get_context("spawn")
    tasks: list[tuple[Any, tuple[Any, ...]]] = [(of_a_fit, (kind, options.samples)) for kind in KINDS]
    tasks += [(of_dropped_models, (name, options.models)) for name in ("exact", "mini-batches", "plain Keras")]
    for task, arguments in tasks:
        process = fresh.Process(target=task, args=arguments)
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
