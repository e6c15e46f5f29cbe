"""The exact regime: whole blocks solved on the full batch, chosen in `compile` like any optimizer."""

from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bilinear.arguments import non_negative, one_of, positive_integer
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver import blocks as bl
from keras_bilinear.solver.compiled import Compiled
from keras_bilinear.solver.descent import Budget, Direction, Solution
from keras_bilinear.solver.directions import DIRECTIONS
from keras_bilinear.solver.first_step import first_step, may_begin_on_a_part
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint import solve_joint, step_joint
from keras_bilinear.solver.joint_curvature import curvature_of, grain_of
from keras_bilinear.solver.silent_ranks import wake_if_silent

BLOCKS = ("joint", "side", "factor")

MAX_INNER = {"joint": 5, "side": 100, "factor": 100}
"""Iterations a block takes unless told otherwise; the joint solver renews its curvature after them."""


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
        max_inner: Iterations a block may take; by default 100, or 5 for "joint", which then renews the curvature.
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
        X: Images,
        samples: Samples,
        factors: Factors,
        active: Tensor,
        alpha: Tensor,
        penalty: type[Penalty],
        jit: bool = True,
        max_inner: int | None = None,
    ) -> tuple[Factors, Solution]:
        """Solves block `active` of a bilinear model; shapes as in `blocks.solve_active`.

        With max_inner = 0 it moves nothing but silent ranks, and the solution says how far J could fall from there.
        """
        budget, direction = self._budget(X.dtype, max_inner), DIRECTIONS[self.inner]
        if self.blocks != "joint":
            solve = Compiled(bl.solve_active, jit, penalty=penalty, blocks=self.blocks, direction=direction)
            return solve(X, samples, factors, active, budget, alpha)
        solve_jointly = partial(
            self._solve_jointly, budget=budget, alpha=alpha, penalty=penalty, jit=jit, direction=direction
        )
        if max_inner is None and may_begin_on_a_part(X, factors):
            begun = first_step(X, samples, factors, alpha, penalty, solve_jointly)
            if begun is not None:
                return begun
        return solve_jointly(X, samples, factors)

    def _solve_jointly(
        self,
        X: Images,
        samples: Samples,
        factors: Factors,
        budget: Budget,
        alpha: Tensor,
        penalty: type[Penalty],
        jit: bool,
        direction: Direction,
    ) -> tuple[Factors, Solution]:
        """A step of all factors, after silent ranks have been woken."""
        # As it is: to trace what hardly ever happens takes longer than it would save.
        factors, gain = wake_if_silent(X, samples, factors, alpha, penalty)
        grain = grain_of(factors)
        if jit:
            # XLA inverts matrices slowly.
            curvature = Compiled(curvature_of, jit, penalty=penalty, grain=grain)
            inverse = curvature(X, samples, factors, alpha).inverted()
            solve = Compiled(solve_joint, jit, penalty=penalty, direction=direction)
            factors, solution = solve(X, samples, factors, inverse, budget, alpha)
        else:
            step = Compiled(step_joint, jit, penalty=penalty, direction=direction, grain=grain)
            factors, solution = step(X, samples, factors, budget, alpha)
        return factors, solution._replace(initial_objective=solution.initial_objective + gain)

    def solve_linear(
        self,
        X: Images,
        samples: Samples,
        kernel: Tensor,
        bias: Tensor | None,
        alpha: Tensor,
        jit: bool = True,
        max_inner: int | None = None,
    ) -> Solution:
        """Solves a linear model, which is a single block; shapes as in `blocks.solve_linear`."""
        solve = Compiled(bl.solve_linear, jit, direction=DIRECTIONS[self.inner])
        return solve(X, samples, kernel, bias, self._budget(X.dtype, max_inner), alpha)

    def _budget(self, dtype: Any, max_inner: int | None) -> Budget:
        count = ops.copy(self._max_inner.value) if max_inner is None else ops.convert_to_tensor(max_inner, "int32")
        return Budget(count, ops.cast(ops.copy(self._tolerance.value), dtype))

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
