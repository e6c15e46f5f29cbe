"""The penalties R: the three of the paper on the factors (Sec. "Regularization strategies"), and that on W.

R(A, B) is a quadratic form in the left factors when the right ones are fixed, and the other way round:

    R(A, B) = 1/2 sum_k sum_{l,m} Q_{lm,k}(B) a_{l,k} . a_{m,k} + S(B)

so a penalty is fully told by its coupling Q: the identity (Sum), the squared norms of b on the diagonal
(Product), or the Gram matrix of the b's (Frobenius). Value, gradient and curvature follow. All that anything else
needs to know of a penalty its class says, so a new one is one class here and a line in `PENALTIES`.
"""

from typing import Any

import keras
from keras import ops

from keras_bilinear.arguments import non_negative, one_of
from keras_bilinear.maths import duality
from keras_bilinear.maths.bilinear import Tensor


class Penalty:
    """alpha R(A, B), symmetric in the two sides. Subclasses give the coupling Q, a polynomial of degree 2 at most.

    R depends on the class alone, so its methods are class methods and one compiled solver serves every alpha.

    Args:
        alpha: Weight of the penalty in J = V + alpha R, >= 0 and within float32.

    Raises:
        ValueError: if alpha is negative, not within float32 or not a number.
    """

    degree = 2
    """R of a filter W that is multiplied by c is c**degree times as large."""
    entry_cost = 0.0
    """dR/d eta where a rank enters as a = sqrt(eta) u, b = sqrt(eta) v with |u| = |v| = 1, beside no other rank."""
    has_optimal_rank = False
    """Whether J has a least value over all ranks, at a rank of its own for each class."""
    bound = staticmethod(duality.no_bound)
    """The lower bound on J by which fits are certified, given alpha > 0."""

    def __init_subclass__(cls, **options: Any):
        """What was proven of one R holds for no other: a subclass with its own R states its bound, or has none."""
        super().__init_subclass__(**options)
        if "coupling" in vars(cls) and "coupled" not in vars(cls):
            cls.coupled = vars(Penalty)["coupled"]  # type: ignore[method-assign]  # the short way was another Q's
        if vars(cls).keys() & {"coupling", "coupled", "remainder", "value"}:
            cls.bound = vars(cls).get("bound", staticmethod(duality.no_bound))
            cls.has_optimal_rank = vars(cls).get("has_optimal_rank", False)

    def __init__(self, alpha: float):
        self.alpha = alpha

    @property
    def alpha(self) -> float:
        """Weight of the penalty."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._alpha = non_negative("alpha", value)

    @staticmethod
    def coupling(B: Tensor) -> Tensor:
        """Q (L, L, K): how strongly ranks l and m of the other side are tied. B (L, N, K)."""
        raise NotImplementedError

    @classmethod
    def coupled(cls, B: Tensor, A: Tensor) -> Tensor:
        """Q(B) A, shaped like A. A subclass may know a shorter way; a new `coupling` takes the long one again."""
        return couple(cls.coupling(B), A)

    @staticmethod
    def remainder(B: Tensor) -> Tensor:
        """S(B), the part of R that does not depend on the other side. B (L, N, K) -> scalar."""
        return ops.zeros((), dtype=B.dtype)

    @classmethod
    def value(cls, A: Tensor, B: Tensor) -> Tensor:
        """R(A, B), without alpha. A (L, M, K), B (L, N, K) -> scalar."""
        return 0.5 * cls.curvature(A, B) + cls.remainder(B)

    @classmethod
    def gradient(cls, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """(dR/dA, dR/dB), shaped like A and B."""
        return cls.coupled(B, A), cls.coupled(A, B)

    @classmethod
    def curvature(cls, D: Tensor, B: Tensor) -> Tensor:
        """d^2/d eta^2 R(A + eta D, B), the same for every A. D (L, M, K), B (L, N, K) -> scalar."""
        return ops.sum(D * cls.coupled(B, D))

    @classmethod
    def hessian_product(cls, A: Tensor, B: Tensor, dA: Tensor, dB: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative of the gradient along (dA, dB) when both sides move, shaped like A and B.

        Q is quadratic in its argument, so its central difference is exact for a step of any size.
        """
        slope_A = cls.coupled(B, dA) + 0.5 * (cls.coupled(B + dB, A) - cls.coupled(B - dB, A))
        slope_B = cls.coupled(A, dB) + 0.5 * (cls.coupled(A + dA, B) - cls.coupled(A - dA, B))
        return slope_A, slope_B

    def get_config(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Penalty":
        return cls(**config)


def identity(L: Tensor, dtype: str) -> Tensor:
    """Of the ranks, (L, L, 1)."""
    l = ops.arange(L)
    return ops.cast(ops.equal(l[:, None], l), dtype)[:, :, None]


def couple(Q: Tensor, A: Tensor) -> Tensor:
    """(Q A)_{l,k} = sum_m Q_{lm,k} a_{m,k}. Q (L, L, K), A (L, M, K) -> (L, M, K)."""
    return ops.einsum("jlk,lmk->jmk", Q, A)


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Sum(Penalty):
    """R = 1/2 sum_l (|a_l|^2 + |b_l|^2) (Eq. R.AB.sum): the nuclear norm of W at its minimum."""

    degree = 1
    entry_cost = 1.0
    has_optimal_rank = True
    bound = staticmethod(duality.sum_bound)

    @staticmethod
    def coupling(B: Tensor) -> Tensor:
        L, _, K = ops.shape(B)
        return ops.broadcast_to(identity(L, B.dtype), (L, L, K))

    @classmethod
    def coupled(cls, B: Tensor, A: Tensor) -> Tensor:
        return A  # Q = 1

    @staticmethod
    def remainder(B: Tensor) -> Tensor:
        return 0.5 * ops.sum(B * B)


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Product(Penalty):
    """R = 1/2 sum_l |a_l|^2 |b_l|^2 (Eq. "regularization: prod"), the paper's choice in its experiments."""

    bound = staticmethod(duality.product_bound)

    @staticmethod
    def coupling(B: Tensor) -> Tensor:
        return identity(ops.shape(B)[0], B.dtype) * ops.sum(B * B, axis=1)

    @classmethod
    def coupled(cls, B: Tensor, A: Tensor) -> Tensor:
        return ops.sum(B * B, axis=1, keepdims=True) * A  # Q is diagonal


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Frobenius(Penalty):
    """R = 1/2 |sum_l a_l b_l^T|_F^2 (Eq. R.AB.sum.w), through L x L Gram matrices: no M x N matrix is formed.

    The paper sets it aside as a burden; it is not: |W|_F^2 = sum_{l,m} (a_l . a_m)(b_l . b_m).
    """

    bound = staticmethod(duality.frobenius_bound)

    @staticmethod
    def coupling(B: Tensor) -> Tensor:
        return ops.einsum("lnk,mnk->lmk", B, B)


PENALTIES: dict[str, type[Penalty]] = {"sum": Sum, "product": Product, "frobenius": Frobenius}
WITH_OPTIMAL_RANK = " or ".join(f'"{name}"' for name, penalty in PENALTIES.items() if penalty.has_optimal_rank)


def get(name: str, alpha: float) -> Penalty:
    """The penalty called `name` with weight `alpha`.

    Raises:
        ValueError: if the name is unknown, or alpha is negative or not finite.
    """
    return PENALTIES[one_of("penalty", name, tuple(PENALTIES))](alpha)


@keras.saving.register_keras_serializable(package="keras_bilinear")
class Ridge(keras.regularizers.Regularizer):
    """alpha/2 |w|^2 (Eq. R.w), the penalty of the linear baselines; alpha may change without a retrace."""

    degree = 2
    has_optimal_rank = False
    bound = staticmethod(duality.frobenius_bound)

    def __init__(self, alpha: float):
        self.alpha = keras.Variable(non_negative("alpha", alpha), trainable=False, dtype="float32", name="alpha")

    @staticmethod
    def value(W: Tensor) -> Tensor:
        """R(W), without alpha, scalar. W of any shape."""
        return 0.5 * ops.sum(ops.square(W))

    def __call__(self, kernel: Tensor) -> Tensor:
        return self.alpha * ops.cast(self.value(kernel), "float32")

    def get_config(self) -> dict[str, Any]:
        return {"alpha": float(self.alpha.numpy())}
