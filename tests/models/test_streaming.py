"""Exact fits to data sets of many batches: the J of arrays, never rising, with all that belongs to a fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.four_models import MODELS
from tests.problems import one_hot, planted

SCALE = 1 / 255


def data(name="BSR", T=301):
    problem = planted(T=T, K=3 if name.endswith("SR") else 1)
    return problem.X.astype("float32"), problem.y


def bytes_of(name="BSR", T=301):
    x, y = data(name, T)
    return np.round(255 * (x - x.min()) / (x.max() - x.min())).astype("uint8"), y


def stream(*parts, size=50):
    """Batches, the last of a single image."""
    return tf.data.Dataset.from_tensor_slices(parts).batch(size)


def steps_of(history):
    return np.array(history.history["objective"])


@pytest.mark.parametrize(("name", "use_bias"), [("BSR", True), ("BLR", False), ("LSR", False), ("LLR", True)])
def test_a_stream_is_fitted_to_the_optimum_of_its_arrays(name, use_bias):
    x, y = data(name)
    ours, theirs = (MODELS[name](use_bias=use_bias) for _ in range(2))
    J = steps_of(ours.fit(stream(x, y), epochs=30, verbose=0, shuffle=False))
    expected = steps_of(theirs.fit(x, y, epochs=15, verbose=0))[-1]
    assert np.all(np.diff(J) <= 1e-6 * J[:-1])
    assert J[-1] <= expected * (1 + 1e-4)
    assert ours.objective(x, y) == pytest.approx(J[-1], rel=1e-5)


def test_what_a_step_sees_is_the_J_of_the_model_before_and_after_it():
    x, y = data()
    model = MODELS["BSR"](input_shape=(6, 5))
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(model.objective(x, y)),
        on_epoch_end=lambda epoch, logs: seen.append((logs["objective"], logs["val_loss"], model.objective(x, y))),
    )
    held_out = stream(x, y)
    history = model.fit(stream(x, y), epochs=3, verbose=0, validation_data=held_out, callbacks=[watch])
    assert seen[0] == pytest.approx(np.log(3), rel=1e-6)
    for before, after in zip(seen[0::2], seen[1::2], strict=True):
        np.testing.assert_allclose(after, after[0], rtol=1e-5)  # validation sees the step, too
        assert after[0] < before
    keys = {"loss", "objective", "J", "penalty", "step_size", "active_block", "grad_norm", "inner_iterations"}
    assert keys | {"accuracy", "improvement", "val_loss", "val_J", "val_objective"} <= set(history.history)
    # The metrics are those of the model that was read.
    held = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    again = model.fit(stream(x, y), epochs=1, verbose=0).history["accuracy"][0]
    assert again == pytest.approx(held)


def forms(x, y, weight):
    """The same images in forms that mean the same."""
    yield "bytes", x, y, weight
    yield "floats", x.astype("float32"), y, weight
    yield "channel", x[..., None].astype("float64"), y.astype("float32"), weight
    yield "one-hot", x, one_hot(y, 3).astype("float32"), weight
    yield "column", x.astype("int32"), y[:, None], weight[:, None]


def test_all_forms_of_data_have_the_J_of_arrays():
    x, y = bytes_of(T=120)
    weight, class_weight = np.random.default_rng(0).random(120).astype("float32"), {0: 2.0, 2: 0.5}
    model = MODELS["BSR"](input_scale=SCALE, input_shape=x.shape[1:])
    model.compile(kb.BlockLineSearch(), jit_compile=False)
    start = model.get_weights()
    w = weight * np.array([2.0, 1.0, 0.5])[y]
    J = []
    for name, *parts in forms(x, y, weight):
        model.set_weights(start)
        assert model.fit(stream(*parts), epochs=2, verbose=0, class_weight=class_weight), name
        J.append(model.objective(x, y, w))
        history = model.fit(stream(*parts), epochs=1, verbose=0, class_weight=class_weight)
        assert history.history["objective"][0] == pytest.approx(model.objective(x, y, w), rel=1e-5), name
    np.testing.assert_allclose(J, J[0], rtol=1e-4)


def test_a_fit_goes_on_where_another_ended_and_knows_when_it_has_converged():
    x, y = data()
    model = MODELS["BSR"](use_bias=True)
    first = steps_of(model.fit(stream(x, y), epochs=3, verbose=0))
    stop = kb.callbacks.BlockConvergence(rtol=1e-5)
    then = steps_of(model.fit(stream(x, y), epochs=60, verbose=0, callbacks=[stop]))
    assert then[0] <= first[-1] * (1 + 1e-6)
    assert stop.converged, stop.reason
    report = model.convergence_report()
    assert report.converged
    assert report.objective == pytest.approx(model.objective(x, y), rel=1e-5)
    assert "J = " in str(report)
    # Arrays after a stream, and a stream after arrays.
    assert steps_of(model.fit(x, y, epochs=1, verbose=0))[-1] <= then[-1] * (1 + 1e-6)
    assert steps_of(model.fit(stream(x, y), epochs=2, verbose=0))[-1] <= then[-1] * (1 + 1e-6)


def test_a_shuffled_stream_of_unknown_length_is_the_same_problem():
    x, y = data()
    unknown = stream(x, y).unbatch().shuffle(301).filter(lambda x, y: True).batch(50)
    assert unknown.cardinality() == tf.data.UNKNOWN_CARDINALITY
    model, again = MODELS["BSR"](), MODELS["BSR"]()
    J = steps_of(model.fit(unknown, epochs=15, verbose=0))
    assert np.all(np.diff(J) <= 1e-6 * J[:-1])
    assert pytest.approx(steps_of(again.fit(stream(x, y), epochs=15, verbose=0))[-1], rel=1e-3) == J[-1]


def test_several_steps_may_be_executed_together():
    x, y = data()
    J = []
    for steps in (1, 3):
        model = MODELS["BSR"]()
        model.compile(kb.BlockLineSearch(), steps_per_execution=steps)
        J.append(steps_of(model.fit(stream(x, y), epochs=4, verbose=0)))
    np.testing.assert_allclose(*J, rtol=1e-5)


def test_a_strategy_of_one_device_changes_nothing():
    x, y = data()
    J = [steps_of(MODELS["BSR"]().fit(stream(x, y), epochs=3, verbose=0))]
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = MODELS["BSR"]()
    J.append(steps_of(model.fit(stream(x, y), epochs=3, verbose=0)))
    np.testing.assert_allclose(*J, rtol=1e-5)


CHANGES = [None, lambda model: model.canonicalize(), lambda model: setattr(model, "alpha", 0.1)]


@pytest.mark.parametrize("change", CHANGES, ids=["nothing", "factors", "alpha"])
def test_a_checkpoint_resumes_to_the_bit(tmp_path, change):
    """Also where another callback has changed the model at the end of the last pass."""
    x, y = data()

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and self.epoch == 2:
                raise KeyboardInterrupt

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

    def fitted(*callbacks):
        model = MODELS["BSR"](input_shape=(6, 5), use_bias=True)
        changing = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: change(model) if change and epoch == 1 else None
        )
        try:
            model.fit(stream(x, y), epochs=6, verbose=0, callbacks=[changing, *callbacks])
        except KeyboardInterrupt:
            assert np.isfinite(model.get_weights()[0]).all()
        return model

    path = tmp_path / "fit.checkpoint"
    whole = fitted()
    fitted(kb.callbacks.Checkpoint(path), Break())
    assert path.exists()
    resumed = fitted(kb.callbacks.Checkpoint(path))
    for ours, theirs in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_tensorboard_and_early_stopping(tmp_path):
    x, y = data()
    model = MODELS["BSR"]()
    watch = kb.callbacks.BilinearTensorBoard(tmp_path)
    stop = keras.callbacks.EarlyStopping("val_J", patience=2, restore_best_weights=True, start_from_epoch=2)
    model.fit(stream(x, y), epochs=5, verbose=0, validation_data=stream(x, y), callbacks=[watch, stop])
    assert list(tmp_path.iterdir())
    assert model.optimizer.iterations.numpy() == 5


def test_a_callback_may_change_weights_and_alpha_between_passes():
    x, y = data()
    model = MODELS["BSR"](input_shape=(6, 5))

    def change(epoch, logs):
        if epoch == 3:
            model.canonicalize()
        if epoch == 5:
            model.alpha = 0.1

    J = steps_of(
        model.fit(
            stream(x, y), epochs=20, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=change)]
        )
    )
    other = kb.BilinearSoftmaxRegression(3, 2, 0.1, seed=0)
    assert J[-1] <= steps_of(other.fit(x, y, epochs=15, verbose=0))[-1] * (1 + 1e-3)


def test_a_callback_may_end_the_fit_in_the_middle_of_a_pass():
    x, y = data()
    model = MODELS["BSR"]()

    def stop(batch, logs):
        model.stop_training = batch == 2

    history = model.fit(
        stream(x, y), epochs=5, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
    )
    assert len(history.history["J"]) == 1
    assert not np.any(model.factors()[0])


def changing(x, y, how):
    """A data set whose second pass (after the one that looks) brings other images."""
    passes = []

    def images():
        passes.append(None)
        yield from how(x, y, len(passes))

    spec = (tf.TensorSpec((None, 6, 5), "float32"), tf.TensorSpec((None,), "int32"))
    return tf.data.Dataset.from_generator(images, output_signature=spec)


def fewer(x, y, number):
    for start in range(0, len(x), 50):
        part = slice(start, start + (50 if number < 5 else 40))
        yield x[part], y[part]


def augmented(x, y, number):
    noise = np.random.default_rng(number).normal(size=x.shape).astype("float32")
    for start in range(0, len(x), 50):
        yield (x + noise)[start : start + 50], y[start : start + 50]


@pytest.mark.parametrize(
    ("how", "message"), [(fewer, r"Received: 2\d\d after 301"), (augmented, "Remove random augmentation")]
)
def test_other_images_in_a_later_pass_are_refused(how, message):
    x, y = data()
    model = MODELS["BSR"]()
    with pytest.raises(ValueError, match=message):
        model.fit(changing(x, y, how), epochs=6, verbose=0)
    assert np.isfinite(model.weight_matrices()).all()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: kb.BlockLineSearch(blocks="factor"), {}, 'blocks="joint"'),
        (lambda: kb.BlockLineSearch("newton_cg"), {}, "need all images in memory"),
        (kb.BlockLineSearch, {"steps_per_epoch": 3}, "leave `steps_per_epoch` out"),
        (kb.BlockLineSearch, {"validation_split": 0.1}, "a data set cannot be divided"),
        (kb.BlockLineSearch, {"y": np.zeros(3)}, "within the data set"),
    ],
)
def test_what_needs_all_images_is_refused_before_anything_changes(make, options, message):
    x, y = data()
    model = MODELS["BSR"]()
    model.compile(make(), jit_compile=False)
    with pytest.raises(ValueError, match=message):
        model.fit(stream(x, y), verbose=0, **options)
    assert not model.built


def test_faults_in_the_data_are_refused_with_the_batch_they_are_in():
    x, y = data()
    y = y.copy()
    y[120] = 3
    model = MODELS["BSR"]()
    with pytest.raises(ValueError, match=r"0 to 2.*batch 3"):
        model.fit(stream(x, y), verbose=0)
    assert not model.built
    assert not model.compiled
    with pytest.raises(ValueError, match=r"a data set that ends.*changing or partial batch"):
        model.fit(stream(x, data()[1]).repeat(), verbose=0)


def test_a_pass_cannot_be_resumed_halfway(tmp_path):
    x, y = data()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
    with pytest.raises(ValueError, match="cannot be resumed halfway"):
        MODELS["BSR"]().fit(stream(x, y), verbose=0, callbacks=[backup])


@pytest.mark.parametrize(("name", "use_bias"), [("BSR", True), ("BLR", False), ("LSR", True)])
def test_objective_and_certificate_of_a_stream_are_those_of_its_arrays(name, use_bias):
    x, y = bytes_of(name)
    weight = np.random.default_rng(0).random(len(x))
    model = MODELS[name](use_bias=use_bias, input_scale=SCALE)
    model.fit(stream(x, y, weight), epochs=5, verbose=0)
    shuffled = stream(x, y, weight).unbatch().shuffle(301).batch(64)
    expected = model.certificate(x, y, weight)
    assert model.objective(shuffled) == pytest.approx(model.objective(x, y, weight), rel=1e-6)
    proof = model.certificate(shuffled)
    assert (proof.objective, proof.lower_bound) == pytest.approx((expected.objective, expected.lower_bound))
    with pytest.raises(ValueError, match="within the data set"):
        model.objective(shuffled, y)


def test_ranks_grow_over_passes_until_they_are_certified():
    x, y = data()
    model = kb.BilinearSoftmaxRegression(3, "auto", 0.05, "sum", use_bias=True, seed=0)
    J = steps_of(model.fit(stream(x, y, size=150), epochs=60, verbose=0))
    assert len(J) < 60
    # But for what is given up: ranks below 1e-4 of their class.
    assert np.all(np.diff(J) <= 1e-4 * J[:-1])
    arrays = kb.BilinearSoftmaxRegression(3, "auto", 0.05, "sum", use_bias=True, seed=0)
    arrays.fit(x, y, epochs=60, verbose=0)
    ours, theirs = model.certificate(x, y), arrays.certificate(x, y)
    assert ours.gap <= 2e-3 * ours.objective
    assert J[-1] == pytest.approx(theirs.objective, rel=2e-3)


def test_a_stream_is_certified_while_it_is_fitted(tmp_path):
    x, y = data()
    model = kb.BilinearSoftmaxRegression(3, 5, 0.05, "sum", seed=0)
    stop = kb.callbacks.BlockConvergence(gap=1e-2)
    watch = kb.callbacks.BilinearTensorBoard(tmp_path, certificate_freq=10)
    model.fit(stream(x, y), epochs=60, verbose=0, class_weight={1: 2.0}, callbacks=[stop, watch])
    assert stop.converged, stop.reason
    proof = model.certificate(x, y, np.where(y == 1, 2.0, 1.0))
    assert proof.gap <= 1e-2 * proof.objective
    assert stop.certificate.objective == pytest.approx(proof.objective, rel=1e-5)


def test_a_mapped_file_is_read_in_parts(tmp_path):
    x, y = bytes_of(T=2500)
    np.save(tmp_path / "x.npy", x)
    mapped, weight = np.load(tmp_path / "x.npy", mmap_mode="r"), np.linspace(0, 1, 2500)
    model = MODELS["BSR"](input_scale=SCALE)
    J = steps_of(model.fit(mapped, y, sample_weight=weight, epochs=4, verbose=0))[-1]
    assert model._last_fit.epochs[-1].is_sweep
    assert pytest.approx(model.objective(x, y, weight), rel=1e-5) == J
    assert model.objective(mapped, y, weight) == pytest.approx(J, rel=1e-5)
    assert model.certificate(mapped, y, weight).objective == pytest.approx(J, rel=1e-5)
    with pytest.raises(ValueError, match="one label for each image"):
        model.fit(mapped, y[1:], verbose=0)
