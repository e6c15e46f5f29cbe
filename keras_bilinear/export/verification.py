"""Proof that a TFLite file computes what its model computes, on the real LiteRT interpreter."""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bilinear.arguments import positive
from keras_bilinear.data.arrays import checked_labels, class_indices
from keras_bilinear.export.calibration import images_of
from keras_bilinear.export.errors import VerificationError
from keras_bilinear.export.exportable import Exportable, exportable
from keras_bilinear.export.gates import GATES, KernelReport, kernel_table
from keras_bilinear.export.inference_graph import OUTPUTS, SIGNATURE, check_batch
from keras_bilinear.export.interpreter import file_scores, loaded, outputs_of
from keras_bilinear.export.judges import SCORES, AsTheyAre, ByClass, Metric
from keras_bilinear.export.litert import check_structure, operators, stored_weights, unpacked
from keras_bilinear.export.metadata import check_span, checked_facts
from keras_bilinear.tables import Report, Table


@dataclass(frozen=True, repr=False)
class VerificationReport(Report):
    """A file that passed every gate, under the default and the reference kernels of the interpreter."""

    path: Path
    quantize: str | None
    output: str
    images: int
    keras_accuracy: float | None
    default: KernelReport
    reference: KernelReport

    def __str__(self) -> str:
        return "\n  ".join([self.summary(), str(self.default), str(self.reference)])

    def summary(self) -> str:
        """What was compared, in a line."""
        accuracy = (
            "" if self.keras_accuracy is None else f", {self.default.figure} in Keras {self.keras_accuracy:.4f}"
        )
        return f"{self.path}: {self.output} of {self.images:,} images as in Keras{accuracy}"

    def _parts(self) -> Iterator[Table | str]:
        yield self.summary()
        yield kernel_table([self.default, self.reference])


def verify_tflite(
    path: str | os.PathLike[str],
    model: keras.Model,
    x: Any,
    y: Any = None,
    input_scale: float | None = None,
    metric: Metric | None = None,
) -> VerificationReport:
    """Runs a file on the LiteRT interpreter, default and reference kernels, and compares with Keras.

    The file runs as it will on the device: at its own batch size. One with a dynamic batch runs at 1, 5 and 256.
    How it was quantised and scaled is read from its metadata. Where those carry a seal, it shows any change of the
    file, labels and range of the pixels included; files of earlier releases, and those that say nothing, have none.

    Args:
        path: A file written by `export_tflite`.
        model: The model it was written from.
        x: Images (T, M, N) or (T, M, N, 1) in the file's units: raw pixels if it has an input scale.
        y: Labels as in `fit`, or None to compare no accuracies; for a file of "scores" anything `metric` takes.
        input_scale: Factor from these pixels to the model's, for a file that does not say.
        metric: For a file of "scores", a function of y and the predictions, (T, ...) or a dict of several by their
            names, that gives a number; it must be the same in Keras and in the file, up to a fraction of it.

    Returns:
        Differences, agreement and accuracies.

    Raises:
        VerificationError: if the file is damaged, was changed since it was sealed or cannot be run, has an operator
            that is custom or reads a variable, another signature, other shapes, weights of another type than
            promised, if the images are plainly not in its units, or it misses a gate: the largest and the
            mean |difference| (for logits, in units of the largest if that is above 1; in whole numbers one image in
            500 is spared the former), the fraction of images with
            the same class up to ties, and the accuracy lost, up to chance; for "scores" the differences, in units
            of the largest of each output, and the metric. `GATES` has the limits: |difference| <= 5e-5 for float32.
        ValueError: if model, images, labels or scale are wrong.
        FileNotFoundError: if there is no file at `path`.
        ImportError: if ai-edge-litert is not installed.
    """
    source = exportable(model, kind_of(path))
    if metric is not None:
        expect_metric(metric, source)
    X, truth = checked_data(source, x, y, metric)
    if input_scale is not None:
        positive("input_scale", input_scale)
    return verified(content_of(path), Path(path), source, X, truth, input_scale)


def kind_of(path: str | os.PathLike[str]) -> str:
    """What the signature of a file promises: "scores" of any kind, or classes, as of one that cannot be read."""
    with contextlib.suppress(ValueError, OSError):
        signatures = unpacked(content_of(path)).signatureDefs or []
        names = [place.name for each in signatures for place in each.outputs or []]
        return SCORES if names and names not in [[name.encode()] for name in OUTPUTS] else OUTPUTS[0]
    return OUTPUTS[0]


def expect_metric(metric: Any, model: Exportable) -> None:
    """Raises a ValueError unless it can be called, and the file has scores that no accuracy is of."""
    if not callable(metric) or model.outputs is None:
        raise ValueError(f'Expected `metric` to be a function, for output="scores". Received: metric={metric!r}')


def content_of(path: str | os.PathLike[str]) -> bytes:
    """What is in a file. A device, a pipe or a folder would never end, or not begin."""
    try:
        found = Path(path).stat()
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `path` to be a file. Received: path={path!r}, {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"Expected `path` to be a file. Received: path={str(path)!r}, a folder, device or pipe")
    return Path(path).read_bytes()


