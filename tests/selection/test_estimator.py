"""The scikit-learn classifier: its contract, its tools, and the Keras models it fits."""

import multiprocessing
import pickle
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import keras
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import keras_bilinear as kb
from keras_bilinear.callbacks import ConvergenceWarning
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.selection.estimator import BATCH
from keras_bilinear.selection.flat_images import image_shape
from tests.problems import planted

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "asks for 1e-7, but J is not convex and is minimised in float32: a sum in another order can end elsewhere"
    )
}

# Both fits stop where a sweep lowers J by less than 1e-3 of it; up to there, sums in another order part their ways.
SAME_J = 3e-4

NAMES = np.array(["nought", "one", "two"])  # in alphabetical order, as scikit-learn sorts labels


@parametrize_with_checks(
    [kb.BilinearClassifier(rank=1, tol=1e-2, random_state=0)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore:The fit has not converged", "ignore:Rows of .* are taken for images")
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def three(digits):
    """(x, y): 300 scans of the digits 0, 1 and 2."""
    x, y = digits
    return x[y < 3][:300], y[y < 3][:300]


@pytest.fixture(scope="module")
def fitted(three):
    x, y = three
    return kb.BilinearClassifier(random_state=0).fit(x, NAMES[y])


def fit_directly(model, x, y, **options):
    """The Keras model, fitted as a BilinearClassifier fits it by default."""
    model.compile(jit_compile=False, run_eagerly=True)
    model.fit(x, y, epochs=100, verbose=0, callbacks=[kb.callbacks.BlockConvergence(1e-3)], **options)
    return model


def settings():
    """Those of a BilinearClassifier(random_state=0), in the words of the Keras models."""
    seed = np.random.RandomState(0).randint(2**31 - 1)
    return {"rank": 2, "alpha": 1e-3, "use_bias": True, "seed": seed}


def test_more_than_two_classes_are_a_BSR(fitted, three):
    x, y = three
    model = fit_directly(kb.BilinearSoftmaxRegression(3, **settings()), x, y)
    assert fitted.model_.objective(x, y) == pytest.approx(model.objective(x, y), SAME_J)
    np.testing.assert_allclose(fitted.predict_proba(x), model.predict(x, verbose=0), atol=1e-3)
    own = fitted.model_  # the other one may take a sweep more or less
    assert fitted.score(x, NAMES[y]) == own.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0.95
    report = own.convergence_report()
    assert fitted.n_iter_ == int(own.schedule.sweep.value) == report.sweeps > 1
    assert report.converged is True


def test_two_classes_are_a_BLR_and_weights_are_those_of_keras(three):
    x, y = three
    x, y, weight = x[y > 0], y[y > 0], np.linspace(0.1, 2.0, np.sum(y > 0))
    estimator = kb.BilinearClassifier(random_state=0, class_weight={2: 3.0}).fit(x, y, sample_weight=weight)
    model = kb.BilinearLogisticRegression(**settings())
    fit_directly(model, x, y - 1, sample_weight=weight, class_weight={1: 3.0})
    p = model.predict(x, verbose=0)[:, 0]
    assert estimator.model_.objective(x, y - 1, weight) == pytest.approx(model.objective(x, y - 1, weight), SAME_J)
    np.testing.assert_allclose(estimator.predict_proba(x), np.stack([1 - p, p], axis=1), atol=1e-3)
    np.testing.assert_array_equal(estimator.predict(x), np.where(estimator.decision_function(x) > 0, 2, 1))
    assert estimator.decision_function(x).shape == (len(x),)
    assert estimator.coef_.shape == (1, 64)


def test_one_weight_for_all_and_an_array_as_image_shape_are_taken(fitted, three):
    x, y = three
    estimator = kb.BilinearClassifier(random_state=0, image_shape=np.array([8, 8]))
    estimator.fit(x.reshape(-1, 64), NAMES[y], sample_weight=1.0)
    np.testing.assert_allclose(estimator.predict_proba(x), fitted.predict_proba(x), atol=1e-3)


def test_labels_are_given_back_as_they_came(fitted, three):
    x, _ = three
    np.testing.assert_array_equal(fitted.classes_, NAMES)
    assert set(fitted.predict(x)) == set(NAMES)
    np.testing.assert_array_equal(fitted.predict(x), NAMES[fitted.predict_proba(x).argmax(axis=1)])


def test_scores_are_linear_in_the_pixels(fitted, three):
    x, _ = three
    z = x.reshape(-1, 64) @ fitted.coef_.T + fitted.intercept_
    np.testing.assert_allclose(fitted.decision_function(x), z, atol=1e-4)
    unbiased = kb.BilinearClassifier(use_bias=False).fit(x[:30], three[1][:30])
    np.testing.assert_array_equal(unbiased.intercept_, np.zeros(3))


def test_certain_classes_keep_a_finite_logarithm(fitted, three):
    x, _ = three
    logarithms = fitted.predict_log_proba(1e4 * x)
    assert np.isfinite(logarithms).all()
    assert fitted.predict_proba(1e4 * x).min() == 0
    np.testing.assert_allclose(fitted.predict_log_proba(x), np.log(fitted.predict_proba(x)), rtol=1e-6)


def test_rows_and_images_with_a_channel_are_the_same_images(fitted, three):
    x, y = three
    again = clone(fitted).set_params(image_shape=(8, 8)).fit(x.reshape(-1, 64), NAMES[y])
    assert again.image_shape_ == fitted.image_shape_ == (8, 8)
    assert again.n_features_in_ == fitted.n_features_in_ == 64
    p = fitted.predict_proba(x)
    for same in (x.reshape(-1, 64), x[..., None], x.tolist(), keras.ops.convert_to_tensor(x)):
        np.testing.assert_array_equal(fitted.predict_proba(same), p)
        np.testing.assert_allclose(again.predict_proba(same), p, atol=1e-6)


@pytest.mark.parametrize(("columns", "shape"), [(64, "8 x 8"), (63, "1 x 63")])
def test_rows_of_no_declared_shape_are_told_of(three, columns, shape):
    x, y = three
    with pytest.warns(UserWarning, match=f"taken for images of {shape}.*`image_shape`"):
        kb.BilinearClassifier().fit(x.reshape(-1, 64)[:, :columns], y)


def test_predicting_in_batches_changes_nothing(fitted, three):
    x, _ = three
    many = np.tile(x[:7], (BATCH // 7 + 1, 1, 1))
    assert len(many) > BATCH
    np.testing.assert_allclose(fitted.decision_function(many)[-7:], fitted.decision_function(x[:7]), rtol=1e-9)


@pytest.mark.parametrize(
    ("declared", "given", "pixels", "expected"),
    [
        (None, (6, 5), 30, (6, 5)),
        (None, None, 64, (8, 8)),
        (None, None, 63, (1, 63)),
        (None, None, 1, (1, 1)),
        ((16, 4), None, 64, (16, 4)),
        ([np.int64(6), 5], (6, 5), 30, (6, 5)),
    ],
)
def test_shape_of_an_image(declared, given, pixels, expected):
    assert image_shape(declared, given, pixels) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (4, 16)}, r"Expected images of image_shape=\(4, 16\).*images of \(8, 8\)"),
        ({"image_shape": (8, 9)}, "72 pixels"),
        ({"image_shape": 8}, r"`image_shape` to be \(M, N\)"),
        ({"image_shape": (4, 8, 2)}, r"`image_shape` to be \(M, N\)"),
        ({"image_shape": [[8], [4, 4]]}, "`image_shape` to be an integer"),
        ({"image_shape": "88"}, r"`image_shape` to be \(M, N\)"),
        ({"image_shape": (8.0, 8.0)}, "`image_shape` to be an integer"),
        ({"use_bias": "False"}, "`use_bias` to be True or False"),
        ({"image_shape": (8, -8)}, "`image_shape` to be an integer"),
        ({"rank": 0}, "`rank`"),
        ({"alpha": -1.0}, "`alpha`"),
        ({"penalty": "lasso"}, "`penalty`|penalty"),
        ({"tol": -1.0}, "`tol`"),
        ({"max_iter": 0}, "`max_iter`"),
    ],
)
def test_bad_settings(options, message, three):
    with pytest.raises(ValueError, match=message):
        kb.BilinearClassifier(**options).fit(*three)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[..., None].repeat(3, axis=-1), y), "one channel|Expected images"),
        (lambda x, y: (x[:, None, :, :, None], y), "Expected images"),
        (lambda x, y: (x[0, 0], y), "2D array"),
        (lambda x, y: (np.full_like(x, np.nan), y), "NaN"),
        (lambda x, y: (x[:0], y[:0]), "0 sample"),
        (lambda x, y: (x, y[:-1]), "inconsistent numbers of samples"),
        (lambda x, y: (x, np.zeros_like(y)), "at least two classes"),
        (lambda x, y: (x, y + 0.5), "continuous"),
        (lambda x, y: (x, np.eye(3)[y]), "1d array"),
        (lambda x, y: ([[1.0], [1.0, 2.0]], [0, 1]), "sequence|inhomogeneous"),
        (lambda x, y: (x, y, np.zeros(len(x))), "all zero"),
        (lambda x, y: (x, y, -np.ones(len(x))), "`sample_weight`"),
    ],
)
def test_bad_data(change, message, three):
    with pytest.raises(ValueError, match=message):
        kb.BilinearClassifier().fit(*change(*three))


