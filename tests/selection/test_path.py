import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.data.arrays import Batch
from keras_bilinear.data.held_out import folds_of, stratified
from keras_bilinear.selection.path_settings import ranks_worth_it
from tests.files import computed
from tests.problems import planted

ALPHAS, RANKS = (1e-1, 1e-3), (1, 3)


@pytest.fixture(scope="module")
def data():
    return planted(T=500, scale=2.0).data()


@pytest.fixture(scope="module")
def path(data):
    return kb.regularization_path(kb.BilinearSoftmaxRegression(3, 1), *data, ALPHAS, RANKS, verbose=0)


@pytest.fixture(scope="module")
def parts(data):
    """(x, y) of the images that the path was fitted to, and of those held out."""
    x, y = data
    last = stratified(y, 0.2)
    return (x[~last], y[~last]), (x[last], y[last])


def test_one_point_for_each_rank_and_alpha(path):
    assert [(point.rank, pytest.approx(point.alpha)) for point in path.points] == [
        (rank, alpha) for rank in RANKS for alpha in ALPHAS
    ]
    assert [point.parameters for point in path.points] == [33, 33, 99, 99]
    assert all(point.factors[0].shape == (point.rank, 6, 3) for point in path.points)


def test_every_point_is_as_good_as_a_fit_of_its_own(path, parts):
    x, y = parts[0]
    for point in path.points:
        model = path.model(point)
        assert model.objective(x, y) == pytest.approx(point.objective, rel=1e-5)
        alone = kb.BilinearSoftmaxRegression(3, point.rank, alpha=point.alpha, seed=0)
        alone.compile(run_eagerly=True)
        alone.fit(x, y, epochs=8, verbose=0)
        assert point.objective <= 1.02 * alone.objective(x, y)


def test_accuracy_is_that_on_the_held_out_images(path, parts):
    x, y = parts[1]
    for point in path.points:
        guess = computed(path.model(point), x).argmax(axis=1)
        assert point.accuracy == np.mean(guess == y)
        assert point.standard_error == pytest.approx(np.sqrt(point.accuracy * (1 - point.accuracy) / 100))


def test_weights_of_held_out_images_weigh_the_accuracy(data):
    x, y = data
    weight = np.random.default_rng(0).uniform(size=100) * (np.arange(100) % 3 > 0)
    held_out = (x[400:], y[400:], weight)
    template = kb.BilinearSoftmaxRegression(3, 1)
    path = kb.regularization_path(template, x[:400], y[:400], [1e-1], [1], validation_data=held_out, verbose=0)
    (point,) = path.points
    right = computed(path.model(), x[400:]).argmax(axis=1) == y[400:]
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


@pytest.mark.parametrize(("penalty", "use_bias"), [("sum", False), ("product", True)])
def test_an_alpha_that_shrinks_everything_does_not_hold_back_the_next(data, penalty, use_bias):
    x, y = (part[:200] for part in data)
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
        assert "bytes" not in vars(point), "no file is written before it is asked for"
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
    guess = computed(path.model(), x[:100])[:, 0] > 0.5
    assert point.accuracy == np.mean(guess == held_out[1])
    assert not template.built


def test_a_path_over_a_data_set_is_that_of_its_arrays(path, parts):
    def batches(part):
        return tf.data.Dataset.from_tensor_slices(part).batch(90)

    train, held_out = map(batches, parts)
    model = kb.BilinearSoftmaxRegression(3, 1)
    with pytest.warns(UserWarning, match="rank=3 takes"):
        ours = kb.regularization_path(model, train, None, ALPHAS, RANKS, validation_data=held_out, verbose=0)
    for found, expected in zip(ours.points, path.points, strict=True):
        assert (found.rank, found.alpha) == (expected.rank, expected.alpha)
        assert found.objective == pytest.approx(expected.objective, rel=1e-2)
        x, y = parts[1]
        model = ours.model(found)
        assert found.accuracy == pytest.approx(np.mean(model.predict(x, verbose=0).argmax(axis=1) == y))
        assert model.objective(*parts[0]) == pytest.approx(found.objective, rel=1e-5)
    with pytest.raises(ValueError, match="cannot be divided"):
        kb.regularization_path(model, train, None, ALPHAS, RANKS, verbose=0)


def test_images_in_the_order_of_their_classes_are_held_out_of_all(data):
    x, y = (part[np.argsort(data[1], kind="stable")] for part in data)
    path = kb.regularization_path(kb.BilinearSoftmaxRegression(3, 1), x, y, [1e-2], [2], verbose=0)
    assert path.best.accuracy > 0.7  # with a class that was never seen it would be next to 0


def test_people_are_unseen_and_the_error_is_that_of_other_people(data):
    x, y = data
    groups = np.arange(500) // 25
    options = {"alphas": [1e-2], "ranks": [2], "groups": groups, "verbose": 0}
    (point,) = kb.regularization_path(kb.BilinearSoftmaxRegression(3, 1), x, y, **options).points
    last = stratified(y, 0.2, groups)
    right = computed(point.model(), x[last]).argmax(axis=1) == y[last]
    assert point.accuracy == pytest.approx(right.mean())
    people = right.reshape(-1, 25).mean(axis=1)  # of equal size, so this is the textbook's error of a mean
    assert point.standard_error == pytest.approx(np.std(people, ddof=1) / np.sqrt(len(people)))


