import keras
import numpy as np
import pytest
from keras import ops

import keras_bilinear as kb
from keras_bilinear.maths import duality, penalties
from tests import reference
from tests.problems import planted, random_factors


class Elastic(kb.penalties.Penalty):
    """A fourth penalty, of this file alone: the sum and the product penalty added up."""

    degree = 2
    entry_cost = 1.0

    @staticmethod
    def coupling(B):
        return kb.penalties.Sum.coupling(B) + kb.penalties.Product.coupling(B)

    @staticmethod
    def remainder(B):
        return kb.penalties.Sum.remainder(B)


PENALTIES = {**penalties.PENALTIES, "elastic": Elastic}
LOOPS = {name: lambda A, B, name=name: reference.penalty(name, A, B) for name in penalties.PENALTIES}
LOOPS["elastic"] = lambda A, B: LOOPS["sum"](A, B) + LOOPS["product"](A, B)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("L", [1, 3])
def test_value_gradient_and_curvature(name, L):
    A, B = random_factors(L=L)
    D = random_factors(L=L, seed=5)[0]
    penalty, R = PENALTIES[name], LOOPS[name]
    tA, tB, tD = map(ops.convert_to_tensor, (A, B, D))
    np.testing.assert_allclose(penalty.value(tA, tB), R(A, B), rtol=1e-12)
    dA, dB = penalty.gradient(tA, tB)
    np.testing.assert_allclose(dA, reference.finite_difference(lambda A: R(A, B), A), atol=1e-7)
    np.testing.assert_allclose(dB, reference.finite_difference(lambda B: R(A, B), B), atol=1e-7)
    values = [R(A + eta * D, B) for eta in (-1.0, 0.0, 1.0)]
    np.testing.assert_allclose(penalty.curvature(tD, tB), values[0] - 2 * values[1] + values[2], rtol=1e-10)


@pytest.mark.parametrize("penalty", [*PENALTIES.values(), Elastic])
def test_the_short_way_of_a_coupling_is_the_long_one(penalty):
    A, B = map(ops.convert_to_tensor, random_factors(L=3))
    np.testing.assert_allclose(penalty.coupled(B, A), penalties.couple(penalty.coupling(B), A), rtol=1e-12)


def test_another_coupling_does_not_inherit_the_short_way():
    A, B = map(ops.convert_to_tensor, random_factors(L=3))
    np.testing.assert_allclose(Halved.coupled(B, A), 0.5 * A, rtol=1e-12)
    assert Scolding.coupled(B, A) is A


@pytest.mark.parametrize("name", PENALTIES)
def test_hessian_product_is_the_derivative_of_the_gradient(name):
    A, B = map(ops.convert_to_tensor, random_factors(L=3))
    dA, dB = map(ops.convert_to_tensor, random_factors(L=3, seed=5))
    penalty, h = PENALTIES[name], 1e-5
    ahead, behind = penalty.gradient(A + h * dA, B + h * dB), penalty.gradient(A - h * dA, B - h * dB)
    for product, after, before in zip(penalty.hessian_product(A, B, dA, dB), ahead, behind, strict=True):
        np.testing.assert_allclose(product, (after - before) / (2 * h), atol=1e-6)


def test_frobenius_never_forms_an_image_sized_matrix(monkeypatch):
    seen = []
    einsum = ops.einsum

    def spy(*args, **kwargs):
        result = einsum(*args, **kwargs)
        seen.append(tuple(result.shape))
        return result

    monkeypatch.setattr(penalties.ops, "einsum", spy)
    A, B = map(ops.convert_to_tensor, random_factors(L=2, M=50, N=40))
    penalties.Frobenius.value(A, B)
    assert seen
    assert not any({50, 40} <= set(shape) for shape in seen)


def test_product_equals_frobenius_for_one_rank():
    A, B = map(ops.convert_to_tensor, random_factors(L=1))
    np.testing.assert_allclose(penalties.Product.value(A, B), penalties.Frobenius.value(A, B))


