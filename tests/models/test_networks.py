"""Networks of maps and heads: in turns or all at once, with the logs and the report of this package."""

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from tests.four_models import data

SUM = {"factor_penalty": kb.penalties.Sum(1e-3)}


def graph(seed=0):
    """A map, a rectifier, and a head of rank 2."""
    keras.utils.set_random_seed(seed)
    image = keras.Input((6, 5))
    Y = kb.BilinearMap(4, 3, "relu", name="map", **SUM)(image)
    return image, kb.BilinearDense(3, 2, "softmax", use_bias=True, name="head", **SUM)(Y)


def network(optimizer="adam", alternate=False, **options):
    model = kb.AlternatingModel(*graph(), alternate=alternate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    return model


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_at_once_is_what_a_plain_model_does(optimizer):
    x, y = data(T=48)
    ours, plain = network(OPTIMIZERS[optimizer](), run_eagerly=True), keras.Model(*graph())
    plain.compile(
        OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True
    )
    history = [
        model.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0).history for model in (ours, plain)
    ]
    for mine, theirs in zip(ours.trainable_variables, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
    for key in ("loss", "accuracy"):
        np.testing.assert_allclose(history[0][key], history[1][key], rtol=1e-4)


def test_logs_and_report_of_all_at_once():
    x, y = data(T=48)
    model = network()
    history = model.fit(x, y, batch_size=16, epochs=3, validation_data=(x, y), verbose=0).history
    assert set(history["active_block"]) == {0}
    assert {"J", "penalty", "grad_norm", "improvement", "val_J"} <= set(history)
    assert model.block_names == ["all"]
    report = model.convergence_report()
    (block,) = report.blocks
    assert (block.name, block.updates, block.was_up) == ("all", 9, True)
    assert report.sweeps == 3
    assert "map with 6 x 5 matrices to 4 x 3: 39 factors, 10.8 % of the 360 weights of a linear layer" in str(
        report
    )
    assert report.ranks == {"head": 2}


@pytest.mark.parametrize("alternate", [True, False])
def test_it_is_saved_and_goes_on_as_it_was(alternate, tmp_path):
    x, y = data(T=48)
    model = network(alternate=alternate, run_eagerly=True)
    model.fit(x, y, batch_size=24, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.alternate == alternate
    assert again.block_names == model.block_names
    for each in (model, again):
        each.fit(x, y, batch_size=24, epochs=5, initial_epoch=2, shuffle=False, verbose=0)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_maps_take_turns_too():
    x, y = data(T=48)
    model = network(alternate=True)
    names = ["map/A", "map/B", "head/a1", "head/b1", "head/a2", "head/b2"]
    assert model.block_names == names
    for active in range(7):
        before = [factor.numpy() for factor in model.factor_blocks]
        C = model.get_layer("map").C.numpy()
        model.fit(x, y, batch_size=16, verbose=0)
        moved = [bool(np.any(old != new.numpy())) for old, new in zip(before, model.factor_blocks, strict=True)]
        assert moved == [index == active % 6 for index in range(6)]
        assert np.any(model.get_layer("map").C.numpy() != C)


def only_maps(alternate):
    image = keras.Input((6, 5))
    scores = keras.layers.Dense(3, "softmax")(keras.layers.Flatten()(kb.BilinearMap(4, 3, "relu", **SUM)(image)))
    model = kb.AlternatingModel(image, scores, alternate=alternate)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


@pytest.mark.parametrize("alternate", [True, False])
def test_a_network_without_filters_is_watched_kept_and_told_about(alternate, tmp_path, capsys):
    x, y = data(T=48)
    model = only_maps(alternate)
    watch = kb.callbacks.BilinearTensorBoard(tmp_path / "logs", image_freq=1)
    keep = kb.callbacks.Checkpoint(tmp_path / "fit.checkpoint", delete_checkpoint=False)
    model.fit(x, y, epochs=4, batch_size=24, verbose=0, callbacks=[watch, keep])
    assert model.filters() == {}
    assert model.block_names == (["A", "B"] if alternate else ["all"])
    assert "6 x 5 matrices to 4 x 3" in str(model.convergence_report())
    model.summary()
    assert "6 x 5 matrices to 4 x 3: 39 factors, 10.8 % of the 360 weights" in capsys.readouterr().out
    assert float(model.penalty()) > 0


def test_frozen_factors_stay_where_they_take_no_turns():
    x, y = data(T=48)
    model = network()
    model.get_layer("map").A.trainable = False
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    before = [model.get_layer("map").A.numpy(), model.get_layer("map").B.numpy()]
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(model.get_layer("map").A.numpy(), before[0])
    assert np.any(model.get_layer("map").B.numpy() != before[1])


@pytest.mark.parametrize("value", [0, "no", None])
def test_what_is_no_truth_value(value):
    with pytest.raises(ValueError, match="Expected `alternate` to be True or False"):
        kb.AlternatingModel(*graph(), alternate=value)
