import numpy as np
import pytest
from keras import ops

from keras_bilinear.maths import bilinear as bm
from tests import reference
from tests.problems import one_hot, planted, random_factors


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("L", [1, 2, 4])
def test_logits_equal_the_loops(K, L):
    problem = planted(T=7, K=K, L=L)
    z = bm.logits(*map(ops.convert_to_tensor, (problem.X, problem.A, problem.B)))
    np.testing.assert_allclose(z, reference.logits(problem.X, problem.A, problem.B), atol=1e-10)


def test_logits_keep_leading_axes():
    problem = planted(T=6)
    A, B = ops.convert_to_tensor(problem.A), ops.convert_to_tensor(problem.B)
    flat = bm.logits(ops.convert_to_tensor(problem.X), A, B)
    stacked = bm.logits(ops.convert_to_tensor(problem.X.reshape(2, 3, 6, 5)), A, B)
    np.testing.assert_allclose(ops.reshape(stacked, flat.shape), flat)


@pytest.mark.parametrize("sizes", [(6, 5, 3, 4), (2, 9, 3, 1), (9, 2, 1, 3), (1, 1, 2, 2)])
@pytest.mark.parametrize("lead", [(7,), (2, 3), ()])
def test_maps_equal_their_formula_whichever_product_goes_first(sizes, lead):
    M, N, P, Q = sizes
    rng = np.random.default_rng(0)
    X, A, B, C = (rng.normal(size=shape) for shape in ((*lead, M, N), (M, P), (N, Q), (P, Q)))
    given = [ops.convert_to_tensor(part) for part in (X, A, B, C)]
    np.testing.assert_allclose(bm.mapped(*given), np.einsum("mp,...mn,nq->...pq", A, X, B) + C, atol=1e-12)
    np.testing.assert_allclose(bm.mapped(*given[:3]), np.einsum("mp,...mn,nq->...pq", A, X, B), atol=1e-12)


def test_features_are_what_the_factors_multiply():
    problem = planted(T=7)
    X, A, B = map(ops.convert_to_tensor, (problem.X, problem.A, problem.B))
    (L, M, K), N = A.shape, B.shape[1]
    left = np.reshape(bm.left_features(X, B), (K, 7, L, M))
    right = np.reshape(bm.right_features(X, A), (K, 7, L, N))
    for t in range(7):
        for k in range(K):
            for l in range(L):
                np.testing.assert_allclose(left[k, t, l], problem.X[t] @ problem.B[l, :, k], atol=1e-10)
                np.testing.assert_allclose(right[k, t, l], problem.X[t].T @ problem.A[l, :, k], atol=1e-10)


@pytest.mark.parametrize("K", [1, 3])
def test_likelihood_and_its_derivatives(K):
    problem = planted(T=9, K=K)
    rng = np.random.default_rng(0)
    z, dz = rng.normal(size=(2, 9, K))
    C, s = one_hot(problem.y, K), rng.random(9)
    w = np.asarray(bm.normalised_weights(ops.convert_to_tensor(s)))
    np.testing.assert_allclose(w, s / 9)
    V = bm.cross_entropy(*map(ops.convert_to_tensor, (z, C, w)))
    np.testing.assert_allclose(V, reference.cross_entropy(z, C, s), rtol=1e-12)
    p = np.asarray(bm.probabilities(ops.convert_to_tensor(z)))
    np.testing.assert_allclose(p, reference.probabilities(z), rtol=1e-12)
    gradient = reference.finite_difference(lambda z: reference.cross_entropy(z, C, s), z)
    np.testing.assert_allclose(w[:, None] * (p - C), gradient, atol=1e-8)
    change = (reference.probabilities(z + 1e-6 * dz) - reference.probabilities(z - 1e-6 * dz)) / 2e-6
    product = bm.covariance_product(ops.convert_to_tensor(p), ops.convert_to_tensor(dz))
    np.testing.assert_allclose(product, change, atol=1e-8)


def test_probabilities_do_not_overflow():
    z = ops.convert_to_tensor(np.array([[1e4, 0.0, -1e4]], "float32"))
    np.testing.assert_allclose(bm.probabilities(z), [[1, 0, 0]])
    assert np.isfinite(bm.cross_entropy(z, ops.one_hot([2], 3), ops.ones(1)))


def test_canonical_factors_are_a_signed_ordered_balanced_svd_of_the_same_W():
    A, B = random_factors(L=3, M=6, N=5)
    W = bm.merged_weights(ops.convert_to_tensor(A), ops.convert_to_tensor(B))
    A2, B2 = map(np.asarray, bm.canonical_factors(ops.convert_to_tensor(A), ops.convert_to_tensor(B)))
    np.testing.assert_allclose(
        bm.merged_weights(ops.convert_to_tensor(A2), ops.convert_to_tensor(B2)), W, atol=1e-10
    )
    for k in range(3):
        norms = np.linalg.norm(A2[:, :, k], axis=1)
        np.testing.assert_allclose(norms, np.linalg.norm(B2[:, :, k], axis=1), atol=1e-10)
        assert np.all(np.diff(norms) <= 1e-12)
        for factor in (A2, B2):
            gram = factor[:, :, k] @ factor[:, :, k].T
            np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-10)
        assert np.all([column[np.argmax(np.abs(column))] > 0 for column in A2[:, :, k]])


@pytest.mark.parametrize("seed", range(3))
def test_canonical_form_does_not_depend_on_the_gauge(seed):
    A, B = random_factors(L=3, M=6, N=5)
    R = np.random.default_rng(seed).normal(size=(3, 3)) + 3 * np.eye(3)
    A2, B2 = np.einsum("lmk,lj->jmk", A, R), np.einsum("lnk,jl->jnk", B, np.linalg.inv(R))
    first = bm.canonical_factors(ops.convert_to_tensor(A), ops.convert_to_tensor(B))
    second = bm.canonical_factors(ops.convert_to_tensor(A2), ops.convert_to_tensor(B2))
    np.testing.assert_allclose(first[0], second[0], atol=1e-8)
    np.testing.assert_allclose(first[1], second[1], atol=1e-8)


def test_truncated_factors_are_exact_at_full_rank_and_best_below():
    W = np.random.default_rng(0).normal(size=(2, 5, 4))
    for rank in (1, 2, 3, 4, 6):
        A, B = bm.truncated_factors(ops.convert_to_tensor(W), rank)
        assert A.shape == (rank, 5, 2)
        assert B.shape == (rank, 4, 2)
        for k, error in enumerate(np.asarray(bm.merged_weights(A, B)) - W):
            rest = np.linalg.svd(W[k], compute_uv=False)[rank:]
            np.testing.assert_allclose(np.linalg.norm(error), np.linalg.norm(rest), atol=1e-10)


def test_factors_of_a_zero_matrix_are_zero():
    A, B = bm.canonical_factors(ops.zeros((2, 4, 3)), ops.ones((2, 5, 3)))
    assert not np.any(A)
    assert not np.any(B)


def test_logits_and_targets_of_other_classes_have_no_margins():
    with pytest.raises(ValueError, match="of the same classes"):
        bm.margins(ops.ones((4, 3)), ops.ones((4, 1)))
