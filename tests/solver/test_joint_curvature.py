"""How much of the curvature is kept of large images: less, but never another optimum."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_bilinear as kb
from keras_bilinear.maths.bilinear import Factors
from keras_bilinear.solver import joint_curvature
from keras_bilinear.solver.joint_curvature import DIAGONAL, FACTORS, MOST_NUMBERS, WHOLE, grain_of
from tests.problems import planted


def of_size(M, N, L=4, K=10):
    return Factors(ops.zeros((L, M, K)), ops.zeros((L, N, K)), None)


def test_large_images_keep_less():
    assert grain_of(of_size(28, 28)) == grain_of(of_size(128, 128)) == WHOLE
    assert grain_of(of_size(256, 256)) == FACTORS
    assert grain_of(of_size(512, 512)) == DIAGONAL
    for size in (28, 128, 256, 512):
        numbers = {WHOLE: 10 * (8 * size) ** 2, FACTORS: 80 * size**2, DIAGONAL: 80 * size}
        assert numbers[grain_of(of_size(size, size))] <= MOST_NUMBERS


@pytest.fixture(scope="module")
def optimum():
    """Images, and J of them where a fit with the whole curvature ends."""
    problem = planted(T=300, K=3)
    x, y = problem.X.astype("float32"), problem.y
    return x, y, fitted(x, y, epochs=15)[-1]


def fitted(*data, epochs):
    model = kb.BilinearSoftmaxRegression(3, 2, 1e-2, "sum", use_bias=True, seed=0)
    return np.array(model.fit(*data, epochs=epochs, verbose=0).history["J"])


@pytest.mark.parametrize(
    ("most", "grain", "in_passes"),
    [
        (3 * 22**2 - 1, FACTORS, False),
        (3 * 2 * (36 + 25) - 1, DIAGONAL, False),
        (3 * 2 * (36 + 25) - 1, DIAGONAL, True),
    ],
)
def test_parts_end_at_the_same_optimum_and_J_never_rises(most, grain, in_passes, optimum, monkeypatch):
    x, y, expected = optimum
    monkeypatch.setattr(joint_curvature, "MOST_NUMBERS", most)
    assert grain_of(of_size(6, 5, L=2, K=3)) == grain
    if in_passes:
        J = fitted(tf.data.Dataset.from_tensor_slices((x, y)).batch(100), epochs=30)
    else:
        J = fitted(x, y, epochs=20)
    assert np.all(np.diff(J) <= 1e-6 * J[:-1])
    assert J[-1] == pytest.approx(expected, rel=1e-4)
