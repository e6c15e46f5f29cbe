"""Pixels of any unit, on whole models: the optimum is reached, or the fit says that it has stalled."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy.optimize import minimize

import keras_bilinear as kb
from keras_bilinear.callbacks import BlockConvergence, ConvergenceWarning
from keras_bilinear.solver.images import Images
from keras_bilinear.stopping.stationarity import decrease_in_sight, too_far_from_zero
from tests.problems import planted

RTOL = 1e-4


def eager(model):
    """The solver is traced once for all models, and the step around it is not worth a trace."""
    model.compile(run_eagerly=True)
    return model


MODELS = {
    "LLR": lambda alpha, bias: eager(kb.LinearLogisticRegression(alpha, use_bias=bias)),
    "BLR": lambda alpha, bias: eager(
        kb.BilinearLogisticRegression(3, alpha=alpha, penalty="frobenius", use_bias=bias, seed=0)
    ),
}
UNITS = {
    "plain": lambda x: x,
    "a column in another unit": lambda x: x * np.array([1e5, 1.0, 1.0]),
    "a column next to nothing": lambda x: x * np.array([1e-5, 1.0, 1.0]),
    "a row in another unit": lambda x: x * np.array([1.0, 1e4, 1.0])[:, None],
    "a pixel in another unit": lambda x: x * np.where(np.arange(9).reshape(3, 3) == 4, 1e5, 1.0),
    "far from zero": lambda x: x + 1e4,
    "all tiny": lambda x: 1e-6 * x,
}


def images():
    problem = planted(T=200, M=3, N=3, K=1)
    return problem.X, problem.y


def optimum(x, y, alpha, bias):
    """J* of the linear model in float64, its pixels in units of their own; full-rank Frobenius has the same."""
    X, mean, unit = x.reshape(len(x), -1), 0.0, np.abs(x).max(axis=0).ravel()
    if bias:
        mean, unit = X.mean(axis=0), np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    X, sign = (X - mean) / unit, 1.0 - 2.0 * y

    def J(v):
        z, w = X @ v[:-1] + bias * v[-1], v[:-1] / unit
        slope = sign / (1 + np.exp(-sign * z)) / len(y)
        gradient = np.append(X.T @ slope + alpha * w / unit, bias * slope.sum())
        return np.logaddexp(0, sign * z).mean() + 0.5 * alpha * w @ w, gradient

    return minimize(J, np.zeros(10), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).fun


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", MODELS)
def test_converged_means_the_optimum_in_every_unit(name, unit):
    x, y = images()
    x, bias = UNITS[unit](x), unit == "far from zero"
    model, judge = MODELS[name](1e-2, bias), BlockConvergence(rtol=RTOL)
    J = model.fit(x, y, epochs=60, verbose=0, callbacks=[judge]).history["objective"][-1]
    assert judge.converged
    assert pytest.approx(optimum(x, y, 1e-2, bias), rel=5e-3) == J


@pytest.mark.parametrize("blocks", ["side", "factor"])
def test_the_unit_plays_no_part_for_single_blocks(blocks):
    x, y = images()
    model = MODELS["BLR"](1e-2, False)
    model.compile(kb.BlockLineSearch(blocks=blocks), jit_compile=False)
    x = UNITS["a column in another unit"](x)
    J = model.fit(x, y, epochs=30, verbose=0).history["objective"][-1]
    assert pytest.approx(optimum(x, y, 1e-2, False), rel=5e-3) == J


def test_softmax_on_digits_with_one_column_in_another_unit(digits):
    x, y = digits
    x = x * np.where(np.arange(8) == 3, 1e4, 1.0)
    plain = kb.LinearSoftmaxRegression(10, 1e-2)
    J = plain.fit(digits[0], y, epochs=60, verbose=0, callbacks=[BlockConvergence(rtol=RTOL)]).history["objective"][
        -1
    ]
    model, judge = kb.LinearSoftmaxRegression(10, 1e-2), BlockConvergence(rtol=RTOL)
    scaled = model.fit(x, y, epochs=60, verbose=0, callbacks=[judge]).history["objective"][-1]
    assert judge.converged
    assert scaled < J  # its weights may be small, so R is smaller


def test_without_a_penalty_tiny_images_are_fitted_as_any():
    x, y = images()
    model, tiny = MODELS["LLR"](0.0, False), MODELS["LLR"](0.0, False)
    J = model.fit(x, y, epochs=30, verbose=0).history["objective"][-1]
    with pytest.warns(UserWarning, match="largest pixel"):
        history = tiny.fit(5e-10 * x, y, epochs=30, verbose=0).history
    assert history["objective"][-1] == pytest.approx(J, rel=1e-4)


ONE_COLUMN = np.array([1.0, 0.0, 0.0])


@pytest.mark.filterwarnings("ignore:The fit has not converged", "ignore:The largest pixel")
@pytest.mark.parametrize("offset", [1e5, 4e6, 1e5 * ONE_COLUMN, 4e6 * ONE_COLUMN])
@pytest.mark.parametrize("name", MODELS)
def test_far_from_zero_no_fit_says_that_it_has_converged(name, offset):
    """float32 holds few digits of such pixels, or none: nobody can tell."""
    x, y = images()
    model, judge = MODELS[name](1e-2, True), BlockConvergence(rtol=RTOL)
    model.fit((x + offset).astype("float32"), y, epochs=60, verbose=0, callbacks=[judge])
    assert not judge.converged
    assert any(why in judge.reason for why in ("float32 holds too few digits", "the epochs ran out"))


@pytest.mark.parametrize("name", MODELS)
def test_pixels_that_never_change_tell_nothing_however_far_from_zero(name):
    x, y = images()
    x[:, 0, 0] = 4e5
    model, judge = MODELS[name](1e-2, True), BlockConvergence(rtol=RTOL)
    J = model.fit(x, y, epochs=60, verbose=0, callbacks=[judge]).history["objective"][-1]
    assert judge.converged
    assert pytest.approx(optimum(x, y, 1e-2, True), rel=1e-2) == J


@pytest.mark.parametrize("alpha", [0.0, 1e-2])
def test_the_last_digit_of_a_pixel_matters_only_without_a_penalty(alpha):
    x, _ = images()
    x[:, 0, 0] = 1 + 6e-8 * (np.arange(len(x)) % 2)
    assert too_far_from_zero(Images(ops.convert_to_tensor(x, dtype="float64")), alpha) == (alpha == 0)


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_creeps_far_from_the_optimum_has_stalled(name):
    x, y = images()
    x = UNITS["a column in another unit"](x)
    model, judge = MODELS[name](1e-2, True), BlockConvergence(rtol=RTOL)
    model.compile(kb.BlockLineSearch("gradient_descent", blocks="factor", max_inner=1), run_eagerly=True)
    with pytest.warns(ConvergenceWarning, match="standardise them"):
        J = model.fit(x, y, epochs=60, verbose=0, callbacks=[judge]).history["objective"][-1]
    assert optimum(x, y, 1e-2, True) * 1.2 < J
    assert judge.stalled
    assert not judge.converged
    assert "a Newton step would" in judge.reason
    assert any("standardise them" in warning for warning in model.convergence_report().warnings)


class Outlook(keras.callbacks.Callback):
    """J and the decrease in sight after every sweep."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((logs["objective"], decrease_in_sight(self.model)))


@pytest.mark.parametrize("name", MODELS)
def test_the_decrease_in_sight_tells_how_far_the_optimum_is(name):
    x, y = images()
    model, outlook = MODELS[name](1e-2, False), Outlook()
    model.compile(kb.BlockLineSearch(max_inner=1), run_eagerly=True)
    model.fit(x, y, epochs=12, verbose=0, callbacks=[outlook])
    best, far = optimum(x, y, 1e-2, False), 0
    for J, decrease in outlook.seen:
        if J - best > 1e-4 * J:
            far += 1
            # Of a bilinear model each side may cover the way alone.
            assert 0.3 < decrease / (J / best - 1) < 3
    assert far > 0
    assert outlook.seen[-1][1] < 1e-4
