"""What is asked for on the command line, checked. Imports nothing slow, so that `--help` is quick."""

import argparse
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

PROGRAM = "keras-bilinear-export"
VARIANTS = {"float32": None, "float16": "float16", "dynamic": "dynamic", "int8": "int8", "int16x8": "int16x8"}
"""How files store their numbers, and the `quantize` of `export_tflite` that it is."""

LAYOUTS = ("factored", "merged")
DATASETS = ("digits", "mnist", "fashion_mnist")


@dataclass(frozen=True)
class Options:
    """One call of the command. `labels_file` has become `labels`; `batch_size` None is any number."""

    model: Path
    out: Path
    data: Path | None = None
    dataset: str | None = None
    variants: tuple[str, ...] = tuple(VARIANTS)
    layouts: tuple[str, ...] = LAYOUTS
    input_scale: float | None = None
    io: str = "float32"
    output: str = "probabilities"
    labels: tuple[str, ...] | None = None
    batch_size: int | None = 1
    saved_model: bool = False
    latency_runs: int = 2000


def parsed(arguments: list[str] | None = None) -> Options:
    """The options; ends the process with exit code 2 for arguments that make no sense."""
    parser = command_line()
    given = vars(parser.parse_args(arguments))
    if given["io"] != "float32" and "int8" not in given["variants"]:
        received = " ".join(given["variants"])
        parser.error(f"Expected int8 among --variants for --io {given['io']}. Received: {received}")
    labels, labels_file, batch = (given.pop(name) for name in ("labels", "labels_file", "batch"))
    labels = labels if labels_file is None else lines_of(labels_file)
    return Options(
        **given | {name: tuple(dict.fromkeys(given[name])) for name in ("variants", "layouts")},
        labels=None if labels is None else tuple(labels),
        batch_size=None if batch == "dynamic" else 1,
    )


def command_line() -> argparse.ArgumentParser:
    """The parser."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s model.keras (--data images.npz | --dataset NAME) --out folder [options]",
        description="Exports a trained model in every form for the edge, verifies each file on LiteRT and writes a "
        "report that compares them.",
    )
    parser.add_argument("model", type=Path, help="model saved by Keras; code in it is never run")
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument(
        "--data",
        type=Path,
        metavar="NPZ",
        help="arrays x (T, M, N) in the units of the files, y (T,) for accuracies, and x_calibration, real images "
        "that calibrate int8 and int16x8; without it up to 256 images of x do, and the others verify",
    )
    images.add_argument(
        "--dataset", choices=DATASETS, help="its training images calibrate, its test images verify; pixels 0 to 1"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="made if its parent exists")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument(
        "--input-scale",
        type=scale,
        metavar="S",
        help='factor from the pixels of the files to those of the model, a number or "1/255"',
    )
    parser.add_argument(
        "--io",
        choices=["float32", "int8", "uint8"],
        default="float32",
        help="type of the images and scores of the int8 files (float32)",
    )
    parser.add_argument("--output", choices=["probabilities", "logits"], default="probabilities")
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--labels", nargs="+", metavar="NAME", help="a name for each class, kept in the files")
    names.add_argument("--labels-file", type=Path, metavar="TXT", help="the same, one in a line")
    parser.add_argument(
        "--batch", choices=["1", "dynamic"], default="1", help="images a call; web and microcontrollers need 1"
    )
    parser.add_argument("--saved-model", action="store_true", help="write a SavedModel, too")
    parser.add_argument(
        "--latency-runs", type=whole, default=2000, metavar="N", help="timed calls of each file; 0 for none (2000)"
    )
    return parser


def scale(text: str) -> float:
    """A finite number > 0, or a fraction of two."""
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        value = 0.0
    if value <= 0.0:
        raise argparse.ArgumentTypeError(f"Expected a number > 0 or a fraction such as 1/255. Received: {text}")
    return value


def whole(text: str) -> int:
    """An integer >= 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"Expected a whole number >= 0. Received: {text}")
    return int(text)


def lines_of(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"Expected a text file in UTF-8. Received: {path}: {error.reason}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
