"""From a `.keras` file to a folder of verified files and the report on them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras

from keras_bilinear.export import (
    export_saved_model,
    exportable,
    images_of,
    is_replaceable,
    litert,
    put_in_place,
    staged,
)
from keras_bilinear_export.exporting import Missed, Written, exported, file_name
from keras_bilinear_export.facts import dense_bytes, file_facts, model_facts
from keras_bilinear_export.images import Images, from_dataset, from_npz
from keras_bilinear_export.latency import median_latencies
from keras_bilinear_export.loading import loaded_model
from keras_bilinear_export.options import Options
from keras_bilinear_export.report import Report, this_machine


def export_kit(options: Options) -> int:
    """Writes what is asked for and prints the report; returns 0, or 1 if a file missed a gate.

    Files take their places at the very end, at once where the disk can: after a fault the folder is as it was.
    """
    litert.runtime()  # A missing package is said before the work, not after it.
    model = loaded_model(options.model)
    images = images_for(options, model)
    with folder(options.out), staged(options.out.resolve()) as new:
        check_places(options, model)
        if options.saved_model:
            export_saved_model(model, new / saved_model_name(options), options.output)
        files = [shown(file) for file in exported(model, images, options, new)]
        report = report_on(model, images, options, files)
        (new / "report.json").write_text(report.json(), encoding="utf-8")
        (new / "report.md").write_text(report.markdown(), encoding="utf-8")
        # A file of an earlier model would be taken for one that is missing now.
        gone = [file.name for file in report.missed]
        put_in_place(new, options.out.resolve(), gone, last=("report.json", "report.md"))
    print(f"\n{report.markdown()}", end="")
    return 1 if report.missed else 0


def images_for(options: Options, model: keras.Model) -> Images:
    """The images of the file or the data set that was named."""
    if options.data is not None:
        return from_npz(options.data)
    assert options.dataset is not None  # one of the two is required
    return from_dataset(options.dataset, exportable(model).scale_of_file(options.input_scale))


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """The folder, made if need be; if nothing came to be in it, it is gone again. Errors on the disk name it."""
    is_new = not path.is_dir()
    if is_new:
        path.mkdir()
    try:
        yield
    except BaseException as error:
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()
        if isinstance(error, OSError) and error.strerror:
            # In place of a file with a name of no meaning to the user.
            error.filename = str(path)
        raise


def saved_model_name(options: Options) -> str:
    """What the SavedModel is called."""
    return f"{options.model.stem}-saved-model"


def check_places(options: Options, model: keras.Model) -> None:
    """Raises a ValueError if something that may not be replaced is in the way of what will be written."""
    names = [file_name(options.model, v, layout) for v in options.variants for layout in exportable(model).layouts]
    for path in (options.out / name for name in (*names, "report.json", "report.md")):
        if path.is_dir():
            raise ValueError(f"Expected {path} to be free, or a file to replace. Received: a folder")
    path = options.out / saved_model_name(options)
    if options.saved_model and path.exists() and not is_replaceable(path):
        raise ValueError(f"Expected {path} to be free, or a SavedModel to replace. Received: something else")


def shown(file: Written | Missed) -> Written | Missed:
    """The file, after a line on it for whoever waits."""
    if isinstance(file, Written):
        proof = file.export.verification
        text = f"{file.export.bytes:,} bytes, verified on {proof.images:,} images" if proof else ""
    else:
        text = f"not written. {file.reason}"
    print(f"{file.variant} {file.layout}: {text}", flush=True)
    return file


def report_on(model: keras.Model, images: Images, options: Options, files: Sequence[Written | Missed]) -> Report:
    """Measures what was written."""
    written = [file for file in files if isinstance(file, Written)]
    times: list[float | None] = [None] * len(written)
    if written and options.latency_runs:
        image = images_of(images.x[:1], exportable(model).image_shape, "x")[0]
        times = [*median_latencies([file.content for file in written], image, options.latency_runs)]
    dense = dense_bytes(model) if written else None
    proof = written[0].export.verification if written else None
    return Report(
        model_file=options.model.name,
        model=model_facts(model),
        source=images.source,
        calibration_images=len(images.calibration),
        verification_images=len(images.x),
        input_scale=exportable(model).scale_of_file(options.input_scale),
        keras_accuracy=None if proof is None else proof.keras_accuracy,
        machine=this_machine(),
        files=tuple(file_facts(file, time, dense) for file, time in zip(written, times, strict=True)),
        missed=tuple(file for file in files if isinstance(file, Missed)),
    )
