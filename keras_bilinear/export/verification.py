"""Proof that a TFLite file computes what its model computes, on the real LiteRT interpreter."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_bilinear.arguments import positive
from keras_bilinear.data.arrays import checked_labels, class_indices
from keras_bilinear.export.inference_graph import OUTPUTS, SIGNATURE, ImageModel, check_batch, check_model
from keras_bilinear.export.litert import check_structure, operators, runtime, stored_weights
from keras_bilinear.export.metadata import check_span, checked_facts
from keras_bilinear.export.quantization import QUANTIZE, images_of
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.networks import computes_in_float32, float32_copy, image_shape, units


class Gates(NamedTuple):
    """What a file may differ from Keras: |differences| of probabilities, and fractions of the images.

    The mean is that of ten classes or so; where no small probabilities are averaged in, for K = 1, it is five times
    as much.
    """

    max_difference: float
    mean_difference: float
    agreement: float
    accuracy_drop: float


GATES = {
    None: Gates(5e-5, 5e-6, 0.999, 0.0005),
    "float16": Gates(1e-2, 2e-4, 0.995, 0.0005),
    "dynamic": Gates(0.4, 5e-3, 0.97, 0.003),
    "int8": Gates(0.4, 1e-2, 0.95, 0.003),
    "int16x8": Gates(0.4, 5e-3, 0.97, 0.003),
}
"""Some times what healthy files show, on MNIST and digits with alpha from 0 to 0.1; faults are off by far more."""

WEIGHT_TYPES = {
    None: {"FLOAT32"},
    "float16": {"FLOAT16"},
    "dynamic": {"INT8", "FLOAT32"},  # the converter keeps small tensors in float32
    "int8": {"INT8"},
    "int16x8": {"INT8"},
}
TIE = 1e-6
"""Scores closer than this are a tie, which rounding may break either way: counted as Keras breaks it."""
BATCH, FIRST_BATCHES = 256, (1, 5)
"""Images a call for a file with a dynamic batch, after first calls with few."""


class VerificationError(ValueError):
    """A written file does not do what its model does; the message names the gate, the figure and the limit."""


@dataclass(frozen=True)
class KernelReport:
    """One set of kernels against Keras: |differences| of the outputs, and fractions of the images, 0 to 1."""

    kernels: str
    max_difference: float
    mean_difference: float
    agreement: float
    accuracy: float | None

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return (
            f"{self.kernels} kernels: max difference {self.max_difference:.1e}, mean {self.mean_difference:.1e}, "
            f"agreement {self.agreement:.4f}{accuracy}"
        )


@dataclass(frozen=True)
class VerificationReport:
    """A file that passed every gate, under the default and the reference kernels of the interpreter."""

    path: Path
    quantize: str | None
    output: str
    images: int
    keras_accuracy: float | None
    default: KernelReport
    reference: KernelReport

    def __str__(self) -> str:
        accuracy = "" if self.keras_accuracy is None else f", accuracy in Keras {self.keras_accuracy:.4f}"
        head = f"{self.path}: {self.output} of {self.images:,} images as in Keras{accuracy}"
        return "\n  ".join([head, str(self.default), str(self.reference)])


def verify_tflite(
    path: str | os.PathLike[str],
    model: ImageModel,
    x: Any,
    y: Any = None,
    input_scale: float | None = None,
) -> VerificationReport:
    """Runs a file on the LiteRT interpreter, default and reference kernels, and compares with Keras.

    The file runs as it will on the device: at its own batch size. One with a dynamic batch runs at 1, 5 and 256.
    How it was quantised and scaled is read from its metadata.

    Args:
        path: A file written by `export_tflite`.
        model: The model it was written from.
        x: Images (T, M, N) or (T, M, N, 1) in the file's units: raw pixels if it has an input scale.
        y: Labels as in `fit`, or None to compare no accuracies.
        input_scale: Factor from these pixels to the model's, for a file that does not say.

    Returns:
        Differences, agreement and accuracies.

    Raises:
        VerificationError: if the file cannot be run, has an operator that is custom or reads a variable, another
            signature, other shapes, weights of another type than promised, or misses a gate: the largest and the
            mean |difference| (for logits, in units of the largest if that is above 1), the fraction of images with
            the same class up to ties, and the accuracy lost, up to chance. `GATES` has the limits:
            |difference| <= 5e-5 for float32.
        ValueError: if model, images, labels or scale are wrong.
        FileNotFoundError: if there is no file at `path`.
        ImportError: if ai-edge-litert is not installed.
    """
    X, labels = checked_data(model, x, y)
    if input_scale is not None:
        positive("input_scale", input_scale)
    return verified(content_of(path), Path(path), model, X, labels, input_scale)


def content_of(path: str | os.PathLike[str]) -> bytes:
    """What is in a file. A device, a pipe or a folder would never end, or not begin."""
    try:
        found = Path(path).stat()
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected `path` to be a file. Received: path={path!r}, {error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"Expected `path` to be a file. Received: path={str(path)!r}, a folder, device or pipe")
    return Path(path).read_bytes()


def checked_data(model: ImageModel, x: Any, y: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Images as the model takes them, and class numbers (T,) or None."""
    check_model(model)
    X = images_of(x, shape_of(model), "x")
    return X, None if y is None else class_labels(y, units_of(model), len(X))


