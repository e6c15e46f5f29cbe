import numpy as np
import tensorflow as tf

from keras_bilinear.parts.replicas import (
    agree,
    flat,
    has_workers,
    is_chief,
    numbers_of_workers,
    of_first,
    split_like,
)


def test_numbers_of_every_type_come_back_from_one_row():
    parts = [tf.constant([[1.5, -2.0]], "float32"), tf.constant(2**31 - 1, "int32"), tf.zeros((0, 3), "float64")]
    row = flat(parts)
    assert (row.dtype, row.shape) == (tf.float64, (3,))
    for part, again in zip(parts, split_like(row, parts), strict=True):
        np.testing.assert_array_equal(again, part)


def test_a_process_of_its_own_is_the_chief_and_agrees_with_itself():
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
        assert not has_workers(strategy)
        assert is_chief(strategy)
        assert numbers_of_workers(strategy, 7) == [7]
        with strategy.scope():
            variable = tf.Variable([1.0, 2.0])
        agree(strategy, [variable])
        (value,) = of_first(strategy, [variable])
        np.testing.assert_array_equal(value, [1.0, 2.0])
