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
    expected = 'Expected, for any output but "scores", a network with one'
    if is_functional(network) and len(network.outputs) != 1:
        raise ValueError(f"{expected} output. Received: shapes {network.output_shape}")
    shape = only("output", network, "output_shape")
    if len(shape) != 2 or shape[1] is None:
        raise ValueError(f"{expected} row of scores for an image. Received: output of shape {shape}")
    return int(shape[1])


def outputs(network: Any) -> dict[str, tuple[int, ...]]:
    """The name and the shape, for an image, of all that the network gives; the name of a single one is "scores"."""
    only("input", network, "input_shape")
    names = ["scores"]
    if len(network.outputs) > 1:
        names = sorted(network.output) if isinstance(network.output, dict) else list(network.output_names)
    if len(set(names)) < len(names):
        raise ValueError(f"Expected outputs of different names. Received: {names}")
    shapes = [tuple(tensor.shape[1:]) for tensor in network.outputs]
    if any(None in shape for shape in shapes):
        raise ValueError(f"Expected a network with outputs of a fixed size. Received: outputs of shapes {shapes}")
    return {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}


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
