"""The cross-entropy V of the paper as a Keras loss that takes the labels people have."""

from typing import Any

import keras
from keras import ops

from keras_bilinear.bilinear_math import Tensor


@keras.saving.register_keras_serializable(package="keras_bilinear")
class CrossEntropy(keras.losses.Loss):
    """V = -1/T sum_t w_t sum_k c_{t,k} ln y_{t,k} (Eqs. crossentropy and "multiclass cross entropy").

    `y_true` holds integers (T,) or (T, 1), or one-hot rows (T, K); for K = 1 it holds 0/1 labels (T,) or
    (T, 1). `y_pred` (T, K) holds probabilities, as the models of this package return them.
    """

    from_logits = False

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        K = y_pred.shape[-1]
        C = targets(y_true, K, y_pred.dtype)
        if K == 1:
            return ops.squeeze(ops.binary_crossentropy(C, y_pred), axis=-1)
        return ops.categorical_crossentropy(C, y_pred)


def targets(y: Tensor, K: int, dtype: str) -> Tensor:
    """Labels of any accepted form -> C (T, K): one-hot for K >= 2, one column of 0/1 for K = 1."""
    if K > 1 and len(y.shape) == 2 and y.shape[1] == K:
        return ops.cast(y, dtype)
    if K == 1:
        return ops.cast(ops.reshape(y, (-1, 1)), dtype)
    return ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), K, dtype=dtype)


def is_plain_cross_entropy(loss: Any) -> bool:
    """Whether `loss` is V itself: a cross-entropy of probabilities without label smoothing."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(loss, "__name__", type(loss).__name__)
    known = {"CrossEntropy", "categorical_crossentropy", "sparse_categorical_crossentropy", "binary_crossentropy"}
    known |= {"CategoricalCrossentropy", "SparseCategoricalCrossentropy", "BinaryCrossentropy"}
    return name in known and not getattr(loss, "label_smoothing", 0.0)