def verified(
    content: bytes,
    path: Path,
    model: ImageModel,
    X: np.ndarray,
    labels: np.ndarray | None,
    input_scale: float | None = None,
) -> VerificationReport:
    """The report on what a file holds, or a VerificationError for the first thing that is wrong."""
    with blamed_on_the_file():
        facts = checked_facts(content, units_of(model))
        check_structure(content)
        output = checked_output(content, model)
        quantize, scale = facts.get("quantize"), input_scale or facts.get("input_scale", 1.0)
        check_weights(content, quantize)
        check_span(X, facts, input_scale)
    expected = keras_scores(model, X * np.float32(scale), output)
    accuracy = None if labels is None else float(np.mean(class_scores(expected, output).argmax(axis=1) == labels))
    reports = []
    for kernels in ("default", "reference"):
        with blamed_on_the_file():
            scores = file_scores(loaded(content, kernels), X)
            if scores.shape != expected.shape:
                raise VerificationError(f"Expected scores of shape {expected.shape}. Received: {scores.shape}")
        report = compared(kernels, scores, expected, output, labels)
        check_gates(report, GATES[quantize], expected, accuracy)
        reports.append(report)
    return VerificationReport(path, quantize, output, len(X), accuracy, *reports)


@contextlib.contextmanager
def blamed_on_the_file() -> Iterator[None]:
    """A VerificationError in place of what is raised within."""
    try:
        yield
    except VerificationError:
        raise
    except (ValueError, RuntimeError, IndexError, MemoryError) as error:
        # LiteRT's own messages say nothing of what was expected.
        own = (
            str(error)
            if str(error).startswith("Expected ")
            else f"Expected a file that LiteRT runs. Received: {error}"
        )
        raise VerificationError(own) from error


def checked_output(content: bytes, model: ImageModel) -> str:
    """The name of the file's output, after the checks that need no image."""
    interpreter = loaded(content, "default")
    # Before any tensor is allocated, which a custom operator would make fail with a message of its own.
    foreign = [op for op in operators(content) if op.startswith("CUSTOM") or op.endswith(("_HANDLE", "_VARIABLE"))]
    if foreign:
        raise VerificationError(f"Expected builtin operators without variables. Received: {', '.join(foreign)}")
    signatures = interpreter.get_signature_list()
    named = {name: {SIGNATURE: {"inputs": ["image"], "outputs": [name]}} for name in OUTPUTS}
    output = next((name for name, signature in named.items() if signature == signatures), None)
    if output is None:
        raise VerificationError(f"Expected a signature as one of {list(named.values())}. Received: {signatures}")
    image, scores = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    check_shapes(image, scores, shape_of(model), units_of(model))
    for tensor in (image, scores):
        scale = tensor["quantization"][0]
        if not np.issubdtype(tensor["dtype"], np.floating) and not 0 < scale < np.inf:
            raise VerificationError(f"Expected a scale > 0 for {tensor['name']!r}. Received: {scale}")
    return output


