"""The exact regime: whole blocks solved on the full batch, chosen in `compile` like any optimizer."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_bilinear.arguments import non_negative, one_of, positive_integer
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver import blocks as bl
from keras_bilinear.solver.descent import DIRECTIONS, Problem, Samples, Solution, minimise
from keras_bilinear.solver.joint import curvature_of, solve_joint
from keras_bilinear.solver.silent_ranks import wake_if_silent

BLOCKS = ("joint", "side", "factor")

MAX_INNER = {"joint": 20, "side": 100, "factor": 100}
"""Iterations a block takes unless told otherwise; the joint solver renews its curvature after them."""

PATIENCE = 3
"""The joint solver goes on so many times as long where it is slow: there, the curvature hardly changes."""


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BlockLineSearch(keras.optimizers.Optimizer):
    """Exact line searches on the full batch: all factors at once, or block by block as Algorithms 1 and 2 do.

    J never rises: from one step to the next by no more than float32 rounding, 1e-6 of J plus 1e-7 of the largest
    logit. A J near zero, on separable data with alpha = 0, is all rounding.

    Args:
        inner: The direction of a line search: "cg" (nonlinear conjugate gradient), "newton_cg" (truncated Newton)
            or "gradient_descent"; the last with blocks="factor" is the paper to the letter.
        blocks: "factor" moves one a_l or b_l at a time, as the paper does; "side" all ranks of A, then of B;
            "joint", the default and by far the fastest, all factors at once, preconditioned by their curvature.
        max_inner: Iterations a block may take; by default 100, or 20 for "joint", which then renews the curvature.
        tolerance: A block has converged when an iteration lowers J by no more than this fraction of J.

    Raises:
        ValueError: if `inner` or `blocks` is unknown, max_inner is not an integer >= 1 or tolerance is negative.

    Example:
        >>> model.compile(keras_bilinear.BlockLineSearch(inner="newton_cg"))
    """

    def __init__(
        self,
        inner: str = "cg",
        blocks: str = "joint",
        max_inner: int | None = None,
        tolerance: float = 1e-7,
        name: str = "block_line_search",
    ):
        # No other setting of a Keras optimizer has a meaning here, so none is taken.
        super().__init__(learning_rate=1.0, name=name)
        self.inner = one_of("inner", inner, tuple(DIRECTIONS))
        self.blocks = one_of("blocks", blocks, BLOCKS)
        # Variables, so that changing them does not trace anything anew.
        budget = MAX_INNER[blocks] if max_inner is None else positive_integer("max_inner", max_inner)
        self._max_inner = keras.Variable(budget, dtype="int32", trainable=False)
        self._tolerance = keras.Variable(non_negative("tolerance", tolerance), dtype="float32", trainable=False)

    @property
    def max_inner(self) -> int:
        """Iterations a block may take."""
        return int(self._max_inner.numpy())

    @max_inner.setter
    def max_inner(self, value: int) -> None:
        self._max_inner.assign(positive_integer("max_inner", value))

    @property
    def steps_are_large(self) -> bool:
        """Whether a step is long enough for what is around it not to matter.

        The joint solver spends its time in products with the images. Neither XLA nor a graph for the whole step
        would speed it up on a CPU; where steps are small and many, both earn back the seconds they take.
        """
        return self.blocks == "joint"

    @property
    def tolerance(self) -> float:
        """The relative decrease of J below which a block has converged."""
        return float(self._tolerance.numpy())

    @tolerance.setter
    def tolerance(self, value: float) -> None:
        self._tolerance.assign(non_negative("tolerance", value))

    def solve_factors(
        self,
        X: Tensor,
        samples: Samples,
        factors: bl.Factors,
        active: Tensor,
        penalty: type[Penalty],
        alpha: Tensor,
        jit: bool = True,
        max_inner: int | None = None,
    ) -> tuple[bl.Factors, Solution]:
        """Solves block `active` of a bilinear model; shapes as in `blocks.solve_active`.

        With max_inner = 0 it moves nothing but silent ranks, and the solution says how far J could fall from there.
        """
        budget = self._budget(X.dtype, max_inner)
        if self.blocks == "joint":
            # Without XLA where singular values or an inverse are taken: it has no fast ones on the CPU.
            factors, gain = compiled(wake_if_silent, False, ("penalty", penalty))(X, samples, factors, alpha)
            curvature = compiled(curvature_of, jit, ("penalty", penalty))(X, samples, factors, alpha)
            step = compiled_solver(solve_joint, self.inner, jit, ("penalty", penalty), patience=PATIENCE)
            factors, solution = step(X, samples, budget, factors, curvature.inverted(), alpha)
            return factors, solution._replace(initial_objective=solution.initial_objective + gain)
        step = compiled_solver(bl.solve_active, self.inner, jit, ("blocks", self.blocks), ("penalty", penalty))
        return step(X, samples, budget, factors, active, alpha)

    def solve_linear(
        self,
        X: Tensor,
        samples: Samples,
        kernel: Tensor,
        bias: Tensor | None,
        alpha: Tensor,
        jit: bool = True,
        max_inner: int | None = None,
    ) -> Solution:
        """Solves a linear model, which is a single block; shapes as in `blocks.solve_linear`."""
        step = compiled_solver(bl.solve_linear, self.inner, jit)
        return step(X, samples, self._budget(X.dtype, max_inner), kernel, bias, alpha)

    def _budget(self, dtype: Any, max_inner: int | None) -> tuple[Tensor, Tensor]:
        count = ops.copy(self._max_inner.value) if max_inner is None else ops.convert_to_tensor(max_inner, "int32")
        return count, ops.cast(ops.copy(self._tolerance.value), dtype)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        raise ValueError(
            "BlockLineSearch solves whole blocks and takes no gradient steps. Expected it to be compiled into "
            "one of keras_bilinear's regression models; compile this model with a Keras optimizer instead."
        )

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("inner", "blocks", "max_inner", "tolerance")}
        return {"name": self.name, **own}


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer that holds the step count: inside a loss scaler under mixed precision."""
    return getattr(optimizer, "inner_optimizer", optimizer)


@functools.cache
def compiled(function: Callable[..., Any], jit: bool, *settings: tuple[str, Any]) -> Callable[..., Any]:
    """`function`, whose first arguments are X and the samples, as a graph with its static settings bound.

    One for all models: XLA compiles it once a shape; without XLA it is traced once for any number of images.
    """
    bound = functools.partial(function, **dict(settings))
    if jit:
        return tf.function(bound, jit_compile=True, autograph=False)
    graph = tf.function(bound, autograph=False)

    def call(X: Tensor, samples: Samples, *args: Any) -> Any:
        any_number = tf.nest.map_structure(
            lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), (X, samples)
        )
        # Traces it if there is no such graph yet; the call below then finds it.
        graph.get_concrete_function(*any_number, *args)
        return graph(X, samples, *args)

    return call


@functools.cache
def compiled_solver(
    pose: Callable[..., Any], inner: str, jit: bool, *settings: tuple[str, Any], patience: int = 1
) -> Callable[..., Any]:
    """As `compiled`, for a function that takes a `solver` with this patience.

    The third argument of the result is (max_inner, tolerance), the others are those of `pose`.
    """

    def step(X: Tensor, samples: Samples, budget: tuple[Tensor, Tensor], *args: Any, **settings: Any) -> Any:
        def solver(problem: Problem, samples: Samples, U: Tensor) -> Solution:
            return minimise(problem, samples, U, DIRECTIONS[inner], *budget, patience=patience)

        return pose(X, samples, *args, **settings, solver=solver)

    return compiled(step, jit, *settings)
