"""Running a TFLite file on LiteRT, with its default or its reference kernels."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_bilinear.export.errors import VerificationError
from keras_bilinear.export.exportable import BATCH
from keras_bilinear.export.litert import runtime
from keras_bilinear.export.quiet import without_notes

FIRST_BATCHES = (1, 5)
"""Images of the first calls of a file with a dynamic batch; after those, `BATCH`."""


def loaded(content: bytes, kernels: str) -> Any:
    """An interpreter with the default (optimised) or the reference kernels."""
    litert = runtime().interpreter
    resolvers = {"default": litert.OpResolverType.BUILTIN, "reference": litert.OpResolverType.BUILTIN_REF}
    try:
        return litert.Interpreter(model_content=content, experimental_op_resolver_type=resolvers[kernels])
    except ValueError as error:
        raise VerificationError(f"Expected a TFLite file. Received: {error}") from error


def file_scores(interpreter: Any, X: np.ndarray, names: Iterable[str] = ()) -> np.ndarray:
    """The file's output (T, K) as float32, at its own batch size; with a dynamic batch, few images first.

    `names`: of several outputs, which are laid side by side in this order.
    """
    image, given = interpreter.get_input_details()[0], outputs_of(interpreter, names)
    to_file, readers = quantizer(image), [(scores["index"], dequantizer(scores)) for scores in given]
    fixed, rows, results = int(image["shape_signature"][0]), None, []
    for start, stop in batches(len(X), fixed):
        piece = to_file(X[start:stop])
        missing = max(fixed - len(piece), 0)
        if rows != len(piece) + missing:
            rows = len(piece) + missing
            interpreter.resize_tensor_input(image["index"], (rows, *piece.shape[1:]))
            with without_notes():
                interpreter.allocate_tensors()
        interpreter.set_tensor(image["index"], np.concatenate([piece, np.repeat(piece[:1], missing, axis=0)]))
        interpreter.invoke()
        parts = [read(interpreter.get_tensor(index)[: len(piece)]) for index, read in readers]
        results.append(np.concatenate([part.reshape(len(piece), -1) for part in parts], axis=1))
    return np.concatenate(results)


def outputs_of(interpreter: Any, names: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The details of the file's outputs, in the order of their names; without any names the first."""
    given = {details["name"]: details for details in interpreter.get_output_details()}
    return [given[name] for name in names] or interpreter.get_output_details()[:1]


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
