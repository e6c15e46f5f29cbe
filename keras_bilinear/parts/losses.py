"""The cross-entropy V of the paper as a Keras loss that takes the labels people have."""

from typing import Any

import keras
from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.parts.matrices import shape_of

ROUNDING = 1e-3
"""What the probabilities of an image may sum to beside 1; they are divided by their sum."""


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
    """Labels of any accepted form -> C (T, K): rows that sum to 1 for K >= 2, one column of 0/1 for K = 1.

    A label that is no class, or a row that is no distribution, becomes NaN, which stops training: J of such labels
    may have no minimum, and `one_hot` would count them as nothing.
    """
    columns = y.shape[1] if len(y.shape) == 2 and K > 1 else 1
    if columns is None:  # a graph that has seen both forms
        either = (lambda: distributions(y, dtype)), (lambda: indicators(y, K, dtype))
        return ops.cond(ops.equal(ops.shape(y)[1], K), *either)
    return distributions(y, dtype) if columns == K > 1 else indicators(y, K, dtype)


def distributions(rows: Tensor, dtype: str) -> Tensor:
    """Rows (T, K) that sum to 1 but for rounding, divided by their sum.

    Else V would change with a score that is added to all classes.
    """
    rows = ops.cast(rows, dtype)
    total = ops.sum(rows, axis=1, keepdims=True)
    sound = ops.all(rows >= 0, axis=1, keepdims=True) & (ops.abs(total - 1) <= ROUNDING)
    return ops.where(sound, rows / total, float("nan"))


def indicators(y: Tensor, K: int, dtype: str) -> Tensor:
    """Class numbers (T,) or (T, 1) -> (T, K), or (T, 1) for K = 1."""
    columns = ops.reshape(y, (ops.shape(y)[0], -1))
    y = columns[:, 0][:, None]  # one column, and known to be one
    classes = ops.cast(y, "int32")
    known = (ops.cast(classes, y.dtype) == y) & (classes >= 0) & (classes < max(K, 2))
    known = known & ops.equal(ops.shape(columns)[1], 1)
    C = ops.cast(classes, dtype) if K == 1 else ops.one_hot(classes[:, 0], K, dtype=dtype)
    return ops.where(known, C, float("nan"))


def for_each_image(part: Tensor | None, y_pred: Tensor) -> Tensor | None:
    """Labels or weights with as many rows as there are scores (T, K), or an error as the graph runs.

    (T,) or (T, c), in a graph that has forgotten the rank always the latter.
    """
    if part is None:
        return None
    shape = shape_of(part)
    columns = (-1,) if shape is None else tuple(-1 if d is None else d for d in shape[1:])
    return ops.reshape(part, (ops.shape(y_pred)[0], *columns))


def the_only_loss(loss: Any) -> Any:
    """The loss of a model with one output, alone or as a list of one, or a ValueError."""
    if isinstance(loss, list | tuple) and len(loss) == 1:
        return loss[0]
    if isinstance(loss, list | tuple | dict):
        raise ValueError(f"Expected one loss, for the model has one output. Received: loss={loss!r}")
    return loss


def is_plain_cross_entropy(loss: Any, K: int) -> bool:
    """Whether `loss` is V of K probabilities: their mean cross-entropy, with no setting that changes it.

    Of exactly these types: what a subclass or a wrapper makes of it cannot be known.
    """
    known = keras.losses
    loss = known.get(loss)
    if K == 1:
        functions, types = [known.binary_crossentropy], [known.BinaryCrossentropy]
    else:
        functions = [known.categorical_crossentropy, known.sparse_categorical_crossentropy]
        types = [known.CategoricalCrossentropy, known.SparseCategoricalCrossentropy]
    if type(loss) not in (CrossEntropy, *types):
        return any(loss is function for function in functions)
    return settings(loss) == settings(type(loss)())


def settings(loss: keras.losses.Loss) -> dict[str, Any]:
    """What a loss was told beside its name; `check_from_logits` looks at `from_logits`."""
    told = {**loss.get_config(), "dtype": loss.dtype}
    return {name: value for name, value in told.items() if name not in ("name", "from_logits")}


def losses_by_output(loss: Any, outputs: list[str]) -> list[Any]:
    """The loss of each output, from one for all, a list or tuple in their order, or a dict by their names."""
    if isinstance(loss, dict):
        return [loss.get(name) for name in outputs]
    return list(loss) if isinstance(loss, list | tuple) else [loss] * len(outputs)


def check_from_logits(loss: Any, is_probability: bool) -> None:
    """Raises a ValueError when a cross-entropy reads the model's output as what it is not.

    What a function of the user's own expects cannot be known, whatever its name.
    """
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(loss, "__name__", type(loss).__name__)
    is_known = getattr(keras.losses, name, None) in (loss, type(loss)) or hasattr(loss, "from_logits")
    if not is_known or "crossentropy" not in name.replace("_", "").lower():
        return
    from_logits = bool(getattr(loss, "from_logits", False))
    if from_logits == is_probability:
        raise ValueError(
            f"Expected a loss with from_logits={not from_logits}: the model returns "
            f"{'probabilities' if is_probability else 'logits'}. Received: {name} with from_logits={from_logits}"
        )


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Accuracy(keras.metrics.Accuracy):
    """The fraction of images whose most probable class is theirs, for labels of every form `CrossEntropy` takes.

    Keras' own class tells callbacks such as `EarlyStopping` that more is better.
    """

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        K = y_pred.shape[-1]
        C = targets(y_true, K, y_pred.dtype)
        given, predicted = (p[:, 0] > 0.5 if K == 1 else ops.argmax(p, axis=1) for p in (C, y_pred))
        super().update_state(given, predicted, sample_weight)
