import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import keras_bilinear as kb
from keras_bilinear.selection.standardization import moments_of_images
from tests.files import computed


@pytest.fixture(scope="module")
def sensors():
    """(x, y): three classes, each a place in rows whose units differ by factors up to 30,000; one never changes."""
    random = np.random.default_rng(0)
    y = np.arange(300) % 3
    x = random.normal(size=(300, 4, 6))
    x[np.arange(300), y, y] += 2.0
    x = (x + 3.0) * np.array([1e-3, 1.0, 30.0, 1.0])[:, None]
    x[:, 3, :] = 5.0
    return x.astype("float32"), y


@pytest.mark.parametrize("way", ["rows", "columns", True])
def test_moments_make_rows_and_columns_standard(sensors, way):
    x, _ = sensors
    weight = np.linspace(0.5, 1.5, len(x))
    moments = moments_of_images(x, weight, way)
    Z = moments.standardized(x)
    assert np.abs(np.average(Z, axis=0, weights=weight)).max() < 1e-4
    variance = np.average(Z.astype("float64") ** 2, axis=0, weights=weight)
    if way != "columns":
        np.testing.assert_allclose(variance[:3].mean(axis=1), 1, rtol=0.3)
    if way == "columns":
        np.testing.assert_allclose(variance.mean(axis=0), 1, rtol=1e-4)


def test_a_classifier_sees_standard_images_and_gives_a_model_of_plain_ones(sensors, tmp_path):
    x, y = sensors
    estimator = kb.BilinearClassifier(standardize=True, random_state=0).fit(x, y)
    moments = moments_of_images(x, np.ones(len(x)), True)
    inner = kb.BilinearClassifier(random_state=0).fit(moments.standardized(x), y)
    inside = inner.predict_proba(moments.standardized(x))
    assert np.abs(estimator.predict_proba(x) - inside).max() <= 1e-5
    np.testing.assert_allclose(computed(estimator.model_, x), inside, atol=1e-5)
    assert estimator.score(x, y) > kb.BilinearClassifier(random_state=0).fit(x / 30, y).score(x / 30, y)
    assert estimator.n_iter_ == inner.n_iter_ == estimator.model_.convergence_report().sweeps
    files = [tmp_path / "with.tflite", tmp_path / "without.tflite"]
    sizes = [kb.export_tflite(e.model_, path).bytes for e, path in zip((estimator, inner), files, strict=True)]
    assert sizes[0] <= sizes[1]
    kb.verify_tflite(files[0], estimator.model_, x, y)


def test_bytes_stay_bytes(digits):
    x, y = digits
    x, y = np.round(255 * x[y < 2][:200]).astype("uint8"), y[y < 2][:200]
    estimator = kb.BilinearClassifier(standardize="columns", input_scale=1 / 255, random_state=0).fit(x, y)
    assert estimator.model_.input_scale == pytest.approx(1 / 255)
    p = estimator.model_.predict(x, verbose=0)[:, 0]
    np.testing.assert_allclose(estimator.predict_proba(x)[:, 1], p, atol=1e-4)
    assert estimator.score(x, y) > 0.95


def test_means_that_float32_cannot_take_in_are_refused(sensors):
    x, y = sensors
    with pytest.raises(ValueError, match="Expected means small enough"):
        kb.BilinearClassifier(standardize="rows").fit(x + 1e4, y)


@pytest.mark.parametrize("standardize", ["pixels", False, 1, ("rows",)])
def test_other_ways_are_refused(sensors, standardize):
    with pytest.raises(ValueError, match="Expected `standardize`"):
        kb.BilinearClassifier(standardize=standardize).fit(*sensors)


def test_without_a_bias_there_is_no_place_for_the_mean(sensors):
    with pytest.raises(ValueError, match="Expected `use_bias=True` with `standardize`"):
        kb.BilinearClassifier(standardize="rows", use_bias=False).fit(*sensors)


@pytest.mark.parametrize(("options", "classes"), [({}, 3), ({"with_mean": False}, 2), ({"with_std": False}, 3)])
def test_a_pipeline_with_a_scaler_is_compressed_as_one_linear_model(sensors, options, classes):
    x, y = (part[sensors[1] < classes] for part in sensors)
    rows = x.reshape(len(x), -1)
    pipeline = make_pipeline(StandardScaler(**options), LogisticRegression(max_iter=500)).fit(rows, y)
    for whole in (kb.compress(pipeline, 3, (4, 6)), kb.from_dense(pipeline, 4, (4, 6))):
        p = computed(whole, x)
        expected = pipeline.predict_proba(rows)[:, -p.shape[1] :]
        assert np.abs(p - expected).max() <= (1e-4 if whole.rank == 4 else 0.5)


def test_other_pipelines_are_refused(sensors):
    x, y = sensors
    pipeline = make_pipeline(MinMaxScaler(), LogisticRegression()).fit(x.reshape(len(x), -1), y)
    with pytest.raises(ValueError, match=r"Expected a fitted Pipeline of a StandardScaler.*MinMaxScaler"):
        kb.compress(pipeline, 2, (4, 6))