@pytest.mark.parametrize("standardize", [None, True])
def test_images_with_channels(standardize):
    problem = planted(T=200, M=6, N=12, scale=2.0)
    images, y = problem.X.reshape(200, 6, 4, 3), problem.y
    settings = {"random_state": 0, "standardize": standardize, "max_iter": 8, "tol": 0.02}
    plain = kb.BilinearClassifier(**settings).fit(problem.X, y)
    for X, options in ((images, {}), (images.reshape(200, 72), {"image_shape": (6, 4, 3)})):
        classifier = clone(kb.BilinearClassifier(rows=1, **options, **settings)).fit(X, y)
        np.testing.assert_array_equal(classifier.predict_proba(X), plain.predict_proba(problem.X))
    assert classifier.model_.filter_images().shape == (3, 6, 4, 3)
    other = kb.BilinearClassifier(rows=(3, 1), **settings).fit(images, y)
    assert other.model_.image_size == (18, 4)
    z = images.reshape(200, 72) @ other.coef_.T + other.intercept_
    np.testing.assert_allclose(other.decision_function(images), z, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(other.predict_proba(images), other.model_.predict(images, verbose=0), atol=1e-5)
    with pytest.raises(ValueError, match=r"Expected images of \(6, 4, 3\)"):
        other.predict(images.transpose(0, 2, 1, 3))


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"rows": 1}, (6, 4), r"shape \(T, M, N, C\), or rows \(T, M N C\), with `rows`"),
        ({"rows": 4}, (6, 4, 3), "Expected `rows` to name one or two of the axes"),
        ({"rows": 1.5}, (6, 4, 3), "Expected `rows` to be an axis"),
        ({"rows": 1}, (72,), r"Expected `image_shape` \(M, N, C\) with `rows`"),
        ({"rows": 1, "image_shape": (6, 12)}, (72,), r"Expected `image_shape` to be \(M, N, C\)"),
        ({"rows": 1, "image_shape": (6, 4, 2)}, (6, 4, 3), r"image_shape=\(6, 4, 2\), 48 pixels"),
        ({"image_shape": (6, 4, 3)}, (72,), r"Expected `image_shape` to be \(M, N\)"),
    ],
)
def test_wrong_images_with_channels(options, shape, message):
    with pytest.raises(ValueError, match=message):
        kb.BilinearClassifier(**options).fit(np.ones((10, *shape)), np.arange(10) % 2)


