"""All factors at once: J as a function of A, B and the bias, and the curvature that makes its descent fast.

Beyond the paper. J is not convex in (A, B), but along a line both sides move and the logits are still only
quadratic in the step, so the exact line search of the blocks carries over. Plain gradients would creep, for the
ranks of a class share their pixels; `joint_curvature` undoes that with the Gauss-Newton matrix of each class.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver.descent import Budget, Direction, Path, Sketch, Solution, minimise
from keras_bilinear.solver.directions import newton_cg
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint_curvature import curvature_of
from keras_bilinear.solver.linear_cg import inner
from keras_bilinear.solver.preconditioner import SKETCH, Preconditioner, same_total, sample

PATIENCE = 3
"""It goes on so many times as long where it is slow: there, the curvature hardly changes."""


class Joint(NamedTuple):
    """J as a function of U (D, K): the columns of A, of B, and the bias where there is one; D = L (M + N) [+ 1].

    With a bias the images are taken about their mean, z = <W, X - mean> + beta: else every change of W would move
    all logits alike wherever pixels are far from zero, and an exact line search would stop it at once.

    Fields:
        X: The images.
        mean: Of the images, (M, N); None without a bias.
        layout: Where A, B and the bias stand in U.
        alpha: Weight of the penalty, scalar.
        R: The penalty.
        preconditioner: Of the curvature of each class.
    """

    X: Images
    mean: Tensor | None
    layout: "Layout"
    alpha: Tensor
    R: type[Penalty]
    preconditioner: Preconditioner

    def logits(self, U: Tensor) -> Tensor:
        A, B, beta = self.split(U)
        z = self.forward(bm.merged_weights(A, B))
        return z if beta is None else z + beta

    def penalty(self, U: Tensor) -> Tensor:
        A, B, _ = self.split(U)
        return self.alpha * self.R.value(A, B)

    def gradient(self, U: Tensor, residual: Tensor) -> Tensor:
        at = self.split(U)
        return self.pull_back(at, residual) + self.alpha * self.join(*self.R.gradient(at.A, at.B))

    def gradient_of_sums(self, U: Tensor, G: Tensor, shares: Tensor) -> Tensor:
        """dJ/dU given dV/dW = G (K, M, N) of the images themselves and dV/dbias = shares (K,)."""
        at = self.split(U)
        G = G if self.mean is None else G - shares[:, None, None] * self.mean
        gA, gB = self.pull(G, at.A, at.B)
        pA, pB = self.R.gradient(at.A, at.B)
        bias = None if self.mean is None else shares
        return self.layout.join(gA + self.alpha * pA, gB + self.alpha * pB, bias)

    def path(self, U: Tensor, d: Tensor) -> Path:
        """z' is linear and z'' quadratic in d; both come from one product with the images."""
        (A, B, _), (dA, dB, dbeta) = self.split(U), self.split(d)
        first, second = bm.merged_weights(dA, B) + bm.merged_weights(A, dB), bm.merged_weights(dA, dB)
        dz, ddz = ops.split(self.forward(ops.concatenate([first, second])), 2, axis=1)

        def penalty(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            A_eta, B_eta = A + eta * dA, B + eta * dB
            (rA, rB), (hA, hB) = self.R.gradient(A_eta, B_eta), self.R.hessian_product(A_eta, B_eta, dA, dB)
            value, slope = self.R.value(A_eta, B_eta), inner(rA, dA) + inner(rB, dB)
            return self.alpha * value, self.alpha * slope, self.alpha * (inner(hA, dA) + inner(hB, dB))

        return Path(dz if dbeta is None else dz + dbeta, ddz, penalty)

    def hessian(self, U: Tensor, residual: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> J_z^T curve(J_z v), and what bends because both factors of W move: G^T v and the penalty."""
        at = self.split(U)
        G = self.adjoint(residual)

        def product(v: Tensor) -> Tensor:
            vA, vB, _ = self.split(v)
            pA, pB = self.R.hessian_product(at.A, at.B, vA, vB)
            penalised = self.alpha * self.join(pA, pB)
            return self.straight(at, curve, v) + self.bent(G, v) + penalised

        return product

    def gauss_newton(self, U: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> J_z^T curve(J_z v) + alpha Q v, either side with its own Q."""
        at = self.split(U)

        def product(v: Tensor) -> Tensor:
            vA, vB, _ = self.split(v)
            curved = self.alpha * self.join(self.R.coupled(at.B, vA), self.R.coupled(at.A, vB))
            return self.straight(at, curve, v) + curved

        return product

    def bent(self, G: Tensor, v: Tensor) -> Tensor:
        """What v does to the gradient because both factors of W move, given dV/dW = G (K, M, N)."""
        vA, vB, _ = self.split(v)
        return self.join(*self.pull(G, vA, vB))

    def straight(self, at: Factors, curve: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        """J_z^T curve(J_z v)."""
        vA, vB, vbeta = self.split(v)
        dz = self.forward(bm.merged_weights(vA, at.B) + bm.merged_weights(at.A, vB))
        return self.pull_back(at, curve(dz if vbeta is None else dz + vbeta))

    def precondition(self, g: Tensor) -> Tensor:
        """P_k g_k for each class."""
        return self.preconditioner.apply(g, self.mean is not None)

    def steepest(self, g: Tensor, h: Tensor) -> Tensor:
        """The preconditioned gradient h: the plain one would creep."""
        return h

    def forward(self, W: Tensor) -> Tensor:
        """<W, X - mean>, (T, K), of any number of filters W (K, M, N)."""
        z = self.X.forward(W)
        return z if self.mean is None else z - ops.einsum("mn,kmn->k", self.mean, W)

    def adjoint(self, residual: Tensor) -> Tensor:
        """dV/dW (K, M, N)."""
        G = self.X.adjoint(residual)
        return G if self.mean is None else G - ops.sum(residual, axis=0)[:, None, None] * self.mean

    def pull_back(self, at: Factors, residual: Tensor) -> Tensor:
        """dV/dU by the chain rule over W_k = sum_l a_{l,k} b_{l,k}^T."""
        gA, gB = self.pull(self.adjoint(residual), at.A, at.B)
        return self.layout.join(gA, gB, None if self.mean is None else ops.sum(residual, axis=0))

    def pull(self, G: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """(G_k b_{l,k}, G_k^T a_{l,k}): what a change G of dV/dW does to either side. G (K, M, N)."""
        return ops.einsum("kmn,lnk->lmk", G, B), ops.einsum("kmn,lmk->lnk", G, A)

    def join(self, A: Tensor, B: Tensor) -> Tensor:
        """A (L, M, K) and B (L, N, K) as U (D, K), with nothing for the bias."""
        return self.layout.join(A, B, None if self.mean is None else ops.zeros_like(A[0, 0]))

    def split(self, U: Tensor) -> Factors:
        """A, B and the bias of U."""
        return self.layout.split(U)


class Layout(NamedTuple):
    """How A (L, M, K), B (L, N, K) and a bias (K,) become rows of U (D, K), and come back.

    Sizes need not be known as a graph is traced; then each costs some operations, so they are taken once.

    Fields:
        A, B: The shapes of the factors.
        rows: The shape (-1, K) of either in U.
        counts: How many rows belong to A, to B, and to the bias where there is one.
    """

    A: Any
    B: Any
    rows: Any
    counts: list[Any]

    @classmethod
    def of(cls, factors: Factors) -> "Layout":
        """That of factors of these shapes."""
        (L, M, K), N = ops.shape(factors.A), ops.shape(factors.B)[1]
        counts = [L * M, L * N] if factors.bias is None else [L * M, L * N, 1]
        sizes = ((L, M, K), (L, N, K), (-1, K), counts)
        if all(isinstance(size, int) for size in (L, M, N, K)):
            return cls(*sizes)
        return cls(*map(ops.stack, sizes))

    def join(self, A: Tensor, B: Tensor, bias: Tensor | None) -> Tensor:
        """U (D, K)."""
        rows = [ops.reshape(A, self.rows), ops.reshape(B, self.rows)]
        return ops.concatenate(rows if bias is None else [*rows, bias[None]])

    def split(self, U: Tensor) -> Factors:
        """A, B and the bias of U."""
        A, B, *bias = tf.split(U, self.counts)
        return Factors(ops.reshape(A, self.A), ops.reshape(B, self.B), bias[0][0] if bias else None)


def solve_joint(
    X: Images,
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
    U = problem.layout.join(*shifted(factors, problem.mean, 1))
    sketch = None if direction is newton_cg else sketch_of(problem, samples)
    solution = minimise(problem, samples, U, direction, budget, PATIENCE, sketch)
    found = shifted(problem.split(solution.parameters), problem.mean, -1)
    return found, Solution(None, *solution[1:])


def pose(
    X: Images, factors: Factors, alpha: Tensor, penalty: type[Penalty], preconditioner: Preconditioner
) -> Joint:
    """J as a function of all factors."""
    mean = None if factors.bias is None else X.mean()
    return Joint(X, mean, Layout.of(factors), alpha, penalty, preconditioner)


def sketch_of(problem: Joint, samples: Samples) -> Sketch:
    """The problem on a part of the images."""
    C, w = sample(*samples, most=SKETCH)
    w = same_total(w, samples.weights)
    damping = problem.preconditioner.damping_of(problem.mean is not None)
    return Sketch(problem._replace(X=problem.X.part(SKETCH)), Samples(C, w), damping)


def shifted(factors: Factors, mean: Tensor | None, sign: int) -> Factors:
    """The factors with the bias of images about their mean, or for sign = -1 with that of the images themselves."""
    A, B, bias = factors
    return factors if mean is None else Factors(A, B, bias + sign * of_mean(mean, A, B))


def of_mean(mean: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """<W, mean>, (K,). mean (M, N)."""
    return ops.einsum("mn,kmn->k", mean, bm.merged_weights(A, B))


def step_joint(
    X: Images,
    samples: Samples,
    factors: Factors,
    budget: Budget,
    alpha: Tensor,
    penalty: type[Penalty],
    direction: Direction,
    grain: str,
) -> tuple[Factors, Solution]:
    """`solve_joint` with the curvature at the factors as they are."""
    inverse = curvature_of(X, samples, factors, alpha, penalty, grain).inverted()
    return solve_joint(X, samples, factors, inverse, budget, alpha, penalty, direction)
