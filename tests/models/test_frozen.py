"""What has `trainable=False` stays bit-identical, or training is refused before anything changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.four_models import MODELS, data


def network():
    image = keras.Input((6, 5))
    hidden = keras.layers.Dense(5, name="dense")(image)
    head = kb.BilinearDense(
        3, 2, "softmax", use_bias=True, left_initializer="ones", factor_penalty=kb.penalties.Sum(0.1), name="head"
    )
    return kb.AlternatingModel(image, head(hidden))


def everything(model):
    """All that a refusal must leave as it is."""
    of_optimizer = model.optimizer.variables if model.compiled else []
    return [model.built, model.compiled, *(variable.numpy() for variable in [*model.variables, *of_optimizer])]


def refused(model, x, y, message="to be trainable"):
    before = everything(model)
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=message):
            train(x, y)
    for old, new in zip(before, everything(model), strict=True):
        np.testing.assert_array_equal(old, new)


FREEZE = {
    "bias": lambda model: setattr(model.head.bias, "trainable", False),
    "factor": lambda model: setattr(model.factor_blocks[-1], "trainable", False),
    "head": lambda model: setattr(model.head, "trainable", False),
    "model": lambda model: setattr(model, "trainable", False),
}


@pytest.mark.parametrize("compiled_first", [False, True])
@pytest.mark.parametrize("part", FREEZE)
@pytest.mark.parametrize("name", MODELS)
def test_the_exact_regime_refuses_what_is_frozen(name, part, compiled_first):
    model = MODELS[name](use_bias=True, input_shape=(6, 5))
    if compiled_first:
        model.compile()
    FREEZE[part](model)
    if not compiled_first:
        model.compile()
    refused(model, *data(name, 24))


def test_a_model_that_was_not_compiled_is_refused_as_it_is():
    for name in MODELS:
        model = MODELS[name](use_bias=True, input_shape=(6, 5))
        FREEZE["bias"](model)
        refused(model, *data(name, 24))


@pytest.mark.parametrize("optimizer", [None, "adam"])
@pytest.mark.parametrize("part", ["head", "model"])
@pytest.mark.parametrize("name", ["BSR", "LLR"])
def test_a_model_that_is_frozen_before_it_is_built_stays_unbuilt(name, part, optimizer):
    model = MODELS[name](use_bias=True)
    FREEZE[part](model)
    model.compile(optimizer)
    refused(model, *data(name, 24))
    assert not model.built


@pytest.mark.parametrize("name", ["BSR", "LSR"])
def test_on_mini_batches_a_frozen_bias_stays_and_the_rest_moves(name):
    x, y = data(name, 24)
    model = MODELS[name](use_bias=True, input_shape=(6, 5))
    model.head.bias.assign([1.0, 2.0, 3.0])
    FREEZE["bias"](model)
    model.compile(keras.optimizers.Adam(0.1, weight_decay=0.1), run_eagerly=True)
    before = model.factor_blocks[0].numpy()
    model.fit(x, y, batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.head.bias.numpy(), [1.0, 2.0, 3.0])
    assert np.any(model.factor_blocks[0].numpy() != before)


def test_what_is_frozen_or_thawed_after_compile_needs_another_compile():
    x, y = data(T=24)
    model = network()
    loss = "sparse_categorical_crossentropy"
    model.compile("adam", loss, run_eagerly=True)
    model.fit(x, y, verbose=0)
    dense = model.get_layer("dense")
    for trainable in (False, True):
        dense.trainable = trainable
        refused(model, x, y, "call `compile` after")
        model.compile("adam", loss, run_eagerly=True)
        before = dense.kernel.numpy()
        model.fit(x, y, epochs=2, verbose=0)
        assert np.any(dense.kernel.numpy() != before) == trainable
    for part in (model.factor_blocks[1], model):
        part.trainable = False
        refused(model, x, y)


@pytest.mark.parametrize("name", ["BSR", "LLR", "network"])
def test_the_loss_of_a_frozen_model_still_is_J(name):
    x, y = data(name, 24)
    model = network() if name == "network" else MODELS[name](alpha=0.1, use_bias=True, input_shape=(6, 5))
    for block in model.factor_blocks:
        block.assign(np.full(block.shape, 0.2))
    model.compile("sgd", "sparse_categorical_crossentropy" if name == "network" else None, run_eagerly=True)
    J = model.evaluate(x, y, batch_size=24, verbose=0, return_dict=True)["loss"]
    assert float(model.penalty()) > 0.01
    model.trainable = False
    frozen = model.evaluate(x, y, batch_size=24, verbose=0, return_dict=True)["loss"]
    assert frozen == pytest.approx(J, rel=1e-6)


def test_batch_statistics_of_a_network_still_move():
    """They are no trainable variables, frozen or not."""
    image = keras.Input((6, 5))
    head = kb.BilinearDense(3, 2, "softmax", left_initializer="ones")
    model = kb.AlternatingModel(image, head(keras.layers.BatchNormalization(name="norm")(image)))
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    x, y = data(T=24)
    model.fit(tf.constant(3.0 + x), y, verbose=0)
    assert np.all(model.get_layer("norm").moving_mean.numpy() != 0)
