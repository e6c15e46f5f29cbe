import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_bilinear.parts.losses import Accuracy, CrossEntropy, for_each_image, is_plain_cross_entropy, targets
from tests import reference


@pytest.mark.parametrize("K", [1, 3])
def test_equals_the_loops_for_every_form_of_labels(K):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(6, K))
    y = np.arange(6) % max(K, 2)
    C = np.eye(K)[y] if K > 1 else y[:, None].astype(float)
    expected = reference.cross_entropy(z, C, np.ones(6))
    forms = [y, y[:, None], y.astype(float)] + ([C] if K > 1 else [])
    for form in forms:
        loss = float(CrossEntropy()(form, reference.probabilities(z).astype("float32")))
        assert loss == pytest.approx(expected, rel=1e-5)


def test_sample_weights_follow_keras():
    p = np.array([[0.2, 0.8], [0.5, 0.5]], "float32")
    weighted = float(CrossEntropy()(np.array([1, 0]), p, sample_weight=np.array([2.0, 0.0])))
    assert weighted == pytest.approx(-2 * np.log(0.8) / 2, rel=1e-5)


def test_round_trip():
    loss = keras.losses.deserialize(keras.losses.serialize(CrossEntropy()))
    assert isinstance(loss, CrossEntropy)


def test_what_counts_as_plain_cross_entropy():
    for loss in (CrossEntropy(), "categorical_crossentropy", keras.losses.BinaryCrossentropy()):
        assert is_plain_cross_entropy(loss, 1 if "Binary" in type(loss).__name__ else 3)
    for loss in (
        "mse",
        "binary_crossentropy",
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        keras.losses.hinge,
    ):
        assert not is_plain_cross_entropy(loss, 3)


BAD = {
    "minus one": np.array([-1.0, 1.0, 1.0]),
    "beyond": np.array([0, 1, 7]),
    "half": np.array([0.0, 0.5, 1.0]),
    "wrapped": np.array([0, 1, 2**32]),
    "not a number": np.array([0.0, 1.0, np.nan]),
}


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("y", BAD.values(), ids=BAD.keys())
def test_a_label_that_is_no_class_is_not_a_number(y, K):
    C = ops.convert_to_numpy(targets(ops.convert_to_tensor(y), K, "float32"))
    whole = (y >= 0) & (y < max(K, 2)) & (y == np.round(y))
    np.testing.assert_array_equal(np.isfinite(C).all(axis=1), whole)
    assert np.isnan(CrossEntropy()(y, np.full((3, K), 1 / max(K, 2), "float32")))


@pytest.mark.parametrize("factor", [2.0, 0.0, -1.0, 0.99, 1.01, np.nan])
def test_a_row_that_is_no_distribution_is_not_a_number(factor):
    assert np.isnan(ops.convert_to_numpy(targets(ops.convert_to_tensor(factor * np.eye(3)), 3, "float64"))).all()


@pytest.mark.parametrize("factor", [0.9991, 1.0, 1.0009])
def test_a_row_that_is_one_but_for_rounding_becomes_one(factor):
    C = ops.convert_to_numpy(targets(ops.convert_to_tensor(factor * np.eye(3)), 3, "float64"))
    np.testing.assert_array_equal(C, np.eye(3))


def test_labels_of_a_graph_that_has_forgotten_their_rank():
    import tensorflow as tf

    z = tf.zeros((6, 3))
    spec = tf.TensorSpec(None, tf.float32)
    graph = tf.function(lambda y: targets(for_each_image(y, z), 3, "float32"), input_signature=[spec])
    y = np.arange(6) % 3
    for form in (y, y[:, None], np.eye(3)[y]):
        np.testing.assert_array_equal(graph(tf.constant(form, tf.float32)), np.eye(3)[y])
    for wrong in (np.zeros((6, 2)), np.eye(3)[y[:4]]):
        assert np.isnan(graph(tf.constant(wrong, tf.float32))).all()
    for short in (y[:1], y[:4], np.eye(3)[y[:5]]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            graph(tf.constant(short, tf.float32))


class Tempered(keras.losses.CategoricalCrossentropy):
    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred**0.5)


L = keras.losses


@pytest.mark.parametrize(
    "loss",
    [
        L.SparseCategoricalCrossentropy(ignore_class=0),
        L.CategoricalCrossentropy(axis=0),
        L.CategoricalCrossentropy(dtype="float64"),
        L.CategoricalCrossentropy(reduction="sum"),
        L.SparseCategoricalCrossentropy(reduction=None),
        CrossEntropy(reduction="sum"),
        CrossEntropy(dtype="bfloat16"),
        Tempered(),
        L.CategoricalFocalCrossentropy(),
        functools.partial(L.categorical_crossentropy, label_smoothing=0.1),
        lambda y, p: L.categorical_crossentropy(y, p, axis=0),
        None,
    ],
)
def test_a_setting_that_changes_V_is_none_of_plain_cross_entropy(loss):
    assert not is_plain_cross_entropy(loss, 3)


def test_settings_of_binary_losses_and_names_that_change_nothing():
    for loss in (
        L.BinaryCrossentropy(label_smoothing=0.1),
        L.BinaryCrossentropy(axis=0),
        L.BinaryFocalCrossentropy(),
    ):
        assert not is_plain_cross_entropy(loss, 1)
    for loss in (L.SparseCategoricalCrossentropy(name="V"), L.CategoricalCrossentropy, "CategoricalCrossentropy"):
        assert is_plain_cross_entropy(loss, 3)
    assert is_plain_cross_entropy(L.binary_crossentropy, 1)


@pytest.mark.parametrize("K", [1, 3])
def test_the_accuracy_weighs_images_and_takes_every_form_of_labels(K):
    p = np.array([[0.9], [0.2], [0.6]]) if K == 1 else np.array([[0.1, 0.9, 0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    y = np.array([1, 0, 0])
    forms = [y, y[:, None], y.astype(float)] + ([np.eye(3)[y]] if K > 1 else [])
    for form in forms:
        metric = Accuracy()
        metric.update_state(form, p, sample_weight=np.array([1.0, 2.0, 5.0]))
        assert float(metric.result()) == pytest.approx(3 / 8)
    assert type(keras.metrics.deserialize(keras.metrics.serialize(metric))) is Accuracy
