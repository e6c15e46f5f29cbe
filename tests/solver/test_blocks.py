import functools

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from scipy.optimize import minimize

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.solver.blocks import block_names, solve_active, solve_linear
from keras_bilinear.solver.descent import Budget
from keras_bilinear.solver.directions import DIRECTIONS
from keras_bilinear.solver.images import Images
from tests import reference
from tests.problems import one_hot, planted

PENALTIES = list(penalties.PENALTIES.values())


@functools.cache
def graph_of(pose, inner, **settings):
    """`pose` as a graph that all cases share, whatever their budget: an eager while loop costs seconds."""
    return tf.function(functools.partial(pose, direction=DIRECTIONS[inner], **settings))


def budget(max_iterations=500, tolerance=0.0):
    return Budget(ops.convert_to_tensor(max_iterations), ops.convert_to_tensor(tolerance, "float64"))


class Case:
    """A problem in float64 with what `solve_active` needs."""

    def __init__(self, K=3, L=2, bias=False, alpha=0.05, T=80):
        problem = planted(T=T, K=K, L=L)
        rng = np.random.default_rng(1)
        self.X, self.alpha = problem.X, alpha
        self.A, self.B = (rng.normal(size=factor.shape) for factor in (problem.A, problem.B))
        self.s, self.C = rng.random(T) + 0.5, one_hot(problem.y, K)
        self.bias = rng.normal(size=K) if bias else None
        w = bm.normalised_weights(ops.convert_to_tensor(self.s))
        self.samples = Samples(ops.convert_to_tensor(self.C), w)
        self.factors = Factors(
            ops.convert_to_tensor(self.A),
            ops.convert_to_tensor(self.B),
            ops.convert_to_tensor(self.bias) if bias else None,
        )

    def solve(self, active, penalty, blocks="factor", factors=None, inner="cg", **limits):
        tensors = map(ops.convert_to_tensor, (self.X, np.int32(active), np.float64(self.alpha)))
        X, active, alpha = tensors
        step = graph_of(solve_active, inner, blocks=blocks, penalty=penalty)
        return step(Images(X), self.samples, factors or self.factors, active, budget(**limits), alpha)

    def objective(self, A, B, penalty, bias=None):
        name = penalty.__name__.lower()
        return reference.objective(self.X, self.C, self.s, A, B, self.alpha, name, bias)

    def gradient(self, factors, penalty):
        A, B = np.asarray(factors.A), np.asarray(factors.B)
        bias = None if factors.bias is None else np.asarray(factors.bias)
        dA, dB = reference.likelihood_gradient(self.X, self.C, self.s, A, B, bias)
        rA, rB = penalty.gradient(factors.A, factors.B)
        return dA + self.alpha * np.asarray(rA), dB + self.alpha * np.asarray(rB)


# Every direction with one penalty and every penalty with one direction: neither knows the other.
PAIRS = [(inner, penalties.Sum) for inner in DIRECTIONS] + [("cg", penalty) for penalty in PENALTIES[1:]]
# Sum does not couple the ranks of a side.
SIDES = PENALTIES[1:]