def check_shapes(image: dict[str, Any], scores: dict[str, Any], size: tuple[int, ...], K: int) -> None:
    """Raises a VerificationError unless any images of the model go in, and K scores for each come out."""
    for shape in ("shape_signature", "shape"):
        received = (*image[shape][1:], *scores[shape][1:])
        if received != (*size, K) or image[shape][0] != scores[shape][0]:
            wanted = " x ".join(map(str, size))
            raise VerificationError(
                f"Expected images of {wanted} and {K} outputs, those of the model. Received: "
                f"images {image[shape]}, outputs {scores[shape]}"
            )
    check_batch(int(image["shape"][0]), size)


def check_weights(content: bytes, quantize: str | None) -> None:
    """Raises a VerificationError unless the weights are stored as the file promises."""
    if quantize not in QUANTIZE:
        raise VerificationError(f"Expected a file quantised as one of {list(QUANTIZE)}. Received: {quantize!r}")
    found = {kind for kind, _ in stored_weights(content)} & {"FLOAT32", "FLOAT16", "INT8"}
    if not found <= WEIGHT_TYPES[quantize]:
        raise VerificationError(
            f"Expected weights stored as {' or '.join(sorted(WEIGHT_TYPES[quantize]))} in a file with "
            f"quantize={quantize!r}. Received: {', '.join(sorted(found))}"
        )


def shape_of(model: ImageModel) -> tuple[int, ...]:
    """The shape of one image."""
    return model.image_size if isinstance(model, ImageRegression) else image_shape(model)


def units_of(model: ImageModel) -> int:
    """K."""
    return model.units if isinstance(model, ImageRegression) else units(model)


def keras_scores(model: ImageModel, X: np.ndarray, output: str) -> np.ndarray:
    """What the file must return, (T, K): `predict`, or the logits under it.

    A model that computes in half precision is read in the precision of its variables, as the file is.
    """
    if not isinstance(model, ImageRegression):
        network = model if computes_in_float32(model) else float32_copy(model)
        return network.predict(X, batch_size=BATCH, verbose=0)
    if output == "probabilities" and model.compute_dtype in ("float32", "float64"):
        return model.predict(X, batch_size=BATCH, verbose=0)
    z = model.logits(ops.convert_to_tensor(X, dtype=model._solver_dtype))
    return ops.convert_to_numpy(z if output == "logits" else bm.probabilities(z))


def file_scores(interpreter: Any, X: np.ndarray) -> np.ndarray:
    """The file's output (T, K) as float32, at its own batch size; with a dynamic batch, few images first."""
    image, scores = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    to_file, from_file = quantizer(image), dequantizer(scores)
    fixed, rows, results = int(image["shape_signature"][0]), None, []
    for start, stop in batches(len(X), fixed):
        piece = to_file(X[start:stop])
        missing = max(fixed - len(piece), 0)
        if rows != len(piece) + missing:
            rows = len(piece) + missing
            interpreter.resize_tensor_input(image["index"], (rows, *piece.shape[1:]))
            interpreter.allocate_tensors()
        interpreter.set_tensor(image["index"], np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)]))
        interpreter.invoke()
        results.append(from_file(interpreter.get_tensor(scores["index"])[: len(piece)]))
    return np.concatenate(results)


def batches(T: int, fixed: int) -> Iterator[tuple[int, int]]:
    """Where the calls start and stop: `fixed` images each, or 1, 5, and then 256 where that is not positive."""
    sizes, start = iter(FIRST_BATCHES), 0
    while start < T:
        size = fixed if fixed > 0 else next(sizes, BATCH)
        yield start, min(start + size, T)
        start += size


