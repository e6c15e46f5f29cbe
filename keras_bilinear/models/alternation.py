"""The alternating `train_step` for mini-batches: the factors take turns, everything else always moves."""

import inspect
import os
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.arguments import positive_integer
from keras_bilinear.data.arrays import Batch
from keras_bilinear.data.options import checked_options
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.models.block_updates import BlockUpdates, expect_block_updates, keep_apart
from keras_bilinear.models.fitting import fit, refuse_frozen, refuse_replicas
from keras_bilinear.models.gradients import expect_replicable, over_replicas
from keras_bilinear.models.workers import Workers
from keras_bilinear.monitoring.fit_record import FitRecord
from keras_bilinear.monitoring.model_in_words import summary_lines
from keras_bilinear.monitoring.progress import tell
from keras_bilinear.monitoring.report import ConvergenceReport, report_of
from keras_bilinear.parts.factored_layer import SMALL_FILES
from keras_bilinear.parts.layers_within import factored_layers, named_factored_layers, named_layers
from keras_bilinear.parts.log_names import logs_of_step
from keras_bilinear.parts.optimizers import BlockLineSearch, inner_optimizer
from keras_bilinear.parts.replicas import expect_mirrored
from keras_bilinear.parts.schedule import BlockSchedule

if TYPE_CHECKING:
    from keras import Model as Host
else:
    # At run time a plain mixin: the host class brings the model, functional or subclassed.
    Host = object


