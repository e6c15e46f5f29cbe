"""When a block, and when the whole fit, has converged."""

import warnings
from typing import Any

import keras

from keras_bilinear.arguments import non_negative
from keras_bilinear.schedule import BlockSchedule


class ConvergenceWarning(UserWarning):
    """The fit ran out of epochs before it converged."""


class BlockConvergence(keras.callbacks.Callback):
    """Stops the fit once a full sweep over the blocks improves J by less than `rtol` of it.

    In the exact regime every step solves a block, and this callback only decides when to stop. On mini-batches
    it also decides when a block has converged: when an epoch lowers the mean loss by no more than `block_rtol`
    of it, the next block is up. All it needs to know is saved with the model, so an interrupted fit resumes with
    the same decisions.

    Args:
        rtol: Relative decrease of J over a sweep below which the fit has converged.
        block_rtol: Relative decrease of the mean loss over an epoch below which a block has converged
            (mini-batches only).

    Attributes:
        reason: After the fit, why it ended, in words.
        converged: After the fit, whether it ended because it converged.

    Example:
        >>> model.fit(x, y, epochs=200, callbacks=[keras_bilinear.callbacks.BlockConvergence(rtol=1e-5)])
    """

    passes_turns = True

    def __init__(self, rtol: float = 1e-5, block_rtol: float = 1e-2):
        super().__init__()
        self.rtol = non_negative("rtol", rtol)
        self.block_rtol = non_negative("block_rtol", block_rtol)
        self.converged = False
        self.reason = "not fitted yet"
        self._sweep = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not isinstance(getattr(self.model, "schedule", None), BlockSchedule):
            raise ValueError("Expected a model that trains block by block, such as BilinearSoftmaxRegression.")
        self.converged = False
        self.reason = "the epochs ran out"

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.schedule.close_epoch(self.block_rtol)
        self._sweep = int(self.model.schedule.sweep.value)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        schedule = self.model.schedule
        if not float(schedule.samples.value) and int(schedule.sweep.value) == self._sweep:
            return  # no sweep ended in this epoch
        improvement = schedule.sweep_improvement(self.block_rtol)
        if improvement <= self.rtol:
            self.converged = True
            self.reason = f"converged: the last sweep improved J by {improvement:.1e} of it, rtol={self.rtol:g}"
            self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.converged:
            return
        if self.model.stop_training:
            self.reason = "another callback stopped the fit"
            return
        warnings.warn(
            f"The fit has not converged: the epochs ran out before a sweep improved J by less than {self.rtol:g} "
            "of it. Give `fit` more epochs, or a larger `rtol`.",
            ConvergenceWarning,
            stacklevel=2,
        )
