"""`input_scale`: pixels of any unit, bytes above all, are given as they are, everywhere."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.four_models import MODELS
from tests.problems import planted

SCALE = 1 / 255


def data(name, T=300):
    """Bytes and labels."""
    problem = planted(T=T, K=3 if name.endswith("SR") else 1)
    X = problem.X - problem.X.min()
    return np.round(255 * X / X.max()).astype("uint8"), problem.y


def scaled(x):
    return (x * np.float64(SCALE)).astype("float32")


def pair(name, optimizer=None, run_eagerly=False, **options):
    """A model that takes bytes and one that takes their scaled values, otherwise the same."""
    models = MODELS[name](input_scale=SCALE, **options), MODELS[name](**options)
    for model in models:
        model.compile(optimizer() if optimizer else None, jit_compile=False, run_eagerly=run_eagerly)
    return models


def with_random_factors(model):
    for block in model.factor_blocks:
        block.assign(0.5 * np.random.normal(size=block.shape))


@functools.cache
def fitted(name):
    """A model of bytes, for tests that only read it."""
    model, _ = pair(name)
    model.fit(*data(name), epochs=5, verbose=0)
    return model


@pytest.mark.parametrize(
    ("name", "blocks", "use_bias"), [("BSR", "joint", True), ("BLR", "factor", False), ("LLR", "joint", True)]
)
def test_an_exact_fit_to_bytes_is_that_to_their_scaled_values(name, blocks, use_bias):
    x, y = data(name)
    ours, theirs = pair(name, lambda: kb.BlockLineSearch(blocks=blocks), use_bias=use_bias)
    J, expected = (
        model.fit(images, y, epochs=4, verbose=0).history["objective"][-1]
        for model, images in ((ours, x), (theirs, scaled(x)))
    )
    assert pytest.approx(expected, rel=1e-4) == J
    assert ours.objective(x, y) == pytest.approx(J, rel=1e-5)
    assert ours.evaluate(x, y, verbose=0)[0] == pytest.approx(J, rel=1e-5)
    np.testing.assert_allclose(ours.weight_matrices(), theirs.weight_matrices(), atol=0.05)
    twin = MODELS[name](use_bias=use_bias, input_shape=x.shape[1:])
    twin.set_weights(ours.get_weights())
    np.testing.assert_allclose(ours.predict(x, verbose=0), twin.predict(scaled(x), verbose=0), atol=1e-5)
    np.testing.assert_allclose(ours.predict_on_batch(x), twin.predict_on_batch(scaled(x)), atol=1e-5)
    np.testing.assert_allclose(ours.logits(x), twin.logits(scaled(x)), atol=1e-4)
    assert twin.objective(scaled(x), y) == pytest.approx(ours.objective(x, y), rel=1e-5)
    proof, same = ours.certificate(x, y), twin.certificate(scaled(x), y)
    assert (proof.objective, proof.lower_bound) == pytest.approx((same.objective, same.lower_bound), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "form"), [("BSR", "arrays"), ("BLR", "pipeline"), ("LSR", "batches"), ("LLR", "arrays")]
)
def test_mini_batches_of_bytes_are_those_of_their_scaled_values(name, form):
    x, y = data(name)
    ends, models = [], pair(name, lambda: keras.optimizers.Adam(0.05), run_eagerly=form != "pipeline")
    for model, images in zip(models, (x, scaled(x)), strict=True):
        if form == "arrays":
            model.fit(images, y, batch_size=100, epochs=4, shuffle=False, verbose=0)
        elif form == "pipeline":
            batches = tf.data.Dataset.from_tensor_slices((images, y)).batch(100)
            model.fit(batches, epochs=4, shuffle=False, verbose=0)
        else:
            for _ in range(4):
                model.train_on_batch(images, y)
        ends.append((model.get_weights(), model.test_on_batch(images, y)))
    for ours, theirs in zip(*(weights for weights, _ in ends), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    np.testing.assert_allclose(ends[0][1], ends[1][1], rtol=1e-4)


def test_whole_numbers_and_floats_of_any_unit_are_scaled_alike():
    x, y = data("LSR")
    J = []
    for images in (x, x.astype("int64"), x.astype("float64")):
        model, _ = pair("LSR")
        J.append(model.fit(images, y, epochs=2, verbose=0).history["objective"][-1])
    np.testing.assert_allclose(J, J[0], rtol=1e-4)


def test_half_precision_scales_before_it_rounds():
    x, _ = data("BSR")
    deep = x.astype("uint16") * 257  # up to 65,535, which is infinite in float16
    half, full = (
        MODELS["BSR"](input_scale=1 / 65535, dtype=dtype, input_shape=x.shape[1:])
        for dtype in ("mixed_float16", "float32")
    )
    with_random_factors(full)
    half.set_weights(full.get_weights())
    np.testing.assert_allclose(half.predict(deep, verbose=0), full.predict(deep, verbose=0), atol=5e-3)


def test_bytes_stay_bytes_in_memory():
    x, y = data("BSR")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model._training_data.x.dtype)

    pair("BSR")[0].fit(x, y, epochs=2, verbose=0, callbacks=[Look()])
    assert seen == [tf.uint8] * 2


@pytest.mark.parametrize("name", MODELS)
def test_it_is_saved_with_the_model(name, tmp_path):
    x, _ = data(name)
    model, _ = pair(name, input_shape=x.shape[1:])
    with_random_factors(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.input_scale == keras.models.clone_model(model).input_scale == SCALE
    np.testing.assert_array_equal(loaded(x), model(x))
    assert np.ptp(model.logits(x)) > 0.1


def test_a_path_over_bytes_is_that_over_their_scaled_values():
    x, y = data("BSR")
    ours, theirs = (
        kb.regularization_path(model, images, y, [1e-2], [1, 2], verbose=0)
        for model, images in zip(pair("BSR"), (x, scaled(x)), strict=True)
    )
    for point, same in zip(ours.points, theirs.points, strict=True):
        assert point.objective == pytest.approx(same.objective, rel=1e-3)
        assert point.accuracy == pytest.approx(same.accuracy, abs=0.05)
    np.testing.assert_allclose(ours.model().evaluate(x, y, verbose=0)[0], ours.model().objective(x, y), rtol=1e-5)


def test_the_classifier_takes_it():
    x, y = data("BSR")
    ours = kb.BilinearClassifier(input_scale=SCALE, random_state=0).fit(x, y)
    theirs = kb.BilinearClassifier(random_state=0).fit(scaled(x), y)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(scaled(x)), atol=0.02)
    flat = x.reshape(len(x), -1)
    np.testing.assert_allclose(flat @ ours.coef_.T + ours.intercept_, ours.decision_function(x), atol=1e-3)
    assert ours.get_params()["input_scale"] == SCALE


@pytest.mark.parametrize(("name", "quantize"), [("BSR", None), ("BSR", "int8"), ("LLR", None)])
def test_exported_files_take_the_same_pixels(name, quantize, tmp_path):
    (x, y), model = data(name), fitted(name)
    images = x.astype("float32")
    calibration = images[:64] if quantize else None
    report = kb.export_tflite(
        model, tmp_path / "model.tflite", quantize, representative_data=calibration, validation_data=(images, y)
    )
    assert report.verification.images == len(x)
    assert kb.verify_tflite(tmp_path / "model.tflite", model, images, y).keras_accuracy is not None
    asked = kb.export_tflite(
        model, tmp_path / "asked.tflite", quantize, representative_data=calibration, input_scale=SCALE
    )
    assert asked.path.read_bytes() == report.path.read_bytes()
    kb.export_saved_model(model, tmp_path / "saved")
    served = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](image=tf.constant(images))
    np.testing.assert_allclose(served["probabilities"], model.predict(x, verbose=0), atol=1e-5)


def test_an_exported_file_may_take_other_pixels_than_the_model(tmp_path):
    x, y = data("BSR")
    kb.export_tflite(fitted("BSR"), tmp_path / "model.tflite", input_scale=1.0, validation_data=(scaled(x), y))


@pytest.mark.parametrize("name", ["LSR", "LLR"])
def test_linear_models_are_compressed_for_their_own_pixels(name):
    (x, _), model = data(name), fitted(name)
    full = kb.compress(model, rank=5)
    np.testing.assert_allclose(full.predict(x.astype("float32"), verbose=0), model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.parametrize("kind", ["uint8", "int64"])
def test_whole_numbers_that_nothing_scales_are_told_of(kind):
    x, y = data("BSR")
    model = MODELS["BSR"]()
    with pytest.warns(UserWarning, match="input_scale=1/255"):
        model.fit(x.astype(kind), y, epochs=1, verbose=0)
    assert model.objective(x, y) == pytest.approx(model.objective(x.astype("float32"), y), rel=1e-5)


@pytest.mark.parametrize(
    ("images", "options"),
    [
        (lambda x: x.astype("float32"), {}),
        (lambda x: x > 128, {}),
        (lambda x: (x > 128).astype("uint8") * 2, {}),
        (lambda x: x, {"input_scale": SCALE}),
    ],
)
def test_other_images_are_taken_as_they_are(images, options):
    x, y = data("BSR")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        MODELS["BSR"](**options).fit(images(x), y, epochs=1, verbose=0)


@pytest.mark.parametrize("scale", [0, -1.0, np.nan, np.inf, "1/255", None, True, [1.0]])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_scale_is_refused(name, scale):
    with pytest.raises(ValueError, match="input_scale"):
        MODELS[name](input_scale=scale)
