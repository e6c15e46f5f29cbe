"""Bilinear models for images in Keras: train with `model.fit`, export to the edge."""

from typing import TYPE_CHECKING, Any

from keras_bilinear import callbacks, losses, penalties, plots
from keras_bilinear._version import __version__
from keras_bilinear.alternating_model import AlternatingModel
from keras_bilinear.compression import compress, compression_report
from keras_bilinear.conversion import from_dense, to_dense
from keras_bilinear.export import export_saved_model, export_tflite
from keras_bilinear.initializers import OrthogonalizedUniform
from keras_bilinear.layers import BilinearDense
from keras_bilinear.models import (
    BilinearLogisticRegression,
    BilinearSoftmaxRegression,
    LinearLogisticRegression,
    LinearSoftmaxRegression,
)
from keras_bilinear.optimizers import BlockLineSearch
from keras_bilinear.path import regularization_path
from keras_bilinear.verification import VerificationError, verify_tflite

if TYPE_CHECKING:
    from keras_bilinear.estimator import BilinearClassifier as BilinearClassifier

# Without BilinearClassifier: importing all names must not need scikit-learn, an optional dependency.
__all__ = [
    "AlternatingModel",
    "BilinearDense",
    "BilinearLogisticRegression",
    "BilinearSoftmaxRegression",
    "BlockLineSearch",
    "LinearLogisticRegression",
    "LinearSoftmaxRegression",
    "OrthogonalizedUniform",
    "VerificationError",
    "__version__",
    "callbacks",
    "compress",
    "compression_report",
    "export_saved_model",
    "export_tflite",
    "from_dense",
    "losses",
    "penalties",
    "plots",
    "regularization_path",
    "to_dense",
    "verify_tflite",
]


def __getattr__(name: str) -> Any:
    if name == "BilinearClassifier":
        from keras_bilinear.estimator import BilinearClassifier

        return BilinearClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "BilinearClassifier"})
