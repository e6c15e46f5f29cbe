"""Every file of one model, each verified on images that calibrated none."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import keras

from keras_bilinear.export import ConversionError, ExportReport, VerificationError, export_tflite, exportable
from keras_bilinear_export.faults import one_line
from keras_bilinear_export.images import Images
from keras_bilinear_export.options import VARIANTS, Options


@dataclass(frozen=True)
class Written:
    """A file that passed every gate of `verify_tflite`, and what it holds."""

    name: str
    variant: str
    layout: str
    export: ExportReport
    content: bytes


@dataclass(frozen=True)
class Missed:
    """A file that there is not, and why: the gate it missed, or what the converter cannot do."""

    name: str
    variant: str
    layout: str
    reason: str


def exported(model: keras.Model, images: Images, options: Options, folder: Path) -> Iterator[Written | Missed]:
    """All variants in all layouts that differ, written to `folder` one at a time."""
    # A linear model, or a network without bilinear layers, is always merged.
    differ = exportable(model).layouts
    layouts = [layout for layout in options.layouts if layout in differ] or differ
    for variant in options.variants:
        for layout in layouts:
            yield one_file(model, images, options, variant, layout, folder)


def one_file(
    model: keras.Model, images: Images, options: Options, variant: str, layout: str, folder: Path
) -> Written | Missed:
    """One file, or the reason why there is none."""
    name = file_name(options.model, variant, layout)
    try:
        with warnings.catch_warnings():
            # Of weights that stay in float32: the report tells.
            warnings.simplefilter("ignore", UserWarning)
            report = export_tflite(
                model,
                folder / name,
                quantize=VARIANTS[variant],
                layout=layout,
                output=options.output,
                representative_data=images.calibration,
                input_scale=options.input_scale,
                labels=options.labels,
                batch_size=options.batch_size,
                io=options.io if variant == "int8" else "float32",  # all others take and give float32
                validation_data=(images.x, images.y),
            )
    except (VerificationError, ConversionError) as error:
        return Missed(name, variant, layout, one_line(error))
    except RuntimeError as error:
        # What the converter raises for an operator that does not compute in such numbers.
        return Missed(name, variant, layout, f"The converter cannot write it: {one_line(error)}")
    return Written(name, variant, layout, report, (folder / name).read_bytes())


def file_name(model: Path, variant: str, layout: str) -> str:
    """What a file is called."""
    return f"{model.stem}-{variant}-{layout}.tflite"
