"""Where the alternation stands: state that is saved with the model, so that training can resume bit for bit."""

from typing import Any

import keras
from keras import ops

from keras_bilinear.bilinear_math import Tensor


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BlockSchedule(keras.layers.Layer):
    """Counts blocks and sweeps and remembers the objective at the end of each.

    A sweep visits every block once. All state sits in non-trainable variables: `active` (the block that moves
    next), `sweep` (finished sweeps), `objective` and `previous_objective` (J after the last two sweeps),
    `epoch_objective` (mean loss of the last mini-batch epoch), `loss_sum` and `steps` (the running epoch) and
    `block_steps` (updates each block has received, for Adam's bias correction).

    Args:
        num_blocks: How many blocks the model has at the finest division, 2 L a layer.
    """

    def __init__(self, num_blocks: int, **kwargs: Any):
        super().__init__(**{"trainable": False, "dtype": "float32", **kwargs})
        self.num_blocks = num_blocks
        self.active = self._state("active", "int32")
        self.sweep = self._state("sweep", "int32")
        self.steps = self._state("steps", "int32")
        self.block_steps = self._state("block_steps", "int32", shape=(num_blocks,))
        self.loss_sum = self._state("loss_sum", "float32")
        self.objective = self._state("objective", "float32", start=float("inf"))
        self.previous_objective = self._state("previous_objective", "float32", start=float("inf"))
        self.epoch_objective = self._state("epoch_objective", "float32", start=float("inf"))
        self.built = True

    def _state(self, name: str, dtype: str, shape: tuple[int, ...] = (), start: float = 0.0) -> keras.Variable:
        initializer = keras.initializers.Constant(start)
        return self.add_weight(
            name=name, shape=shape, dtype=dtype, initializer=initializer, trainable=False, autocast=False
        )

    def finish_block(self, J: Tensor, num_blocks: int) -> None:
        """Moves to the next block of `num_blocks`; after the last one, J is what the sweep ended at."""
        following = self.active.value + 1
        ended = following >= num_blocks
        self.previous_objective.assign(ops.where(ended, self.objective.value, self.previous_objective.value))
        self.objective.assign(ops.where(ended, ops.cast(J, "float32"), self.objective.value))
        self.sweep.assign_add(ops.cast(ended, "int32"))
        self.active.assign(ops.where(ended, ops.zeros_like(following), following))

    def observe(self, loss: Tensor) -> Tensor:
        """Adds one mini-batch loss to the running epoch and returns the epoch's mean so far."""
        self.loss_sum.assign_add(ops.cast(loss, "float32"))
        self.steps.assign_add(1)
        return self.running_objective()

    def running_objective(self) -> Tensor:
        """Mean loss of the running mini-batch epoch; infinite before its first step."""
        steps = ops.cast(self.steps.value, "float32")
        return ops.where(steps > 0, self.loss_sum.value / steps, float("inf"))

    def block_converged(self, block_rtol: float) -> bool:
        """Whether the running epoch lowered the mean loss by no more than `block_rtol` of it."""
        now = float(self.running_objective())
        return not float(self.epoch_objective.value) - now > block_rtol * abs(now)

    def close_epoch(self, block_rtol: float) -> None:
        """Ends a mini-batch epoch that took steps; the next block is up if this one has converged.

        Called as the next epoch begins, so a model saved when an epoch ends resumes with the same decision
        whatever the order of the callbacks.
        """
        if not int(self.steps.value):
            return
        converged, now = self.block_converged(block_rtol), self.running_objective()
        self.epoch_objective.assign(now)
        self.loss_sum.assign(0.0)
        self.steps.assign(0)
        if converged:
            self.finish_block(now, self.num_blocks)

    def sweep_improvement(self, block_rtol: float) -> float | None:
        """How much the sweep that ends now has lowered J, relative to J; None in the middle of a sweep.

        Decides without changing anything. A mini-batch sweep ends with the epoch in which its last block
        converges, which `close_epoch` will record.
        """
        if int(self.steps.value):
            last = int(self.active.value) == self.num_blocks - 1
            if not last or not self.block_converged(block_rtol):
                return None
            before, now = float(self.objective.value), float(self.running_objective())
        else:
            if int(self.active.value) != 0:
                return None
            before, now = float(self.previous_objective.value), float(self.objective.value)
        return (before - now) / max(abs(now), 1e-30)

    def restart(self) -> None:
        """Back to the first block, as if no training had happened."""
        for variable in self.variables:
            variable.assign(ops.zeros_like(variable.value))
        for variable in (self.objective, self.previous_objective, self.epoch_objective):
            variable.assign(float("inf"))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_blocks": self.num_blocks}
