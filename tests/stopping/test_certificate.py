"""The certificate against the convex problem solved on its own, and where it must not certify."""

import functools
import math
import os

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.maths.bilinear import Samples, truncated_factors
from keras_bilinear.maths.duality import best_bias_change
from keras_bilinear.stopping.certificate import certificate
from tests import reference
from tests.problems import one_hot, planted

pytestmark = pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")


def fitted(x, y, L, penalty, alpha=3e-3, units=10, sample_weight=None, **settings):
    """A fit to the last digit that float32 gives."""
    settings = {"alpha": alpha, "penalty": penalty, "seed": 0, **settings}
    model = (
        kb.BilinearLogisticRegression(L, **settings)
        if units == 1
        else kb.BilinearSoftmaxRegression(units, L, **settings)
    )
    model.compile(kb.BlockLineSearch(tolerance=0.0), run_eagerly=True)  # the solver alone is traced, once a shape
    stop = kb.callbacks.BlockConvergence(rtol=1e-7)
    model.fit(x, y, epochs=60, verbose=0, sample_weight=sample_weight, callbacks=[stop])
    return model


@pytest.fixture(scope="module")
def digits600(digits):
    x, y = digits
    return x[:600], y[:600]


@pytest.fixture(scope="module")
def proof_of(digits600):
    """The certificate of a fit of rank L to `digits600`, made once."""
    return functools.cache(lambda penalty, L: fitted(*digits600, L, penalty).certificate(*digits600))


# Optimal fits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "L", "J"),
    [("sum", 3, 0.321800), ("sum", 5, 0.321800), ("product", 3, 0.337014), ("product", 5, 0.260151)],
)
def test_a_global_optimum_is_certified(proof_of, penalty, L, J):
    proof = proof_of(penalty, L)
    assert proof.objective == pytest.approx(J, abs=1e-5)
    assert proof.ratio <= 1.005
    assert 0 <= proof.gap <= 2e-3 * J
    assert proof.lower_bound <= J + 1e-6


def test_newton_directions_certify_to_the_last_digits(digits600):
    x, y = digits600
    model = kb.BilinearSoftmaxRegression(10, 3, alpha=3e-3, penalty="sum", seed=0)
    model.compile(kb.BlockLineSearch("newton_cg", tolerance=0.0), run_eagerly=True)
    model.fit(x, y, epochs=10, verbose=0)
    proof = model.certificate(x, y)
    assert proof.ratio <= 1.001
    assert proof.gap <= 2e-5 * proof.objective


@pytest.mark.parametrize(("penalty", "L"), [("sum", None), ("product", 3)])
def test_the_optimum_is_that_of_the_convex_problem(digits600, proof_of, penalty, L):
    x, y = digits600
    star = reference.convex_optimum(x, one_hot(y, 10), 3e-3, L)
    proof = proof_of(penalty, 3)
    assert proof.objective == pytest.approx(star, rel=1e-4)
    assert proof.lower_bound <= star * (1 + 1e-6)


@pytest.mark.parametrize(("units", "penalty"), [(1, "sum"), (3, "product")])
def test_planted_problems_with_and_without_bias(units, penalty):
    x, y, *_ = planted(K=units, L=1, T=300)
    x = x.astype("float32")
    star = reference.convex_optimum(x, one_hot(y, units), 0.05, None if penalty == "sum" else 5)
    for use_bias in (False, True):
        proof = fitted(x, y, 5, penalty, alpha=0.05, units=units, use_bias=use_bias).certificate(x, y)
        assert proof.gap <= 1e-3 * proof.objective
        assert proof.lower_bound <= star * (1 + 1e-5), "a bias can only lower J"


# Fits that are not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("L", "true_gap"), [(1, 0.07278), (2, 0.00369)])
def test_too_low_a_rank_is_not_certified(proof_of, L, true_gap):
    proof = proof_of("sum", L)
    assert proof.ratio > 1.3
    assert proof.gap >= true_gap


