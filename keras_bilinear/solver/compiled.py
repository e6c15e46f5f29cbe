"""Steps of the solver as graphs that all models share: traced, or compiled by XLA, once in a process."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver.descent import Direction


@dataclass(frozen=True)
class Compiled:
    """`function` as a graph of its tensors, the first of which are X and the samples. Equal ones are one graph.

    Fields:
        function: What is computed. Its first two arguments are tensors (T, ...), or tuples of such.
        jit: Whether by XLA, which compiles it for each number of images; else it is traced once for any number.
        penalty, blocks, direction: Its settings, None for those it does not take.
    """

    function: Callable[..., Any]
    jit: bool
    penalty: type[Penalty] | None = None
    blocks: str | None = None
    direction: Direction | None = None

    def __call__(self, X: Tensor, samples: Samples, *tensors: Any) -> Any:
        graph = graph_of(self)
        if self.jit:
            return graph(X, samples, *tensors)
        any_number = tf.nest.map_structure(of_any_length, (X, samples))
        return graph.get_concrete_function(*any_number, *tensors)(X, samples, *tensors)


@functools.cache
def graph_of(step: Compiled) -> Any:
    """The graph, not traced yet."""
    settings = {"penalty": step.penalty, "blocks": step.blocks, "direction": step.direction}
    given = {name: setting for name, setting in settings.items() if setting is not None}

    def fixed(X: Tensor, samples: Samples, *tensors: Any) -> Any:
        return step.function(X, samples, *tensors, **given)

    return tf.function(fixed, autograph=False, jit_compile=step.jit or None)


def of_any_length(tensor: Tensor) -> tf.TensorSpec:
    """What is known of `tensor` (T, ...) whatever T is."""
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)
