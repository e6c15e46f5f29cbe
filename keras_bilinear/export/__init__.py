"""A model as a file that is proven to compute what the model does.

Beside the functions and their reports, the names here are what a program around files may use, as the kit does.
"""

from keras_bilinear.atomic_files import is_replaceable, put_in_place, staged, temporary_sibling
from keras_bilinear.export import litert
from keras_bilinear.export.calibration import LEAST_IMAGES, images_of
from keras_bilinear.export.converter import tflite_content
from keras_bilinear.export.errors import ConversionError, VerificationError
from keras_bilinear.export.exportable import Exportable, exportable
from keras_bilinear.export.files import ExportReport, export_saved_model, export_tflite
from keras_bilinear.export.gates import KernelReport
from keras_bilinear.export.inference_graph import inference_graph
from keras_bilinear.export.interpreter import loaded, quantizer
from keras_bilinear.export.metadata import checked_facts
from keras_bilinear.export.slimming import slim
from keras_bilinear.export.verification import VerificationReport, verify_tflite

__all__ = [
    "LEAST_IMAGES",
    "ConversionError",
    "ExportReport",
    "Exportable",
    "KernelReport",
    "VerificationError",
    "VerificationReport",
    "checked_facts",
    "export_saved_model",
    "export_tflite",
    "exportable",
    "images_of",
    "inference_graph",
    "is_replaceable",
    "litert",
    "loaded",
    "put_in_place",
    "quantizer",
    "slim",
    "staged",
    "temporary_sibling",
    "tflite_content",
    "verify_tflite",
]