def test_folds_of_people(data):
    x, y = data
    path = kb.regularization_path(
        kb.BilinearSoftmaxRegression(3, 1), x, y, [1e-1], [1], folds=2, groups=np.arange(500) // 50, verbose=0
    )
    assert 0.3 < path.best.accuracy < 1


def rare_class_found(y, p):
    """Of labels and probabilities."""
    assert p.shape == (len(y), 3)
    return np.mean(p.argmax(axis=1)[y == 2] == 2)


@pytest.mark.parametrize(
    ("scoring", "name"), [("balanced_accuracy", "balanced accuracy"), (rare_class_found, "rare_class_found")]
)
def test_other_scores(data, scoring, name):
    x, y = data
    rare = (y < 2) | (np.arange(500) % 3 == 0)
    x, y = x[rare], y[rare]
    template = kb.BilinearSoftmaxRegression(3, 1)
    path = kb.regularization_path(template, x, y, [1e-2], [2], scoring=scoring, verbose=0)
    last = stratified(y, 0.2)
    right = computed(path.model(), x[last]).argmax(axis=1) == y[last]
    recalls = [right[y[last] == k].mean() for k in range(3)]
    expected = np.mean(recalls) if scoring == "balanced_accuracy" else recalls[2]
    assert path.best.accuracy == pytest.approx(expected)
    assert 0.01 < path.best.standard_error < 0.3
    assert name in str(path).splitlines()[0]


def test_automatic_ranks_are_those_that_take_fewer_numbers_than_the_linear_model(data):
    x = np.random.default_rng(0).normal(size=(60, 6, 15)).astype("float32")
    y = np.arange(60) % 2
    path = kb.regularization_path(kb.BilinearLogisticRegression(1), x, y, [1e-1], "auto", verbose=0)
    assert [point.rank for point in path.points] == [1, 2, 3, 4]
    assert path.points[-1].parameters <= 6 * 15 < 5 * (6 + 15)
    assert ranks_worth_it((28, 28)) == list(range(1, 9))
    assert ranks_worth_it((2, 2)) == [1]


def test_fewer_ranks_than_a_fit_has_found(data):
    """`rank="auto"` ends with what the optimum of J needs; held-out images often do with less."""
    x, y = data
    found = kb.BilinearSoftmaxRegression(3, "auto", alpha=3e-3, penalty="sum", seed=0)
    found.fit(x, y, epochs=40, verbose=0)
    path = kb.regularization_path(found, x, y, verbose=0)
    assert [(point.rank, pytest.approx(point.alpha)) for point in path.points] == [(1, 3e-3), (2, 3e-3)]
    assert path.model().rank == 2 < found.ranks().max()
    A, B = found.factors()
    found.head.assign_factors(A * (np.arange(len(A)) < 1)[:, None, None], B)
    assert [point.rank for point in kb.regularization_path(found, x, y, max_sweeps=4, verbose=0).points] == [1]


def test_automatic_ranks_of_images_with_channels():
    x, y = np.random.default_rng(0).normal(size=(40, 4, 3, 5)).astype("float32"), np.arange(40) % 2
    template = kb.BilinearLogisticRegression(1, alpha=1e-1, input_shape=(4, 3, 5), rows=1)
    path = kb.regularization_path(template, x, y, verbose=0)
    assert [point.rank for point in path.points] == ranks_worth_it((4, 15)) == [1, 2, 3]


def test_separable_images_without_a_penalty_end_with_a_warning(data):
    x = np.random.default_rng(0).normal(size=(40, 6, 15)).astype("float32")
    template = kb.BilinearLogisticRegression(1)
    with pytest.warns(kb.callbacks.ConvergenceWarning, match="alpha = 0 end where V is zero.*alpha > 0"):
        path = kb.regularization_path(template, x, np.arange(40) % 2, [1e-2, 0.0], [2], verbose=0)
    assert 0 <= path.points[-1].objective <= 1e-6


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
        ({"groups": np.zeros(500)}, "`groups` of 2 kinds"),
        ({"groups": np.arange(3)}, "`groups` of shape"),
        ({"groups": np.arange(500), "validation_data": (np.zeros((1, 6, 5)), [0])}, "both"),
        ({"scoring": "roc"}, "Expected `scoring`"),
        ({"ranks": "all"}, "`ranks`"),
        ({"max_sweeps": 0}, "`max_sweeps`"),
        ({"rtol": -1.0}, "`rtol`"),
    ],
)
def test_bad_input(change, message, data):
    x, y = data
    options = {"model": kb.BilinearSoftmaxRegression(3, 1), "x": x, "y": y, "alphas": [0.1], "ranks": [1]} | change
    with pytest.raises(ValueError, match=message):
        kb.regularization_path(**options, verbose=0)
