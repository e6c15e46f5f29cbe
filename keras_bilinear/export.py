"""A trained model as a file for the edge, SavedModel or TFLite (LiteRT), and the check of what was written.

The training graph is never converted. A float32 inference graph is rebuilt from the NumPy factors, with
constant weights, in one of three lowerings of z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k:

    factored, K >= 2    X B, times A element by element, one sum      L (M + N) K weights, L times the multiply-adds
    factored, K = 1     X B, flattened, times A                       L (M + N) weights
    merged              flattened X times W = sum_l a b^T             M N K weights, fewest multiply-adds

Symbols as in `bilinear_math`.
"""

import contextlib
import math
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.data import checked_images, checked_labels, class_indices
from keras_bilinear.layers import positive_integer
from keras_bilinear.models import BilinearRegression, LinearBaseline

ImageModel = BilinearRegression | LinearBaseline

LAYOUTS = ("factored", "merged")
OUTPUTS = ("probabilities", "logits")
SIGNATURE = "serving_default"
SAVED_MODEL_ENTRIES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}

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


# Writing ------------------------------------------------------------------------------------------------------


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
    module, serve = graph.traced(None if batch_size is None else positive_integer("batch_size", batch_size))
    content = tf.lite.TFLiteConverter.from_concrete_functions([serve], module).convert()
    report = ExportReport(Path(path), len(content), graph.layout, output, operators(content), graph.parameters)
    with temporary_sibling(target) as new:
        new.write_bytes(content)
        os.replace(new, target)
    return report


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


# The inference graph ------------------------------------------------------------------------------------------


class InferenceGraph(NamedTuple):
    """What is left of a model at inference: `scores` maps X (T, M, N) to z (T, K), all in float32."""

    scores: Callable[[Tensor], Tensor]
    image_size: tuple[int, int]
    output: str
    layout: str
    parameters: int

    def traced(self, batch_size: int | None) -> tuple[tf.Module, Any]:
        """A module and its concrete function `image` -> {output: ...}, for the converter and for saving."""

        def serve(image: Tensor) -> dict[str, Tensor]:
            z = self.scores(image)
            if self.output == "logits":
                return {"logits": z}
            return {"probabilities": tf.sigmoid(z) if z.shape[-1] == 1 else tf.nn.softmax(z)}

        image = tf.TensorSpec((batch_size, *self.image_size), tf.float32, name="image")
        module = tf.Module()
        module.serve = tf.function(serve, input_signature=[image])
        return module, module.serve.get_concrete_function()


def inference_graph(model: ImageModel, layout: str, output: str, input_scale: float | None) -> InferenceGraph:
    """The graph of a checked model, with the input scale multiplied into the weights."""
    check_model(model)
    check_choice("layout", layout, LAYOUTS)
    check_choice("output", output, OUTPUTS)
    layout = "merged" if isinstance(model, LinearBaseline) else layout
    weights = float32_weights(model, layout, checked_scale(input_scale))
    bias = None if model.head.bias is None else finite_float32(as_numpy(model.head.bias))
    if layout == "merged":
        z = merged_scores(*weights)
    else:
        z = single_score(*weights) if model.units == 1 else factored_scores(*weights)
    scores = z if bias is None else lambda X: z(X) + bias
    parameters = sum(w.size for w in weights) + (0 if bias is None else bias.size)
    return InferenceGraph(scores, model.image_size, output, layout, parameters)


def float32_weights(model: ImageModel, layout: str, input_scale: float) -> tuple[np.ndarray, ...]:
    """(A, B), or the kernel (M N, K) that W makes; the scale is in B or W. Computed in float64, rounded once."""
    if isinstance(model, LinearBaseline):
        kernel = as_numpy(model.head.kernel).astype("float64")
        return (finite_float32(kernel * input_scale),)
    A, B = (factors.astype("float64") for factors in model.factors())
    if layout == "merged":
        W = np.einsum("lmk,lnk->mnk", A, B * input_scale)
        return (finite_float32(W.reshape(-1, model.units)),)
    return finite_float32(A), finite_float32(B * input_scale)


def as_numpy(variable: Any) -> np.ndarray:
    """The value of a Keras variable, by TensorFlow: NumPy 2 deprecates the `__array__` that Keras gives it."""
    return variable.value.numpy()


def finite_float32(weights: np.ndarray) -> np.ndarray:
    """`weights` as float32, or a ValueError if NaN or infinity is among them."""
    with np.errstate(over="ignore"):  # An overflow is reported below.
        single = weights.astype("float32")
    if not np.isfinite(single).all():
        raise ValueError("Expected a model with finite float32 weights. Received: NaN or infinity among them")
    return single


