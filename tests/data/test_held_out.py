import numpy as np
import pytest

from keras_bilinear.data.arrays import Batch
from keras_bilinear.data.held_out import (
    checked_groups,
    folds_of,
    parted,
    spread,
    stratified,
    train_validation_split,
)


def numbered(y):
    """Images that hold their number."""
    T = len(y)
    return Batch(np.arange(float(T)).reshape(T, 1, 1), np.asarray(y), np.ones(T))


def test_validation_split_takes_the_last_samples():
    batch = numbered([0, 1, 2, 0, 1, 2])
    first, last = train_validation_split(batch, 1 / 3)
    assert (len(first.x), len(last.x)) == (4, 2)
    np.testing.assert_array_equal(last.x, batch.x[4:])
    for fraction in (1.0, -0.5, None):
        with pytest.raises(ValueError, match="validation_split"):
            train_validation_split(batch, fraction)


def test_a_stratified_split_takes_the_last_of_every_class():
    y = np.sort(np.tile([0, 1, 1, 2, 2, 2], 20))  # in order: a split from the end would leave class 0 out
    last = stratified(y, 0.25)
    assert last.sum() == 30
    np.testing.assert_array_equal(np.bincount(y[last]), [5, 10, 15])
    for k in range(3):
        members = last[y == k]
        assert (np.diff(members.astype(int)) >= 0).all()
    with pytest.raises(ValueError, match="validation_split"):
        stratified(y, 1.0)


def test_folds_hold_out_every_sample_once_and_spread_each_class_over_all():
    y = np.tile(np.arange(5), 8)  # in an order that parts of every fifth sample would turn into single classes
    seen = []
    for train, held_out in folds_of(numbered(y), 5, 5):
        seen += held_out.x.ravel().tolist()
        assert sorted([*train.x.ravel(), *held_out.x.ravel()]) == list(range(40))
        assert np.bincount(train.y, minlength=5).min() >= 6
        assert np.bincount(held_out.y, minlength=5).min() >= 1
    assert sorted(seen) == list(range(40))


def people(seed=0):
    """The classes of 300 images, and who is in each: 20 people, some more often than others."""
    random = np.random.default_rng(seed)
    return random.integers(3, size=300), np.sort(random.integers(20, size=300))


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_on_both_sides_of_a_split(seed):
    y, groups = people(seed)
    last = stratified(y, 0.2, groups)
    assert not set(groups[last]) & set(groups[~last])
    assert 0.1 < last.mean() < 0.3
    shares = np.bincount(y[last], minlength=3) / np.bincount(y)
    assert shares.min() > 0.08


def test_folds_of_groups_are_whole_and_alike():
    y, groups = people()
    held_out = [last.x.ravel().astype(int) for _, last in folds_of(numbered(y), 3, 4, groups)]
    assert sorted(np.concatenate(held_out)) == list(range(300))
    for numbers in held_out:
        assert not set(groups[numbers]) & set(np.delete(groups, numbers))
        assert 0.15 < len(numbers) / 300 < 0.35


@pytest.mark.parametrize(("shares", "count"), [([0.9, 0.1], 2), ([0.25] * 4, 4)])
def test_no_part_stays_empty_while_there_are_groups_for_all(shares, count):
    groups = np.repeat(np.arange(count), 10)
    part = spread(np.tile([0, 1], 5 * count), groups, shares)
    assert set(part) == set(range(len(shares)))


def test_groups_are_counted():
    np.testing.assert_array_equal(checked_groups(["b", "a", "b"], 3, None), [1, 0, 1])
    assert checked_groups(None, 3, 5) is None
    for groups, folds, message in (
        ([1, 2], None, r"shape \(3,\)"),
        ([1, 1, 1], None, "2 kinds or more"),
        ([1, 2, 2], 3, "3 kinds or more"),
    ):
        with pytest.raises(ValueError, match=message):
            checked_groups(groups, 3, folds)


def test_parts_are_the_rest_and_what_is_held_out():
    first, last = parted(numbered([0, 1, 0]), np.array([False, True, False]))
    assert (first.x.ravel().tolist(), last.x.ravel().tolist()) == ([0, 2], [1])
    assert (first.y.tolist(), last.y.tolist()) == ([0, 0], [1])
