"""What monitoring and stopping read of a model is there; mypy sees to it that they read nothing else."""

import inspect
from typing import Protocol

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.parts.model_protocol import BilinearModel, BlockModel, LinearModel, expect_schedule, is_linear


class Empty(Protocol):
    pass


def members(protocol):
    """All names that a protocol, and those it builds upon, ask for."""
    parts = [part for part in protocol.__mro__ if part not in Protocol.__mro__]
    names = {name for part in parts for name in (*inspect.get_annotations(part), *vars(part))}
    return names - set(vars(Empty))


def network():
    image = keras.Input((4, 3))
    return kb.AlternatingModel(image, kb.BilinearDense(2, 1, activation="softmax")(image))


MODELS = {
    "BSR": (lambda: kb.BilinearSoftmaxRegression(2, 1), BilinearModel),
    "BLR": (lambda: kb.BilinearLogisticRegression(1), BilinearModel),
    "LSR": (lambda: kb.LinearSoftmaxRegression(2), LinearModel),
    "LLR": (lambda: kb.LinearLogisticRegression(), LinearModel),
    "network": (network, BlockModel),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_what_is_read_of_it(name):
    make, protocol = MODELS[name]
    model = make()
    model.compile(*([] if name != "network" else ["sgd", "sparse_categorical_crossentropy"]), run_eagerly=True)
    model.fit(np.ones((4, 4, 3), "float32"), np.arange(4) % 2, verbose=0)
    assert {"schedule", "_last_fit", "block_names", "filters"} <= members(protocol)
    assert [name for name in sorted(members(protocol)) if not hasattr(model, name)] == []
    assert is_linear(model) == (protocol is LinearModel)
    expect_schedule(model)