@pytest.mark.parametrize("alpha", [-1e-3, float("nan"), float("inf"), "much", None])
def test_bad_alpha(alpha):
    with pytest.raises(ValueError, match="Expected `alpha`"):
        penalties.get("sum", alpha)


@pytest.mark.parametrize("name", ["ridge", None, 3])
def test_unknown_penalty(name):
    with pytest.raises(ValueError, match="Expected `penalty`"):
        penalties.get(name, 0.1)


def test_ridge_follows_alpha():
    ridge = penalties.Ridge(0.5)
    assert float(ridge(ops.convert_to_tensor([3.0, 4.0]))) == pytest.approx(6.25)
    ridge.alpha.assign(1.0)
    assert float(ridge(ops.convert_to_tensor([3.0, 4.0]))) == pytest.approx(12.5)
    assert ridge.get_config() == {"alpha": 1.0}


# One more penalty is one more class ----------------------------------------------------------------------------


class CertifiedElastic(Elastic):
    """With a bound: it is never below the sum penalty, nor is J."""

    @staticmethod
    def bound(point):
        return duality.sum_bound(point)._replace(ratios=None, note="J* is at least that of the sum penalty.")


class Halved(kb.penalties.Sum):
    """Another R than the one whose bound it would inherit, and smaller."""

    @staticmethod
    def coupling(B):
        return 0.5 * kb.penalties.Sum.coupling(B)

    @staticmethod
    def remainder(B):
        return 0.5 * kb.penalties.Sum.remainder(B)


class Scolding(kb.penalties.Sum):
    """The same R as that of the sum penalty."""


@pytest.fixture
def model_with(monkeypatch):
    """A function that gives a regression model with a penalty, by its name, as the others are chosen."""

    def model_with(penalty, alpha):
        monkeypatch.setitem(penalties.PENALTIES, "another", penalty)
        return kb.BilinearSoftmaxRegression(3, 2, alpha=alpha, penalty="another", seed=0)

    return model_with


def test_any_model_is_fitted_and_certified_with_it(model_with):
    x, y, *_ = planted(T=100)
    model = model_with(CertifiedElastic, 0.1)
    J = model.fit(x, y, epochs=8, verbose=0).history["J"]
    proof = model.certificate(x, y)
    assert np.all(np.diff(J) <= 1e-6)
    assert proof.objective == pytest.approx(J[-1], rel=1e-5)
    assert 0 < proof.lower_bound <= proof.objective
    assert proof.note == "J* is at least that of the sum penalty."
    assert "certifiedelastic penalty, alpha = 0.1" in str(model.convergence_report())


@pytest.mark.parametrize("penalty", [Elastic, Halved])
def test_without_a_bound_of_its_own_nothing_is_certified(penalty, model_with):
    x, y, *_ = planted(T=100)
    proof = model_with(penalty, 0.1).certificate(x, y)
    assert (proof.lower_bound, proof.gap, proof.ratios) == (-np.inf, np.inf, None)
    assert "names no lower bound" in str(proof)
    proof = model_with(penalty, 0.0).certificate(x, y)
    assert (proof.lower_bound, proof.gap) == (0.0, proof.objective)
    with pytest.raises(ValueError, match="optimal rank"):
        kb.BilinearSoftmaxRegression(3, "auto", penalty="another")


def test_a_bound_is_inherited_with_R():
    assert Scolding.bound is kb.penalties.Sum.bound is duality.sum_bound
    assert Scolding.has_optimal_rank
    assert Halved.bound is duality.no_bound


def test_a_layer_takes_it():
    layer = kb.BilinearDense(3, rank=2, factor_penalty=Elastic(alpha=0.5))
    image = keras.Input((6, 5))
    network = kb.AlternatingModel(image, keras.layers.Softmax()(layer(image)))
    network.compile("adam", "sparse_categorical_crossentropy")
    x, y, A, B = planted(T=100)
    layer.assign_factors(A, B)
    assert float(network.losses[0]) == pytest.approx(0.5 * LOOPS["elastic"](A, B), rel=1e-5)
    network.fit(x, y, epochs=2, verbose=0)
