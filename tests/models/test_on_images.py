"""Colour images and feature maps: the four models take them as they are, and see matrices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.four_models import MODELS

SHAPE, T = (6, 5, 3), 240
ROWS = {"BSR": 1, "BLR": (3, 1), "LSR": (1, 2), "LLR": 2}


def data(name):
    """Images (T, M, N, C) and labels of filters drawn at random."""
    random = np.random.default_rng(0)
    x, W = random.normal(size=(T, *SHAPE)).astype("float32"), random.normal(size=(3, *SHAPE))
    z = np.einsum("tmnc,kmnc->tk", x, W)
    return x, (z.argmax(axis=1) if name.endswith("SR") else (z[:, 0] > 0).astype("int32"))


def model_of(name, optimizer=None, run_eagerly=False):
    model = MODELS[name](input_shape=SHAPE, rows=ROWS[name])
    model.compile(optimizer, jit_compile=False, run_eagerly=run_eagerly)
    return model


# Graphs come in `test_data_sets_of_many_batches`.
@pytest.mark.parametrize(("name", "optimizer"), [("BSR", None), ("BLR", "adam"), ("LSR", "adam"), ("LLR", None)])
def test_images_train_as_their_matrices_do(name, optimizer):
    x, y = data(name)
    model, plain = model_of(name, optimizer, run_eagerly=True), MODELS[name]()
    plain.compile(optimizer, run_eagerly=True)
    options = {"epochs": 2, "verbose": 0, "batch_size": T if optimizer is None else 80, "shuffle": False}
    matrices = model._layout.matrices(x)
    history = model.fit(x, y, validation_data=(x[:80], y[:80]), **options).history
    expected = plain.fit(matrices, y, validation_data=(matrices[:80], y[:80]), **options).history
    np.testing.assert_array_equal(history["val_J"], expected["val_J"])
    np.testing.assert_array_equal(model.weight_matrices(), plain.weight_matrices())
    assert model.objective(x, y) == plain.objective(matrices, y)
    assert model.evaluate(x, y, verbose=0) == plain.evaluate(matrices, y, verbose=0)
    assert str(model.certificate(x, y)) == str(plain.certificate(matrices, y))
    np.testing.assert_array_equal(model.predict(x, verbose=0), plain.predict(matrices, verbose=0))
    np.testing.assert_allclose(model(x), model.predict(x, verbose=0), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_filters_have_the_shape_of_images_and_give_the_scores(name):
    x, y = data(name)
    model = model_of(name)
    model.fit(x, y, epochs=1, verbose=0)
    z = np.einsum("tmnc,kmnc->tk", x, model.filter_images())
    np.testing.assert_allclose(z, model.logits(x), atol=1e-4)
    dense = kb.to_dense(model)
    assert dense.input_shape == (None, *SHAPE)
    np.testing.assert_allclose(dense.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.parametrize("optimizer", [None, "adam"], ids=["exact", "mini-batches"])
def test_a_file_keeps_the_order_of_axes(tmp_path, optimizer):
    x, y = data("BLR")
    model = model_of("BLR", optimizer, run_eagerly=True)
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.rows == (3, 1)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    again = (each.fit(x, y, epochs=1, verbose=0, shuffle=False).history["J"] for each in (model, loaded))
    assert next(again) == next(again)


@pytest.mark.parametrize(("name", "optimizer"), [("BLR", None), ("LSR", "adam")])
def test_data_sets_of_many_batches(name, optimizer):
    x, y = data(name)
    model, batches = model_of(name, optimizer), tf.data.Dataset.from_tensor_slices((x, y)).batch(80)
    model.fit(batches, epochs=2, verbose=0, shuffle=False, validation_data=batches)
    assert model.objective(batches) == pytest.approx(model.objective(x, y), rel=1e-5)
    assert model.certificate(batches).gap == pytest.approx(model.certificate(x, y).gap, rel=1e-4)
    assert model.evaluate(batches, verbose=0) == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-5)
    np.testing.assert_allclose(model.predict(batches.map(lambda x, y: x), verbose=0), model(x), atol=1e-5)


def test_bytes_and_single_batches():
    x, y = data("BSR")
    raw = np.clip(128 + 40 * x, 0, 255).astype("uint8")
    model = kb.BilinearSoftmaxRegression(3, 2, 1e-2, input_shape=SHAPE, rows=1, input_scale=1 / 255)
    model.fit(raw, y, epochs=2, verbose=0)
    assert model.objective(raw, y) == pytest.approx(model.evaluate(raw, y, verbose=0)[0], rel=1e-5)
    model.compile("adam", run_eagerly=True)
    model.train_on_batch(raw, y)
    assert model.test_on_batch(raw, y)[0] == pytest.approx(model.objective(raw, y), rel=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(raw), model(raw), atol=1e-6)


CALLS = {
    "fit": lambda model, x, y: model.fit(x, y, verbose=0),
    "validation": lambda model, x, y: model.fit(data("BSR")[0], y, validation_data=(x, y), verbose=0),
    "predict": lambda model, x, y: model.predict(x, verbose=0),
    "evaluate": lambda model, x, y: model.evaluate(x, y, verbose=0),
    "objective": lambda model, x, y: model.objective(x, y),
    "certificate": lambda model, x, y: model.certificate(x, y),
    "call": lambda model, x, y: model(x),
    "logits": lambda model, x, y: model.logits(x),
}


@pytest.mark.parametrize("call", CALLS)
def test_permuted_images_are_refused_before_anything_changes(call):
    x, y = data("BSR")
    model = model_of("BSR")
    before = [variable.numpy() for variable in model.variables]
    for order in ((0, 3, 1, 2), (0, 2, 1, 3)):
        with pytest.raises(ValueError, match="Expected images of shape"):
            CALLS[call](model, x.transpose(order), y)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_the_order_of_axes_changes_the_scores():
    x, y = data("BSR")
    x = np.concatenate([x, x[:, :1]], axis=1)[:, :5]  # as many rows as columns
    model = kb.BilinearSoftmaxRegression(3, 2, 1e-2, input_shape=(5, 5, 3), rows=1, seed=0)
    model.fit(x, y, epochs=2, verbose=0)
    assert np.abs(model.predict(x.swapaxes(1, 2), verbose=0) - model.predict(x, verbose=0)).max() > 0.1


def test_channels_without_rows_name_both_ways():
    with pytest.raises(ValueError, match=r"rows=1 makes .* rows=\(1, 2\) makes"):
        kb.LinearSoftmaxRegression(3, input_shape=SHAPE)
    with pytest.raises(ValueError, match=r"`input_shape`.*`rows`"):
        kb.LinearSoftmaxRegression(3).fit(*data("LSR"), verbose=0)


def test_a_path_over_ranks_takes_images():
    x, y = data("BSR")
    template = kb.BilinearSoftmaxRegression(3, 1, input_shape=SHAPE, rows=(1, 2))
    path = kb.regularization_path(template, x, y, alphas=[1e-2], ranks=[1, 2], verbose=0)
    assert path.model().filter_images().shape == (3, *SHAPE)