def test_images_unlike_the_fitted_ones_are_refused(fitted, three):
    x, _ = three
    with pytest.raises(ValueError, match=r"Expected images of \(8, 8\).*images of \(4, 16\)"):
        fitted.predict(x.reshape(-1, 4, 16))
    with pytest.raises(ValueError, match="63 features"):
        fitted.predict(x.reshape(-1, 64)[:, 1:])
    with pytest.raises(NotFittedError):
        kb.BilinearClassifier().predict(x)


def test_a_fit_that_has_not_converged_says_which_settings_to_raise(three):
    x, y = three
    with pytest.warns(ConvergenceWarning, match="max_iter=1 .*tol=0"):
        estimator = kb.BilinearClassifier(tol=0, max_iter=1).fit(x, y)
    assert estimator.n_iter_ == 1


def test_fits_that_overlap_in_threads_leave_the_filters_of_warnings_alone(three, monkeypatch):
    """The first to begin is the first to end: of filters that each fit put back, those of the second would stay."""
    x, y = three
    first, second, ended = threading.Event(), threading.Event(), threading.Event()
    filters, fit = list(warnings.filters), ImageRegression.fit

    def overlapping(model, *args, **options):
        binary = model.units == 1
        assert binary or first.wait(60)
        (first if binary else second).set()
        assert (second if binary else ended).wait(60)
        assert warnings.filters == filters
        return fit(model, *args, **options)

    monkeypatch.setattr(ImageRegression, "fit", overlapping)
    with ThreadPoolExecutor() as pool:
        binary, other = (pool.submit(kb.BilinearClassifier().fit, x[y < K], y[y < K]) for K in (2, 3))
        assert binary.result(120).score(x[y < 2], y[y < 2]) > 0.9
        ended.set()
        assert other.result(120).score(x, y) > 0.9
    assert warnings.filters == filters


