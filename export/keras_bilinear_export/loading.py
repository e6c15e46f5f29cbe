"""A `.keras` file as a model, in Keras' safe mode: no code from the file is run."""

import os
import zipfile
from pathlib import Path

import keras

import keras_bilinear  # noqa: F401  registers the classes that files of the package name
from keras_bilinear_export.faults import one_line


def loaded_model(path: str | os.PathLike[str]) -> keras.Model:
    """The model that a `.keras` file holds, or a ValueError for any other file, code and unknown classes."""
    file = Path(path)
    # Older formats have no safe mode, so nothing else is even opened.
    if file.suffix != ".keras":
        raise ValueError(f"Expected a file whose name ends in .keras. Received: {file}")
    with file.open("rb") as content:
        if not zipfile.is_zipfile(content):
            raise ValueError(f"Expected a model saved by Keras. Received: {file}, which is empty or damaged")
    try:
        return keras.models.load_model(file, compile=False, safe_mode=True)
    except Exception as error:  # Keras, its zip and its HDF5 readers raise many kinds
        raise ValueError(reason(file, error)) from error


def reason(file: Path, error: BaseException) -> str:
    """Why Keras did not load the file, in one sentence."""
    if "`Lambda` layer" in str(error):
        return (
            "Expected a model without Python code. "
            f"Received: {file} with a Lambda layer, which Keras' safe mode refuses to load"
        )
    # So begin the copies of the whole configuration in which Keras wraps the cause.
    while "could not be deserialized" in str(error) and error.__context__ is not None:
        error = error.__context__
    sentence = one_line(error).split(". ")[0]
    return f"Expected a model that Keras and keras_bilinear can load. Received: {file}: {sentence}"
