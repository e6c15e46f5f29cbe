"""What a pass costs in images, workers, pixels and classes: measured here, and worked out for other sizes.

    python examples/scale/cost.py                          # times this machine, and prints the table of README.md
    python examples/scale/cost.py --images 1e9 --workers 100 --size 28

A pass reads a byte a pixel, multiplies each image with 4 K filters (the present model and three steps) and sums up
3 K images of residuals: 14 K M N floating-point operations an image. Between two passes every worker finds the same
step on a sketch. Times are CPU seconds, so that other programs matter little.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.data.survey import sketch_size

BATCH, TRIALS = 1000, 3
FLOPS = 2 * (TRIALS + 1) + 2 * TRIALS
"""A pixel and class: logits of all models, and gradients of the steps."""
NETWORK = 1.25e9
"""Bytes a second between two workers."""


class Rates(NamedTuple):
    """What one core of a machine does.

    Fields:
        products: Floating-point operations a second in a pass, products of images with filters for the most part.
        parsing: Bytes a second from records to pixels.
        step: Seconds between two passes for each pixel of the sketch and class.
    """

    products: float
    parsing: float
    step: float


class Case(NamedTuple):
    """T images of size x size in K classes, on so many workers of 16 cores."""

    T: float
    workers: int
    size: int
    K: int
    L: int = 4
    cores: int = 16


CASES = [
    Case(6e4, 1, 28, 10),
    Case(6e7, 1, 28, 10),
    Case(1e9, 100, 28, 10),
    Case(1e9, 1000, 28, 10),
    Case(1e9, 100, 28, 1000),
    Case(1e9, 100, 256, 10),
    Case(1e9, 100, 4096, 10),
]
"""Those of the table in README.md."""


def cpu(run: Callable[[], object]) -> float:
    """CPU seconds of the second of two runs."""
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


def measured(size: int = 28, K: int = 10, images: int = 8000) -> Rates:
    """The rates of this machine, from fits of one and of three passes."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (images, size, size), "uint8"), random.integers(0, K, images, "int32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    model = kb.BilinearSoftmaxRegression(K, 4, 1e-4, "sum", input_scale=1 / 255)
    model.fit(data, epochs=2, verbose=0)
    passes: list[float] = []
    steps: list[float] = []
    model.fit(data, epochs=4, verbose=0, callbacks=[clock(passes, steps)])
    flops, sketch = images * FLOPS * K * size**2, min(sketch_size((size, size)), images)
    return Rates(flops / min(passes), x.nbytes / parsing(x), min(steps) / (sketch * size**2 * K))


def parsing(x: np.ndarray) -> float:
    """CPU seconds from a file of records to batches of pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/images.tfrecord"
        with tf.io.TFRecordWriter(path) as writer:
            for image in x:
                writer.write(image.tobytes())
        batches = tf.data.TFRecordDataset(path).batch(BATCH).map(lambda row: tf.io.decode_raw(row, tf.uint8))
        return cpu(lambda: sum(len(row) for row in batches))


def clock(passes: list[float], steps: list[float]) -> keras.callbacks.Callback:
    """Notes the CPU seconds of every pass, and of the step after it."""
    began = {"now": 0.0}

    def begin(epoch: int, logs: object) -> None:
        began["now"] = time.process_time()

    def read(batch: int, logs: object) -> None:
        began["read"] = time.process_time()

    def end(epoch: int, logs: object) -> None:
        passes.append(began["read"] - began["now"])
        steps.append(time.process_time() - began["read"])

    return keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=read, on_epoch_end=end)


def costs(case: Case, rates: Rates) -> dict[str, float]:
    """Seconds of a pass by what they go to, and the bytes that a worker holds."""
    T, workers, size, K, L, cores = case
    pixels, each = size**2, T / workers
    sketch, whole = sketch_size((size, size)), K * (2 * L * size) ** 2
    exchanged = 8 * (TRIALS * K * pixels + TRIALS * K + TRIALS + 1)  # float64 sums
    kept = min(whole, 2**24)
    features = min(sketch, 2048) * K * 2 * L * size
    return {
        "bytes a worker": each * pixels,
        "parse": each * pixels / rates.parsing / cores,
        "products": each * FLOPS * K * pixels / rates.products / cores,
        "exchange": (workers > 1) * (2 * exchanged / NETWORK + 1e-3 * math.log2(workers)),
        "step": rates.step * sketch * pixels * K,
        "memory": 4 * (sketch * pixels + FLOPS * K * pixels + 3 * kept + features),
    }


def row(case: Case, rates: Rates) -> str:
    """A line of the table."""
    found = costs(case, rates)
    times = [found[name] for name in ("parse", "products", "exchange", "step")]
    numbers = [found["bytes a worker"] / 1e9, *times, sum(times), found["memory"] / 1e9]
    return f"| {case.T:.0e} | {case.workers} | {case.size} | {case.K} | {' | '.join(f'{x:.2g}' for x in numbers)} |"


def main() -> None:
    """Measures, and prints the rates and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rates", type=float, nargs=3, metavar=Rates._fields, help="of another run")
    args = parser.parse_args()
    rates = Rates(*args.rates) if args.rates else Rates(*(float(f"{rate:.3g}") for rate in measured()))
    print("--rates", *(f"{rate:.3g}" for rate in rates))
    print("| T | workers | M = N | K | GB a worker | parse | products | exchange | step | pass, s | held, GB |")
    print("|---" * 11 + "|")
    for case in [Case(args.images, args.workers, args.size, args.classes)] if args.images else CASES:
        print(row(case, rates))


if __name__ == "__main__":
    main()
