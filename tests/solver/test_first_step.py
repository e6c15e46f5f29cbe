"""On very many images a new model begins on a part of them; J is that of all, and never rises."""

import numpy as np
import pytest
from keras import ops

import keras_bilinear as kb
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.maths.penalties import Sum
from keras_bilinear.solver import first_step as first
from keras_bilinear.solver.images import Images
from tests.problems import one_hot, planted

T = 4096
"""Of which a part is a fourth."""


@pytest.fixture(autouse=True)
def fewer_are_many(monkeypatch):
    monkeypatch.setattr(first, "MANY", T)


def problem():
    made = planted(T=T, M=3, N=4, K=3)
    return made.X.astype("float32"), made.y


def model(**options):
    made = kb.BilinearSoftmaxRegression(3, 2, 1e-3, seed=0, **options)
    made.compile(jit_compile=False)
    return made


def test_J_of_all_images_falls_and_the_first_sweep_hardly_reads_them(monkeypatch):
    x, y = problem()
    sizes = []
    logits = Images.logits
    monkeypatch.setattr(
        Images, "logits", lambda self, *factors: sizes.append(len(self.pixels)) or logits(self, *factors)
    )
    ours = model(use_bias=True)
    s = np.random.default_rng(0).uniform(0.5, 2, T)
    history = [ours.fit(x, y, sample_weight=s, epochs=1, verbose=0).history]
    assert sizes.count(T) == 2, "J before and after, and nothing else"
    J = history[0]["objective"][0]
    assert ours.objective(x, y, s) == pytest.approx(J, rel=1e-5)
    assert history[0]["loss"][0] == pytest.approx(J, rel=1e-5)
    assert np.log(3) * s.mean() > J
    more = ours.fit(x, y, sample_weight=s, epochs=10, verbose=0).history["objective"]
    assert np.all(np.diff([J, *more]) <= 1e-6)
    monkeypatch.setattr(first, "MANY", 10 * T)
    theirs = model(use_bias=True)
    whole = theirs.fit(x, y, sample_weight=s, epochs=11, verbose=0).history["objective"]
    assert more[-1] == pytest.approx(whole[-1], rel=2e-3)
    assert pytest.approx(whole[-1], rel=0.05) == J, "a part of the images tells the way"


def test_a_part_that_misleads_is_not_followed():
    """Where J of all images would be higher, nothing is taken from the part."""
    x, y = problem()
    taken = np.zeros(T, bool)
    taken[::4] = True
    y = np.where(taken, y, (y + 1) % 3)  # the others say the opposite
    ours = model()
    history = ours.fit(x, y, epochs=6, verbose=0).history["objective"]
    assert history[0] < np.log(3)
    assert np.all(np.diff(history) <= 1e-6)
    images = Images(ops.convert_to_tensor(x))
    samples = Samples(ops.convert_to_tensor(one_hot(y, 3), "float32"), bm.normalised_weights(ops.ones(T)))
    A, B = (ops.convert_to_tensor(part) for part in model(input_shape=(3, 4)).factors())

    def away(part, samples, factors):
        return Factors(factors.A + 10.0, factors.B, None), type("Solution", (), {"iterations": 1})

    assert first.first_step(images, samples, Factors(A, B, None), ops.convert_to_tensor(1e-3), Sum, away) is None


@pytest.mark.parametrize(("images", "a", "expected"), [(T, 0.0, True), (T - 1, 0.0, False), (T, 1e-3, False)])
def test_only_new_models_and_very_many_images_begin_so(images, a, expected):
    factors = Factors(a * ops.ones((2, 3, 3)), ops.ones((2, 4, 3)), None)
    assert first.may_begin_on_a_part(Images(ops.ones((images, 3, 4))), factors) is expected
