import functools

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.solver.descent import DAMPINGS, Budget, adapted, differentiate
from keras_bilinear.solver.directions import DIRECTIONS
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint import (
    pose,
    shifted,
    sketch_of,
    solve_joint,
)
from keras_bilinear.solver.joint_curvature import curvature_of
from keras_bilinear.solver.preconditioner import SKETCH, curvature, stride
from tests import reference
from tests.problems import one_hot, planted

PENALTIES = list(penalties.PENALTIES.values())
ALPHA = 0.05


class Case:
    """J of random factors in float64, with its exact gradient and a preconditioner."""

    def __init__(self, penalty, K=3, L=2, bias=False, T=60):
        problem = planted(T=T, K=K, L=L)
        rng = np.random.default_rng(1)
        A, B = (rng.normal(size=factor.shape) for factor in (problem.A, problem.B))
        self.X, self.penalty, self.s, self.C = problem.X, penalty, rng.random(T) + 0.5, one_hot(problem.y, K)
        tensor = ops.convert_to_tensor
        self.factors = Factors(tensor(A), tensor(B), tensor(rng.normal(size=K)) if bias else None)
        self.samples = Samples(tensor(self.C), bm.normalised_weights(tensor(self.s)))
        self.curvature = curvature_of(Images(tensor(self.X)), self.samples, self.factors, ALPHA, penalty)
        self.problem = pose(Images(tensor(self.X)), self.factors, ALPHA, penalty, self.curvature.inverted())
        self.U = self.problem.layout.join(*shifted(self.factors, self.problem.mean, 1))

    def objective(self, U):
        A, B, bias = shifted(self.problem.split(ops.convert_to_tensor(U)), self.problem.mean, -1)
        name = self.penalty.__name__.lower()
        bias = None if bias is None else np.asarray(bias)
        return reference.objective(self.X, self.C, self.s, np.asarray(A), np.asarray(B), ALPHA, name, bias)

    def residual(self, U):
        p = bm.probabilities(self.problem.logits(U))
        return self.samples.weights[:, None] * (p - self.samples.targets)

    def gradient(self, U):
        U = ops.convert_to_tensor(U)
        return np.asarray(self.problem.gradient(U, self.residual(U)))


cases = pytest.mark.parametrize(
    ("penalty", "K", "bias"),
    [
        (penalties.Sum, 3, True),
        (penalties.Product, 3, False),
        (penalties.Product, 1, True),
        (penalties.Frobenius, 2, True),
    ],
)


@cases
def test_gradient_agrees_with_finite_differences_of_the_loops(penalty, K, bias):
    case = Case(penalty, K=K, bias=bias, T=12)
    expected = reference.finite_difference(case.objective, np.array(case.U))
    np.testing.assert_allclose(case.gradient(case.U), expected, atol=1e-7)


@cases
def test_hessian_agrees_with_finite_differences_of_the_gradient(penalty, K, bias):
    case, h = Case(penalty, K=K, bias=bias), 1e-5
    U = np.asarray(case.U)
    v = np.random.default_rng(2).normal(size=U.shape)
    p, w = bm.probabilities(case.problem.logits(case.U)), case.samples.weights[:, None]
    product = case.problem.hessian(case.U, case.residual(case.U), lambda dz: w * bm.covariance_product(p, dz))
    expected = (case.gradient(U + h * v) - case.gradient(U - h * v)) / (2 * h)
    np.testing.assert_allclose(np.asarray(product(ops.convert_to_tensor(v))), expected, rtol=1e-5, atol=1e-7)


