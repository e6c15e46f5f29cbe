"""Gradients of a mini-batch that several replicas have divided among themselves."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.parts.losses import losses_by_output
from keras_bilinear.parts.optimizers import inner_optimizer

MEANS = ("sum_over_batch_size", "mean")
"""Reductions of a loss for which that of all replicas follows from theirs and how many samples each has."""


def expect_replicable(optimizer: Any, loss: Any, outputs: list[str], jit_compile: Any) -> None:
    """Raises a ValueError for what several replicas cannot train together with a Keras optimizer."""
    if not isinstance(inner_optimizer(optimizer).iterations.value, tf.distribute.DistributedValues):
        raise ValueError(
            "Expected the optimizer to be made where the model was, in `strategy.scope()`, or to be given by its "
            f"name. Received: a {type(optimizer).__name__} made outside"
        )
    for each in losses_by_output(loss, outputs):
        reduction = getattr(each, "reduction", MEANS[0])
        if reduction not in MEANS:
            raise ValueError(
                f"Expected a loss with reduction={MEANS[0]!r} under several replicas. Received: {reduction!r}"
            )
    if jit_compile is True:
        raise ValueError("Expected no `jit_compile=True` under several replicas, which have to meet in every step.")


def over_replicas(loss: Tensor, samples: Tensor, gradients: Any) -> tuple[Tensor, Tensor, Any]:
    """The mean loss, the number of samples and the gradients of all replicas together, by one reduction.

    Args:
        loss: Of this replica, as Keras has it: the mean over its samples, divided by the number of replicas.
        samples: How many it has, perhaps none.
        gradients: Of that loss, nested in any way.

    What Keras makes of them is the mean of means, which is wrong where replicas have samples of different numbers.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    if replicas == 1:
        return loss, samples, gradients
    parts = [loss, *present(tf.nest.flatten(gradients))]
    dtype = keras.backend.result_type(*(part.dtype for part in parts))
    here = ops.cast(samples, dtype)
    mine = [tf.reshape(ops.cast(part, dtype), [-1]) for part in parts]
    sums = ops.where(here > 0, tf.concat(mine, axis=0) * (here * replicas), 0.0)
    reduced = context.all_reduce("SUM", tf.concat([here[None], sums], axis=0))
    means = tf.split(reduced[1:] / reduced[0], [ops.size(part) for part in parts])
    whole = [
        ops.cast(ops.reshape(mean, ops.shape(part)), part.dtype) for mean, part in zip(means, parts, strict=True)
    ]
    rest = iter(whole[1:])
    gradients = tf.nest.map_structure(lambda part: None if part is None else next(rest), gradients)
    return whole[0], ops.cast(reduced[0], "int32"), gradients


def for_the_sum(gradients: list[Tensor]) -> list[Tensor]:
    """Gradients of all replicas, for an optimizer that will add up those of each: one has them, the others nothing.

    So what it does to them before, such as clipping, is what it does to those of a single replica.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    is_first = ops.equal(context.replica_id_in_sync_group, 0)
    return [None if each is None else ops.where(is_first, each, ops.zeros_like(each)) for each in gradients]


def present(gradients: list[Tensor]) -> list[Tensor]:
    """Those that there are: the loss may not depend on a variable."""
    return [gradient for gradient in gradients if gradient is not None]
