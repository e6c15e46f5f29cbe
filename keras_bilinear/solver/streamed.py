"""What a streamed descent asks of a model: where a step leads to, and which line is next, found on the sketch."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Factors, Samples, Tensor, merged_weights
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.solver.between_passes import Line, next_line
from keras_bilinear.solver.blocks import flatten, pose_linear
from keras_bilinear.solver.compiled import Compiled
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint import Layout, pose, shifted
from keras_bilinear.solver.joint_curvature import curvature_of, grain_of
from keras_bilinear.solver.silent_ranks import silent_ranks, wake_along

MOST_BENT = 512
"""Images with more rows and columns go without the singular values of G, which would take seconds."""

Parameters = Any
"""`Factors`, or (kernel, bias)."""


class OnSketch(Protocol):
    """J of a model on a part of the images. U is what its parameters are to the solver: one array."""

    @property
    def alpha(self) -> Tensor:
        """Weight of the penalty, scalar."""

    def flat(self, at: Parameters) -> Tensor:
        """U of some parameters."""

    def moved(self, at: Parameters, d: Tensor) -> Parameters:
        """The parameters at U + d."""

    def filters(self, at: Parameters) -> tuple[Tensor, Tensor]:
        """W (K, M, N) and the bias (K,), zero where there is none."""

    def penalty(self, at: Parameters) -> Tensor:
        """alpha R, scalar."""

    def next_line(self, at: Parameters, G: Tensor, shares: Tensor, last: Line) -> Line:
        """See `between_passes.next_line`."""

    def woken(self, at: Parameters, G: Tensor, shares: Tensor) -> Parameters | None:
        """The parameters with ranks started that wait for it, None if there are none; see `silent_ranks`."""


@dataclass(frozen=True)
class FactorsOnSketch:
    """That of a bilinear model.

    Fields:
        X, samples: The sketch, with the weight of all images.
        alpha: Weight of the penalty, scalar.
        R: The penalty.
        jit: Whether what is computed is compiled by XLA.
    """

    X: Images
    samples: Samples
    alpha: Tensor
    R: type[Penalty]
    jit: bool

    def flat(self, at: Factors) -> Tensor:
        return Layout.of(at).join(*shifted(at, self.mean_of(at), 1))

    def moved(self, at: Factors, d: Tensor) -> Factors:
        return shifted(Layout.of(at).split(self.flat(at) + d), self.mean_of(at), -1)

    def mean_of(self, at: Factors) -> Tensor | None:
        """The image that the bias is about, as `joint.pose` has it."""
        return None if at.bias is None else self.X.mean()

    def filters(self, at: Factors) -> tuple[Tensor, Tensor]:
        W = merged_weights(at.A, at.B)
        return W, ops.zeros_like(W[:, 0, 0]) if at.bias is None else at.bias

    def penalty(self, at: Factors) -> Tensor:
        return self.alpha * self.R.value(at.A, at.B)

    def next_line(self, at: Factors, G: Tensor, shares: Tensor, last: Line) -> Line:
        compiled = Compiled(line_of_factors, self.jit, penalty=self.R, grain=grain_of(at))
        return compiled(self.X, self.samples, at, G, shares, last, self.alpha, self.bend(at, G, shares))

    def bend(self, at: Factors, G: Tensor, shares: Tensor) -> Tensor | None:
        """dV/dW of all images (K, M, N), its singular values cut at alpha; None where the penalty lets none be.

        It stands between a and b in the second derivative of J, with alpha on either side: alpha +- sigma are the
        curvatures along a pair, and sigma = alpha where a rank is neither to grow nor to shrink. Without it steps
        would be half as long as they should be, or far shorter, just where the last of J is to be gained.
        """
        if not self.R.entry_cost or min(G.shape[1:]) > MOST_BENT:
            return None
        G = tf.convert_to_tensor(G)  # of a variable there is no decomposition
        G = G if at.bias is None else G - shares[:, None, None] * self.X.mean()
        U, sigma, V = ops.svd(G, full_matrices=False)
        return ops.matmul(U * ops.minimum(sigma, self.R.entry_cost * self.alpha)[:, None, :], V)

    def woken(self, at: Factors, G: Tensor, shares: Tensor) -> Factors | None:
        if not bool(ops.any(silent_ranks(self.X, at))):
            return None
        return wake_along(self.X, self.samples, at, G, shares, self.alpha, self.R)


@dataclass(frozen=True)
class KernelOnSketch:
    """That of a linear model, whose parameters are the kernel (M N, K) and the bias (K,) or None."""

    X: Images
    samples: Samples
    alpha: Tensor
    jit: bool

    def flat(self, at: tuple[Tensor, Tensor | None]) -> Tensor:
        return flatten(at[0][None], at[1])

    def moved(self, at: tuple[Tensor, Tensor | None], d: Tensor) -> tuple[Tensor, Tensor | None]:
        kernel, bias = at
        return (kernel + d, None) if bias is None else (kernel + d[:-1], bias + d[-1])

    def filters(self, at: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        kernel, bias = at
        W = ops.reshape(ops.transpose(kernel), (-1, *self.X.pixels.shape[1:]))
        return W, ops.zeros_like(kernel[0]) if bias is None else bias

    def penalty(self, at: tuple[Tensor, Tensor | None]) -> Tensor:
        return 0.5 * self.alpha * ops.sum(ops.square(at[0]))

    def next_line(self, at: tuple[Tensor, Tensor | None], G: Tensor, shares: Tensor, last: Line) -> Line:
        compiled = Compiled(line_of_kernel, self.jit)
        return compiled(self.X, self.samples, *at, G, shares, last, self.alpha)

    def woken(self, at: tuple[Tensor, Tensor | None], G: Tensor, shares: Tensor) -> None:
        return None  # of a linear model there are no ranks


def line_of_factors(
    X: Images,
    samples: Samples,
    factors: Factors,
    G: Tensor,
    shares: Tensor,
    last: Line,
    alpha: Tensor,
    bend: Tensor | None,
    penalty: type[Penalty],
    grain: str,
) -> Line:
    """`next_line` for all factors at once."""
    inverse = curvature_of(X, samples, factors, alpha, penalty, grain).inverted()
    problem = pose(X, factors, alpha, penalty, inverse)
    U = problem.layout.join(*shifted(factors, problem.mean, 1))
    damping = inverse.damping_of(factors.bias is not None)
    bent = ops.zeros_like if bend is None else partial(problem.bent, bend)
    return next_line(problem, samples, damping, U, G, shares, last, bent)


def line_of_kernel(
    X: Images,
    samples: Samples,
    kernel: Tensor,
    bias: Tensor | None,
    G: Tensor,
    shares: Tensor,
    last: Line,
    alpha: Tensor,
) -> Line:
    """`next_line` for a linear model."""
    U = flatten(kernel[None], bias)
    problem = pose_linear(X, samples, kernel, bias, alpha).preconditioned(samples, U)
    assert problem.preconditioner is not None
    damping = problem.preconditioner.damping_of(bias is not None)
    return next_line(problem, samples, damping, U, G, shares, last)
