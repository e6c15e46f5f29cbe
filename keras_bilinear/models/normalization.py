"""A standardisation in front of a model, taken into its weights: the same scores without the layer.

A bilinear form takes in scales r_m c_n by a / r and b / c, a linear one any; a mean goes into the bias.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.bilinear_map import BilinearMap
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.networks import is_functional
from keras_bilinear.parts.to_matrix import ToMatrix

OUTER = 1e-6
"""Scales that differ from an outer product by no more than this part of them are one, but for rounding."""
TOLERANCE = 1e-4
"""What is folded may differ by so much of its outputs, on random samples; float32 leaves a hundredth of it."""
LAYOUTS = (ToMatrix, keras.layers.Reshape, keras.layers.Flatten, keras.layers.Permute)
"""Layers that move numbers and change none."""


class Moments(NamedTuple):
    """What is subtracted from a sample, and what that is divided by then; both of its shape, in float64."""

    mean: np.ndarray
    scale: np.ndarray

    def standardized(self, X: np.ndarray) -> np.ndarray:
        """(X - mean) / scale. X (T, ...)."""
        return ((X - self.mean) / self.scale).astype("float32")


def fold_normalization(model: keras.Model, normalization: Any) -> keras.Model:
    """The model that takes samples as they are, in place of one behind a normalization.

    Args:
        model: A fitted BLR, BSR, LLR or LSR; or a network whose layers follow one another, with the normalization
            first among them or not, and then a `BilinearDense`, a `BilinearMap` or a `Dense` on flat numbers.
        normalization: The `keras.layers.Normalization` that the samples went through, adapted; or (mean, variance),
            arrays of the shape of a sample, or of one that is broadcast to it.

    Returns:
        A model of the same kind with a bias, from a network a `keras.Sequential`, not compiled. Its penalty is that
        of the weights it has now.

    Raises:
        ValueError: if the scales are no outer product of one for each row and one for each column, which alone
            bilinear factors can take in; if a variance is 0 or below; for means that leave float32 too few digits;
            for other models.

    Example:
        >>> scaler = keras.layers.Normalization(axis=1)     # of every row
        >>> scaler.adapt(x_train)
        >>> model.fit(scaler(x_train), y_train, epochs=30)
        >>> export_tflite(fold_normalization(model, scaler), "plain.tflite")
    """
    is_within = False
    if isinstance(model, ImageRegression):
        model._expect_built()
        moments = moments_of(normalization, model.image_size)
        folded: keras.Model = folded_regression(model, moments)
    else:
        folded, moments, is_within = folded_network(model, normalization)
    expect_same(model if is_within else lambda X: model(moments.standardized(X)), folded, moments)
    return folded


def moments_of(normalization: Any, shape: tuple[int, ...]) -> Moments:
    """Mean and scale of a sample of `shape`, or a ValueError."""
    if isinstance(normalization, keras.layers.Normalization):
        if normalization.invert or getattr(normalization, "mean", None) is None:
            raise ValueError("Expected a Normalization layer that is adapted or built, without `invert`")
        parts = [ops.convert_to_numpy(part)[0] for part in (normalization.mean, normalization.variance)]
    elif isinstance(normalization, tuple | list) and len(normalization) == 2:
        parts = [np.asarray(part) for part in normalization]
    else:
        raise ValueError(
            "Expected `normalization` to be a keras.layers.Normalization or (mean, variance). Received: "
            f"{type(normalization).__name__}"
        )
    mean, variance = (as_sample(part.astype("float64"), shape) for part in parts)
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and variance.min() > 0):
        raise ValueError(
            "Expected finite means and variances > 0. Received: a variance of "
            f"{variance.min():.2g}; leave out what never changes, or give it the variance 1"
        )
    return Moments(mean, np.maximum(np.sqrt(variance), keras.config.epsilon()))


def as_sample(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """One number for each of a sample, from those of flat samples, of such with a channel axis, or of some axes."""
    if values.size == np.prod(shape):
        return values.reshape(shape)
    values = values[..., 0] if values.ndim == len(shape) + 1 and values.shape[-1] == 1 else values
    try:
        return np.broadcast_to(values, shape).copy()
    except ValueError as error:
        raise ValueError(
            f"Expected statistics of samples of shape {shape}. Received: of shape {values.shape}"
        ) from error


def outer_parts(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """r (M,) and c (N,) with scale_{m,n} = r_m c_n, or a ValueError."""
    rows, columns = nearest_product(scale)
    off = float(np.abs(np.log(scale / np.outer(rows, columns))).max())
    if off > OUTER:
        raise ValueError(
            "Expected scales that are a product of one for each row and one for each column, as "
            "`Normalization(axis=1)` or `axis=2` gives for (T, M, N): bilinear factors take in no others. "
            f"Received: scales up to {np.expm1(off):.2g} of them off. Standardise rows or columns, or fold a "
            "linear model and `compress` it."
        )
    return rows, columns


def nearest_product(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """r (M,) and c (N,) whose product r_m c_n is the nearest to scales > 0, by their logarithms."""
    logarithm = np.log(scale)
    middle = logarithm.mean() / 2
    return np.exp(logarithm.mean(axis=1) - middle), np.exp(logarithm.mean(axis=0) - middle)


def as_float64(weight: Any) -> np.ndarray:
    """A weight as an array; zero for one that is not there."""
    return np.zeros(()) if weight is None else ops.convert_to_numpy(ops.cast(weight, "float32")).astype("float64")


def folded_regression(model: ImageRegression, moments: Moments, **changes: Any) -> ImageRegression:
    """BLR, BSR, LLR or LSR with the moments in its weights, and `changes` of its settings."""
    settings = {**model.get_config(), "use_bias": True, "input_shape": model.image_size}
    folded = type(model).from_config({**settings, **changes})
    moments = moments._replace(mean=moments.mean * model.input_scale)  # which comes after them
    assign(folded.head, folded_weights(model.head, moments))
    return folded


def folded_network(network: keras.Model, normalization: Any) -> tuple[keras.Sequential, Moments, bool]:
    """The network without the normalization, the moments of its samples, and whether it was among its layers."""
    layers = chain_of(network)
    is_within = layers[0] is normalization
    layers = layers[1:] if is_within else layers
    shape = tuple(network.input_shape[1:])
    given = moments = moments_of(normalization, shape)
    first = next((i for i, layer in enumerate(layers) if not isinstance(layer, LAYOUTS)), len(layers))
    for layout in layers[:first]:
        moments = Moments(*(moved(layout, part) for part in moments))
    if first == len(layers) or not isinstance(layers[first], BilinearDense | BilinearMap | keras.layers.Dense):
        names = ", ".join(type(layer).__name__ for layer in layers[: first + 1])
        raise ValueError(
            "Expected a BilinearDense, a BilinearMap or a Dense on flat numbers behind the normalization. "
            f"Received: {names}"
        )
    if isinstance(layers[first], keras.layers.Dense) and moments.mean.ndim != 1:
        raise ValueError("Expected a Dense on flat numbers: put a Flatten in front. Received: one on matrices")
    weights = folded_weights(layers[first], moments)
    folded = keras.Sequential([keras.Input(shape)])
    for i, layer in enumerate(layers):
        changes = {"use_bias": True} if i == first else {}
        folded.add(type(layer).from_config({**layer.get_config(), **changes}))
        if i == first:
            assign(folded.layers[i], weights)
        else:
            folded.layers[i].set_weights(layer.get_weights())
    return folded, given, is_within


def chain_of(network: Any) -> list[keras.layers.Layer]:
    """The layers of a network in which each takes what the last one gave, or a ValueError."""
    layers = [part for part in getattr(network, "layers", ()) if not isinstance(part, keras.layers.InputLayer)]
    follow = all(after.input is before.output for before, after in pairwise(layers))
    if not is_functional(network) or not layers or not follow:
        raise ValueError(
            "Expected a regression model of keras_bilinear, or a network whose layers follow one another. "
            f"Received: {type(network).__name__}"
        )
    return layers


def moved(layout: keras.layers.Layer, values: np.ndarray) -> np.ndarray:
    """What a layer that moves numbers makes of a sample."""
    return ops.convert_to_numpy(layout(values[None].astype("float32")))[0].astype("float64")


def folded_weights(layer: Any, moments: Moments) -> list[np.ndarray]:
    """Kernel or factors, and bias, of the layer that takes the samples, for samples as they are."""
    if isinstance(layer, keras.layers.Dense):
        mean, scale = (part.reshape(-1) for part in moments)
        kernel = as_float64(layer.kernel) / scale[:, None]
        return [kernel, as_float64(layer.bias) - mean @ kernel]
    mean, scale = (part.reshape(layer.matrix_shape) for part in moments)
    rows, columns = outer_parts(scale)
    A, B = as_float64(layer.A) / rows[:, None], as_float64(layer.B) / columns[:, None]
    if isinstance(layer, BilinearMap):
        return [A, B, as_float64(layer.C) - A.T @ mean @ B]
    return [A, B, as_float64(layer.bias) - np.einsum("lmk,mn,lnk->k", A, mean, B)]


def assign(layer: Any, weights: list[np.ndarray]) -> None:
    """Gives a layer its kernel or factors, and its bias."""
    variables = layer.weights
    if isinstance(layer, BilinearDense):
        layer.assign_factors(*weights[:2])
        variables, weights = [layer.bias], weights[2:]
    for variable, value in zip(variables, weights, strict=False):  # the last may be alpha
        variable.assign(value)


def expect_same(original: Callable[[np.ndarray], Any], folded: keras.Model, moments: Moments) -> None:
    """Raises a ValueError if float32 has too few digits to take the means into the bias."""
    noise = np.random.default_rng(0).normal(size=(64, *moments.mean.shape))
    X = (moments.mean + moments.scale * noise).astype("float32")
    before, after = (
        [ops.convert_to_numpy(ops.cast(part, "float32")) for part in keras.tree.flatten(model(X))]
        for model in (original, folded)
    )
    off = max(float(np.abs(a - b).max() / max(1.0, np.abs(a).max())) for a, b in zip(before, after, strict=True))
    if not off <= TOLERANCE:
        share = np.abs(moments.mean / moments.scale).max()
        raise ValueError(
            "Expected means small enough for float32 to be taken into a bias; subtract these beforehand. Received: "
            f"means up to {share:.2g} times the scale, with which outputs differ by {off:.2g}"
        )
