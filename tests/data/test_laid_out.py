"""Everything that is given with channels arrives as matrices."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.data.laid_out import laid_out, options_laid_out
from keras_bilinear.parts.image_layout import declared_layout

LAYOUT = declared_layout((4, 5, 3), (3, 1))
X = np.random.default_rng(0).integers(0, 256, size=(6, 4, 5, 3)).astype("uint8")
Y = np.arange(6)
MATRICES = LAYOUT.matrices(X)


@pytest.mark.parametrize("form", [np.asarray, tf.constant, np.ndarray.tolist, list])
def test_arrays_of_any_kind(form):
    np.testing.assert_array_equal(laid_out(form(X), LAYOUT), MATRICES)


@pytest.mark.parametrize("parts", [X, (X, Y), (X, Y, Y)], ids=["x", "xy", "xyw"])
def test_data_sets(parts):
    found = laid_out(tf.data.Dataset.from_tensor_slices(parts).batch(4), LAYOUT)
    batches = [batch if isinstance(batch, tuple) else (batch,) for batch in found]
    np.testing.assert_array_equal(np.concatenate([batch[0] for batch in batches]), MATRICES)
    assert len(batches[0]) == (len(parts) if isinstance(parts, tuple) else 1)
    assert found.cardinality() == 2


def test_options_of_fit():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    for given in ((X, Y), data):
        options = options_laid_out({"x": X, "y": Y, "validation_data": given}, LAYOUT)
        held_out = options["validation_data"]
        images = held_out[0] if isinstance(held_out, tuple) else next(iter(held_out))[0]
        for part in (options["x"], images):
            np.testing.assert_array_equal(part, MATRICES)
    assert options_laid_out({"x": X}, None)["x"] is X
    assert options_laid_out({"x": X}, LAYOUT)["validation_data"] is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.moveaxis(X, 3, 1), "Expected images of shape"),
        (tf.data.Dataset.from_tensor_slices((np.moveaxis(X, 3, 1), Y)).batch(2), "Expected images of shape"),
        (tf.data.Dataset.from_tensor_slices((X, Y)), "Expected images of shape"),
        (((x, y) for x, y in [(X, Y)]), "arrays or a tf.data.Dataset"),
    ],
    ids=["array", "data set", "no batches", "generator"],
)
def test_other_data_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        laid_out(data, LAYOUT)
