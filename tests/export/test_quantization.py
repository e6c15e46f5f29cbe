"""Quantised files on the real interpreter, and the images that calibrate them."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_bilinear.export import VerificationError, export_tflite, inference_graph, litert, verify_tflite
from keras_bilinear.export.calibration import MOST_IMAGES, checked_representative_data, thinned
from keras_bilinear.export.converter import CALIBRATED, QUANTIZE
from keras_bilinear.export.interpreter import file_scores, loaded
from keras_bilinear.export.metadata import input_range
from tests.files import least_squares_model, oracle, random_images, random_model, run

MODES = QUANTIZE[1:]
MEAN_DIFFERENCE = {"float16": 2e-4, "dynamic": 5e-3, "int8": 1e-2, "int16x8": 5e-3}
"""Of probabilities. An axis exchanged, or a range calibrated wrongly, is off by more than 0.1."""


@pytest.fixture(scope="module")
def trained(digits):
    """A fitted model, images to calibrate with, and held-out images with their labels."""
    x, y = digits
    return least_squares_model(x[:1200], y[:1200], units=10, rank=2), x[:200], x[1200:], y[1200:]


# Equality with the model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layout", "quantize"),
    [
        *(("BSR", "factored", quantize) for quantize in MODES),
        ("BSR", "merged", "int8"),
        ("BLR", "factored", "dynamic"),
        ("BLR", "factored", "int16x8"),
        ("LSR", "merged", "float16"),
        ("LSR", "merged", "int8"),
    ],
)
@pytest.mark.filterwarnings("ignore:quantize='dynamic' has left")
def test_a_quantised_file_computes_the_model_up_to_rounding(tmp_path, kind, layout, quantize):
    model = random_model(kind, use_bias=True)
    x = random_images(model, T=200)
    path = tmp_path / "m.tflite"
    export_tflite(model, path, quantize, layout, representative_data=x[:100])
    for output in (run(path, x[100:]), file_scores(loaded(path.read_bytes(), "reference"), x[100:])):
        difference = np.abs(output - oracle(model, x[100:], "probabilities"))
        assert difference.mean() <= MEAN_DIFFERENCE[quantize]
    assert not any(op.startswith("CUSTOM") or op.endswith("VARIABLE") for op in litert.operators(path.read_bytes()))


@pytest.mark.parametrize("quantize", MODES)
@pytest.mark.filterwarnings("ignore:quantize='dynamic' has left")
def test_export_verifies_on_held_out_images(tmp_path, trained, quantize):
    model, images, x, y = trained
    report = export_tflite(
        model, tmp_path / "m.tflite", quantize, representative_data=images, validation_data=(x, y)
    )
    proof = report.verification
    assert proof == verify_tflite(report.path, model, x, y)
    assert proof.quantize == quantize
    by_hand = np.mean(run(report.path, x.astype("float32")).argmax(axis=1) == y)
    assert proof.default.accuracy == pytest.approx(by_hand)
    assert abs(proof.keras_accuracy - by_hand) <= 0.01
    assert str(report).count("\n") == 3


@pytest.mark.parametrize(("quantize", "io"), [("int8", "int8"), ("int8", "uint8"), ("int16x8", "int16")])
def test_whole_numbers_in_and_out(tmp_path, trained, quantize, io):
    model, images, x, y = trained
    path = tmp_path / "m.tflite"
    export_tflite(model, path, quantize, representative_data=images, io=io, validation_data=(x, y))
    interpreter = Interpreter(str(path))
    for tensor in (interpreter.get_input_details()[0], interpreter.get_output_details()[0]):
        assert tensor["dtype"] == np.dtype(io)
    conversions = {"QUANTIZE", "DEQUANTIZE"} & set(litert.operators(path.read_bytes()))
    assert conversions == ({"QUANTIZE"} if io == "uint8" else set()), "int8 and int16 are what it computes in"


def test_raw_pixels_go_straight_into_a_file_of_bytes(tmp_path, trained):
    model, images, x, y = trained
    path = tmp_path / "m.tflite"
    pixels = (255 * x).astype("uint8")
    images = (255 * images).astype("uint8")
    images[0, 0, :2] = 0, 255
    export_tflite(model, path, "int8", representative_data=images, input_scale=1 / 255, io="uint8")
    # The scale of the tensor is one: a byte of the camera is a byte of the tensor.
    assert Interpreter(str(path)).get_input_details()[0]["quantization"] == pytest.approx((1.0, 0), abs=1e-6)
    scores = run(path, pixels)
    assert scores.dtype == np.uint8
    assert np.mean(scores.argmax(axis=1) == y) >= verify_tflite(path, model, pixels, y).keras_accuracy - 0.02


@pytest.mark.parametrize(("quantize", "batch_size"), [("int8", None), ("int8", 64), ("int16x8", 3)])
def test_every_batch_size_is_calibrated(tmp_path, trained, quantize, batch_size):
    model, images, x, y = trained
    report = export_tflite(
        model,
        tmp_path / "m.tflite",
        quantize,
        representative_data=images[:40],
        batch_size=batch_size,
        validation_data=(x, y),
    )
    assert report.float_parameters == 0


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_the_same_images_give_the_same_bytes(tmp_path, trained, quantize):
    model, images, _, _ = trained
    first, second = tmp_path / "first.tflite", tmp_path / "second.tflite"
    for path in (first, second):
        export_tflite(model, path, quantize, representative_data=images, labels=[str(k) for k in range(10)])
    assert first.read_bytes() == second.read_bytes()


# What is in the file --------------------------------------------------------------------------------------------


PRODUCTS = ("FULLY_CONNECTED", "RESHAPE", "MUL", "SUM", "SOFTMAX")
QUANTISED = ("FULLY_CONNECTED", "RESHAPE", "DEPTHWISE_CONV_2D", "RESHAPE", "SOFTMAX")


@pytest.mark.parametrize(
    ("quantize", "types", "limit", "ops"),
    [
        (None, {"FLOAT32"}, 11_200, PRODUCTS),
        ("float16", {"FLOAT16"}, 7_100, ("DEQUANTIZE", "DEQUANTIZE", *PRODUCTS)),
        ("dynamic", {"INT8"}, 5_200, QUANTISED),
        ("int8", {"INT8"}, 5_800, ("QUANTIZE", *QUANTISED, "DEQUANTIZE")),
        ("int16x8", {"INT8"}, 6_300, ("QUANTIZE", *QUANTISED, "DEQUANTIZE")),
    ],
)
def test_types_sizes_and_operators(tmp_path, quantize, types, limit, ops):
    model = random_model("BSR", size=(28, 28), rank=4, units=10)
    report = export_tflite(model, tmp_path / "m.tflite", quantize, representative_data=random_images(model))
    weights = litert.stored_weights(report.path.read_bytes())
    assert {kind for kind, shape in weights if len(shape) > 1} == types
    assert report.bytes <= limit
    assert (report.quantize, report.ops) == (quantize, ops)
    assert report.float_parameters == (2240 if quantize is None else 0)


def test_metadata_say_what_was_said(tmp_path):
    model = random_model("BSR")
    images = 255 * random_images(model)
    export_tflite(
        model,
        tmp_path / "m.tflite",
        "int8",
        representative_data=images,
        input_scale=1 / 255,
        labels=["a", "b", "c"],
    )
    facts = litert.metadata((tmp_path / "m.tflite").read_bytes())
    assert re.fullmatch("[0-9a-f]{16}", facts.pop("seal"))
    assert facts == {
        "quantize": "int8",
        "input_scale": 1 / 255,
        "input_range": [0.0, 255.0],
        "labels": ["a", "b", "c"],
    }
    export_tflite(random_model("BLR"), tmp_path / "m.tflite", input_scale=0.5, labels=("no", "yes"))
    facts = litert.metadata((tmp_path / "m.tflite").read_bytes())
    assert facts.pop("seal")
    assert facts == {"input_scale": 0.5, "input_range": [0.0, 2.0], "labels": ["no", "yes"]}


@pytest.mark.parametrize(
    ("low", "high", "input_scale", "expected"),
    [
        (0.0, 0.9, None, [0.0, 1.0]),
        (0.2, 15.0, None, [0.0, 15.0]),
        (-0.9, 0.8, None, [-1.0, 1.0]),
        (-2.0, 3.0, None, [-2.0, 3.0]),
        (3.0, 250.0, 1 / 255, [0.0, 255.0]),
        (-100.0, 120.0, 1 / 128, [-128.0, 128.0]),
    ],
)
def test_the_range_is_that_of_any_image(low, high, input_scale, expected):
    """A file that took the brightest pixel of some images for white would brighten all others."""
    assert input_range(np.array([low, high]), input_scale) == pytest.approx(expected)


def test_weights_that_stay_in_float_are_reported(tmp_path):
    with pytest.warns(UserWarning, match=r"has left 72 of 72 numbers in float32.*fewer than 1,024"):
        report = export_tflite(random_model("BSR"), tmp_path / "m.tflite", "dynamic")
    assert report.float_parameters == report.parameters == 72


# Representative data --------------------------------------------------------------------------------------------


def images(T=64):
    return random_images(random_model("BSR"), T)


FAULTY = [
    (
        None,
        {},
        r"Expected `representative_data`, 32 or more images.*quantize='int8'. Received: representative_data=None",
    ),
    (images(0), {}, r"shape \(T, 7, 5\).*Received: \(0, 7, 5\)"),
    ([], {}, r"shape \(T, 7, 5\).*Received: \(0,\)"),
    (images(31), {}, "32 or more images as `representative_data`. Received: 31"),
    (images()[0], {}, r"shape \(T, 7, 5\).*Received: \(7, 5\)"),
    (iter([]), {}, r"shape \(T, 7, 5\).*Received: \(0,\)"),
    (iter([np.zeros((3, 3))]), {}, r"shape \(T, 7, 5\)"),
    (iter([0, 1, 2]), {}, r"shape \(T, 7, 5\).*Received: \(3,\)"),
    (iter([{}]), {}, r"array of real numbers. Received: dtype object"),
    (iter([()]), {}, r"shape \(T, 7, 5\).*Received: \(0,\)"),
    (itertools.repeat(images(0)), {}, r"shape \(T, 7, 5\).*Received: \(0,\)"),
    ("images", {}, "array of real numbers"),
    (5, {}, r"shape \(T, 7, 5\)"),
    (images().transpose(0, 2, 1), {}, r"shape \(T, 7, 5\).*Received: \(64, 5, 7\)"),
    (images()[:, None], {}, r"shape \(T, 7, 5\)"),
    (np.zeros((64, 7, 5)), {}, "images that differ. Received: one image, pixels 0 to 0, 64 times"),
    (np.repeat(images(1), 64, axis=0), {}, "images that differ"),
    (np.where(images() > 0.99, np.nan, images()), {}, "finite numbers in `representative_data`"),
    (np.where(images() > 0.99, np.inf, images()), {}, "finite numbers in `representative_data`"),
    (images().astype(str), {}, "`representative_data` to be an array of real numbers"),
    (
        images(),
        {"input_scale": 1 / 255},
        r"units of the file, pixels up to about 255 for input_scale=0.00392.*to 0.99",
    ),
    (1000 * images(), {"input_scale": 1.0}, "in the units of the file, and an `input_scale`.*pixels from .* to 99"),
    (1000 * images(), {}, "in the units of the file, and an `input_scale` that leads to.*pixels from .* to 99"),
]


@pytest.mark.parametrize(("data", "options", "message"), FAULTY)
def test_images_that_would_calibrate_nothing_are_refused(tmp_path, data, options, message):
    with pytest.raises(ValueError, match=message):
        export_tflite(random_model("BSR"), tmp_path / "m.tflite", "int8", representative_data=data, **options)
    assert list(tmp_path.iterdir()) == []


def taken(data, model=None, input_scale=None):
    """What calibrates, or the error, for a model of the shape of `images`."""
    return checked_representative_data(data, inference_graph(model or random_model("BSR")), input_scale)


def test_units_of_a_binary_model_are_checked_too():
    with pytest.raises(ValueError, match="in the units of the file, and an `input_scale`"):
        taken(1000 * images(), random_model("BLR"))


def test_a_model_may_be_certain_and_may_take_large_pixels():
    certain, large = random_model("BSR"), random_model("BSR")
    A, B = certain.factors()
    certain.head.assign_factors(100 * A, B)
    large.head.assign_factors(A / 255, B)
    taken(images(), certain)
    taken(255 * images(), large)
    # A file that takes 0..1, for a model of 0..255.
    taken(images(), large, input_scale=255.0)


def test_images_may_come_as_the_converter_takes_them():
    x = images()
    data = tf.data.Dataset.from_tensor_slices(x)
    forms = [
        x,
        x[..., None],
        list(x),
        lambda: ([image[None]] for image in x),
        ({"image": image[None]} for image in x),
        iter(x),
        data,
        data.batch(10),
        tf.data.Dataset.from_tensor_slices((x[..., None], np.zeros(len(x)))).batch(7),
        tf.data.Dataset.from_tensor_slices({"class": np.zeros(len(x)), "image": x}).batch(7),
        tf.data.Dataset.from_tensor_slices(({"image": x}, np.zeros(len(x)))).batch(7),
        {"image": x},
    ]
    for form in forms:
        np.testing.assert_array_equal(taken(form), x)
    assert len(taken(itertools.cycle(x))) == MOST_IMAGES, "an endless one is left in time"


def test_many_images_are_thinned_out_evenly():
    many = np.arange(2000, dtype="float32").reshape(-1, 1, 1)
    kept = thinned(many).ravel()
    assert len(kept) == 500 <= MOST_IMAGES
    assert set(np.diff(kept)) == {4}
    assert kept[0] == 0
    assert len(thinned(many[:512])) == 512


# Verification that fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_a_file_that_misses_a_gate_is_not_written(tmp_path, quantize):
    model = random_model("BSR")
    x = random_images(model, T=100)
    wrong = random_model("BSR", seed=5)
    export_tflite(wrong, tmp_path / "other.tflite", quantize, representative_data=x)
    with pytest.raises(VerificationError, match=r"difference\|"):
        verify_tflite(tmp_path / "other.tflite", model, x)
    # Calibrated on images of a tenth of the contrast, the file saturates on real ones.
    if quantize in CALIBRATED:
        with pytest.raises(VerificationError, match=r"difference\|.*Received"):
            export_tflite(model, tmp_path / "m.tflite", quantize, representative_data=x / 10, validation_data=(x,))
    assert [path.name for path in tmp_path.iterdir()] == ["other.tflite"]


def test_a_file_that_promises_smaller_weights_than_it_has_is_refused(tmp_path):
    model = random_model("BSR")
    plain = export_tflite(model, tmp_path / "m.tflite").path
    for claimed in ("float16", "int8", "int16x8"):
        plain.write_bytes(litert.with_metadata(plain.read_bytes(), {"quantize": claimed}))
        with pytest.raises(VerificationError, match=rf"quantize='{claimed}'. Received: FLOAT32"):
            verify_tflite(plain, model, random_images(model))


@pytest.mark.parametrize(("quantize", "found"), [("float16", "FLOAT16"), ("int8", "INT8")])
def test_a_file_that_promises_nothing_has_float32_weights(tmp_path, quantize, found):
    model = random_model("BSR")
    x = random_images(model)
    file = export_tflite(model, tmp_path / "m.tflite", quantize, representative_data=x).path
    # With a seal, that alone would be noticed.
    unsealed = litert.with_metadata(file.read_bytes(), {})
    file.write_bytes(unsealed.replace(b"keras_bilinear", b"of_other_tools"))
    with pytest.raises(VerificationError, match=rf"stored as FLOAT32 .* quantize=None. Received: {found}"):
        verify_tflite(file, model, x)


def test_the_lowering_for_integers_is_the_same_function():
    model = random_model("BSR", use_bias=True)
    x = random_images(model)
    for quantized in (False, True):
        z = inference_graph(model, quantized=quantized).scores(x).numpy()
        np.testing.assert_allclose(z, oracle(model, x, "logits"), atol=5e-6)