@cases
def test_the_path_is_exact_for_steps_of_any_size(penalty, K, bias):
    case = Case(penalty, K=K, bias=bias)
    d = ops.convert_to_tensor(np.random.default_rng(3).normal(size=case.U.shape))
    path, z = case.problem.path(case.U, d), case.problem.logits(case.U)
    for eta in (0.0, 1e-3, 2.5):
        there = case.U + eta * d
        np.testing.assert_allclose(z + eta * path.dz + eta**2 * path.ddz, case.problem.logits(there), atol=1e-9)
        value, slope, bend = (float(part) for part in path.penalty(ops.convert_to_tensor(eta, "float64")))
        h, R = 1e-4, lambda e: float(case.problem.penalty(case.U + e * d))
        assert value == pytest.approx(R(eta))
        assert slope == pytest.approx((R(eta + h) - R(eta - h)) / (2 * h), rel=1e-5, abs=1e-8)
        assert bend == pytest.approx((R(eta + h) - 2 * R(eta) + R(eta - h)) / h**2, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_curvature_is_that_of_what_the_factors_multiply(penalty, K, bias):
    """With every image used it is d^2 J / dU_k^2 less what comes from the bend of W and of the penalty."""
    case = Case(penalty, K=K, bias=bias, T=4)
    p = np.asarray(bm.probabilities(case.problem.logits(case.U)))
    A, B, _ = (None if part is None else np.asarray(part) for part in case.factors)
    X = case.X - case.X.mean(axis=0) if bias else case.X
    F = np.array(
        [[np.r_[(x @ B[:, :, k].T).T.ravel(), (x.T @ A[:, :, k].T).T.ravel()] for x in X] for k in range(K)]
    )
    c = (np.asarray(case.samples.weights)[:, None] * (p * (1 - p) + 1e-8)).T
    # Q U is the gradient of the penalty on either side.
    D = F.shape[2]
    Q = np.zeros((K, D, D))
    for k in range(K):
        for d in range(D):
            e = np.zeros((D + bias, K))
            e[d, k] = 1.0
            eA, eB, _ = case.problem.split(ops.convert_to_tensor(e))
            gA, gB = penalty.gradient(eA, case.factors.B)[0], penalty.gradient(case.factors.A, eB)[1]
            Q[k, :, d] = np.r_[np.asarray(gA)[:, :, k].ravel(), np.asarray(gB)[:, :, k].ravel()]
    for given, expected in zip(case.curvature, curvature(F, c, ALPHA * Q), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-9)


def test_curvature_takes_evenly_spaced_images():
    assert [int(stride(T)) for T in (1, 1_000, 2_048, 5_120, 60_000)] == [1, 1, 2, 4, 29]


@functools.cache
def graph_of(penalty, inner):
    """`solve_joint` as a graph that all cases share: an eager while loop costs seconds."""
    budget = Budget(max_iterations=60, tolerance=0.0)
    return tf.function(functools.partial(solve_joint, budget=budget, penalty=penalty, direction=DIRECTIONS[inner]))


# Each direction and each penalty at least once: neither knows the other.
PAIRS = [
    (list(DIRECTIONS)[i % len(DIRECTIONS)], PENALTIES[i % len(PENALTIES)])
    for i in range(max(len(DIRECTIONS), len(PENALTIES)))
]


@pytest.mark.parametrize(("inner", "penalty"), PAIRS)
def test_descends_to_a_stationary_point(penalty, inner):
    case = Case(penalty, bias=True)
    X, alpha = Images(ops.convert_to_tensor(case.X)), ops.convert_to_tensor(ALPHA, "float64")
    factors, last = case.factors, np.inf
    for _ in range(6):
        inverse = curvature_of(X, case.samples, factors, alpha, penalty).inverted()
        factors, solution = graph_of(penalty, inner)(X, case.samples, factors, inverse, alpha=alpha)
        assert float(solution.objective) <= float(solution.initial_objective) <= last + 1e-12
        last = float(solution.objective)
    U = case.problem.layout.join(*shifted(factors, case.problem.mean, 1))
    assert last == pytest.approx(case.objective(np.asarray(U)), rel=1e-10)
    assert np.linalg.norm(case.gradient(U)) < 1e-4
    assert float(solution.grad_norm) == pytest.approx(np.linalg.norm(case.gradient(U)), abs=1e-10)


def test_an_unused_rank_stays_unused():
    """a_l = b_l = 0 is stationary: one compiled size serves every smaller rank."""
    case = Case(penalties.Product, L=2)
    silent = np.array([1.0, 0.0])[:, None, None]
    factors = Factors(case.factors.A * silent, case.factors.B * silent, None)
    X, alpha = Images(ops.convert_to_tensor(case.X)), ops.convert_to_tensor(ALPHA, "float64")
    inverse = curvature_of(X, case.samples, factors, alpha, penalties.Product).inverted()
    (A, B, _), _ = graph_of(penalties.Product, "cg")(X, case.samples, factors, inverse, alpha=alpha)
    assert not np.any(A[1])
    assert not np.any(B[1])
    one = Factors(factors.A[:1], factors.B[:1], None)
    inverse = curvature_of(X, case.samples, one, alpha, penalties.Product).inverted()
    (A1, B1, _), _ = graph_of(penalties.Product, "cg")(X, case.samples, one, inverse, alpha=alpha)
    W, W1 = bm.merged_weights(A, B), bm.merged_weights(A1, B1)
    np.testing.assert_allclose(W, W1, atol=1e-2 * np.abs(W1).max())


def test_differentiate_gives_the_gradient_of_the_problem():
    case = Case(penalties.Sum)
    point = differentiate(case.problem, case.samples, case.U, case.problem.logits(case.U), ops.zeros((), "float64"))
    np.testing.assert_allclose(np.asarray(point.g), case.gradient(case.U))


def gauss_newton_matrix(case):
    """sum_t w_t J_t^T (diag p - p p^T) J_t + alpha Q of either side, dense, by Jacobians of the logits."""
    U = np.asarray(case.U)
    step = 1e-6
    units = np.eye(U.size).reshape(-1, *U.shape)
    z = [
        (np.asarray(case.problem.logits(U + step * e)) - np.asarray(case.problem.logits(U - step * e))) / (2 * step)
        for e in units
    ]
    J = np.stack(z, axis=-1)  # (T, K, D K)
    p, w = np.asarray(bm.probabilities(case.problem.logits(case.U))), np.asarray(case.samples.weights)
    middle = np.einsum("tk,kj->tkj", p, np.eye(p.shape[1])) - np.einsum("tk,tj->tkj", p, p)
    H = np.einsum("t,tka,tkj,tjb->ab", w, J, middle, J)
    A, B, _ = case.problem.split(case.U)

    def bent(v):
        vA, vB, _ = case.problem.split(ops.convert_to_tensor(v))
        QA, QB = penalties.couple(case.penalty.coupling(B), vA), penalties.couple(case.penalty.coupling(A), vB)
        none = None if case.factors.bias is None else ops.zeros_like(case.factors.bias)
        return ALPHA * np.asarray(case.problem.layout.join(QA, QB, none)).ravel()

    return H + np.stack([bent(e) for e in units], axis=1)


@cases
def test_a_sketch_of_all_images_gives_the_newton_step(penalty, K, bias):
    case = Case(penalty, K=K, bias=bias, T=24)
    sketch = sketch_of(case.problem, case.samples)
    g = np.random.default_rng(3).normal(size=case.U.shape)
    ridge = 0.7 * np.asarray(sketch.damping)
    expected = np.linalg.solve(gauss_newton_matrix(case) + np.diag(ridge.ravel()), g.ravel())
    damping = ops.convert_to_tensor(0.7, dtype="float64")
    given = sketch.newton_step(case.U, ops.convert_to_tensor(g), damping, most=500, target=1e-20)
    np.testing.assert_allclose(np.asarray(given).ravel(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_sketch_is_a_part_of_many_images_with_the_weight_of_all():
    case = Case(penalties.Product, T=4096)
    sketch = sketch_of(case.problem, case.samples)
    assert len(sketch.problem.X.pixels) == 4096 // int(stride(4096, SKETCH)) < 4096
    assert float(ops.sum(sketch.samples.weights)) == pytest.approx(float(ops.sum(case.samples.weights)))
    g = ops.convert_to_tensor(case.gradient(case.U))
    for damping in (1e-3, 1.0):
        step = sketch.newton_step(case.U, g, ops.convert_to_tensor(damping, dtype="float64"))
        assert float(ops.sum(g * step)) > 0, "downhill"


def test_damping_grows_where_line_searches_stop_short_and_never_leaves_its_range():
    one = ops.ones((), "float64")
    assert [float(adapted(one, eta * one)) for eta in (0.1, 0.5, 0.9)] == pytest.approx([3.0, 1.0, 1 / 3])
    assert float(adapted(DAMPINGS[1] * one, 0 * one)) == DAMPINGS[1]
    assert float(adapted(DAMPINGS[0] * one, one)) == pytest.approx(DAMPINGS[0])
