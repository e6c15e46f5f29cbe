"""Bilinear models for images in Keras: train with `model.fit`, export to the edge."""

from typing import TYPE_CHECKING, Any

from keras_bilinear import callbacks, losses, penalties, plots
from keras_bilinear._version import __version__
from keras_bilinear.export import (
    ExportReport,
    VerificationError,
    VerificationReport,
    export_saved_model,
    export_tflite,
    verify_tflite,
)
from keras_bilinear.models.alternating_model import AlternatingModel
from keras_bilinear.models.bilinear import BilinearLogisticRegression, BilinearSoftmaxRegression
from keras_bilinear.models.conversion import from_dense, to_dense
from keras_bilinear.models.exact_heads import HeadFit, fit_head
from keras_bilinear.models.linear import LinearLogisticRegression, LinearSoftmaxRegression
from keras_bilinear.models.normalization import fold_normalization
from keras_bilinear.monitoring.report import ConvergenceReport
from keras_bilinear.parts.bilinear_map import BilinearMap
from keras_bilinear.parts.initializers import OrthogonalizedUniform
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.optimizers import BlockLineSearch
from keras_bilinear.parts.to_matrix import ToMatrix
from keras_bilinear.selection.compression import CompressionReport, compress, compression_report
from keras_bilinear.selection.path import PathPoint, RegularizationPath, regularization_path
from keras_bilinear.stopping.certificate import Certificate

if TYPE_CHECKING:
    from keras_bilinear.selection.estimator import BilinearClassifier as BilinearClassifier

# Without BilinearClassifier: importing all names must not need scikit-learn, an optional dependency.
__all__ = [
    "AlternatingModel",
    "BilinearDense",
    "BilinearLogisticRegression",
    "BilinearMap",
    "BilinearSoftmaxRegression",
    "BlockLineSearch",
    "Certificate",
    "CompressionReport",
    "ConvergenceReport",
    "ExportReport",
    "HeadFit",
    "LinearLogisticRegression",
    "LinearSoftmaxRegression",
    "OrthogonalizedUniform",
    "PathPoint",
    "RegularizationPath",
    "ToMatrix",
    "VerificationError",
    "VerificationReport",
    "__version__",
    "callbacks",
    "compress",
    "compression_report",
    "export_saved_model",
    "export_tflite",
    "fit_head",
    "fold_normalization",
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
        from keras_bilinear.selection.estimator import BilinearClassifier

        return BilinearClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "BilinearClassifier"})
