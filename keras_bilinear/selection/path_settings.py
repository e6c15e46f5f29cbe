"""What the fits of a path are told to be: ranks, alphas, and the images that are held out."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.data.options import has_parts
from keras_bilinear.data.survey import is_data_set
from keras_bilinear.models.bilinear import MOST_RANKS, BilinearRegression


def ranks_worth_it(size: tuple[int, int]) -> list[int]:
    """1, 2, ... up to what takes no more numbers than the linear model, of (M, N)."""
    most = max(math.prod(size) // max(sum(size), 1), 1)
    return list(range(1, min(most, MOST_RANKS) + 1))


def automatic_ranks(model: BilinearRegression, x: Any) -> list[int]:
    """Those that are worth it for images x; of a model with rank="auto" none above what its fit has found."""
    worth = ranks_worth_it(model._size_of(shape_of(x)))
    found = int(model.ranks().max()) if model._rank_is_automatic and model.built else 0
    return worth[:found] if found else worth


def shape_of(x: Any) -> tuple[int, ...]:
    """Of images, (T, M, N, ...), or of the batches of a data set; a ValueError if it does not tell."""
    if not isinstance(x, tf.data.Dataset):
        return np.shape(x)
    shape = x.element_spec[0].shape
    if shape.rank is None or None in shape[1:]:
        raise ValueError(
            f"Expected a data set that tells the size of its images, or numbers for `ranks`. Received: {shape}"
        )
    return (1, *map(int, shape[1:]))


def checked_settings(model: object, x: Any, alphas: Any, ranks: Any) -> tuple[list[float], list[int]]:
    """The alphas, falling, and the ranks, rising, of a path, or a ValueError."""
    if not isinstance(model, BilinearRegression):
        raise ValueError(
            f"Expected a BilinearSoftmaxRegression or BilinearLogisticRegression. Received: {type(model).__name__}"
        )
    alphas = [model.alpha] if alphas is None else alphas
    ranks = automatic_ranks(model, x) if isinstance(ranks, str) and ranks == "auto" else ranks
    for name, values in (("alphas", alphas), ("ranks", ranks)):
        if not isinstance(values, list | tuple | range) and getattr(values, "ndim", 0) != 1:
            raise ValueError(f"Expected `{name}` to be a list of numbers. Received: {values!r}")
    falling = sorted({non_negative("alphas", alpha) for alpha in alphas}, reverse=True)
    rising = sorted({positive_integer("ranks", rank) for rank in ranks})
    if not falling or not rising:
        raise ValueError(f"Expected at least one alpha and one rank. Received: alphas={alphas}, ranks={ranks}")
    return falling, rising


def check_ways(validation_data: Any, folds: int | None, groups: Any, is_stream: bool) -> None:
    """Raises a ValueError if images would be held out in two ways, or in one that a path has not."""
    if is_stream and (validation_data is None or folds is not None or groups is not None):
        raise ValueError(
            "Expected `validation_data` with a data set, which cannot be divided. Received: "
            f"validation_data={type(validation_data).__name__}, folds={folds}, groups={type(groups).__name__}"
        )
    if folds is not None and validation_data is not None:
        raise ValueError("Expected either `validation_data` or `folds`. Received: both")
    if groups is not None and validation_data is not None:
        raise ValueError("Expected either `validation_data` or `groups`, to hold some out. Received: both")
    if validation_data is not None and not is_data_set(validation_data) and not has_parts(validation_data):
        raise ValueError(
            "Expected `validation_data` to be arrays, (x, y) or (x, y, weight), or a data set of them. Received: "
            f"{type(validation_data).__name__}"
        )


def resized(model: BilinearRegression, rank: int, alpha: float) -> BilinearRegression:
    """A new model with another rank and alpha, and all other settings of `model`, its image size included."""
    config = {**model.get_config(), "rank": rank, "alpha": alpha}
    if model.built:
        config["input_shape"] = model.image_shape
    return type(model).from_config(config)
