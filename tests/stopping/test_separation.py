import warnings

import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.callbacks import BlockConvergence, ConvergenceWarning
from keras_bilinear.stopping.separation import SEPARATED
from tests.problems import planted

MODELS = {
    "BSR": lambda **options: kb.BilinearSoftmaxRegression(3, 2, seed=0, **options),
    "BLR": lambda **options: kb.BilinearLogisticRegression(2, seed=0, **options),
    "LSR": lambda **options: kb.LinearSoftmaxRegression(3, **options),
    "LLR": lambda **options: kb.LinearLogisticRegression(**options),
}


@pytest.fixture(scope="module")
def separable():
    """Few images of many pixels, with any labels."""
    random = np.random.default_rng(0)
    return random.normal(size=(30, 6, 9)).astype("float32"), np.arange(30) % 2


def of_convergence(warned):
    """Keras has a deprecation of its own."""
    return [warning for warning in warned if warning.category is ConvergenceWarning]


@pytest.mark.parametrize("kind", MODELS)
def test_a_fit_of_separable_images_without_a_penalty_stops_at_once_and_says_so(kind, separable):
    x, y = separable
    model = MODELS[kind](alpha=0.0)
    with pytest.warns(ConvergenceWarning, match="V = .* with alpha = 0, so J has no minimum.*Give alpha > 0"):
        history = model.fit(x, y, epochs=50, verbose=0)
    J = history.history["objective"]
    assert len(J) < 10
    assert J[-1] <= SEPARATED
    assert all(value > SEPARATED for value in J[:-1])
    report = model.convergence_report()
    assert report.reason.startswith("separated: V = ")
    assert "Give alpha > 0" in str(report)


@pytest.mark.parametrize("kind", MODELS)
def test_by_default_there_is_a_penalty_and_no_warning(kind, separable):
    model = MODELS[kind]()
    assert model.alpha == pytest.approx(1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(*separable, epochs=60, verbose=0, callbacks=[BlockConvergence(1e-3)])
    assert "converged" in model.convergence_report().reason


def test_images_that_cannot_be_separated_fit_on_without_a_penalty():
    problem = planted(T=400)
    model = MODELS["BSR"](alpha=0.0)
    model.fit(problem.X, problem.y, epochs=6, verbose=0)
    assert len(model.convergence_report().objectives) == 6


def test_one_warning_beside_a_callback_that_judges_convergence(separable):
    model, judge = MODELS["BLR"](alpha=0.0), BlockConvergence()
    with pytest.warns(ConvergenceWarning) as warned:
        model.fit(*separable, epochs=50, verbose=0, callbacks=[judge])
    assert len(of_convergence(warned)) == 1
    assert not judge.converged
    assert "separated" in model.convergence_report().reason


def test_a_classifier_says_it_in_the_same_words(separable):
    with pytest.warns(ConvergenceWarning, match="separated") as warned:
        kb.BilinearClassifier(alpha=0.0).fit(*separable)
    assert len(of_convergence(warned)) == 1


def test_mini_batches_go_on(separable):
    model = MODELS["LLR"](alpha=0.0)
    model.compile("adam", run_eagerly=True)
    model.fit(*separable, epochs=2, verbose=0)
    assert len(model.convergence_report().objectives) == 2
