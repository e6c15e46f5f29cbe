"""What a network of Keras layers is, functional or sequential: its layers know each other, its sizes are known."""

from typing import Any

import keras


def is_functional(layer: Any) -> bool:
    """Whether it is a network of layers, functional or sequential, and not a layer or model of its own making."""
    return isinstance(layer, keras.Model) and layer.built and bool(getattr(layer, "inputs", None))


def image_shape(network: Any) -> tuple[int, ...]:
    """The shape of one image the network takes, without the batch, or a ValueError that says what it is instead."""
    shape = only("input", network, "input_shape")
    if len(shape) < 3 or None in shape[1:]:
        raise ValueError(f"Expected a network that takes images of a fixed size. Received: input of shape {shape}")
    return tuple(int(size) for size in shape[1:] if size is not None)


def units(network: Any) -> int:
    """K, the number of scores the network gives for an image, or a ValueError that says what it gives instead."""
    shape = only("output", network, "output_shape")
    if len(shape) != 2 or shape[1] is None:
        raise ValueError(
            f"Expected a network with one row of scores for an image. Received: output of shape {shape}"
        )
    return int(shape[1])


def only(what: str, network: Any, attribute: str) -> tuple[int | None, ...]:
    """The shape of the network's one input or output."""
    if not is_functional(network):
        raise ValueError(
            "Expected a model of keras_bilinear, or a functional or sequential Keras model, built. "
            f"Received: a {type(network).__name__}"
        )
    shape = getattr(network, attribute)
    if not isinstance(shape, tuple) or any(isinstance(part, tuple | list | dict) for part in shape):
        raise ValueError(f"Expected a network with one {what}. Received: shapes {shape}")
    return shape
