"""The bilinear layer: what `Dense` is to vectors, for matrices."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import positive_integer
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.parts.factored_layer import FactoredLayer
from keras_bilinear.parts.matrices import as_matrices, has_channel, lone_matrix_shape
from keras_bilinear.solver.blocks import block_names


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BilinearDense(FactoredLayer):
    """z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k, then an activation (Eq. zk.BL of the paper).

    The same map as `Flatten` + `Dense` with the kernel W_k = sum_l a_{l,k} b_{l,k}^T, in L (M + N) numbers a
    class instead of M N. At `rank` = min(M, N) it can express every dense kernel.

    Args:
        units: K, the number of outputs.
        rank: L, the number of bilinear forms summed in each output.
        activation: Applied to z; None leaves z as it is.
        use_bias: Whether to add a bias (K,).
        left_initializer: For A, called once per rank with the whole shape (L, M, K).
        right_initializer: For B, called once per rank with the whole shape (L, N, K). The paper starts with "zeros"
            for A and `OrthogonalizedUniform` for B, and so do its models: each rank is silent until its turn. In a
            network that is a trap, for a hidden layer with A = 0 that is rectified never wakes.
        factor_penalty: A `keras_bilinear.penalties` object; adds alpha R(A, B) to the model's losses: once, however
            often the layer is called, and as Keras has it not while all of its factors are frozen.

    Input:
        (T, M, N), or (..., M, N, 1) with one channel, of any numeric dtype. From four axes on the last one is the
        channel axis, and one of more than 1 is refused, for nothing says which axes are the rows of a map: lay
        them out by `ToMatrix` or `keras.layers.Reshape`. Sequences of matrices go through
        `keras.layers.TimeDistributed`, or are given a channel axis.

    Output:
        (T, K), or (..., K).

    Raises:
        ValueError: if units or rank is not an integer >= 1, use_bias is no truth value, the dtype is not one of
            floating numbers, or the input is not a batch of matrices.

    Example:
        >>> layer = keras_bilinear.BilinearDense(10, rank=3)
        >>> layer(np.ones((2, 28, 28))).shape
        TensorShape([2, 10])
    """

    def __init__(
        self,
        units: int,
        rank: int,
        activation: Any = None,
        use_bias: bool = False,
        left_initializer: Any = "glorot_uniform",
        right_initializer: Any = "glorot_uniform",
        factor_penalty: Penalty | None = None,
        **kwargs: Any,
    ):
        super().__init__(activation, use_bias, left_initializer, right_initializer, factor_penalty, **kwargs)
        self.units = positive_integer("units", units)
        self.rank = positive_integer("rank", rank)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        M, N = self.matrix_shape = lone_matrix_shape(input_shape)
        ranks = range(self.rank)
        self.left_factors = [self._factor(f"a_{l + 1}", self.left_initializer, M, l) for l in ranks]
        self.right_factors = [self._factor(f"b_{l + 1}", self.right_initializer, N, l) for l in ranks]
        self.bias = self._add_bias("bias", (self.units,))
        self._add_alpha()

    def _factor(self, name: str, initializer: Any, length: int, rank: int) -> keras.Variable:
        """One rank's factor; the initializer sees all ranks, because they are orthogonalised together."""

        def slice_of_all(shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
            return initializer((self.rank, *shape), dtype=dtype)[rank]

        return self._add_factor(name, (length, self.units), slice_of_all)

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The factors in the paper's order a_1, b_1, ..., a_L, b_L."""
        pairs = zip(self.left_factors, self.right_factors, strict=True)
        return [factor for pair in pairs for factor in pair]

    @property
    def block_names(self) -> list[str]:
        return block_names("factor", self.rank)

    @property
    def A(self) -> Tensor:
        """All left factors, (L, M, K)."""
        return ops.stack([factor.value for factor in self.left_factors])

    @property
    def B(self) -> Tensor:
        """All right factors, (L, N, K)."""
        return ops.stack([factor.value for factor in self.right_factors])

    @property
    def forms(self) -> tuple[Tensor, Tensor]:
        return self.A, self.B

    def ranks(self) -> np.ndarray:
        """How many ranks each class uses, (K,): those whose factors are not zero."""
        A, B = (ops.convert_to_numpy(factors) for factors in (self.A, self.B))
        return np.sum(A.any(axis=1) & B.any(axis=1), axis=0)

    def assign_factors(self, A: Tensor, B: Tensor) -> None:
        """Sets every factor variable from A (L, M, K) and B (L, N, K)."""
        for rank in range(self.rank):
            self.left_factors[rank].assign(A[rank])
            self.right_factors[rank].assign(B[rank])

    def logits(self, X: Tensor) -> Tensor:
        """z, before the activation. X (T, M, N) or (..., M, N, 1) -> (..., K)."""
        X = as_matrices(ops.cast(X, self.compute_dtype), self.matrix_shape, lone=True)
        bias = None if self.bias is None else ops.cast(self.bias, self.compute_dtype)
        return bm.logits(X, ops.cast(self.A, self.compute_dtype), ops.cast(self.B, self.compute_dtype), bias)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        lone_matrix_shape(input_shape)
        return (*input_shape[: -3 if has_channel(input_shape) else -2], self.units)

    def trainable_variables_in_order(self) -> list[keras.Variable]:
        return self.factor_blocks + ([] if self.bias is None else [self.bias])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "rank": self.rank}
