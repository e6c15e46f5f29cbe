"""Images that a model tells apart without a doubt: unless alpha bounds it, J falls until float32 ends."""

import warnings
from typing import Any

import keras

from keras_bilinear.parts.log_names import OBJECTIVE
from keras_bilinear.stopping.convergence import ConvergenceWarning

SEPARATED = 1e-6
"""Of V no more is left than this: from here on a fit moves on the rounding of its scores."""
ADVICE = "J has no minimum: factors would grow without end. Give alpha > 0"


def is_separated(objective: float, alpha: float) -> bool:
    """Whether nothing is left to fit, and nothing ends the fit."""
    return alpha == 0 and objective <= SEPARATED


class SeparationStop(keras.callbacks.Callback):
    """Stops an exact fit with alpha = 0 at once, and warns, where V is zero but for rounding.

    Scaled up, factors that classify every image correctly give as small a V as one likes. Every exact fit without
    a penalty has this callback.

    Attributes:
        reason: After the fit, why it was stopped, in words; empty where it was not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.reason = ""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        V = float((logs or {}).get(OBJECTIVE, 1.0))
        if not self.reason and is_separated(V, self.model.alpha):
            self.reason = f"separated: V = {V:.1e} with alpha = 0"
            self.model.stop_training = True
            warnings.warn(f"The fit has {self.reason}, so {ADVICE}.", ConvergenceWarning, stacklevel=2)
