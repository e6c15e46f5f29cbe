"""A Keras optimizer that moves one block a step, as if every block had an optimizer of its own.

Most of what an optimizer keeps, such as Adam's moments, it keeps for every variable. The rest it keeps for all of
them together: the step count, and in Nadam a running product. That is put in place before a block moves, and put
away afterwards.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.models.gradients import for_the_sum, present
from keras_bilinear.parts.optimizers import inner_optimizer
from keras_bilinear.parts.replicas import of_first_replica


def expect_block_updates(optimizer: Any) -> None:
    """Raises a ValueError for an optimizer that cannot move one block and leave the others as they are."""
    inner = inner_optimizer(optimizer)
    if not hasattr(inner, "learning_rate"):  # None has none, and Keras' MultiOptimizer has several
        raise ValueError(
            "Expected one Keras optimizer with one learning rate for all variables, such as 'adam'. Received: "
            f"optimizer={getattr(inner, 'name', inner)!r}"
        )
    if getattr(inner, "gradient_accumulation_steps", None):
        raise ValueError(
            "Expected an optimizer without `gradient_accumulation_steps`: accumulated gradients of blocks "
            "that are not active would be lost."
        )
    if getattr(inner, "use_ema", False):
        raise ValueError("Expected an optimizer without `use_ema`: averages would move blocks that are not active.")


class BlockUpdates:
    """Moves the active block of several, and the other variables.

    Args:
        optimizer: Any Keras optimizer, with or without a loss scaler around it, built.
        block_steps: How many steps each block has had, (blocks,).
        blocks: The variables that take turns, a list for each turn.
        others: Those that always move.
    """

    def __init__(
        self,
        optimizer: Any,
        block_steps: keras.Variable,
        blocks: list[list[keras.Variable]],
        others: list[keras.Variable],
    ):
        self.optimizer, self.inner = optimizer, inner_optimizer(optimizer)
        self.block_steps, self.blocks, self.others = block_steps, blocks, others
        self.total = tf.convert_to_tensor(self.inner.iterations.value)
        self.apart = kept_apart(self.inner)

    def step(
        self, active: Tensor, loss: Tensor, block_gradients: list[list[Tensor]], other_gradients: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step with gradients of the scaled loss; returns |gradient| and rate of the block, whether it was one.

        It is none if the loss or a gradient is not finite: no variable moves, and a loss scaler lowers its scale.
        """
        scale = self.optimizer.scale_loss(ops.ones_like(loss))
        values = [loss, *present([g for group in [*block_gradients, other_gradients] for g in group])]
        sound = ops.all(ops.stack([ops.all(ops.isfinite(value)) for value in values]))
        if self.is_scaled:
            # The loss scale counts a step, and may change, with the block: all else is scaled back here.
            other_gradients = [None if g is None else ops.divide(g, scale) for g in other_gradients]

        def turn(index: int) -> tuple[Tensor, Tensor]:
            gradients, block = block_gradients[index], self.blocks[index]
            steps = tf.convert_to_tensor(self.block_steps.value)[index]
            rate = self.move(self.optimizer, index, steps, gradients, block)
            if self.others:
                self.move(self.inner, len(self.blocks), self.total, other_gradients, self.others)
            self.inner.iterations.assign(self.total + 1)
            norms = ops.stack([ops.cast(ops.norm(gradient), scale.dtype) for gradient in present(gradients)])
            return ops.norm(norms) / scale, rate

        def stay() -> tuple[Tensor, Tensor]:
            if self.is_scaled:
                # To a loss scaler a gradient that is not finite says that the scale is too large.
                first = self.blocks[0][:1]
                self.optimizer.apply([ops.full_like(first[0], float("nan"))], first)
            return ops.full_like(scale, float("nan")), ops.cast(self.inner.learning_rate, "float32")

        turns = [lambda index=index: turn(index) for index in range(len(self.blocks))]
        return *chosen(ops.where(sound, active, len(turns)), [*turns, stay]), sound

    @property
    def is_scaled(self) -> bool:
        """Whether a loss scaler is around the optimizer."""
        return self.optimizer is not self.inner

    def move(self, optimizer: Any, row: int, steps: Tensor, gradients: Any, variables: Any) -> Tensor:
        """Applies the optimizer as one that has taken `steps`, with the state of this row; returns its rate."""
        self.inner.iterations.assign(ops.cast(steps, self.inner.iterations.dtype))
        rate = ops.cast(self.inner.learning_rate, "float32")
        for state, rows in self.apart:
            state.assign(tf.convert_to_tensor(rows.value)[row])
        optimizer.apply(for_the_sum(gradients), variables)
        for state, rows in self.apart:
            value = tf.convert_to_tensor(state.value)[None]
            rows.assign(ops.scatter_update(tf.convert_to_tensor(rows.value), [[row]], value))
        return rate


