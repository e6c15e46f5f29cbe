"""What there is to draw of a model, a layer or a network."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.layers_within import named_layers, parameter_count

SILENT = 1e-6
"""Ranks below this part of the strongest one are zero, but for rounding."""


class Drawn(NamedTuple):
    """Some filters and what they are made of.

    Fields:
        name: Of the model, with its rank.
        numbers: How many it has.
        W: (K, M, N).
        A: (L, M, K) in canonical form, without ranks that are zero in all classes; None for a linear model.
        B: (L, N, K).
        colours: The filters as images of three channels, (K, rows, columns, 3), or None.
    """

    name: str
    numbers: int
    W: np.ndarray
    A: np.ndarray | None = None
    B: np.ndarray | None = None
    colours: np.ndarray | None = None

    @property
    def shown(self) -> np.ndarray:
        """The filters as they are seen: in colours, if there are any."""
        return self.W if self.colours is None else self.colours


def drawn_of(given: Sequence[Any]) -> list[Drawn]:
    """All that is to be drawn, or a ValueError if it cannot be drawn in one picture."""
    found = [parts_of(each) for each in given]
    if not found or not all(found):
        received = ", ".join(type(each).__name__ for each in given) or "none"
        raise ValueError(
            "Expected regression models of keras_bilinear, built BilinearDense layers or networks with such, one "
            f"or a list. Received: {received}"
        )
    units = [each.units for each in given if isinstance(each, ImageRegression)]
    if len(set(units)) > 1:
        raise ValueError(f"Expected models for the same classes. Received: models with units={units}")
    return [part for parts in found for part in parts]


def parts_of(each: Any) -> list[Drawn]:
    """What one model, layer or network has; empty for anything else."""
    if isinstance(each, ImageRegression):
        each._expect_built()
        head = each.head if isinstance(each, BilinearRegression) else None
        part = drawn(short_name(each), parameter_count(each), each.weight_matrices(), head)
        return [part._replace(colours=each.filter_images()) if each.image_shape[2:] == (3,) else part]
    if isinstance(each, BilinearDense):
        return [layer_drawn(each.name, each)] if each.built else []
    layers = named_layers(each) if isinstance(each, keras.Model) and each.built else {}
    return [layer_drawn(name, layer) for name, layer in layers.items()]


def layer_drawn(name: str, layer: BilinearDense) -> Drawn:
    """The filters of a layer's units."""
    W = ops.convert_to_numpy(bm.merged_weights(layer.A, layer.B))
    return drawn(f"{name}\n$L$ = {layer.rank}", parameter_count(layer), W, layer)


def drawn(name: str, numbers: int, W: np.ndarray, head: BilinearDense | None) -> Drawn:
    """With the factors, if there are any."""
    if head is None:
        return Drawn(name, numbers, W)
    A, B = (ops.convert_to_numpy(part) for part in bm.canonical_factors(head.A, head.B))
    strength = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    counts = strength > SILENT * max(strength.max(), np.finfo("float32").tiny)
    used = max(int(counts.any(axis=1).sum()), 1)  # the strongest come first
    A, B = (np.where(counts[:used, None, :], part[:used], np.nan) for part in (A, B))
    return Drawn(name, numbers, W, A, B)


def short_name(model: ImageRegression) -> str:
    """The paper's name of a model, BSR for BilinearSoftmaxRegression, and its rank."""
    initials = "".join(letter for letter in type(model).__name__ if letter.isupper())
    if not isinstance(model, BilinearRegression):
        return initials
    used = np.unique(model.ranks()) if model._rank_is_automatic else np.array([model.rank])
    return f"{initials}\n$L$ = {used[0]}" + (f" to {used[-1]}" if len(used) > 1 else "")
