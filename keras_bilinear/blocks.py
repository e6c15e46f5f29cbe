"""The blocks of the alternation: which parameters move together, posed as convex problems.

`blocks="factor"` is the paper's order a_1, b_1, a_2, b_2, ...; `"side"` moves all ranks of A, then all of B.
The two are one piece of code: a block is a side and the ranks of it that move. A bias moves with every block.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear.bilinear_math import Tensor
from keras_bilinear.block_solver import Block, Samples, Solution
from keras_bilinear.penalties import Penalty, couple

Solver = Callable[[Block, Samples, Tensor], Solution]
"""Minimises J over one block: (block, samples, U) -> solution."""


class Factors(NamedTuple):
    """A (L, M, K), B (L, N, K) and the bias (K,), or None where the model has none."""

    A: Tensor
    B: Tensor
    bias: Tensor | None


def blocks_per_sweep(blocks: str, rank: int) -> int:
    """How many blocks one sweep visits: 2 L factors, or the two sides."""
    return 2 * rank if blocks == "factor" else 2


def solve_active(
    X: Tensor,
    samples: Samples,
    factors: Factors,
    active: Tensor,
    alpha: Tensor,
    blocks: str,
    penalty: type[Penalty],
    solver: Solver,
) -> tuple[Factors, Solution]:
    """Solves for block number `active` of the sweep with every other factor held fixed.

    Args:
        X: Images (T, M, N).
        samples: Targets C (T, K) and weights w (T,).
        factors: A, B and the bias.
        active: Index of the block, a scalar integer; 2 (l - 1) is a_l and 2 (l - 1) + 1 is b_l for "factor".
        alpha: Weight of the penalty, scalar.
        blocks: "factor" or "side".
        penalty: R.
        solver: What minimises the block.

    Returns:
        The factors with the block replaced, and the solution.
    """
    A, B, bias = factors
    L = A.shape[0]
    ranks = ops.reshape(active // 2, (1,)) if blocks == "factor" else ops.arange(L)
    chosen = ops.any(ops.equal(ops.arange(L)[:, None], ranks), axis=1)[:, None, None]
    A_rest, B_rest = ops.where(chosen, ops.zeros_like(A), A), ops.where(chosen, ops.zeros_like(B), B)

    def left() -> tuple[Tensor, ...]:
        F = bm.left_features(X, ops.take(B, ranks, axis=0))
        block = pose(F, bm.logits(X, A_rest, B), A_rest, B, ranks, penalty, alpha, bias)
        solution = solver(block, samples, flatten(ops.take(A, ranks, axis=0), bias))
        moved, beta = unflatten(solution.parameters, A.shape[1], bias)
        return ops.where(chosen, moved, A), B, beta, *solution[1:]

    def right() -> tuple[Tensor, ...]:
        F = bm.right_features(X, ops.take(A, ranks, axis=0))
        block = pose(F, bm.logits(X, A, B_rest), B_rest, A, ranks, penalty, alpha, bias)
        solution = solver(block, samples, flatten(ops.take(B, ranks, axis=0), bias))
        moved, beta = unflatten(solution.parameters, B.shape[1], bias)
        return A, ops.where(chosen, moved, B), beta, *solution[1:]

    A, B, beta, *report = ops.cond(ops.equal(active % 2, 0), left, right)
    return Factors(A, B, None if bias is None else beta), Solution(None, *report)


def pose(
    features: Tensor,
    offset: Tensor,
    rest: Tensor,
    other: Tensor,
    ranks: Tensor,
    penalty: type[Penalty],
    alpha: Tensor,
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
    X: Tensor, samples: Samples, kernel: Tensor, bias: Tensor | None, alpha: Tensor, solver: Solver
) -> Solution:
    """The whole linear model (LLR, LSR) as one block, with the penalty alpha/2 |w|^2 (Eq. R.w).

    X (T, M, N), kernel (MN, K), bias (K,) or None; the solution's U is the kernel with the bias as last row.
    """
    U = flatten(kernel[None], bias)
    MN, K = kernel.shape
    block = Block(
        features=ops.reshape(X, (-1, MN)),
        offset=ops.zeros_like(samples.targets),
        coupling=alpha * ops.ones((1, 1, K), dtype=kernel.dtype),
        pull=ops.zeros_like(U),
        constant=ops.zeros_like(alpha),
        has_bias=bias is not None,
    )
    return solver(block, samples, U)


def flatten(factors: Tensor, bias: Tensor | None) -> Tensor:
    """(S, D, K) and (K,) -> U (S D, K), or (S D + 1, K) with the bias as last row."""
    U = ops.reshape(factors, (-1, factors.shape[2]))
    return U if bias is None else ops.concatenate([U, bias[None]])


def unflatten(U: Tensor, D: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The inverse of `flatten`; without a bias the second value is an empty placeholder."""
    weights, beta = (U, ops.zeros((0,), dtype=U.dtype)) if bias is None else (U[:-1], U[-1])
    return ops.reshape(weights, (-1, D, U.shape[1])), beta
