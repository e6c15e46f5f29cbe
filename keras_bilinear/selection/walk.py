"""A grid of ranks and alphas over images that are read in passes: one fit that goes from setting to setting."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_bilinear.models.bilinear import BilinearRegression
from keras_bilinear.selection.grid import STANDSTILL, Fit, first_ranks, switched_off, with_rank
from keras_bilinear.stopping.convergence import SLACK
from keras_bilinear.stopping.separation import is_separated


class Setting(NamedTuple):
    """A rank and an alpha, and whether a fit of these was asked for or is on the way to the next rank only."""

    rank: int
    alpha: float
    is_asked_for: bool


def settings_of(falling: list[float], rising: list[int]) -> Iterator[Setting]:
    """Every rank of `rising` with every alpha of `falling`; ranks between them with the largest alpha."""
    for rank in range(1, rising[-1] + 1):
        for alpha in falling if rank in rising else falling[:1]:
            yield Setting(rank, alpha, rank in rising)


class Walk(keras.callbacks.Callback):
    """Takes a fit to a data set from one setting to the next as it converges: each starts from its neighbour.

    Args:
        settings: Of `settings_of`, one at least.
        rtol: A setting is done when a pass lowers J by no more than this fraction of it, and a Newton step would
            hardly lower it more.
        max_sweeps: Passes a setting may take.
        progress: A bar that counts fits.
    """

    def __init__(self, settings: list[Setting], rtol: float, max_sweeps: int, progress: keras.utils.Progbar):
        super().__init__()
        self.settings, self.rtol, self.max_sweeps, self.progress = list(settings), rtol, max_sweeps, progress
        self.largest_alpha = self.settings[0].alpha
        self.fits: list[Fit] = []
        self.passes = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        dtype = self.model._solver_dtype
        self.root = switched_off(self.model, dtype)
        self.enter()

    def enter(self) -> None:
        """Goes to the first of the settings that are left."""
        rank, alpha, _ = self.settings[0]
        self.passes, self.model.alpha = 0, alpha
        if alpha == self.largest_alpha:
            self.model._assign(with_rank(self.root, rank))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.passes += 1
        J, (rank, alpha, is_asked_for) = (logs or {})["J"], self.settings[0]
        converged = self.has_converged() or is_separated(J, alpha)
        if not converged and self.passes < self.max_sweeps:
            return
        factors = self.model._parameters(self.model._solver_dtype)
        if alpha == self.largest_alpha:
            self.root = factors
        if is_asked_for:
            V = J - float(self.model.penalty())
            self.fits.append(Fit(rank, alpha, J, V, first_ranks(factors, rank), converged))
            self.progress.add(1)
        del self.settings[0]
        if self.settings:
            self.enter()
        else:
            self.model.stop_training = True

    def has_converged(self) -> bool:
        """Whether the last pass has lowered J by next to nothing, where a Newton step would not, either."""
        fall = self.model.schedule.sweep_improvement(block_rtol=0.0)
        if self.passes == 1 or fall > self.rtol:
            return False
        return bool(self.model._streaming.decrease_in_sight <= max(SLACK * self.rtol, STANDSTILL))


def walked(
    model: BilinearRegression,
    dataset: tf.data.Dataset,
    settings: list[Setting],
    rtol: float,
    max_sweeps: int,
    progress: keras.utils.Progbar,
) -> list[Fit]:
    """The fits of all settings on a data set, by a model of the largest rank, which is left at the last of them."""
    walk = Walk(settings, rtol, max_sweeps, progress)
    model._told_of_rank = True  # the path has told
    model.fit(dataset, epochs=max_sweeps * len(settings), verbose=0, callbacks=[walk])
    return walk.fits
