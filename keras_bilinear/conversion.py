"""Between bilinear and dense models: the factors of a dense kernel by SVD, the dense kernel of factors."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import positive_integer
from keras_bilinear.bilinear_math import truncated_factors
from keras_bilinear.models import (
    BilinearLogisticRegression,
    BilinearRegression,
    BilinearSoftmaxRegression,
)
from keras_bilinear.regression import ImageRegression


def to_dense(model: ImageRegression) -> keras.Sequential:
    """The same predictions as plain Keras: `Flatten` + `Dense` with the kernel W_k = sum_l a_{l,k} b_{l,k}^T.

    Args:
        model: A fitted BLR, BSR, LLR or LSR.

    Returns:
        A model from images (T, M, N) to probabilities (T, K) that loads without this package.

    Raises:
        ValueError: if the model is of another kind or has no weights yet.
    """
    if not isinstance(model, ImageRegression):
        raise ValueError(f"Expected a regression model of keras_bilinear. Received: {type(model).__name__}")
    W, bias = model.weight_matrices(), model.head.bias
    activation = "sigmoid" if model.units == 1 else "softmax"
    dense = keras.layers.Dense(model.units, activation=activation, use_bias=bias is not None)
    result = keras.Sequential([keras.Input(model.image_size), keras.layers.Flatten(), dense])
    kernel = W.reshape(model.units, -1).T
    dense.set_weights([kernel] if bias is None else [kernel, ops.convert_to_numpy(bias.value)])
    return result


def from_dense(
    dense: keras.Model | keras.layers.Dense,
    rank: int,
    input_shape: tuple[int, int] | tuple[int, int, int],
    alpha: float = 0.0,
    penalty: str = "product",
) -> BilinearRegression:
    """The bilinear model of rank L closest to a dense soft-max or logistic model on flattened images.

    Each W_k is replaced by its truncated SVD (Eq. SVD.decomposition): exactly W_k when L = min(M, N), the best
    approximation in the Frobenius norm below that.

    Args:
        dense: A built `Dense` layer with K units, or a model whose only layer with weights is one.
        rank: L of the result.
        input_shape: (M, N) or (M, N, 1) of the images, row by row in the dense kernel's input.
        alpha: Weight of the penalty in the result, for further training.
        penalty: "product", "sum" or "frobenius".

    Returns:
        A `BilinearSoftmaxRegression`, or a `BilinearLogisticRegression` for K = 1.

    Raises:
        ValueError: if there is not exactly one `Dense` layer with weights, its kernel has not M N rows, it holds
            NaN or infinity, or its activation is neither linear nor the one of the result.
    """
    layer = the_dense_layer(dense)
    kernel, *bias = (ops.convert_to_numpy(weight.value) for weight in layer.weights)
    M, N = input_shape[:2]
    MN, K = kernel.shape
    if MN != M * N:
        raise ValueError(
            f"Expected a kernel with M N = {M} x {N} = {M * N} rows, one for each pixel of `input_shape`. "
            f"Received: a kernel of shape {kernel.shape}"
        )
    if not all(np.isfinite(weight).all() for weight in (kernel, *bias)):
        raise ValueError("Expected a dense layer with finite weights. Received: NaN or infinity")
    expected = "sigmoid" if K == 1 else "softmax"
    if layer.activation.__name__ not in ("linear", expected):
        raise ValueError(f"Expected a {expected} or linear activation. Received: {layer.activation.__name__}")
    settings: dict[str, Any] = {
        "rank": positive_integer("rank", rank),
        "alpha": alpha,
        "penalty": penalty,
        "use_bias": bool(bias),
        "input_shape": tuple(input_shape),
    }
    model = BilinearLogisticRegression(**settings) if K == 1 else BilinearSoftmaxRegression(K, **settings)
    W = ops.convert_to_tensor(kernel.T.reshape(K, M, N))
    model.head.assign_factors(*truncated_factors(W, rank))
    if bias:
        model.head.bias.assign(bias[0])
    return model


def the_dense_layer(dense: keras.Model | keras.layers.Dense) -> keras.layers.Dense:
    """The one `Dense` layer that holds all the weights, or a ValueError that says what was received."""
    parts = getattr(dense, "layers", [dense])
    layers = [layer for layer in parts if getattr(layer, "weights", None)]
    passive = (
        keras.layers.InputLayer,
        keras.layers.Flatten,
        keras.layers.Reshape,
        keras.layers.Dropout,
        keras.layers.Dense,
    )
    others = [type(layer).__name__ for layer in parts if not isinstance(layer, passive)]
    if others and layers:
        raise ValueError(f"Expected Flatten or Reshape and Dense layers only. Received: {', '.join(others)}")
    if len(layers) != 1 or not isinstance(layers[0], keras.layers.Dense):
        names = ", ".join(type(layer).__name__ for layer in layers) or "no layer with weights"
        raise ValueError(f"Expected one built Dense layer, alone or in a model. Received: {names}")
    return layers[0]
