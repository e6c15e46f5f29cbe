"""A trained model as a file for the edge: SavedModel or TFLite (LiteRT). Files are written whole or not at all."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import positive_integer
from keras_bilinear.atomic_files import checked_target, is_replaceable, recover, replace_folder, temporary_sibling
from keras_bilinear.export import float16, litert, metadata
from keras_bilinear.export.calibration import checked_representative_data
from keras_bilinear.export.converter import FLOAT_WEIGHTS, check_mode, tflite_content
from keras_bilinear.export.errors import ConversionError
from keras_bilinear.export.exportable import Exportable
from keras_bilinear.export.inference_graph import SIGNATURE, InferenceGraph, check_batch, inference_graph
from keras_bilinear.export.judges import Metric
from keras_bilinear.export.quiet import without_log
from keras_bilinear.export.slimming import slim
from keras_bilinear.export.verification import VerificationReport, checked_data, expect_metric, verified
from keras_bilinear.parts.replicas import is_chief
from keras_bilinear.tables import Report, Table


@dataclass(frozen=True, repr=False)
class ExportReport(Report):
    """The file that `export_tflite` has written, in numbers.

    Attributes:
        path: The file.
        bytes: Its size.
        quantize: How its weights are stored: None (float32), "float16", "dynamic", "int8" or "int16x8".
        layout: "factored" or "merged".
        output: "probabilities", "logits" or "scores".
        ops: Its operators in order.
        parameters: How many weights it holds.
        float_parameters: How many of them, biases apart, are floating-point numbers of 32 bits.
        verification: The proof that it computes what the model computes, if `validation_data` was given.
    """

    path: Path
    bytes: int
    quantize: str | None
    layout: str
    output: str
    ops: tuple[str, ...]
    parameters: int
    float_parameters: int
    verification: VerificationReport | None = None

    def __str__(self) -> str:
        text = (
            f"{self.path}: {self.bytes:,} bytes, {self.parameters:,} parameters, {self.quantize or 'float32'}, "
            f"{self.layout}, {self.output}; {', '.join(self.ops)}"
        )
        return text if self.verification is None else f"{text}\n{self.verification}"

    def _parts(self) -> Iterator[Table | str]:
        facts = (self.quantize or "float32", self.layout, self.output, ", ".join(self.ops))
        names = ("file", "bytes", "parameters", "weights", "layout", "output", "operators")
        yield Table(names, [(str(self.path), f"{self.bytes:,}", f"{self.parameters:,}", *facts)])
        if self.verification is not None:
            yield from self.verification._parts()


def export_saved_model(model: keras.Model, path: str | os.PathLike[str], output: str = "probabilities") -> None:
    """Writes a SavedModel that `tf.saved_model.load` and TF Serving run without Keras and without this package.

    Its signature `serving_default` maps `image` (T, M, N) float32, any T, to `probabilities` or `logits` (T, K).
    Bilinear layers keep their factors. A SavedModel already at `path` is replaced, anything else is not. Of several
    workers only the chief writes.

    Args:
        model: One of the four models of this package, or any functional or sequential Keras model that maps an
            image to scores; built and fitted.
        path: The folder to write; its parent must exist.
        output: "probabilities" or "logits"; of other Keras models, what their last layer gives, or "scores".

    Raises:
        ValueError: if an argument is wrong, a weight is not finite, or `path` holds something else.
        FileNotFoundError: if the parent folder does not exist.
    """
    graph = inference_graph(model, output=output)
    check_fitted(graph.model)
    target = checked_target(path)
    recover(target)
    if target.exists() and not is_replaceable(target):
        raise ValueError(f"Expected `path` to be free, or a SavedModel to replace. Received: path={str(path)!r}")
    if not is_chief(model.distribute_strategy):
        return
    module, serve = graph.traced(batch_size=None)
    with temporary_sibling(target) as new, without_log():
        tf.saved_model.save(module, str(new), signatures={SIGNATURE: serve})
        replace_folder(target, new)


def export_tflite(
    model: keras.Model,
    path: str | os.PathLike[str],
    quantize: str | None = None,
    layout: str = "factored",
    output: str = "probabilities",
    representative_data: Any = None,
    input_scale: float | None = None,
    labels: Sequence[str] | None = None,
    batch_size: int | None = 1,
    io: str = "float32",
    validation_data: tuple[Any, ...] | None = None,
    metric: Metric | None = None,
) -> ExportReport:
    """Writes a TFLite file with built-in operators only; the same model gives the same bytes.

    Of several workers only the chief writes, all others return the same report.

    Its signature `serving_default` maps `image` (batch_size, M, N) to `probabilities` or `logits`
    (batch_size, K). The runtime does not check the shape of an image: the caller must. Its metadata say, as JSON,
    what was said here: `quantize`, `input_scale`, `labels`, the range of the pixels, and a seal, a digest of all
    that is in the file. A file of which nothing is said has none.

    Args:
        model: One of the four models of this package, or any functional or sequential Keras model that maps an
            image to scores; built and fitted. What is computed in half precision is written in float32.
        path: The file to write or replace; its folder must exist.
        quantize: How weights are stored and computed with: None for float32; "float16", half the size, for weights
            whose largest is from 7.6e-06 to 65,504; "dynamic", int8 weights and float32 arithmetic; "int8" and
            "int16x8", int8 weights and whole-number arithmetic on int8 or int16 activations.
        layout: "factored", the smallest file, or "merged", the fewest multiply-adds. Linear models have no
            factors and are always merged.
        output: "probabilities" or "logits"; of other Keras models, what their last layer gives. "scores" for one
            that gives anything else, such as a regression or several labels an image, or several outputs, which
            keep their names.
        representative_data: 32 or more real images (T, M, N), in the file's units, that set the ranges of the
            activations for "int8" and "int16x8"; at most 512 of them are used. A generator of images, as TFLite's
            converter takes it, and a data set of images will do. With any other `quantize` they only tell the range
            of the pixels.
        input_scale: Factor from the file's pixels to those the weights are for, finite and > 0; 1/255 lets a model
            that was trained on 0..1 read raw 0..255. It is multiplied into the weights and costs nothing. Without
            it the `input_scale` of the model holds.
        labels: K names of the classes, or two for a binary model; written into the file's metadata.
        batch_size: Images a call, 1 to 2^28 / (M N); None for any number, which the web runtime refuses.
        io: Type of the file's images and scores: "float32"; for "int8" also "int8" or "uint8", which raw pixels
            are; for "int16x8" also "int16".
        validation_data: (x, y) or (x,), held-out images in the file's units, others are refused: the new file is
            run on them before it takes its place, and only takes it if it passes every gate of `verify_tflite`.
        metric: As in `verify_tflite`, for output="scores" with (x, y).

    Returns:
        What was written.

    Raises:
        ValueError: if an argument is wrong, images are plainly in other units, or a weight is not finite.
        ConversionError: if files of this kind cannot hold the model: weights beyond float16, loops that cannot be
            calibrated, other than built-in operators, scores in int8 that are all the same. A ValueError, too.
        VerificationError: if the file misses a gate on `validation_data`; nothing is written then.
        FileNotFoundError: if the folder does not exist.
        ImportError: if ai-edge-litert, which reads the file back, is not installed.

    Warns:
        UserWarning: if "dynamic" left weights in float32, as the converter does with less than 1,024 of them.
    """
    check_mode(quantize, io, representative_data)
    graph = inference_graph(model, layout, output, input_scale, quantized=quantize not in FLOAT_WEIGHTS)
    source = graph.model
    check_fitted(source)
    input_scale = source.scale_of_file(input_scale)
    images = checked_representative_data(representative_data, graph, input_scale)
    facts = metadata.facts_of(source.units, quantize, input_scale, images, labels)
    batch = None if batch_size is None else positive_integer("batch_size", batch_size)
    check_batch(batch or 1, source.image_shape)
    if metric is not None:
        expect_metric(metric, source)
    held_out = None if validation_data is None else checked_data(source, *x_and_y(validation_data), metric)
    target = checked_target(path)
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "a device or a pipe"
        raise ValueError(f"Expected `path` to be a file. Received: path={str(path)!r}, {kind}")
    content = sound_content(graph, batch, quantize, io, images, facts)
    proof = None if held_out is None else verified(content, Path(path), source, *held_out)
    # Biases, the tensors with one axis, are few and always precise.
    float_parameters = sum(
        math.prod(shape) for kind, shape in litert.stored_weights(content) if kind == "FLOAT32" and len(shape) > 1
    )
    report = ExportReport(
        Path(path),
        len(content),
        quantize,
        graph.layout,
        output,
        litert.operators(content),
        graph.parameters,
        float_parameters,
        proof,
    )
    if quantize not in FLOAT_WEIGHTS and float_parameters:
        warnings.warn(
            f"quantize={quantize!r} has left {float_parameters:,} of {graph.parameters:,} numbers in float32: the "
            'converter keeps tensors of fewer than 1,024 numbers. quantize="int8" stores all in int8.',
            stacklevel=2,
        )
    if is_chief(model.distribute_strategy):
        with temporary_sibling(target) as new:
            new.write_bytes(content)
            os.replace(new, target)
    return report


def x_and_y(validation_data: Any) -> tuple[Any, Any]:
    """Images, and labels or None, from (x,) or (x, y), or a ValueError that says what came instead."""
    if not isinstance(validation_data, tuple | list) or not 1 <= len(validation_data) <= 2:
        is_tuple = isinstance(validation_data, tuple | list)
        kind = f"{len(validation_data)} parts" if is_tuple else f"no tuple but a {type(validation_data).__name__}"
        raise ValueError(f"Expected `validation_data` to be (x, y) or (x,), arrays. Received: {kind}")
    x, y = (*validation_data, None)[:2]
    return x, y


def check_fitted(model: Exportable) -> None:
    """Raises a ValueError for a model of this package that gives every image the same scores."""
    if not model.is_fitted:
        raise ValueError(
            "Expected a fitted model. Received: one whose weights are all zero, as before its first fit"
        )


def sound_content(
    graph: InferenceGraph,
    batch_size: int | None,
    quantize: str | None,
    io: str,
    images: np.ndarray | None,
    facts: dict[str, Any],
) -> bytes:
    """What the file will hold, or a ConversionError for what float16 cannot hold or LiteRT does not survive."""
    if quantize == "float16":
        float16.check_weights(tflite_content(graph))
    content = slim(tflite_content(graph, batch_size, quantize, io, images))
    if quantize == "float16":
        float16.check_scores(content, graph, images, white=facts.get("input_range", [0.0, 1.0])[1])
    try:
        litert.check_structure(content)
    except ValueError as error:
        raise ConversionError(str(error)) from error
    return metadata.sealed(content, facts) if facts else content
