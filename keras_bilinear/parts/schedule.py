"""Where the alternation stands: state that is saved with the model, so that training can resume bit for bit."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.maths.bilinear import Tensor


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BlockSchedule(keras.layers.Layer):
    """Counts blocks and sweeps and remembers the objective at the end of each.

    A sweep visits every block once. All state sits in non-trainable variables: `active` (the block that moves
    next), `sweep` (finished sweeps), `sweep_start` (J where the running sweep began), `previous_objective` and
    `objective` (J where the last finished one began and ended),
    `epoch_objective` (mean loss of the last mini-batch epoch), `loss_sum` and `samples` (the running epoch) and
    `block_steps` (updates each block has received since `compile`: line searches, or gradient steps, whose count
    Adam's bias correction needs) and `grad_norms` (|gradient| of each block at its last step, NaN before).

    Args:
        num_blocks: How many blocks the model has at the finest division, 2 L a layer.
    """

    def __init__(self, num_blocks: int, **kwargs: Any):
        super().__init__(**{"trainable": False, "dtype": "float32", **kwargs})
        self.num_blocks = num_blocks
        self.active = self._state("active", "int32")
        self.sweep = self._state("sweep", "int32")
        self.samples = self._state("samples", "float32")
        self.block_steps = self._state("block_steps", "int32", shape=(num_blocks,))
        self.grad_norms = self._state("grad_norms", "float32", shape=(num_blocks,), start=float("nan"))
        self.loss_sum = self._state("loss_sum", "float32")
        self.objective = self._state("objective", "float32", start=float("inf"))
        self.previous_objective = self._state("previous_objective", "float32", start=float("inf"))
        self.sweep_start = self._state("sweep_start", "float32", start=float("inf"))
        self.epoch_objective = self._state("epoch_objective", "float32", start=float("inf"))
        self.built = True

    def _state(self, name: str, dtype: str, shape: tuple[int, ...] = (), start: float = 0.0) -> keras.Variable:
        initializer = keras.initializers.Constant(start)
        variable = self.add_weight(
            name=name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            trainable=False,
            autocast=False,
            aggregation="only_first_replica",  # all have the same
        )
        # No part of what the model computes, and not finite before the first sweep.
        variable.is_training_state = True
        return variable

    def finish_block(self, before: Tensor, after: Tensor, num_blocks: int) -> None:
        """Moves to the next block of `num_blocks`, which took J from `before` to `after`.

        Both ends of a sweep are kept as they were measured in it: J of an earlier fit may be that of other data.
        """
        following = self.active.value + 1
        began, ended = ops.equal(self.active.value, 0), following >= num_blocks
        before, after = ops.cast(before, "float32"), ops.cast(after, "float32")
        self.sweep_start.assign(ops.where(began, before, self.sweep_start.value))
        self.previous_objective.assign(ops.where(ended, self.sweep_start.value, self.previous_objective.value))
        self.objective.assign(ops.where(ended, after, self.objective.value))
        self.sweep.assign_add(ops.cast(ended, "int32"))
        self.active.assign(ops.where(ended, ops.zeros_like(following), following))

    def record(self, active: Tensor, grad_norm: Tensor, steps: Tensor) -> None:
        """Notes that block `active` took `steps` updates, and the norm of its gradient there."""
        here = ops.equal(ops.arange(self.num_blocks), active)
        self.block_steps.assign_add(ops.where(here, ops.cast(steps, "int32"), 0))
        self.grad_norms.assign(ops.where(here, ops.cast(grad_norm, "float32"), self.grad_norms.value))

    def begin_fit(self) -> None:
        """A sweep that an earlier fit has left unfinished says nothing of convergence: J was that of other data."""
        if int(self.active.numpy()):
            self.sweep_start.assign(float("inf"))

    def observe(self, loss: Tensor, samples: Tensor) -> Tensor:
        """Adds the mean loss of a mini-batch to the running epoch; returns the epoch's mean over samples so far."""
        self.loss_sum.assign_add(ops.cast(loss, "float32") * ops.cast(samples, "float32"))
        self.samples.assign_add(ops.cast(samples, "float32"))
        return self.running_objective()

    def running_objective(self) -> Tensor:
        """Mean loss of the running mini-batch epoch; infinite before its first step."""
        samples = self.samples.value
        return ops.where(samples > 0, self.loss_sum.value / samples, float("inf"))

    def block_converged(self, block_rtol: float) -> bool:
        """Whether the running epoch lowered the mean loss by no more than `block_rtol` of it."""
        now = float(self.running_objective())
        return not float(self.epoch_objective.numpy()) - now > block_rtol * abs(now)

    def close_epoch(self, block_rtol: float) -> None:
        """Ends a mini-batch epoch that took steps; the next block is up if this one has converged.

        Called as the next epoch begins, so a model saved when an epoch ends resumes with the same decision
        whatever the order of the callbacks.
        """
        if not float(self.samples.numpy()):
            return
        converged, now = self.block_converged(block_rtol), self.running_objective()
        self.epoch_objective.assign(now)
        self.loss_sum.assign(0.0)
        self.samples.assign(0.0)
        if converged:
            self.finish_block(self.objective.value, now, self.num_blocks)

    def ends_sweep(self, block_rtol: float) -> bool:
        """Whether the running mini-batch epoch ends a sweep, which `close_epoch` will record."""
        if not float(self.samples.numpy()) or int(self.active.numpy()) < self.num_blocks - 1:
            return False
        return self.block_converged(block_rtol)

    def finished_sweeps(self, block_rtol: float | None) -> int:
        """Finished sweeps, with that of the running mini-batch epoch unless `block_rtol` is None."""
        return int(self.sweep.numpy()) + int(block_rtol is not None and self.ends_sweep(block_rtol))

    def sweep_improvement(self, block_rtol: float) -> float:
        """How much the last sweep has lowered J, relative to J, without changing anything.

        A mini-batch sweep ends with the epoch in which its last block converges, which `close_epoch` will record;
        until then the improvement is infinite.
        """
        before, now = float(self.previous_objective.numpy()), float(self.objective.numpy())
        if float(self.samples.numpy()):
            if not self.ends_sweep(block_rtol):
                return math.inf
            before, now = now, float(self.running_objective())
        return max(relative_decrease(before, now), 0.0)

    def forget_steps(self) -> None:
        """No block has been updated by the optimizer yet: for a new optimizer."""
        self.block_steps.assign(ops.zeros_like(self.block_steps.value))
        self.grad_norms.assign(ops.full_like(self.grad_norms.value, float("nan")))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_blocks": self.num_blocks}


def relative_decrease(before: Any, now: Any) -> Any:
    """How much J has fallen, relative to J; negative where it rose. Numbers or arrays."""
    with np.errstate(invalid="ignore"):  # infinity over infinity
        return (before - now) / np.maximum(np.abs(now), 1e-30)