class AlternatingTraining(Workers, Host):
    """Mixed into a `keras.Model` whose factors are trained block by block (Algorithms 1 and 2).

    One train_step sends gradients to the active block only; the others stay bit-identical under any optimizer,
    because their updates are not run at all. Each block counts its own steps, so Adam's bias correction and
    learning-rate schedules see the number of updates the block has had. The host class calls `_start_schedule`.
    Without turns all variables are one block.
    """

    schedule: BlockSchedule
    steps_per_execution: int
    _alternate = True
    _last_fit: FitRecord | None = None
    # While `fit` runs on arrays: images, labels and weights, for callbacks that look at J as a whole.
    _training_data: Batch | None = None
    _streaming: keras.callbacks.Callback | None = None  # while `fit` reads a data set batch by batch, exactly
    _rank_is_automatic = False
    _optimized: frozenset[int] | None = None  # the variables the optimizer was built for, by their ids

    def _start_schedule(self, num_blocks: int) -> None:
        """Creates the saved state of the alternation."""
        self.schedule = BlockSchedule(num_blocks, name="schedule")

    @property
    def is_exact(self) -> bool:
        """Whether whole blocks are solved on the full batch, instead of gradient steps on mini-batches."""
        return isinstance(getattr(self, "optimizer", None), BlockLineSearch)  # before `compile` there is none

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The factors that take turns, in order: a_1, b_1, ..., a_L, b_L of each bilinear layer."""
        return [factor for layer in factored_layers(self) for factor in layer.factor_blocks]

    @property
    def _blocks(self) -> list[list[keras.Variable]]:
        """What moves together: one factor, or everything."""
        return [[factor] for factor in self.factor_blocks] if self._alternate else [self.trainable_variables]

    @property
    def block_names(self) -> list[str]:
        """The blocks of a sweep, in order: "a1", "b1", ..., each after its layer if there are several."""
        if not self._alternate:
            return ["all"]
        layers = named_factored_layers(self)
        return [
            f"{layer}/{block}" if len(layers) > 1 else block
            for layer in layers
            for block in layers[layer].block_names
        ]

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.summary`, and how each bilinear layer compares with a linear one."""
        super().summary(*args, **kwargs)
        named = inspect.signature(keras.Model.summary).bind(self, *args, **kwargs).arguments
        for line in summary_lines(named_factored_layers(self), self.schedule):
            (named.get("print_fn") or tell)(line)

    def filters(self) -> dict[str, np.ndarray]:
        """W (K, M, N) of each bilinear layer, by its name."""
        return {
            name: ops.convert_to_numpy(bm.merged_weights(layer.A, layer.B))
            for name, layer in named_layers(self).items()
        }

    def penalty(self) -> Tensor:
        """alpha R, scalar."""
        return sum(ops.cast(layer.penalty(), keras.config.floatx()) for layer in factored_layers(self))

    @property
    def _other_variables(self) -> list[keras.Variable]:
        """Trainable variables that move in every step: biases, and the layers around the bilinear ones."""
        turns = {id(variable) for block in self._blocks for variable in block}
        return [variable for variable in self.trainable_variables if id(variable) not in turns]

    def compile(self, optimizer: Any = "adam", loss: Any = None, **kwargs: Any) -> None:
        """As `keras.Model.compile`; refuses what the alternation cannot honour."""
        steps = positive_integer("steps_per_execution", kwargs.get("steps_per_execution", 1))
        expect_mirrored(self.distribute_strategy, steps)
        with self.distribute_strategy.scope():
            optimizer = keras.optimizers.get(optimizer)
        expect_block_updates(optimizer)
        self._check_objective(optimizer, loss)
        if self.distribute_strategy.num_replicas_in_sync > 1 and not isinstance(optimizer, BlockLineSearch):
            expect_replicable(optimizer, loss, getattr(self, "output_names", ["output"]), kwargs.get("jit_compile"))
            kwargs["jit_compile"] = False
        before = inner_optimizer(getattr(self, "optimizer", None))
        with self.distribute_strategy.scope():
            super().compile(optimizer=optimizer, loss=loss, **kwargs)
        if inner_optimizer(self.optimizer) is not before:
            self.schedule.forget_steps()
        self._optimized = None
        if self.built:
            self._build_optimizer()  # at once, so that `load_weights` finds its slots

    def _check_objective(self, optimizer: Any, loss: Any) -> None:
        """Raises a ValueError when loss and output contradict, or the optimizer cannot train this model."""
        raise NotImplementedError

    def save(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """As `keras.Model.save`; refuses the legacy HDF5 format, from which the model could not be loaded again.

        (`keras.saving.save_model`, given such a path, writes the file without asking the model.)
        """
        if zipped is not False and str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "Expected a path that ends in .keras: Keras cannot load this model from its legacy HDF5 format. "
                f"Received: filepath={str(filepath)!r}. Weights alone go to .weights.h5 by `save_weights`."
            )
        super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Not for these models: `export_tflite` writes files of whole numbers.

        Raises:
            ValueError: always, before anything is changed.
        """
        raise ValueError(
            f"Expected a {type(self).__name__} to keep floating-point weights; {SMALL_FILES}. Received: a call of "
            "`quantize`"
        )

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`; regression models that were not compiled compile themselves with the defaults.

        In the exact regime (`BlockLineSearch`) the whole of `x` is one batch, one step solves one block and one
        epoch is one sweep over all blocks. With a Keras optimizer it is mini-batch training, where each epoch,
        or a `BlockConvergence` callback, passes the turn to the next block. `verbose=1` shows a bar an epoch,
        `verbose=2` one line, both by `keras_bilinear.monitoring.progress.Progress`.

        Logs and history hold J as "objective" and as "J", alpha R as "penalty", "step_size", "active_block",
        "grad_norm" and the metrics; J of held-out images as "val_loss", "val_objective" and "val_J". Those of an
        epoch hold "improvement", how much it lowered J, relative to J; NaN where the J before it is not known.
        Callbacks that monitor J by any of these names minimise it unless told otherwise.

        Raises:
            ValueError: for unfit data, mini-batches in the exact regime and frozen blocks.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        return fit(self, options, super().fit)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """As in Keras: one step of the active block; what passes the turn on is `schedule.close_epoch`."""
        refuse_replicas(self)
        refuse_frozen(self)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def convergence_report(self) -> ConvergenceReport:
        """What the last `fit` did, block by block, why it ended, and what to mend.

        There is one after a fit that was interrupted, too. Effective ranks are those of the present weights, all
        else was noted as the fit ran. It is not saved with the model.

        Raises:
            ValueError: if `fit` has not begun an epoch since the model was made or loaded, or still runs.

        Example:
            >>> model.fit(x, y, epochs=30)
            >>> print(model.convergence_report())
        """
        if self._last_fit is None:
            raise ValueError(
                "Expected a model on which `fit` has been called, and has ended, since it was made or loaded: a "
                "report is about that fit, and is not saved. Received: one without a fit, or whose fit still runs"
            )
        return report_of(self._last_fit, self)

    def _check_fit(self, options: dict[str, Any]) -> tuple[dict[str, Any], Batch | None]:
        """The options of `fit` and, where they are arrays, its data, or a ValueError; changes nothing."""
        options = checked_options(options)
        refuse_frozen(self)
        return options, None

    def _own_callbacks(self) -> list[keras.callbacks.Callback]:
        """Callbacks without which `fit` does not do what the model was made for."""
        return []

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that Keras gets, from checked ones; models that know their data are built by it here."""
        return options

    def _moving_parts(self) -> list[Any]:
        """The variables that `fit` cannot do without moving, or the layer that will hold them."""
        return self.factor_blocks if self._alternate else []

    @property
    def _trained(self) -> frozenset[int]:
        """The trainable variables, by their ids."""
        return frozenset(id(variable) for variable in self.trainable_variables)

    @property
    def losses(self) -> list[Tensor]:
        """As in Keras, and the penalty of frozen blocks, which Keras leaves out: it is a part of J."""
        frozen = [block for block in self.factor_blocks if id(block) not in self._trained] if self.built else []
        return [*super().losses, *(block.regularizer(block) for block in frozen if block.regularizer is not None)]

    def _step(self, data: Any) -> dict[str, Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            self._build_optimizer()
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        blocks, others = self._blocks, self._other_variables
        samples = ops.shape(keras.tree.flatten(y_pred)[0])[0]
        loss, samples, gradients = over_replicas(loss, samples, tape.gradient(scaled, (blocks, others)))
        active = self.schedule.active.value % len(blocks)
        updates = BlockUpdates(self.optimizer, self.schedule.block_steps, blocks, others)
        norm, rate, sound = updates.step(active, loss, *gradients)
        self.schedule.record(active, norm, steps=ops.cast(sound, "int32"))
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        # The mean over the running epoch, like every metric in the bar; Keras names the tracker "loss".
        mean_loss = self.schedule.observe(loss, samples)
        return logs | logs_of_step(mean_loss, self.penalty(), rate, active, norm)

    def _build_optimizer(self) -> None:
        """Gives the optimizer all variables at once: built by the first block, it would know no other."""
        if self._optimized is not None and self.optimizer.built:
            return
        with tf.init_scope():
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            if not self.is_exact:
                keep_apart(inner_optimizer(self.optimizer), self.trainable_variables, self.schedule.num_blocks)
        self._optimized = self._trained
