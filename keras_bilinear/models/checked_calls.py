"""The calls of a Keras model, with images, labels and weights checked before anything else happens."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.data.arrays import (
    Batch,
    as_array,
    check_image_shape,
    checked_batch,
    class_indices,
    class_weights,
    is_array,
    the_only_batch,
)
from keras_bilinear.data.held_out import train_validation_split
from keras_bilinear.data.laid_out import laid_out, options_laid_out
from keras_bilinear.data.mapped import mapped_batches, unmapped
from keras_bilinear.data.options import Forms, checked_numbers, checked_options
from keras_bilinear.data.survey import checked_batches, is_stream
from keras_bilinear.data.unusual import warn_of_one_class, warn_of_scale
from keras_bilinear.models.alternation import AlternatingTraining
from keras_bilinear.models.fitting import listed, refuse_frozen, refuse_replicas
from keras_bilinear.models.full_batch import refuse_change
from keras_bilinear.models.stream_options import expect_streamable
from keras_bilinear.parts.image_layout import ImageLayout
from keras_bilinear.parts.layers_within import refuse_quantized
from keras_bilinear.stopping.separation import SeparationStop


class CheckedCalls(AlternatingTraining):
    """Mixed into a regression model, which knows the size of its images and its classes."""

    units: int
    alpha: float
    input_scale: float
    image_size: tuple[int, int]
    _layout: ImageLayout | None
    head: keras.layers.Layer
    _full_batch: str | None = None
    _compiled_parts_built = False

    @property
    def _trains_exactly(self) -> bool:
        """Whether `fit` will solve whole blocks: as compiled, or by default."""
        return self.is_exact or not self.compiled

    @property
    def _solver_dtype(self) -> str:
        """The dtype the objective is computed in: that of the variables, float32 at least."""
        return keras.backend.result_type(self.head.variable_dtype, "float32")

    @property
    def _forms(self) -> Forms:
        """The batches this model takes."""
        return Forms(self.image_size if self.built else None, self.units)

    def _own_callbacks(self) -> list[keras.callbacks.Callback]:
        return [SeparationStop()] if self._trains_exactly and self.alpha == 0 else []

    def _build_for(self, batch: Batch) -> None:
        """Creates every variable before the first step.

        Saved weights can then be restored in time, and the step is traced once: a trace that creates variables,
        as those of the metrics, is thrown away and made again.
        """
        if not self.built:
            with self.distribute_strategy.scope():
                self.build((None, *batch.x.shape[1:]))
        if self.compiled and not self._compiled_parts_built:
            self._build_optimizer()
            if self.distribute_strategy.num_replicas_in_sync > 1:
                return  # metrics have a value for each replica, and are built within them
            x, y, weight = (part[:1] for part in batch)
            y_pred = self(x)
            self.compute_loss(x, y, y_pred, weight)
            self.compute_metrics(x, y, y_pred, weight)
            self.reset_metrics()
            self._compiled_parts_built = True

    def _compile_if_needed(self) -> None:
        if not self.compiled:
            self.compile()

    def _check(
        self, x: Any, y: Any, sample_weight: Any = None, class_weight: Any = None, size: Any = None
    ) -> Batch:
        """The data as arrays this model can train on; changes nothing."""
        refuse_quantized(self)
        x = laid_out(x, self._layout)
        size = self._forms.size if size is None else size
        return checked_batch(x, y, self.units, sample_weight, class_weight, size, self._solver_dtype)

    def _checked(self, x: Any, y: Any, sample_weight: Any = None, class_weight: Any = None) -> Batch:
        """As `_check`; then builds the model if it is not built yet."""
        batch = self._check(x, y, sample_weight, class_weight)
        self._build_for(batch)
        return batch

    def _batches(self, dataset: tf.data.Dataset) -> Iterator[Batch]:
        """The batches of a data set, each as `_checked` has it."""
        refuse_quantized(self)
        dataset = laid_out(dataset, self._layout)
        for batch in checked_batches(dataset, self.units, None, self._forms.size, self._solver_dtype):
            self._build_for(batch)
            yield batch

    def _check_fit(self, options: dict[str, Any]) -> tuple[dict[str, Any], Batch | None]:
        if self._trains_exactly:
            names = ("x", "y", "sample_weight")
            options |= dict(zip(names, unmapped(*(options.get(name) for name in names)), strict=True))
        options = options_laid_out(options, self._layout)
        options = checked_options(options, self._forms, repeats=self._trains_exactly)
        if options.get("class_weight") is not None:
            # Every class by its number: Keras refuses a data set's classes that are left out.
            weights = class_weights(options["class_weight"], max(self.units, 2))
            options["class_weight"] = dict(enumerate(weights.tolist()))
        # Several replicas read all images batch by batch, however they are given.
        replicas = self._trains_exactly and self.distribute_strategy.num_replicas_in_sync > 1
        streams = self._trains_exactly and is_stream(options.get("x"))
        if streams or replicas:
            refuse_quantized(self)
            expect_streamable(self, options, listed(options.get("callbacks")))
        if self._trains_exactly and not streams and not is_array(options.get("x")):
            options |= the_only_batch(*(options.get(name) for name in ("x", "y", "sample_weight")))
        size, batch = self._forms.size, None
        if is_array(options.get("x")):
            batch, found = self._checked_arrays(options)
            options |= found
            size = batch.x.shape[1:]
        if isinstance(options.get("validation_data"), tuple | list):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(tuple(options["validation_data"]))
            options["validation_data"] = tuple(self._check(x, y, weight, size=size))
        refuse_frozen(self)
        if batch is not None and replicas:
            data = mapped_batches(batch.x, batch.y, batch.weight)
            options, batch = {**options, "x": data, "y": None, "sample_weight": None, "batch_size": None}, None
        if batch is not None and self._trains_exactly:
            # As tensors already: a data set made of NumPy arrays holds two copies of them.
            batch = Batch(*map(tf.convert_to_tensor, batch))
        return options, batch

    def _checked_arrays(self, options: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """The data of a fit, `class_weight` in their weights, and the options that say so to Keras."""
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
        warn_of_one_class(class_indices(batch.y, self.units))
        warn_of_scale(options["x"], batch.x, self.input_scale)
        return batch, {**found, "x": batch.x, "y": batch.y, "sample_weight": batch.weight}

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """As in Keras; in the exact regime one call solves one block, and every call must bring the same data."""
        refuse_replicas(self)
        refuse_frozen(self)
        batch = self._check(x, y, sample_weight, class_weight)
        self._compile_if_needed()
        if self.is_exact:
            self._full_batch = refuse_change(batch, self._full_batch)
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
        x = laid_out(x, self._layout)
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
        """As in Keras, with the shape of the images checked: (T, M, N), or (T, M, N, C) with `rows`, -> (T, K)."""
        numbers = checked_numbers({"batch_size": batch_size, "steps": steps})
        return super().predict(self._checked_images(x), verbose=verbose, callbacks=callbacks, **numbers)

    def predict_on_batch(self, x: Any) -> np.ndarray:
        """As in Keras, with the shape of the images checked."""
        return super().predict_on_batch(self._checked_images(x))

    def _checked_images(self, x: Any) -> Any:
        """Images for `predict`, or a ValueError; what they hold is not looked at."""
        x = laid_out(x, self._layout)
        if is_array(x):
            x = as_array(x, "x")
            check_image_shape("x", x.shape, self._forms.size)
        elif isinstance(x, tf.data.Dataset):
            self._forms.expect("x", x.element_spec, needs_labels=False)
        return x
