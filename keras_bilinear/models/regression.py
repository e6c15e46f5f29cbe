"""Two regimes behind one `fit`: what BLR, BSR and their linear baselines have in common."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import at_least_two, boolean, non_negative, plain_text, positive
from keras_bilinear.data.options import known_size
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.models.full_batch import exact_options, exact_step
from keras_bilinear.models.measures import Measured
from keras_bilinear.models.on_images import OnImages
from keras_bilinear.models.reading import Reading, reading_step
from keras_bilinear.models.streaming import prepare_stream
from keras_bilinear.parts.factored_layer import expect_floating
from keras_bilinear.parts.layers_within import refuse_quantized
from keras_bilinear.parts.losses import (
    Accuracy,
    CrossEntropy,
    check_from_logits,
    for_each_image,
    is_plain_cross_entropy,
    targets,
    the_only_loss,
)
from keras_bilinear.parts.optimizers import BlockLineSearch
from keras_bilinear.solver.descent import Solution
from keras_bilinear.solver.images import Images


class ImageRegression(Measured, OnImages, keras.Model):
    """What the four models share: y = f(z(X)) for images X, fitted by either regime of `fit`.

    Subclasses provide the `head` layer that maps X to z, and `_solved`.
    """

    jit_compile: Any
    run_eagerly: Any
    _is_softmax = False  # whether each of `units` classes has a score; else one score is for two
    _jit_solver = False
    _jit_choice: bool | str = "auto"
    _reading: Reading | None = None
    _streamed = False

    def __init__(
        self,
        units: int,
        alpha: float,
        use_bias: bool,
        input_shape: Any,
        name: str | None,
        dtype: Any,
        input_scale: float,
        rows: Any,
    ):
        super().__init__(name=plain_text(name), dtype=dtype)
        expect_floating(self.dtype_policy)
        self.input_scale = positive("input_scale", input_scale)
        self.units = at_least_two(units) if self._is_softmax else 1
        self.use_bias = boolean("use_bias", use_bias)
        self._declare(input_shape, rows)
        non_negative("alpha", alpha)

    def call(self, X: Tensor) -> Tensor:
        """Probabilities (T, K) of images (T, M, N), (T, M, N, 1) or as `rows` has it; (T, 1) for binary models."""
        X = self._as_matrices(X)
        z = self._scores(X if self.input_scale == 1 else self.input_scale * ops.cast(X, self._solver_dtype))
        z = ops.cast(z, keras.backend.result_type(z.dtype, "float32"))
        return keras.activations.sigmoid(z) if self.units == 1 else keras.activations.softmax(z)

    def _scores(self, X: Tensor) -> Tensor:
        """z (T, K) in the compute dtype, the penalty among the losses."""
        return self.head(X)

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = "default",
        jit_compile: bool | str = "auto",
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with the paper's algorithm, loss and accuracy as defaults.

        Args:
            optimizer: `BlockLineSearch()` by default; any Keras optimizer trains on mini-batches.
            loss: The cross-entropy of the paper by default; takes integer and one-hot labels.
            metrics: As in Keras; by default the accuracy, whatever form the labels have.
            jit_compile: As in Keras: True compiles with XLA, once a shape, and "auto" does so on accelerators. With
                `BlockLineSearch` it is the solver that is compiled, by "auto" on a CPU where steps are small and
                many (see `BlockLineSearch.steps_are_large`), or else traced once for all models of any size.
            **kwargs: As in Keras.
        """
        with self.distribute_strategy.scope():
            optimizer = BlockLineSearch() if optimizer is None else optimizer
            loss = CrossEntropy() if loss is None else loss
            metrics = [Accuracy()] if isinstance(metrics, str) and metrics == "default" else metrics
        if isinstance(optimizer, BlockLineSearch):
            # Blocks are solved in float32 at least, so there is no loss to scale under mixed precision.
            kwargs["auto_scale_loss"] = False
            if kwargs.get("loss_weights") is not None:
                raise ValueError(
                    "Expected no `loss_weights` with BlockLineSearch, which minimises J = V + alpha R."
                )
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=jit_compile, **kwargs)
        self._full_batch, self._compiled_parts_built, self._jit_solver = None, False, False
        self._jit_choice = jit_compile
        if self.is_exact:
            pays = jit_compile == "auto" and not optimizer.steps_are_large and not self.run_eagerly
            self._jit_solver = bool(self.jit_compile) or pays
            # The solver is compiled by itself, once for all models: the step around it is left to the graph.
            self.jit_compile = False

    def get_compile_config(self) -> dict[str, Any]:
        # What was asked for, not what it came to here: a loaded model must run the same code.
        config = super().get_compile_config()
        return {**config, "jit_compile": self._jit_choice} if config else config

    def _check_objective(self, optimizer: Any, loss: Any) -> None:
        loss = the_only_loss(loss)
        check_from_logits(loss, is_probability=True)
        if isinstance(optimizer, BlockLineSearch) and not is_plain_cross_entropy(loss, self.units):
            raise ValueError(
                "BlockLineSearch minimises the cross-entropy of the paper. Expected loss=None or the Keras "
                f"cross-entropy of the model's output, averaged, without label smoothing. Received: loss={loss!r}"
            )

    def _moving_parts(self) -> list[Any]:
        if not self.built:
            return [self.head]
        # The solver moves the bias, too; a model that is not compiled yet will be so with it.
        solved = self._trains_exactly and self.head.bias is not None
        return [*super()._moving_parts(), *([self.head.bias] if solved else [])]

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        if self._training_data is None:
            if not self.built and self.distribute_strategy.num_replicas_in_sync > 1:
                self.build((None, *known_size(options["x"])))  # a step within replicas cannot
            return prepare_stream(self, options) if self._trains_exactly else options
        self._compile_if_needed()
        self._build_for(self._training_data)
        if not self.is_exact:
            return options
        self.schedule.begin_fit()
        return exact_options(options, self._training_data, self.num_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks in one sweep of the compiled optimizer."""
        return len(self.block_names)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """As in Keras; NaN where a label is no class, or weights are not one each and >= 0."""
        y, sample_weight = (for_each_image(part, y_pred) for part in (y, sample_weight))
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        sound = ops.all(ops.isfinite(targets(y, self.units, y_pred.dtype)))
        if sample_weight is not None:
            weight = ops.convert_to_tensor(sample_weight)
            sound = sound & ops.all(weight >= 0) & ops.equal(ops.size(weight), ops.shape(y_pred)[0])
        return ops.where(sound, loss, float("nan"))

    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Any = None) -> dict[str, Any]:
        y, sample_weight = (for_each_image(part, y_pred) for part in (y, sample_weight))
        # Metrics of one score take labels of its shape, (T, 1).
        y = ops.reshape(y, (-1, 1)) if self.units == 1 and y is not None else y
        return super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def make_train_function(self, force: bool = False) -> Any:
        """As in Keras, but steps that are large and few run without a graph of their own.

        Their work is done by the solver's graphs; to trace Keras' step would take longer than many a fit.
        """
        asked, streams = self.run_eagerly, self._streaming is not None
        force, self._streamed = force or streams != self._streamed, streams
        self.run_eagerly = asked or (self.is_exact and self.optimizer.steps_are_large and not streams)
        try:
            return super().make_train_function(force)
        finally:
            self.run_eagerly = asked

    def _step(self, data: Any) -> dict[str, Tensor]:
        if not self.is_exact:
            return super()._step(data)
        return exact_step(self, *data) if self._streaming is None else reading_step(self, data)

    def _solved(
        self, X: Images, samples: Samples, active: Tensor, max_inner: int | None = None
    ) -> tuple[Any, Solution]:
        """The parameters with block `active` solved, in `max_inner` iterations or those the solver may take."""
        raise NotImplementedError

    def _solver(self) -> BlockLineSearch:
        """The compiled optimizer in the exact regime, else the default one; as a property Keras would save it."""
        return self.optimizer if self.is_exact else BlockLineSearch()

    def _assign(self, parameters: Any) -> None:
        """Takes parameters as `_solved` gives them."""
        raise NotImplementedError

    def logits(self, X: Tensor) -> Tensor:
        """z (T, K) of images (T, M, N), in their dtype, or in that of the variables for bytes."""
        return self._logits(self._images(ops.convert_to_tensor(X)))

    def _logits(self, X: Images) -> Tensor:
        """z (T, K)."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """alpha R, scalar."""
        raise NotImplementedError

    def weight_matrices(self) -> np.ndarray:
        """W (K, M, N): the filter that each class lays over the image."""
        raise NotImplementedError

    def filters(self) -> dict[str, np.ndarray]:
        return {self.head.name: self.weight_matrices()}

    def _expect_built(self) -> None:
        """Raises a ValueError if the model has no weights yet, or weights that mean something else to Keras."""
        if not self.built:
            raise ValueError("Expected a model with weights: fit it, or give it an `input_shape`.")
        refuse_quantized(self)

    def get_config(self) -> dict[str, Any]:
        return {
            **({"units": self.units} if self._is_softmax else {}),
            "alpha": self.alpha,
            "use_bias": self.use_bias,
            "input_scale": self.input_scale,
            "input_shape": self._declared_shape,
            "rows": self.rows,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
