import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.data.survey import LEAST, MOST, sketch_size, survey


def batches(x, y, *weight, size=4):
    return tf.data.Dataset.from_tensor_slices((x, y, *weight)).batch(size)


def good(T=10):
    rng = np.random.default_rng(0)
    return rng.random((T, 3, 2)).astype("float32"), np.arange(T) % 3


def test_it_counts_what_it_sees():
    x, y = good()
    weight = np.arange(10.0)
    found = survey(batches(x, y, weight), 3, {1: 2.0})
    assert (found.images, found.batches, found.counts.tolist()) == (10, 3, [4, 3, 3])
    assert found.largest_pixel == x.max()
    assert found.each_has_a_class
    assert not found.whole_pixels
    np.testing.assert_array_equal(found.sketch.x, x)
    np.testing.assert_allclose(found.sketch.weight, weight * np.where(y == 1, 2.0, 1.0) / 10)


def test_other_forms():
    x, y = good()
    found = survey(batches((255 * x).astype("uint8")[..., None], 0.7 * np.eye(3)[y] + 0.1), 3)
    assert found.whole_pixels
    assert not found.each_has_a_class
    assert found.sketch.x.shape == (10, 3, 2)
    assert found.sketch.x.dtype == "uint8"
    assert survey(batches(x, y[:, None] % 2), 1).counts.tolist() == [7, 3]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y, w: x.__setitem__((9, 0, 0), np.nan), r"finite numbers in `x`.*batch 3"),
        (lambda x, y, w: y.__setitem__(5, 3), r"from 0 to 2.*\[3\] \(batch 2"),
        (lambda x, y, w: w.__setitem__(0, -1.0), r"`sample_weight` >= 0.*batch 1"),
        (lambda x, y, w: w.fill(0.0), "all zero"),
        (lambda x, y, w: w.fill(1e38), "sum is a float32 number"),
    ],
)
def test_what_no_model_can_be_trained_on_is_refused(spoil, message):
    (x, y), w = good(), np.ones(10)
    spoil(x, y, w)
    with pytest.raises(ValueError, match=message):
        survey(batches(x, y, w), 3)


def test_images_of_another_size_and_empty_sets():
    x, y = good()
    with pytest.raises(ValueError, match="Expected images of 4 x 4"):
        survey(batches(x, y), 3, size=(4, 4))
    with pytest.raises(ValueError, match="Received: none"):
        survey(batches(x[:0], y[:0]), 3)


def test_fewer_of_large_images_are_kept_but_not_too_few():
    assert [sketch_size(size) for size in ((28, 28), (128, 128), (4096, 4096))] == [MOST, 2048, LEAST]
