"""A network of layers that computes in float32 what the given one computes in its own precision."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.networks import image_shape, is_functional

HALF_PRECISION = 0.05
"""Scores of a network in half precision may differ by so much of the largest from those of its float32 copy."""


def float32_copy(
    network: keras.Model, replace: Callable[[BilinearDense], keras.layers.Layer] | None = None
) -> keras.Model:
    """The same network, computed in float32. Layers that do so already are shared with it, not copied.

    `replace` gives what stands for each bilinear layer; by default that is the layer itself, or its copy. A
    ValueError if a layer of another precision holds more than its config and its weights.
    """
    pairs: list[tuple[Any, Any]] = []

    def copied(layer: Any) -> Any:
        # Not a class derived from it, which may compute something else.
        if replace is not None and type(layer) is BilinearDense:
            return replace(layer)
        if is_functional(layer):
            return rebuilt(layer)
        if not isinstance(layer, keras.layers.Layer):  # an operation, without weights or precision
            return type(layer).from_config(layer.get_config())
        if computes_in_float32(layer):
            return layer
        pairs.append((layer, type(layer).from_config(in_float32(layer.get_config()))))
        return pairs[-1][1]

    def rebuilt(model: keras.Model) -> keras.Model:
        # As a plain model: of its own class, a model may ask for more than layers, as `AlternatingModel` does.
        # Older releases of Keras warn where a list of one is expected and that one comes, or the other way round.
        inputs, outputs = (ends[0] if len(ends) == 1 else ends for ends in (model.inputs, model.outputs))
        plain = keras.Model(inputs, outputs, name=model.name)
        return keras.models.clone_model(plain, clone_function=copied)

    copy = rebuilt(network)
    for old, new in pairs:
        check_weights(old, new)
        new.set_weights(old.get_weights())
        if hasattr(new, "finalize_state"):  # what preprocessing layers derive from their weights
            new.finalize_state()
    if pairs:
        check_copy(network, copy)
    return copy


def check_weights(layer: keras.layers.Layer, copy: keras.layers.Layer) -> None:
    """Raises a ValueError if a layer has weights that are not in its config, such as LoRA on an inner layer."""
    if [weight.shape for weight in layer.weights] != [weight.shape for weight in copy.weights]:
        raise ValueError(
            "Expected layers that their config and weights describe, to compute them in float32. Received: layer "
            f"{layer.name!r}, which its config would give other weights, in a network of another precision"
        )


def check_copy(network: keras.Model, copy: keras.Model) -> None:
    """Raises a ValueError unless both compute the same on some images, up to half precision."""
    images = np.random.default_rng(0).uniform(size=(8, *image_shape(network))).astype("float32")
    expected, scores = (np.asarray(model.predict_on_batch(images), "float32") for model in (network, copy))
    if not np.abs(scores - expected).max() <= HALF_PRECISION * max(1.0, np.abs(expected).max()):
        raise ValueError(
            "Expected layers that their config and weights describe, to compute them in float32. Received: a "
            f"network whose copy differs by up to {np.abs(scores - expected).max():.2g}"
        )


def computes_in_float32(layer: keras.layers.Layer) -> bool:
    """Whether the layer, or every layer of the network, does."""
    config = layer.get_config()
    return in_float32(config) == config


def in_float32(config: Any) -> Any:
    """A layer's config with every precision within it, of inner layers too, set to float32."""
    if isinstance(config, dict):
        return {key: precision(part) if key == "dtype" else in_float32(part) for key, part in config.items()}
    return [in_float32(part) for part in config] if isinstance(config, list) else config


def precision(dtype: Any) -> Any:
    """float32 for another floating type or policy; float32, whole numbers and strings stay what they are."""
    name = dtype.get("config", {}).get("name", "float") if isinstance(dtype, dict) else str(dtype)
    return "float32" if "float" in name and name != "float32" else dtype
