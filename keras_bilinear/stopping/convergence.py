"""When a block, and when the whole fit, has converged."""

import math
import warnings
from typing import Any

import keras

from keras_bilinear.arguments import non_negative
from keras_bilinear.parts.model_protocol import BlockModel, expect_schedule
from keras_bilinear.stopping.certificate import Certificate, certificate_of_fit, expect_data_of_fit
from keras_bilinear.stopping.stationarity import decrease_in_sight
from keras_bilinear.tables import percent


class ConvergenceWarning(UserWarning):
    """The fit ran out of epochs before it converged, or stalled."""


RANKS_GROW = "ranks_grow"
"""What `AutomaticRank` adds to the `params` of a fit, which its callbacks share."""
SLACK = 3
"""A fit has stalled, not converged, where a Newton step would lower J by more than so many `rtol` of it."""
TOO_FEW_DIGITS = "and float32 holds too few digits of the pixels to tell how far the optimum is"
ADVICE_IF_STALLED = (
    "pixels of very different sizes, or far from zero, may be more than float32 can tell apart: standardise them, "
    'subtract their mean (`use_bias=True` keeps what that takes away), or try inner="newton_cg"'
)


class BlockConvergence(keras.callbacks.Callback):
    """Stops the fit once a sweep over the blocks lowers J by less than `rtol`, relative to J.

    In the exact regime every step solves a block, and this callback only decides when to stop. On mini-batches
    it also decides when a block has converged: when an epoch lowers the mean loss by no more than `block_rtol`,
    relative to it, the next block is up. All it needs to know is saved with the model: an interrupted fit resumes
    with the same decisions.

    That J hardly falls is no proof of an optimum. So the callback asks how much a Newton step would lower it, which
    does not depend on the unit of the pixels (see `keras_bilinear.stopping.stationarity`); if by clearly more than
    `rtol`, the fit has not converged but stalled. On data sets in mini-batches, and for networks, J alone decides.

    Args:
        rtol: Relative decrease of J over a sweep below which the fit has converged.
        block_rtol: Relative decrease of the mean loss over an epoch below which a block has converged
            (mini-batches only).
        gap: Also stop as soon as the fit is certified to be within this fraction of the optimal J (not on
            mini-batches of a data set); see `keras_bilinear.stopping.certificate`.

    Attributes:
        reason: After the fit, why it ended, in words.
        converged: After the fit, whether it ended because it converged.
        stalled: After the fit, whether it ended because J no longer fell, far from an optimum.
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
        self.converged = self.stalled = False
        self.reason = "not fitted yet"
        self._sweep = 0

    def check_fit(self, model: BlockModel, options: dict[str, Any]) -> None:
        """Raises a ValueError where this callback cannot work, before the fit has changed anything."""
        expect_schedule(model)
        if self.gap is not None:
            expect_data_of_fit(model, options)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        expect_schedule(self.model)  # `keras.Model.fit` calls no `check_fit`
        self.converged = self.stalled = False
        self.reason = "the epochs ran out"
        self.certificate = None
        # Shared with the History of this fit, which `plots.plot_convergence` reads.
        self.params.update(rtol=self.rtol, block_rtol=self.block_rtol)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.schedule.close_epoch(self.block_rtol)
        self._sweep = int(self.model.schedule.sweep.numpy())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        schedule = self.model.schedule
        if self.ranks_grow:
            return  # `AutomaticRank` ends this fit: that the present ranks have converged is no reason
        if not float(schedule.samples.numpy()) and int(schedule.sweep.numpy()) == self._sweep:
            return  # no sweep ended in this epoch
        improvement = schedule.sweep_improvement(self.block_rtol)
        # A fit that still improves by more than `gap` is not within it.
        if self.gap is not None and improvement <= max(self.gap, self.rtol):
            self.certify(self.gap)
        if improvement <= self.rtol and not self.converged:
            self.settle(improvement)

    @property
    def ranks_grow(self) -> bool:
        """Whether an `AutomaticRank` takes part in this fit."""
        return RANKS_GROW in self.params

    def certify(self, gap: float) -> None:
        """Takes a certificate, and ends the fit if it is as good as it shall be."""
        self.certificate = proof = certificate_of_fit(self.model)
        if proof.gap <= gap * abs(proof.objective):
            self.stop(f"certified: J is at most {proof.gap:.1e} above the optimum, gap={gap:g}")

    def settle(self, improvement: float) -> None:
        """Ends the fit, whose last sweep has improved J by next to nothing: at an optimum, or far from one."""
        sight = decrease_in_sight(self.model)
        sweep = f"the last sweep lowered J by {percent(improvement)}"
        if sight is None or sight <= SLACK * self.rtol:
            self.stop(f"converged: {sweep}, rtol={self.rtol:g}{self.missed_gap()}")
            return
        self.stalled = self.model.stop_training = True
        far = f"a Newton step would by {percent(sight)}" if math.isfinite(sight) else TOO_FEW_DIGITS
        self.reason = f"stalled: {sweep}, {far}; rtol={self.rtol:g}"

    def stop(self, reason: str) -> None:
        """Ends the fit, which has converged."""
        self.converged, self.reason = True, reason
        self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.converged:
            return
        if self.model.stop_training and not self.stalled:
            self.reason = "another callback stopped the fit"
            return
        if self.ranks_grow:
            return  # `AutomaticRank` warns
        if self.gap is not None and not self.stalled:
            self.certify(self.gap)
        if not self.converged:
            self.reason += self.missed_gap()
        if self.warns and not self.converged:
            warnings.warn(f"The fit has not converged: {self.explanation()}", ConvergenceWarning, stacklevel=2)

    def missed_gap(self) -> str:
        """What the last certificate says, in words, if one was asked for."""
        if self.certificate is None:
            return ""
        share = self.certificate.gap / max(abs(self.certificate.objective), 1e-30)
        return f"; J is certified to be within {percent(share)} of its optimum only, gap={self.gap:g}"

    def explanation(self) -> str:
        """Why the fit has not converged, and what to do."""
        if self.stalled:
            return f"it has {self.reason}. In such a fit {advice_if_stalled(self.model.is_exact)}."
        if self.certificate is not None:
            return f"{self.reason}. {remedy(self.certificate)}"
        return (
            f"the epochs ran out while sweeps still lowered J by more than rtol={self.rtol:g}. Give `fit` more "
            "epochs, or a larger `rtol`."
        )


def advice_if_stalled(is_exact: bool) -> str:
    """What may help, in either regime."""
    slow = "gradient steps may creep: try another learning rate, a smaller `rtol`, or BlockLineSearch; and "
    return ADVICE_IF_STALLED if is_exact else slow + ADVICE_IF_STALLED


def remedy(proof: Certificate) -> str:
    """What closes the gap of a certificate."""
    advice = 'Give `fit` more epochs, or BlockLineSearch("newton_cg"): the gap shrinks with the gradient'
    if proof.ratios is None:
        return f"{advice}. {proof.note}"
    return f"{advice}. Where the ratio, {proof.ratio:.3f} by now, stays above 1, give a larger `rank`."
