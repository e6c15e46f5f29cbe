"""The images that calibrate the ranges of a file's activations, in whatever form they come."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.data.arrays import as_array, check_finite
from keras_bilinear.export.inference_graph import InferenceGraph

LEAST_IMAGES, MOST_IMAGES, MOST_BATCHES = 32, 512, 8192
"""Images that calibrate as well as hundreds do, those of very many that are taken, evenly spaced, and how many
batches are read for them, for some may be empty and never end."""
UNITS = 16.0
"""Pixels times the input scale that are so many times smaller or larger than 1 may be in other units."""
SATURATED = 50.0
"""A lead of the first class over the second, in logits, that few models have on half of their images."""


def checked_representative_data(data: Any, graph: InferenceGraph, input_scale: float | None) -> np.ndarray | None:
    """The representative images (T, ...) as float32, or a ValueError for any that would give a useless file.

    The converter takes them all: without an image it writes a float32 file, and with zeros, or pixels 0..255 in
    place of 0..1, one that guesses.
    """
    if data is None:
        return None
    images = images_of(collected(data, graph.model.image_shape), graph.model.image_shape, "representative_data")
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
    if largest <= UNITS or graph.model.outputs is not None:
        return
    z = graph.scores(tf.constant(images)).numpy().astype("float64")
    if graph.ends_in_probabilities:
        z = np.log(np.maximum(z, 1e-300)) - (np.log(np.maximum(1 - z, 1e-300)) if graph.model.units == 1 else 0.0)
    lead = np.abs(z[:, 0]) if graph.model.units == 1 else np.diff(np.sort(z, axis=1)[:, -2:])[:, 0]
    if np.median(lead) > SATURATED:
        raise ValueError(
            "Expected `representative_data` in the units of the file, and an `input_scale` that leads to those the "
            f"model was trained in: on pixels this large it is certain of the class of most images. {received}"
        )


def calibration_batches(images: np.ndarray, batch_size: int | None) -> Iterator[dict[str, np.ndarray]]:
    """The images as the converter takes them: the named input, one batch of the file at a time."""
    for start in range(0, len(images), batch_size or 1):
        yield {"image": np.take(images, range(start, start + (batch_size or 1)), axis=0, mode="wrap")}


def thinned(images: np.ndarray) -> np.ndarray:
    """At most `MOST_IMAGES` of them, evenly spaced."""
    return images[:: max(1, -(-len(images) // MOST_IMAGES))] if images.ndim else images
