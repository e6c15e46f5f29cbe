"""Several replicas of a model, as `tf.distribute` makes them: on devices of one machine, or of several workers."""

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bilinear.maths.bilinear import Tensor

REFUSED = (
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
    tf.distribute.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
)
"""Strategies whose replicas do not take every step together, or not by Keras: it has dropped parameter servers."""

METRICS_ADD_UP = "synchronization" in inspect.signature(keras.Variable).parameters
"""Whether Keras adds up what replicas have counted; releases before that give wrong metrics, without a word."""


def expect_mirrored(strategy: tf.distribute.Strategy, steps_per_execution: int) -> None:
    """Raises a ValueError for a strategy, or loops within it, by which models of this package are not trained."""
    if isinstance(strategy, REFUSED):
        raise ValueError(
            "Expected tf.distribute.MirroredStrategy for several devices, MultiWorkerMirroredStrategy for several "
            f"machines, or none. Received: {type(strategy).__name__}, under which replicas would drift apart"
        )
    if strategy.num_replicas_in_sync == 1:
        return
    if not METRICS_ADD_UP:
        raise ValueError(
            "Expected a newer Keras for several replicas: this one does not add up what metrics have counted. "
            f"Received: Keras {keras.__version__}"
        )
    if steps_per_execution > 1:
        raise ValueError(
            "Expected steps_per_execution=1 under several replicas, which cannot meet within a loop of a graph. "
            f"Received: {steps_per_execution}"
        )


def has_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas are those of several processes, which find each other by TF_CONFIG."""
    mirrored = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return mirrored and bool(strategy.cluster_resolver.cluster_spec().as_dict())


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files: the chief, or the first worker where there is none."""
    if not has_workers(strategy):
        return True
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict()
    return resolver.task_type == ("chief" if "chief" in cluster else "worker") and resolver.task_id == 0


def total(strategy: tf.distribute.Strategy, parts: Sequence[tf.Variable]) -> list[Tensor]:
    """The sums over all replicas of variables that each has values of its own for, by one reduction; float64."""
    replicas = zip(*(strategy.experimental_local_results(part) for part in parts), strict=True)
    here = tf.add_n([flat(values) for values in replicas])
    return split_like(sum_of_workers(strategy, here), parts)


def of_first(strategy: tf.distribute.Strategy, parts: Sequence[Any]) -> list[Tensor]:
    """What tensors or variables are on the first worker: others may have rounded otherwise.

    Within a process all replicas are given the same anyway.
    """
    mine = flat(parts)
    numbers = sum_of_workers(strategy, mine if is_chief(strategy) else tf.zeros_like(mine))
    return [tf.cast(value, part.dtype) for value, part in zip(split_like(numbers, parts), parts, strict=True)]


def of_first_replica(strategy: tf.distribute.Strategy, values: Any) -> Any:
    """What the first replica of this process has, nested as it is."""
    return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], values)


def agree(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
    """Gives variables the values that they have on the first worker."""
    if has_workers(strategy):
        for variable, value in zip(variables, of_first(strategy, variables), strict=True):
            variable.assign(value)


def sum_of_workers(strategy: tf.distribute.Strategy, mine: Tensor) -> Tensor:
    """The sum of what each worker has; waits for all of them."""
    if not has_workers(strategy):
        return mine
    replicas = itertools.chain([mine], itertools.repeat(tf.zeros_like(mine)))
    values = strategy.experimental_distribute_values_from_function(lambda context: next(replicas))
    return strategy.reduce("SUM", values, axis=None)


def numbers_of_workers(strategy: tf.distribute.Strategy, number: int) -> list[int]:
    """The number that each worker gives; waits for all of them."""
    if not has_workers(strategy):
        return [number]
    values = strategy.experimental_distribute_values_from_function(lambda context: tf.constant([number], "int64"))
    return strategy.gather(values, axis=0).numpy().tolist()


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    """Goes on once all workers have come here."""
    numbers_of_workers(strategy, 0)


def flat(parts: Sequence[Any]) -> Tensor:
    """All numbers one after the other in float64, which holds those of every other type."""
    return tf.concat([tf.reshape(tf.cast(tf.convert_to_tensor(part), "float64"), [-1]) for part in parts], axis=0)


def split_like(numbers: Tensor, parts: Sequence[Any]) -> list[Tensor]:
    """What `flat` has put together, in the shapes of the parts."""
    sizes = [math.prod(part.shape) for part in parts]
    return [tf.reshape(each, part.shape) for each, part in zip(tf.split(numbers, sizes), parts, strict=True)]
