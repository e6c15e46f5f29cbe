"""The preconditioner against dense inverses in float64, and in float32 for pixels of any unit and offset."""

import numpy as np
import pytest
from keras import ops

from keras_bilinear.solver.preconditioner import (
    DAMPING,
    FLOOR,
    curvature,
    curvature_of_parts,
    curvature_weights,
    damping,
    diagonal,
    moments,
    ranges,
    same_total,
    sample,
)

K, S, D = 2, 60, 5


def problem(shared=False, dtype="float64", seed=0):
    """Features, weights c and a penalty that couples them."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(S, D) if shared else (K, S, D)) + rng.normal(size=D)
    M = rng.normal(size=(K, D, D))
    Q = 0.01 * M @ M.transpose(0, 2, 1)
    return F.astype(dtype), rng.uniform(0.1, 1, (K, S)).astype(dtype) / S, Q.astype(dtype)


def gauss_newton(F, c, extra, bias):
    """sum_t c f f^T + extra, with a feature of ones for the bias."""
    H = []
    for k in range(K):
        f = F if F.ndim == 2 else F[k]
        f = np.c_[f, np.ones(len(f))] if bias else f
        added = np.zeros((f.shape[1], f.shape[1]))
        added[:D, :D] = extra[k]
        H.append((c[k][:, None] * f).T @ f + added)
    return np.array(H)


def all_damping(F, c, Q):
    """What the diagonal of S is raised by."""
    mass, mean = moments(F, c)
    centred = F - np.asarray(mean)[:, None, :]
    variance = np.einsum("ks,ksd->kd", c, centred**2)
    d = np.asarray(damping(variance, ranges(F), mean, mass))
    return d + FLOOR * (variance + d + np.diagonal(Q, axis1=1, axis2=2))


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_inverse_of_the_damped_gauss_newton_matrix(bias):
    F, c, Q = problem()
    H = gauss_newton(F, c, Q + np.eye(D) * all_damping(F, c, Q)[:, None, :], bias)
    g = np.random.default_rng(1).normal(size=(D + bias, K))
    expected = np.stack([np.linalg.solve(H[k], g[:, k]) for k in range(K)], axis=1)
    np.testing.assert_allclose(curvature(F, c, Q).inverted().apply(g, bias), expected, rtol=1e-9)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_diagonal_leaves_out_how_features_vary_together(bias, shared):
    F, c, Q = problem(shared)
    each = np.broadcast_to(F, (K, S, D))
    H = gauss_newton(each, c, Q, bias)
    mass, mean = (np.asarray(part) for part in moments(each, c))
    rank_one = mass[:, :, None] * mean[:, :, None] * mean[:, None, :]
    together = H[:, :D, :D] - rank_one
    H[:, :D, :D] -= together * (1 - np.eye(D))
    H[:, :D, :D] += np.eye(D) * all_damping(each, c, Q)[:, None, :]
    g = np.random.default_rng(1).normal(size=(D + bias, K))
    expected = np.stack([np.linalg.solve(H[k], g[:, k]) for k in range(K)], axis=1)
    given = diagonal(F, c, np.diagonal(Q, axis1=1, axis2=2)).apply(g, bias)
    np.testing.assert_allclose(given, expected, rtol=1e-7)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sides", [[(K, 1, 3), (K, 1, 2)], [(K, 2, 1), (K, 1, 3)], None], ids=str)
def test_parts_leave_out_how_factors_vary_together(bias, sides):
    F, c, Q = problem()
    H = gauss_newton(F, c, Q, bias)
    mass, mean = (np.asarray(part) for part in moments(F, c))
    rank_one = mass[:, :, None] * mean[:, :, None] * mean[:, None, :]
    together = H[:, :D, :D] - rank_one
    # The number of its factor for each feature; of the diagonal alone, each is its own.
    of = np.repeat(np.arange(3), [3, 2, 0]) if sides and sides[0][1] == 1 else np.array([0, 1, 2, 2, 2])
    same = np.eye(D) if sides is None else of[:, None] == of
    # What ties features to each other within a factor is no part of a penalty, whose Q has one value a factor.
    ties = np.diagonal(Q, axis1=1, axis2=2)
    together = (together - Q) * same + ties[:, None, :] * np.eye(D)
    H[:, :D, :D] = together + rank_one + np.eye(D) * all_damping(F, c, Q)[:, None, :]
    g = np.random.default_rng(1).normal(size=(D + bias, K))
    expected = np.stack([np.linalg.solve(H[k], g[:, k]) for k in range(K)], axis=1)
    found = curvature_of_parts(F, c, ties, sides).inverted()
    np.testing.assert_allclose(found.apply(g, bias), expected, rtol=1e-9)


def test_the_damping_is_a_fraction_of_the_diagonal_on_average():
    F, c, _ = problem()
    mass, mean = moments(F, c)
    variance = np.einsum("ks,ksd->kd", c, (F - np.asarray(mean)[:, None, :]) ** 2)
    # Columns of the same range have the same damping, whatever they hold besides.
    d = np.asarray(damping(variance, ranges(F), mean, 0 * mass))
    share = d / np.asarray(ranges(F)) ** 2
    np.testing.assert_allclose(share, share[:, :1] * np.ones(D))
    assert np.mean(d / variance) == pytest.approx(DAMPING, rel=0.3)


def directions(F, c, Q, r, kind, bias):
    """P times the gradient that residuals r (K, S) give, as what it does to the logits, (K, S)."""
    tensors = [ops.convert_to_tensor(part) for part in (F, c, Q)]
    P = curvature(*tensors).inverted() if kind == "dense" else diagonal(*tensors[:2], ops.diagonal(Q, 0, 1, 2))
    g = np.einsum("ksd,ks->dk", F, r)
    g = np.r_[g, r.sum(axis=1)[None]] if bias else g
    d = np.asarray(P.apply(ops.convert_to_tensor(g.astype(F.dtype)), bias))
    z = np.einsum("ksd,dk->ks", F, d[:D])
    return z + d[-1][:, None] if bias else z


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
@pytest.mark.parametrize("exponents", [(8, 0, -8, 0, 0), (5, 5, 5, 5, 5), (-9, -9, -9, -9, -9)])
def test_the_unit_of_a_feature_plays_no_part_in_float32(kind, exponents):
    F, c, _ = problem()
    r = np.random.default_rng(1).normal(size=(K, S))
    unit, none = 10.0 ** np.array(exponents), np.zeros((K, D, D))
    expected = directions(F, c, none, r, kind, True)
    given = directions(*(part.astype("float32") for part in (F * unit, c, none)), r, kind, True)
    np.testing.assert_allclose(given, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_an_offset_of_all_features_plays_no_part_beside_a_bias_in_float32(kind):
    F, c, Q = problem()
    r = np.random.default_rng(1).normal(size=(K, S))
    expected = directions(F, c, Q, r, kind, True)
    given = directions(*(part.astype("float32") for part in (F + 1000.0, c, Q)), r, kind, True)
    np.testing.assert_allclose(given, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_features_that_are_always_zero_or_never_change(kind, bias):
    F, c, Q = (part.astype("float32") for part in problem())
    F[:, :, 0], F[:, :, 1] = 0.0, 7.0
    Q *= 0
    r = np.random.default_rng(1).normal(size=(K, S)).astype("float32")
    z = directions(F, c, Q, r, kind, bias)
    assert np.isfinite(z).all()
    assert np.abs(z).max() < 1e4 * np.abs(r).max()
    # And it points downhill.
    assert np.all(np.sum(r * z, axis=1) > 0)


def test_weights_of_a_sample_stand_for_those_of_all():
    p = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    w = same_total(np.array([1.0, 2.0, 1.0]), np.full(4, 2.0))
    c = np.asarray(curvature_weights(p, w))
    np.testing.assert_allclose(c[0], [0.5, 0.0, 0.32], atol=1e-6)
    np.testing.assert_allclose(c[0], c[1])
    assert np.all(c > 0)


def test_a_sample_is_evenly_spaced():
    x, y = np.arange(5000.0), np.arange(10_000.0).reshape(5000, 2)
    a, b = (np.asarray(part) for part in sample(x, y))
    np.testing.assert_array_equal(a, x[::4])
    np.testing.assert_array_equal(b, y[::4])
