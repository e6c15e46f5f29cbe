import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.callbacks import BlockConvergence, ConvergenceWarning
from tests.four_models import data

pytestmark = pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")


def make(optimizer=None, run_eagerly=None):
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.02, seed=0)
    optimizer = optimizer() if optimizer else kb.BlockLineSearch()
    # The solver is traced once for all models, and the step around it is not worth a trace.
    model.compile(optimizer, run_eagerly=run_eagerly or isinstance(optimizer, kb.BlockLineSearch))
    return model


def test_stops_once_a_sweep_improves_J_by_less_than_rtol():
    x, y = data()
    model, callback = make(), BlockConvergence(rtol=1e-3)
    J = model.fit(x, y, epochs=200, verbose=0, callbacks=[callback]).history["objective"]
    improvements = -np.diff(J) / np.abs(J[1:])
    assert callback.converged
    assert "converged" in callback.reason
    assert improvements[-1] <= 1e-3
    assert np.all(improvements[:-1] > 1e-3)


def test_warns_when_the_epochs_run_out():
    x, y = data()
    callback = BlockConvergence(rtol=0.0)
    with pytest.warns(ConvergenceWarning, match="has not converged"):
        make().fit(x, y, epochs=2, verbose=0, callbacks=[callback])
    assert not callback.converged
    assert callback.reason == "the epochs ran out"


def test_says_so_when_another_callback_stopped_the_fit(recwarn):
    x, y = data()
    callback = BlockConvergence(rtol=0.0)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(callback.model, "stop_training", True)
    )
    make().fit(x, y, epochs=9, verbose=0, callbacks=[callback, stop])
    assert callback.reason == "another callback stopped the fit"
    assert not [w for w in recwarn if issubclass(w.category, ConvergenceWarning)]


def test_a_block_on_mini_batches_stays_up_until_it_has_converged():
    x, y = data()
    sgd = lambda: keras.optimizers.SGD(0.5)
    options = {"epochs": 40, "batch_size": 60, "shuffle": False, "verbose": 0}
    history = make(sgd).fit(x, y, callbacks=[BlockConvergence(rtol=0.0, block_rtol=0.01)], **options).history
    loss, block = np.array(history["objective"]), np.array(history["active_block"], int)
    improvement = (loss[:-1] - loss[1:]) / loss[1:]
    for epoch in range(2, 39):
        assert (block[epoch + 1] != block[epoch]) == (improvement[epoch - 1] <= 0.01)
    assert len(set(block)) > 1


def test_mini_batch_training_stops_when_a_sweep_brings_nothing():
    x, y = data()
    callback = BlockConvergence(rtol=1e-2, block_rtol=1e-2)
    model = make(lambda: keras.optimizers.SGD(2.0))
    history = model.fit(x, y, epochs=2000, batch_size=60, shuffle=False, verbose=0, callbacks=[callback]).history
    assert len(history["loss"]) < 2000
    assert int(history["active_block"][-1]) == 3
    # Such steps creep, which is told from an optimum.
    assert callback.stalled
    assert not callback.converged
    assert any("gradient steps may creep" in warning for warning in model.convergence_report().warnings)


@pytest.mark.parametrize("argument", ["rtol", "block_rtol"])
@pytest.mark.parametrize("value", [-1, float("nan"), "small", None])
def test_bad_tolerances(argument, value):
    with pytest.raises(ValueError, match=f"Expected `{argument}`"):
        BlockConvergence(**{argument: value})


def test_a_model_without_blocks_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="trains block by block"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[BlockConvergence()])


class Interrupt(keras.callbacks.Callback):
    """Raises as a killed process would, after the other callbacks of the epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


REGIMES = {
    "joint": lambda: kb.BlockLineSearch(max_inner=2),
    "factor": lambda: kb.BlockLineSearch(blocks="factor"),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


# Either regime with either order of the callbacks, and Adam, which keeps the most state, with both.
@pytest.mark.parametrize(
    ("regime", "backup_first"),
    [("joint", False), ("factor", True), ("adam", True), ("adam", False)],
)
def test_an_interrupted_fit_resumes_bit_equal(regime, backup_first, tmp_path):
    x, y = data()
    epoch = 3 if backup_first else 2
    options = {"epochs": 5, "verbose": 0, "shuffle": False}
    if regime == "adam":
        options["batch_size"] = 30

    def callbacks():
        pair = [BlockConvergence(rtol=0.0, block_rtol=0.05), keras.callbacks.BackupAndRestore(tmp_path / "backup")]
        return pair[::-1] if backup_first else pair

    straight, killed, resumed = (make(REGIMES[regime], run_eagerly=True) for _ in range(3))
    straight.fit(x, y, callbacks=[BlockConvergence(rtol=0.0, block_rtol=0.05)], **options)
    with pytest.raises(KeyboardInterrupt):
        killed.fit(x, y, callbacks=[*callbacks(), Interrupt(epoch)], **options)
    history = resumed.fit(x, y, callbacks=callbacks(), **options).history
    assert len(history["loss"]) == 5 - epoch
    for old, new in zip(straight.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


@pytest.mark.parametrize("regime", ["factor", "adam"])
def test_saved_and_loaded_in_the_middle_it_ends_bit_equal(regime, tmp_path):
    x, y = data()
    options = {"verbose": 0, "shuffle": False} | ({"batch_size": 30} if regime == "adam" else {})
    straight, first = (make(REGIMES[regime], run_eagerly=True) for _ in range(2))
    straight.fit(x, y, epochs=6, **options)
    first.fit(x, y, epochs=3, **options)
    first.save(tmp_path / "model.keras")
    second = keras.models.load_model(tmp_path / "model.keras")
    second.fit(x, y, initial_epoch=3, epochs=6, **options)
    for old, new in zip(straight.trainable_variables, second.trainable_variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_a_fit_that_begins_in_the_middle_of_a_sweep_converges_where_it_should():
    x, y = data()

    def converged(first, steps=None):
        model, callback = make(REGIMES["factor"]), BlockConvergence(rtol=1e-3)
        model.compile(model.optimizer, jit_compile=False)  # many steps, which are worth a trace
        model.fit(x, y, epochs=first, steps_per_epoch=2, verbose=0)  # of four blocks
        history = model.fit(x, y, epochs=400, steps_per_epoch=steps, verbose=0, callbacks=[callback]).history
        assert callback.converged
        return history["objective"][-1]

    best = converged(first=0)
    assert converged(first=1) <= 1.01 * best
    assert converged(first=1, steps=3) <= 1.01 * best