@pytest.mark.parametrize("penalty", ["sum", "product", "frobenius"])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_anywhere(digits600, penalty, seed):
    """For random factors, far from any optimum."""
    x, y = digits600
    rng = np.random.default_rng(seed)
    model = kb.BilinearSoftmaxRegression(10, 3, alpha=3e-3, penalty=penalty, input_shape=(8, 8))
    model.head.assign_factors(*(0.5 * seed * rng.normal(size=(3, 8, 10)) for _ in "AB"))
    proof = model.certificate(x, y)
    star = {"sum": 0.321800, "product": 0.337014, "frobenius": 0.380112}[penalty]
    assert proof.lower_bound <= star
    assert proof.objective >= star
    if penalty != "frobenius":
        assert proof.ratio > 1


def test_weights_of_samples_are_weights_of_the_bound(digits600):
    x, y = digits600
    weight = np.random.default_rng(0).integers(0, 3, len(x)).astype("float32")
    proof = fitted(x, y, 3, "sum", sample_weight=weight).certificate(x, y, weight)
    repeated = np.repeat(np.arange(len(x)), weight.astype(int))
    # The same images written down as often as they weigh, and alpha scaled as their number.
    share = len(repeated) / len(x)
    same = fitted(x[repeated], y[repeated], 3, "sum", alpha=3e-3 / share).certificate(x[repeated], y[repeated])
    assert proof.objective == pytest.approx(share * same.objective, rel=1e-4)
    assert proof.gap <= 2e-3 * proof.objective
    assert proof.ratio == pytest.approx(same.ratio, abs=1e-2)


# What can be said otherwise -------------------------------------------------------------------------------------


def test_the_frobenius_penalty_is_measured_by_the_linear_model(digits600):
    x, y = digits600
    linear = kb.LinearSoftmaxRegression(10, alpha=3e-3)
    linear.compile(kb.BlockLineSearch(tolerance=0.0), run_eagerly=True)
    linear.fit(x, y, epochs=3, verbose=0)
    exact = linear.certificate(x, y)
    assert exact.gap <= 1e-4 * exact.objective
    low = fitted(x, y, 2, "frobenius").certificate(x, y)
    assert low.ratios is None
    assert np.isnan(low.ratio)
    assert low.lower_bound <= exact.objective * (1 + 1e-6)
    assert low.gap >= low.objective - exact.objective
    assert "linear model" in low.note


@pytest.mark.parametrize("penalty", ["sum", "product", "frobenius"])
def test_without_a_penalty_only_the_labels_bound_J(digits600, penalty):
    x, y = digits600
    model = kb.BilinearSoftmaxRegression(10, 2, alpha=0.0, penalty=penalty, input_shape=(8, 8))
    model.head.assign_factors(*np.random.default_rng(0).normal(size=(2, 2, 8, 10)))
    proof = model.certificate(x, y)
    assert (proof.lower_bound, proof.gap, proof.ratios) == (0.0, proof.objective, None)
    assert "alpha = 0" in proof.note
    soft = 0.9 * one_hot(y, 10) + 0.01
    assert model.certificate(x, soft).lower_bound == pytest.approx(
        -(0.91 * np.log(0.91) + 0.09 * np.log(0.01)), rel=1e-5
    )


def test_an_unfitted_model_is_certified_for_a_large_alpha(digits600):
    """W = 0 is the optimum once alpha exceeds every |G_k|_2 there."""
    x, y = digits600
    model = kb.BilinearSoftmaxRegression(10, 2, alpha=10.0, penalty="sum", input_shape=(8, 8))
    model.head.assign_factors(np.zeros((2, 8, 10)), np.zeros((2, 8, 10)))
    proof = model.certificate(x, y)
    assert proof.gap <= 1e-6
    assert proof.ratio < 1
    assert proof.effective_ranks.tolist() == [0] * 10
    assert proof.degrees_of_freedom == 0


