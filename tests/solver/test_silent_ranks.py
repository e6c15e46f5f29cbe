import numpy as np
import pytest
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.silent_ranks import silent_ranks, wake_silent_ranks
from tests import reference
from tests.problems import one_hot, planted

ALPHA = 1e-3


class Case:
    def __init__(self, K=3, L=2, T=200):
        problem = planted(T=T, K=K, L=L)
        self.X, self.C = ops.convert_to_tensor(problem.X), one_hot(problem.y, K)
        self.samples = Samples(ops.convert_to_tensor(self.C), bm.normalised_weights(ops.ones(T, "float64")))
        self.A, self.B = ops.convert_to_tensor(problem.A), ops.convert_to_tensor(problem.B)

    def wake(self, A, B, bias=None, penalty=penalties.Product):
        woken, gain = wake_silent_ranks(Images(self.X), self.samples, Factors(A, B, bias), ALPHA, penalty)
        name = penalty.__name__.lower()
        fall = self.objective(A, B, name, bias) - self.objective(woken.A, woken.B, name, woken.bias)
        assert float(gain) == pytest.approx(fall, abs=1e-12)
        return woken

    def objective(self, A, B, name="product", bias=None):
        A, B = np.asarray(A), np.asarray(B)
        bias = None if bias is None else np.asarray(bias)
        return reference.objective(np.asarray(self.X), self.C, np.ones(len(self.C)), A, B, ALPHA, name, bias)


def test_a_rank_is_silent_when_it_moves_no_logit_unless_it_is_switched_off():
    X = Images(ops.ones((5, 2, 2), "float64"))
    A, B = np.ones((4, 2, 2)), np.ones((4, 2, 2))
    A[1:3] = 0
    B[2] = 0
    A[3], B[3] = 1e-10, [[1e-10, 1.0], [1e-10, 1.0]]
    A[3, :, 1] = 1e-2
    expected = [[False, False], [True, True], [False, False], [True, False]]
    silent = silent_ranks(X, Factors(ops.convert_to_tensor(A), ops.convert_to_tensor(B), None))
    assert np.array_equal(silent, expected)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("name", penalties.PENALTIES)
def test_fresh_factors_take_the_leading_singular_pairs_of_the_negative_gradient(K, name):
    case = Case(K)
    A, B, _ = case.wake(ops.zeros_like(case.A), case.B, penalty=penalties.PENALTIES[name])
    zeros = np.zeros(case.A.shape)
    p = reference.probabilities(np.zeros(case.C.shape))
    for k in range(K):
        G = np.mean((p - case.C)[:, k, None, None] * np.asarray(case.X), axis=0)
        U, s, Vt = np.linalg.svd(-G)
        # Under the sum penalty a pair costs alpha, whatever it gives.
        gain = s[:2] - (ALPHA if name == "sum" else 0.0)
        expected = (U[:, :2] * gain) @ Vt[:2]
        W = np.asarray(bm.merged_weights(A, B))[k]
        eta = np.sum(W * expected) / np.sum(expected**2)
        assert eta > 0
        np.testing.assert_allclose(W, eta * expected, atol=1e-10)
    assert case.objective(A, B, name) < case.objective(zeros, case.B, name)


def test_pairs_that_cost_more_than_they_give_stay_silent():
    case = Case()
    everything = wake_silent_ranks(
        Images(case.X), case.samples, Factors(ops.zeros_like(case.A), case.B, None), 1e3, penalties.Sum
    ).factors
    assert not np.any(everything.A)
    np.testing.assert_array_equal(everything.B, case.B)


@pytest.mark.parametrize("name", penalties.PENALTIES)
def test_it_goes_as_far_as_J_falls(name):
    """Neither a much shorter nor a much longer step along the same pairs gives a smaller J."""
    case = Case()
    A, B, _ = case.wake(ops.zeros_like(case.A), case.B, penalty=penalties.PENALTIES[name])
    J = case.objective(A, B, name)
    for factor in (0.7, 1.5):
        assert case.objective(factor * A, factor * B, name) > J


def test_sounding_ranks_keep_what_they_have():
    case = Case()
    A = case.A * np.array([1.0, 0.0])[:, None, None]
    woken = case.wake(A, case.B)
    np.testing.assert_array_equal(woken.A[0], A[0])
    np.testing.assert_array_equal(woken.B[0], case.B[0])
    assert np.all(np.any(np.asarray(woken.A[1]) != 0, axis=0))
    assert case.objective(woken.A, woken.B) < case.objective(A, case.B)


def test_a_class_may_have_ranks_switched_off():
    case = Case()
    A, B = np.zeros(case.A.shape), np.array(case.B)
    B[1, :, 0] = 0
    woken = case.wake(ops.convert_to_tensor(A), ops.convert_to_tensor(B))
    assert not np.any(woken.A[1, :, 0])
    assert not np.any(woken.B[1, :, 0])
    assert np.any(woken.A[1, :, 1])


def test_ranks_beyond_the_size_of_the_image_stay_as_they_are():
    case = Case()
    B = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(8, 5, 3)))
    woken = case.wake(ops.zeros((8, 6, 3), "float64"), B)
    assert not np.any(woken.A[5:])
    np.testing.assert_array_equal(woken.B[5:], B[5:])


def test_nothing_moves_where_it_would_raise_J():
    """Labels that say nothing: the gradient is noise, and the penalty of waking a rank outweighs it."""
    case = Case()
    C = np.full(case.C.shape, 1 / 3)
    case.samples = case.samples._replace(targets=ops.convert_to_tensor(C))
    woken = case.wake(ops.zeros_like(case.A), case.B)
    np.testing.assert_array_equal(woken.A, 0 * case.A)
    np.testing.assert_array_equal(woken.B, case.B)


def test_the_bias_is_counted_in():
    case = Case()
    bias = ops.convert_to_tensor([0.3, -0.2, 0.1], "float64")
    woken = case.wake(ops.zeros_like(case.A), case.B, bias)
    J = case.objective(woken.A, woken.B, bias=woken.bias)
    assert case.objective(np.zeros(case.A.shape), case.B, bias=bias) > J
    # It takes back what the mean image adds, so that images far from zero start as well.
    mean = np.einsum("lmk,mn,lnk->k", woken.A, np.mean(case.X, axis=0), woken.B)
    np.testing.assert_allclose(woken.bias, bias - mean, atol=1e-12)
    case.X = case.X + 1000.0
    far = case.wake(ops.zeros_like(case.A), case.B, bias)
    assert case.objective(far.A, far.B, bias=far.bias) == pytest.approx(J, rel=1e-6)
