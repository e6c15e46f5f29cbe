"""What is known of a fit once it has ended: J after every epoch, the turns of its blocks, and why it ended."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from keras_bilinear.monitoring.fit_facts import DataFacts, Head
from keras_bilinear.parts.schedule import relative_decrease
from keras_bilinear.stopping.certificate import Certificate
from keras_bilinear.tables import percent


class Epoch(NamedTuple):
    """One epoch of a fit.

    Fields:
        number: Counted from 1, as Keras shows it.
        sweeps: How many have been finished by its end, ever.
        is_sweep: Whether it is one sweep: in the exact regime all epochs are, unless told otherwise.
        objective: J: of the model at its end, or on mini-batches the mean over it.
        penalty: alpha R at its end.
        improvement: How much J fell in it, relative to J; NaN where that is not known.
        accuracy: Of the training images, if that is among the metrics, else NaN.
    """

    number: int
    sweeps: int
    is_sweep: bool
    objective: float
    penalty: float
    improvement: float
    accuracy: float


class BlockReport(NamedTuple):
    """What a block did in a fit.

    Fields:
        name: As in `model.block_names`.
        updates: Line searches or gradient steps it took.
        grad_norm: |gradient| at its last step; NaN for a block that never had a turn.
        was_up: Whether it had a turn.
    """

    name: str
    updates: int
    grad_norm: float
    was_up: bool


class Judgement(NamedTuple):
    """What the callback says that judges convergence, its goal in words, and its last certificate in this fit."""

    converged: bool
    stalled: bool
    reason: str
    goal: str
    grows_ranks: bool
    certificate: Certificate | None


class Change(NamedTuple):
    """How much J fell, relative to J, and in what time, in words."""

    fraction: float
    time: str

    def __str__(self) -> str:
        if math.isnan(self.fraction):
            return f"how much {self.time} lowered J is not known"
        if self.fraction == 0:
            return f"{self.time} did not lower J"
        verb = "lowered" if self.fraction >= 0 else "raised"
        return f"{self.time} {verb} J by {percent(abs(self.fraction))}"


@dataclass(frozen=True, eq=False)
class FitRecord:
    """A fit that has ended, or was broken off; holds nothing of its data, and no callback.

    Attributes:
        is_exact: Whether blocks were solved on all images.
        data: What was known of the images.
        heads: The layers with blocks.
        solver: The optimizer, as one would write it.
        epochs: Those that ended.
        blocks: In the order of their turns.
        penalty: alpha R as the last of the epochs ended, or now if weights have moved since.
        cross_entropy: V there, on mini-batches J - alpha R; NaN if weights have moved since.
        filter_norms: |W| of every layer, before callbacks could replace weights.
        weights_were_replaced: Whether one did, as the fit ended.
        sweeps: How many have been finished, ever; those an earlier fit has finished are `sweeps_before`.
        was_stopped: Whether a callback did.
        separation: Why it was stopped where V is zero but for rounding, in words; else empty.
        interruption: Which exception broke it off, and when, in words; empty without one.
        judgement: None without a callback that judges convergence.
        seconds: How long it took.
    """

    is_exact: bool
    data: DataFacts
    heads: tuple[Head, ...]
    solver: str
    epochs: tuple[Epoch, ...]
    blocks: tuple[BlockReport, ...]
    penalty: float
    cross_entropy: float
    filter_norms: tuple[float, ...]
    sweeps: int
    sweeps_before: int
    was_stopped: bool
    separation: str
    interruption: str
    judgement: Judgement | None = None
    weights_were_replaced: bool = False
    seconds: float = 0.0

    @property
    def objective(self) -> float:
        """J at the end of the last whole epoch, or on mini-batches its mean over that; NaN before."""
        return self.epochs[-1].objective if self.epochs else math.nan

    @property
    def reason(self) -> str:
        """Why the fit ended, in words."""
        judgement = self.judgement
        if self.interruption:
            return self.interruption
        if self.separation:
            return self.separation
        if judgement and (judgement.converged or judgement.stalled):
            return judgement.reason
        if self.was_stopped:
            return "another callback stopped the fit" if judgement else "a callback stopped the fit"
        ended = f"the epochs ran out; {self.last_change}"
        return f"{ended}, {judgement.goal}" if judgement else f"{ended}; no callback judged convergence"

    @property
    def last_change(self) -> Change:
        """How J fell at the end: in the last sweep, or on mini-batches while each block had one turn."""
        if not self.epochs:
            return Change(math.nan, "no epoch")
        if self.is_exact:
            return Change(self.epochs[-1].improvement, "the last sweep" if self.is_by_sweep else "the last epoch")
        back = min(len(self.blocks), len(self.epochs) - 1)
        before = self.epochs[-1 - back].objective if back else math.nan
        return Change(
            relative_decrease(before, self.objective), f"the last {back} epochs" if back > 1 else "the last epoch"
        )

    @property
    def is_by_sweep(self) -> bool:
        """Whether each epoch was a sweep of the exact regime."""
        return self.is_exact and all(epoch.is_sweep for epoch in self.epochs)
