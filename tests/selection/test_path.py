import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.data.arrays import Batch, folds_of
from tests.problems import planted

ALPHAS, RANKS = (1e-1, 1e-3), (1, 3)


@pytest.fixture(scope="module")
def data():
    problem = planted(T=500, scale=2.0)
    return problem.X.astype("float32"), problem.y


@pytest.fixture(scope="module")
def path(data):
    return kb.regularization_path(kb.BilinearSoftmaxRegression(3, 1), *data, ALPHAS, RANKS, verbose=0)


def test_one_point_for_each_rank_and_alpha(path):
    assert [(point.rank, pytest.approx(point.alpha)) for point in path.points] == [
        (rank, alpha) for rank in RANKS for alpha in ALPHAS
    ]
    assert [point.parameters for point in path.points] == [33, 33, 99, 99]
    assert all(point.factors[0].shape == (point.rank, 6, 3) for point in path.points)


def test_every_point_is_as_good_as_a_fit_of_its_own(path, data):
    x, y = (part[:400] for part in data)
    for point in path.points:
        model = path.model(point)
        assert model.objective(x, y) == pytest.approx(point.objective, rel=1e-5)
        alone = kb.BilinearSoftmaxRegression(3, point.rank, alpha=point.alpha, seed=0)
        alone.fit(x, y, epochs=12, verbose=0)
        assert point.objective <= 1.02 * alone.objective(x, y)


def test_accuracy_is_that_on_the_held_out_images(path, data):
    x, y = (part[400:] for part in data)
    for point in path.points:
        guess = path.model(point).predict(x, verbose=0).argmax(axis=1)
        assert point.accuracy == np.mean(guess == y)
        assert point.standard_error == pytest.approx(np.sqrt(point.accuracy * (1 - point.accuracy) / 100))


def test_weights_of_held_out_images_weigh_the_accuracy(data):
    x, y = data
    weight = np.random.default_rng(0).uniform(size=100) * (np.arange(100) % 3 > 0)
    held_out = (x[400:], y[400:], weight)
    template = kb.BilinearSoftmaxRegression(3, 1)
    path = kb.regularization_path(template, x[:400], y[:400], [1e-1], [1], validation_data=held_out, verbose=0)
    (point,) = path.points
    right = path.model().predict(x[400:], verbose=0).argmax(axis=1) == y[400:]
    assert point.accuracy == pytest.approx(np.average(right, weights=weight))
    # The variance of a weighted mean of independent trials.
    share = weight / weight.sum()
    spread = point.accuracy * (1 - point.accuracy)
    assert point.standard_error == pytest.approx(np.sqrt(np.sum(share**2 * spread)))


def test_folds_hold_every_image_out_once_and_the_factors_are_fitted_to_all(data):
    x, y = data
    template = kb.BilinearSoftmaxRegression(3, 1)
    path = kb.regularization_path(template, x, y, [1e-1], [1], folds=4, verbose=0)
    (point,) = path.points
    assert path.model().objective(x, y) == pytest.approx(point.objective, rel=1e-5)
    scores = []
    for part, held_out in folds_of(Batch(x, y, np.ones(len(x))), 3, 4):
        alone = kb.regularization_path(template, *part[:2], [1e-1], [1], validation_data=held_out, verbose=0)
        scores.append(alone.points[0].accuracy)
    assert point.accuracy == pytest.approx(np.mean(scores))
    assert point.standard_error == pytest.approx(np.std(scores, ddof=1) / 2)


@pytest.mark.parametrize(("penalty", "use_bias"), [("sum", False), ("product", True), ("frobenius", False)])
def test_an_alpha_that_shrinks_everything_does_not_hold_back_the_next(data, penalty, use_bias):
    x, y = data
    template = kb.BilinearSoftmaxRegression(3, 1, penalty=penalty, use_bias=use_bias)
    ends = [
        kb.regularization_path(template, x, y, alphas, [2], verbose=0).points[-1].objective
        for alphas in ([1e-3], [1000.0, 1e-3], [10.0, 1.0, 1e-1, 1e-3])
    ]
    assert max(ends) <= 1.02 * min(ends)


def test_fits_that_run_out_of_sweeps_are_counted(data):
    template = kb.BilinearSoftmaxRegression(3, 1)
    with pytest.warns(kb.callbacks.ConvergenceWarning, match="2 of 2 fits"):
        kb.regularization_path(template, *data, [1e-2, 1e-3], [2], max_sweeps=1, rtol=0.0, verbose=0)


def test_bytes_are_those_of_the_exported_file(path, tmp_path):
    for point in path.points[-1], path.points[1]:
        report = kb.export_tflite(path.model(point), tmp_path / "model.tflite")
        assert point.bytes == report.bytes


def test_the_choice_is_the_smallest_within_one_standard_error(path):
    best, chosen = path.best, path.one_standard_error
    assert best.accuracy == max(point.accuracy for point in path.points)
    assert chosen.accuracy >= best.accuracy - best.standard_error
    smaller = [point for point in path.points if point.parameters < chosen.parameters]
    assert all(point.accuracy < best.accuracy - best.standard_error for point in smaller)
    assert path.model().rank == chosen.rank
    assert str(path).count("\n") == len(path.points)
    assert "best" in str(path)


def test_binary_models_with_bias_and_one_more_rank_than_asked_for(data):
    x, y = data
    template = kb.BilinearLogisticRegression(1, penalty="sum", use_bias=True)
    held_out = (x[:100], y[:100] == 2)
    path = kb.regularization_path(template, x[100:], y[100:] == 2, [1e-2], [2], validation_data=held_out, verbose=0)
    (point,) = path.points
    assert point.parameters == 2 * 11 + 1
    assert path.model().penalty_name == "sum"
    guess = path.model().predict(x[:100], verbose=0)[:, 0] > 0.5
    assert point.accuracy == np.mean(guess == held_out[1])
    assert not template.built


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": []}, "at least one alpha"),
        ({"alphas": 1e-3}, "`alphas`"),
        ({"ranks": []}, "at least one alpha"),
        ({"alphas": [-1.0]}, "`alphas`"),
        ({"ranks": [0]}, "`ranks`"),
        ({"ranks": [1.5]}, "`ranks`"),
        ({"model": kb.LinearSoftmaxRegression(3)}, "Expected a BilinearSoftmaxRegression"),
        ({"y": np.zeros(3)}, "Expected `y`"),
        ({"validation_split": 1.0}, "`validation_split`"),
        ({"folds": 1}, "`folds`"),
        ({"folds": 501}, "`folds`"),
        ({"folds": 2.5}, "`folds`"),
        ({"folds": 2, "validation_data": (np.zeros((1, 6, 5)), [0])}, "both"),
        ({"max_sweeps": 0}, "`max_sweeps`"),
        ({"rtol": -1.0}, "`rtol`"),
    ],
)
def test_bad_input(change, message, data):
    x, y = data
    options = {"model": kb.BilinearSoftmaxRegression(3, 1), "x": x, "y": y, "alphas": [0.1], "ranks": [1]} | change
    with pytest.raises(ValueError, match=message):
        kb.regularization_path(**options, verbose=0)
