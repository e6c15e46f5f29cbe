"""One of the two workers of `test_replicas.py`, by TF_CONFIG. Arguments: a folder, and a file to write."""

import hashlib
import json
import os
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_bilinear as kb
from tests.four_models import MODELS
from tests.models.test_replicas import regression_by_steps, sorted_data, stream


class BuiltByItself(keras.Sequential):
    """With one of the two shims of `models/workers.py`."""

    def _maybe_symbolic_build(self, *args, **kwargs):
        self.optimizer.build(self.trainable_variables)


def fault(strategy, kind):
    """What Keras says of two workers, by itself."""
    with strategy.scope():
        model = kind([keras.Input((6, 5)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
    try:
        model.fit(stream(*sorted_data()), verbose=0)
    except Exception as error:
        return str(error)
    return ""


def main(folder, log):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    faults = [fault(strategy, kind) for kind in (keras.Sequential, BuiltByItself)]
    with strategy.scope():
        exact, steps = MODELS["BSR"](), regression_by_steps()
    x, y = sorted_data()
    callbacks = [
        kb.callbacks.Checkpoint(folder / "fit", delete_checkpoint=False),
        kb.callbacks.BilinearTensorBoard(folder / f"logs-{index}"),
    ]
    first = exact.fit(stream(x, y), epochs=3, verbose=0, validation_data=stream(x, y), callbacks=callbacks).history
    then = steps.fit(stream(x, y), epochs=2, verbose=0, shuffle=False).history
    kb.export_saved_model(exact, folder / f"saved-{index}")
    numbers = [np.asarray(variable).tobytes() for model in (exact, steps) for variable in model.trainable_variables]
    found = {
        "faults": faults,
        "exact": [first["J"], first["val_J"], first["accuracy"]],
        "steps": [then["J"], then["accuracy"]],
        "hash": hashlib.sha256(b"".join(numbers)).hexdigest(),
    }
    log.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
