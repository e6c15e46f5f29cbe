"""The callbacks for `fit`, by the names that users know."""

from keras_bilinear.automatic_rank import AutomaticRank
from keras_bilinear.checkpoint import Checkpoint
from keras_bilinear.convergence import BlockConvergence, ConvergenceWarning
from keras_bilinear.tensorboard import BilinearTensorBoard

__all__ = ["AutomaticRank", "BilinearTensorBoard", "BlockConvergence", "Checkpoint", "ConvergenceWarning"]
