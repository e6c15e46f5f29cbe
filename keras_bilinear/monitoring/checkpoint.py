"""Fits that can be killed at any moment: what is saved after an epoch, and how a fit goes on from it."""

import os
import weakref
from pathlib import Path
from typing import Any

import keras

from keras_bilinear.arguments import count
from keras_bilinear.monitoring.checkpoint_file import (
    Saved,
    expect_kinds,
    local_path,
    read_checkpoint,
    usable,
    write_checkpoint,
)
from keras_bilinear.monitoring.progress import tell
from keras_bilinear.monitoring.same_fit import OF_THE_FIT, arrays_among, digest_of, expect_settings, settings_of
from keras_bilinear.parts.layers_within import factored_layers
from keras_bilinear.parts.model_protocol import BlockModel, is_linear
from keras_bilinear.parts.replicas import is_chief, numbers_of_workers, wait_for_all

LEFT: weakref.WeakKeyDictionary[keras.Model, tuple[str, str]] = weakref.WeakKeyDictionary()
"""The settings that the last fit of a model began with, and those it left, if its file is there to go on from."""


class Checkpoint(keras.callbacks.Callback):
    """Saves a fit after every epoch in one file, and resumes it from there, bit for bit.

    The file holds all weights, where the alternation stands, the optimizer with its moments, step counts and loss
    scale, the states of random layers, and the epoch. It takes its place whole: a process that is killed, at any
    moment, loses the epoch that runs and no more. Run the same program again, and `fit` goes on, to the very
    numbers of a fit that was never interrupted. A fit that ends by itself, or that a callback stops, has ended: the
    file is deleted, and the next fit begins at the beginning. A save takes some hundredths of a second, mostly for
    the disk.

    Only the same fit goes on: the model, its optimizer and loss, the arrays it is fitted to and how they are
    batched must be those the file was made with; only `epochs` may change. What is refused changes nothing.

    With several workers only the chief writes the file, and all of them read it: it is on a disk they share. One
    that is killed takes the others with it; start all of them again.

    Two things are not in the file. Other callbacks begin anew with what they keep for themselves, such as the
    patience of `EarlyStopping`, the best value of `ModelCheckpoint` and the state of a learning-rate schedule that
    looks back (`BlockConvergence`, `AutomaticRank` and `BilinearTensorBoard` go on as they were). And the images
    must come in the same order again. Arrays do if they are not shuffled, or if `keras.utils.set_random_seed` was
    called, after which Keras brings them in one order in all epochs. A `tf.data` set does if all its epochs are
    alike; one that shuffles anew in every epoch starts again with its first order. Nor can it be seen whether a
    data set holds other images, only whether they have another shape.

    Args:
        path: The file, on a local disk, in a folder that exists; for this fit alone.
        delete_checkpoint: Whether to delete the file as the fit ends. If kept, the same `fit` later restores the
            end of this one and runs no epoch, unless it is given more `epochs`: a program that does more after the
            fit can be killed there, too.

    Raises:
        ValueError: as the fit begins, if the file cannot be read or written, is damaged or is of another fit, or
            for a model that does not train block by block.

    Example:
        >>> model.fit(x, y, epochs=30, callbacks=[keras_bilinear.callbacks.Checkpoint("fit.checkpoint")])
    """

    def __init__(self, path: str | os.PathLike[str], delete_checkpoint: bool = True):
        super().__init__()
        self.path = local_path(path)
        if not isinstance(delete_checkpoint, bool):
            raise ValueError(f"Expected `delete_checkpoint` to be True or False. Received: {delete_checkpoint!r}")
        self.delete_checkpoint = delete_checkpoint
        self._place: Path | None = None  # while a fit runs
        self._found: Saved | None = None
        self._data = self._settings = ""
        self._options: dict[str, Any] = {}
        self._epochs = self._done = 0
        self._is_over, self._is_chief = False, True

    def begin(self, model: BlockModel, options: dict[str, Any]) -> dict[str, Any]:
        """Called by `fit` before all else: its options, to go on where the file ends; changes nothing."""
        self._epochs = count("epochs", options.get("epochs", 1))
        self._done = count("initial_epoch", options.get("initial_epoch", 0))
        self._options = {name: options.get(name) for name in OF_THE_FIT}
        self._settings = settings_of(model, self._options)
        began, left = LEFT.get(model, ("", ""))
        if self._settings == left:
            self._settings = began  # what is another now, that fit has changed, as a learning-rate schedule does
        self._is_chief = is_chief(model.distribute_strategy)
        self._place, self._found, self._is_over = usable(self.path, self._is_chief), None, False
        self._data = digest_of(arrays_among([options.get(name) for name in ("x", "y", "sample_weight")]))
        if not self._place.exists():
            return options
        self._found = read_checkpoint(self._place)
        facts = self._found.facts
        expect_settings(self._place, facts["settings"], self._settings)
        if self._data:
            self._expect_data()
        self._done = facts["epoch"]
        if self._epochs < self._done:
            raise ValueError(
                f"Expected `epochs` >= {self._done}, which the fit in {self.path!r} has behind it. "
                f"Received: epochs={self._epochs}"
            )
        # Of a fit that has ended, with no more epochs to run now.
        self._is_over = facts["finished"] and self._epochs <= facts["epochs"]
        return {**options, "initial_epoch": self._epochs if self._is_over else self._done}

    def check(self, model: BlockModel, options: dict[str, Any]) -> None:
        """Called by `fit` once the data are known: refuses what `begin` could not see; weights are as they were."""
        if not self._data:
            images = getattr(options.get("x"), "element_spec", None)
            self._data = digest_of(arrays_among(model._training_data or [])) or str(images)
            self._expect_data()
        if not model.built:
            model.build(shape_of_images(options.get("x")))
        if model.compiled:
            model._build_optimizer()
            if self._found is not None:
                expect_kinds(self.path, self._found, state_of(model))

    def _expect_data(self) -> None:
        if self._found is not None and self._found.facts["data"] != self._data:
            raise ValueError(
                f"Expected the training data of the fit in {self.path!r}. Received: other data. Delete the file to "
                "fit anew."
            )

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if self.model is not None:
            LEFT.pop(self.model, None)
            if kind is not None or not self.delete_checkpoint:
                LEFT[self.model] = self._settings, settings_of(self.model, self._options)
        self._place = self._found = None
        self.set_model(None)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._expect_one_epoch()
        if self._place is None:
            raise ValueError(
                "Expected the `fit` of a model that trains block by block, such as BilinearSoftmaxRegression. "
                f"Received: that of {type(self.model).__name__}"
            )
        if self._found is None:
            return
        for variable, value in zip(state_of(self.model), self._found.values, strict=True):
            variable.assign(value)  # bit for bit
        for layer in factored_layers(self.model):
            if layer.alpha is not None:
                layer.alpha = float(layer.alpha)  # its config, too
        if self._is_over:
            self.model.stop_training = True  # for the other callbacks, which judge fits that ran out of epochs
        if self.params.get("verbose"):
            what = "had ended" if self._is_over else "goes on"
            tell(f"{self.path}: the fit {what} after {self._done} epochs.")
        self._found = self._found._replace(values=[])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._done = epoch + 1
        # The last epoch is over when every callback has ended the fit: killed before, it runs again.
        if self._done < self._epochs and not self.model.stop_training:
            self._save(finished=False)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        assert self._place is not None
        if not self.delete_checkpoint:
            self._save(finished=True)
        elif self._is_chief:
            self._place.unlink(missing_ok=True)
        wait_for_all(self.model.distribute_strategy)  # or another fit could find the file of this one

    def _expect_one_epoch(self) -> None:
        """Raises a ValueError unless all workers go on from the same epoch."""
        done = numbers_of_workers(self.model.distribute_strategy, self._done)
        if len(set(done)) > 1:
            raise ValueError(
                f"Expected all workers to find the same file {self.path!r}, on a disk they share. Received: files "
                f"after {', '.join(map(str, done))} epochs"
            )

    def _save(self, finished: bool) -> None:
        assert self._place is not None
        if not self._is_chief:
            return
        earlier = 0 if self._found is None else self._found.facts["epochs"]
        facts = {
            "epoch": self._done,
            "epochs": max(self._epochs, earlier),
            "finished": finished,
            "settings": self._settings,
            "data": self._data,
        }
        write_checkpoint(self._place, facts, state_of(self.model))


