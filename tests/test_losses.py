import keras
import numpy as np
import pytest

from keras_bilinear.losses import CrossEntropy, is_plain_cross_entropy
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