def test_ranks_and_degrees_of_freedom():
    x, y, A, B = planted(K=3, L=2, M=6, N=5)
    A = A.copy()
    A[1, :, 0] = 0.0
    model = kb.BilinearSoftmaxRegression(3, 4, alpha=0.1, use_bias=True, input_shape=(6, 5))
    model.head.assign_factors(np.concatenate([A, np.zeros_like(A)]), np.concatenate([B, np.zeros_like(B)]))
    proof = model.certificate(x, y)
    assert proof.effective_ranks.tolist() == [1, 2, 2]
    assert proof.degrees_of_freedom == 1 * (11 - 1) + 2 * 2 * (11 - 2) + 3
    W = np.einsum("lmk,lnk->kmn", A, B)
    np.testing.assert_allclose(proof.singular_values, np.linalg.svd(W, compute_uv=False), atol=1e-5)
    assert str(proof).splitlines()[1] == "effective ranks 1, 2, 2; 49 degrees of freedom"


@pytest.mark.parametrize("K", [1, 4])
def test_the_best_bias(K):
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(200, K))
    C = one_hot(rng.integers(0, max(K, 2), 200), K)
    w = rng.uniform(size=200) / 200
    change = best_bias_change(keras.ops.convert_to_tensor(z), Samples(C, w))
    shifted = z + change
    p = 1 / (1 + np.exp(-shifted)) if K == 1 else np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(w @ (p - C), 0, atol=1e-10)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("offset", [5.0, 25.0, 100.0])
def test_the_bound_holds_for_a_bias_far_from_its_optimum(units, offset):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 4, 4)).astype("float32"), (np.arange(300) < 30).astype(int)
    settings = {"alpha": 0.05, "penalty": "sum", "use_bias": True, "input_shape": (4, 4)}
    model = (
        kb.BilinearLogisticRegression(1, **settings)
        if units == 1
        else kb.BilinearSoftmaxRegression(2, 1, **settings)
    )
    model.head.assign_factors(np.zeros((1, 4, units)), np.zeros((1, 4, units)))
    model.head.bias.assign([offset] if units == 1 else [0.0, offset])
    far = model.certificate(x, y)
    model.head.bias.assign([-2.197] if units == 1 else [0.0, -2.197])  # of 30 in 300
    assert far.lower_bound <= model.certificate(x, y).objective
    assert model.certificate(x, y).gap <= 0.1


def test_a_bias_that_cannot_be_settled_leaves_the_entropy_of_the_labels(digits600, monkeypatch):
    import keras_bilinear.maths.duality as module

    x, y = digits600
    model = kb.BilinearSoftmaxRegression(10, 2, alpha=1e-3, use_bias=True, input_shape=(8, 8))
    model.head.assign_factors(*np.random.default_rng(0).normal(size=(2, 2, 8, 10)))
    monkeypatch.setattr(module, "NEWTON_STEPS", 0)
    proof = model.certificate(x, y)
    assert (proof.lower_bound, proof.ratios) == (0.0, None)
    assert "bias" in proof.note


def test_faulty_data_is_refused(digits600):
    x, y = digits600
    with pytest.raises(ValueError, match="one label for each image"):
        certificate(kb.BilinearSoftmaxRegression(10, 2), x, y[:10])
    model = kb.BilinearSoftmaxRegression(10, 2, input_shape=(8, 8))
    with pytest.raises(ValueError, match="one label for each image"):
        model.certificate(x, y[:10])


def test_a_certificate_before_the_fit_holds_for_what_the_fit_finds():
    problem = planted(T=30)
    x, y = problem.X, problem.y
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.1, seed=0)
    before = model.certificate(x, y)
    assert before.objective == pytest.approx(math.log(3) + float(model.penalty()), rel=1e-5)
    assert before.lower_bound <= model.fit(x, y, epochs=5, verbose=0).history["J"][-1] < before.objective


@pytest.mark.parametrize("loaded", [False, True])
def test_what_was_not_compiled_can_be_evaluated(loaded, tmp_path):
    problem = planted(T=30)
    x, y = problem.X, problem.y
    model = kb.LinearSoftmaxRegression(3, alpha=0.1, use_bias=True)
    if loaded:
        model.fit(x, y, verbose=0)
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert not model.compiled
    assert model.certificate(x, y).objective == pytest.approx(model.objective(x, y), rel=1e-6)
    loss, accuracy = model.test_on_batch(x, y)
    assert loss == pytest.approx(model.objective(x, y), rel=1e-5)
    other = kb.LinearSoftmaxRegression(3, alpha=0.1, use_bias=True, input_shape=(6, 5))
    other.set_weights(model.get_weights())
    np.testing.assert_allclose(other.evaluate(x, y, verbose=0), [loss, accuracy], rtol=1e-5)


