"""Images as the solver reads them: bytes stay bytes, and the unit of a pixel is a factor, not a copy."""

from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.solver.preconditioner import CURVATURE, sample

TILE = 512
"""So many images of bytes are cast at a time within a product: few enough to stay in the cache."""


class Images(NamedTuple):
    """X = scale times pixels, of which no copy is made.

    Fields:
        pixels: (T, M, N), in the dtype that products are computed in or, with a scale, as bytes: uint8.
        scale: What a pixel is multiplied by, scalar, in the dtype of the products; None for pixels that are X.
    """

    pixels: Tensor
    scale: Tensor | None = None

    @property
    def dtype(self) -> Any:
        """That of products with the images."""
        return self.pixels.dtype if self.scale is None else self.scale.dtype

    @property
    def are_bytes(self) -> bool:
        """Whether pixels must be cast before they are multiplied."""
        return self.pixels.dtype != self.dtype

    def scaled(self, values: Tensor) -> Tensor:
        """Values in the unit of X from those in the unit of a pixel, and filters the other way round."""
        return values if self.scale is None else self.scale * values

    def forward(self, W: Tensor) -> Tensor:
        """<W_k, X_t>, (T, K). W (K, M, N)."""
        W = self.scaled(W)
        if not self.are_bytes:
            return ops.einsum("tmn,kmn->tk", self.pixels, W)

        def product(pixels: Tensor) -> Tensor:
            return ops.einsum("tmn,kmn->tk", ops.cast(pixels, self.dtype), W)

        tiles, rest = in_tiles(self.pixels)
        # By their numbers: to map the tiles themselves would copy all of them.
        z = tf.map_fn(lambda i: product(tiles[i]), tf.range(ops.shape(tiles)[0]), fn_output_signature=self.dtype)
        return ops.concatenate([ops.reshape(z, (-1, ops.shape(W)[0])), product(rest)])

    def adjoint(self, residual: Tensor) -> Tensor:
        """sum_t residual_{t,k} X_t, (K, M, N). residual (T, K)."""
        if not self.are_bytes:
            return self.scaled(ops.einsum("tk,tmn->kmn", residual, self.pixels))

        def product(pixels: Tensor, r: Tensor) -> Tensor:
            return ops.einsum("tk,tmn->kmn", r, ops.cast(pixels, self.dtype))

        (tiles, rest), (r_tiles, r_rest) = in_tiles(self.pixels), in_tiles(residual)
        numbers, begin = tf.range(ops.shape(tiles)[0]), product(rest, r_rest)
        return self.scaled(tf.foldl(lambda total, i: total + product(tiles[i], r_tiles[i]), numbers, begin))

    def logits(self, A: Tensor, B: Tensor, bias: Tensor | None = None) -> Tensor:
        """z (T, K), as `maths.bilinear.logits`."""
        z = self.forward(bm.merged_weights(A, B))
        return z if bias is None else z + bias

    def part(self, most: int = CURVATURE) -> "Images":
        """Evenly spaced images of them, as `preconditioner.sample` takes them, and no longer as bytes."""
        (chosen,) = sample(self.pixels, most=most)
        return Images(ops.cast(chosen, self.dtype), self.scale)

    def values(self) -> Tensor:
        """X (T, M, N), a copy unless it is what the pixels are."""
        return self.scaled(ops.cast(self.pixels, self.dtype))

    def mean(self) -> Tensor:
        """The mean image (M, N), of a part of them."""
        return self.scaled(ops.mean(self.part().pixels, axis=0))


def in_tiles(array: Tensor) -> tuple[Tensor, Tensor]:
    """(T, ...) as tiles (n, TILE, ...), smaller ones where there are fewer, and the rows that are left over."""
    T, *row = ops.shape(array)
    size = min(TILE, T) if isinstance(T, int) else ops.minimum(TILE, T)
    whole = T // size * size
    return ops.reshape(array[:whole], (-1, size, *row)), array[whole:]