def chosen(index: Tensor, branches: list[Callable[[], Any]]) -> Any:
    """What branch number `index` returns.

    Chosen for all replicas together: within a replica some strategies let no branch update variables. The branches
    are those of the first replica here, so what they hold must be the same in all.
    """

    def choose(strategy: tf.distribute.Strategy, index: Tensor) -> Any:
        runs = [lambda branch=branch: of_first_replica(strategy, strategy.run(branch)) for branch in branches]
        return ops.switch(of_first_replica(strategy, index), runs)

    return tf.distribute.get_replica_context().merge_call(choose, args=(index,))


def keep_apart(optimizer: Any, variables: list[keras.Variable], num_blocks: int) -> None:
    """Gives an optimizer that was just built for `variables` room for the state of every block.

    Among its own variables, so that it is saved and restored with them.
    """
    apart = [id(state) for state, _ in kept_apart(optimizer)]
    for state in shared_state(optimizer, variables):
        if id(state) not in apart:
            start = np.repeat(ops.convert_to_numpy(state)[None], num_blocks + 1, axis=0)
            initial = keras.initializers.Constant(start)
            rows = optimizer.add_variable(
                start.shape, initial, state.dtype, aggregation="only_first_replica", name="of_blocks"
            )
            rows.kept_from = state


def kept_apart(optimizer: Any) -> list[tuple[keras.Variable, keras.Variable]]:
    """The variables that have a value for each block, and all these values: (blocks + 1, ...)."""
    return [(rows.kept_from, rows) for rows in optimizer.variables if hasattr(rows, "kept_from")]


def shared_state(optimizer: Any, variables: list[keras.Variable]) -> list[keras.Variable]:
    """What the optimizer keeps for all `variables` together, beside its step count and its learning rate.

    That is all but what it keeps in lists with an item for each variable. What belongs to one variable and is kept
    otherwise is kept apart in vain, which does no harm.
    """
    attributes = list(vars(optimizer).values())
    lists = [value for value in attributes if isinstance(value, list) and len(value) == len(variables)]
    pairs = [pair for items in lists for pair in zip(items, variables, strict=True)]
    known = {id(state) for state, variable in pairs if belongs(state, variable)}
    known |= {id(optimizer.iterations), id(optimizer.learning_rate)}
    # An attribute need not be among the variables: Nadam's product is not where a loss scaler has built it.
    own = [value for value in attributes if isinstance(value, keras.Variable)]
    states = {id(state): state for state in [*optimizer.variables, *own] if not hasattr(state, "kept_from")}
    return [state for key, state in states.items() if key not in known]


def belongs(state: Any, variable: keras.Variable) -> bool:
    """Whether an item of a list is of this variable: it has its shape, or its name, as Keras gives it."""
    if not isinstance(state, keras.Variable):
        return False
    path = variable.path.replace("/", "_")
    return state.shape == variable.shape or state.name == variable.name or state.name.startswith(f"{path}_")
