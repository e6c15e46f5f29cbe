import numpy as np
import pytest
from keras import ops

from keras_bilinear.parts.initializers import OrthogonalizedUniform, orthogonalized
from tests import reference


def test_same_as_the_papers_loop():
    B = np.random.default_rng(0).uniform(-1, 1, (4, 6, 3))
    np.testing.assert_allclose(orthogonalized(ops.convert_to_tensor(B)), reference.gram_schmidt(B), atol=1e-10)


@pytest.mark.parametrize("L", [1, 3, 5])
def test_ranks_are_orthogonal_per_class(L):
    B = np.asarray(OrthogonalizedUniform(seed=1)((L, 5, 4), "float64"))
    for k in range(4):
        gram = B[:, :, k] @ B[:, :, k].T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-5)
        assert np.all(np.diag(gram) > 0)
    assert np.all(np.abs(B[0]) <= 1)


def test_more_ranks_than_columns_are_orthogonal_in_groups_of_N():
    B = np.asarray(OrthogonalizedUniform(seed=1)((7, 3, 2)))
    for group in (B[:3], B[3:6]):
        for k in range(2):
            gram = group[:, :, k] @ group[:, :, k].T
            np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-5)
    assert np.all(np.linalg.norm(B, axis=1) > 0)


def test_seed_makes_it_reproducible_and_config_round_trips():
    first = OrthogonalizedUniform(seed=3)
    again = OrthogonalizedUniform.from_config(first.get_config())
    np.testing.assert_array_equal(first((2, 4, 3)), again((2, 4, 3)))
    assert np.any(np.asarray(first((2, 4, 3))) != np.asarray(OrthogonalizedUniform(seed=4)((2, 4, 3))))


def test_bad_shape():
    with pytest.raises(ValueError, match=r"Expected a shape \(L, N, K\)"):
        OrthogonalizedUniform()((3, 4))
