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
    y = ops.reshape(y, (-1,))
    classes = ops.cast(y, "int32")
    # A label that is no class makes the loss NaN, which stops training: one_hot would count it as nothing.
    known = (ops.cast(classes, y.dtype) == y) & (classes >= 0) & (classes < K)
    return ops.where(known[:, None], ops.one_hot(classes, K, dtype=dtype), float("nan"))


def the_only_loss(loss: Any) -> Any:
    """The loss of a model with one output, alone or as a list of one, or a ValueError."""
    if isinstance(loss, list | tuple) and len(loss) == 1:
        return loss[0]
    if isinstance(loss, list | tuple | dict):
        raise ValueError(f"Expected one loss, for the model has one output. Received: loss={loss!r}")
    return loss


def is_plain_cross_entropy(loss: Any, K: int) -> bool:
    """Whether `loss` is V of K probabilities: their mean cross-entropy without label smoothing."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(loss, "__name__", type(loss).__name__).replace("_", "").lower()
    known = {"crossentropy"}
    known |= {"binarycrossentropy"} if K == 1 else {"categoricalcrossentropy", "sparsecategoricalcrossentropy"}
    averaged = getattr(loss, "reduction", "sum_over_batch_size") == "sum_over_batch_size"
    return name in known and averaged and not getattr(loss, "label_smoothing", 0.0)


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of images whose most probable class is theirs, for labels of every form `CrossEntropy` takes."""

    def __init__(self, name: str = "accuracy", dtype: Any = None):
        super().__init__(fn=is_correct, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def is_correct(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """1 where the prediction is the label, else 0. y_true as in `CrossEntropy`, y_pred (T, K) -> (T,)."""
    K = y_pred.shape[-1]
    C = targets(y_true, K, y_pred.dtype)
    if K == 1:
        hit = ops.equal(C[:, 0] > 0.5, y_pred[:, 0] > 0.5)
    else:
        hit = ops.equal(ops.argmax(C, axis=1), ops.argmax(y_pred, axis=1))
    return ops.cast(hit, "float32")