def checked_data(model: Exportable, x: Any, y: Any = None, metric: Metric | None = None) -> tuple[np.ndarray, Any]:
    """Images as the model takes them, and class numbers (T,) from labels in any form `fit` takes, or None.

    For scores of any kind, y and the metric.
    """
    X, K = images_of(x, model.image_shape, "x"), model.units
    if model.outputs is not None:
        return X, (y, metric)
    return X, None if y is None else class_indices(checked_labels(y, K, len(X)), K)


def verified(
    content: bytes,
    path: Path,
    model: Exportable,
    X: np.ndarray,
    truth: Any,
    input_scale: float | None = None,
) -> VerificationReport:
    """The report on what a file holds, or a VerificationError for the first thing that is wrong.

    `truth`: as `checked_data` gives it.
    """
    with blamed_on_the_file():
        facts = checked_facts(content, model.units)
        check_structure(content)
        output = checked_output(content, model)
        quantize, scale = facts.get("quantize"), input_scale or facts.get("input_scale", 1.0)
        check_weights(content, quantize)
        check_span(X, facts, input_scale)
    expected = model.keras_scores(X * np.float32(scale), output)
    judge = ByClass(output, truth) if model.outputs is None else AsTheyAre(model.outputs, *truth)
    reports = []
    for kernels in ("default", "reference"):
        with blamed_on_the_file():
            scores = file_scores(loaded(content, kernels), X, model.outputs or ())
            if scores.shape != expected.shape:
                raise VerificationError(f"Expected scores of shape {expected.shape}. Received: {scores.shape}")
        report = judge.report(kernels, scores, expected)
        judge.check(report, GATES[quantize], expected)
        reports.append(report)
    return VerificationReport(path, quantize, output, len(X), judge.figure(expected), *reports)


@contextlib.contextmanager
def blamed_on_the_file() -> Iterator[None]:
    """A VerificationError in place of what is raised within."""
    try:
        yield
    except VerificationError:
        raise
    except (ValueError, RuntimeError, IndexError, MemoryError) as error:
        # LiteRT's own messages say nothing of what was expected.
        is_own = str(error).startswith("Expected ")
        message = str(error) if is_own else f"Expected a file that LiteRT runs. Received: {error}"
        raise VerificationError(message) from error


def checked_output(content: bytes, model: Exportable) -> str:
    """The name of the file's output, or "scores", after the checks that need no image."""
    interpreter = loaded(content, "default")
    # Before any tensor is allocated, which a custom operator would make fail with a message of its own.
    foreign = [op for op in operators(content) if op.startswith("CUSTOM") or op.endswith(("_HANDLE", "_VARIABLE"))]
    if foreign:
        raise VerificationError(f"Expected builtin operators without variables. Received: {', '.join(foreign)}")
    signatures = interpreter.get_signature_list()
    named = {name: {SIGNATURE: {"inputs": ["image"], "outputs": [name]}} for name in OUTPUTS}
    if model.outputs is not None:
        named = {SCORES: {SIGNATURE: {"inputs": ["image"], "outputs": sorted(model.outputs)}}}
    in_order = {key: {**each, "outputs": sorted(each["outputs"])} for key, each in signatures.items()}
    output = next((name for name, signature in named.items() if signature == in_order), None)
    if output is None:
        raise VerificationError(f"Expected a signature as one of {list(named.values())}. Received: {signatures}")
    image, given = interpreter.get_input_details()[0], outputs_of(interpreter, model.outputs or ())
    shapes = [(model.units,)] if model.outputs is None else list(model.outputs.values())
    for scores, shape in zip(given, shapes, strict=True):
        check_shapes(image, scores, model.image_shape, shape)
    for tensor in (image, *given):
        scale = tensor["quantization"][0]
        if not np.issubdtype(tensor["dtype"], np.floating) and not 0 < scale < np.inf:
            raise VerificationError(f"Expected a scale > 0 for {tensor['name']!r}. Received: {scale}")
    return output


def check_shapes(
    image: dict[str, Any], scores: dict[str, Any], size: tuple[int, ...], given: tuple[int, ...]
) -> None:
    """Raises a VerificationError unless any images of the model go in, and its scores for each come out."""
    for shape in ("shape_signature", "shape"):
        received = (*image[shape][1:], *scores[shape][1:])
        if received != (*size, *given) or image[shape][0] != scores[shape][0]:
            wanted, scores_wanted = (" x ".join(map(str, part)) for part in (size, given))
            raise VerificationError(
                f"Expected images of {wanted} and {scores_wanted} outputs, those of the model. Received: "
                f"images {image[shape]}, outputs {scores[shape]}"
            )
    check_batch(int(image["shape"][0]), size)


def check_weights(content: bytes, quantize: str | None) -> None:
    """Raises a VerificationError unless the weights are stored as the file promises."""
    found = {kind for kind, _ in stored_weights(content)} & {"FLOAT32", "FLOAT16", "INT8"}
    if not found <= set(GATES[quantize].weights):
        raise VerificationError(
            f"Expected weights stored as {' or '.join(GATES[quantize].weights)} in a file with "
            f"quantize={quantize!r}. Received: {', '.join(sorted(found))}"
        )
