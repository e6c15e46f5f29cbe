"""Images as a model takes them: of one size, with or without channels, numbers or bytes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.arguments import image_shape
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.models.checked_calls import CheckedCalls
from keras_bilinear.parts.image_layout import declared_layout
from keras_bilinear.parts.matrices import as_matrices, shape_of, size_of_images
from keras_bilinear.solver.images import Images


class OnImages(CheckedCalls):
    """Mixed into a regression model, whose `head` sees matrices only."""

    _declared_shape: tuple[int, ...] | None

    def _declare(self, input_shape: Any, rows: Any) -> None:
        """Notes what the constructor was told of the images."""
        declared = None if input_shape is None else image_shape("input_shape", input_shape, channels=True)
        self._declared_shape = declared
        self._layout = declared_layout(self._declared_shape, rows)
        self.rows = None if self._layout is None else tuple(np.ravel(rows).tolist())

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        size = self._size_of(input_shape)
        if self.built and size != self.image_size:
            raise ValueError(
                f"Expected images of {self.image_size}, as built. Received: input of shape {input_shape}"
            )
        if not self.built:
            self.image_size = size
            self._build_head((None, *size))

    def _size_of(self, shape: tuple[int | None, ...]) -> tuple[int, int]:
        """(M, N) of the matrices of a batch, or a ValueError."""
        if self._layout is None:
            return size_of_images(shape)
        self._layout.expect("input", shape)
        return self._layout.size

    def _build_head(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the parameters for matrices of `input_shape`."""
        self.head.build(input_shape)

    def _build_from_declaration(self) -> None:
        """Builds at once when the constructor was told the shape of an image."""
        if self._declared_shape is not None:
            self.build((None, *self._declared_shape))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of an image: (M, N), or (M, N, C) of a model that has `rows`."""
        return self.image_size if self._layout is None else self._layout.shape

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        self._size_of(input_shape)
        return (input_shape[0], self.units)

    def _as_matrices(self, X: Tensor) -> Tensor:
        """(T, M, N) from what the model takes, checked even in a graph that has forgotten the shape."""
        if self._layout is not None:
            return as_matrices(self._layout.matrices(X), self.image_size)
        shape = shape_of(X)
        if shape is not None and (len(shape) > 4 or (len(shape) == 4 and shape[3] not in (1, None))):
            M, N = self.image_size
            raise ValueError(f"Expected images of shape (T, {M}, {N}) or (T, {M}, {N}, 1). Received: {shape}")
        return as_matrices(X, self.image_size)

    def _images(self, pixels: Tensor) -> Images:
        """Images (T, M, N) as the solver takes them, from pixels in the dtype it computes in or as bytes."""
        pixels = self._as_matrices(pixels)
        are_bytes = keras.backend.standardize_dtype(pixels.dtype) == "uint8"
        if self.input_scale == 1 and not are_bytes:
            return Images(pixels)
        dtype = self._solver_dtype if are_bytes else pixels.dtype
        return Images(pixels, ops.convert_to_tensor(self.input_scale, dtype=dtype))

    def filter_images(self) -> np.ndarray:
        """The filters in the shape of the images they are laid over: (K, M, N), or (K, M, N, C) with `rows`.

        z_k is the sum of a filter times an image, pixel by pixel, and the bias. `weight_matrices` has the same
        numbers as the matrices whose rank is `rank`.

        Raises:
            ValueError: if the model has no weights yet.

        Example:
            >>> model = LinearSoftmaxRegression(10, input_shape=(32, 32, 3), rows=1)
            >>> model.filter_images().shape
            (10, 32, 32, 3)
        """
        W = self.weight_matrices()
        return W if self._layout is None else self._layout.images(W)
