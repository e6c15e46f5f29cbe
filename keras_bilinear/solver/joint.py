"""All factors at once: J as a function of A, B and the bias, and the curvature that makes its descent fast.

Beyond the paper. J is not convex in (A, B), but along a line both sides move and the logits are still only
quadratic in the step, so the exact line search of the blocks carries over. Plain gradients would creep, for the
ranks of a class share their pixels; `curvature` undoes that with the Gauss-Newton matrix of each class.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty, couple
from keras_bilinear.solver.descent import Budget, Direction, Path, Sketch, Solution, minimise
from keras_bilinear.solver.directions import newton_cg
from keras_bilinear.solver.linear_cg import inner
from keras_bilinear.solver.preconditioner import (
    SKETCH,
    Curvature,
    Preconditioner,
    curvature,
    curvature_weights,
    same_total,
    sample,
)

PATIENCE = 3
"""It goes on so many times as long where it is slow: there, the curvature hardly changes."""


class Joint(NamedTuple):
    """J as a function of U (D, K): the columns of A, of B, and the bias where there is one; D = L (M + N) [+ 1].

    With a bias the images are taken about their mean, z = <W, X - mean> + beta: else every change of W would move
    all logits alike wherever pixels are far from zero, and an exact line search would stop it at once.

    Fields:
        X: Images (T, M N).
        mean: Of the images, (M N,); None without a bias.
        sizes: (L, M, N, K).
        alpha: Weight of the penalty, scalar.
        R: The penalty.
        preconditioner: Of the curvature of each class.
    """

    X: Tensor
    mean: Tensor | None
    sizes: tuple[Tensor, Tensor, Tensor, Tensor]
    alpha: Tensor
    R: type[Penalty]
    preconditioner: Preconditioner

    def logits(self, U: Tensor) -> Tensor:
        A, B, beta = self.split(U)
        z = self.forward(bm.kernel(A, B))
        return z if beta is None else z + beta

    def penalty(self, U: Tensor) -> Tensor:
        A, B, _ = self.split(U)
        return self.alpha * self.R.value(A, B)

    def gradient(self, U: Tensor, residual: Tensor) -> Tensor:
        A, B, _ = self.split(U)
        rA, rB = self.R.gradient(A, B)
        return self.pull_back(U, residual) + self.alpha * self.join(rA, rB)

    def path(self, U: Tensor, d: Tensor) -> Path:
        """z' is linear and z'' quadratic in d; both come from one product with the images."""
        (A, B, _), (dA, dB, dbeta) = self.split(U), self.split(d)
        K = self.sizes[-1]
        first = bm.kernel(dA, B) + bm.kernel(A, dB)
        both = self.forward(ops.concatenate([first, bm.kernel(dA, dB)], axis=1))
        dz, ddz = both[:, :K], both[:, K:]

        def penalty(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            A_eta, B_eta = A + eta * dA, B + eta * dB
            (rA, rB), (hA, hB) = self.R.gradient(A_eta, B_eta), self.R.hessian_product(A_eta, B_eta, dA, dB)
            value, slope = self.R.value(A_eta, B_eta), inner(rA, dA) + inner(rB, dB)
            return self.alpha * value, self.alpha * slope, self.alpha * (inner(hA, dA) + inner(hB, dB))

        return Path(dz if dbeta is None else dz + dbeta, ddz, penalty)

    def hessian(self, U: Tensor, residual: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> J_z^T curve(J_z v), and what bends because both factors of W move: G^T v and the penalty."""
        A, B, _ = self.split(U)
        G = self.adjoint(residual)

        def product(v: Tensor) -> Tensor:
            vA, vB, _ = self.split(v)
            pA, pB = self.R.hessian_product(A, B, vA, vB)
            bent_A, bent_B = self.pull(G, vA, vB)
            bent = self.join(bent_A + self.alpha * pA, bent_B + self.alpha * pB)
            return self.straight(U, curve, v) + bent

        return product

    def gauss_newton(self, U: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> J_z^T curve(J_z v) + alpha Q v, either side with its own Q."""
        A, B, _ = self.split(U)
        QA, QB = self.alpha * self.R.coupling(B), self.alpha * self.R.coupling(A)

        def product(v: Tensor) -> Tensor:
            vA, vB, _ = self.split(v)
            return self.straight(U, curve, v) + self.join(couple(QA, vA), couple(QB, vB))

        return product

    def straight(self, U: Tensor, curve: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        """J_z^T curve(J_z v)."""
        (A, B, _), (vA, vB, vbeta) = self.split(U), self.split(v)
        dz = self.forward(bm.kernel(vA, B) + bm.kernel(A, vB))
        return self.pull_back(U, curve(dz if vbeta is None else dz + vbeta))

    def precondition(self, g: Tensor) -> Tensor:
        """P_k g_k for each class."""
        return self.preconditioner.apply(g, self.mean is not None)

    def steepest(self, g: Tensor, h: Tensor) -> Tensor:
        """The preconditioned gradient h: the plain one would creep."""
        return h

    def forward(self, W: Tensor) -> Tensor:
        """<W, X - mean>, (T, K), of any number of kernels W (M N, K)."""
        z = ops.matmul(self.X, W)
        return z if self.mean is None else z - ops.matmul(self.mean, W)

    def adjoint(self, residual: Tensor) -> Tensor:
        """dV/dW (M N, K)."""
        G = ops.transpose(ops.matmul(ops.transpose(residual), self.X))
        return G if self.mean is None else G - self.mean[:, None] * ops.sum(residual, axis=0)

    def pull_back(self, U: Tensor, residual: Tensor) -> Tensor:
        """dV/dU by the chain rule over W_k = sum_l a_{l,k} b_{l,k}^T."""
        A, B, beta = self.split(U)
        gA, gB = self.pull(self.adjoint(residual), A, B)
        return join(gA, gB, None if beta is None else ops.sum(residual, axis=0))

    def pull(self, G: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """(G_k b_{l,k}, G_k^T a_{l,k}): what a change G of dV/dW does to either side. G (M N, K)."""
        _, M, N, K = self.sizes
        G = ops.reshape(G, (M, N, K))
        return ops.einsum("mnk,lnk->lmk", G, B), ops.einsum("mnk,lmk->lnk", G, A)

    def join(self, A: Tensor, B: Tensor) -> Tensor:
        """A (L, M, K) and B (L, N, K) as U (D, K), with nothing for the bias."""
        return join(A, B, None if self.mean is None else ops.zeros_like(A[0, 0]))

    def split(self, U: Tensor) -> Factors:
        """A, B and the bias of U."""
        L, M, N, K = self.sizes
        A, B = ops.reshape(U[: L * M], (L, M, K)), ops.reshape(U[L * M : L * (M + N)], (L, N, K))
        return Factors(A, B, None if self.mean is None else U[-1])


def solve_joint(
    X: Tensor,
    samples: Samples,
    factors: Factors,
    preconditioner: Preconditioner,
    budget: Budget,
    alpha: Tensor,
    penalty: type[Penalty],
    direction: Direction,
) -> tuple[Factors, Solution]:
    """Lowers J over all factors at once, from where they are.

    `preconditioner` is what `curvature_of` gave, inverted; the rest is as in `blocks.solve_active`.
    """
    problem = pose(X, factors, alpha, penalty, preconditioner)
    U = join(*shifted(factors, problem.mean, 1))
    sketch = None if direction is newton_cg else sketch_of(problem, samples)
    solution = minimise(problem, samples, U, direction, budget, PATIENCE, sketch)
    found = shifted(problem.split(solution.parameters), problem.mean, -1)
    return found, Solution(None, *solution[1:])


def pose(
    X: Tensor, factors: Factors, alpha: Tensor, penalty: type[Penalty], preconditioner: Preconditioner
) -> Joint:
    """J as a function of all factors. X (T, M, N)."""
    (L, M, K), N = ops.shape(factors.A), ops.shape(factors.B)[1]
    mean = None if factors.bias is None else mean_image(X)
    return Joint(ops.reshape(X, (-1, M * N)), mean, (L, M, N, K), alpha, penalty, preconditioner)


def sketch_of(problem: Joint, samples: Samples) -> Sketch:
    """The problem on a part of the images."""
    X, C, w = sample(problem.X, *samples, most=SKETCH)
    w = same_total(w, samples.weights)
    damping = problem.preconditioner.damping_of(problem.mean is not None)
    return Sketch(problem._replace(X=X), Samples(C, w), damping)


def mean_image(X: Tensor) -> Tensor:
    """The mean of the images, (M N,), of a part of them."""
    return ops.reshape(ops.mean(sample(X)[0], axis=0), (-1,))


def shifted(factors: Factors, mean: Tensor | None, sign: int) -> Factors:
    """The factors with the bias of images about their mean, or for sign = -1 with that of the images themselves."""
    A, B, bias = factors
    return factors if mean is None else Factors(A, B, bias + sign * ops.matmul(mean, bm.kernel(A, B)))


def curvature_of(X: Tensor, samples: Samples, factors: Factors, alpha: Tensor, penalty: type[Penalty]) -> Curvature:
    """The Gauss-Newton matrix of each class, whose parameters multiply X_t b_{l,k} and X_t^T a_{l,k}.

    It is taken on a part of the images only, so that it costs no more than a few gradients. X (T, M, N).
    """
    A, B, bias = factors
    X, w = sample(X, samples.weights)
    c = curvature_weights(bm.probabilities(bm.logits(X, A, B, bias)), same_total(w, samples.weights))
    if bias is not None:
        X = X - ops.mean(X, axis=0)  # as `Joint` takes them
    F = ops.concatenate([bm.left_features(X, B), bm.right_features(X, A)], axis=2)
    return curvature(F, c, alpha * penalty_matrix(factors, penalty))


def penalty_matrix(factors: Factors, penalty: type[Penalty]) -> Tensor:
    """Q of each side as the block-diagonal matrix (K, D, D) it is on the factors."""
    A, B, _ = factors

    def spread(Q: Tensor, D: int) -> Tensor:
        L = ops.shape(Q)[0]
        return ops.reshape(ops.einsum("lmk,de->kldme", Q, ops.eye(D, dtype=Q.dtype)), (-1, L * D, L * D))

    left, right = spread(penalty.coupling(B), ops.shape(A)[1]), spread(penalty.coupling(A), ops.shape(B)[1])
    n, m = ops.shape(left)[1], ops.shape(right)[1]
    return ops.pad(left, ((0, 0), (0, m), (0, m))) + ops.pad(right, ((0, 0), (n, 0), (n, 0)))


def join(A: Tensor, B: Tensor, bias: Tensor | None) -> Tensor:
    """A (L, M, K), B (L, N, K), bias (K,) or None -> U (D, K)."""
    K = ops.shape(A)[2]
    rows = [ops.reshape(A, (-1, K)), ops.reshape(B, (-1, K))]
    return ops.concatenate(rows if bias is None else [*rows, bias[None]])
