import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.problems import planted

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


def network():
    image = keras.Input((6, 5))
    seeded = {"left_initializer": "ones", "right_initializer": kb.OrthogonalizedUniform(0)}
    head = kb.BilinearDense(3, 2, "softmax", factor_penalty=kb.penalties.Sum(0.1), **seeded)
    model = kb.AlternatingModel(image, head(keras.layers.Dense(5, kernel_initializer="ones")(image)))
    model.compile("nadam", "sparse_categorical_crossentropy")
    return model


def regression():
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.01, use_bias=True, seed=0)
    model.compile()
    return model


def linear():
    model = kb.LinearSoftmaxRegression(3, alpha=0.01, input_shape=(6, 5))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0"])


def one_device():
    return tf.distribute.OneDeviceStrategy("CPU:0")


@pytest.mark.parametrize(
    ("make", "strategy"), [(network, mirrored), (regression, mirrored), (linear, mirrored), (linear, one_device)]
)
def test_a_strategy_with_one_replica_changes_nothing(make, strategy, tmp_path):
    problem = planted(T=24)
    x, y = problem.X.astype("float32"), problem.y
    strategy, plain = strategy(), make()
    with strategy.scope():
        model = make()
    histories = []
    for each in (plain, model):
        watch = [kb.callbacks.BilinearTensorBoard(tmp_path)] if make is network else []
        options = {} if each.is_exact else {"batch_size": 8, "shuffle": False}
        histories.append(each.fit(x, y, epochs=2, verbose=0, callbacks=watch, **options).history)
    np.testing.assert_allclose(histories[0]["J"], histories[1]["J"], rtol=1e-5)
    assert float(plain.penalty()) == pytest.approx(float(model.penalty()), rel=1e-4)
    assert "2 epochs" in str(model.convergence_report()) or "2 sweeps" in str(model.convergence_report())
