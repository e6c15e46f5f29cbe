"""When a block, and when the whole fit, has converged."""

import warnings
from typing import Any

import keras

from keras_bilinear.arguments import non_negative
from keras_bilinear.certificate import Certificate, certificate_of_fit, expect_arrays
from keras_bilinear.schedule import expect_schedule


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
        gap: Also stop as soon as the fit is certified to be within this fraction of the optimal J (`fit` on arrays
            only); see `keras_bilinear.certificate`.

    Attributes:
        reason: After the fit, why it ended, in words.
        converged: After the fit, whether it ended because it converged.
        certificate: The last one that was taken, if `gap` was given.

    Example:
        >>> model.fit(x, y, epochs=200, callbacks=[keras_bilinear.callbacks.BlockConvergence(rtol=1e-5)])
    """

    passes_turns = True
    warns = True
    """Whether a fit that has not converged is told by a warning too, and not by `converged` and `reason` alone."""

    def __init__(self, rtol: float = 1e-5, block_rtol: float = 1e-2, gap: float | None = None):
        super().__init__()
        self.rtol = non_negative("rtol", rtol)
        self.block_rtol = non_negative("block_rtol", block_rtol)
        self.gap = None if gap is None else non_negative("gap", gap)
        self.certificate: Certificate | None = None
        self.converged = False
        self.reason = "not fitted yet"
        self._sweep = 0

    def check_fit(self, model: Any, options: dict[str, Any]) -> None:
        """Raises a ValueError where this callback cannot work, before the fit has changed anything."""
        expect_schedule(model)
        if self.gap is not None:
            expect_arrays(model, options)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        expect_schedule(self.model)  # `keras.Model.fit` calls no `check_fit`
        self.converged = False
        self.reason = "the epochs ran out"
        # Shared with the History of this fit, which `plots.plot_convergence` reads.
        self.params.update(rtol=self.rtol, block_rtol=self.block_rtol)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.schedule.close_epoch(self.block_rtol)
        self._sweep = int(self.model.schedule.sweep.numpy())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        schedule = self.model.schedule
        if schedule.ranks_are_growing:
            return  # `AutomaticRank` ends this fit: that the present ranks have converged is no reason
        if not float(schedule.samples.numpy()) and int(schedule.sweep.numpy()) == self._sweep:
            return  # no sweep ended in this epoch
        improvement = schedule.sweep_improvement(self.block_rtol)
        # A fit that still improves by more than `gap` is not within it.
        if self.gap is not None and improvement <= max(self.gap, self.rtol):
            self.certificate = certificate_of_fit(self.model)
            if self.certificate.gap <= self.gap * abs(self.certificate.objective):
                self.stop(f"certified: J is at most {self.certificate.gap:.1e} above the optimum, gap={self.gap:g}")
                return
        if improvement <= self.rtol:
            self.stop(f"converged: the last sweep improved J by {improvement:.1e} of it, rtol={self.rtol:g}")

    def stop(self, reason: str) -> None:
        """Ends the fit, which has converged."""
        self.converged, self.reason = True, reason
        self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.converged:
            return
        if self.model.stop_training:
            self.reason = "another callback stopped the fit"
            return
        if self.model.schedule.ranks_are_growing:
            return  # `AutomaticRank` warns
        if not self.warns:
            return
        warnings.warn(
            f"The fit has not converged: the epochs ran out before a sweep improved J by less than {self.rtol:g} "
            "of it. Give `fit` more epochs, or a larger `rtol`.",
            ConvergenceWarning,
            stacklevel=2,
        )
