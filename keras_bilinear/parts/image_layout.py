"""Images with channels as the matrices that a model computes with, and its filters as such images again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bilinear.parts.matrices import is_compatible, shape_of
from keras_bilinear.parts.to_matrix import as_matrices_of, checked_axes, sizes


@dataclass(frozen=True)
class ImageLayout:
    """How images (M, N, C) become matrices; both are taken, for one has an axis more than the other.

    Attributes:
        shape: (M, N, C).
        axes: The axes 1, 2 and 3 of a batch in the order in which they run, first those of the rows.
        size: Rows and columns of a matrix.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    size: tuple[int, int]

    def expect(self, name: str, shape: tuple[int | None, ...]) -> None:
        """Raises a ValueError for a shape that neither images nor matrices of this layout can have."""
        if not any(is_compatible(tuple(shape)[1:], size) for size in (self.shape, self.size)):
            M, N = self.size
            images = ", ".join(map(str, self.shape))
            raise ValueError(
                f"Expected images of shape (T, {images}), or the matrices (T, {M}, {N}) that `rows` makes of them. "
                f"Received: {name} of shape {tuple(shape)}"
            )

    def matrices(self, X: Any) -> Any:
        """(T, rows, columns) of images (T, M, N, C), of which NumPy's stay NumPy's; of matrices themselves."""
        shape = shape_of(X)
        if shape is None:
            return X  # a graph has forgotten it: only matrices get so far
        self.expect("input", shape)
        if len(shape) == 3:
            return X
        if None in shape[1:]:
            X = tf.ensure_shape(X, (None, *self.shape))
        return as_matrices_of(X, self.axes, self.size)

    def images(self, W: np.ndarray) -> np.ndarray:
        """(K, M, N, C) of matrices (K, rows, columns)."""
        back = (0, *(self.axes.index(axis) + 1 for axis in (1, 2, 3)))
        return W.reshape(-1, *(self.shape[axis - 1] for axis in self.axes)).transpose(back)


def declared_layout(shape: tuple[int, ...] | None, rows: Any) -> ImageLayout | None:
    """The layout that a model's `input_shape`, checked already, and `rows` say; None for images without channels.

    The axes `rows` of an image (M, N, C) make the rows, the others, in their order, the columns.
    """
    channels = shape is not None and len(shape) == 3
    if rows is None:
        if shape is not None and channels and shape[2] > 1:
            raise ValueError(
                f"Expected `rows` with images of {shape[2]} channels: rows=1 makes matrices M x (N C) of them, "
                f"rows=(1, 2) makes (M N) x C. Received: input_shape={shape} and rows=None"
            )
        return None
    given = checked_axes("rows", rows)
    if shape is None or not channels:
        raise ValueError(
            "Expected `input_shape` (M, N, C) with `rows`, which says which of its axes make the rows of a matrix. "
            f"Received: input_shape={shape} and rows={rows!r}"
        )
    named = tuple(axis + 4 if axis < 0 else axis for axis in given)
    columns = tuple(axis for axis in (1, 2, 3) if axis not in named)
    if not columns or not set(named) <= {1, 2, 3}:
        raise ValueError(
            "Expected `rows` to name one or two of the axes 1, 2 and 3 of an image (M, N, C); the others make the "
            f"columns. Received: rows={given}"
        )
    axes, M, N = sizes(named, columns, (None, *shape))
    return ImageLayout(shape, axes, (M, N))
