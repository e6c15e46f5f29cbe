"""What is fitted, to what, and how: the facts that a report of the fit needs, as they are at the time."""

from typing import NamedTuple

import numpy as np

from keras_bilinear.data.unusual import largest_pixel
from keras_bilinear.maths.penalties import Penalty, Ridge
from keras_bilinear.monitoring.model_in_words import comparison
from keras_bilinear.parts.factored_layer import FactoredLayer
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.layers_within import named_factored_layers
from keras_bilinear.parts.model_protocol import BlockModel, is_linear, is_on_arrays
from keras_bilinear.parts.optimizers import BlockLineSearch, inner_optimizer


class DataFacts(NamedTuple):
    """What is known of the images of a fit: nothing of those that a data set or a network gets.

    Fields:
        largest_pixel: The largest absolute value, as the weights see it; None if unknown.
        each_has_a_class: Whether labels are classes, and not probabilities; False if unknown.
    """

    largest_pixel: float | None = None
    each_has_a_class: bool = False


def facts_of_data(model: BlockModel) -> DataFacts:
    """What advice must know of the arrays that a model is about to be fitted to."""
    if model._streaming is not None:
        found = model._streaming.survey
        return DataFacts(model._streaming.model.input_scale * found.largest_pixel, found.each_has_a_class)
    data = model._training_data
    if data is None or not is_on_arrays(model):
        return DataFacts()
    images, labels = (np.asarray(part) for part in data[:2])
    is_whole = labels.dtype.kind in "biuf" and bool(np.all(labels == np.round(labels)))
    return DataFacts(model.input_scale * largest_pixel(images), is_whole)


class Head(NamedTuple):
    """A layer with blocks: its size in words, L and R by name where it has them, the degree of R in W."""

    name: str
    size: str
    rank: int | None
    penalty: str | None
    degree: int
    alpha: float


def heads_of(model: BlockModel) -> tuple[Head, ...]:
    """The bilinear layers of a model, or the one linear layer; none before it is built."""
    if not model.built:
        return ()
    if is_linear(model):
        return (Head(model.head.name, f"K = {model.units}", None, *kind(model.ridge), model.alpha),)
    return tuple(
        Head(name, *size_of(layer), *kind(layer.factor_penalty), float(layer.alpha or 0.0))
        for name, layer in named_factored_layers(model).items()
    )


def size_of(layer: FactoredLayer) -> tuple[str, int | None]:
    """The size of a bilinear layer in words, and L if it has ranks."""
    if isinstance(layer, BilinearDense):
        return f"K = {layer.units}, L = {layer.rank}", layer.rank
    return comparison(layer), None


def kind(penalty: Penalty | Ridge | None) -> tuple[str | None, int]:
    """Name and degree of a penalty."""
    return (None, 0) if penalty is None else (type(penalty).__name__.lower(), penalty.degree)


def solver_of(model: BlockModel) -> str:
    """The optimizer, as one would write it."""
    optimizer = inner_optimizer(model.optimizer)
    if not isinstance(optimizer, BlockLineSearch):
        return type(optimizer).__name__
    blocks = "" if is_linear(model) else f', blocks="{optimizer.blocks}"'
    return f'BlockLineSearch("{optimizer.inner}"{blocks})'
