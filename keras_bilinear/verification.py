"""Proof that a TFLite file computes what its model computes, on the real LiteRT interpreter."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.arguments import positive
from keras_bilinear.data import checked_images, checked_labels, class_indices
from keras_bilinear.inference_graph import OUTPUTS, SIGNATURE, ImageModel, check_model
from keras_bilinear.litert import operators, runtime

MAX_DIFFERENCE = 5e-5
"""Gate on |file - Keras|. Healthy float32 files stay under 2e-6; a wrong or reordered factor is off by far more."""
MIN_AGREEMENT = 0.999
MAX_ACCURACY_DROP = 0.0005
TIE = 1e-6
"""Scores closer than this are a tie, which rounding may break either way: counted as Keras breaks it."""
BATCH = 256


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
    """Runs a float32 file on the LiteRT interpreter, default and reference kernels, and compares with Keras.

    The file runs as it will on the device: at its own batch size. One with a dynamic batch runs at 1 and at 256.

    Args:
        path: A file written by `export_tflite`.
        model: The model it was written from.
        x: Images (T, M, N) or (T, M, N, 1) in the file's units: raw pixels if it has an input scale.
        y: Labels as in `fit`, or None to compare no accuracies.
        input_scale: What the file was exported with; Keras sees `x * input_scale`.

    Returns:
        Differences, agreement and accuracies.

    Raises:
        VerificationError: if the file cannot be run, has an operator that is custom or reads a variable, another
            signature or other shapes, or misses a gate: max |difference| <= 5e-5 (for logits, times their
            largest size if that is above 1), the same class for 99.9 % of the images up to ties, and an
            accuracy at most 0.0005 below that of Keras.
        ValueError: if model, images, labels or scale are wrong.
        FileNotFoundError: if there is no file at `path`.
        ImportError: if ai-edge-litert is not installed.
    """
    check_model(model)
    scale = 1.0 if input_scale is None else positive("input_scale", input_scale)
    X = checked_images(x, model.image_size)
    labels = None if y is None else class_labels(y, model.units, len(X))
    content = Path(path).read_bytes()
    output = checked_output(content, model)
    expected = keras_scores(model, X * np.float32(scale), output)
    accuracy = None if labels is None else float(np.mean(class_scores(expected, output).argmax(axis=1) == labels))
    reports = []
    for kernels in ("default", "reference"):
        report = compared(kernels, file_scores(loaded(content, kernels), X), expected, output, labels)
        check_gates(report, size=largest(expected), keras_accuracy=accuracy)
        reports.append(report)
    return VerificationReport(Path(path), output, len(X), accuracy, *reports)


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
    received = (image["dtype"], *image["shape_signature"][1:], *scores["shape_signature"][1:])
    if received != (np.float32, *model.image_size, model.units):
        M, N = model.image_size
        raise VerificationError(
            f"Expected float32 images of {M} x {N} and {model.units} outputs, those of the model. Received: "
            f"{image['dtype'].__name__} images {image['shape_signature']}, outputs {scores['shape_signature']}"
        )
    return output


def keras_scores(model: ImageModel, X: np.ndarray, output: str) -> np.ndarray:
    """What the file must return, (T, K): `predict`, or the logits under it.

    A model that computes in half precision is read in the precision of its variables, as the file is.
    """
    if output == "probabilities" and model.compute_dtype in ("float32", "float64"):
        return model.predict(X, batch_size=BATCH, verbose=0)
    z = model.logits(ops.convert_to_tensor(X, dtype=model.solver_dtype))
    return ops.convert_to_numpy(z if output == "logits" else bm.probabilities(z))


def file_scores(interpreter: Any, X: np.ndarray) -> np.ndarray:
    """The file's output (T, K), at its own batch size; with a dynamic batch, one image and then the others."""
    image, scores = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    batch, T = int(image["shape_signature"][0]), len(X)
    starts = [*range(0, T, batch)] if batch > 0 else [0, *range(1, T, BATCH)]
    results = []
    for start, stop in zip(starts, [*starts[1:], T], strict=True):
        piece = X[start:stop]
        missing = max(batch - len(piece), 0)
        interpreter.resize_tensor_input(image["index"], (len(piece) + missing, *piece.shape[1:]))
        interpreter.allocate_tensors()
        interpreter.set_tensor(image["index"], np.pad(piece, ((0, missing), (0, 0), (0, 0))))
        interpreter.invoke()
        results.append(interpreter.get_tensor(scores["index"])[: len(piece)])
    return np.concatenate(results)


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


def check_gates(report: KernelReport, size: float, keras_accuracy: float | None) -> None:
    """Raises a VerificationError for the first gate missed. `size`: of the largest output, 1 at least."""
    drop = 0.0 if report.accuracy is None or keras_accuracy is None else keras_accuracy - report.accuracy
    gates = [
        ("max |difference|", report.max_difference, "<=", MAX_DIFFERENCE * size),
        ("class agreement", report.agreement, ">=", MIN_AGREEMENT),
        ("accuracy drop", drop, "<=", MAX_ACCURACY_DROP),
    ]
    for name, figure, relation, limit in gates:
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
