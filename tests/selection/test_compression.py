"""Linear models of Keras and scikit-learn as bilinear ones."""

import copy

import keras
import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Perceptron,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC, LinearSVC

import keras_bilinear as kb
from keras_bilinear.selection.compression import compress, compression_report, least_rank
from tests.files import computed


@pytest.fixture(scope="module")
def linear(digits):
    x, y = digits
    return LogisticRegression(C=1.0, max_iter=300).fit(x[:1300].reshape(1300, -1), y[:1300])


def flat(x):
    return x.reshape(len(x), -1)


def test_the_full_rank_is_the_same_model(linear, digits):
    x = digits[0][1300:]
    model = compress(linear, rank=8, input_shape=(8, 8))
    np.testing.assert_allclose(computed(model, x), linear.predict_proba(flat(x)), atol=1e-5)


@pytest.fixture(scope="module")
def coloured():
    """(linear model, images (T, 6, 5, 3), labels)."""
    x, y = np.random.default_rng(0).normal(size=(90, 6, 5, 3)), np.arange(90) % 3
    return LogisticRegression(max_iter=200).fit(flat(x), y), x.astype("float32"), y


@pytest.mark.parametrize(("rows", "rank"), [(1, 6), ((3, 1), 5)])
def test_images_with_channels(coloured, rows, rank):
    linear, x, y = coloured
    model = compress(linear, rank, input_shape=(6, 5, 3), rows=rows)
    np.testing.assert_allclose(model.predict(x, verbose=0), linear.predict_proba(flat(x)), atol=1e-5)
    assert model.image_shape == (6, 5, 3)
    assert compress(linear, tolerance=0.0, input_shape=(6, 5, 3), rows=rows).rank == rank
    before, after = compression_report(linear, model, x, y).accuracy
    assert before == after == linear.score(flat(x), y)
    again = compress(kb.to_dense(model), rank, rows=rows)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)


def test_a_linear_model_of_images_with_channels(coloured):
    _, x, _ = coloured
    linear = kb.LinearSoftmaxRegression(3, input_shape=(6, 5, 3), rows=1)
    linear.head.kernel.assign(np.random.default_rng(1).normal(size=(90, 3)))
    model = compress(linear, 5, rows=(3, 1))
    np.testing.assert_allclose(model.predict(x, verbose=0), linear.predict(x, verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match="Expected `rows` with images of 3 channels"):
        compress(linear, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": (6, 5, 3)}, "Expected `rows` with images of 3 channels"),
        ({"input_shape": (6, 15), "rows": 1}, r"Expected `input_shape` \(M, N, C\) with `rows`"),
        ({"input_shape": (6, 5, 2), "rows": 1}, "Expected a model of images .* with 60 pixels"),
    ],
)
def test_wrong_images_with_channels(coloured, options, message):
    with pytest.raises(ValueError, match=message):
        compress(coloured[0], 2, **options)


def test_two_classes_of_scikit_learn_are_one_score(digits):
    x, y = digits
    x, y = x[y < 2], y[y < 2]
    linear = LogisticRegression(fit_intercept=False).fit(flat(x), y)
    model = compress(linear, rank=8, input_shape=(8, 8))
    assert isinstance(model, kb.BilinearLogisticRegression)
    assert model.head.bias is None
    np.testing.assert_allclose(computed(model, x)[:, 0], linear.predict_proba(flat(x))[:, 1], atol=1e-5)


def test_fine_tuning_wins_back_what_truncation_lost(linear, digits):
    x, y = digits
    model = compress(linear, rank=3, input_shape=(8, 8))
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
        model = compress(linear, tolerance=tolerance, input_shape=(8, 8))
        rest = np.linalg.norm(model.weight_matrices() - W, axis=(1, 2)) / np.linalg.norm(W, axis=(1, 2))
        assert rest.max() <= tolerance + 1e-5
        if model.rank > 1:
            s = np.linalg.svd(W, compute_uv=False)
            lost = np.sqrt(np.sum(s[:, model.rank - 1 :] ** 2, axis=1) / np.sum(s**2, axis=1))
            assert lost.max() > tolerance
    assert least_rank(np.ones((2, 3, 4)), 0.0) == 1


