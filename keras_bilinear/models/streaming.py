"""Exact fits to data sets that are read batch by batch: an epoch is a reading, and a step is taken between two."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.data.arrays import Batch, class_weights
from keras_bilinear.data.options import Forms
from keras_bilinear.data.survey import Survey, checked_batches, survey
from keras_bilinear.data.unusual import warn_of_one_class, warn_of_pixels
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.maths.duality import spectral_norms
from keras_bilinear.models.reading import Reading, ReadModel, Totals
from keras_bilinear.models.stream_options import expect_whole_passes, streamed_options, tell_of_reading
from keras_bilinear.parts import log_names as log
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.replicas import agree, of_first
from keras_bilinear.solver.between_passes import TRIALS, Line, after, doubted, first_line, forgotten, shortened
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.streamed import OnSketch, Parameters

SAME_V = 1e-5
"""V of the same weights may differ by this fraction from one reading to the next: sums are in another order."""
TINY_V = 1e-6
"""And by this much where it is next to nothing."""
SAME_W = 1e-3
"""W that has changed by less than this fraction has nearly the same gradient: negligible ranks were given up."""


class StreamedModel(ReadModel, Protocol):
    """What the steps between readings ask of a model."""

    stop_training: bool
    distribute_strategy: tf.distribute.Strategy
    trainable_variables: list[keras.Variable]
    input_scale: float
    image_size: tuple[int, int]
    _streaming: Any
    _forms: Forms

    def _build_for(self, batch: Batch) -> None: ...
    def _compile_if_needed(self) -> None: ...
    def _parameters(self, dtype: Any) -> Parameters: ...
    def _assign(self, parameters: Parameters) -> None: ...
    def _on_sketch(self, X: Images, samples: Samples) -> OnSketch: ...


class Memory:
    """What the next step must know of the last ones: variables, so that a checkpoint can hold them.

    Args:
        d: A direction, for its shape and dtype.
        size: (K, M, N).
    """

    def __init__(self, d: Tensor, size: tuple[int, int, int]):
        def variable(value: Any, dtype: Any) -> keras.Variable:
            return keras.Variable(value, trainable=False, dtype=dtype)

        self.line = [variable(part, part.dtype) for part in first_line(ops.zeros_like(d))]
        self.G, self.shares = (variable(np.zeros(shape), d.dtype) for shape in (size, size[:1]))
        self.V, self.is_known = variable(0.0, "float64"), variable(0, "int32")
        self.failures = variable(0, "int32")
        self.left, self.alpha = variable(ops.zeros_like(d), d.dtype), variable(0.0, d.dtype)

    @property
    def variables(self) -> list[keras.Variable]:
        """All of it."""
        return [*self.line, self.G, self.shares, self.V, self.is_known, self.failures, self.left, self.alpha]

    def recall(self) -> Line:
        """The line that the reading looks at."""
        return Line(*(ops.copy(part.value) for part in self.line))

    def keep(self, line: Line) -> None:
        """The line that the next reading looks at."""
        for variable, part in zip(self.line, line, strict=True):
            variable.assign(part)


class Streaming(keras.callbacks.Callback):
    """Takes the steps of a fit whose images are read anew in every epoch.

    It is the first of all callbacks: a reading has ended before held-out images are looked at, or else when the
    epoch ends, and with it the step is taken.

    Args:
        model: What is fitted.
        survey: Of its data.
        batches: Reads these again, each batch checked.
    """

    def __init__(self, model: StreamedModel, survey: Survey, batches: Callable[[], Iterator[Batch]]):
        super().__init__()
        self.batches = batches
        self.set_model(model)
        self.survey, dtype = survey, model._solver_dtype
        x, y, weight = map(tf.convert_to_tensor, survey.sketch)
        given = model._images(x)
        self.X = Images(ops.cast(given.pixels, dtype), given.scale)
        self.samples = Samples(targets(y, model.units, dtype), ops.cast(weight, dtype))
        self.memory = Memory(self.problem.flat(model._parameters(dtype)), (model.units, *x.shape[1:3]))
        self.strategy = model.distribute_strategy
        self.tried: list[Parameters] = []
        self.decrease_in_sight = np.inf
        self.news: dict[str, Any] = {}

    @property
    def problem(self) -> OnSketch:
        """J on the sketch, with alpha as it is now."""
        return self.model._on_sketch(self.X, self.samples)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.memory.is_known.assign(0)  # unless a checkpoint, which comes later, knows more

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        agree(self.strategy, self.model.trainable_variables)  # another callback may have changed them
        at, problem = self.model._parameters(self.X.dtype), self.problem
        if not self.goes_on(at):
            self.memory.keep(first_line(self.way_on_sketch(at)))
            self.memory.is_known.assign(0)
            self.memory.failures.assign(0)
        elif not bool(ops.equal(self.memory.alpha.value, problem.alpha)):
            self.aim(at, problem, forgotten(self.memory.recall()))
        agree(self.strategy, self.memory.variables)
        line = self.memory.recall()
        self.tried = [at, *(problem.moved(at, eta * line.d) for eta in line.steps)]
        self.model._reading.begin([problem.filters(each) for each in self.tried], problem.penalty(at))

    def goes_on(self, at: Parameters) -> bool:
        """Whether the model is where the last step has left it, and something is known of it."""
        is_same = bool(ops.all(ops.equal(self.memory.left.value, self.problem.flat(at))))
        return bool(self.memory.is_known.numpy()) and is_same

    def way_on_sketch(self, at: Parameters) -> Tensor:
        """Where the sketch alone leads to; but ranks that have come to a known model are told by all images."""
        memory, problem, found = self.memory, self.problem, None
        if self.knows_gradient(at):
            found = problem.woken(at, memory.G.value, memory.shares.value)
        if found is None:
            found, _ = self.model._solved(self.X, self.samples, ops.zeros((), "int32"))
        return problem.flat(found) - problem.flat(at)

    def knows_gradient(self, at: Parameters) -> bool:
        """Whether W, in whatever factors, is what it was when the gradient there was read."""
        problem = self.problem
        left = problem.moved(at, self.memory.left.value - problem.flat(at))
        pairs = zip(problem.filters(left), problem.filters(at), strict=True)
        is_same = all(np.linalg.norm(new - old) <= SAME_W * np.linalg.norm(old) for old, new in pairs)
        return bool(self.memory.is_known.numpy()) and is_same

    def aim(self, at: Parameters, problem: OnSketch, last: Line) -> None:
        """Finds the next line from a model whose gradient is known."""
        memory = self.memory
        memory.keep(problem.next_line(at, memory.G.value, memory.shares.value, last))
        memory.alpha.assign(problem.alpha)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.finish_reading()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.finish_reading()
        if logs is not None:
            logs.update(self.news)

    @property
    def ratios(self) -> np.ndarray:
        """|G_k|_2 / alpha of the present model, (K,): with the sum penalty, above 1 where one more rank helps."""
        return spectral_norms(self.memory.G.numpy()) / self.model.alpha

    def finish_reading(self) -> None:
        """Takes the step, once all images have been read and not a second time."""
        if not self.tried:
            return
        totals = self.model._reading.totals()
        if totals.images != self.survey.images:
            self.broken_off(totals)
            return
        J = totals.V + np.array([float(self.problem.penalty(each)) for each in self.tried])
        (J,) = (part.numpy() for part in of_first(self.strategy, [tf.convert_to_tensor(J)]))
        self.expect_same(totals.V[0])
        self.take(totals, np.where(np.isfinite(J), J, np.inf))
        self.tried = []

    def broken_off(self, totals: Totals) -> None:
        """A callback may end the fit in the middle of a reading; data that end there are others than before."""
        if not self.model.stop_training:
            raise ValueError(
                f"Expected the same images in every pass. Received: {totals.images:,} after {self.survey.images:,}"
            )
        self.tried = []

    def expect_same(self, V: float) -> None:
        """Raises a ValueError if V of the present weights is not what it was when they were reached."""
        before = float(self.memory.V.numpy())
        if self.memory.is_known.numpy() and not abs(V - before) <= SAME_V * abs(before) + TINY_V:
            raise ValueError(
                f"Expected the same images in every pass. Received: V of the same weights changed from one pass to "
                f"the next, {before:.6g} to {V:.6g}. Remove random augmentation, or use a Keras optimizer; with "
                "several workers, give `shuffle` a `seed`."
            )

    def take(self, totals: Totals, J: np.ndarray) -> None:
        """Takes the best of the steps that were tried, and finds the next line."""
        memory, problem, line = self.memory, self.problem, self.memory.recall()
        best = 1 + int(np.argmin(J[1:]))
        falls, knows_gradient = J[best] < J[0], bool(memory.is_known.numpy())
        if not falls and not knows_gradient:
            falls, best = True, len(J) - 1  # the step of length zero, for its gradient
        if falls:
            self.model._assign(self.tried[best])
            memory.G.assign(totals.G[best - 1])
            memory.shares.assign(totals.shares[best - 1])
            line = after(line, best - 1) if knows_gradient else line
        else:
            best, line = 0, doubted(line)
        failures = 0 if falls else int(memory.failures.numpy()) + 1
        self.aim(self.tried[best], problem, line)
        if not falls:
            memory.keep(shortened(memory.recall(), failures))
        memory.left.assign(problem.flat(self.model._parameters(self.X.dtype)))
        for variable, value in ((memory.V, totals.V[best]), (memory.is_known, 1), (memory.failures, failures)):
            variable.assign(value)
        agree(self.strategy, [*self.model.trainable_variables, *memory.variables])
        self.tell(line, J[0], J[best], float(problem.penalty(self.tried[best])), best)

    def tell(self, line: Line, before: float, J: float, penalty: float, best: int) -> None:
        """Notes a step in the schedule and for the logs; one that found nothing ends a sweep if it stays so."""
        model, now = self.model, self.memory.recall()
        eta, norm = (float(line.steps[best - 1]) if best else 0.0), float(ops.norm(now.g))
        failures = int(self.memory.failures.numpy())
        self.decrease_in_sight = max(0.5 * float(now.gh) / max(abs(J), 1e-30), 0.0)
        model.schedule.record(0, norm, steps=1)
        if before > J or failures > 1:
            model.schedule.finish_block(before, J, 1)
        model.optimizer.iterations.assign_add(1)
        model._reading.note(eta, norm)
        self.news = log.logs_of_step(J, penalty, eta, 0, norm) | {log.INNER_ITERATIONS: 1}


def prepare_stream(model: StreamedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Reads a data set once, makes a model ready to be fitted to it, and returns the options that Keras gets."""
    tell_of_reading(options.get("verbose"))
    class_weight = options.get("class_weight")
    data = options["x"], model.units, class_weight, model._forms.size, model._solver_dtype
    found = survey(*data)
    expect_whole_passes(options.get("steps_per_epoch"), found)
    warn_of_one_class(np.flatnonzero(found.counts))
    warn_of_pixels(found.largest_pixel, found.whole_pixels, model.input_scale)
    # Nothing has been compiled, built or changed up to here.
    model._compile_if_needed()
    model._build_for(found.sketch)
    model.schedule.begin_fit()
    if model._reading is None:
        size, strategy = (model.units, *model.image_size), model.distribute_strategy
        model._reading = Reading(1 + len(TRIALS), size, model._solver_dtype, strategy)
    model._reading.class_weight.assign(class_weights(class_weight or {}, max(model.units, 2)))
    model._streaming = Streaming(model, found, lambda: checked_batches(*data))
    return streamed_options(options, found)
