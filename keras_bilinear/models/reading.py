"""A reading of all images, batch by batch, inside Keras' own training loop: its `train_step` only adds up.

Each replica adds up what it reads itself. Only once all images have been read are their sums put together.
"""

from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.models.full_batch import ExactModel
from keras_bilinear.parts.log_names import INNER_ITERATIONS, OBJECTIVE, logs_of_step
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.replicas import agree, has_workers, total
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.passes import Filters, Sums, sums_of

ON_READ, SUM = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
"""A variable that each replica has a value of its own for."""


class Totals(NamedTuple):
    """What a reading has added up, divided by how many images it has seen.

    Fields:
        V, G, shares: As in `Sums`, of all of them.
        images: How many.
    """

    V: np.ndarray
    G: np.ndarray
    shares: np.ndarray
    images: int


class Reading:
    """The models that are looked at in one reading, and its sums so far: float64, whole numbers for counts.

    A float32 would stop growing once there are some millions of images.

    Args:
        models: How many are looked at together, the present one first.
        size: (K, M, N).
        dtype: What logits are computed in.
        strategy: Where the replicas are; it is made in the scope of that.
    """

    def __init__(self, models: int, size: tuple[int, int, int], dtype: str, strategy: tf.distribute.Strategy):
        K, M, N = size
        self.strategy = strategy

        def variable(shape: tuple[int, ...], dtype: str, is_sum: bool = False) -> tf.Variable:
            kind = {"synchronization": ON_READ, "aggregation": SUM} if is_sum else {}
            return tf.Variable(tf.zeros(shape, dtype), trainable=False, **kind)

        self.filters = Filters(variable((models, K, M, N), dtype), variable((models, K), dtype))
        self.class_weight = variable((max(K, 2),), dtype)
        self.sums = Sums(
            variable((models,), "float64", is_sum=True),
            variable((models - 1, K, M, N), "float64", is_sum=True),
            variable((models - 1, K), "float64", is_sum=True),
        )
        self.images = variable((), "int64", is_sum=True)
        self.last = {name: variable((), dtype) for name in ("penalty", "step_size", "grad_norm")}

    def begin(self, filters: list[tuple[Tensor, Tensor]], penalty: Tensor) -> None:
        """Starts anew with these models, W (K, M, N) and bias (K,) each; alpha R is that of the first."""
        self.last["penalty"].assign(penalty)
        for variable, values in zip(self.filters, zip(*filters, strict=True), strict=True):
            variable.assign(ops.stack(values))
        agree(self.strategy, [*self.filters, self.last["penalty"]])
        for part in (*self.sums, self.images):
            part.assign(tf.zeros(part.shape, part.dtype))

    def note(self, step_size: float, grad_norm: float) -> None:
        """What the logs say of the last step while the next reading runs."""
        self.last["step_size"].assign(step_size)
        self.last["grad_norm"].assign(grad_norm)

    def add(self, sums: Sums, images: Tensor) -> None:
        """Adds a batch."""
        for so_far, part in zip(self.sums, sums, strict=True):
            so_far.assign_add(ops.cast(part, so_far.dtype))
        self.images.assign_add(ops.cast(images, "int64"))

    def weights(self, C: Tensor, sample_weight: Tensor | None) -> Tensor:
        """The weight of each image, (T,), that of its class in it."""
        classes = ops.argmax(C, axis=1) if C.shape[1] > 1 else ops.cast(C[:, 0] > 0, "int32")
        w = ops.take(tf.convert_to_tensor(self.class_weight), classes)
        return w if sample_weight is None else w * ops.cast(ops.reshape(sample_weight, (-1,)), w.dtype)

    def totals(self) -> Totals:
        """What has been added up, by all replicas together."""
        *sums, count = total(self.strategy, [*self.sums, self.images])
        images = int(count)
        V, G, shares = (part.numpy() / max(images, 1) for part in sums)
        return Totals(V, G, shares, images)


class ReadModel(ExactModel, Protocol):
    """What a step of a reading asks of a model."""

    _solver_dtype: str
    _reading: Reading | None


def reading_step(model: ReadModel, data: Any) -> dict[str, Tensor]:
    """Adds a batch to the reading; logs J of the present model over the images so far."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    reading, dtype = model._reading, model._solver_dtype
    assert reading is not None  # `prepare_stream` has made it
    x = x if x.dtype == "uint8" else ops.cast(x, dtype)
    given = model._images(x)
    X = Images(ops.cast(given.pixels, dtype), given.scale)  # of a batch, a copy does no harm
    C = targets(y, model.units, dtype)
    w = reading.weights(C, sample_weight)
    sums, z = sums_of(X, Samples(C, w), Filters(*map(tf.convert_to_tensor, reading.filters)))
    reading.add(sums, ops.shape(z)[0])
    logs = model.compute_metrics(x, y, bm.probabilities(z), sample_weight=w)
    # Of the images that this replica has read, of which there may be none yet; Keras shows the mean of all.
    V = tf.math.divide_no_nan(tf.convert_to_tensor(reading.sums.V)[0], ops.cast(reading.images, "float64"))
    last = {name: tf.convert_to_tensor(value) for name, value in reading.last.items()}
    step = logs_of_step(
        ops.cast(V, dtype) + last["penalty"],
        last["penalty"],
        last["step_size"],
        ops.zeros((), "int32"),
        last["grad_norm"],
    )
    if has_workers(reading.strategy):
        return {OBJECTIVE: step[OBJECTIVE]}  # Keras lets the workers talk about each log in each step
    return {**logs, **step, INNER_ITERATIONS: ops.ones((), "int32")}