def test_a_square_that_nothing_tells_and_too_many_ranks_are_warned_about(linear):
    with pytest.warns(UserWarning, match="taken for images of 8 x 8.*`input_shape`"):
        compress(linear, rank=2)
    with pytest.warns(UserWarning, match=r"rank=5 takes .* 80 numbers a class, the linear model 64"):
        compress(linear, rank=5, input_shape=(8, 8))


def test_keras_models_say_their_own_image_size():
    dense = keras.Sequential(
        [keras.Input((6, 4)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    )
    model = compress(dense, rank=4)
    assert model.image_size == (6, 4)
    x = np.random.default_rng(0).uniform(size=(5, 6, 4)).astype("float32")
    np.testing.assert_allclose(computed(model, x), computed(dense, x), atol=1e-5)
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


NAMES = np.array(["nought", "one", "two", "three"])


def blobs(K, T=90):
    """(rows, classes): noisy images of 3 x 3 with a class each."""
    rng = np.random.default_rng(0)
    y = np.arange(T) % K
    return rng.normal(size=(K, 9))[y] + rng.normal(size=(T, 9)), y


def fitted(model, K, labels=lambda y: y):
    rows, y = blobs(K)
    return model.fit(rows, labels(y))


def sparse(model):
    return fitted(model, 3).sparsify()


def fitted_to_a_table():
    model = fitted(LogisticRegression(), 3)
    model.feature_names_in_ = np.array([f"pixel {i}" for i in range(9)], object)
    return model


def changed(model, **attributes):
    again = copy.copy(model)
    vars(again).update(attributes)
    return again


def classifier_of_ours():
    model = kb.BilinearSoftmaxRegression(3, 2, input_shape=(3, 3), use_bias=True)
    rng = np.random.default_rng(0)
    model.head.set_weights([rng.normal(size=weight.shape) for weight in model.head.get_weights()])
    known = {"classes_": np.arange(3), "image_shape_": (3, 3), "n_features_in_": 9}
    return changed(kb.BilinearClassifier(), model_=model, **known)


NO_LOG_ODDS = {
    "SVC": lambda: fitted(SVC(kernel="linear"), 3),
    "SVC of two": lambda: fitted(SVC(kernel="linear"), 2),
    "SVC of four": lambda: fitted(SVC(kernel="linear"), 4),
    "LinearSVC": lambda: fitted(LinearSVC(), 3),
    "regression": lambda: fitted(LinearRegression(), 2),
    "regressions": lambda: fitted(LinearRegression(), 3, lambda y: np.eye(3)[y]),
    "Ridge": lambda: fitted(Ridge(), 3),
    "RidgeClassifier": lambda: fitted(RidgeClassifier(), 3),
    "hinge": lambda: fitted(SGDClassifier(), 3),
    "Perceptron": lambda: fitted(Perceptron(), 3),
}
OTHERWISE = {
    "one against the rest": lambda: fitted(SGDClassifier(loss="log_loss"), 3),
    "modified Huber": lambda: fitted(SGDClassifier(loss="modified_huber"), 2),
    "rows missing": lambda: changed(fitted(LogisticRegression(), 3), coef_=np.ones((2, 9)), intercept_=np.ones(2)),
    "other classes": lambda: changed(fitted(SVC(kernel="linear"), 3), predict_proba=lambda x: np.ones((len(x), 3))),
}
NOT_LINEAR = {
    "one against the rest": lambda: fitted(OneVsRestClassifier(LogisticRegression()), 3),
    "RBF": lambda: fitted(SVC(), 3),
    "classifier": kb.BilinearClassifier,
    "None": lambda: None,
}


@pytest.mark.parametrize("kind", NO_LOG_ODDS)
def test_scores_that_are_no_log_odds(kind):
    with pytest.raises(ValueError, match="`predict_proba`, such as LogisticRegression"):
        compress(NO_LOG_ODDS[kind](), 1)


@pytest.mark.parametrize("kind", OTHERWISE)
def test_probabilities_that_are_not_those_of_the_weights(kind):
    model = OTHERWISE[kind]()
    with pytest.raises(ValueError, match=r"Expected a model that gives z = W x \+ bias"):
        compress(model, 1)


@pytest.mark.parametrize("kind", NOT_LINEAR)
def test_models_without_weights_of_their_own(kind):
    with pytest.raises(ValueError, match="or a fitted LogisticRegression of scikit-learn"):
        compress(NOT_LINEAR[kind](), 1)


LINEAR = {
    "three": lambda: fitted(LogisticRegression(), 3),
    "two": lambda: fitted(LogisticRegression(), 2),
    "without bias": lambda: fitted(LogisticRegression(fit_intercept=False), 3),
    "names": lambda: fitted(LogisticRegression(), 3, lambda y: NAMES[y]),
    "objects": lambda: fitted(LogisticRegression(), 3, lambda y: NAMES[y].astype(object)),
    "from 5 on": lambda: fitted(LogisticRegression(), 3, lambda y: y + 5),
    "booleans": lambda: fitted(LogisticRegression(), 2, lambda y: y > 0),
    "sparse": lambda: sparse(LogisticRegression()),
    "table": fitted_to_a_table,
    "CV": lambda: fitted(LogisticRegressionCV(cv=2), 2),
    "SGD of two": lambda: fitted(SGDClassifier(loss="log_loss"), 2),
    "LDA": lambda: fitted(LinearDiscriminantAnalysis(), 3),
    "ours": classifier_of_ours,
}


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of scikit-learn, for a default that will change
def test_linear_classifiers_are_kept_and_measured_as_they_are(kind):
    source = LINEAR[kind]()
    K = len(source.classes_)
    rows, y = blobs(K)
    model = compress(source, 3, (3, 3))
    p = source.predict_proba(rows) if kind != "table" else fitted(LogisticRegression(), 3).predict_proba(rows)
    kept = computed(model, rows.reshape(-1, 3, 3).astype("float32"))
    np.testing.assert_allclose(kept, p[:, 1:] if K == 2 else p, atol=1e-5)
    if kind in ("two", "names", "from 5 on"):
        labels, before = source.classes_[y], source.score(rows, source.classes_[y])
        report = compression_report(source, model, rows.reshape(-1, 3, 3), labels)
        assert report.accuracy == (pytest.approx(before), pytest.approx(before))
        assert not model.compiled


def test_the_report_takes_the_labels_of_the_model_alone():
    rows, y = blobs(3)
    source = fitted(LogisticRegression(), 3, lambda y: NAMES[y])
    model, x = compress(source, 1, (3, 3)), rows.reshape(-1, 3, 3)
    for labels in (y, NAMES[y + 1], [*NAMES[y].tolist(), "two"], None):
        with pytest.raises(ValueError, match="Expected"):
            compression_report(source, model, x, labels)
    one_hot = compression_report(source, model, x, np.eye(3)[y])
    assert one_hot == compression_report(source, model, x, NAMES[y])


def test_the_report_measures_no_other_model():
    rows, y = blobs(2)
    source, x = fitted(LogisticRegression(), 2), rows.reshape(-1, 3, 3)
    model = compress(source, 1, (3, 3))
    for before, after, message in (
        (fitted(SVC(kernel="linear"), 2), model, "`predict_proba`"),
        (fitted(LogisticRegression(), 3), model, "3 scores each"),
        (source, kb.BilinearLogisticRegression(1, input_shape=(2, 3)), "one for each pixel"),
        (source, kb.BilinearLogisticRegression(1), "what `compress` has given"),
        (source, source, "what `compress` has given"),
    ):
        with pytest.raises(ValueError, match=message):
            compression_report(before, after, x, y)


def test_a_logit_of_keras_is_measured_by_its_sign():
    rows, y = blobs(2)
    logit = keras.layers.Dense(1)
    logit.build((None, 9))
    source = fitted(LogisticRegression(), 2)
    logit.set_weights([source.coef_.T, source.intercept_])
    report = compression_report(logit, compress(logit, 3, (3, 3)), rows.reshape(-1, 3, 3), y)
    assert report.accuracy == (source.score(rows, y), source.score(rows, y))
