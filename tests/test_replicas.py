import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras_bilinear as kb
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = kb.BilinearSoftmaxRegression(3, 2, input_shape=(6, 5))
    model.compile({optimizer!r})
x, y = np.ones((8, 6, 5)), np.arange(8) % 3
for call in (model.fit, model.train_on_batch):
    try:
        call(x, y)
    except ValueError as error:
        assert "2 replicas" in str(error), error
    else:
        raise AssertionError("not refused")
"""


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_several_replicas_are_refused_with_the_reason(optimizer):
    script = SCRIPT.format(optimizer=optimizer)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180)
