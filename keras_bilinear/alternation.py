"""The alternating `train_step` for mini-batches: the factors take turns, everything else always moves."""

import contextlib
import inspect
import os
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.blocks import block_names
from keras_bilinear.checkpoint import checkpoint_among
from keras_bilinear.layers import bilinear_layers, named_layers
from keras_bilinear.optimizers import BlockLineSearch, inner_optimizer
from keras_bilinear.progress import Progress, tell
from keras_bilinear.record import FitRecord
from keras_bilinear.report import ConvergenceReport, report_of
from keras_bilinear.schedule import BlockSchedule
from keras_bilinear.summary import summary_lines

if TYPE_CHECKING:
    from keras import Model as Host
else:
    # At run time a plain mixin: the host class brings the model, functional or subclassed.
    Host = object


class AlternatingTraining(Host):
    """Mixed into a `keras.Model` whose factors are trained block by block (Algorithms 1 and 2).

    One train_step sends gradients to the active block only; the others stay bit-identical under any optimizer,
    because their updates are not run at all. Each block counts its own steps, so Adam's bias correction and
    learning-rate schedules see the number of updates the block has had. The host class calls `start_schedule`.
    """

    schedule: BlockSchedule
    last_fit: FitRecord | None = None

    def start_schedule(self, num_blocks: int) -> None:
        """Creates the saved state of the alternation."""
        self.schedule = BlockSchedule(num_blocks, name="schedule")

    @property
    def is_exact(self) -> bool:
        """Whether whole blocks are solved on the full batch, instead of gradient steps on mini-batches."""
        return isinstance(getattr(self, "optimizer", None), BlockLineSearch)  # before `compile` there is none

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The factors that take turns, in order: a_1, b_1, ..., a_L, b_L of each bilinear layer."""
        return [factor for layer in bilinear_layers(self) for factor in layer.factor_blocks]

    @property
    def block_names(self) -> list[str]:
        """The blocks of a sweep, in order: "a1", "b1", ..., each after its layer if there are several."""
        layers = named_layers(self)
        return [
            f"{layer}/{block}" if len(layers) > 1 else block
            for layer in layers
            for block in block_names("factor", layers[layer].rank)
        ]

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.summary`, and how each bilinear layer compares with a linear one."""
        super().summary(*args, **kwargs)
        named = inspect.signature(keras.Model.summary).bind(self, *args, **kwargs).arguments
        for line in summary_lines(named_layers(self), self.schedule):
            (named.get("print_fn") or tell)(line)

    def filters(self) -> dict[str, np.ndarray]:
        """W (K, M, N) of each bilinear layer, by its name."""
        return {
            name: ops.convert_to_numpy(bm.merged_weights(layer.A, layer.B))
            for name, layer in named_layers(self).items()
        }

    def penalty(self) -> Tensor:
        """alpha R, scalar."""
        return sum(ops.cast(layer.penalty(), keras.config.floatx()) for layer in bilinear_layers(self))

    @property
    def other_variables(self) -> list[keras.Variable]:
        """Trainable variables that move in every step: biases, and the layers around the bilinear ones."""
        turns = {id(factor) for factor in self.factor_blocks}
        return [variable for variable in self.trainable_variables if id(variable) not in turns]

    def compile(self, optimizer: Any = "adam", loss: Any = None, **kwargs: Any) -> None:
        """As `keras.Model.compile`; refuses what the alternation cannot honour."""
        optimizer = keras.optimizers.get(optimizer)
        if getattr(inner_optimizer(optimizer), "gradient_accumulation_steps", None):
            raise ValueError(
                "Expected an optimizer without `gradient_accumulation_steps`: accumulated gradients of blocks "
                "that are not active would be lost."
            )
        if getattr(inner_optimizer(optimizer), "use_ema", False):
            raise ValueError(
                "Expected an optimizer without `use_ema`: averages would move blocks that are not active."
            )
        self.check_objective(optimizer, loss)
        super().compile(optimizer=optimizer, loss=loss, **kwargs)
        self.has_loss_weights = kwargs.get("loss_weights") is not None
        self.schedule.forget_steps()
        if self.built:
            # At once, so that `load_weights` finds the optimizer's slots.
            self.build_optimizer()

    def check_objective(self, optimizer: Any, loss: Any) -> None:
        """Raises a ValueError when loss and output contradict, or the optimizer cannot train this model."""
        if isinstance(optimizer, BlockLineSearch):
            raise ValueError(
                "BlockLineSearch needs logits that are a bilinear function of the input images, with nothing "
                "in between. Expected a BilinearSoftmaxRegression or BilinearLogisticRegression; compile this "
                "model with a Keras optimizer such as 'adam'."
            )
        for output, its_loss in zip(self.outputs, losses_by_output(loss, self.output_names), strict=False):
            for layer in self.layers:
                activation = (
                    "softmax" if isinstance(layer, keras.layers.Softmax) else getattr(layer, "activation", None)
                )
                name = getattr(activation, "__name__", activation)
                if layer.output is output and isinstance(name, str):
                    check_from_logits(its_loss, is_probability=name in ("softmax", "sigmoid"))

    def save(
        self, filepath: str | os.PathLike[str], overwrite: bool = True, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """As `keras.Model.save`; refuses the legacy HDF5 format, from which the model could not be loaded again."""
        if zipped is not False and str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "Expected a path that ends in .keras: Keras cannot load this model from its legacy HDF5 format. "
                f"Received: filepath={str(filepath)!r}. Weights alone go to .weights.h5 by `save_weights`."
            )
        super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """As `keras.Model.fit`. Without a callback that decides when a block is done, each epoch ends one.

        `verbose=1` shows a bar an epoch, `verbose=2` one line, both by `keras_bilinear.progress.Progress`.
        """
        self.refuse_replicas()
        # By name, whether they were given by position or by name.
        named = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments
        options = {name: value for name, value in named.items() if name != "self"}
        checkpoint = checkpoint_among(listed(options.get("callbacks")))
        if checkpoint is not None:
            options = checkpoint.begin(self, options)
        options = self.prepare(options)
        self.refuse_frozen()
        callbacks = self.with_turns(options.get("callbacks"))
        own_bar = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks)
        if options.get("verbose", "auto") != 0 and not own_bar:
            callbacks.append(Progress())  # last, so that it shows what the others add to the logs
        if checkpoint is not None:
            # After all: it saves what they do as an epoch ends, and knows whether one has stopped the fit.
            callbacks = [*(callback for callback in callbacks if callback is not checkpoint), checkpoint]
        record = FitRecord(self, {**options, "callbacks": callbacks})
        with record, checkpoint or contextlib.nullcontext():
            if checkpoint is not None:
                checkpoint.check(self, options)
            # First: what the others do as they begin and end an epoch, or the fit, comes after it is noted.
            return super().fit(**{**options, "callbacks": [record, *callbacks]})

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
        if self.last_fit is None or not self.last_fit.is_complete:
            state = "one without a fit" if self.last_fit is None else "one whose fit still runs"
            raise ValueError(
                "Expected a model on which `fit` has been called, and has ended, since it was made or loaded: a "
                f"report is about that fit, and is not saved. Received: {state}"
            )
        return report_of(self.last_fit, self)

    def prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of `fit` that Keras gets; models that know their data check it here."""
        return options

    def refuse_frozen(self) -> None:
        """Raises a ValueError if a factor is not trainable: its turn would come, and nothing would move."""
        frozen = [factor.path for factor in self.factor_blocks if not factor.trainable] if self.built else []
        if frozen:
            raise ValueError(
                "Expected every bilinear factor to be trainable; to train only the layers around them, use a "
                f"plain keras.Model. Received: frozen {', '.join(frozen[:4])}"
            )

    def refuse_replicas(self) -> None:
        """Raises a ValueError under a strategy with several replicas, whose factors would drift apart."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                "Alternating training runs on one replica: each replica would solve its block on its own data "
                f"and the factors would drift apart. Received: a distribution strategy with {replicas} replicas"
            )

    def with_turns(self, callbacks: Any) -> list[keras.callbacks.Callback]:
        """The callbacks, with one that passes the turn on every epoch unless one of them does it."""
        given = listed(callbacks)
        if any(getattr(callback, "passes_turns", False) for callback in given):
            return given
        every_epoch = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self.schedule.close_epoch(block_rtol=float("inf"))
        )
        return [every_epoch, *given]

    def train_step(self, data: Any) -> dict[str, Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            self.build_optimizer()
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        blocks, others = self.factor_blocks, self.other_variables
        gradients = tape.gradient(scaled, blocks + others)
        active = self.schedule.active.value % len(blocks)
        norm = self.update_active(active, loss, gradients[: len(blocks)], gradients[len(blocks) :])
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        # The mean over the running epoch, like every metric in the bar; Keras names the tracker "loss".
        mean_loss = self.schedule.observe(loss, ops.shape(keras.tree.flatten(y_pred)[0])[0])
        return {
            **logs,
            "loss": mean_loss,
            "objective": mean_loss,
            "penalty": self.penalty(),
            "step_size": ops.cast(inner_optimizer(self.optimizer).learning_rate, "float32"),
            "active_block": active,
            "grad_norm": norm,
        }

    def build_optimizer(self) -> None:
        """Gives the optimizer all variables at once: built by the first block, it would know no other."""
        if not self.optimizer.built:
            with tf.init_scope():
                self.optimizer.build(self.trainable_variables)

    def update_active(
        self, active: Tensor, loss: Tensor, block_gradients: list[Tensor], other_gradients: list[Tensor]
    ) -> Tensor:
        """Applies the optimizer to the active block and to all other variables; returns |block gradient|.

        A loss or a gradient that is not finite updates nothing and counts for no step, so the last finite weights
        stay; under mixed precision it lowers the scale of the loss.
        """
        optimizer, inner = self.optimizer, inner_optimizer(self.optimizer)
        counts, total = self.schedule.block_steps, inner.iterations.value + 0
        scale = optimizer.scale_loss(ops.ones_like(loss))
        values = [loss, *(g for g in block_gradients + other_gradients if g is not None)]
        sound = ops.all(ops.stack([ops.all(ops.isfinite(value)) for value in values]))

        if optimizer is not inner:
            # The loss scale counts a step, and may change, with the block: all else is scaled back here.
            other_gradients = [None if g is None else ops.divide(g, scale) for g in other_gradients]

        def turn(index: int) -> Tensor:
            inner.iterations.assign(ops.cast(counts.value[index], inner.iterations.dtype))
            optimizer.apply([block_gradients[index]], [self.factor_blocks[index]])
            inner.iterations.assign(total)
            if other_gradients:
                inner.apply(other_gradients, self.other_variables)
            inner.iterations.assign(total + 1)
            return ops.cast(ops.norm(block_gradients[index]), scale.dtype) / scale

        def stay() -> Tensor:
            if optimizer is not inner:
                # To a loss scaler a gradient that is not finite says that the scale is too large.
                optimizer.apply([ops.full_like(self.factor_blocks[0], float("nan"))], self.factor_blocks[:1])
            return ops.full_like(scale, float("nan"))

        turns = [lambda index=index: turn(index) for index in range(len(block_gradients))]
        norm = ops.switch(ops.where(sound, active, len(turns)), [*turns, stay])
        self.schedule.record(active, norm, steps=ops.cast(sound, "int32"))
        return norm


@keras.saving.register_keras_serializable(package="keras_bilinear")
class AlternatingModel(AlternatingTraining, keras.Model):
    """A functional Keras model with `BilinearDense` layers whose factors take turns in training.

    Every other variable, such as the kernels of a convolutional backbone, moves in every step.

    Args:
        inputs: Input of the graph, as for `keras.Model`.
        outputs: Output of the graph.

    Raises:
        ValueError: if no layer of the graph is a `BilinearDense`.

    Example:
        >>> image = keras.Input((28, 28, 1))
        >>> maps = keras.layers.Conv2D(1, 5, activation="relu")(image)
        >>> model = AlternatingModel(image, BilinearDense(10, rank=3, activation="softmax")(maps))
        >>> model.compile("adam", "sparse_categorical_crossentropy")
    """

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, **kwargs: Any):
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        layers = bilinear_layers(self)
        if not layers:
            raise ValueError("Expected a graph with at least one BilinearDense layer. Received: none")
        self.start_schedule(num_blocks=sum(2 * layer.rank for layer in layers))


