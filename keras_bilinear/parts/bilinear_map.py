"""The bilinear layer between layers: a matrix in, a matrix out."""

from typing import Any

import keras
from keras import ops

from keras_bilinear.arguments import positive_integer
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.parts.factored_layer import FactoredLayer
from keras_bilinear.parts.matrices import as_matrices, has_channel, matrix_shape


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BilinearMap(FactoredLayer):
    """Y = f(A^T X B + C): rows are mixed by A (M, P), columns by B (N, Q); C (P, Q) is the bias, f the activation.

    A hidden layer of M P + N Q numbers (and P Q), where `Dense` between vectors of these sizes takes M N P Q. Each
    y_{p,q} = a_p^T X b_q is a bilinear form of rank 1, as the paper's, but every a_p meets every b_q. (Known as the
    bilinear layer of TABL networks, Tran et al. 2017, arXiv:1712.00975.)

    Args:
        rows: P, the rows of Y.
        columns: Q, the columns of Y.
        activation: f; None leaves Y as it is.
        use_bias: Whether to add C, which starts at zero and is not penalised.
        left_initializer: For A.
        right_initializer: For B.
        factor_penalty: A `keras_bilinear.penalties` object; adds alpha R to the model's losses, R that of the P Q
            forms a_p^T X b_q: 1/2 sum_{p,q} (|a_p|^2 + |b_q|^2) for "sum", 1/2 |A|^2 |B|^2 for the others. Once,
            however often the layer is called, and as Keras has it not while both factors are frozen.

    Input:
        (..., M, N), of any numeric dtype: more leading axes are more matrices. (..., M, N, 1) with one channel
        is the same as (..., M, N); colour images want `ToMatrix` before.

    Output:
        (..., P, Q).

    Raises:
        ValueError: if rows or columns is not an integer >= 1, use_bias is no truth value, the dtype is not one of
            floating numbers, or the input is not a batch of matrices.

    Example:
        >>> layer = keras_bilinear.BilinearMap(12, 10, activation="relu")
        >>> layer(np.ones((2, 28, 28))).shape
        TensorShape([2, 12, 10])
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        activation: Any = None,
        use_bias: bool = True,
        left_initializer: Any = "glorot_uniform",
        right_initializer: Any = "glorot_uniform",
        factor_penalty: Penalty | None = None,
        **kwargs: Any,
    ):
        super().__init__(activation, use_bias, left_initializer, right_initializer, factor_penalty, **kwargs)
        self.rows = positive_integer("rows", rows)
        self.columns = positive_integer("columns", columns)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        M, N = self.matrix_shape = matrix_shape(input_shape)
        self.A = self._add_factor("A", (M, self.rows), self.left_initializer)
        self.B = self._add_factor("B", (N, self.columns), self.right_initializer)
        self.C = self._add_bias("C", (self.rows, self.columns))
        self._add_alpha()

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        return [self.A, self.B]

    @property
    def block_names(self) -> list[str]:
        return ["A", "B"]

    @property
    def forms(self) -> tuple[Tensor, Tensor]:
        """A (1, M, P Q) and B (1, N, P Q), a_p and b_q of output P q + p."""
        A, B = self.A.value, self.B.value
        return ops.tile(A, (1, self.columns))[None], ops.repeat(B, self.rows, axis=1)[None]

    def logits(self, X: Tensor) -> Tensor:
        """A^T X B + C, before the activation. X (..., M, N) or (..., M, N, 1) -> (..., P, Q)."""
        X = as_matrices(ops.cast(X, self.compute_dtype), self.matrix_shape)
        A, B = (ops.cast(factor, self.compute_dtype) for factor in self.factor_blocks)
        return bm.mapped(X, A, B, None if self.C is None else ops.cast(self.C, self.compute_dtype))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        matrix_shape(input_shape)
        return (*input_shape[: -3 if has_channel(input_shape) else -2], self.rows, self.columns)

    def trainable_variables_in_order(self) -> list[keras.Variable]:
        return self.factor_blocks + ([] if self.C is None else [self.C])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rows": self.rows, "columns": self.columns}
