import numpy as np
import pytest
from keras import ops

from keras_bilinear.maths import penalties
from tests import reference
from tests.problems import random_factors

NAMES = ["sum", "product", "frobenius"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("L", [1, 3])
def test_value_gradient_and_curvature(name, L):
    A, B = random_factors(L=L)
    D = random_factors(L=L, seed=5)[0]
    penalty = penalties.get(name, alpha=1.0)
    tA, tB, tD = map(ops.convert_to_tensor, (A, B, D))
    np.testing.assert_allclose(penalty.value(tA, tB), reference.penalty(name, A, B), rtol=1e-12)
    dA, dB = penalty.gradient(tA, tB)
    by_A = reference.finite_difference(lambda A: reference.penalty(name, A, B), A)
    by_B = reference.finite_difference(lambda B: reference.penalty(name, A, B), B)
    np.testing.assert_allclose(dA, by_A, atol=1e-7)
    np.testing.assert_allclose(dB, by_B, atol=1e-7)
    values = [reference.penalty(name, A + eta * D, B) for eta in (-1.0, 0.0, 1.0)]
    np.testing.assert_allclose(penalty.curvature(tD, tB), values[0] - 2 * values[1] + values[2], rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_hessian_product_is_the_derivative_of_the_gradient(name):
    A, B = map(ops.convert_to_tensor, random_factors(L=3))
    dA, dB = map(ops.convert_to_tensor, random_factors(L=3, seed=5))
    penalty, h = penalties.get(name, alpha=1.0), 1e-5
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
