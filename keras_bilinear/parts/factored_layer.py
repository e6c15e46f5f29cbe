"""What layers with left and right factors have in common: penalty, what is saved of them, what they refuse."""

import copy
from typing import Any

import keras
from keras import ops

from keras_bilinear.arguments import boolean, plain_text
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.maths.penalties import Penalty

PRECISIONS = {"float16", "bfloat16", "float32", "float64"}
SMALL_FILES = '`export_tflite(model, path, quantize="int8")` writes a small file of whole numbers'


class FactoredLayer(keras.layers.Layer):
    """A layer of bilinear forms a^T X b, whose factors are variables: `BilinearDense` and `BilinearMap`.

    A subclass creates its factors by `_add_factor`, its bias by `_add_bias`, then calls `_add_alpha`.
    """

    def __init__(
        self,
        activation: Any,
        use_bias: bool,
        left_initializer: Any,
        right_initializer: Any,
        factor_penalty: Penalty | None,
        **kwargs: Any,
    ):
        super().__init__(**{**kwargs, "name": plain_text(kwargs.get("name"))})
        expect_floating(self.dtype_policy)
        self.activation = keras.activations.get(activation)
        self.use_bias = boolean("use_bias", use_bias)
        self.left_initializer = keras.initializers.get(left_initializer)
        self.right_initializer = keras.initializers.get(right_initializer)
        if not isinstance(factor_penalty, Penalty | None):
            raise ValueError(
                "Expected `factor_penalty` to be a keras_bilinear.penalties object such as "
                f"Product(alpha=1e-3), or None. Received: factor_penalty={factor_penalty!r}"
            )
        self.factor_penalty = copy.copy(factor_penalty)

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The factors, in the order of their turns."""
        raise NotImplementedError

    @property
    def block_names(self) -> list[str]:
        """A name for each of them, such as "a1"."""
        raise NotImplementedError

    @property
    def forms(self) -> tuple[Tensor, Tensor]:
        """A (L, M, K) and B (L, N, K): the layer as K sums of L bilinear forms, as its penalty sees it."""
        raise NotImplementedError

    def _add_factor(self, name: str, shape: tuple[int, int], initializer: Any) -> keras.Variable:
        # Kept in the variable dtype: `call` casts it itself, so that the penalty is never taken in float16.
        factor = self.add_weight(name=name, shape=shape, initializer=initializer, autocast=False)
        # A model knows all its weights, however deep the layers are nested, but not those layers.
        factor.bilinear_layer = self
        return factor

    def _add_bias(self, name: str, shape: tuple[int, ...]) -> keras.Variable | None:
        if not self.use_bias:
            return None
        return self.add_weight(name=name, shape=shape, initializer="zeros", autocast=False)

    def _add_alpha(self) -> None:
        """The weight of the penalty becomes a variable, if there is one: no new trace when it changes."""
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
        """alpha R of the factors, scalar; zero without a penalty."""
        dtype = keras.backend.result_type(self.variable_dtype, "float32")  # never in half precision
        if self.factor_penalty is None:
            return ops.zeros((), dtype=dtype)
        A, B = (ops.cast(side, dtype) for side in self.forms)
        return ops.cast(self.alpha, dtype) * self.factor_penalty.value(A, B)

    def call(self, X: Tensor) -> Tensor:
        if self.factor_penalty is not None:
            self._attach_penalty()  # anew: a factor may have been frozen since
        return self.activation(self.logits(X))

    def logits(self, X: Tensor) -> Tensor:
        """What the layer computes, before the activation."""
        raise NotImplementedError

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Bilinear layers stay in floating point: Keras warns with this message, and goes on to other layers.

        Raises:
            NotImplementedError: always.
        """
        name = type(self).__name__
        raise NotImplementedError(f"A {name} layer stays in floating point under `quantize`; {SMALL_FILES}.")

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
                f"Expected {len(variables)} arrays for layer '{self.name}', a {type(self).__name__}. "
                f"Received: {len(store.keys())}"
            )
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def trainable_variables_in_order(self) -> list[keras.Variable]:
        """The factors in the paper's order, then the bias."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "left_initializer": keras.initializers.serialize(self.left_initializer),
            "right_initializer": keras.initializers.serialize(self.right_initializer),
            "factor_penalty": None if self.factor_penalty is None else serialize(self.factor_penalty),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "FactoredLayer":
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
    """alpha R of a layer, as Keras reads it: from a function of one variable."""

    def __init__(self, layer: FactoredLayer):
        self.layer = layer

    def __call__(self, factor: Tensor) -> Tensor:
        # Keras adds losses up in floatx, whatever the layer's own dtype.
        return ops.cast(self.layer.penalty(), keras.config.floatx())
