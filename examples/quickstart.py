"""Three ways to read a digit: a linear model, a bilinear classifier, and a small network of bilinear maps.

Trains all three on the same images, writes each as an int8 file for a device, runs these files, and says which
reads best and which is smallest.

    python examples/quickstart.py                       # real scans as a camera sees them; no download
    python examples/quickstart.py --dataset mnist       # or fashion_mnist, by tensorflow-datasets

Needs: pip install -e ".[examples]"
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from keras_bilinear_export.quiet import quiet_stderr

print("Importing TensorFlow ...", flush=True)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with quiet_stderr(unless=lambda error: False):  # its notes would bury the results
    import keras
    import numpy as np
    from camera_digits import camera_digits

    import keras_bilinear as kb
    from keras_bilinear.export.quiet import without_notes

LABELS = [str(digit) for digit in range(10)]
Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Row(NamedTuple):
    """What one model has to show."""

    name: str
    report: kb.ExportReport
    keras_accuracy: float
    file_accuracy: float


def parsed_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Linear, bilinear, a network of bilinear maps: train, export, verify."
    )
    parser.add_argument("--dataset", choices=["camera", "mnist", "fashion_mnist"], default="camera")
    parser.add_argument("--rank", type=int, default=3, help="L of the bilinear classifier (3)")
    parser.add_argument(
        "--alpha", type=float, default=1e-3, help="weight of the penalty of both classifiers (0.001)"
    )
    parser.add_argument(
        "--epochs", type=int, default=30, help="of the network; the classifiers' sweeps at most (30)"
    )
    parser.add_argument("--samples", type=int, help="training images at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/quickstart"), help="folder for the files written")
    args = parser.parse_args()
    if args.samples is not None and args.samples < 100:
        parser.error(f"Expected --samples >= 100. Received: {args.samples}")
    return args


def load(args: argparse.Namespace) -> Data:
    """Training and test images (T, 28, 28) in [0, 1] with their classes: x, y, x_test, y_test."""
    x, y, x_test, y_test = camera_digits(seed=args.seed) if args.dataset == "camera" else downloaded(args.dataset)
    return x[: args.samples], y[: args.samples], x_test, y_test


def downloaded(name: str) -> Data:
    """A data set of tensorflow-datasets, which downloads it unless it is there already."""
    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder(name)
        if not builder.data_path.exists():
            print(
                f"Downloading {name} into {builder.data_dir}; without a network, stop it and use --dataset camera"
            )
        builder.download_and_prepare()
        (x, y), (x_test, y_test) = tfds.as_numpy(
            builder.as_dataset(["train", "test"], batch_size=-1, as_supervised=True)
        )
    except Exception as error:  # its own errors, and those of requests and TensorFlow, under many names
        where = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
        sys.exit(
            f"Expected tensorflow-datasets to find {name} in {where}, the folder of TFDS_DATA_DIR, or to download "
            f"it there. Received: {type(error).__name__}: {error}\nWithout a network, use --dataset camera."
        )
    return x[..., 0] / np.float32(255), y, x_test[..., 0] / np.float32(255), y_test


def network_of(x: np.ndarray, epochs: int) -> keras.Model:
    """A map from 28 x 28 to 12 x 12, and a linear classifier of what comes out."""
    network = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            kb.BilinearMap(12, 12, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(5e-3, epochs * -(-len(x) // 64))
    network.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


def train(name: str, model: keras.Model, data: Data, epochs: int) -> keras.callbacks.History:
    """Fits the classifiers by the exact solver until a sweep brings next to nothing, the network by Adam."""
    x, y, *test = data
    print(f"\nTraining {name} on {len(x):,} images", flush=True)
    if isinstance(model, keras.Sequential):
        return model.fit(x, y, epochs=epochs, batch_size=64, verbose=0, callbacks=[Line()])
    stop = kb.callbacks.BlockConvergence(rtol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kb.callbacks.ConvergenceWarning)  # the reason below says the same
        history = model.fit(x, y, epochs=epochs, verbose=2, validation_data=tuple(test), callbacks=[stop])
    print(f"  {stop.reason}")
    return history


class Line(keras.callbacks.Callback):
    """A line for every fifth epoch, and for the last."""

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        logs, epochs = logs or {}, self.params["epochs"]
        if (epoch + 1) % 5 == 0 or epoch + 1 == epochs:
            seconds, told = time.perf_counter() - self.began, (f"{name}: {logs[name]:.4f}" for name in logs)
            print(" - ".join([f"{epoch + 1}/{epochs}", f"{seconds:.0f}s", *told]), flush=True)


def exported(name: str, model: keras.Model, data: Data, path: Path) -> Row:
    """Writes the model for a device and runs the file on all test images."""
    x, _, x_test, y_test = data
    report = kb.export_tflite(model, path, quantize="int8", representative_data=x[:256], labels=LABELS)
    proof = kb.verify_tflite(path, model, x_test, y_test)
    assert proof.keras_accuracy is not None
    assert proof.default.accuracy is not None  # for there are labels
    return Row(name, report, proof.keras_accuracy, proof.default.accuracy)


def tell(rows: list[Row]) -> None:
    """The table, and what it comes to."""
    print(f"\n{'':<26}{'numbers':>9}{'file, bytes':>13}{'right in Keras':>16}{'right in the file':>19}")
    for row in rows:
        print(
            f"{row.name:<26}{row.report.parameters:>9,}{row.report.bytes:>13,}{row.keras_accuracy:>16.1%}"
            f"{row.file_accuracy:>19.1%}"
        )
    linear, small, network = rows
    share = small.report.parameters / linear.report.parameters
    print(
        f"\nThe network reads {network.file_accuracy:.1%} of images it has never seen, with a file of "
        f"{network.report.bytes:,} bytes;\n"
        f"the linear model {linear.file_accuracy:.1%}, with {linear.report.bytes:,}. The bilinear classifier reads "
        f"{small.file_accuracy:.1%} with {share:.0%} of the linear model's numbers."
    )


def main(args: argparse.Namespace) -> None:
    """Trains the three models and writes what the module's docstring promises."""
    began = time.perf_counter()
    keras.utils.set_random_seed(args.seed)
    data = load(args)
    models = {
        "linear model": kb.LinearSoftmaxRegression(10, args.alpha),
        f"bilinear, rank {args.rank}": kb.BilinearSoftmaxRegression(10, args.rank, args.alpha, seed=args.seed),
        "network of bilinear maps": network_of(data[0], args.epochs),
    }
    histories = [train(name, model, data, args.epochs) for name, model in models.items()]
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [args.out / f"{name}.tflite" for name in ("linear", "bilinear", "network")]
    print("\nWriting int8 files and running them on LiteRT ...", flush=True)
    rows = [exported(name, model, data, path) for (name, model), path in zip(models.items(), paths, strict=True)]
    tell(rows)
    linear, bilinear, _ = models.values()
    pictures = [args.out / "convergence.png", args.out / "filters.png"]
    kb.plots.plot_convergence(histories[1], pictures[0])
    kb.plots.plot_filters([bilinear, linear], pictures[1])
    print("\nWritten:", *paths, *pictures, sep="\n  ")
    print(f"{time.perf_counter() - began:.0f} seconds, after the import")


if __name__ == "__main__":
    options = parsed_arguments()
    with without_notes():
        main(options)
