"""Two regimes behind one `fit`: what BLR, BSR and their linear baselines have in common."""

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.alternation import AlternatingTraining, check_from_logits
from keras_bilinear.arguments import non_negative, positive_integer
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.certificate import Certificate, certificate
from keras_bilinear.data import (
    Batch,
    checked_batch,
    class_weights,
    is_array,
    the_only_batch,
    train_validation_split,
    warn_of_one_class,
    warn_of_scale,
)
from keras_bilinear.datasets import check_dataset
from keras_bilinear.descent import Samples, Solution
from keras_bilinear.layers import matrix_shape, refuse_quantized
from keras_bilinear.losses import Accuracy, CrossEntropy, is_plain_cross_entropy, targets, the_only_loss
from keras_bilinear.optimizers import BlockLineSearch


class ImageRegression(AlternatingTraining, keras.Model):
    """What the four models share: y = f(z(X)) for images X, fitted by either regime of `fit`.

    Subclasses provide the `head` layer that maps X to z, and `solve_active_block`.
    """

    head: keras.layers.Layer
    alpha: float
    jit_compile: Any
    image_size: tuple[int, int]

    def __init__(self, units: int, alpha: float, use_bias: bool, input_shape: Any, name: str | None, dtype: Any):
        super().__init__(name=name, dtype=dtype)
        self.units = positive_integer("units", units)
        self.use_bias = bool(use_bias)
        self.declared_shape = None if input_shape is None else tuple(input_shape)
        non_negative("alpha", alpha)
        self.jit_solver = False
        self._jit_choice: bool | str = "auto"
        self._full_batch: bytes | None = None
        # While `fit` runs on arrays: images, labels and weights, for callbacks that look at J as a whole.
        self.training_data: tuple[Any, Any, Any] | None = None
        self._compiled_parts_built = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        size = matrix_shape(input_shape)
        if self.built and size != self.image_size:
            raise ValueError(
                f"Expected images of {self.image_size}, as built. Received: input of shape {input_shape}"
            )
        if not self.built:
            self.image_size = size
            self.build_head(input_shape)

    def build_head(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the parameters for images of `input_shape`."""
        self.head.build(input_shape)

    def build_from_declaration(self) -> None:
        """Builds at once when the constructor was told the shape of an image."""
        if self.declared_shape is not None:
            self.build((None, *self.declared_shape))

    def call(self, X: Tensor) -> Tensor:
        """Probabilities (T, K) of images (T, M, N) or (T, M, N, 1); (T, 1) for binary models."""
        z = self.scores(self.as_matrices(X))
        z = ops.cast(z, keras.backend.result_type(z.dtype, "float32"))
        return keras.activations.sigmoid(z) if self.units == 1 else keras.activations.softmax(z)

    def as_matrices(self, X: Tensor) -> Tensor:
        """(T, M, N) from (T, M, N) or (T, M, N, 1); a graph that has seen both no longer knows the rank."""
        rank = getattr(X.shape, "rank", len(X.shape) if isinstance(X.shape, tuple) else None)
        M, N = self.image_size
        if rank is not None and (rank > 4 or (rank == 4 and X.shape[-1] != 1) or matrix_shape(X.shape) != (M, N)):
            raise ValueError(
                f"Expected images of shape (T, {M}, {N}) or (T, {M}, {N}, 1). Received: {tuple(X.shape)}"
            )
        return ops.reshape(X, (-1, M, N))

    def scores(self, X: Tensor) -> Tensor:
        """z (T, K) in the compute dtype, the penalty among the losses."""
        return self.head(X)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        matrix_shape(input_shape)
        return (input_shape[0], self.units)

    # Two regimes ----------------------------------------------------------------------------------------------

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
                `BlockLineSearch` it is the solver that is compiled; on a CPU "auto" does so where it pays (see
                `BlockLineSearch.gains_from_xla`). Without XLA it is traced once for any number of images; with
                `run_eagerly` nothing else is traced, which suits many short fits.
            **kwargs: As in Keras.
        """
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
        self._full_batch, self._compiled_parts_built = None, False
        self._jit_choice = jit_compile
        if self.is_exact:
            pays = jit_compile == "auto" and optimizer.gains_from_xla and not self.run_eagerly
            self.jit_solver = bool(self.jit_compile) or pays
            # The solver is compiled by itself, once for all models: the step around it is left to the graph.
            self.jit_compile = False

    def get_compile_config(self) -> dict[str, Any]:
        # What was asked for, not what it came to here: a loaded model must run the same code.
        config = super().get_compile_config()
        return {**config, "jit_compile": self._jit_choice} if config else config

    def check_objective(self, optimizer: Any, loss: Any) -> None:
        loss = the_only_loss(loss)
        check_from_logits(loss, is_probability=True)
        if isinstance(optimizer, BlockLineSearch) and not is_plain_cross_entropy(loss, self.units):
            raise ValueError(
                "BlockLineSearch minimises the cross-entropy of the paper. Expected loss=None or the Keras "
                f"cross-entropy of the model's output, averaged, without label smoothing. Received: loss={loss!r}"
            )

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """As `keras.Model.fit`; compiles with the defaults if `compile` was not called.

        In the exact regime (`BlockLineSearch`) the whole of `x` is one batch, one step solves one block and one
        epoch is one sweep over all blocks. With a Keras optimizer it is mini-batch training, where each epoch,
        or a `BlockConvergence` callback, passes the turn to the next block.

        Raises:
            ValueError: for images, labels or weights the model cannot be trained on, for mini-batches in the
                exact regime, and under a distribution strategy with several replicas.
        """
        if not self.compiled:
            self.compile()
        try:
            return super().fit(*args, **kwargs)
        finally:
            self.training_data, self.schedule.ranks_are_growing = None, False

    def prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        check_dataset(options.get("x"), "x")
        check_dataset(options.get("validation_data"), "validation_data")
        if options.get("class_weight") is not None:
            # Every class by its number: Keras refuses a data set's classes that are left out.
            weights = class_weights(options["class_weight"], max(self.units, 2))
            options = {**options, "class_weight": dict(enumerate(weights.tolist()))}
        if self.is_exact:
            options = self.full_batch_options(options)
        elif is_array(options.get("x")):
            options = self.checked_options(options)
        validation = keras.utils.unpack_x_y_sample_weight(options.get("validation_data"))
        if is_array(validation[0]):
            options["validation_data"] = tuple(self.checked(*validation))
            if self.is_exact:
                options["validation_batch_size"] = options.get("validation_batch_size") or 4096
        return options

    def checked_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of `fit` with arrays checked, weights merged and the validation part split off."""
        batch = self.checked(
            options["x"], options.get("y"), options.pop("sample_weight", None), options.pop("class_weight", None)
        )
        if options.get("validation_data") is None and options.get("validation_split"):
            batch, held_out = train_validation_split(batch, options.pop("validation_split"))
            options["validation_data"] = tuple(held_out)
        warn_of_one_class(batch, self.units)
        warn_of_scale(batch.x)
        self.training_data = batch.x, batch.y, batch.weight
        return {**options, "x": batch.x, "y": batch.y, "sample_weight": batch.weight}

    def checked(self, x: Any, y: Any, sample_weight: Any = None, class_weight: Any = None) -> Batch:
        """The data as arrays this model can train on; builds the model if it is not built yet."""
        refuse_quantized(self)
        size = self.image_size if self.built else None
        batch = checked_batch(x, y, self.units, sample_weight, class_weight, size, self.solver_dtype)
        self.build_for(batch)
        return batch

    def build_for(self, batch: Batch) -> None:
        """Creates every variable before the first step.

        Saved weights can then be restored in time, and the step is traced once: a trace that creates variables,
        as those of the metrics, is thrown away and made again.
        """
        if not self.built:
            self.build((None, *batch.x.shape[1:]))
        if self.compiled and not self._compiled_parts_built:
            self.build_optimizer()
            x, y, weight = (part[:1] for part in batch)
            y_pred = self(x)
            self.compute_loss(x, y, y_pred, weight)
            self.compute_metrics(x, y, y_pred, weight)
            self.reset_metrics()
            self._compiled_parts_built = True

    @property
    def solver_dtype(self) -> str:
        """The dtype the objective is computed in: that of the variables, float32 at least."""
        return keras.backend.result_type(self.head.variable_dtype, "float32")

    def full_batch_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of `fit` that make one epoch one sweep over blocks, each step on all of the data."""
        if not is_array(options.get("x")):
            given = (options.get(name) for name in ("x", "y", "sample_weight"))
            options = {**options, **the_only_batch(*given)}
        batch_size = options.pop("batch_size", None)
        options = self.checked_options(options)
        x, y, weight = (options.pop(name) for name in ("x", "y", "sample_weight"))
        if batch_size is not None and batch_size < len(x):
            raise ValueError(
                f"Expected full batches: BlockLineSearch solves each block on all {len(x)} images. Received: "
                f"batch_size={batch_size}. Leave batch_size out, or compile with a Keras optimizer."
            )
        options["steps_per_epoch"] = options.get("steps_per_epoch") or self.num_blocks
        # As tensors already: a data set made of NumPy arrays holds two copies of them.
        batch = tf.convert_to_tensor(x), tf.convert_to_tensor(y), tf.convert_to_tensor(weight)
        self.training_data = batch
        self.schedule.begin_fit()
        # There is nothing to tune or to rewrite in this pipeline. A tuner may sleep at the end of a fit for as long
        # as that took, and rewriting copies the images.
        plain = tf.data.Options()
        plain.autotune.enabled = False
        plain.experimental_optimization.apply_default_optimizations = False
        return {**options, "x": tf.data.Dataset.from_tensors(batch).repeat().with_options(plain), "shuffle": False}

    @property
    def num_blocks(self) -> int:
        """Blocks in one sweep of the compiled optimizer."""
        return len(self.block_names)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """As in Keras; in the exact regime one call solves one block, and every call must bring the same data."""
        if not self.compiled:
            self.compile()
        self.refuse_replicas()
        batch = self.checked(x, y, sample_weight, class_weight)
        self.refuse_frozen()
        if self.is_exact:
            self.refuse_change(batch)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As in Keras, with arrays checked as `fit` checks them."""
        check_dataset(x, "x")
        if is_array(x):
            x, y, sample_weight = self.checked(x, y, sample_weight)
        return super().evaluate(x, y, batch_size, verbose, sample_weight, *args, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """As in Keras, with the batch checked as `fit` checks it."""
        return super().test_on_batch(*self.checked(x, y, sample_weight), return_dict=return_dict)

    def refuse_change(self, batch: Batch) -> None:
        """Raises a ValueError if this is not the batch of the previous call: J would rise from batch to batch."""
        hasher = hashlib.blake2b()
        for part in batch:
            hasher.update(np.ravel(part).view("uint8").data)  # no copy of what is contiguous
        self._full_batch = self._full_batch or hasher.digest()
        if hasher.digest() != self._full_batch:
            raise ValueError(
                "Expected the same full batch in every call: BlockLineSearch solves each block on all the data. "
                "Received: another batch than before. Compile anew to change the data, or use a Keras optimizer."
            )

    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Any = None) -> dict[str, Any]:
        # Metrics of one score take labels of its shape, (T, 1).
        y = ops.reshape(y, (-1, 1)) if self.units == 1 and y is not None else y
        return super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def train_step(self, data: Any) -> dict[str, Tensor]:
        return self.exact_step(*data) if self.is_exact else super().train_step(data)

    def exact_step(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Solves the active block on all the data and passes the turn to the next."""
        # A graph that serves batches of several sizes no longer knows their rank.
        x, weight = self.as_matrices(x), ops.reshape(weight, (-1,))
        C = targets(y, self.units, weight.dtype)
        active = self.schedule.active.value % self.num_blocks
        solution = self.solve_active_block(x, Samples(C, bm.normalised_weights(weight)), active)
        self.schedule.active.assign(active)
        self.schedule.record(active, solution.grad_norm, steps=solution.iterations)
        self.schedule.finish_block(solution.initial_objective, solution.objective, self.num_blocks)
        self.optimizer.iterations.assign_add(1)
        z = ops.reshape(solution.logits, (-1, self.units))  # a shared graph may not know its shape
        # Metrics of the present model, not a mean over the blocks of the sweep.
        self.reset_metrics()
        logs = self.compute_metrics(x, y, bm.probabilities(z), sample_weight=weight)
        return {
            **logs,
            "loss": solution.objective,
            "objective": solution.objective,
            "penalty": self.penalty(),
            "step_size": solution.step_size,
            "active_block": active,
            "grad_norm": solution.grad_norm,
            "inner_iterations": solution.iterations,
        }

    def solve_active_block(self, X: Tensor, samples: Samples, active: Tensor) -> Solution:
        """Solves block `active` and assigns its parameters."""
        raise NotImplementedError

    # Reading the model ----------------------------------------------------------------------------------------

    def logits(self, X: Tensor) -> Tensor:
        """z (T, K) in the dtype of the variables."""
        raise NotImplementedError

    def penalty(self) -> Tensor:
        """alpha R, scalar."""
        raise NotImplementedError

    def objective(self, x: Any, y: Any, sample_weight: Any = None) -> float:
        """J = V + alpha R on the given data (Eq. J.A.B), with V weighted as `fit` weights it."""
        batch = self.checked(x, y, sample_weight)
        weight = ops.convert_to_tensor(batch.weight)
        C = targets(ops.convert_to_tensor(batch.y), self.units, weight.dtype)
        V = bm.cross_entropy(self.logits(ops.convert_to_tensor(batch.x)), C, bm.normalised_weights(weight))
        return float(V + self.penalty())

    def certificate(self, x: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """How far J on these images can be above the global optimum; see `keras_bilinear.certificate`.

        Example:
            >>> print(model.certificate(x, y))
        """
        return certificate(self, x, y, sample_weight)

    def weight_matrices(self) -> np.ndarray:
        """W (K, M, N): the filter that each class lays over the image."""
        raise NotImplementedError

    def filters(self) -> dict[str, np.ndarray]:
        return {self.head.name: self.weight_matrices()}

    def expect_built(self) -> None:
        """Raises a ValueError if the model has no weights yet, or weights that mean something else to Keras."""
        if not self.built:
            raise ValueError("Expected a model with weights: fit it, or give it an `input_shape`.")
        refuse_quantized(self)

    def get_config(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "use_bias": self.use_bias,
            "input_shape": self.declared_shape,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
