"""A trained model as a file for the edge: SavedModel or TFLite (LiteRT). Files are written whole or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from keras_bilinear.arguments import positive_integer
from keras_bilinear.inference_graph import SIGNATURE, ImageModel, InferenceGraph, inference_graph
from keras_bilinear.litert import operators

SAVED_MODEL_ENTRIES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}


@dataclass(frozen=True)
class ExportReport:
    """What was written: the file's size in bytes, its operators in order, and how many weights it holds."""

    path: Path
    bytes: int
    layout: str
    output: str
    ops: tuple[str, ...]
    parameters: int

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.bytes:,} bytes, {self.parameters:,} parameters, {self.layout}, {self.output}; "
            f"{', '.join(self.ops)}"
        )


def export_saved_model(model: ImageModel, path: str | os.PathLike[str], output: str = "probabilities") -> None:
    """Writes a SavedModel that `tf.saved_model.load` runs without Keras and without this package.

    Its signature `serving_default` maps `image` (T, M, N) float32, any T, to `probabilities` or `logits` (T, K).
    A bilinear model keeps its factors. A SavedModel already at `path` is replaced, anything else is not.

    Args:
        model: One of the four models of this package, built.
        path: The folder to write; its parent must exist.
        output: "probabilities" or "logits".

    Raises:
        ValueError: if an argument is wrong, a weight is not finite, or `path` holds something else.
        FileNotFoundError: if the parent folder does not exist.
    """
    graph = inference_graph(model, "factored", output, input_scale=None)
    target = checked_target(path)
    if target.exists() and not is_replaceable(target):
        raise ValueError(f"Expected `path` to be free, or a SavedModel to replace. Received: path={str(path)!r}")
    module, serve = graph.traced(batch_size=None)
    with temporary_sibling(target) as new:
        tf.saved_model.save(module, str(new), signatures={SIGNATURE: serve})
        replace_folder(target, new)


def export_tflite(
    model: ImageModel,
    path: str | os.PathLike[str],
    layout: str = "factored",
    output: str = "probabilities",
    input_scale: float | None = None,
    batch_size: int | None = 1,
) -> ExportReport:
    """Writes a float32 TFLite file with builtin operators only; the same model gives the same bytes.

    Its signature `serving_default` maps `image` (batch_size, M, N) to `probabilities` or `logits`
    (batch_size, K). The runtime does not check the shape of an image: the caller must.

    Args:
        model: One of the four models of this package, built.
        path: The file to write or replace; its folder must exist.
        layout: "factored", the smallest file, or "merged", the fewest multiply-adds. Linear models have no
            factors and are always merged.
        output: "probabilities" or "logits".
        input_scale: Factor from the file's pixels to the model's, finite and > 0; 1/255 lets a model that was
            trained on 0..1 read raw 0..255. It is multiplied into the weights and costs nothing.
        batch_size: Images a call, >= 1; None for any number, which the web runtime refuses.

    Returns:
        What was written.

    Raises:
        ValueError: if an argument is wrong, or a weight is not finite.
        FileNotFoundError: if the folder does not exist.
        ImportError: if ai-edge-litert, which reads the file back, is not installed.
    """
    graph = inference_graph(model, layout, output, input_scale)
    target = checked_target(path)
    if target.is_dir():
        raise ValueError(f"Expected `path` to be a file. Received: path={str(path)!r}, a folder")
    content = tflite_content(graph, None if batch_size is None else positive_integer("batch_size", batch_size))
    report = ExportReport(Path(path), len(content), graph.layout, output, operators(content), graph.parameters)
    with temporary_sibling(target) as new:
        new.write_bytes(content)
        os.replace(new, target)
    return report


def tflite_content(graph: InferenceGraph, batch_size: int | None = 1) -> bytes:
    """What the file of a graph holds."""
    module, serve = graph.traced(batch_size)
    return tf.lite.TFLiteConverter.from_concrete_functions([serve], module).convert()


@contextlib.contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """A free path beside `target`, on the same file system; whatever is still there at the end is removed."""
    path = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def replace_folder(target: Path, new: Path) -> None:
    """Puts `new` in the place of `target`; if that fails, the old folder is back where it was."""
    with temporary_sibling(target) as old:
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise


def is_replaceable(target: Path) -> bool:
    """Whether `target` is an empty folder, or a SavedModel with nothing of the user's beside it."""
    if not target.is_dir():
        return False
    names = {entry.name for entry in target.iterdir()}
    return not names or ("saved_model.pb" in names and names <= SAVED_MODEL_ENTRIES)


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The place behind `path`, links followed, or a FileNotFoundError if it has no folder to be in."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Expected an existing folder {target.parent}. Received: path={str(path)!r}")
    return target