def test_data_that_cannot_be_evaluated_leave_a_model_uncompiled_and_unbuilt():
    model = kb.BilinearSoftmaxRegression(3, 2)
    for method in (model.evaluate, model.test_on_batch, model.certificate):
        with pytest.raises(ValueError, match="Expected"):
            method(np.full((4, 6, 5), np.nan), np.zeros(4))
    assert not model.compiled
    assert not model.built


def certified_at(W, beta, X, labels, s, alpha, penalty, rank):
    """A model with the filters W (K, M, N), as near as float32 comes, and its certificate."""
    K, M, N = W.shape
    options = {"alpha": alpha, "use_bias": beta is not None, "input_shape": (M, N)}
    if penalty == "ridge":
        model = kb.LinearLogisticRegression(**options) if K == 1 else kb.LinearSoftmaxRegression(K, **options)
        model.head.kernel.assign(W.reshape(K, -1).T)
    else:
        options |= {"rank": rank, "penalty": penalty}
        model = kb.BilinearLogisticRegression(**options) if K == 1 else kb.BilinearSoftmaxRegression(K, **options)
        model.head.assign_factors(*truncated_factors(keras.ops.convert_to_tensor(W, "float32"), rank))
    if beta is not None:
        model.head.bias.assign(beta)
    return model.certificate(X, labels[:, 0] if K == 1 else labels, s)


def check_the_bound(case):
    """Near the optimum, at float32's distance from it, and far away: no bound is above J*."""
    rng = np.random.default_rng(case)
    K, penalty, has_bias = (
        int(rng.choice([1, 2, 4])),
        ["sum", "product", "frobenius", "ridge"][case % 4],
        case % 3 > 0,
    )
    T, M, N, scale = (
        int(rng.integers(8, 60)),
        int(rng.integers(1, 5)),
        int(rng.integers(1, 5)),
        10.0 ** rng.integers(-3, 4),
    )
    rank = min(M, N) if penalty != "product" else int(rng.integers(1, 4))
    # As the images and the weights reach the model: rounded to float32.
    X = (scale * rng.normal(size=(T, M, N))).astype("float32").astype("float64")
    s = np.float32(rng.uniform(0, 3, T) if case % 5 else np.ones(T)).astype("float64")
    soft = K > 1 and case % 2 == 0
    C = rng.dirichlet(np.ones(K), T) if soft else one_hot(rng.integers(0, max(K, 2), T), K)
    labels = C.astype("float32").astype("float64")
    C = labels / labels.sum(axis=1, keepdims=True) if K > 1 else labels
    power = 1 if penalty == "sum" else 2
    alpha = float(np.float32(10.0 ** rng.uniform(-3, 0) * scale**power))
    W, beta, J = reference.penalised_optimum(X, C, s, alpha, penalty, rank, has_bias)
    for noise in (0.0, 1e-3, 0.3, 3.0):
        moved = W + noise * np.abs(W).max() * rng.normal(size=W.shape)
        bias = None if beta is None else beta + noise * rng.normal(size=K)
        proof = certified_at(moved, bias, X, labels, s, alpha, penalty, max(rank, 1))
        assert proof.lower_bound <= J + 1e-11, f"case {case}, noise {noise}: above by {proof.lower_bound - J:.1e}"
        # J of this model is J* at least, so the gap is never less than the true one.
        assert proof.gap >= proof.objective - J - 1e-11
        if noise == 0.0 and penalty != "product":
            assert proof.gap <= 2e-5 * max(1.0, J), "at the optimum the bound is J itself, but for float32"


@pytest.mark.parametrize("case", range(int(os.environ.get("CERTIFICATE_CASES", 12))))
def test_the_bound_is_never_above_the_optimum(case):
    check_the_bound(case)
