"""The callbacks for `fit`, by the names that users know."""

from keras_bilinear.monitoring.checkpoint import Checkpoint
from keras_bilinear.monitoring.tensorboard import BilinearTensorBoard
from keras_bilinear.stopping.automatic_rank import AutomaticRank
from keras_bilinear.stopping.convergence import BlockConvergence, ConvergenceWarning

__all__ = ["AutomaticRank", "BilinearTensorBoard", "BlockConvergence", "Checkpoint", "ConvergenceWarning"]
