"""What a float16 file cannot hold: the converter clips larger numbers and rounds smaller ones away, silently."""

import numpy as np
import tensorflow as tf

from keras_bilinear.export import litert
from keras_bilinear.export.errors import ConversionError
from keras_bilinear.export.float32_copy import HALF_PRECISION
from keras_bilinear.export.inference_graph import InferenceGraph
from keras_bilinear.export.interpreter import file_scores, loaded

LARGEST = float(np.finfo("float16").max)
LEAST = 127 * 2.0**-24
"""What the largest of the weights must reach, to be stored in as many steps as int8 has."""
ADDED, BOUNDS = {"ADD", "SUB", "SQUARED_DIFFERENCE"}, {"MINIMUM", "MAXIMUM"}
"""Operators for which a number may be rounded to zero, or clipped, where it stands beside larger ones."""
IMAGES = 16
ADVICE = "quantize=None holds any numbers"


def check_weights(content: bytes) -> None:
    """Raises a ConversionError if constants of a float32 file leave the range of float16."""
    for name, numbers, readers in litert.float_constants(content):
        largest = float(np.abs(numbers).max())
        too_large = largest > LARGEST and any(operator not in BOUNDS for operator, _ in readers)
        # As more than a bias or an epsilon.
        multiplies = any(
            operator not in ADDED | BOUNDS and not (numbers.ndim == 1 and place > 1) for operator, place in readers
        )
        if too_large or (0 < largest < LEAST and multiplies):
            raise ConversionError(
                f"Expected weights from {LEAST:.1e} to {LARGEST:,.0f}, the range of float16; {ADVICE}. "
                f"Received: {largest:.1e} for the largest of {name}"
            )


def check_scores(content: bytes, graph: InferenceGraph, images: np.ndarray | None, white: float) -> None:
    """Raises a ConversionError if the file is far from its graph, on some images or on noise from 0 to `white`."""
    if images is None:
        images = white * np.random.default_rng(0).uniform(size=(IMAGES, *graph.model.image_shape)).astype("float32")
    images = images[:IMAGES]
    expected = graph.squash(graph.scores(tf.constant(images))).numpy()
    difference = np.abs(file_scores(loaded(content, "default"), images, graph.model.outputs or ()) - expected).max()
    if not difference <= HALF_PRECISION * max(1.0, np.abs(expected).max()):
        raise ConversionError(
            f"Expected a network that float16 can hold; {ADVICE}. Received: scores off by {difference:.2g}"
        )
