"""How the numbers of a TFLite file are stored, and the images that calibrate the ranges of its activations."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import one_of
from keras_bilinear.data.arrays import as_array, check_finite
from keras_bilinear.export.inference_graph import InferenceGraph

QUANTIZE = (None, "float16", "dynamic", "int8", "int16x8")
CALIBRATED = ("int8", "int16x8")
IO = {"int8": ("float32", "int8", "uint8"), "int16x8": ("float32", "int16")}
"""The types that images and scores of a file may have; every other file takes and gives float32."""


class ConversionError(ValueError):
    """A network has something that files of this kind cannot hold; others may."""


FLOAT_WEIGHTS = (None, "float16")
"""Modes whose weights are floating-point numbers by intent."""

LEAST_IMAGES, MOST_IMAGES, MOST_BATCHES = 32, 512, 8192
"""Images that calibrate as well as hundreds do, those of very many that are taken, evenly spaced, and how many
batches are read for them, for some may be empty and never end."""
UNITS = 16.0
"""Pixels times the input scale that are so many times smaller or larger than 1 may be in other units."""
SATURATED = 50.0
"""A lead of the first class over the second, in logits, that few models have on half of their images."""
LOOPS = ("While", "StatelessWhile", "If", "StatelessIf")


def lowered_for_integers(quantize: str | None) -> bool:
    """Whether the weights become whole numbers, for which factored models are lowered in another way."""
    return quantize not in FLOAT_WEIGHTS


def checked_mode(quantize: str | None, io: str) -> None:
    """Raises a ValueError for a mode that does not exist, or one whose files cannot have such inputs."""
    if quantize is not None:
        one_of("quantize", quantize, QUANTIZE[1:])
    one_of("io", io, IO.get(quantize or "", ("float32",)))


def checked_representative_data(
    data: Any, graph: InferenceGraph, quantize: str | None, input_scale: float | None
) -> np.ndarray | None:
    """The representative images (T, ...) as float32, or a ValueError for any that would give a useless file.

    The converter takes them all: without an image it writes a float32 file, and with zeros, or pixels 0..255 in
    place of 0..1, one that guesses.
    """
    if data is None:
        if quantize in CALIBRATED:
            raise ValueError(
                f"Expected `representative_data`, {LEAST_IMAGES} or more images like those the file will see, for "
                f"quantize={quantize!r}. Received: representative_data=None"
            )
        return None
    images = images_of(collected(data, graph.image_shape), graph.image_shape, "representative_data")
    if len(images) < LEAST_IMAGES:
        raise ValueError(
            f"Expected {LEAST_IMAGES} or more images as `representative_data`. Received: {len(images)}"
        )
    if np.all(images == images[:1]):
        raise ValueError(
            "Expected `representative_data` with images that differ. Received: one image, "
            f"pixels {images.min():g} to {images.max():g}, {len(images)} times"
        )
    check_units(images, graph, input_scale)
    return images


def collected(data: Any, shape: tuple[int, ...]) -> Any:
    """`data` as one array, thinned out, whether it came as one or as the converter of TFLite takes it.

    That is a function that gives an iterable, or an iterable, of images or batches, alone, first in a list or
    tuple, or in a dict, as "image" or first; of those the first are taken.
    """
    data = the_images(data() if callable(data) else data)
    if hasattr(data, "__array__") or isinstance(data, list | tuple) or not isinstance(data, Iterable):
        return thinned(as_array(data, "representative_data"))
    images: list[np.ndarray] = []
    for item in itertools.islice(data, MOST_BATCHES):
        part = the_images(item)
        part = the_images(part[0]) if isinstance(part, list | tuple) and part else part
        part = as_array(part, "representative_data")
        images += [part] if part.shape in alike(shape) or not part.ndim else list(part)
        if len(images) >= MOST_IMAGES:
            break
    return images_of(images[:MOST_IMAGES], shape, "representative_data")


def the_images(item: Any) -> Any:
    """What a dict holds under the name of the file's input, or else first; anything else as it is."""
    return item.get("image", next(iter(item.values()), None)) if isinstance(item, dict) else item


def alike(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The shapes of an image that are as good: a channel axis of one may be there or not."""
    return {shape, plain_shape(shape), (*plain_shape(shape), 1)}


def plain_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image without a channel axis of one."""
    return shape[:2] if len(shape) == 3 and shape[2] == 1 else shape


def images_of(data: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    """`data` as finite float32 images (T, *shape), T >= 1; a channel axis of one may be there or not."""
    if isinstance(data, tf.data.Dataset | dict):
        raise ValueError(f"Expected `{name}` to be an array of images. Received: a {type(data).__name__}")
    images = as_array(data, name)
    if images.shape[1:] not in alike(shape) or not len(images):
        wanted = ", ".join(map(str, plain_shape(shape)))
        raise ValueError(
            f"Expected `{name}` of shape (T, {wanted}), images as the model takes them. Received: {images.shape}"
        )
    with np.errstate(over="ignore"):
        images = images.reshape(-1, *shape).astype("float32", copy=False)
    check_finite(images, name)
    return images


def check_units(images: np.ndarray, graph: InferenceGraph, input_scale: float | None) -> None:
    """Raises a ValueError when the pixels are not in the units of the file."""
    largest = float(np.abs(images).max()) * (1.0 if input_scale is None else input_scale)
    received = f"Received: pixels from {images.min():g} to {images.max():g}"
    if input_scale is not None and input_scale < 1 and largest < 1 / UNITS:
        raise ValueError(
            f"Expected `representative_data` in the units of the file, pixels up to about {1 / input_scale:g} for "
            f"input_scale={input_scale:g}. {received}"
        )
    if largest <= UNITS:
        return
    z = graph.scores(tf.constant(images)).numpy().astype("float64")
    if graph.output == "probabilities" and graph.squash is tf.identity:  # a network, which ends in them
        z = np.log(np.maximum(z, 1e-300)) - (np.log(np.maximum(1 - z, 1e-300)) if graph.units == 1 else 0.0)
    lead = np.abs(z[:, 0]) if graph.units == 1 else np.diff(np.sort(z, axis=1)[:, -2:])[:, 0]
    if np.median(lead) > SATURATED:
        raise ValueError(
            "Expected `representative_data` in the units of the file, and an `input_scale` that leads to those the "
            f"model was trained in: on pixels this large it is certain of the class of most images. {received}"
        )


def calibration(images: np.ndarray, batch_size: int | None) -> Iterator[dict[str, np.ndarray]]:
    """The images as the converter takes them: the named input, one batch of the file at a time."""
    for start in range(0, len(images), batch_size or 1):
        yield {"image": np.take(images, range(start, start + (batch_size or 1)), axis=0, mode="wrap")}


def thinned(images: np.ndarray) -> np.ndarray:
    """At most `MOST_IMAGES` of them, evenly spaced."""
    return images[:: max(1, -(-len(images) // MOST_IMAGES))] if images.ndim else images


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
        converter.representative_dataset = lambda: calibration(images, batch_size)
        integers = sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8 if quantize == "int8" else integers]
        converter.inference_input_type = converter.inference_output_type = tf.as_dtype(io)
