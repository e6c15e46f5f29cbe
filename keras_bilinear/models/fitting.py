"""What `fit` does around Keras: everything is checked first, then built, then watched."""

import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import keras

from keras_bilinear.data.arrays import Batch
from keras_bilinear.monitoring.checkpoint import Checkpoint, checkpoint_among
from keras_bilinear.monitoring.fit_recorder import FitRecorder
from keras_bilinear.monitoring.progress import Progress, tell_that_less_is_better
from keras_bilinear.parts.log_names import metrics_of
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.solver.compiled import told


class Fittable(BlockModel, Protocol):
    """What is asked of a model that is fitted."""

    trainable: bool
    distribute_strategy: Any
    steps_per_execution: int
    train_function: Any
    test_function: Any
    predict_function: Any
    _optimized: frozenset[int] | None

    @property
    def _trained(self) -> frozenset[int]: ...
    def _check_fit(self, options: dict[str, Any]) -> tuple[dict[str, Any], Batch | None]: ...
    def _own_callbacks(self) -> list[keras.callbacks.Callback]: ...
    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]: ...
    def _moving_parts(self) -> list[Any]: ...


def fit(
    model: Fittable, options: dict[str, Any], run: Callable[..., keras.callbacks.History]
) -> keras.callbacks.History:
    """Fits a model of this package.

    The model is asked three times: whether it can be fitted so (`_check_fit`), for callbacks of its own, and to
    make ready (`_prepare`). `options` are as the user gave them, `run` is `keras.Model.fit` of the model.
    """
    checkpoint = checkpoint_among(listed(options.get("callbacks")))
    if checkpoint is not None:
        options = checkpoint.begin(model, options)
    try:
        options, model._training_data = model._check_fit(options)
        callbacks = with_own_callbacks(model, listed(options.get("callbacks")))
        for callback in callbacks:
            if hasattr(callback, "check_fit"):
                callback.check_fit(model, options)
        # Nothing has been built or changed up to here.
        with model.distribute_strategy.scope():
            options = model._prepare(options)
        if model.is_exact:
            keep_sweeps_whole(model, options["steps_per_epoch"] or int(options["x"].cardinality()))
        return watched_fit(model, options, callbacks, checkpoint, run)
    finally:
        model._training_data = model._streaming = None


def watched_fit(
    model: Fittable,
    options: dict[str, Any],
    callbacks: list[keras.callbacks.Callback],
    checkpoint: Checkpoint | None,
    run: Callable[..., keras.callbacks.History],
) -> keras.callbacks.History:
    """Runs Keras' `fit` with a bar, a record and, if there is one, a checkpoint, each in its place."""
    tell_that_less_is_better(callbacks)
    own_bar = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks)
    if options.get("verbose", "auto") != 0 and not own_bar:
        callbacks.append(Progress())  # last, so that it shows what the others add to the logs
    if checkpoint is not None:
        # After all: it saves what they do as an epoch ends, and knows whether one has stopped the fit.
        callbacks = [*(callback for callback in callbacks if callback is not checkpoint), checkpoint]
    recorder = FitRecorder(model, callbacks)
    bars = (callback.tell_of_preparation for callback in callbacks if isinstance(callback, Progress))
    with recorder, checkpoint or contextlib.nullcontext(), told(next(bars, lambda: None)):
        if checkpoint is not None:
            checkpoint.check(model, options)
        # First: what the others do as they begin and end an epoch, or the fit, comes after it is noted.
        # But for the one that takes the steps of a stream: without them there is nothing to note.
        several = model.distribute_strategy.num_replicas_in_sync > 1
        first = [model._streaming, WholeMetrics() if several else None]
        leading = [*(callback for callback in first if callback is not None), recorder]
        return run(**{**options, "callbacks": [*leading, *callbacks]})


class WholeMetrics(keras.callbacks.Callback):
    """Puts the metrics of all replicas in the logs of an epoch: what a step logs is the mean of theirs.

    That mean is wrong where replicas have samples of different numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.results = {}

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.note()  # Keras begins to measure held-out images by the same metrics

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.note()
        if logs is not None:
            logs.update(self.results)

    def note(self) -> None:
        """Takes the metrics of training, once an epoch."""
        self.results = self.results or {
            name: float(value) for name, value in metrics_of(self.model.get_metrics_result()).items()
        }


def with_own_callbacks(model: Fittable, given: list[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """The callbacks with those of the model that are missing, and one that passes the turn on every epoch."""
    own = [mine for mine in model._own_callbacks() if not any(isinstance(other, type(mine)) for other in given)]
    if not any(getattr(callback, "passes_turns", False) for callback in given):
        every_epoch = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: model.schedule.close_epoch(block_rtol=float("inf"))
        )
        given = [every_epoch, *given]
    return [*given, *own]


def keep_sweeps_whole(model: Fittable, steps: int) -> None:
    """Lets no group of steps that are executed together go beyond an epoch: the data have no end."""
    group = math.gcd(model.steps_per_execution, steps)
    if group < model.steps_per_execution:
        model.steps_per_execution = group
        model.train_function = model.test_function = model.predict_function = None


def refuse_replicas(model: Fittable) -> None:
    """Raises a ValueError for a single step under a strategy with several replicas."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            "Expected `fit` under a distribution strategy with several replicas: it divides each batch among them, "
            f"and `train_on_batch` would give all of it to each. Received: {replicas} replicas"
        )


def refuse_frozen(model: Fittable) -> None:
    """Raises a ValueError if what must move is frozen, or `trainable` was changed since the model was compiled."""
    frozen = []
    for part in model._moving_parts():
        # A variable, or a layer that has none yet.
        is_variable = isinstance(part, keras.Variable)
        if not (id(part) in model._trained if is_variable else model.trainable and part.trainable):
            frozen.append(part.path or part.name)
    if frozen:
        raise ValueError(
            "Expected every block to be trainable, and with BlockLineSearch the bias, which moves with all of "
            "them; to train only the layers around bilinear factors, use a plain keras.Model. Received: "
            f"frozen {', '.join(frozen[:4])}"
        )
    if not model.is_exact and model._optimized not in (None, model._trained):
        raise ValueError(
            "Expected the variables to be trainable that were when the model was compiled. Received: others; "
            "call `compile` after a change of `trainable`."
        )


def listed(callbacks: Any) -> list[keras.callbacks.Callback]:
    """The callbacks from one, several or lists of them, as Keras takes them."""
    return keras.tree.flatten(getattr(callbacks, "callbacks", callbacks) or [])
