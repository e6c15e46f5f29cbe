"""`Flatten` + `Dense` with the weights of a model, exported alike: what its files are measured against."""

from pathlib import Path
from typing import NamedTuple

import keras

from keras_bilinear import to_dense
from keras_bilinear.export.inference_graph import ImageModel
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear_export.exporting import io_of, quietly_exported
from keras_bilinear_export.images import Images
from keras_bilinear_export.options import VARIANTS, Options

BATCHES = {"1": 1, "any": None}
"""For one image a call, like the files of the kit; and for any number, which is what Keras' own export writes."""


class DenseFile(NamedTuple):
    """What a file of `Flatten` + `Dense` holds; `batch` is one of `BATCHES`."""

    variant: str
    batch: str
    content: bytes


def dense_files(model: ImageModel, images: Images, options: Options, folder: Path) -> list[DenseFile]:
    """The dense equivalent of a model of this package in float32 and int8; nothing for other networks."""
    if not isinstance(model, ImageRegression):
        return []
    dense, path, files = to_dense(model), folder / "dense.tflite", []
    head = dense.layers[-1]
    if options.output == "logits":
        head.activation = keras.activations.linear
    if options.input_scale is not None:
        # As in the model's own files; in a network it would be an operator more.
        kernel, *bias = head.get_weights()
        head.set_weights([kernel * options.input_scale, *bias])
    for variant in ("float32", "int8"):
        for batch, batch_size in BATCHES.items():
            quietly_exported(
                dense,
                path,
                quantize=VARIANTS[variant],
                representative_data=images.calibration,
                batch_size=batch_size,
                io=io_of(variant, options),
            )
            files.append(DenseFile(variant, batch, path.read_bytes()))
    path.unlink()
    return files
