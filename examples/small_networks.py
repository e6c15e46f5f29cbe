"""What numbers, bytes and multiply-adds buy on MNIST: a bilinear classifier, bilinear layers in networks, others.

    python examples/small_networks.py                 # MNIST by tensorflow-datasets: two hours on two cores
    python examples/small_networks.py --quick         # a few minutes, to see that all of it runs
    python examples/small_networks.py --only map      # the networks whose name has "map" in it
    python examples/small_networks.py --data /usr/share/datasets/fashion-mnist --mirror    # the files of others

All but the first, which the exact solver fits, are trained in the same way: Adam with a cosine decay from 0.005,
batches of 256, images moved by up to one pixel, at random, and for the last epochs not. Accuracies are those of the
10,000 test images, on which nothing was chosen but this list; in int8 they are those of the file, on LiteRT and,
where tflite-micro is installed, on TensorFlow Lite Micro.

`--data` names a folder with the four files of MNIST or of a set in its form. Fashion-MNIST, whose classes look the
same in a mirror, is Debian's package dataset-fashion-mnist.

Needs: pip install -e .[examples]
"""

import argparse
import gzip
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from benchmark_inner import mnist
from keras import layers
from keras_bilinear_export import microcontroller
from matplotlib.figure import Figure

import keras_bilinear as kb

Data = tuple[np.ndarray, np.ndarray]

UNMOVED = 5
"""So many epochs, at the end, see the images as they are."""


def classes() -> list[keras.layers.Layer]:
    """A linear classifier at the end."""
    return [layers.Flatten(), layers.Dense(10, activation="softmax")]


def convolution(filters: int) -> list[keras.layers.Layer]:
    """A convolution and what makes its maps smaller."""
    return [layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D()]


LAYERS: dict[str, Callable[[], list[keras.layers.Layer]]] = {
    "BSR, rank 4": list,
    "linear": classes,
    "32 hidden units": lambda: [kb.BilinearDense(32, 1, "relu", use_bias=True), *classes()],
    "map 12 x 12": lambda: [kb.BilinearMap(12, 12, "relu"), *classes()],
    "map 14 x 14": lambda: [kb.BilinearMap(14, 14, "relu"), *classes()],
    "map 16 x 16, head": lambda: [kb.BilinearMap(16, 16, "relu"), kb.BilinearDense(10, 4, "softmax", True)],
    "map 18 x 18": lambda: [kb.BilinearMap(18, 18, "relu"), *classes()],
    "small CNN": lambda: [layers.Reshape((28, 28, 1)), *convolution(6), *convolution(8), *classes()],
}


def network_of(name: str) -> keras.Model:
    """A new one, with weights of its own."""
    inner = LAYERS[name]()
    if not inner:
        return kb.BilinearSoftmaxRegression(10, rank=4, alpha=1e-4, seed=0)
    return keras.Sequential([keras.Input((28, 28)), *inner])


class Row(NamedTuple):
    """A line of the table: means over the seeds, and how far the least and the largest accuracy are apart."""

    name: str
    numbers: int
    multiply_adds: int
    bytes: int
    accuracy: float
    int8: float
    spread: float
    micro: float


def multiply_adds(layer: keras.layers.Layer) -> int:
    """What a layer takes for an image, in the form that is exported."""
    if isinstance(layer, kb.BilinearMap):
        (M, N), P, Q = layer.matrix_shape, layer.rows, layer.columns
        return min(M * Q * (N + P), P * N * (M + Q))
    if isinstance(layer, kb.BilinearDense):
        (M, N), K, L = layer.matrix_shape, layer.units, layer.rank
        return L * K * M * (N + 1)
    if isinstance(layer, layers.Conv2D):
        return int(np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:3]))
    return int(np.prod(layer.kernel.shape)) if isinstance(layer, layers.Dense) else 0


def from_folder(folder: Path, part: str) -> Data:
    """Images of a part, "train" or "t10k", with pixels in [0, 1], and their classes, from files in MNIST's form."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), "uint8", offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), "uint8", offset=8)
    return x.astype("float32") / 255, y.astype("int32")


def moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image by -1, 0 or 1 pixel in either direction, with black in its place."""
    padded, way = np.pad(x, ((0, 0), (1, 1), (1, 1))), rng.integers(9, size=len(x))
    result = np.empty_like(x)
    for each in range(9):
        down, right = divmod(each, 3)
        result[way == each] = padded[way == each, down : down + 28, right : right + 28]
    return result


