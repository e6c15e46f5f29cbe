"""BLR and BSR, the models of the paper."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import positive_integer
from keras_bilinear.data.unusual import warn_of_rank
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Factors, Samples, Tensor
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.parts.initializers import OrthogonalizedUniform
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.solver.blocks import block_names
from keras_bilinear.solver.descent import Solution
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.streamed import FactorsOnSketch
from keras_bilinear.stopping.automatic_rank import AutomaticRank

MOST_RANKS = 8
"""What rank="auto" may grow to, unless the images have fewer rows or columns."""


class BilinearRegression(ImageRegression):
    """BLR and BSR: z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k."""

    _told_of_rank = False

    def __init__(
        self,
        units: int,
        rank: int | str,
        alpha: float = 1e-3,
        penalty: str = "product",
        use_bias: bool = False,
        input_shape: Any = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        input_scale: float = 1.0,
        rows: Any = None,
    ):
        super().__init__(units, alpha, use_bias, input_shape, name, dtype, input_scale, rows)
        self._rank_is_automatic = isinstance(rank, str) and rank == "auto"
        factor_penalty = penalties.get(penalty, alpha)
        if self._rank_is_automatic and not factor_penalty.has_optimal_rank:
            raise ValueError(
                f'Expected penalty={penalties.WITH_OPTIMAL_RANK} with rank="auto": under no other penalty has J an '
                f"optimal rank. Received: penalty={penalty!r}"
            )
        self.rank = MOST_RANKS if self._rank_is_automatic else positive_integer("rank", rank)
        self.penalty_name = penalty
        initializer = OrthogonalizedUniform(seed)
        self.seed = initializer.seed
        self.head = BilinearDense(
            self.units,
            self.rank,
            use_bias=self.use_bias,
            left_initializer="zeros",
            right_initializer=initializer,
            factor_penalty=factor_penalty,
            name="bilinear",
            dtype=self.dtype_policy,
        )
        self._start_schedule(num_blocks=2 * self.rank)
        self._build_from_declaration()

    def _build_head(self, input_shape: tuple[int | None, ...]) -> None:
        most = min(self.rank, *self.image_size)
        if self._rank_is_automatic and most < self.rank:
            self.rank = self.head.rank = most
            del self.schedule  # or Keras would keep both
            self._start_schedule(num_blocks=2 * most)
        super()._build_head(input_shape)

    def _prepare(self, options: dict[str, Any]) -> dict[str, Any]:
        options = super()._prepare(options)
        if self.built and not self._rank_is_automatic and not self._told_of_rank:
            warn_of_rank(self.rank, self.image_size)
            self._told_of_rank = True
        return options

    @property
    def alpha(self) -> float:
        """Weight of the penalty; assigning to it takes effect at the next step, without a new trace."""
        return float(self.head.alpha) if self.head.built else self.head.factor_penalty.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self.head.alpha = value

    @property
    def block_names(self) -> list[str]:
        return block_names(self.optimizer.blocks if self.is_exact else "factor", self.rank)

    def _own_callbacks(self) -> list[keras.callbacks.Callback]:
        own = super()._own_callbacks()
        return [*own, AutomaticRank()] if self._rank_is_automatic and self._trains_exactly else own

    def _parameters(self, dtype: Any) -> Factors:
        head = self.head
        bias = None if head.bias is None else ops.cast(ops.copy(head.bias), dtype)
        return Factors(ops.cast(head.A, dtype), ops.cast(head.B, dtype), bias)

    def _solved(
        self, X: Images, samples: Samples, active: Tensor, max_inner: int | None = None
    ) -> tuple[Factors, Solution]:
        return self._solver().solve_factors(
            X,
            samples,
            self._parameters(X.dtype),
            active,
            penalty=type(self.head.factor_penalty),
            alpha=ops.cast(self.head.alpha, X.dtype),
            jit=self._jit_solver,
            max_inner=max_inner,
        )

    def _assign(self, parameters: Factors) -> None:
        self.head.assign_factors(parameters.A, parameters.B)
        if self.head.bias is not None:
            self.head.bias.assign(parameters.bias)

    def _on_sketch(self, X: Images, samples: Samples) -> FactorsOnSketch:
        alpha = ops.cast(self.head.alpha, X.dtype)
        return FactorsOnSketch(X, samples, alpha, type(self.head.factor_penalty), self._jit_solver)

    def _logits(self, X: Images) -> Tensor:
        return X.logits(*self._parameters(X.dtype))

    def penalty(self) -> Tensor:
        return ops.cast(self.head.penalty(), self._solver_dtype)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """A (L, M, K) and B (L, N, K), whose columns are the paper's a_{l,k} and b_{l,k}."""
        self._expect_built()
        return ops.convert_to_numpy(self.head.A), ops.convert_to_numpy(self.head.B)

    def weight_matrices(self) -> np.ndarray:
        self._expect_built()
        return ops.convert_to_numpy(bm.merged_weights(self.head.A, self.head.B))

    def ranks(self) -> np.ndarray:
        """How many ranks each class uses, (K,): those whose factors are not zero."""
        self._expect_built()
        return self.head.ranks()

    def canonicalize(self) -> None:
        """Replaces the factors by the SVD of every W_k: balanced, ordered by singular value, sign fixed.

        Predictions and W are unchanged. The Frobenius penalty is too; the sum penalty can only fall; the product
        penalty can rise, for it is smallest when all ranks are equally strong.
        """
        self._expect_built()
        self.head.assign_factors(*bm.canonical_factors(self.head.A, self.head.B))

    def get_config(self) -> dict[str, Any]:
        own = {
            "rank": "auto" if self._rank_is_automatic else self.rank,
            "penalty": self.penalty_name,
            "seed": self.seed,
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BilinearSoftmaxRegression(BilinearRegression):
    """Classifies images X by p_k = softmax_k(sum_l a_{l,k}^T X b_{l,k}), the paper's BSR.

    A Keras model, fitted exactly (the paper's Algorithm 2, and faster ones) or by any Keras optimizer; Eqs. bsr and
    zk.BL. Beside what every `keras.Model` has: `factors()` A and B, `weight_matrices()` W, `ranks()`; `objective(x,
    y)` J, `certificate(x, y)` how far J can be from its optimum, `convergence_report()` how the last fit went;
    `logits(x)`, `filter_images()`, `canonicalize()`; `alpha`, which may be changed.

    Args:
        units: K, the number of classes, 2 or more.
        rank: L, the number of bilinear forms in each class; "auto" with penalty="sum" finds it, up to 8 or
            min(M, N), by the callback `AutomaticRank`.
        alpha: Weight of the penalty, >= 0; 0 leaves the factors of separable images without bound.
        penalty: "product" (the paper's choice), "sum" or "frobenius".
        use_bias: Whether each class has an intercept, which is not penalised.
        input_shape: (M, N) or (M, N, 1); without it the model is built by the first data it sees. (M, N, C), with
            `rows`, for images with C channels.
        seed: Integer for reproducible initial factors.
        name: Name of the model.
        dtype: Dtype or policy, as for any Keras layer.
        input_scale: Factor from the pixels that the model is given to those its weights are for, > 0: with 1/255 it
            takes bytes, 0..255, in `fit`, `predict` and everywhere else, and keeps them as bytes in memory.
        rows: Which axes of an image (M, N, C) make the rows of a matrix, as in `ToMatrix`: 1 for M x (N C), (1, 2)
            for (M N) x C. The others, in their order, make its columns. Images (T, M, N, C) are then taken, in
            arrays and in a `tf.data.Dataset`, or such matrices; `filter_images` has the shape of the images.

    Raises:
        ValueError: for an argument of another kind, for channels without `rows`, and for `rows` without them.

    Example:
        >>> model = BilinearSoftmaxRegression(units=10, rank=3, alpha=1e-3)
        >>> model.fit(x_train, y_train, epochs=30)      # x (T, 28, 28), y (T,) integers
        >>> model.predict(x_test).argmax(axis=1)
    """

    _is_softmax = True


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BilinearLogisticRegression(BilinearRegression):
    """Tells two classes of images X apart by p = sigmoid(sum_l a_l^T X b_l), the paper's BLR.

    Labels are 0 and 1; Eq. blr and Algorithm 1. Arguments and methods are those of `BilinearSoftmaxRegression`,
    without `units`: `factors()`, `weight_matrices()`, `objective(x, y)`, `certificate(x, y)` and the others.

    Example:
        >>> model = BilinearLogisticRegression(rank=2, alpha=1e-3)
        >>> model.fit(x_train, is_nine, epochs=30)
        >>> model.predict(x_test)[:, 0] > 0.5
    """

    def __init__(
        self,
        rank: int | str,
        alpha: float = 1e-3,
        penalty: str = "product",
        use_bias: bool = False,
        input_shape: Any = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        input_scale: float = 1.0,
        rows: Any = None,
    ):
        super().__init__(1, rank, alpha, penalty, use_bias, input_shape, seed, name, dtype, input_scale, rows)
