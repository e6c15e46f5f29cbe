import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_bilinear as kb
from keras_bilinear.models.block_updates import shared_state
from tests.four_models import data

WRAPPERS = ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
OPTIMIZERS = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer) and name not in WRAPPERS
}


class Shared(keras.optimizers.Optimizer):
    """Counts all of its updates in an attribute, sums all gradients in a list, and has slots in a dictionary."""

    def __init__(self, learning_rate=0.1, **options):
        super().__init__(learning_rate=learning_rate, **options)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.updates = self.add_variable((), initializer="ones", name="updates")
        self.sums = [self.add_variable((2,), name="sums")]
        self.factors = [1.0] * len(variables)
        self.slots = {v.path: self.add_variable(v.shape, name=f"slot_{i}") for i, v in enumerate(variables)}

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slots[next(v.path for v in self._trainable_variables if v is variable or v.value is variable)]
        self.assign_add(slot, gradient)
        self.assign_add(self.sums[0], ops.stack([ops.sum(gradient), ops.sum(gradient * gradient)]))
        scale = learning_rate / (self.updates.value + ops.sum(self.sums[0].value ** 2))
        self.assign_sub(variable, scale * slot.value)
        self.assign_add(self.updates, 1.0)


def regression(optimizer):
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.01, use_bias=True, input_shape=(6, 5), seed=0)
    # Away from A = 0, where the gradient of every b vanishes.
    model.head.assign_factors(np.full((2, 6, 3), 0.1, "float32"), np.asarray(model.head.B))
    model.compile(optimizer, run_eagerly=True)
    return model


def network(optimizer):
    image = keras.Input((6, 5))
    head = kb.BilinearDense(3, 2, "softmax", left_initializer="ones")
    model = kb.AlternatingModel(image, head(keras.layers.Dense(5)(image)))
    model.compile(optimizer, "sparse_categorical_crossentropy", run_eagerly=True)
    return model


def expected_step(model, block, fresh, x, y):
    """What a fresh optimizer makes of the gradient of this block."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), np.ones(len(x), "float32"))
    alone = keras.Variable(block.numpy(), name=block.name)
    fresh.build([alone])
    fresh.apply([tape.gradient(loss, block.value)], [alone])
    return alone.numpy() - block.numpy()


@pytest.mark.parametrize("name", [*OPTIMIZERS, "Shared"])
def test_the_first_step_of_a_late_block_is_that_of_a_fresh_optimizer(name):
    kind = {**OPTIMIZERS, "Shared": Shared}[name]
    x, y = data(T=24)
    for make in (regression, network) if name in ("Nadam", "Shared") else (regression,):
        model = make(kind(learning_rate=0.1))
        for _ in range(2):
            model.train_on_batch(x, y)
        for index in (1, 2):
            block = model.factor_blocks[index]
            before, expected = block.numpy(), expected_step(model, block, kind(learning_rate=0.1), x, y)
            model.schedule.active.assign(index)
            model.train_on_batch(x, y)
            assert np.abs(expected).max() > 1e-4
            np.testing.assert_allclose(block.numpy() - before, expected, rtol=2e-3, atol=2e-6)


def test_only_what_is_shared_is_kept_apart():
    known = dict.fromkeys(OPTIMIZERS, 0) | {"Nadam": 1}
    # Names that begin as Keras names its own variables, and as many of them as other lists may have.
    variables = [keras.Variable(np.ones((3, 2))), keras.Variable(np.ones(3)), keras.Variable(np.ones((3, 2, 2)))]
    for name, kind in OPTIMIZERS.items():
        optimizer = kind()
        optimizer.build(variables)
        assert len(shared_state(optimizer, variables)) == known[name], name
    assert shared_state(keras.optimizers.SGD(lambda: 0.1), variables) == []


@pytest.mark.parametrize("kind", ["Nadam", "LossScaleOptimizer"])
def test_the_state_of_every_block_is_saved_and_restored(kind, tmp_path):
    x, y = data(T=24)
    optimizer = keras.optimizers.Nadam(0.05)
    model = regression(keras.optimizers.LossScaleOptimizer(optimizer, 2.0) if kind != "Nadam" else optimizer)
    model.fit(x, y, epochs=3, verbose=0)
    products = optimizer.variables[-1].numpy()
    assert products.shape == (5,)  # four blocks, and the bias
    assert len(set(products[[0, 3, 4]])) == 3
    assert products[0] == products[1] == products[2] != products[3] == 1.0
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.fit(x, y, initial_epoch=3, epochs=5, shuffle=False, verbose=0)
    kept, restored = ([*each.variables, *each.optimizer.variables] for each in (model, again))
    for old, new in zip(kept, restored, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_compiling_with_the_same_optimizer_goes_on_where_it_was():
    x, y = data(T=24)
    optimizer = keras.optimizers.Nadam(0.05)
    model = regression(optimizer)
    model.fit(x, y, epochs=2, verbose=0)
    before = [variable.numpy() for variable in optimizer.variables]
    model.compile(optimizer, run_eagerly=True)
    assert model.schedule.block_steps.numpy().tolist() == [1, 1, 0, 0]
    assert len(optimizer.variables) == len(before)
    for old, new in zip(before, optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    model.compile(keras.optimizers.Nadam(0.05))
    assert not np.any(model.schedule.block_steps.numpy())


def test_the_step_size_of_a_schedule_is_that_of_the_block():
    x, y = data(T=24)
    model = regression(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
    logs = []
    for active in (0, 0, 0, 1, 0):
        model.schedule.active.assign(active)
        block, before = model.factor_blocks[active], model.factor_blocks[active].numpy()
        logs.append(model.train_on_batch(x, y, return_dict=True))
        step = np.linalg.norm(block.numpy() - before)
        assert logs[-1]["step_size"] == pytest.approx(step / logs[-1]["grad_norm"], rel=1e-3)
    np.testing.assert_allclose([log["step_size"] for log in logs], [0.1, 0.05, 0.025, 0.1, 0.0125])