def checkpoint_among(callbacks: list[Any]) -> Checkpoint | None:
    """The callback that resumes the fit, or a ValueError if there are several."""
    kinds = (Checkpoint, keras.callbacks.BackupAndRestore)
    found = [callback for callback in callbacks if isinstance(callback, kinds)]
    if len(found) > 1 and any(isinstance(callback, Checkpoint) for callback in found):
        received = ", ".join(type(callback).__name__ for callback in found)
        raise ValueError(f"Expected one callback that saves and resumes the fit. Received: {received}")
    return found[0] if found and isinstance(found[0], Checkpoint) else None


def state_of(model: BlockModel) -> list[keras.Variable]:
    """Every variable that a fit changes: weights, schedule, random states, optimizer; alpha, which may change."""
    ridge = [model.ridge.alpha] if is_linear(model) else []
    memory = [] if model._streaming is None else model._streaming.memory.variables
    # Keras 3.8 does not count the schedule among the variables of a functional model.
    variables = [*model.variables, *model.schedule.variables, *model.optimizer.variables, *ridge, *memory]
    return list({id(variable): variable for variable in variables}.values())


def shape_of_images(data: Any) -> tuple[int | None, ...]:
    """The shape of what a data set yields first, or a ValueError if it does not tell."""
    specs = keras.tree.flatten(getattr(data, "element_spec", None))
    shape = getattr(specs[0], "shape", None)
    if shape is None or shape.rank is None or None in shape[1:]:
        raise ValueError(
            "Expected a model with weights, for others cannot resume: give it an `input_shape`. Received: one "
            "without, and data that do not tell the shape of an image"
        )
    return (None, *shape[1:])
