"""Two regimes behind one `fit`: what BLR, BSR and their linear baselines have in common."""

import hashlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.arguments import boolean, image_shape, non_negative, plain_text, positive_integer
from keras_bilinear.data.arrays import (
    Batch,
    as_array,
    check_image_shape,
    checked_batch,
    class_weights,
    is_array,
    the_only_batch,
    train_validation_split,
    warn_of_one_class,
    warn_of_scale,
)
from keras_bilinear.data.options import Forms, checked_numbers, checked_options
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.models.alternation import AlternatingTraining
from keras_bilinear.parts.layers import as_matrices, expect_floating, matrix_shape, refuse_quantized, shape_of
from keras_bilinear.parts.log_names import INNER_ITERATIONS, logs_of_step
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
from keras_bilinear.solver.descent import Samples, Solution
from keras_bilinear.stopping.certificate import Certificate, certificate


class ImageRegression(AlternatingTraining, keras.Model):
    """What the four models share: y = f(z(X)) for images X, fitted by either regime of `fit`.

    Subclasses provide the `head` layer that maps X to z, and `solve_active_block`.
    """

    head: keras.layers.Layer
    alpha: float
    jit_compile: Any
    image_size: tuple[int, int]

    def __init__(self, units: int, alpha: float, use_bias: bool, input_shape: Any, name: str | None, dtype: Any):
        super().__init__(name=plain_text(name), dtype=dtype)
        expect_floating(self.dtype_policy)
        self.units = positive_integer("units", units)
        self.use_bias = boolean("use_bias", use_bias)
        self._declared_shape = None if input_shape is None else image_shape("input_shape", input_shape)
        non_negative("alpha", alpha)
        self._jit_solver = False
        self._jit_choice: bool | str = "auto"
        self._full_batch: bytes | None = None
        self._compiled_parts_built = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        size = size_of_images(input_shape)
        if self.built and size != self.image_size:
            raise ValueError(
                f"Expected images of {self.image_size}, as built. Received: input of shape {input_shape}"
            )
        if not self.built:
            self.image_size = size
            self._build_head(input_shape)

    def _build_head(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the parameters for images of `input_shape`."""
        self.head.build(input_shape)

    def _build_from_declaration(self) -> None:
        """Builds at once when the constructor was told the shape of an image."""
        if self._declared_shape is not None:
            self.build((None, *self._declared_shape))

    def call(self, X: Tensor) -> Tensor:
        """Probabilities (T, K) of images (T, M, N) or (T, M, N, 1); (T, 1) for binary models."""
        z = self._scores(self._as_matrices(X))
        z = ops.cast(z, keras.backend.result_type(z.dtype, "float32"))
        return keras.activations.sigmoid(z) if self.units == 1 else keras.activations.softmax(z)

    def _as_matrices(self, X: Tensor) -> Tensor:
        """(T, M, N) from (T, M, N) or (T, M, N, 1), checked even in a graph that has forgotten the shape."""
        shape = shape_of(X)
        if shape is not None and (len(shape) > 4 or (len(shape) == 4 and shape[3] not in (1, None))):
            M, N = self.image_size
            raise ValueError(f"Expected images of shape (T, {M}, {N}) or (T, {M}, {N}, 1). Received: {shape}")
        return as_matrices(X, self.image_size)

    def _scores(self, X: Tensor) -> Tensor:
        """z (T, K) in the compute dtype, the penalty among the losses."""
        return self.head(X)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        size_of_images(input_shape)
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

    def _fit(self, options: dict[str, Any]) -> keras.callbacks.History:
        try:
            return super()._fit(options)
        finally:
            self._training_data = None

    def _compile_if_needed(self) -> None:
        if not self.compiled:
            self.compile()

    def _frozen(self) -> list[str]:
        if not self.built:
            return [] if self.trainable and self.head.trainable else [self.head.name]
        # The solver moves the bias, too; a model that is not compiled yet will be so with it.
        solved = self._trains_exactly and self.head.bias is not None
        bias = [self.head.bias.path] if solved and id(self.head.bias) not in self._trained else []
        return super()._frozen() + bias

    @property
    def _trains_exactly(self) -> bool:
        """Whether `fit` will solve whole blocks: as compiled, or by default."""
        return self.is_exact or not self.compiled

    def _checked_options(self, options: dict[str, Any]) -> dict[str, Any]:
        options = checked_options(options, self._forms, repeats=self._trains_exactly)
        if options.get("class_weight") is not None:
            # Every class by its number: Keras refuses a data set's classes that are left out.
            weights = class_weights(options["class_weight"], max(self.units, 2))
            options["class_weight"] = dict(enumerate(weights.tolist()))
        if self._trains_exactly and not is_array(options.get("x")):
            given = (options.get(name) for name in ("x", "y", "sample_weight"))
            options |= the_only_batch(*given)
        size = self._forms.size
        if is_array(options.get("x")):
            options |= self._checked_arrays(options)
            size = options["x"].shape[1:]
        if isinstance(options.get("validation_data"), tuple | list):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(tuple(options["validation_data"]))
            options["validation_data"] = tuple(self._check(x, y, weight, size=size))
        return options

    @property
    def _forms(self) -> Forms:
        """The batches this model takes."""
        return Forms(self.image_size if self.built else None, self.units)

    def _checked_arrays(self, options: dict[str, Any]) -> dict[str, Any]:
        """x, y, sample_weight with `class_weight` in it, and the held-out part, as `fit` uses them."""
        batch = self._check(*(options.get(name) for name in ("x", "y", "sample_weight", "class_weight")))
        found: dict[str, Any] = {"class_weight": None}
        if options.get("validation_data") is None and options.get("validation_split"):
            batch, held_out = train_validation_split(batch, options["validation_split"])
            found |= {"validation_data": tuple(held_out), "validation_split": 0.0}
        batch_size, T = options.get("batch_size"), len(batch.x)
        if self._trains_exactly and batch_size is not None and batch_size < T:
            raise ValueError(
                f"Expected full batches: BlockLineSearch solves each block on all {T} images. Received: "
                f"batch_size={batch_size}. Leave batch_size out, or compile with a Keras optimizer."
            )
        warn_of_one_class(batch, self.units)
        warn_of_scale(batch.x)
        return {**found, "x": batch.x, "y": batch.y, "sample_weight": batch.weight}

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        self._compile_if_needed()
        if not is_array(options.get("x")):
            return options
        batch = Batch(options["x"], options["y"], options["sample_weight"])
        self._build_for(batch)
        self._training_data = batch
        if not self.is_exact:
            return options
        # As tensors already: a data set made of NumPy arrays holds two copies of them.
        self._training_data = Batch(*map(tf.convert_to_tensor, batch))
        self.schedule.begin_fit()
        validation_batch = options.get("validation_batch_size") or 4096
        steps = options.get("steps_per_epoch") or self.num_blocks
        # These are in the data set, and it is one batch.
        rest = {name: value for name, value in options.items() if name not in ("y", "sample_weight", "batch_size")}
        return {
            **rest,
            "x": repeated(tuple(self._training_data)),
            "shuffle": False,
            "steps_per_epoch": steps,
            "validation_batch_size": validation_batch,
        }

    def _check(
        self, x: Any, y: Any, sample_weight: Any = None, class_weight: Any = None, size: Any = None
    ) -> Batch:
        """The data as arrays this model can train on; changes nothing."""
        refuse_quantized(self)
        size = self._forms.size if size is None else size
        return checked_batch(x, y, self.units, sample_weight, class_weight, size, self._solver_dtype)

    def _checked(self, x: Any, y: Any, sample_weight: Any = None, class_weight: Any = None) -> Batch:
        """As `check`; then builds the model if it is not built yet."""
        batch = self._check(x, y, sample_weight, class_weight)
        self._build_for(batch)
        return batch

    def _build_for(self, batch: Batch) -> None:
        """Creates every variable before the first step.

        Saved weights can then be restored in time, and the step is traced once: a trace that creates variables,
        as those of the metrics, is thrown away and made again.
        """
        if not self.built:
            self.build((None, *batch.x.shape[1:]))
        if self.compiled and not self._compiled_parts_built:
            self._build_optimizer()
            x, y, weight = (part[:1] for part in batch)
            y_pred = self(x)
            self.compute_loss(x, y, y_pred, weight)
            self.compute_metrics(x, y, y_pred, weight)
            self.reset_metrics()
            self._compiled_parts_built = True

    @property
    def _solver_dtype(self) -> str:
        """The dtype the objective is computed in: that of the variables, float32 at least."""
        return keras.backend.result_type(self.head.variable_dtype, "float32")

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
        self._refuse_replicas()
        self._refuse_frozen()
        batch = self._check(x, y, sample_weight, class_weight)
        self._compile_if_needed()
        if self.is_exact:
            self._refuse_change(batch)
        self._build_for(batch)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in Keras, with arrays checked as `fit` checks them; compiles with the defaults as `fit` does."""
        checked_numbers({"batch_size": batch_size, "steps": steps})
        if is_array(x):
            x, y, sample_weight = self._checked(x, y, sample_weight)
        elif isinstance(x, tf.data.Dataset):
            self._forms.expect("x", x.element_spec)
        self._compile_if_needed()
        return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """As in Keras, with the batch checked as `fit` checks it; compiles with the defaults as `fit` does."""
        batch = self._checked(x, y, sample_weight)
        self._compile_if_needed()
        return super().test_on_batch(*batch, return_dict=return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> np.ndarray:
        """As in Keras, with the shape of the images checked: (T, M, N) or (T, M, N, 1) -> (T, K)."""
        numbers = checked_numbers({"batch_size": batch_size, "steps": steps})
        return super().predict(self._checked_images(x), verbose=verbose, callbacks=callbacks, **numbers)

    def predict_on_batch(self, x: Any) -> np.ndarray:
        """As in Keras, with the shape of the images checked."""
        return super().predict_on_batch(self._checked_images(x))

    def _checked_images(self, x: Any) -> Any:
        """Images for `predict`, or a ValueError; what they hold is not looked at."""
        if is_array(x):
            x = as_array(x, "x")
            check_image_shape("x", x.shape, self._forms.size)
        elif isinstance(x, tf.data.Dataset):
            self._forms.expect("x", x.element_spec, needs_labels=False)
        return x

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """As in Keras; NaN where a label is no class, or a weight is negative, whatever the loss makes of it."""
        y, sample_weight = (for_each_image(part, y_pred) for part in (y, sample_weight))
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        sound = ops.all(ops.isfinite(targets(y, self.units, y_pred.dtype)))
        if sample_weight is not None:
            sound = sound & ops.all(ops.convert_to_tensor(sample_weight) >= 0)
        return ops.where(sound, loss, float("nan"))

    def _refuse_change(self, batch: Batch) -> None:
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
        y, sample_weight = (for_each_image(part, y_pred) for part in (y, sample_weight))
        # Metrics of one score take labels of its shape, (T, 1).
        y = ops.reshape(y, (-1, 1)) if self.units == 1 and y is not None else y
        return super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def train_step(self, data: Any) -> dict[str, Tensor]:
        return self._exact_step(*data) if self.is_exact else super().train_step(data)

    def _exact_step(self, x: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Solves the active block on all the data and passes the turn to the next."""
        # A graph that serves batches of several sizes no longer knows their rank.
        x, weight = self._as_matrices(x), ops.reshape(weight, (-1,))
        C = targets(y, self.units, weight.dtype)
        active = self.schedule.active.value % self.num_blocks
        solution = self._solve_active_block(x, Samples(C, bm.normalised_weights(weight)), active)
        self.schedule.active.assign(active)
        self.schedule.record(active, solution.grad_norm, steps=solution.iterations)
        self.schedule.finish_block(solution.initial_objective, solution.objective, self.num_blocks)
        self.optimizer.iterations.assign_add(1)
        z = ops.reshape(solution.logits, (-1, self.units))  # a shared graph may not know its shape
        # Metrics of the present model, not a mean over the blocks of the sweep.
        self.reset_metrics()
        logs = self.compute_metrics(x, y, bm.probabilities(z), sample_weight=weight)
        step = logs_of_step(solution.objective, self.penalty(), solution.step_size, active, solution.grad_norm)
        return {**logs, **step, INNER_ITERATIONS: solution.iterations}

    def _solve_active_block(self, X: Tensor, samples: Samples, active: Tensor) -> Solution:
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
        batch = self._checked(x, y, sample_weight)
        weight = ops.convert_to_tensor(batch.weight)
        C = targets(ops.convert_to_tensor(batch.y), self.units, weight.dtype)
        V = bm.cross_entropy(self.logits(ops.convert_to_tensor(batch.x)), C, bm.normalised_weights(weight))
        return float(V + self.penalty())

    def certificate(self, x: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """How far J on these images can be above the global optimum; see `keras_bilinear.stopping.certificate`.

        Example:
            >>> print(model.certificate(x, y))
        """
        return certificate(self, x, y, sample_weight)

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
            "alpha": self.alpha,
            "use_bias": self.use_bias,
            "input_shape": self._declared_shape,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }


def repeated(batch: tuple[Tensor, ...]) -> tf.data.Dataset:
    """One batch, again and again, with nothing to tune or to rewrite.

    A tuner may sleep at the end of a fit for as long as that took, and rewriting copies the images.
    """
    plain = tf.data.Options()
    plain.autotune.enabled = False
    plain.experimental_optimization.apply_default_optimizations = False
    return tf.data.Dataset.from_tensors(batch).repeat().with_options(plain)


def size_of_images(shape: tuple[int | None, ...]) -> tuple[int, int]:
    """(M, N) of images (T, M, N) or (T, M, N, 1), or a ValueError that says what was received."""
    size = matrix_shape(shape)
    if len(shape) > 4 or (len(shape) == 4 and shape[-1] != 1):
        raise ValueError(f"Expected images (T, M, N) or (T, M, N, 1). Received: input of shape {tuple(shape)}")
    return size
