"""How many ranks a fit needs: grown until it is certified."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_bilinear.arguments import non_negative
from keras_bilinear.maths.penalties import PENALTIES, WITH_OPTIMAL_RANK
from keras_bilinear.parts.model_protocol import BilinearModel
from keras_bilinear.stopping.certificate import Certificate, certificate_of_fit
from keras_bilinear.stopping.convergence import RANKS_GROW, ConvergenceWarning

STEADY = 2e-3
"""A sweep that lowers J by less than this fraction leaves the present ranks close to their optimum."""
GIVEN_UP_BELOW = 1e-4
"""Ranks below this fraction of the strongest of their class are given up."""
WAITING = 1e-3
"""|b| of a rank that waits for its start in a pass: J of the pass, which has the penalty of it, must not rise."""
WORTH_A_RANK = 1e-3
"""By how much the ratio of a certificate must exceed 1 for a class to get one more rank."""


class AutomaticRank(keras.callbacks.Callback):
    """Finds how many ranks each class needs: grows them until the fit is certified, and then stops it.

    Starts with one rank. Whenever a sweep lowers J by little, every class whose gradient still has a singular value
    above alpha gets one more, along the leading singular pair; ranks that shrank to nothing are given up. Classes
    end with different ranks, all others are zero, and exported files hold none of those. A fitted model goes on
    from the ranks it has. `rank="auto"` in a model adds this callback to every exact fit.

    Args:
        gap: Stop when J is certified to be within this fraction of the optimum. A `BlockConvergence` beside it
            stops nothing.

    Attributes:
        reason: After the fit, why it ended, in words.
        converged: After the fit, whether it ended certified.
        certificate: The last one that was taken in it.

    Raises:
        ValueError: as the fit begins, unless the model is bilinear, has the sum penalty with alpha > 0, for which
            alone an optimal rank exists, and is fitted by `BlockLineSearch`.

    Example:
        >>> model = keras_bilinear.BilinearSoftmaxRegression(10, rank=8, alpha=3e-3, penalty="sum")
        >>> model.fit(x, y, epochs=100, callbacks=[keras_bilinear.callbacks.AutomaticRank()])
        >>> model.ranks()
    """

    warns = True
    """Whether a fit that is not certified is told by a warning too, and not by `converged` and `reason` alone."""

    def __init__(self, gap: float = 1e-3):
        super().__init__()
        self.gap = non_negative("gap", gap)
        self.certificate: Certificate | None = None
        self.converged = False
        self.reason = "not fitted yet"

    def check_fit(self, model: BilinearModel, options: dict[str, Any]) -> None:
        """Raises a ValueError where this callback cannot work, before the fit has changed anything."""
        name = getattr(model, "penalty_name", None)  # other models have none
        has_optimum = name is not None and PENALTIES[name].has_optimal_rank
        if not (has_optimum and model._trains_exactly and model.alpha > 0):
            raise ValueError(
                f"Expected a bilinear regression model with penalty={WITH_OPTIMAL_RANK} and alpha > 0, compiled "
                "with BlockLineSearch: only there has J an optimal rank. Received: "
                f"{type(model).__name__}, penalty={name!r}"
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        self.check_fit(model, {})  # again, for `keras.Model.fit` calls no `check_fit`
        self.converged, self.reason, self.certificate = False, "the epochs ran out", None
        self.params[RANKS_GROW] = True
        A, B = model.factors()
        if not A.any():
            B[1:] = 0.0
            model.head.assign_factors(A, B)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.model.schedule.sweep_improvement(block_rtol=0.0) > STEADY:
            return
        stream = self.model._streaming
        if stream is not None and not self.is_worth_reading(stream):
            return
        self.certificate = certificate_of_fit(self.model)
        if self.certificate.gap <= self.gap * abs(self.certificate.objective):
            grow(self.model, np.zeros(self.model.units, bool))
            self.converged = self.model.stop_training = True
            self.reason = f"certified: J is at most {self.certificate.gap:.1e} above the optimum, gap={self.gap:g}"
            return
        assert self.certificate.ratios is not None  # there are, where there is an optimal rank
        if stream is None:
            grow(self.model, self.certificate.ratios > 1 + WORTH_A_RANK)

    def is_worth_reading(self, stream: Any) -> bool:
        """Whether to read all images for a certificate; ranks grow by the gradient that the last pass has left."""
        if stream.decrease_in_sight > STEADY:
            return False
        more = (stream.ratios > 1 + WORTH_A_RANK) & has_free_rank(self.model)
        if more.any():
            grow(self.model, more)
            return False
        return bool(stream.decrease_in_sight <= self.gap)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.warns and not self.converged and not self.model.stop_training:
            full = self.model.rank < min(self.model.image_size) and np.any(self.model.ranks() == self.model.rank)
            advice = f"a `rank` above {self.model.rank}, which some classes have used up" if full else "more epochs"
            warnings.warn(
                f"The fit is not certified to be within {self.gap:g} of the optimum. Give it {advice}.",
                ConvergenceWarning,
                stacklevel=2,
            )


def has_free_rank(model: BilinearModel) -> np.ndarray:
    """Whether a class uses fewer ranks than the model has, (K,)."""
    strength = np.linalg.svd(model.weight_matrices(), compute_uv=False)
    used = np.sum(strength > GIVEN_UP_BELOW * strength[:, :1], axis=1)
    return used < min(model.rank, strength.shape[1])


def grow(model: BilinearModel, more: np.ndarray) -> None:
    """Gives up negligible ranks, and lets the classes in `more` (K,) wake one of those they do not use."""
    model.canonicalize()
    A, B = model.factors()
    strength = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    for k in range(model.units):
        free = np.flatnonzero(strength[:, k] <= GIVEN_UP_BELOW * strength[:, k].max())
        A[free, :, k] = B[free, :, k] = 0.0
        if more[k] and len(free):
            # Any b but zero: the solver starts the rank along the gradient (see `silent_ranks`).
            B[free[0], :, k] = (1.0 if model._streaming is None else WAITING) / np.sqrt(B.shape[1])
    model.head.assign_factors(A, B)
