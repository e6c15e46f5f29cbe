"""Notes what a fit does while it runs, tells the other callbacks of it, and leaves a `FitRecord` behind."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bilinear.monitoring.fit_facts import facts_of_data, heads_of, solver_of
from keras_bilinear.monitoring.fit_record import BlockReport, Epoch, FitRecord, Judgement
from keras_bilinear.parts import log_names as log
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.parts.optimizers import inner_optimizer
from keras_bilinear.parts.schedule import relative_decrease
from keras_bilinear.stopping.automatic_rank import AutomaticRank
from keras_bilinear.stopping.convergence import BlockConvergence
from keras_bilinear.stopping.separation import SeparationStop


class Standing(NamedTuple):
    """Sweeps that have been finished, ever; the block that moves next; steps of the optimizer."""

    sweeps: int
    active: int
    iterations: int


class FitRecorder(keras.callbacks.Callback):
    """Leaves a `FitRecord` as the model's `_last_fit`, and completes the logs of every epoch.

    It goes before all other callbacks, and is entered before the fit begins and left when that has ended, even by
    an exception, of which callbacks are not told.
    """

    def __init__(self, model: BlockModel, callbacks: Sequence[keras.callbacks.Callback]):
        super().__init__()
        self.data = facts_of_data(model)
        judges = [
            each for kind in (AutomaticRank, BlockConvergence) for each in callbacks if isinstance(each, kind)
        ]
        self.judge = judges[0] if judges else None
        self.separation = [each for each in callbacks if isinstance(each, SeparationStop)]
        self.block_rtol = block_rtol(callbacks)
        self.epochs: list[Epoch] = []
        self.seen: set[int] = set()
        self.start: Standing | None = None
        self.record: FitRecord | None = None

    def __enter__(self) -> "FitRecorder":
        self.entered = time.perf_counter()
        return self

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not as training begins: what resumes a fit restores the state of the model there.
        if self.start is None:
            self.start = self.last = self.standing()
            self.steps_before = ops.convert_to_numpy(self.model.schedule.block_steps.value)
            # Of a fit that goes on from an earlier one; there is none in the exact regime.
            before = float(self.model.schedule.running_objective()) if epoch else math.inf
            self.objective = before if before < math.inf else math.nan
        self.model._last_fit = None  # again: a callback may have run another fit of this model
        self.epoch = epoch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs, now = {} if logs is None else logs, self.standing()
        J, penalty, accuracy = (
            float(logs.get(name, math.nan)) for name in (log.OBJECTIVE, log.PENALTY, log.ACCURACY)
        )
        is_whole = self.last.active == now.active == 0 and now.sweeps == self.last.sweeps + 1
        is_sweep, schedule = self.model.is_exact and is_whole, self.model.schedule
        # A sweep's from J where it began, which the first one has too.
        improvement = schedule.sweep_improvement(0.0) if is_sweep else relative_decrease(self.objective, J)
        self.epochs.append(Epoch(epoch + 1, now.sweeps, is_sweep, J, penalty, float(improvement), accuracy))
        self.seen.add(int(logs.get(log.ACTIVE_BLOCK, 0)))
        self.last, self.objective = now, J
        logs[log.IMPROVEMENT] = self.epochs[-1].improvement
        if log.HELD_OUT_LOSS in logs:
            logs.update({log.HELD_OUT + name: logs[log.HELD_OUT_LOSS] for name in log.NAMES_OF_J})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.start is not None:  # or there was no epoch
            self.record = self.recorded(self.start)  # before other callbacks replace weights

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self.start is None:
            return
        interruption = f"{kind.__name__} interrupted the fit in epoch {self.epoch}" if kind else ""
        record = self.record or self.recorded(self.start, interruption)
        self.model._last_fit = dataclasses.replace(
            record,
            weights_were_replaced=not np.allclose(record.filter_norms, filter_norms(self.model), equal_nan=True),
            judgement=None if self.judge is None else judgement(self.judge),
            seconds=time.perf_counter() - self.entered,
        )

    def recorded(self, start: Standing, interruption: str = "") -> FitRecord:
        model, end = self.model, self.standing()
        if self.epochs and self.last.iterations == end.iterations:
            penalty, V = self.epochs[-1].penalty, self.epochs[-1].objective - self.epochs[-1].penalty
        else:  # broken off within an epoch
            penalty, V = float(model.penalty()) if model.built else math.nan, math.nan
        return FitRecord(
            is_exact=model.is_exact,
            data=self.data,
            heads=heads_of(model),
            solver=solver_of(model),
            epochs=tuple(self.epochs),
            blocks=self.blocks(start, end),
            penalty=penalty,
            cross_entropy=V,
            filter_norms=filter_norms(model),
            # On mini-batches an epoch that was broken off ends none.
            sweeps=(end if model.is_exact else self.last).sweeps,
            sweeps_before=start.sweeps,
            was_stopped=bool(model.stop_training) and not interruption,
            separation="".join(each.reason for each in self.separation),
            interruption=interruption,
        )

    def blocks(self, start: Standing, end: Standing) -> tuple[BlockReport, ...]:
        """What each block has done: one that had a turn may have had nothing left to do."""
        names, schedule = self.model.block_names if self.model.built else [], self.model.schedule
        updates, steps = ops.convert_to_numpy(schedule.block_steps.value) - self.steps_before, range(len(names))
        if self.model.is_exact:
            taken = end.iterations - start.iterations
            self.seen = {(start.active + step) % len(names) for step in steps[:taken]}
        was_up = (updates > 0) | np.isin(np.arange(len(updates)), list(self.seen))
        norms = np.where(was_up, ops.convert_to_numpy(schedule.grad_norms.value), math.nan)
        rows = zip(names, updates, norms, was_up, strict=False)  # joint blocks are fewer than what is counted
        return tuple(BlockReport(name, int(taken), float(norm), bool(up)) for name, taken, norm, up in rows)

    def standing(self) -> Standing:
        schedule = self.model.schedule
        iterations = inner_optimizer(self.model.optimizer).iterations
        return Standing(
            schedule.finished_sweeps(self.block_rtol), int(schedule.active.numpy()), int(iterations.numpy())
        )


def filter_norms(model: BlockModel) -> tuple[float, ...]:
    """|W| of every layer: enough to tell whether others have taken their place."""
    filters = model.filters().values() if model.built else []
    # In double precision, where the squares of a fit that diverges still are numbers.
    return tuple(float(np.linalg.norm(W.astype("float64"))) for W in filters)


def block_rtol(callbacks: Sequence[keras.callbacks.Callback]) -> float | None:
    """What ends a block's turn on mini-batches: an epoch that improves J by less. None if a callback decides."""
    rules = [callback for callback in callbacks if getattr(callback, "passes_turns", False)]
    return getattr(rules[0], "block_rtol", None) if rules else math.inf


def judgement(judge: AutomaticRank | BlockConvergence) -> Judgement:
    """What a callback says of the fit that has just ended."""
    grows = isinstance(judge, AutomaticRank)
    goal = f"rtol={judge.rtol:g}" if not grows and judge.gap is None else f"gap={judge.gap:g}"
    stalled = not grows and judge.stalled
    return Judgement(bool(judge.converged), stalled, judge.reason, goal, grows, judge.certificate)
