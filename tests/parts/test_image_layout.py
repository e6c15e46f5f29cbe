"""Images with channels as matrices and back."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.parts.image_layout import declared_layout
from keras_bilinear.parts.to_matrix import ToMatrix

SHAPE = (4, 5, 3)
ROWS = {1: (2, 3), 2: (1, 3), -1: (1, 2), (1, 2): 3, (3, 1): 2, (-1, 2): 1}


def images(T=2):
    return np.random.default_rng(0).normal(size=(T, *SHAPE)).astype("float32")


@pytest.mark.parametrize(("rows", "columns"), ROWS.items())
def test_matrices_are_those_of_to_matrix_and_go_back(rows, columns):
    layout, x = declared_layout(SHAPE, rows), images()
    expected = ToMatrix(rows, columns)(x)
    matrices = layout.matrices(x)
    assert isinstance(matrices, np.ndarray)
    assert matrices.shape[1:] == layout.size
    np.testing.assert_array_equal(matrices, expected)
    np.testing.assert_array_equal(layout.matrices(tf.constant(x)), expected)
    np.testing.assert_array_equal(layout.images(matrices), x)
    assert layout.matrices(matrices) is matrices


def test_nothing_is_copied_where_the_axes_keep_their_order():
    x = images()
    assert np.shares_memory(declared_layout(SHAPE, 1).matrices(x), x)


def test_a_graph_that_has_forgotten_sizes_takes_no_permuted_images():
    layout = declared_layout(SHAPE, 1)
    matrices = tf.function(layout.matrices, input_signature=[tf.TensorSpec((None, None, None, None), "float32")])
    np.testing.assert_array_equal(matrices(images()), layout.matrices(images()))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        matrices(np.moveaxis(images(), 3, 1))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 5, 4, 3), (2, 4, 5), (2, 60), (2, 4, 5, 3, 1), (4, 5, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"Expected images of shape \(T, 4, 5, 3\), or the matrices \(T, 4, 15\)"):
        declared_layout(SHAPE, 1).matrices(np.zeros(shape, "float32"))


@pytest.mark.parametrize(
    ("shape", "rows", "message"),
    [
        (SHAPE, None, r"rows=1 makes .* rows=\(1, 2\) makes"),
        (None, 1, r"Expected `input_shape` \(M, N, C\) with `rows`"),
        ((4, 5), 1, r"Expected `input_shape` \(M, N, C\) with `rows`"),
        (SHAPE, (1, 2, 3), "one or two of the axes"),
        (SHAPE, 4, "one or two of the axes"),
        (SHAPE, (1, 1), "name each of the axes"),
        (SHAPE, (1, -3), "name each of the axes"),
        (SHAPE, 0, "Expected `rows` to be an axis"),
        (SHAPE, "first", "Expected `rows` to be an axis"),
    ],
)
def test_unfit_declarations_are_refused(shape, rows, message):
    with pytest.raises(ValueError, match=message):
        declared_layout(shape, rows)


def test_without_rows_there_is_no_layout():
    assert all(declared_layout(shape, None) is None for shape in (None, (4, 5), (4, 5, 1)))
