"""A fit to images that are never in memory: TFRecord shards of MNIST, repeated with random shifts, read in passes.

    python examples/scale/stream.py                               # 660,000 images, 2.07 GB as float32
    python examples/scale/stream.py --samples 60000 --epochs 20   # MNIST as it is

Prints J and the images a second of each pass, the peak of the process's resident memory above what it held before
the fit, and the certificate. What it writes, 785 bytes an image, stays in --out and is used again.
"""

import argparse
import os
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_bilinear as kb

SHARDS, BATCH = 8, 1000


def write_shards(folder: Path, samples: int) -> list[str]:
    """Records of 784 pixels and a label; after the first 60,000 images come others, shifted by up to two pixels."""
    paths = [folder / f"{samples}-{shard}.tfrecord" for shard in range(SHARDS)]
    if all(path.exists() for path in paths):
        return [str(path) for path in paths]
    import tensorflow_datasets as tfds

    x, y = tfds.as_numpy(tfds.load("mnist", split="train", batch_size=-1, as_supervised=True))
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    writers = [tf.io.TFRecordWriter(f"{path}.part") for path in paths]
    for t in range(samples):
        shift = random.integers(-2, 3, size=2) if t >= len(x) else (0, 0)
        image = np.roll(x[t % len(x), ..., 0], shift, axis=(0, 1))
        writers[t % SHARDS].write(image.tobytes() + bytes([y[t % len(x)]]))
    for writer, path in zip(writers, paths, strict=True):
        writer.close()
        Path(f"{path}.part").rename(path)
    return [str(path) for path in paths]


def batches(paths: list[str]) -> tf.data.Dataset:
    """(x, y) in batches, x as bytes; how many there are only a reading tells."""

    def parsed(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.ensure_shape(tf.io.decode_raw(records, tf.uint8), (None, 785))
        return tf.reshape(rows[:, :784], (-1, 28, 28)), tf.cast(rows[:, 784], tf.int32)

    return tf.data.TFRecordDataset(paths, num_parallel_reads=2).batch(BATCH).map(parsed).prefetch(2)


def resident() -> float:
    """Megabytes of memory that the process holds now; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Watch(keras.callbacks.Callback, threading.Thread):
    """Prints each pass, and notes the most memory that was held."""

    def __init__(self, samples: int):
        keras.callbacks.Callback.__init__(self)
        threading.Thread.__init__(self, daemon=True)
        self.samples, self.most = samples, 0.0

    def run(self) -> None:
        while True:
            self.most = max(self.most, resident())
            time.sleep(0.005)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.read = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        rate, step = self.samples / (self.read - self.began), time.perf_counter() - self.read
        J = (logs or {})["J"]
        print(f"pass {epoch + 1:2}: J {J:.6f}, {rate:8,.0f} images a second, step {step:.2f} s", flush=True)


def main() -> None:
    """Writes, fits, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=660_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, default=Path("out/scale"))
    args = parser.parse_args()
    data = batches(write_shards(args.out, args.samples))
    before, began = resident(), time.perf_counter()
    count = sum(len(y) for _, y in data)
    print(f"reading alone: {count / (time.perf_counter() - began):,.0f} images a second")
    watch = Watch(args.samples)
    watch.start()
    model = kb.BilinearSoftmaxRegression(10, args.rank, args.alpha, "sum", input_scale=1 / 255)
    model.fit(data, epochs=args.epochs, verbose=0, callbacks=[watch])
    size = args.samples * 784 * 4 / 1e6
    print(f"peak {watch.most - before:,.0f} MB above the {before:,.0f} MB before; X as float32 has {size:,.0f} MB")
    print(model.certificate(data))


if __name__ == "__main__":
    main()
