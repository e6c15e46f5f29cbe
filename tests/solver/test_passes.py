import numpy as np
import pytest
from keras import ops

from keras_bilinear.maths.bilinear import Samples
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.passes import Filters, sums_of
from tests import reference
from tests.problems import one_hot, planted, random_factors


@pytest.mark.parametrize("K", [1, 3])
def test_sums_of_batches_are_those_of_the_loops(K):
    problem, rng = planted(T=14, K=K), np.random.default_rng(0)
    C, s = one_hot(problem.y, K), rng.random(14)
    models = [(*random_factors(2, 6, 5, K, seed), rng.normal(size=K)) for seed in range(3)]
    W = np.stack([np.einsum("lmk,lnk->kmn", A, B) for A, B, _ in models])
    filters = Filters(*map(ops.convert_to_tensor, (W, np.stack([bias for *_, bias in models]))))
    V, G, shares = 0, 0, 0
    for part in (slice(0, 9), slice(9, 14)):
        samples = Samples(*map(ops.convert_to_tensor, (C[part], s[part])))
        sums, z = sums_of(Images(ops.convert_to_tensor(problem.X[part])), samples, filters)
        V, G, shares = V + np.array(sums.V), G + np.array(sums.G), shares + np.array(sums.shares)
        np.testing.assert_allclose(z, reference.logits(problem.X[part], *models[0]))
    for n, model in enumerate(models):
        z = reference.logits(problem.X, *model)
        assert V[n] == pytest.approx(14 * reference.cross_entropy(z, C, s))
        if n:
            residual = s[:, None] * (reference.probabilities(z) - C)
            np.testing.assert_allclose(G[n - 1], np.einsum("tk,tmn->kmn", residual, problem.X))
            np.testing.assert_allclose(shares[n - 1], residual.sum(axis=0), atol=1e-12)
