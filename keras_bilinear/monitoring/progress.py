"""What `fit` shows while it runs: J and where the alternation stands, in readable form."""

import logging
import math
import time
from typing import Any

import keras
import numpy as np

from keras_bilinear.parts import log_names as log

PREPARING = "Preparing the solver, once for all fits of its kind ..."
"""What is shown while graphs are traced or compiled."""
INTERVAL = 0.05
"""Seconds between two drawings of a bar, as in Keras."""


class Progress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar with the logs of the alternation in readable form.

    `fit` adds it unless `verbose=0` or another `ProgbarLogger` is given. With `verbose=1` every epoch has its
    heading and its bar, with `verbose=2` one line, which begins with the epoch, the seconds since `fit` began and
    those the epoch took. Either shows J, the accuracy, the finished sweeps, the active block where there are
    several, and the step size (on mini-batches the learning rate), then the other metrics. The history and all
    other callbacks get every log as it is.

    Example:
        >>> model.fit(x, y, epochs=30, verbose=2)

        A line reads

        12/30 - 4s - 310ms/sweep - J: 0.4194 - accuracy: 0.9119 - sweep: 12 - block: b2 - step size: 0.52
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self.names = self.model.block_names
        self.unit = "sweep" if self.model.is_exact and self.target == len(self.names) else "epoch"
        self.began, self.is_preparing = time.perf_counter(), False

    def tell_of_preparation(self) -> None:
        """Says, once a fit, why its first step takes seconds."""
        if not self.is_preparing:
            self.is_preparing = True
            tell(PREPARING)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.epoch_began, self.drawn = time.perf_counter(), -math.inf
        if self.verbose != 2:
            super().on_epoch_begin(epoch, logs)
            self.progbar.interval = 0  # it is called when it shall draw

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.seen = batch + 1
        now = time.perf_counter()
        if self.verbose == 1 and now - self.drawn >= INTERVAL:
            self.drawn = now
            self.label_bar(logs)
            super().on_train_batch_end(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.verbose == 2:
            now = time.perf_counter()
            number = f"{epoch + 1:{len(str(self.epochs))}}/{self.epochs}"
            each = f"{duration(now - self.epoch_began)}/{self.unit}"
            tell(f"{number} - {now - self.began:.0f}s - {each}{self.readable(logs)}")
        else:
            self.label_bar(logs)
            super().on_epoch_end(epoch)

    def label_bar(self, logs: dict[str, Any] | None) -> None:
        """Gives the bar the logs to show.

        As a part of the name of its unit, which is printed as it is and last: values are numbers to a bar, and have
        four decimals.
        """
        self.progbar.unit_name = f"step{self.readable(logs)}"

    def readable(self, logs: dict[str, Any] | None) -> str:
        """The logs in words, " - J: 0.4194 - accuracy: 0.9119 - ..."."""
        logs = logs or {}
        shown = {name: decimals(logs[name]) for name in (log.J, log.ACCURACY) if name in logs}
        shown["sweep"] = str(int(self.model.schedule.sweep.numpy()))
        if log.ACTIVE_BLOCK in logs and len(self.names) > 1:
            shown["block"] = self.names[int(logs[log.ACTIVE_BLOCK])]
        if log.STEP_SIZE in logs:
            shown["step size"] = f"{logs[log.STEP_SIZE]:.3g}"
        # The rest of what a step says would make the line too long.
        metrics = {name: decimals(value) for name, value in log.metrics_of(logs).items()}
        shown |= {name: text for name, text in metrics.items() if name not in shown}
        return "".join(f" - {name}: {text}" for name, text in shown.items())


def tell_that_less_is_better(callbacks: list[Any]) -> None:
    """Has callbacks that monitor J by a name of its own minimise it: Keras knows losses and metrics only."""
    for callback in callbacks:
        watched = str(getattr(callback, "monitor", "")).removeprefix(log.HELD_OUT)
        if watched in log.NAMES_OF_J and getattr(callback, "mode", None) == "auto":
            callback.mode = "min"


def decimals(value: Any) -> str:
    """A metric with four decimals, or digits where these would say nothing; the mean of several."""
    mean = float(np.mean(value))
    return f"{mean:.4f}" if mean == 0 or abs(mean) > 1e-3 else f"{mean:.2e}"


def duration(seconds: float) -> str:
    """Whole seconds, or milliseconds below one."""
    return f"{seconds:.0f}s" if seconds >= 1 else f"{1e3 * seconds:.0f}ms"


def tell(line: str) -> None:
    """Prints a line where Keras prints its own: in absl's logs if `keras.config` says that nobody is looking."""
    if keras.config.is_interactive_logging_enabled():
        print(line, flush=True)
    else:
        logging.getLogger("absl").info(line)
