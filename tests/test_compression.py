"""Linear models of Keras and scikit-learn as bilinear ones."""

import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import keras_bilinear as kb
from keras_bilinear.compression import compress, compression_report, least_rank


@pytest.fixture(scope="module")
def linear(digits):
    x, y = digits
    return LogisticRegression(C=1.0, max_iter=300).fit(x[:1300].reshape(1300, -1), y[:1300])


def flat(x):
    return x.reshape(len(x), -1)


def test_the_full_rank_is_the_same_model(linear, digits):
    x = digits[0][1300:]
    model = compress(linear, rank=8)
    np.testing.assert_allclose(model.predict(x, verbose=0), linear.predict_proba(flat(x)), atol=1e-5)


def test_two_classes_of_scikit_learn_are_one_score(digits):
    x, y = digits
    x, y = x[y < 2], y[y < 2]
    linear = LogisticRegression(fit_intercept=False).fit(flat(x), y)
    model = compress(linear, rank=8, input_shape=(8, 8))
    assert isinstance(model, kb.BilinearLogisticRegression)
    assert model.head.bias is None
    np.testing.assert_allclose(model.predict(x, verbose=0)[:, 0], linear.predict_proba(flat(x))[:, 1], atol=1e-5)


def test_fine_tuning_wins_back_what_truncation_lost(linear, digits):
    x, y = digits
    model = compress(linear, rank=3, alpha=1e-3)
    before = compression_report(linear, model, x[1300:], y[1300:])
    model.fit(x[:1300], y[:1300], epochs=10, verbose=0)
    after = compression_report(linear, model, x[1300:], y[1300:])
    assert before.accuracy[0] == pytest.approx(linear.score(flat(x[1300:]), y[1300:]))
    assert after.accuracy[1] > before.accuracy[1]
    assert after.accuracy[1] >= after.accuracy[0] - 0.02
    assert after.parameters == (650, 490)
    assert str(after).splitlines()[2].split() == ["parameters", "650", "490", "0.75"]


def test_a_tolerance_is_kept_by_the_least_rank(linear):
    W = linear.coef_.reshape(-1, 8, 8)
    for tolerance in (0.0, 0.1, 0.3, 0.6):
        model = compress(linear, tolerance=tolerance)
        rest = np.linalg.norm(model.weight_matrices() - W, axis=(1, 2)) / np.linalg.norm(W, axis=(1, 2))
        assert rest.max() <= tolerance + 1e-5
        if model.rank > 1:
            s = np.linalg.svd(W, compute_uv=False)
            lost = np.sqrt(np.sum(s[:, model.rank - 1 :] ** 2, axis=1) / np.sum(s**2, axis=1))
            assert lost.max() > tolerance
    assert least_rank(np.ones((2, 3, 4)), 0.0) == 1


def test_keras_models_say_their_own_image_size():
    dense = keras.Sequential(
        [keras.Input((6, 4)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    )
    model = compress(dense, rank=4)
    assert model.image_size == (6, 4)
    x = np.random.default_rng(0).uniform(size=(5, 6, 4)).astype("float32")
    np.testing.assert_allclose(model.predict(x, verbose=0), dense.predict(x, verbose=0), atol=1e-5)
    layer = keras.layers.Dense(3)
    layer.build((None, 24))
    with pytest.raises(ValueError, match=r"`input_shape`, the \(M, N\) of images of 24 pixels"):
        compress(layer, rank=1)
    assert compress(layer, rank=1, input_shape=(4, 6)).image_size == (4, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `rank` or `tolerance`"),
        ({"rank": 1, "tolerance": 0.1}, "either `rank` or `tolerance`"),
        ({"rank": 0}, "`rank`"),
        ({"tolerance": 1.0}, "`tolerance` to be a number >= 0 and < 1"),
        ({"tolerance": -0.1}, "`tolerance`"),
        ({"rank": 1, "input_shape": (7, 8)}, "one for each pixel of `input_shape`"),
    ],
)
def test_faulty_arguments(linear, options, message):
    with pytest.raises(ValueError, match=message):
        compress(linear, **options)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="Expected one built Dense layer"):
        compress(LogisticRegression(), rank=2)
    with pytest.raises(ValueError, match="Expected"):
        compress(keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(1, 3)]), rank=2)
