"""Which shapes are batches of matrices, and what is known of them when a graph is traced."""

import tensorflow as tf
from keras import ops

from keras_bilinear.maths.bilinear import Tensor

LARGEST_COLOUR_AXIS = 4


def has_channel(shape: tuple[int | None, ...]) -> bool:
    """Whether a trailing axis of size one is a channel axis: (..., M, N, 1) with at least one leading axis."""
    return len(shape) >= 4 and shape[-1] == 1


def as_matrices(X: Tensor, size: tuple[int, int], lone: bool = False) -> Tensor:
    """X (..., M, N) from that or from (..., M, N, 1), with matrices of `size`, none of them lost or won.

    What is known when a graph is traced is checked then, the rest as the graph runs: Keras relaxes the shapes of
    what it has traced, to an unknown rank once it has seen both forms. `lone`: a channel axis counts as one, as in
    `lone_matrix_shape`.

    Raises:
        ValueError: if the shape is known to be another.
        tf.errors.InvalidArgumentError: if that comes to light as a graph runs.
    """
    shape = shape_of(X)
    if shape is None or (len(shape) == 4 and shape[3] is None and is_compatible(shape[1:3], size)):
        tf.debugging.assert_less_equal(tf.rank(X), 4, "Expected images of shape (T, M, N) or (T, M, N, 1)")
        X, shape = tf.reshape(X, tf.shape(X)[:3]), (None, None, None)  # fails for more than one channel
    if lone:
        refuse_maps(shape)
    if has_channel(shape):
        X, shape = ops.squeeze(X, axis=-1), shape[:-1]
    if len(shape) < 3 or not is_compatible(shape[-2:], size):
        M, N = size
        raise ValueError(
            f"Expected images of {M} x {N}, as built: input of shape (..., {M}, {N}) or (..., {M}, {N}, 1). "
            f"Received: input of shape {shape}"
        )
    return X if shape[-2:] == size else tf.ensure_shape(X, (*shape[:-2], *size))


def shape_of(X: Tensor) -> tuple[int | None, ...] | None:
    """The shape of an array as far as it is known; None where not even the rank is."""
    return None if getattr(X.shape, "rank", 0) is None else tuple(X.shape)


def is_compatible(shape: tuple[int | None, ...], size: tuple[int, ...]) -> bool:
    """Whether a shape may turn out to be `size`."""
    return len(shape) == len(size) and all(d in (None, s) for d, s in zip(shape, size, strict=True))


def matrix_shape(shape: tuple[int | None, ...]) -> tuple[int, int]:
    """(M, N) of a batch of matrices, or a ValueError that says what was received."""
    received = f"Received: input of shape {tuple(shape)}"
    if len(shape) < 3:
        raise ValueError(f"Expected a batch of matrices (..., M, N) or (..., M, N, 1). {received}")
    M, N = shape[-3:-1] if has_channel(shape) else shape[-2:]
    if len(shape) == 4 and shape[-1] is not None and 1 < shape[-1] <= LARGEST_COLOUR_AXIS:
        raise ValueError(
            "Expected a batch of matrices (..., M, N) or (..., M, N, 1); this looks like images with "
            f"{shape[-1]} channels, and a bilinear form takes one matrix. Lay the channels side by side, "
            f"`x.reshape(*x.shape[:2], -1)`, or take their mean, `x.mean(axis=-1)`. {received}"
        )
    if not M or not N:
        raise ValueError(f"Expected known, non-zero numbers of rows and columns. {received}")
    return int(M), int(N)


def lone_matrix_shape(shape: tuple[int | None, ...]) -> tuple[int, int]:
    """(M, N) of a batch with one matrix a sample, or a ValueError: from four axes on the last one is a channel."""
    refuse_maps(shape)
    return matrix_shape(shape)


def refuse_maps(shape: tuple[int | None, ...]) -> None:
    """Raises a ValueError for maps with several channels, of which nothing says which axes are rows."""
    if len(shape) < 4 or shape[-1] == 1:
        return
    raise ValueError(
        f"Expected one matrix a sample, (T, M, N) or (..., M, N, 1), not {shape[-1]} channels. Say which axes "
        "make its rows and which its columns, by `keras_bilinear.ToMatrix(rows=..., columns=...)`, or with "
        "`keras.layers.Reshape`. A sequence of matrices goes through `keras.layers.TimeDistributed`. "
        f"Received: input of shape {tuple(shape)}"
    )


def size_of_images(shape: tuple[int | None, ...]) -> tuple[int, int]:
    """(M, N) of images (T, M, N) or (T, M, N, 1), or a ValueError that says what was received."""
    size = matrix_shape(shape)
    if len(shape) > 4 or (len(shape) == 4 and shape[-1] != 1):
        raise ValueError(f"Expected images (T, M, N) or (T, M, N, 1). Received: input of shape {tuple(shape)}")
    return size
