"""What a fit notes while it runs: J after every epoch, the turns of its blocks, and how it ended."""

import math
import time
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.monitoring.fit_facts import heads_of, is_plain, solver_of, training_data
from keras_bilinear.parts.optimizers import inner_optimizer
from keras_bilinear.parts.schedule import relative_decrease
from keras_bilinear.stopping.automatic_rank import AutomaticRank
from keras_bilinear.stopping.certificate import Certificate
from keras_bilinear.stopping.convergence import BlockConvergence


class Standing(NamedTuple):
    """Where the alternation stands.

    Fields:
        sweeps: How many have been finished, ever.
        active: The block that moves next.
        iterations: Steps of the optimizer.
    """

    sweeps: int
    active: int
    iterations: int


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


class Change(NamedTuple):
    """How much J fell, relative to J, and in what time, in words."""

    fraction: float
    time: str

    def __str__(self) -> str:
        if math.isnan(self.fraction):
            return f"what {self.time} improved is not known"
        if self.fraction == 0:
            return f"{self.time} improved J by nothing"
        verb = "improved" if self.fraction >= 0 else "raised"
        return f"{self.time} {verb} J by {abs(self.fraction):.1e} of it"


class FitRecord(keras.callbacks.Callback):
    """Keeps what `ConvergenceReport` tells of a fit, and nothing of its data. Costs some reads an epoch.

    Entered before the fit begins and left when it has ended, even by an exception, of which callbacks are not told.
    From its first epoch on it is the model's `last_fit`.

    Args:
        model: What is fitted.
        options: Of the fit, its callbacks among them, as `prepare` has left them.
    """

    def __init__(self, model: Any, options: dict[str, Any]):
        super().__init__()
        callbacks = options["callbacks"]
        self.is_exact = model.is_exact
        self.judges = [
            callback
            for kind in (AutomaticRank, BlockConvergence)
            for callback in callbacks
            if isinstance(callback, kind)
        ]
        self.block_rtol = block_rtol(callbacks)
        self.known_certificates = [judge.certificate for judge in self.judges]
        self.data = training_data(model, options)
        self.epochs: list[Epoch] = []
        self.seen: set[int] = set()
        self.has_begun = self.has_ended = self.was_stopped = self.weights_were_replaced = False
        self.is_complete = False
        self.interruption = ""

    def __enter__(self) -> "FitRecord":
        self.entered = time.perf_counter()
        return self

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not as training begins: what resumes a fit restores the state of the model there.
        self.model._last_fit = self  # again: a callback may have run another fit of this model
        if not self.has_begun:
            self.has_begun = True
            self.start = self.last = self.standing()
            self.steps_before = ops.convert_to_numpy(self.model.schedule.block_steps.value)
        self.epoch = epoch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs, now = logs or {}, self.standing()
        J, penalty, accuracy = (float(logs.get(name, math.nan)) for name in ("objective", "penalty", "accuracy"))
        began, ended = self.last.active == 0, now.active == 0
        is_sweep = self.is_exact and began and ended and now.sweeps == self.last.sweeps + 1
        if is_sweep:
            # From J where the sweep began, which the first epoch has too.
            improvement = self.model.schedule.sweep_improvement(block_rtol=0.0)
        else:
            improvement = relative_decrease(self.objective, J)
        self.epochs.append(Epoch(epoch + 1, now.sweeps, is_sweep, J, penalty, improvement, accuracy))
        self.seen.add(int(logs.get("active_block", 0)))
        self.last = now

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.has_ended, self.was_stopped = True, bool(self.model.stop_training)
        if self.has_begun:  # or there was no epoch
            self.note_end()

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        self.seconds = time.perf_counter() - self.entered
        if not self.has_begun:
            return
        if not self.has_ended:
            self.interruption = "" if kind is None else kind.__name__
            self.note_end()
        self.model._last_fit = self
        self.weights_were_replaced = not np.allclose(self.filter_norms, filter_norms(self.model), equal_nan=True)
        judge = self.judges[0] if self.judges else None
        self.converged = None if judge is None else bool(judge.converged)
        self.verdict = "" if judge is None else judge.reason
        self.stalled = bool(getattr(judge, "stalled", False))
        self.goal = "" if judge is None else goal(judge)
        self.ranks_grew = isinstance(judge, AutomaticRank)
        self.certificate = self.new_certificate()
        # Callbacks of the user's may hold on to much.
        self.judges, self.known_certificates = [], []
        self.set_model(None)
        self.is_complete = True

    def note_end(self) -> None:
        """Notes what may change after the fit: callbacks that restore weights do so as it ends."""
        model, schedule = self.model, self.model.schedule
        self.end = self.standing()
        self.block_names = model.block_names if model.built else []
        blocks = len(self.block_names)
        self.updates = (ops.convert_to_numpy(schedule.block_steps.value) - self.steps_before)[:blocks]
        self.was_up = self.turns_of(blocks)
        self.grad_norms = np.where(self.was_up, ops.convert_to_numpy(schedule.grad_norms.value)[:blocks], np.nan)
        self.filter_norms = filter_norms(model)
        self.last_penalty = float(model.penalty()) if model.built else math.nan
        self.heads = heads_of(model) if model.built else []
        self.solver = solver_of(model)
        self.loss_is_plain = is_plain(model.loss) and not model.has_loss_weights
        self.weights_decay = bool(getattr(inner_optimizer(model.optimizer), "weight_decay", None))

    def turns_of(self, blocks: int) -> np.ndarray:
        """Which blocks have had a turn in this fit, (blocks,): one may have had nothing left to do."""
        up = self.updates > 0
        if self.is_exact:
            turns = self.end.iterations - self.start.iterations
            up[(self.start.active + np.arange(min(turns, blocks))) % max(blocks, 1)] = True
        else:
            up[[block for block in self.seen if block < blocks]] = True
        return up

    def standing(self) -> Standing:
        """Where the model stands now."""
        schedule = self.model.schedule
        iterations = inner_optimizer(self.model.optimizer).iterations
        return Standing(
            schedule.finished_sweeps(self.block_rtol), int(schedule.active.numpy()), int(iterations.numpy())
        )

    def new_certificate(self) -> Certificate | None:
        """The last certificate that was taken in this fit."""
        for judge, known in zip(self.judges, self.known_certificates, strict=True):
            if judge.certificate is not known:
                return judge.certificate
        return None

    @property
    def objective(self) -> float:
        """J at the end of the last whole epoch, or on mini-batches its mean over that; NaN before."""
        return self.epochs[-1].objective if self.epochs else math.nan

    @property
    def penalty(self) -> float:
        """alpha R there, or of the last weights if they have moved since."""
        return self.epochs[-1].penalty if self.ended_with_an_epoch else self.last_penalty

    @property
    def cross_entropy(self) -> float:
        """V there; NaN if the weights have moved since."""
        return self.objective - self.penalty if self.ended_with_an_epoch else math.nan

    @property
    def ended_with_an_epoch(self) -> bool:
        """Whether the fit was not broken off within one."""
        return bool(self.epochs) and self.last.iterations == self.end.iterations

    @property
    def sweeps(self) -> int:
        """How many have been finished, ever. On mini-batches an epoch that was broken off ends none."""
        return self.end.sweeps if self.is_exact else self.last.sweeps

    @property
    def reason(self) -> str:
        """Why the fit ended, in words."""
        if self.interruption:
            return f"{self.interruption} interrupted the fit in epoch {self.epoch}"
        if self.converged or self.stalled:
            return self.verdict
        if self.was_stopped:
            return "another callback stopped the fit" if self.goal else "a callback stopped the fit"
        ended = f"the epochs ran out; {self.last_change}"
        return f"{ended}, {self.goal}" if self.goal else f"{ended}; no callback judged convergence"

    @property
    def last_change(self) -> Change:
        """How J fell at the end: in the last sweep, or on mini-batches while each block had one turn."""
        if not self.epochs:
            return Change(math.nan, "no epoch")
        if self.is_exact:
            return Change(self.epochs[-1].improvement, "the last sweep" if self.is_by_sweep else "the last epoch")
        back = min(len(self.block_names), len(self.epochs) - 1)
        before = self.epochs[-1 - back].objective if back else math.nan
        span = "the last epoch" if back <= 1 else f"the last {back} epochs"
        return Change(relative_decrease(before, self.objective), span)

    @property
    def is_by_sweep(self) -> bool:
        """Whether each epoch was a sweep of the exact regime."""
        return self.is_exact and all(epoch.is_sweep for epoch in self.epochs)


def filter_norms(model: Any) -> list[float]:
    """|W| of every layer: enough to tell whether others have taken their place."""
    filters = model.filters().values() if model.built else []
    # In double precision, where the squares of a fit that diverges still are numbers.
    return [float(np.linalg.norm(W.astype("float64"))) for W in filters]


def block_rtol(callbacks: list[Any]) -> float | None:
    """What ends a block's turn on mini-batches: an epoch that improves J by less. None if a callback decides."""
    rules = [callback for callback in callbacks if getattr(callback, "passes_turns", False)]
    return getattr(rules[0], "block_rtol", None) if rules else math.inf


def goal(judge: Any) -> str:
    """What a callback takes for convergence."""
    return f"rtol={judge.rtol:g}" if judge.gap is None else f"gap={judge.gap:g}"
