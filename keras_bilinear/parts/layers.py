"""The bilinear layer: what `Dense` is to vectors, for matrices."""

import copy
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import boolean, plain_text, positive_integer
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty
from keras_bilinear.parts.initializers import OrthogonalizedUniform
from keras_bilinear.parts.matrices import as_matrices, has_channel, matrix_shape

PRECISIONS = {"float16", "bfloat16", "float32", "float64"}
SMALL_FILES = '`export_tflite(model, path, quantize="int8")` writes a small file of whole numbers'


@keras.saving.register_keras_serializable(package="keras_bilinear")
class BilinearDense(keras.layers.Layer):
    """z_k = sum_l a_{l,k}^T X b_{l,k} + bias_k, then an activation (Eq. zk.BL of the paper).

    The same map as `Flatten` + `Dense` with the kernel W_k = sum_l a_{l,k} b_{l,k}^T, in L (M + N) numbers a
    class instead of M N. At `rank` = min(M, N) it can express every dense kernel.

    Args:
        units: K, the number of outputs.
        rank: L, the number of bilinear forms summed in each output.
        activation: Applied to z; None leaves z as it is.
        use_bias: Whether to add a bias (K,).
        left_initializer: For A, called once per rank with the whole shape (L, M, K).
        right_initializer: For B, called once per rank with the whole shape (L, N, K). The default is the
            paper's: uniform on [-1, 1], orthogonal along the ranks. With A = 0 each rank starts silent.
        factor_penalty: A `keras_bilinear.penalties` object; adds alpha R(A, B) to the model's losses: once, however
            often the layer is called, and as Keras has it not while all of its factors are frozen.

    Input:
        (..., M, N), or (..., M, N, 1) with one channel, of any numeric dtype. A 4-D input whose last axis is
        2 to 4 is refused as a colour image: take one channel, or map the layer over channels.

    Output:
        (..., K).

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
        left_initializer: Any = "zeros",
        right_initializer: Any = None,
        factor_penalty: Penalty | None = None,
        **kwargs: Any,
    ):
        super().__init__(**{**kwargs, "name": plain_text(kwargs.get("name"))})
        expect_floating(self.dtype_policy)
        self.units = positive_integer("units", units)
        self.rank = positive_integer("rank", rank)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean("use_bias", use_bias)
        self.left_initializer = keras.initializers.get(left_initializer)
        self.right_initializer = keras.initializers.get(
            OrthogonalizedUniform() if right_initializer is None else right_initializer
        )
        if not isinstance(factor_penalty, Penalty | None):
            raise ValueError(
                "Expected `factor_penalty` to be a keras_bilinear.penalties object such as "
                f"Product(alpha=1e-3), or None. Received: factor_penalty={factor_penalty!r}"
            )
        self.factor_penalty = copy.copy(factor_penalty)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        M, N = matrix_shape(input_shape)
        self.matrix_shape = (M, N)
        # Kept in the variable dtype: `call` casts them itself, so that the penalty is never taken in float16.
        self.left_factors = [
            self._factor(f"a_{rank + 1}", self.left_initializer, M, rank) for rank in range(self.rank)
        ]
        self.right_factors = [
            self._factor(f"b_{rank + 1}", self.right_initializer, N, rank) for rank in range(self.rank)
        ]
        self.bias = (
            self.add_weight(name="bias", shape=(self.units,), initializer="zeros", autocast=False)
            if self.use_bias
            else None
        )
        self._alpha: Any = None
        if self.factor_penalty is not None:
            self._alpha = self.add_weight(
                name="alpha",
                shape=(),
                initializer=keras.initializers.Constant(self.factor_penalty.alpha),
                dtype="float32",
                trainable=False,
                autocast=False,
            )
            self._attach_penalty()

    def _attach_penalty(self) -> None:
        """Makes the penalty a regularizer, which Keras reads once a variable, not once a call.

        It ties all factors together, so one of them stands for all: one that is trained, for only these are read.
        """
        bearer = next((factor for factor in self.factor_blocks if factor.trainable), self.factor_blocks[0])
        for factor in self.factor_blocks:
            factor.regularizer = LayerPenalty(self) if factor is bearer else None

    def _factor(self, name: str, initializer: Any, length: int, rank: int) -> keras.Variable:
        """One rank's factor; the initializer sees all ranks, because they are orthogonalised together."""

        def slice_of_all(shape: tuple[int, ...], dtype: str | None = None) -> Tensor:
            return initializer((self.rank, *shape), dtype=dtype)[rank]

        factor = self.add_weight(name=name, shape=(length, self.units), initializer=slice_of_all, autocast=False)
        # A model knows all its weights, however deep the layers are nested, but not those layers.
        factor.bilinear_layer = self
        return factor

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The factors in the paper's order a_1, b_1, ..., a_L, b_L."""
        pairs = zip(self.left_factors, self.right_factors, strict=True)
        return [factor for pair in pairs for factor in pair]

    @property
    def A(self) -> Tensor:
        """All left factors, (L, M, K)."""
        return ops.stack([factor.value for factor in self.left_factors])

    @property
    def B(self) -> Tensor:
        """All right factors, (L, N, K)."""
        return ops.stack([factor.value for factor in self.right_factors])

    def ranks(self) -> np.ndarray:
        """How many ranks each class uses, (K,): those whose factors are not zero."""
        A, B = (ops.convert_to_numpy(factors) for factors in (self.A, self.B))
        return np.sum(A.any(axis=1) & B.any(axis=1), axis=0)

    def assign_factors(self, A: Tensor, B: Tensor) -> None:
        """Sets every factor variable from A (L, M, K) and B (L, N, K)."""
        for rank in range(self.rank):
            self.left_factors[rank].assign(A[rank])
            self.right_factors[rank].assign(B[rank])

    @property
    def alpha(self) -> Tensor | None:
        """The penalty's weight, a scalar once the layer is built; None without a penalty."""
        return ops.copy(self._alpha.value) if self.factor_penalty is not None else None

    @alpha.setter
    def alpha(self, value: float) -> None:
        if self.factor_penalty is None:
            raise ValueError("Expected a layer with a `factor_penalty`; this one has none, so it has no alpha.")
        self.factor_penalty.alpha = value
        if self.built:
            self._alpha.assign(self.factor_penalty.alpha)

    def penalty(self) -> Tensor:
        """alpha R(A, B), scalar; zero without a penalty."""
        dtype = keras.backend.result_type(self.variable_dtype, "float32")  # never in half precision
        if self.factor_penalty is None:
            return ops.zeros((), dtype=dtype)
        A, B = ops.cast(self.A, dtype), ops.cast(self.B, dtype)
        return ops.cast(self.alpha, dtype) * self.factor_penalty.value(A, B)

    def logits(self, X: Tensor) -> Tensor:
        """z, before the activation. X (..., M, N) or (..., M, N, 1) -> (..., K)."""
        X = as_matrices(ops.cast(X, self.compute_dtype), self.matrix_shape)
        bias = None if self.bias is None else ops.cast(self.bias, self.compute_dtype)
        return bm.logits(X, ops.cast(self.A, self.compute_dtype), ops.cast(self.B, self.compute_dtype), bias)

    def call(self, X: Tensor) -> Tensor:
        if self.factor_penalty is not None:
            self._attach_penalty()  # anew: a factor may have been frozen since
        return self.activation(self.logits(X))

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Bilinear layers stay in floating point: Keras warns with this message, and goes on to other layers.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"A BilinearDense layer stays in floating point under `quantize`; {SMALL_FILES}.")

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        matrix_shape(input_shape)
        return (*input_shape[: -3 if has_channel(input_shape) else -2], self.units)

    def save_own_variables(self, store: Any) -> None:
        # alpha is a setting, kept in the config: loading weights must not change it.
        if not self.built:
            return
        for index, variable in enumerate(self.trainable_variables_in_order()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        variables = self.trainable_variables_in_order() if self.built else []
        if len(store.keys()) != len(variables):
            raise ValueError(
                f"Expected {len(variables)} arrays for layer '{self.name}' (rank {self.rank}). "
                f"Received: {len(store.keys())}"
            )
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def trainable_variables_in_order(self) -> list[keras.Variable]:
        """The factors in the paper's order, then the bias."""
        return self.factor_blocks + ([] if self.bias is None else [self.bias])

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "units": self.units,
            "rank": self.rank,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "left_initializer": keras.initializers.serialize(self.left_initializer),
            "right_initializer": keras.initializers.serialize(self.right_initializer),
            "factor_penalty": None if self.factor_penalty is None else serialize(self.factor_penalty),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BilinearDense":
        penalty = config.get("factor_penalty")
        if isinstance(penalty, dict):
            config = {**config, "factor_penalty": keras.saving.deserialize_keras_object(penalty)}
        return cls(**config)


def expect_floating(policy: keras.DTypePolicy) -> None:
    """Raises a ValueError unless numbers are kept and computed as floating ones, and not quantised."""
    quantized = getattr(policy, "quantization_mode", None)
    if quantized or not {policy.variable_dtype, policy.compute_dtype} <= PRECISIONS:
        raise ValueError(
            "Expected `dtype` to be a type or policy of floating numbers, such as 'float32' or 'mixed_float16'; "
            f"an exported file may be quantised, by `export_tflite`. Received: dtype={policy.name!r}"
        )


class LayerPenalty(keras.regularizers.Regularizer):
    """alpha R of a bilinear layer, as Keras reads it: from a function of one variable."""

    def __init__(self, layer: BilinearDense):
        self.layer = layer

    def __call__(self, factor: Tensor) -> Tensor:
        # Keras adds losses up in floatx, whatever the layer's own dtype.
        return ops.cast(self.layer.penalty(), keras.config.floatx())
