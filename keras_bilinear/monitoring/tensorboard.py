"""Watching a fit in TensorBoard: when to write what `curves` has to show."""

import math
import os
from typing import Any

import keras
import tensorflow as tf

from keras_bilinear.arguments import count, one_of, positive_integer
from keras_bilinear.monitoring import curves
from keras_bilinear.parts.model_protocol import BlockModel, expect_schedule
from keras_bilinear.parts.optimizers import inner_optimizer
from keras_bilinear.parts.replicas import is_chief
from keras_bilinear.stopping.certificate import certificate_of_fit, expect_data_of_fit


class BilinearTensorBoard(keras.callbacks.Callback):
    """Shows in TensorBoard which block moves, whether the fit converges, and what the filters look like.

    Curves over the epochs (in the exact regime an epoch is a sweep): J, V and alpha R, the relative decrease of J,
    all metrics and their validation, the gradient norm of each block and its updates so far, the singular values
    and the effective rank of each class of bilinear layers. Curves over the steps: J, step size, active block, line
    searches. Pictures of W_k and of its factors; a layout for the Custom Scalars page; the choices made, for the
    HParams page; a description.

    Epochs have Keras' numbers, and steps those of the optimizer, so a fit that resumes an interrupted one goes on
    along its curves; any other fit wants a folder of its own. What was written up to the last epoch outlives a
    killed process. Keras' own `TensorBoard` writes to other folders (train/ and validation/), so both can share one
    log_dir. A callback that restores other weights at the end, as `EarlyStopping` can, goes before this one, for
    the last picture.

        tensorboard --logdir logs

    Args:
        log_dir: Folder of this fit, and of no other.
        update_freq: How often to write curves over the steps: "batch", "epoch" (no such curves), or every so many
            steps; by default "auto", every step of the exact regime and none on mini-batches.
        image_freq: Epochs between pictures; 0 draws none. By default after 1, 4, 16, 64, ... epochs and at the end.
        certificate_freq: Epochs between certificates, each of which costs 1.5 passes over the images; 0 for none.

    Raises:
        ValueError: for arguments out of range, and as the fit begins for a folder that cannot be written to, a
            model that does not train block by block, or certificates without arrays.
        ImportError: if tensorboard is not installed.

    Example:
        >>> model.fit(x, y, epochs=30, callbacks=[keras_bilinear.callbacks.BilinearTensorBoard("logs/rank-3")])
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        update_freq: str | int = "auto",
        image_freq: int | None = None,
        certificate_freq: int = 0,
    ):
        super().__init__()
        try:
            import tensorboard.plugins  # noqa: F401
        except ImportError as error:
            raise ImportError("BilinearTensorBoard needs tensorboard: pip install tensorboard") from error
        self.log_dir = os.fspath(log_dir)
        self.update_freq = update_freq
        if isinstance(update_freq, str):
            one_of("update_freq", update_freq, ("auto", "epoch", "batch"))
        else:
            positive_integer("update_freq", update_freq)
        self.image_freq = None if image_freq is None else count("image_freq", image_freq)
        self.certificate_freq = count("certificate_freq", certificate_freq)
        # An EventLog while a fit runs, of several workers only with the chief; that module needs tensorboard, this
        # one may be imported without.
        self._log: Any = None
        self._waiting = self._batches = 0

    def check_fit(self, model: BlockModel, options: dict[str, Any]) -> None:
        """Raises a ValueError where this callback cannot work, before the fit has changed anything."""
        expect_schedule(model)
        if self.certificate_freq:
            expect_data_of_fit(model, options)
        if is_chief(model.distribute_strategy):
            expect_writable(self.log_dir)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        expect_schedule(self.model)  # `keras.Model.fit` calls no `check_fit`
        steps = self.model.is_exact and self.model._streaming is None  # where batches are read, an epoch is a step
        by_name = {"auto": int(steps), "epoch": 0, "batch": 1}
        self._step_freq = by_name[self.update_freq] if isinstance(self.update_freq, str) else self.update_freq
        self._log, self._is_described, self._waiting = None, False, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not as the fit begins: only now have all callbacks restored what they restore.
        if self._log is None and is_chief(self.model.distribute_strategy):
            self._open(epoch)
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._log is None:
            return
        if not self._is_described:
            self._describe()
        # `batch` is the last one of a group that was executed together.
        self._waiting, self._batches = self._waiting + batch + 1 - self._batches, batch + 1
        if not self._step_freq or self._waiting < self._step_freq:
            return
        self._waiting = 0
        self._log.scalars(curves.of_step(logs or {}), iterations(self.model))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._log is None:
            return
        self._epoch = epoch + 1
        values = curves.of_epoch(self.model, logs or {})
        if self.certificate_freq and self._epoch % self.certificate_freq == 0:
            values |= curves.of_certificate(certificate_of_fit(self.model))
        self._log.scalars(values, self._epoch)
        if self._is_drawn(self._epoch):
            self._draw()
        self._log.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._log is None:  # a fit of no epochs
            return
        if self.image_freq != 0 and self._drawn < self._epoch:
            self._draw()
        self._log.close()
        self._log = None

    def _open(self, epochs: int) -> None:
        """Begins an event file of a fit that has so many epochs behind it."""
        from keras_bilinear.monitoring.event_files import EventLog

        self._log = EventLog(self.log_dir)
        self._epoch = self._drawn = epochs

    def _describe(self) -> None:
        """Writes what is known once the model is built, which a data set does with its first batch."""
        log, model = self._log, self.model
        log.text("model", curves.description(model), step=self._epoch)
        log.layout(curves.layout(model, self._step_freq > 0, self.certificate_freq > 0))
        log.start_session(curves.hyperparameters(model), curves.HYPERPARAMETERS, curves.OUTCOMES)
        log.flush()
        self._is_described = True

    def _is_drawn(self, epoch: int) -> bool:
        """Whether there is a picture after this epoch."""
        if self.image_freq is None:
            return epoch == 4 ** round(math.log(epoch, 4))
        return self.image_freq > 0 and epoch % self.image_freq == 0

    def _draw(self) -> None:
        for tag, (pixels, description) in curves.pictures(self.model).items():
            self._log.picture(tag, pixels, description, self._epoch)
        self._drawn = self._epoch

    def __getstate__(self) -> dict[str, Any]:
        # Copies, too, of a callback whose fit was interrupted: an open file has none.
        return {**self.__dict__, "_log": None}


def expect_writable(folder: str) -> None:
    """Makes the folder, or raises a ValueError if there can be none."""
    try:
        tf.io.gfile.makedirs(folder)
    except tf.errors.OpError as error:
        raise ValueError(f"Expected `log_dir` to be a folder to write to. Received: {folder!r}: {error}") from error


def iterations(model: BlockModel) -> int:
    """How many steps the optimizer has taken; saved with the model."""
    return int(inner_optimizer(model.optimizer).iterations.numpy())
