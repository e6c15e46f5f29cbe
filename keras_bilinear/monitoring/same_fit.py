"""Whether a fit is the one that was interrupted: by its settings, and by its arrays."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.parts.optimizers import inner_optimizer

OF_THE_FIT = ("batch_size", "steps_per_epoch", "shuffle", "validation_split", "class_weight")
"""Arguments of `fit` that decide which numbers come out."""


def settings_of(model: BlockModel, options: dict[str, Any]) -> str:
    """What decides the numbers of a fit, besides its data and the weights it begins with, as JSON."""
    # A model that was not compiled yet has neither.
    optimizer, loss = (getattr(model, name, None) for name in ("optimizer", "loss"))
    # Two fits in a row may be alike, but for the steps that were taken before.
    steps = np.asarray(getattr(inner_optimizer(optimizer), "iterations", 0))
    fit = {**options, "class_weight": str(options["class_weight"]), "begins_after_steps": steps}
    # Its layers as well: a single one that cannot be described leaves a network without a config.
    facts = {"model": model, "layers": model.layers, "optimizer": optimizer, "loss": loss, "fit": fit}
    text = json.dumps(facts, default=described, skipkeys=True)
    # Keras numbers the names of all it makes, and a program that makes its model twice is none the worse.
    return re.sub(r'_\d+"', '"', text)


def described(value: Any) -> Any:
    """What JSON has no word for: numbers of NumPy, Keras objects by class and config, anything else by its name."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    is_keras = hasattr(value, "get_config") and not isinstance(value, type)
    try:
        config = value.get_config() if is_keras else None
    except NotImplementedError:  # an object of the user's own, of which no more can be said
        config = None
    return {"class_name": getattr(value, "__name__", type(value).__name__), "config": config}


def expect_settings(path: Path, expected: str, received: str) -> None:
    """Raises a ValueError that says in what two fits differ, if they do."""
    before, now = (dict(entries(json.loads(text))) for text in (expected, received))
    for name in {**before, **now}:
        was, is_now = (there.get(name, "nothing") for there in (before, now))
        if was != is_now:
            raise ValueError(
                f"Expected the fit that {str(path)!r} holds, with {name}: {was}. Received: {name}: {is_now}. "
                "Delete the file to fit anew."
            )


def entries(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every number and word in nested JSON, with the path that leads to it."""
    if isinstance(value, dict) and value.get("class_name") == "__lambda__":
        yield name, "a lambda"  # whose bytes may differ from one process to the next
    elif isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            # Within layers Keras may draw a seed of its own.
            if key != "seed" or name == "model.config":
                yield from entries(part, f"{name}.{key}".lstrip("."))
    else:
        # A number may have been in a float32 variable, or not yet.
        yield name, f"{value:.7g}" if isinstance(value, float) else str(value)


def arrays_among(data: Any) -> list[np.ndarray]:
    """The arrays that a fit is given; none where it reads a data set, or something else is among them."""
    given = [part for part in keras.tree.flatten(data) if part is not None]
    if not all(isinstance(part, np.ndarray | tf.Tensor) for part in given):
        return []
    arrays = [np.asarray(part) for part in given]
    return [] if any(array.dtype.hasobject for array in arrays) else arrays


def digest_of(arrays: Sequence[np.ndarray]) -> str:
    """Tells arrays from others; nothing of none."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ravel(array).view("uint8").data)  # no copy of what is contiguous
    return digest.hexdigest() if arrays else ""
