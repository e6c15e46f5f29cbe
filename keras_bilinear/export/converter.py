"""TensorFlow's converter: how it stores the numbers of a file, and what it cannot write."""

import threading
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of
from keras_bilinear.export.calibration import LEAST_IMAGES, calibration_batches
from keras_bilinear.export.errors import ConversionError
from keras_bilinear.export.inference_graph import InferenceGraph
from keras_bilinear.export.quiet import without_log, without_notes

QUANTIZE = (None, "float16", "dynamic", "int8", "int16x8")
CALIBRATED = ("int8", "int16x8")
FLOAT_WEIGHTS = (None, "float16")
"""Modes whose weights are floating-point numbers by intent."""
IO = {"int8": ("float32", "int8", "uint8"), "int16x8": ("float32", "int16")}
"""The types that images and scores of a file may have; every other file takes and gives float32."""
LOOPS = ("While", "StatelessWhile", "If", "StatelessIf")
CONVERTING = threading.Lock()


def check_mode(quantize: str | None, io: str, representative_data: Any) -> None:
    """Raises a ValueError for a mode that does not exist, or one that lacks such inputs, or its images."""
    if quantize is not None:
        one_of("quantize", quantize, QUANTIZE[1:])
    one_of("io", io, IO.get(quantize or "", ("float32",)))
    if quantize in CALIBRATED and representative_data is None:
        raise ValueError(
            f"Expected `representative_data`, {LEAST_IMAGES} or more images like those the file will see, for "
            f"quantize={quantize!r}. Received: representative_data=None"
        )


def tflite_content(
    graph: InferenceGraph,
    batch_size: int | None = 1,
    quantize: str | None = None,
    io: str = "float32",
    images: np.ndarray | None = None,
) -> bytes:
    """What the file of a graph holds, but for its metadata."""
    module, serve = graph.traced(batch_size)
    check_loops(serve, quantize)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], module)
    configure(converter, quantize, io, images, batch_size)
    try:
        # One at a time: the filters of warnings belong to the whole process.
        with CONVERTING, without_notes(), without_log(), warnings.catch_warnings():
            # The converter calibrates with an interpreter that TensorFlow itself calls deprecated.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated")
            return converter.convert()
    except Exception as error:  # the converter's own class is not public
        missing = [line for line in str(error).splitlines() if line.startswith(("TF Select ops:", "Custom ops:"))]
        if not missing:
            raise
        raise ConversionError(
            f"Expected a network of LiteRT's built-in operators. Received: {missing[0]}"
        ) from error


def check_loops(serve: Any, quantize: str | None) -> None:
    """Raises a ConversionError for loops in a graph that is to be calibrated: they crash the converter."""
    found = sorted({op.type for op in serve.graph.get_operations()} & set(LOOPS))
    if quantize in CALIBRATED and found:
        raise ConversionError(
            f"Expected a network without loops for quantize={quantize!r}; recurrent layers have none with "
            f"unroll=True. Received: {', '.join(found)}"
        )


def configure(
    converter: Any, quantize: str | None, io: str, images: np.ndarray | None, batch_size: int | None
) -> None:
    """Sets the options of a converter, built-in operators only."""
    sets = tf.lite.OpsSet
    if quantize is None:
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize in CALIBRATED and images is not None:
        converter.representative_dataset = lambda: calibration_batches(images, batch_size)
        integers = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8 if quantize == "int8" else integers]
        converter.inference_input_type = converter.inference_output_type = tf.as_dtype(io)