def mirrored(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image as it is or with left and right exchanged, at random."""
    return np.where(rng.integers(2, size=(len(x), 1, 1)), x, x[:, :, ::-1])


def train(network: keras.Model, data: Data, args: argparse.Namespace, seed: int) -> None:
    """Fits a network, or one of the paper's models, each in its way."""
    (x, y), epochs = data, args.epochs
    if isinstance(network, kb.BilinearSoftmaxRegression):
        network.fit(x, y, epochs=epochs, verbose=0, callbacks=[kb.callbacks.BlockConvergence(rtol=1e-4)])
        return
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * -(-len(x) // 256))
    # On a processor XLA is slower with networks this small.
    network.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(seed)
    for epoch in range(epochs):
        images = moved(x, rng) if epoch < epochs - UNMOVED else x
        images = mirrored(images, rng) if args.mirror else images
        network.fit(images, y, batch_size=256, verbose=0)


def measured(name: str, data: Data, test: Data, args: argparse.Namespace) -> Row:
    """Trains and exports one kind of network with each seed."""
    rows = []
    for seed in range(1 if name.startswith("BSR") else args.seeds):
        keras.utils.set_random_seed(seed)
        network = network_of(name)
        train(network, data, args, seed)
        path = args.out / f"{name.replace(',', '').replace(' ', '_')}-{seed}.tflite"
        report = kb.export_tflite(network, path, "int8", representative_data=data[0][:256])
        int8 = kb.verify_tflite(path, network, *test).default.accuracy or 0.0
        predicted = network.predict(test[0], batch_size=1000, verbose=0).argmax(axis=1)
        cost = sum(map(multiply_adds, network.layers))
        # Beside its weights, the state of the alternation is no number of a model.
        numbers = sum(int(np.prod(variable.shape)) for variable in network.trainable_variables)
        micro = accuracy_on_micro(path, test)
        rows.append((numbers, cost, report.bytes, float(np.mean(predicted == test[1])), int8, micro))
    numbers, cost, size, accuracy, int8, micro = np.mean(rows, axis=0)
    spread = float(np.ptp([row[4] for row in rows]))
    return Row(name, int(numbers), int(cost), int(size), accuracy, int8, spread, micro)


def accuracy_on_micro(path: Path, test: Data) -> float:
    """What TensorFlow Lite Micro gets right; NaN where it is not installed."""
    try:
        scores = microcontroller.scores(path.read_bytes(), test[0])
    except ImportError:
        return np.nan
    return float(np.mean(scores.argmax(axis=1) == test[1]))


def drawn(rows: list[Row]) -> Figure:
    """Accuracy in int8 against the size of the file, and against the work."""
    figure = Figure(figsize=(8.3, 3.6), layout="constrained")
    for panel, attribute, words in zip(
        figure.subplots(1, 2, sharey=True),
        ("bytes", "multiply_adds"),
        ("bytes of the int8 file", "multiply-adds an image"),
        strict=True,
    ):
        for row in rows:
            is_ours = "map" in row.name or "hidden" in row.name or "BSR" in row.name
            place = getattr(row, attribute), 100 * row.int8
            panel.plot(*place, "o" if is_ours else "s", color="#0072B2" if is_ours else "#D55E00")
            panel.annotate(row.name, place, (5, -10), textcoords="offset points", fontsize=8)
        panel.set(xlabel=words, xscale="log")
        panel.grid(color="0.9", which="both")
        panel.margins(x=0.25)
    figure.axes[0].set_ylabel("accuracy in int8, %")
    return figure


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Small networks on MNIST, measured.")
    parser.add_argument("--epochs", type=int, default=60, help="of every training (60)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of every network (3)")
    parser.add_argument("--samples", type=int, default=60_000, help="training images (60,000)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the four files of a set in MNIST's form")
    parser.add_argument("--mirror", action="store_true", help="left and right mean the same: exchange them, too")
    parser.add_argument("--only", default="", help="networks whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="3,000 images, 8 epochs, one seed")
    parser.add_argument("--out", type=Path, default=Path("out/small-networks"), help="folder for files")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.seeds, args.samples = 8, 1, 3000
    if min(args.epochs, args.seeds, args.samples) < 1 or not any(args.only in name for name in LAYERS):
        parser.error(f"Expected positive numbers, and --only to be in a name. Received: {vars(args)}")
    return args


def main() -> None:
    """Prints the table and writes the files and the picture."""
    args = parsed_arguments()
    if args.data is None:
        data, test = mnist(f"train[:{args.samples}]"), mnist("test")
    else:
        (x, y), test = (from_folder(args.data, part) for part in ("train", "t10k"))
        data = x[: args.samples], y[: args.samples]
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", kb.callbacks.ConvergenceWarning)
    print(f"{len(data[0]):,} images, {args.epochs} epochs, mean of {args.seeds} seeds (BSR: one)")
    heads = ("numbers", "multiply-adds", "int8 bytes", "accuracy", "in int8", "spread", "on TFLM")
    print(" " * 20 + "".join(f"{head:>14}" for head in heads))
    rows = []
    for name in LAYERS:
        if args.only in name:
            rows.append(row := measured(name, data, test, args))
            sizes = "".join(f"{size:14,}" for size in (row.numbers, row.multiply_adds, row.bytes))
            shares = "".join(f"{100 * share:14.2f}" for share in (row.accuracy, row.int8, row.spread, row.micro))
            print(f"{name:20}{sizes}{shares}", flush=True)
    picture = args.out / "small-networks.png"
    drawn(rows).savefig(picture, dpi=150)
    print(f"Written: {picture} and the files")


if __name__ == "__main__":
    main()
