"""All factors at once: J as a function of A, B and the bias, and the curvature that makes its descent fast.

Beyond the paper. J is not convex in (A, B), but along a line both sides move and the logits are still only
quadratic in the step, so the exact line search of the blocks carries over. Plain gradients would creep, for the
ranks of a class share their pixels; `curvature` undoes that with the Gauss-Newton matrix of each class.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.blocks import Factors, Solver
from keras_bilinear.descent import Path, Samples, Solution, inner
from keras_bilinear.penalties import Penalty

DAMPING = 0.3
"""Added to the diagonal of a class's curvature, as a fraction of the diagonal's mean."""


class Joint(NamedTuple):
    """J as a function of U (D, K): the columns of A, of B, and the bias where there is one; D = L (M + N) [+ 1].

    Fields:
        X: Images (T, M, N).
        shape: Any factors of the sizes of A, B and bias.
        alpha: Weight of the penalty, scalar.
        R: The penalty.
        inverse: Approximate inverse curvature of each class, (K, D, D).
    """

    X: Tensor
    shape: Factors
    alpha: Tensor
    R: type[Penalty]
    inverse: Tensor

    def logits(self, U: Tensor) -> Tensor:
        return bm.logits(self.X, *split(U, self.shape))

    def penalty(self, U: Tensor) -> Tensor:
        A, B, _ = split(U, self.shape)
        return self.alpha * self.R.value(A, B)

    def gradient(self, U: Tensor, residual: Tensor) -> Tensor:
        A, B, _ = split(U, self.shape)
        rA, rB = self.R.gradient(A, B)
        return self.pull_back(U, residual) + join(self.alpha * rA, self.alpha * rB, self.no_bias())

    def path(self, U: Tensor, d: Tensor) -> Path:
        """z' is linear and z'' quadratic in d; both come from one product with the images."""
        (A, B, _), (dA, dB, dbias) = split(U, self.shape), split(d, self.shape)
        K = U.shape[1]
        first = bm.kernel(dA, B) + bm.kernel(A, dB)
        both = ops.matmul(self.flat(), ops.concatenate([first, bm.kernel(dA, dB)], axis=1))
        dz, ddz = both[:, :K], both[:, K:]

        def penalty(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            A_eta, B_eta = A + eta * dA, B + eta * dB
            (rA, rB), (hA, hB) = self.R.gradient(A_eta, B_eta), self.R.hessian_product(A_eta, B_eta, dA, dB)
            value, slope = self.R.value(A_eta, B_eta), inner(rA, dA) + inner(rB, dB)
            return self.alpha * value, self.alpha * slope, self.alpha * (inner(hA, dA) + inner(hB, dB))

        return Path(dz if dbias is None else dz + dbias, ddz, penalty)

    def hessian(self, U: Tensor, residual: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> J_z^T curve(J_z v), and what bends because both factors of W move: G^T v and the penalty."""
        A, B, _ = split(U, self.shape)
        G = self.adjoint(residual)

        def product(v: Tensor) -> Tensor:
            vA, vB, vbias = split(v, self.shape)
            dz = ops.matmul(self.flat(), bm.kernel(vA, B) + bm.kernel(A, vB))
            flat = self.pull_back(U, curve(dz if vbias is None else dz + vbias))
            pA, pB = self.R.hessian_product(A, B, vA, vB)
            bent_A, bent_B = pull(G, vA, vB)
            return flat + join(bent_A + self.alpha * pA, bent_B + self.alpha * pB, self.no_bias())

        return product

    def precondition(self, g: Tensor) -> Tensor:
        """P_k g_k for each class."""
        return ops.transpose(ops.matmul(self.inverse, ops.transpose(g)[:, :, None])[:, :, 0])

    def flat(self) -> Tensor:
        """X as (T, M N)."""
        return ops.reshape(self.X, (-1, self.X.shape[1] * self.X.shape[2]))

    def adjoint(self, residual: Tensor) -> Tensor:
        """dV/dW (M N, K)."""
        return ops.transpose(ops.matmul(ops.transpose(residual), self.flat()))

    def pull_back(self, U: Tensor, residual: Tensor) -> Tensor:
        """dV/dU by the chain rule over W_k = sum_l a_{l,k} b_{l,k}^T."""
        A, B, bias = split(U, self.shape)
        gA, gB = pull(self.adjoint(residual), A, B)
        return join(gA, gB, None if bias is None else ops.sum(residual, axis=0))

    def no_bias(self) -> Tensor | None:
        """What the penalty adds to the gradient of the bias: nothing."""
        return None if self.shape.bias is None else ops.zeros_like(self.shape.bias)


def solve_joint(
    X: Tensor,
    samples: Samples,
    factors: Factors,
    inverse: Tensor,
    alpha: Tensor,
    penalty: type[Penalty],
    solver: Solver,
) -> tuple[Factors, Solution]:
    """Lowers J over all factors at once, from where they are.

    `inverse` is the inverse of what `curvature` gave, (K, D, D); the rest is as in `blocks.solve_active`.
    """
    problem = Joint(X, factors, alpha, penalty, inverse)
    solution = solver(problem, samples, join(*factors))
    A, B, bias = split(solution.parameters, factors)
    return Factors(A, B, bias), Solution(None, *solution[1:])


def curvature(X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Tensor:
    """H_k = F_k^T diag(w p (1 - p)) F_k + alpha Q, the Gauss-Newton matrix of each class, damped.

    F_k holds what the factors of the class multiply: X_t b_{l,k}, X_t^T a_{l,k}, and 1 for the bias. It is taken
    on evenly spaced images only, so that it costs no more than a few gradients.

        X (T, M, N), factors A (L, M, K), B (L, N, K), bias (K,) or None -> (K, D, D), symmetric positive definite.
    """
    A, B, bias = factors
    chosen = slice(None, None, stride(ops.shape(X)[0]))
    # A slice with a computed stride forgets the static shape.
    X, w = ops.reshape(X[chosen], (-1, *X.shape[1:])), ops.reshape(samples.weights[chosen], (-1,))
    p = bm.probabilities(bm.logits(X, A, B, bias))
    F = [bm.left_features(X, B), bm.right_features(X, A)]
    if bias is not None:
        F.append(ops.ones_like(F[0][:, :, :1]))
    F = ops.concatenate(F, axis=2)
    scale = ops.sum(samples.weights) / ops.maximum(ops.sum(w), 1e-30)
    bent = ops.transpose(scale * w[:, None] * p * (1 - p))
    H = ops.matmul(ops.transpose(F, (0, 2, 1)), bent[:, :, None] * F) + alpha * penalty_matrix(factors, penalty)
    diagonal = ops.diagonal(H, axis1=1, axis2=2)
    damping = DAMPING * ops.mean(diagonal, axis=1) + 1e-8
    return H + damping[:, None, None] * ops.eye(H.shape[1], dtype=H.dtype)


def stride(T: Tensor) -> Tensor:
    """Every how many of T images one is taken for the curvature: a fourth of them, or some 2,048 of very many."""
    return ops.maximum(ops.maximum(1, ops.minimum(4, T // 1024)), T // 2048)


def penalty_matrix(factors: Factors, penalty: type[Penalty]) -> Tensor:
    """Q of each side as the block-diagonal matrix (K, D, D) it is on U; zero for the bias."""
    A, B, bias = factors

    def spread(Q: Tensor, D: int) -> Tensor:
        L = Q.shape[0]
        return ops.reshape(ops.einsum("lmk,de->kldme", Q, ops.eye(D, dtype=Q.dtype)), (-1, L * D, L * D))

    left, right = spread(penalty.coupling(B), A.shape[1]), spread(penalty.coupling(A), B.shape[1])
    n, m = left.shape[1], right.shape[1] + (bias is not None)
    return ops.pad(left, ((0, 0), (0, m), (0, m))) + ops.pad(
        right, ((0, 0), (n, m - right.shape[1]), (n, m - right.shape[1]))
    )


def pull(G: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """(G_k b_{l,k}, G_k^T a_{l,k}): what a change G of dV/dW does to either side. G (M N, K)."""
    G = ops.reshape(G, (A.shape[1], B.shape[1], -1))
    return ops.einsum("mnk,lnk->lmk", G, B), ops.einsum("mnk,lmk->lnk", G, A)


def join(A: Tensor, B: Tensor, bias: Tensor | None) -> Tensor:
    """A (L, M, K), B (L, N, K), bias (K,) or None -> U (D, K)."""
    K = A.shape[2]
    rows = [ops.reshape(A, (-1, K)), ops.reshape(B, (-1, K))]
    return ops.concatenate(rows if bias is None else [*rows, bias[None]])


def split(U: Tensor, shape: Factors) -> Factors:
    """The inverse of `join`, with the sizes of `shape`."""
    L, M, K = shape.A.shape
    N = shape.B.shape[1]
    A, B = ops.reshape(U[: L * M], (L, M, K)), ops.reshape(U[L * M : L * (M + N)], (L, N, K))
    return Factors(A, B, None if shape.bias is None else U[-1])
