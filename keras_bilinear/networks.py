"""Any Keras network of layers that know each other, functional or sequential, as something to export."""

from collections.abc import Callable
from typing import Any

import keras

from keras_bilinear.layers import BilinearDense


def float32_copy(
    network: keras.Model, replace: Callable[[BilinearDense], keras.layers.Layer] | None = None
) -> keras.Model:
    """The same network with the same weights, computed in float32, whatever its precision was.

    Args:
        network: A functional or sequential model, built.
        replace: What stands for each bilinear layer in the copy; by default a copy of it.
    """
    pairs = []

    def copied(layer: keras.layers.Layer) -> keras.layers.Layer:
        if replace is not None and isinstance(layer, BilinearDense):
            return replace(layer)
        pairs.append((layer, type(layer).from_config(in_float32(layer.get_config()))))
        return pairs[-1][1]

    # As a plain model: of its own class, a model may ask for more than layers, as `AlternatingModel` does.
    plain = keras.Model(network.inputs, network.outputs)
    copy = keras.models.clone_model(plain, clone_function=copied, recursive=True)
    for old, new in pairs:
        if isinstance(old, keras.layers.Layer):  # the others are operations, without weights
            new.set_weights(old.get_weights())
    return copy


def in_float32(config: Any) -> Any:
    """A layer's config with every precision within it, of inner layers too, set to float32."""
    if isinstance(config, dict):
        return {key: precision(part) if key == "dtype" else in_float32(part) for key, part in config.items()}
    return [in_float32(part) for part in config] if isinstance(config, list) else config


def precision(dtype: Any) -> Any:
    """float32 for a policy or a floating type; whole numbers and strings stay what they are."""
    return "float32" if isinstance(dtype, dict) or "float" in str(dtype) else dtype


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
    functional = isinstance(network, keras.Model) and network.built and hasattr(network, "inputs")
    shape = getattr(network, attribute, None) if functional else None
    if shape is None or (isinstance(network, keras.Model) and not network.inputs):
        raise ValueError(
            "Expected a model of keras_bilinear, or a functional or sequential Keras model, built. "
            f"Received: a {type(network).__name__}"
        )
    if not isinstance(shape, tuple) or any(isinstance(part, tuple | list | dict) for part in shape):
        raise ValueError(f"Expected a network with one {what}. Received: shapes {shape}")
    return shape