@pytest.mark.parametrize("options", [{}, {"rank": "auto", "penalty": "sum", "alpha": 0.01}])
def test_a_fit_warns_once_and_in_its_own_words(three, options):
    with pytest.warns(ConvergenceWarning) as warned:
        kb.BilinearClassifier(max_iter=1, tol=1e-9, **options).fit(*three)
    messages = [str(warning.message) for warning in warned if warning.category is ConvergenceWarning]
    assert len(messages) == 1
    assert "max_iter=1" in messages[0]


def test_grid_search_over_rank_and_alpha_and_the_best_model_is_exported(three, tmp_path):
    x, y = three
    grid = {"rank": [1, 2], "alpha": [1e-3, 10.0]}
    search = GridSearchCV(kb.BilinearClassifier(tol=1e-2, random_state=0), grid, cv=2).fit(x, y)
    assert search.best_params_["alpha"] == 1e-3
    assert search.best_score_ > 0.95
    kb.export_tflite(search.best_estimator_.model_, tmp_path / "best.tflite")
    kb.verify_tflite(tmp_path / "best.tflite", search.best_estimator_.model_, x[:20], y[:20])


def test_pipeline_with_a_scaler_of_flat_rows(three):
    x, y = three
    pipeline = make_pipeline(StandardScaler(), kb.BilinearClassifier(image_shape=(8, 8), alpha=1e-2))
    pipeline.fit(x[:200].reshape(200, 64), NAMES[y[:200]])
    assert pipeline.score(x[200:].reshape(-1, 64), NAMES[y[200:]]) > 0.9


def test_pickles_and_clones(fitted, three):
    x, _ = three
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    unfitted = clone(fitted)
    assert unfitted.get_params() == fitted.get_params()
    assert not hasattr(unfitted, "model_")
    assert not hasattr(unfitted, "coef_")


def test_fits_in_another_process_and_comes_back(three):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        estimator = pool.submit(kb.BilinearClassifier(random_state=0).fit, *three).result(300)
    assert estimator.score(*three) > 0.9


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "keras_bilinear.selection.estimator")
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        kb.BilinearClassifier  # noqa: B018
    exec("from keras_bilinear import *", {})
