"""Which axes of an image or a feature map make the rows of a matrix, and which the columns."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import plain_text
from keras_bilinear.maths.bilinear import Tensor


@keras.saving.register_keras_serializable(package="keras_bilinear")
class ToMatrix(keras.layers.Layer):
    """Lays out the axes of each sample as a matrix, for a bilinear layer: `Permute` and `Reshape`, no weights.

    Axes are numbered as in `keras.layers.Permute`: 1 is the first of a sample, for 0 is the batch; -1 is the last.
    Those of an image or feature map (M, N, C) are 1, 2 and 3:

        ToMatrix(rows=1, columns=(2, 3))      M x (N C)     a row of pixels with all their channels
        ToMatrix(rows=(1, 2), columns=3)      (M N) x C     all places, by their channels
        ToMatrix(rows=(3, 1), columns=2)      (C M) x N     the channels below each other

    Args:
        rows: The axis, or axes, that run down the rows; of several the last runs fastest.
        columns: Those that run along the columns. Each axis of a sample belongs to one of the two.

    Input:
        (T, ...), any dtype, of a known size in all axes but the first.

    Output:
        (T, product of the row axes, product of the column axes), of the same dtype.

    Raises:
        ValueError: if an axis is no integer, is 0, or is missing or named twice for the input it gets, or the size
            of one is not known.

    Example:
        >>> keras_bilinear.ToMatrix(rows=1, columns=(2, 3))(np.ones((2, 8, 6, 3))).shape
        TensorShape([2, 8, 18])
    """

    def __init__(self, rows: int | Sequence[int], columns: int | Sequence[int], **kwargs: Any):
        super().__init__(**{**kwargs, "name": plain_text(kwargs.get("name"))})
        self.rows, self.columns = checked_axes("rows", rows), checked_axes("columns", columns)

    def call(self, X: Tensor) -> Tensor:
        axes, M, N = sizes(self.rows, self.columns, tuple(X.shape))
        return as_matrices_of(X, axes, (M, N))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], *sizes(self.rows, self.columns, tuple(input_shape))[1:])

    def compute_output_spec(self, X: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(X.shape), dtype=X.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rows": self.rows, "columns": self.columns}


def checked_axes(name: str, axes: Any) -> tuple[int, ...]:
    """The axes as a tuple of integers, or a ValueError."""
    given = (axes,) if isinstance(axes, int) else axes
    is_list = isinstance(given, list | tuple) and len(given) > 0
    if not is_list or any(isinstance(axis, bool) or not isinstance(axis, int) or axis == 0 for axis in given):
        raise ValueError(
            f"Expected `{name}` to be an axis or several, 1 for the first of a sample or -1 for the last. "
            f"Received: {name}={axes!r}"
        )
    return tuple(given)


def sizes(
    rows: tuple[int, ...], columns: tuple[int, ...], shape: tuple[int | None, ...]
) -> tuple[tuple[int, ...], int, int]:
    """The axes of a batch of this shape in their new order, and how many rows and columns they make."""
    axes = tuple(axis + len(shape) if axis < 0 else axis for axis in rows + columns)
    if sorted(axes) != list(range(1, len(shape))):
        raise ValueError(
            f"Expected `rows` and `columns` to name each of the axes 1 to {len(shape) - 1} once. Received: "
            f"rows={rows}, columns={columns} for an input of shape {tuple(shape)}"
        )
    if None in shape[1:] or 0 in shape[1:]:
        raise ValueError(f"Expected an input of known, non-zero size. Received: input of shape {tuple(shape)}")
    M, N = (math.prod(shape[axis] or 0 for axis in part) for part in (axes[: len(rows)], axes[len(rows) :]))
    return axes, M, N


def as_matrices_of(X: Any, axes: tuple[int, ...], size: tuple[int, int]) -> Any:
    """(T, M, N) of a batch whose axes run in this order; a NumPy array stays one."""
    array = np if isinstance(X, np.ndarray) else ops
    if axes != tuple(sorted(axes)):
        X = array.transpose(X, (0, *axes))
    return array.reshape(X, (-1, *size))
