"""Fits to data sets of many batches in the exact regime: what they can be told, before anything is read."""

from typing import Any

import keras
import tensorflow as tf

from keras_bilinear.data.options import check_split
from keras_bilinear.data.survey import Survey, is_data_set
from keras_bilinear.monitoring.progress import tell
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.parts.optimizers import BlockLineSearch

READING = "Reading the data set once, to check it ..."
"""What is shown before the first pass."""


def expect_streamable(model: BlockModel, options: dict[str, Any], callbacks: list[Any]) -> None:
    """Raises a ValueError for what needs all images in memory, or is told twice."""
    if is_data_set(*(options.get(name) for name in ("x", "y", "sample_weight"))):  # or a ValueError
        check_split(options.get("validation_split"), is_divisible=False)
    optimizer = model.optimizer if model.compiled else BlockLineSearch()
    if (optimizer.blocks, optimizer.inner) != ("joint", "cg"):
        raise ValueError(
            'Expected blocks="joint" and inner="cg", the defaults, with a data set of several batches or several '
            "replicas: all others need all images in memory. Received: "
            f"blocks={optimizer.blocks!r}, inner={optimizer.inner!r}"
        )
    backups = [callback for callback in callbacks if isinstance(callback, keras.callbacks.BackupAndRestore)]
    if any(isinstance(backup.save_freq, int) for backup in backups):
        raise ValueError(
            'Expected save_freq="epoch": a pass cannot be resumed halfway. Received: a number of steps'
        )


def expect_whole_passes(steps: int | None, survey: Survey) -> None:
    """Raises a ValueError unless an epoch is a pass over all batches."""
    if steps not in (None, survey.batches):
        raise ValueError(
            f"Expected an epoch to be one pass over all {survey.batches} batches: leave `steps_per_epoch` out. "
            f"Received: steps_per_epoch={steps}"
        )


def streamed_options(options: dict[str, Any], survey: Survey) -> dict[str, Any]:
    """The options that Keras gets, for a data set that says how many batches it has."""
    data = options["x"]
    if data.cardinality() == tf.data.UNKNOWN_CARDINALITY:
        data = data.apply(tf.data.experimental.assert_cardinality(survey.batches))
    return {**options, "x": data, "class_weight": None, "steps_per_epoch": None, "shuffle": False}


def tell_of_reading(verbose: Any) -> None:
    """Says that the data set is read, which may take a while, unless nothing is to be shown."""
    if verbose != 0:
        tell(READING)
