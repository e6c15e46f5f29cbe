"""Small problems with known structure."""

from typing import NamedTuple

import numpy as np


class Problem(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    A: np.ndarray
    B: np.ndarray

    def data(self):
        """(x, y), as a fit takes them."""
        return self.X.astype("float32"), self.y


def random_factors(L=2, M=5, N=4, K=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(L, M, K)), rng.normal(size=(L, N, K))


def planted(T=400, M=6, N=5, K=3, L=2, seed=0, scale=1.0):
    """Gaussian images whose labels are drawn from the bilinear model with factors A, B."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(T, M, N))
    A, B = random_factors(L, M, N, K, seed + 1)
    A = scale * A
    z = np.einsum("lmk,tmn,lnk->tk", A, X, B)
    if K == 1:
        y = (rng.random(T) < 1 / (1 + np.exp(-z[:, 0]))).astype("int32")
    else:
        y = np.argmax(z + rng.gumbel(size=z.shape), axis=1).astype("int32")
    return Problem(X, y, A, B)


def soft_labels(problem):
    """The planted model's own probabilities: with these as targets its W minimises V exactly."""
    z = np.einsum("lmk,tmn,lnk->tk", problem.A, problem.X, problem.B)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def one_hot(y, K):
    return np.eye(K)[y] if K > 1 else y.reshape(-1, 1).astype(float)
