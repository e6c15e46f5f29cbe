import numpy as np
import pytest

from keras_bilinear.data.arrays import Batch
from keras_bilinear.data.sketch import FEW, FirstOfEachClass, Reservoir


def batch(numbers, y=None):
    """Images whose only pixel is their number."""
    numbers = np.asarray(numbers)
    y = np.zeros(len(numbers), int) if y is None else np.asarray(y)
    return Batch(numbers.reshape(-1, 1, 1).astype("float32"), y, np.ones(len(numbers)))


def drawn(T, size, parts, seed=0):
    reservoir = Reservoir(size, seed)
    for numbers in np.array_split(np.arange(T), parts):
        reservoir.add(batch(numbers))
    return reservoir.images().x.ravel().astype(int)


@pytest.mark.parametrize("parts", [1, 7, 100])
def test_a_reservoir_keeps_so_many_different_images_of_any_part_of_the_stream(parts):
    counts = np.zeros(100)
    for seed in range(400):
        kept = drawn(100, 20, parts, seed)
        assert len(set(kept)) == 20
        counts[kept] += 1
    # Each image with probability 1/5: 80 of 400 times, give or take five deviations of 8.
    assert np.abs(counts - 80).max() < 40
    assert abs(counts[:50].sum() - counts[50:].sum()) < 5 * np.sqrt(8000 * 0.8)


def test_a_short_stream_is_kept_in_its_order_and_the_same_stream_leaves_the_same():
    np.testing.assert_array_equal(drawn(7, 20, 3), np.arange(7))
    np.testing.assert_array_equal(drawn(100, 20, 3), drawn(100, 20, 3))


def test_rare_classes_are_among_them_with_the_share_they_have():
    T, rng = 2000, np.random.default_rng(0)
    y = np.zeros(T, int)
    y[-30:] = 1  # of a stream in the order of the classes chance draws some 1.5
    y[5:8] = 2
    weight = rng.random(T)
    reservoir, firsts = Reservoir(100), FirstOfEachClass(4)
    for part in np.array_split(np.arange(T), 13):
        images = batch(part, y[part])._replace(weight=weight[part])
        reservoir.add(images)
        firsts.add(images, images.y)
    kept = reservoir.images()
    x, labels, w = firsts.complete(kept, kept.y)
    np.testing.assert_array_equal(firsts.counts, [1967, 30, 3, 0])
    assert np.bincount(labels, minlength=4)[1:].tolist() == [FEW, 3, 0]
    np.testing.assert_array_equal(y[x.ravel().astype(int)], labels)
    # The mean weight of a class times its share: the three of class 2 are all of them.
    assert w[labels == 2].sum() == pytest.approx(weight[y == 2].sum() / T)
    assert w[labels == 1].sum() == pytest.approx(weight[np.flatnonzero(y == 1)[:FEW]].mean() * 30 / T)