def factored_scores(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, MUL, SUM. The einsums of `bilinear_math` do not convert, not even with Flex."""
    L, M, K = A.shape
    N = B.shape[1]
    rows = A.transpose(1, 0, 2).reshape(M * L, K)
    columns = B.transpose(1, 0, 2).reshape(N, L * K)

    def z(X: Tensor) -> Tensor:
        # To two axes first: a product of three by two with a dynamic batch adds SHAPE, GATHER, CONCAT and PACK.
        XB = tf.matmul(tf.reshape(X, (-1, N)), columns)
        return tf.reduce_sum(tf.reshape(XB, (-1, M * L, K)) * rows, axis=1)

    return z


def single_score(A: np.ndarray, B: np.ndarray) -> Callable[[Tensor], Tensor]:
    """FULLY_CONNECTED, RESHAPE, FULLY_CONNECTED: for K = 1 product and sum are one matrix product."""
    L, M, _ = A.shape
    N = B.shape[1]
    rows = A[:, :, 0].T.reshape(M * L, 1)
    columns = B[:, :, 0].T
    return lambda X: tf.matmul(tf.reshape(tf.matmul(tf.reshape(X, (-1, N)), columns), (-1, M * L)), rows)


def merged_scores(kernel: np.ndarray) -> Callable[[Tensor], Tensor]:
    """RESHAPE, FULLY_CONNECTED. W is merged before: inside the graph it would be rebuilt at every call."""
    return lambda X: tf.matmul(tf.reshape(X, (-1, len(kernel))), kernel)


# Checking what was written ------------------------------------------------------------------------------------


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
    scale = checked_scale(input_scale)
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
    with warnings.catch_warnings():
        # Labels of one class only are a poor training set, and the warning says so, but a fair test set.
        warnings.simplefilter("ignore", UserWarning)
        return class_indices(checked_labels(y, K, T), K)


# Reading TFLite files -----------------------------------------------------------------------------------------


def loaded(content: bytes, kernels: str) -> Any:
    """An interpreter with the default (optimised) or the reference kernels."""
    litert = runtime().interpreter
    resolvers = {"default": litert.OpResolverType.BUILTIN, "reference": litert.OpResolverType.BUILTIN_REF}
    try:
        return litert.Interpreter(model_content=content, experimental_op_resolver_type=resolvers[kernels])
    except ValueError as error:
        raise VerificationError(f"Expected a TFLite file. Received: {error}") from error


def operators(content: bytes) -> tuple[str, ...]:
    """The operators of a TFLite file in order, as the file names them; "CUSTOM:name" for one not built in."""
    schema = runtime().schema_py_generated
    file = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    # Codes up to 127 are kept in the older, 8-bit field.
    codes = [max(kind.builtinCode, kind.deprecatedBuiltinCode) for kind in file.operatorCodes]
    kinds = [
        names[code] if kind.customCode is None else f"CUSTOM:{kind.customCode.decode()}"
        for code, kind in zip(codes, file.operatorCodes, strict=True)
    ]
    return tuple(kinds[operator.opcodeIndex] for graph in file.subgraphs for operator in graph.operators)


def runtime() -> Any:
    """The package `ai_edge_litert`, an optional dependency, with the two modules used here."""
    try:
        import ai_edge_litert.interpreter
        import ai_edge_litert.schema_py_generated
    except ImportError as error:
        raise ImportError(
            'Reading TFLite files needs ai-edge-litert: pip install "keras-bilinear[export]"'
        ) from error
    return ai_edge_litert


# Checks of arguments ------------------------------------------------------------------------------------------


def check_model(model: Any) -> None:
    """Raises a ValueError unless `model` is one of the four models, with weights."""
    if not isinstance(model, BilinearRegression | LinearBaseline):
        raise ValueError(
            "Expected a model of keras_bilinear: BilinearSoftmaxRegression, BilinearLogisticRegression, "
            f"LinearSoftmaxRegression or LinearLogisticRegression. Received: a {type(model).__name__}"
        )
    model.expect_built()


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises a ValueError unless `value` is among the choices."""
    if value not in choices:
        raise ValueError(f"Expected `{name}` to be one of {list(choices)}. Received: {name}={value!r}")


def checked_scale(input_scale: Any) -> float:
    """`input_scale` as a float, 1 for None, or a ValueError that says what was received."""
    try:
        scale = 1.0 if input_scale is None else float(input_scale)
    except (TypeError, ValueError):
        scale = math.nan
    if not (math.isfinite(scale) and scale > 0.0):
        raise ValueError(f"Expected `input_scale` to be a finite number > 0. Received: input_scale={input_scale!r}")
    return scale


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The place behind `path`, links followed, or a FileNotFoundError if it has no folder to be in."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Expected an existing folder {target.parent}. Received: path={str(path)!r}")
    return target
