"""The blocks of the alternation: which parameters move together, posed as convex problems.

`blocks="factor"` is the paper's order a_1, b_1, a_2, b_2, ...; `"side"` moves all ranks of A, then all of B.
The two are one piece of code: a block is a side and the ranks of it that move. A bias moves with every block.

With everything outside the block fixed, z(U) = F U + offset and alpha R(U) is quadratic, so J(U) is convex, and an
iteration touches the cached features F and (T, K) arrays, never the images.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.maths.penalties import Penalty, couple
from keras_bilinear.solver.compiled import traced_once
from keras_bilinear.solver.descent import Budget, Direction, Path, Solution, minimise
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.linear_cg import inner
from keras_bilinear.solver.preconditioner import (
    Preconditioner,
    curvature_weights,
    diagonal,
    same_total,
    sample,
    stride,
)


class Block(NamedTuple):
    """J restricted to one block: S ranks of one side, stacked into U (S D, K).

    Fields:
        features: F, (K, T, S D) with one matrix per class, or (T, S D) shared by all classes.
        offset: Logits of everything outside the block, (T, K).
        coupling: alpha Q among the ranks of the block, (S, S, K).
        pull: Gradient of the penalty at U = 0, shaped like U.
        constant: alpha R at U = 0, scalar.
        has_bias: Whether U has one more row that is added to the logits and not penalised.
        preconditioner: Of the curvature of each class.
    """

    features: Tensor
    offset: Tensor
    coupling: Tensor
    pull: Tensor
    constant: Tensor
    has_bias: bool
    preconditioner: Preconditioner | None = None

    def logits(self, U: Tensor) -> Tensor:
        """F U + offset, (T, K)."""
        return self.offset + self.forward(U)

    def gradient(self, U: Tensor, residual: Tensor) -> Tensor:
        """g = F^T residual + alpha (Q U + q), shaped like U."""
        return self.adjoint(residual) + self.penalty_product(U) + self.pull

    def gradient_of_sums(self, U: Tensor, G: Tensor, shares: Tensor) -> Tensor:
        """dJ/dU of a linear model given dV/dW = G (K, M, N) and dV/dbias = shares (K,)."""
        g = ops.transpose(ops.reshape(G, (ops.shape(G)[0], -1)))
        g = ops.concatenate([g, shares[None]]) if self.has_bias else g
        return g + self.penalty_product(U) + self.pull

    def path(self, U: Tensor, d: Tensor) -> Path:
        """z' = F d, and a penalty that is a parabola."""
        start, tilt = self.penalty(U), inner(d, self.penalty_product(U) + self.pull)
        bend = inner(d, self.penalty_product(d))
        return Path(
            dz=self.forward(d),
            ddz=None,
            penalty=lambda eta: (start + eta * (tilt + 0.5 * eta * bend), tilt + eta * bend, bend),
        )

    def hessian(self, U: Tensor, residual: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """That of Gauss and Newton: nothing bends, for z is affine in U."""
        return self.gauss_newton(U, curve)

    def gauss_newton(self, U: Tensor, curve: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """v -> F^T curve(F v) + alpha Q v."""
        return lambda v: self.adjoint(curve(self.forward(v))) + self.penalty_product(v)

    def precondition(self, g: Tensor) -> Tensor:
        """P_k g_k for each class."""
        assert self.preconditioner is not None  # `preconditioned` has seen to it
        return self.preconditioner.apply(g, self.has_bias)

    def steepest(self, g: Tensor, h: Tensor) -> Tensor:
        """g itself, as in the paper."""
        return g

    def preconditioned(self, samples: Samples, U: Tensor) -> "Block":
        """The block with its curvature at U, taken on a part of the images."""
        F = self.features
        if len(F.shape) == 2:
            F = sample(F)[0]
        else:
            K, T, D = ops.shape(F)
            F = ops.reshape(F[:, :: stride(T)], (K, -1, D))
        w, offset = sample(samples.weights, self.offset)
        p = bm.probabilities(self._replace(features=F, offset=offset).logits(U))
        Q = ops.diagonal(ops.transpose(self.coupling, (2, 0, 1)), axis1=1, axis2=2)
        Q = ops.repeat(Q, ops.shape(F)[-1] // ops.shape(Q)[1], axis=1)
        c = curvature_weights(p, same_total(w, samples.weights))
        return self._replace(preconditioner=diagonal(F, c, Q))

    def forward(self, U: Tensor) -> Tensor:
        """F U, (T, K)."""
        weights = U[:-1] if self.has_bias else U
        if len(self.features.shape) == 2:
            z = ops.matmul(self.features, weights)
        else:
            z = ops.transpose(ops.matmul(self.features, ops.transpose(weights)[:, :, None])[:, :, 0])
        return z + U[-1] if self.has_bias else z

    def adjoint(self, r: Tensor) -> Tensor:
        """F^T r, shaped like U."""
        if len(self.features.shape) == 2:
            g = ops.matmul(ops.transpose(self.features), r)
        else:
            g = ops.einsum("ktd,tk->dk", self.features, r)
        return ops.concatenate([g, ops.sum(r, axis=0, keepdims=True)]) if self.has_bias else g

    def penalty_product(self, U: Tensor) -> Tensor:
        """alpha Q U, the Hessian of the penalty along U, shaped like U."""
        weights = U[:-1] if self.has_bias else U
        stacked = ops.reshape(weights, (ops.shape(self.coupling)[0], -1, ops.shape(U)[1]))
        product = ops.reshape(couple(self.coupling, stacked), ops.shape(weights))
        return ops.concatenate([product, ops.zeros_like(U[-1:])]) if self.has_bias else product

    def penalty(self, U: Tensor) -> Tensor:
        """alpha R(U), scalar."""
        return self.constant + inner(U, self.pull) + 0.5 * inner(U, self.penalty_product(U))


def block_names(blocks: str, rank: int) -> list[str]:
    """The blocks one sweep visits, in order: 2 L factors, the two sides, or all at once."""
    factors = [f"{side}{l + 1}" for l in range(rank) for side in "ab"]
    return {"factor": factors, "side": ["A", "B"], "joint": ["A, B"]}[blocks]


def solve_active(
    images: Images,
    samples: Samples,
    factors: Factors,
    active: Tensor,
    budget: Budget,
    alpha: Tensor,
    penalty: type[Penalty],
    blocks: str,
    direction: Direction,
) -> tuple[Factors, Solution]:
    """Solves for block number `active` of the sweep with every other factor held fixed.

    `active` is a scalar integer; for blocks="factor" 2 (l - 1) is a_l and 2 (l - 1) + 1 is b_l. Returns the factors
    with the block replaced, and the solution. A copy of the images is made if they are not of the factors' dtype.
    """
    (A, B, bias), X = factors, images.values()
    L = ops.shape(A)[0]
    ranks = ops.reshape(active // 2, (1,)) if blocks == "factor" else ops.arange(L)
    chosen = ops.any(ops.equal(ops.arange(L)[:, None], ranks), axis=1)[:, None, None]

    @traced_once
    def descended(block: Block, U: Tensor) -> Solution:
        return minimise(block.preconditioned(samples, U), samples, U, direction, budget)

    def solved(
        side: Tensor, rest: Tensor, other: Tensor, features: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The side with the block replaced, the bias, and what the solution says besides."""
        block = pose(features, offset, rest, other, ranks, alpha, penalty, bias)
        U = flatten(ops.take(side, ranks, axis=0), bias)
        solution = descended(block, U)
        moved, beta = unflatten(solution.parameters, ops.shape(side)[1], bias)
        return ops.where(chosen, moved, side), beta, solution[1:]

    def left() -> tuple[Tensor, ...]:
        rest, F = ops.where(chosen, ops.zeros_like(A), A), bm.left_features(X, ops.take(B, ranks, axis=0))
        moved, beta, report = solved(A, rest, B, F, bm.logits(X, rest, B))
        return moved, B, beta, *report

    def right() -> tuple[Tensor, ...]:
        rest, F = ops.where(chosen, ops.zeros_like(B), B), bm.right_features(X, ops.take(A, ranks, axis=0))
        moved, beta, report = solved(B, rest, A, F, bm.logits(X, A, rest))
        return A, moved, beta, *report

    moved_A, moved_B, beta, *report = ops.cond(ops.equal(active % 2, 0), left, right)
    return Factors(moved_A, moved_B, None if bias is None else beta), Solution(None, *report)


def pose(
    features: Tensor,
    offset: Tensor,
    rest: Tensor,
    other: Tensor,
    ranks: Tensor,
    alpha: Tensor,
    penalty: type[Penalty],
    bias: Tensor | None,
) -> Block:
    """J as a function of the chosen `ranks` of one side; `rest` is that side with those ranks set to zero."""
    Q = penalty.coupling(other)
    pull = ops.take(couple(Q, rest), ranks, axis=0)
    return Block(
        features=features,
        offset=offset,
        coupling=alpha * ops.take(ops.take(Q, ranks, axis=0), ranks, axis=1),
        pull=alpha * flatten(pull, None if bias is None else ops.zeros_like(bias)),
        constant=alpha * penalty.value(rest, other),
        has_bias=bias is not None,
    )


def solve_linear(
    images: Images,
    samples: Samples,
    kernel: Tensor,
    bias: Tensor | None,
    budget: Budget,
    alpha: Tensor,
    direction: Direction,
) -> Solution:
    """The whole linear model (LLR, LSR) as one block, with the penalty alpha/2 |w|^2 (Eq. R.w).

    kernel (MN, K), bias (K,) or None; the solution's U is the kernel with the bias as last row.
    """
    U, block = flatten(kernel[None], bias), pose_linear(images, samples, kernel, bias, alpha)
    return minimise(block.preconditioned(samples, U), samples, U, direction, budget)


def pose_linear(images: Images, samples: Samples, kernel: Tensor, bias: Tensor | None, alpha: Tensor) -> Block:
    """J as a function of the kernel (MN, K) and the bias."""
    MN, K = ops.shape(kernel)
    return Block(
        features=ops.reshape(images.values(), (-1, MN)),
        offset=ops.zeros_like(samples.targets),
        coupling=alpha * ops.ones((1, 1, K), dtype=kernel.dtype),
        pull=ops.zeros_like(flatten(kernel[None], bias)),
        constant=ops.zeros_like(alpha),
        has_bias=bias is not None,
    )


def flatten(factors: Tensor, bias: Tensor | None) -> Tensor:
    """(S, D, K) and (K,) -> U (S D, K), or (S D + 1, K) with the bias as last row."""
    U = ops.reshape(factors, (-1, ops.shape(factors)[2]))
    return U if bias is None else ops.concatenate([U, bias[None]])


def unflatten(U: Tensor, D: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The inverse of `flatten`; without a bias the second value is an empty placeholder."""
    weights, beta = (U, ops.zeros((0,), dtype=U.dtype)) if bias is None else (U[:-1], U[-1])
    return ops.reshape(weights, (-1, D, ops.shape(U)[1])), beta
