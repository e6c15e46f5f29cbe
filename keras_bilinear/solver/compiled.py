"""Steps of the solver as graphs that all models share: traced once in a process, or compiled for each shape."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty

_tell: ContextVar[Callable[[], None]] = ContextVar("tell", default=lambda: None)
_made: set[tuple[Any, ...]] = set()
"""The graphs there are: steps, with what is known of their tensors."""


@contextlib.contextmanager
def told(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` before a graph is made, which takes seconds."""
    before = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(before)


@dataclass(frozen=True)
class Compiled:
    """`function` as a graph of its tensors. Equal ones are one graph.

    Fields:
        function: What is computed, of tensors or tuples of such.
        jit: Whether by XLA, which compiles it for each shape; else it is traced once for tensors of any size.
        penalty, blocks, direction, grain: Its settings, None for those it does not take.
    """

    function: Callable[..., Any]
    jit: bool
    penalty: type[Penalty] | None = None
    blocks: str | None = None
    direction: Callable[..., Tensor] | None = None
    grain: str | None = None

    def __call__(self, *tensors: Any) -> Any:
        if self.jit:
            self.announce(shapes_of(tensors))
            return graph_of(self)(*tensors)
        known = tf.nest.map_structure(of_any_size, tensors)
        # TensorFlow would take the graph of many classes for K = 1, too, which has another formula.
        ones = shapes_of(known)
        self.announce(ones)
        return graph_of(self, ones).get_concrete_function(*known)(*tensors)

    def announce(self, shapes: tuple[Any, ...]) -> None:
        """Tells who listens, if there is no graph yet for tensors of these shapes."""
        if (self, shapes) not in _made:
            _made.add((self, shapes))
            _tell.get()()


@functools.cache
def graph_of(step: Compiled, ones: tuple[Any, ...] = ()) -> Any:
    """The graph, not traced yet, for tensors that have `ones` among their sizes."""
    settings = {name: getattr(step, name) for name in ("penalty", "blocks", "direction", "grain")}
    given = {name: setting for name, setting in settings.items() if setting is not None}

    def fixed(*tensors: Any) -> Any:
        return step.function(*tensors, **given)

    return tf.function(fixed, autograph=False, jit_compile=step.jit or None)


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which graphs that call it in several places hold once."""
    return tf.function(function, autograph=False)


def loop(unfinished: Callable[..., Tensor], step: Callable[..., Any], state: tuple[Any, ...]) -> tuple[Any, ...]:
    """`keras.ops.while_loop` for a state whose tensors keep their shapes, which need not be known."""

    def keeping_shapes(*state: Any) -> Any:
        return tf.nest.map_structure(lambda new, old: tf.ensure_shape(new, old.shape), step(*state), state)

    return ops.while_loop(unfinished, keeping_shapes, state)


def shapes_of(tensors: Any) -> tuple[Any, ...]:
    """The shape and the dtype of each, as something that can be looked up."""
    return tuple((tuple(part.shape), part.dtype) for part in tf.nest.flatten(tensors) if part is not None)


def of_any_size(tensor: Tensor | None) -> tf.TensorSpec | None:
    """What a graph is to know of `tensor`: its rank, and whether the last of its sizes, often K, is one."""
    if tensor is None:
        return None
    last = len(tensor.shape) - 1
    sizes = [1 if size == 1 and axis == last else None for axis, size in enumerate(tensor.shape)]
    return tf.TensorSpec(sizes, tensor.dtype)
