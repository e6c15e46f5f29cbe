"""What is fitted, to what, and how: the facts that a report of the fit needs, as they are at the time."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.parts.layers import named_layers
from keras_bilinear.parts.losses import is_plain_cross_entropy
from keras_bilinear.parts.optimizers import BlockLineSearch, inner_optimizer


class TrainingData(NamedTuple):
    """What J says about single images depends on their weights and labels.

    Fields:
        mean_weight: Of an image; None if unknown.
        certain_below: V below which no image can be misclassified: one that is costs ln 2 or more. 0 if unknown.
        hard: Whether each label is one class; None if unknown.
        largest_pixel: The largest absolute value in the images; None if unknown.
    """

    mean_weight: float | None
    certain_below: float
    hard: bool | None
    largest_pixel: float | None


def training_data(model: Any, options: dict[str, Any]) -> TrainingData:
    """What is known of the images a fit is about to see."""
    arrays = getattr(model, "_training_data", None)
    if arrays is not None:
        images, labels, weight = map(np.asarray, arrays)
        is_sure = is_hard(labels)
        least = float(weight[weight > 0].min())
        certain_below = math.log(2) * least / len(weight) if is_sure else 0.0
        return TrainingData(float(weight.mean()), certain_below, is_sure, largest(images))
    x, y = options.get("x"), options.get("y")
    parts = getattr(x, "element_spec", None)
    is_weighted = any(options.get(name) is not None for name in ("sample_weight", "class_weight"))
    is_pair = y is not None or (isinstance(parts, tuple) and len(parts) == 2)  # not images, labels and weights
    mean_weight = 1.0 if is_pair and not is_weighted else None
    if y is not None:
        hard = is_hard(np.asarray(y)) if hasattr(y, "dtype") else None
        return TrainingData(mean_weight, 0.0, hard, largest(np.asarray(x)) if hasattr(x, "dtype") else None)
    of_labels = parts[1] if isinstance(parts, tuple) and len(parts) > 1 else None
    is_class = isinstance(of_labels, tf.TensorSpec) and (of_labels.dtype.is_integer or of_labels.shape.rank == 1)
    return TrainingData(mean_weight, 0.0, True if is_class else None, None)


def largest(images: np.ndarray) -> float:
    """The largest absolute value of a pixel; no copy is made."""
    return float(max(images.max(), -float(images.min())))


def is_hard(y: np.ndarray) -> bool:
    """Whether labels are class numbers or one-hot rows, and not probabilities."""
    return y.dtype.kind in "biuf" and bool(np.all(y == np.round(y)))


class Head(NamedTuple):
    """A layer with blocks: its name, K, L (None for a linear one), the name of R, its degree in W, and alpha."""

    name: str
    units: int
    rank: int | None
    penalty: str
    degree: int
    alpha: float


def heads_of(model: Any) -> list[Head]:
    """The bilinear layers of a model, or the one linear layer."""
    if hasattr(model, "ridge"):
        return [Head(model.head.name, model.units, None, "ridge", model.ridge.degree, model.alpha)]
    heads = []
    for name, layer in named_layers(model).items():
        penalty = layer.factor_penalty
        kind, degree = ("no", 0) if penalty is None else (type(penalty).__name__.lower(), penalty.degree)
        heads.append(Head(name, layer.units, layer.rank, kind, degree, float(layer.alpha or 0.0)))
    return heads


def solver_of(model: Any) -> str:
    """The optimizer, as one would write it."""
    optimizer = inner_optimizer(model.optimizer)
    if not isinstance(optimizer, BlockLineSearch):
        return type(optimizer).__name__
    blocks = "" if hasattr(model, "ridge") else f', blocks="{optimizer.blocks}"'
    return f'BlockLineSearch("{optimizer.inner}"{blocks})'


def is_plain(loss: Any) -> bool:
    """Whether the loss is the mean cross-entropy of one output."""
    losses = keras.tree.flatten(loss)
    return len(losses) == 1 and any(is_plain_cross_entropy(losses[0], K) for K in (1, 2))
