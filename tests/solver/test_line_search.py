import numpy as np
import pytest
from keras import ops
from scipy.special import expit

from keras_bilinear.solver.line_search import minimise_curve

CURVES = {
    "parabola": (lambda e: (e - 3) ** 2, lambda e: 2 * (e - 3), lambda e: 2.0, 3.0),
    "far minimum": (lambda e: (e - 1e5) ** 2 * 1e-6, lambda e: 2e-6 * (e - 1e5), lambda e: 2e-6, 1e5),
    "near minimum": (lambda e: (e - 1e-7) ** 2, lambda e: 2 * (e - 1e-7), lambda e: 2.0, 1e-7),
    # Newton from 0 overshoots into the flat right part of this one.
    "saturating": (
        lambda e: np.logaddexp(0, -(e - 8)) + np.logaddexp(0, e - 9),
        lambda e: expit(e - 9) - expit(8 - e),
        lambda e: expit(8 - e) * expit(e - 8) + expit(e - 9) * expit(9 - e),
        8.5,
    ),
    "quartic": (lambda e: (e - 2) ** 4, lambda e: 4 * (e - 2) ** 3, lambda e: 12 * (e - 2) ** 2, 2.0),
}


def curve(name):
    value, slope, curvature, _ = CURVES[name]
    return lambda eta: tuple(ops.convert_to_tensor(np.float64(f(float(eta)))) for f in (value, slope, curvature))


@pytest.mark.parametrize("name", CURVES)
def test_finds_the_minimum(name):
    phi = curve(name)
    zero = ops.zeros((), "float64")
    eta, value = minimise_curve(phi, phi(zero), slope_tolerance=1e-3, max_evaluations=60)
    slope = float(phi(eta)[1])
    assert abs(slope) <= 1e-3 * abs(float(phi(zero)[1]))
    assert float(value) == pytest.approx(float(phi(eta)[0]))


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_never_raises_phi_whatever_the_budget(name, budget):
    phi = curve(name)
    start = phi(ops.zeros((), "float64"))
    eta, value = minimise_curve(phi, start, slope_tolerance=1e-6, max_evaluations=budget)
    assert float(eta) >= 0
    assert float(phi(eta)[0]) <= float(start[0])
    assert float(value) == pytest.approx(float(phi(eta)[0]))


def test_stays_where_there_is_no_descent():
    phi = lambda eta: (eta * 1.0, ops.ones((), "float64"), ops.zeros((), "float64"))
    eta, value = minimise_curve(phi, phi(ops.zeros((), "float64")))
    assert float(eta) == 0
    assert float(value) == 0


def test_a_function_that_breaks_down_gives_no_step_beyond_the_breakdown():
    def phi(eta):
        value = (float(eta) - 5) ** 2 if float(eta) < 2 else np.nan
        slope = 2 * (float(eta) - 5) if float(eta) < 2 else np.nan
        return tuple(ops.convert_to_tensor(np.float64(v)) for v in (value, slope, 2.0))

    eta, value = minimise_curve(phi, phi(ops.zeros((), "float64")))
    assert 0 < float(eta) < 2
    assert np.isfinite(float(value))
