"""The exact regime: all images as one batch, handed over again and again, on which each step solves a block."""

from typing import Any, Protocol

import tensorflow as tf
from keras import ops

from keras_bilinear.data.arrays import Batch
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.monitoring.same_fit import digest_of
from keras_bilinear.parts.log_names import INNER_ITERATIONS, logs_of_step
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.model_protocol import RegressionModel

VALIDATION_BATCH = 4096
"""So many held-out images are looked at together unless told otherwise."""


class ExactModel(RegressionModel, Protocol):
    """What a step asks of a regression model."""

    @property
    def num_blocks(self) -> int: ...
    def reset_metrics(self) -> None: ...
    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Any) -> dict[str, Any]: ...
    def _assign(self, parameters: Any) -> None: ...


def exact_step(model: ExactModel, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Solves the active block on all the data and passes the turn to the next; the logs of the step."""
    # A graph that serves batches of several sizes no longer knows their rank.
    images, weight = model._images(x), ops.reshape(weight, (-1,))
    C = targets(y, model.units, weight.dtype)
    schedule, active = model.schedule, model.schedule.active.value % model.num_blocks
    parameters, solution = model._solved(images, Samples(C, bm.normalised_weights(weight)), active)
    model._assign(parameters)
    schedule.active.assign(active)
    schedule.record(active, solution.grad_norm, steps=solution.iterations)
    schedule.finish_block(solution.initial_objective, solution.objective, model.num_blocks)
    model.optimizer.iterations.assign_add(1)
    z = ops.reshape(solution.logits, (-1, model.units))  # a shared graph may not know its shape
    # Metrics of the present model, not a mean over the blocks of the sweep.
    model.reset_metrics()
    logs = model.compute_metrics(x, y, bm.probabilities(z), sample_weight=weight)
    step = logs_of_step(solution.objective, model.penalty(), solution.step_size, active, solution.grad_norm)
    return {**logs, **step, INNER_ITERATIONS: solution.iterations}


def exact_options(options: dict[str, Any], batch: Batch, num_blocks: int) -> dict[str, Any]:
    """The options of a `fit` in which an epoch is a sweep over all blocks on one batch of tensors."""
    # Labels and weights are in the data set, and it is one batch.
    rest = {name: value for name, value in options.items() if name not in ("y", "sample_weight", "batch_size")}
    return {
        **rest,
        "x": repeated(tuple(batch)),
        "shuffle": False,
        "steps_per_epoch": options.get("steps_per_epoch") or num_blocks,
        "validation_batch_size": options.get("validation_batch_size") or VALIDATION_BATCH,
    }


def repeated(batch: tuple[Tensor, ...]) -> tf.data.Dataset:
    """One batch, again and again, with nothing to tune or to rewrite.

    A tuner may sleep at the end of a fit for as long as that took, and rewriting copies the images.
    """
    plain = tf.data.Options()
    plain.autotune.enabled = False
    plain.experimental_optimization.apply_default_optimizations = False
    return tf.data.Dataset.from_tensors(batch).repeat().with_options(plain)


def refuse_change(batch: Batch, before: str | None) -> str:
    """What identifies the batch; a ValueError if `before` is that of another: J would rise from batch to batch."""
    digest = digest_of(batch)
    if before not in (None, digest):
        raise ValueError(
            "Expected the same full batch in every call: BlockLineSearch solves each block on all the data. "
            "Received: another batch than before. Compile anew to change the data, or use a Keras optimizer."
        )
    return digest
