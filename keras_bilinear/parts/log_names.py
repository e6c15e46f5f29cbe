"""What `fit` logs: the keys of the logs, of the history, and of what callbacks monitor."""

from typing import Any

from keras_bilinear.maths.bilinear import Tensor

LOSS = "loss"
NAMES_OF_J = OBJECTIVE, J = "objective", "J"
"""J by names of its own; Keras calls it the loss."""
PENALTY = "penalty"
"""alpha R."""
STEP_SIZE, ACTIVE_BLOCK, GRAD_NORM = "step_size", "active_block", "grad_norm"
"""Of the block that moved: how far along its direction (the learning rate on mini-batches), number, |gradient|."""
INNER_ITERATIONS = "inner_iterations"
"""Line searches of a step in the exact regime; mini-batches have none."""
IMPROVEMENT = "improvement"
"""How much an epoch lowered J, relative to J; NaN where that is not known."""
ACCURACY = "accuracy"
HELD_OUT = "val_"
"""What Keras puts before the names of what it measures on held-out images."""
HELD_OUT_LOSS = HELD_OUT + LOSS

NOT_METRICS = {LOSS, *NAMES_OF_J, PENALTY, STEP_SIZE, ACTIVE_BLOCK, GRAD_NORM, INNER_ITERATIONS, IMPROVEMENT}
NOT_METRICS |= {HELD_OUT + name for name in NAMES_OF_J}  # once more: that is "val_loss"


def logs_of_step(
    objective: Tensor, penalty: Tensor, step_size: Tensor, active: Tensor, grad_norm: Tensor
) -> dict[str, Tensor]:
    """What every step logs, besides the metrics."""
    block = {STEP_SIZE: step_size, ACTIVE_BLOCK: active, GRAD_NORM: grad_norm}
    return {**dict.fromkeys((LOSS, *NAMES_OF_J), objective), PENALTY: penalty, **block}


def metrics_of(logs: dict[str, Any]) -> dict[str, Any]:
    """The logs that say nothing of the solver, nor J of held-out images by a second name."""
    return {name: value for name, value in logs.items() if name not in NOT_METRICS}