def quantizer(tensor: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """From pixels to the whole numbers that an input tensor takes; nothing to do for one of floats."""
    (scale, zero), dtype = tensor["quantization"], tensor["dtype"]
    if np.issubdtype(dtype, np.floating):
        return lambda X: X
    limits = np.iinfo(dtype)
    return lambda X: np.clip(np.rint(X / np.float32(scale)) + zero, limits.min, limits.max).astype(dtype)


def dequantizer(tensor: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """From the whole numbers that an output tensor gives to scores."""
    scale, zero = tensor["quantization"]
    if np.issubdtype(tensor["dtype"], np.floating):
        return lambda scores: scores
    return lambda scores: (scores.astype("float32") - zero) * np.float32(scale)


def compared(
    kernels: str, scores: np.ndarray, expected: np.ndarray, output: str, labels: np.ndarray | None
) -> KernelReport:
    """The figures of one run. scores, expected (T, K); labels (T,) or None."""
    by_class = class_scores(expected, output)
    predicted, by_keras = class_scores(scores, output).argmax(axis=1), by_class.argmax(axis=1)
    lost = by_class.max(axis=1) - by_class[np.arange(len(scores)), predicted]
    agrees = lost <= TIE * largest(expected)
    difference = np.abs(scores - expected)
    return KernelReport(
        kernels,
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        agreement=float(agrees.mean()),
        accuracy=None if labels is None else float(np.mean(np.where(agrees, by_keras, predicted) == labels)),
    )


def check_gates(report: KernelReport, gates: Gates, expected: np.ndarray, keras_accuracy: float | None) -> None:
    """Raises a VerificationError for the first gate missed. `expected`: Keras' outputs (T, K)."""
    T, K = expected.shape
    size = largest(expected)
    drop = 0.0 if report.accuracy is None or keras_accuracy is None else keras_accuracy - report.accuracy
    # Images that change class do so at random, for better or worse: up to twice the deviation of their sum, and one
    # image in any case, is no evidence. The small number is for the rounding of the fractions.
    chance = max(2 * np.sqrt((1 - report.agreement) * T), 1.0) / T + 1e-9
    limits = [
        ("max |difference|", report.max_difference, "<=", gates.max_difference * size),
        ("mean |difference|", report.mean_difference, "<=", gates.mean_difference * size * (5 if K == 1 else 1)),
        ("class agreement", report.agreement, ">=", gates.agreement),
        ("accuracy drop", drop, "<=", gates.accuracy_drop + chance),
    ]
    for name, figure, relation, limit in limits:
        # Written so that NaN misses the gate.
        if not (figure <= limit if relation == "<=" else figure >= limit):
            raise VerificationError(
                f"Expected {name} {relation} {limit:.3g} against Keras under the {report.kernels} kernels. "
                f"Received: {figure:.3g}"
            )


def class_scores(scores: np.ndarray, output: str) -> np.ndarray:
    """Scores (T, K), where the threshold of a binary model stands for its class 0: (T, 2) for K = 1."""
    if scores.shape[1] > 1:
        return scores
    return np.hstack([np.full_like(scores, 0.0 if output == "logits" else 0.5), scores])


def largest(scores: np.ndarray) -> float:
    """The unit of rounding errors: the size of the largest score, 1 at least (always 1 for probabilities)."""
    return max(1.0, float(np.abs(scores).max()))


def class_labels(y: Any, K: int, T: int) -> np.ndarray:
    """Labels in any form `fit` takes, as class numbers (T,)."""
    return class_indices(checked_labels(y, K, T), K)


def loaded(content: bytes, kernels: str) -> Any:
    """An interpreter with the default (optimised) or the reference kernels."""
    litert = runtime().interpreter
    resolvers = {"default": litert.OpResolverType.BUILTIN, "reference": litert.OpResolverType.BUILTIN_REF}
    try:
        return litert.Interpreter(model_content=content, experimental_op_resolver_type=resolvers[kernels])
    except ValueError as error:
        raise VerificationError(f"Expected a TFLite file. Received: {error}") from error
