"""Several replicas: two devices of this process, and two processes that find each other on loopback."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.parts import replicas
from tests.four_models import MODELS
from tests.problems import planted
from tests.scripts import script

OLD = "metrics of this Keras are not added up over replicas"


def network(optimizer="nadam"):
    image = keras.Input((6, 5))
    seeded = {"left_initializer": "ones", "right_initializer": kb.OrthogonalizedUniform(0)}
    head = kb.BilinearDense(3, 2, "softmax", factor_penalty=kb.penalties.Sum(0.1), **seeded)
    model = kb.AlternatingModel(image, head(keras.layers.Dense(5, kernel_initializer="ones")(image)))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
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


@pytest.mark.parametrize(("make", "strategy"), [(network, mirrored), (regression, mirrored), (linear, one_device)])
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


def sorted_data(T=101):
    """Images in the order of their classes: with batches of 50, the first has few classes, the last one image."""
    problem = planted(T=T)
    order = np.argsort(problem.y, kind="stable")
    return problem.X[order].astype("float32"), problem.y[order]


def stream(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(50)


@pytest.fixture(scope="module")
def two():
    if not replicas.METRICS_ADD_UP:
        pytest.skip(OLD)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def expect_the_same(strategy, model):
    """Every replica has every variable, and all have the same bits."""
    for variable in [*model.variables, *model.optimizer.variables]:
        one, other = (each.numpy().tobytes() for each in strategy.experimental_local_results(variable.value))
        assert one == other, variable.path


def both(two, make, fit):
    """The histories of a model on one replica, and on two that end the same; and the latter."""
    alone = fit(make()).history
    with two.scope():
        model = make()
    history = fit(model).history
    assert set(history) == set(alone)
    assert np.isfinite([history[name] for name in history if name != "improvement"]).all()
    for name, tolerance in {"J": 1e-6, "accuracy": 1e-6, "val_loss": 1e-5, "val_accuracy": 1e-6}.items():
        np.testing.assert_allclose(history[name], alone[name], rtol=tolerance, err_msg=name)
    expect_the_same(two, model)
    return model, history


def one_batch(x, y):
    """Which is taken for arrays, and these are read in parts."""
    return tf.data.Dataset.from_tensors((x, y))


@pytest.mark.parametrize("form", [stream, one_batch])
def test_replicas_fit_exactly_what_one_does(two, form):
    x, y = sorted_data()
    held_out = (x[:51], y[:51])

    def fit(model):
        data = (stream if model.distribute_strategy.num_replicas_in_sync == 1 else form)(x, y)
        options = {"validation_batch_size": 50, "class_weight": {0: 2.0}}
        return model.fit(data, epochs=4, verbose=0, validation_data=held_out, **options)

    model, history = both(two, lambda: MODELS["BSR"](use_bias=True), fit)
    assert np.all(np.diff(history["J"]) <= 0)
    assert model.objective(x, y, np.where(y == 0, 2.0, 1.0)) == pytest.approx(history["J"][-1], rel=1e-6)
    assert "J = " in str(model.convergence_report())


def regression_by_steps():
    model = MODELS["BSR"](use_bias=True)
    model.compile("adamw")
    return model


@pytest.mark.parametrize(
    "make", [regression_by_steps, lambda: network(keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1))]
)
def test_replicas_take_the_steps_of_one(two, make):
    x, y = sorted_data()
    options = {"batch_size": 50, "shuffle": False, "validation_batch_size": 50}
    model, _ = both(
        two, make, lambda model: model.fit(x, y, epochs=3, verbose=0, validation_data=(x[:51], y[:51]), **options)
    )
    # Only the active block moves, and what the optimizer keeps for it.
    active = int(model.schedule.active.numpy())
    before = [block.numpy() for block in model.factor_blocks]
    model.fit(x, y, epochs=1, verbose=0, **options)
    moved = [not np.array_equal(block, old) for block, old in zip(model.factor_blocks, before, strict=True)]
    assert moved == [index == (active + 1) % len(moved) for index in range(len(moved))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: fitted(model, kb.BlockLineSearch(blocks="factor")), "several replicas"),
        (lambda model: model.train_on_batch(*sorted_data()), "Expected `fit`"),
        (lambda model: model.compile("adam", jit_compile=True), "jit_compile"),
        (lambda model: model.compile(steps_per_execution=3), "steps_per_execution=1"),
        (lambda model: model.compile("adam", keras.losses.CategoricalCrossentropy(reduction="sum")), "reduction"),
        (lambda model: model.compile(keras.optimizers.Adam()), "in `strategy.scope\\(\\)`"),
    ],
)
def test_what_replicas_cannot_do_is_refused_with_the_reason(two, change, message):
    with two.scope():
        model = MODELS["BSR"]()
    with pytest.raises(ValueError, match=message):
        change(model)
    assert not model.built


def fitted(model, optimizer):
    model.compile(optimizer)
    model.fit(*sorted_data(), verbose=0)


def test_strategies_whose_replicas_do_not_go_together_are_refused():
    with tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]).scope():
        model = MODELS["BSR"]()
        with pytest.raises(ValueError, match="Received: CentralStorageStrategy"):
            model.compile()


def test_a_Keras_whose_metrics_do_not_add_up_is_refused(monkeypatch):
    monkeypatch.setattr(replicas, "METRICS_ADD_UP", False)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(), pytest.raises(ValueError, match="newer Keras"):
        MODELS["BSR"]().compile()


@pytest.mark.skipif(not replicas.METRICS_ADD_UP, reason=OLD)
def test_two_workers_do_what_one_process_does(tmp_path):
    example = script("scale/replicas")
    logs = [tmp_path / f"{index}.json" for index in range(2)]
    root = pathlib.Path(__file__).parents[2]
    children = []
    for config, log in zip(example.configurations(2), logs, strict=True):
        command = [sys.executable, "-m", "tests.models.worker", str(tmp_path), str(log)]
        environment = {**os.environ, "TF_CONFIG": config}
        children.append(subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True))
    for child in children:
        _, errors = child.communicate(timeout=600)
        assert child.returncode == 0, errors[-3000:]
    chief, other = (json.loads(log.read_text()) for log in logs)
    # Keras can train on several workers, or another way has become necessary: see `models/workers.py`.
    assert "PerReplica" in chief["faults"][0]
    assert "Invalid reduction dimension" in chief["faults"][1]
    assert (chief["exact"], chief["steps"], chief["hash"]) == (other["exact"], other["steps"], other["hash"])
    x, y = sorted_data()
    alone = MODELS["BSR"]().fit(stream(x, y), epochs=3, verbose=0, validation_data=stream(x, y)).history
    np.testing.assert_allclose(chief["exact"], [alone["J"], alone["val_J"], alone["accuracy"]], rtol=1e-6)
    alone = regression_by_steps().fit(stream(x, y), epochs=2, verbose=0, shuffle=False).history
    np.testing.assert_allclose(chief["steps"], [alone["J"], alone["accuracy"]], rtol=1e-6)
    # Both wrote to folders of their own, but for one of them there is none.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "fit", "logs-0", "saved-0"]