def listed(callbacks: Any) -> list[keras.callbacks.Callback]:
    """The callbacks from one, several or lists of them, as Keras takes them."""
    return keras.tree.flatten(getattr(callbacks, "callbacks", callbacks) or [])


def losses_by_output(loss: Any, outputs: list[str]) -> list[Any]:
    """The loss of each output, from one for all, a list or tuple in their order, or a dict by their names."""
    if isinstance(loss, dict):
        return [loss.get(name) for name in outputs]
    return list(loss) if isinstance(loss, list | tuple) else [loss] * len(outputs)


def check_from_logits(loss: Any, is_probability: bool) -> None:
    """Raises a ValueError when a cross-entropy reads the model's output as what it is not.

    What a function of the user's own expects cannot be known, whatever its name.
    """
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(loss, "__name__", type(loss).__name__)
    is_known = getattr(keras.losses, name, None) in (loss, type(loss)) or hasattr(loss, "from_logits")
    if not is_known or "crossentropy" not in name.replace("_", "").lower():
        return
    from_logits = bool(getattr(loss, "from_logits", False))
    if from_logits == is_probability:
        raise ValueError(
            f"Expected a loss with from_logits={not from_logits}: the model returns "
            f"{'probabilities' if is_probability else 'logits'}. Received: {name} with from_logits={from_logits}"
        )
