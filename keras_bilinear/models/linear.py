"""LLR and LSR, the linear models that those of the paper are measured against."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import non_negative
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear.solver.descent import Solution
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.streamed import KernelOnSketch


class LinearBaseline(ImageRegression):
    """LLR and LSR: z_k = <W_k, X> + bias_k with the penalty alpha/2 |W|^2: convex, solved as one block."""

    def __init__(
        self,
        units: int,
        alpha: float = 1e-3,
        use_bias: bool = False,
        input_shape: Any = None,
        name: str | None = None,
        dtype: Any = None,
        input_scale: float = 1.0,
        rows: Any = None,
    ):
        super().__init__(units, alpha, use_bias, input_shape, name, dtype, input_scale, rows)
        self.ridge = penalties.Ridge(alpha)
        self.head = keras.layers.Dense(
            self.units,
            use_bias=self.use_bias,
            kernel_initializer="zeros",
            kernel_regularizer=self.ridge,
            name="linear",
            dtype=self.dtype_policy,
        )
        self._start_schedule(num_blocks=1)
        self._build_from_declaration()

    def _build_head(self, input_shape: tuple[int | None, ...]) -> None:
        M, N = self.image_size
        self.head.build((None, M * N))

    @property
    def alpha(self) -> float:
        """Weight of the penalty; assigning to it takes effect at the next step, without a new trace."""
        return float(self.ridge.alpha.numpy())

    @alpha.setter
    def alpha(self, value: float) -> None:
        self.ridge.alpha.assign(non_negative("alpha", value))

    @property
    def factor_blocks(self) -> list[keras.Variable]:
        """The single block: the kernel (M N, K)."""
        return [self.head.kernel]

    @property
    def block_names(self) -> list[str]:
        return ["W"]

    def _scores(self, X: Tensor) -> Tensor:
        M, N = self.image_size
        return self.head(ops.reshape(ops.cast(X, self.compute_dtype), (-1, M * N)))

    def _solved(
        self, X: Images, samples: Samples, active: Tensor, max_inner: int | None = None
    ) -> tuple[tuple[Tensor, Tensor | None], Solution]:
        kernel, bias = self._parameters(X.dtype)
        alpha = ops.cast(ops.copy(self.ridge.alpha), X.dtype)
        solution = self._solver().solve_linear(X, samples, kernel, bias, alpha, self._jit_solver, max_inner)
        U = solution.parameters
        return ((U, None) if bias is None else (U[:-1], U[-1])), solution

    def _assign(self, parameters: tuple[Tensor, Tensor | None]) -> None:
        kernel, bias = parameters
        self.head.kernel.assign(kernel)
        if self.head.bias is not None:
            self.head.bias.assign(bias)

    def _on_sketch(self, X: Images, samples: Samples) -> KernelOnSketch:
        alpha = ops.cast(ops.copy(self.ridge.alpha), X.dtype)
        return KernelOnSketch(X, samples, alpha, self._jit_solver)

    def _parameters(self, dtype: Any) -> tuple[Tensor, Tensor | None]:
        """The kernel (M N, K) and the bias (K,) or None."""
        bias = None if self.head.bias is None else ops.cast(ops.copy(self.head.bias), dtype)
        return ops.cast(ops.copy(self.head.kernel), dtype), bias

    def _logits(self, X: Images) -> Tensor:
        kernel, bias = self._parameters(X.dtype)
        z = X.forward(ops.reshape(ops.transpose(kernel), (-1, *self.image_size)))
        return z if bias is None else z + bias

    def penalty(self) -> Tensor:
        return ops.cast(self.ridge(self.head.kernel), self._solver_dtype)

    def weight_matrices(self) -> np.ndarray:
        self._expect_built()
        return ops.convert_to_numpy(self.head.kernel.value).T.reshape(self.units, *self.image_size)


@keras.saving.register_keras_serializable(package="keras_bilinear")
class LinearSoftmaxRegression(LinearBaseline):
    """Classifies images X by p_k = softmax_k(<W_k, X>), the paper's LSR, which BSR is measured against.

    Beside what every `keras.Model` has: `weight_matrices()` W, `objective(x, y)` J, `certificate(x, y)` how far J
    can be from its optimum, `convergence_report()` how the last fit went, `logits(x)`, `filter_images()`.

    Args:
        units: K, the number of classes, 2 or more.
        alpha: Weight of the penalty 1/2 |W|^2, >= 0; 0 leaves the filters of separable images without bound.
        use_bias: Whether each class has an intercept, which is not penalised.
        input_shape: (M, N) or (M, N, 1); without it the model is built by the first data it sees. (M, N, C), with
            `rows`, for images with C channels.
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
        >>> LinearSoftmaxRegression(units=10, alpha=1e-4).fit(x_train, y_train, epochs=5)
    """

    _is_softmax = True


@keras.saving.register_keras_serializable(package="keras_bilinear")
class LinearLogisticRegression(LinearBaseline):
    """Tells two classes of images X apart by p = sigmoid(<W, X>), the paper's LLR, which BLR is measured against.

    Arguments and methods are those of `LinearSoftmaxRegression`, without `units`: `weight_matrices()`,
    `objective(x, y)`, `certificate(x, y)` and the others.

    Example:
        >>> LinearLogisticRegression(alpha=1e-4).fit(x_train, is_nine, epochs=5)
    """

    def __init__(
        self,
        alpha: float = 1e-3,
        use_bias: bool = False,
        input_shape: Any = None,
        name: str | None = None,
        dtype: Any = None,
        input_scale: float = 1.0,
        rows: Any = None,
    ):
        super().__init__(1, alpha, use_bias, input_shape, name, dtype, input_scale, rows)