@pytest.mark.parametrize(
    ("inner", "penalty", "active"),
    [("cg", penalties.Sum, active) for active in range(4)]
    + [
        (*pair, active)
        for i, pair in enumerate(PAIRS)
        if pair != ("cg", penalties.Sum)
        for active in (i % 2, 3 - i % 2)
    ],
)
def test_a_solved_factor_is_optimal_and_the_others_have_not_moved(inner, penalty, active):
    case = Case()
    factors, solution = case.solve(active, penalty, inner=inner)
    gradients = case.gradient(factors, penalty)
    assert np.linalg.norm(gradients[active % 2][active // 2]) < 1e-5
    J = case.objective(np.asarray(factors.A), np.asarray(factors.B), penalty)
    assert float(solution.objective) == pytest.approx(J, rel=1e-10)
    assert case.objective(case.A, case.B, penalty) > J
    moved = [factors.A, factors.B][active % 2]
    before = [case.A, case.B][active % 2]
    for l in range(2):
        assert np.array_equal(moved[l], before[l]) == (l != active // 2)
    np.testing.assert_array_equal([factors.B, factors.A][active % 2], [case.B, case.A][active % 2])


@pytest.mark.parametrize("penalty", SIDES)
@pytest.mark.parametrize("active", [0, 1])
def test_a_solved_side_is_optimal(penalty, active):
    case = Case()
    factors, _ = case.solve(active, penalty, blocks="side", inner="newton_cg")
    assert np.linalg.norm(case.gradient(factors, penalty)[active]) < 1e-5


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("active", [0, 1])
def test_the_bias_moves_with_every_block_and_is_not_penalised(K, active):
    case = Case(K=K, bias=True)
    factors, solution = case.solve(active, penalties.Product)
    A, B, bias = (np.asarray(part) for part in factors)
    J = case.objective(A, B, penalties.Product, bias)
    assert float(solution.objective) == pytest.approx(J, rel=1e-10)
    by_bias = reference.finite_difference(lambda b: case.objective(A, B, penalties.Product, b), bias)
    assert np.linalg.norm(by_bias) < 1e-5


def test_all_inner_solvers_reach_the_same_block_optimum():
    case = Case()
    ends = [float(case.solve(0, penalties.Sum, inner=inner)[1].objective) for inner in DIRECTIONS]
    np.testing.assert_allclose(ends, ends[0], rtol=1e-9)


def test_gradient_descent_needs_the_most_iterations():
    case = Case()
    count = {
        name: int(case.solve(0, penalties.Sum, inner=name, tolerance=1e-8)[1].iterations) for name in DIRECTIONS
    }
    assert max(count, key=count.__getitem__) == "gradient_descent"


@pytest.mark.parametrize(
    ("blocks", "inner", "penalty"),
    [("factor", *pair) for pair in PAIRS] + [("side", "newton_cg", penalty) for penalty in SIDES],
)
def test_J_falls_from_block_to_block_over_sweeps(blocks, inner, penalty):
    case = Case()
    factors, last = case.factors, np.inf
    for step in range(2 * len(block_names(blocks, 2))):
        active = step % len(block_names(blocks, 2))
        factors, solution = case.solve(active, penalty, blocks, factors, inner=inner, max_iterations=5)
        assert float(solution.objective) <= last * (1 + 1e-12)
        last = float(solution.objective)


def test_the_budget_and_the_tolerance_end_a_block():
    case = Case()
    assert int(case.solve(0, penalties.Sum, max_iterations=3)[1].iterations) == 3
    assert int(case.solve(0, penalties.Sum, tolerance=1.0)[1].iterations) == 1


def test_at_the_optimum_nothing_moves():
    case = Case()
    once, _ = case.solve(0, penalties.Sum)
    twice, solution = case.solve(0, penalties.Sum, factors=once, tolerance=1e-6)
    np.testing.assert_allclose(twice.A, once.A, atol=1e-6)
    assert int(solution.iterations) <= 2


@pytest.mark.parametrize(("K", "bias"), [(1, True), (3, False)])
def test_the_linear_model_agrees_with_scipy(K, bias):
    case = Case(K=K, alpha=0.1)
    T, M, N = case.X.shape
    kernel = np.zeros((M * N, K))
    beta = np.zeros(K) if bias else None
    solution = graph_of(solve_linear, "cg")(
        Images(ops.convert_to_tensor(case.X)),
        case.samples,
        ops.convert_to_tensor(kernel),
        ops.convert_to_tensor(beta) if bias else None,
        budget(),
        ops.convert_to_tensor(np.float64(case.alpha)),
    )
    F = np.c_[case.X.reshape(T, -1), np.ones((T, int(bias)))]

    def J(flat):
        U, penalised = flat.reshape(-1, K), np.r_[np.ones(M * N), np.zeros(int(bias))][:, None]
        value = reference.cross_entropy(F @ U, case.C, case.s) + 0.5 * case.alpha * np.sum(penalised * U**2)
        residual = case.s[:, None] * (reference.probabilities(F @ U) - case.C) / T
        return value, np.ravel(F.T @ residual + case.alpha * penalised * U)

    best = minimize(J, np.zeros(F.shape[1] * K), jac=True, method="L-BFGS-B", options={"ftol": 1e-14})
    assert float(solution.objective) == pytest.approx(best.fun, rel=1e-6)
    assert float(solution.objective) == pytest.approx(J(np.ravel(solution.parameters))[0], rel=1e-10)


def test_a_sum_of_weights_of_zero_leaves_only_the_penalty():
    case = Case()
    samples = Samples(case.samples.targets, ops.zeros_like(case.samples.weights))
    case.samples = samples
    factors, _ = case.solve(0, penalties.Sum)
    np.testing.assert_allclose(factors.A[0], 0, atol=1e-6)
