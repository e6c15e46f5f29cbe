"""Files for the edge, run on the real interpreter and compared with NumPy and with Keras."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_bilinear as kb
from keras_bilinear import atomic_files
from keras_bilinear.export import (
    KernelReport,
    VerificationError,
    export_saved_model,
    export_tflite,
    litert,
    verify_tflite,
)
from keras_bilinear.export import files as export
from keras_bilinear.export.exportable import as_numpy
from keras_bilinear.export.gates import GATES, check_gates, compared
from keras_bilinear.export.interpreter import file_scores, loaded
from tests.files import ATOL, dtype_policy, least_squares_model, oracle, random_images, random_model, run


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(kind, use_bias, options) -> a random model and the report of its file, for all tests that only read it."""
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def export_once(kind, use_bias, layout, output, batch_size):
        model = random_model(kind, use_bias=use_bias)
        path = folder / f"{kind}-{use_bias}-{layout}-{output}-{batch_size}.tflite"
        return model, export_tflite(model, path, layout=layout, output=output, batch_size=batch_size)

    # Named or not, default or not: the same settings are the same file.
    return lambda kind, use_bias=False, layout="factored", output="probabilities", batch_size=1: export_once(
        kind, use_bias, layout, output, batch_size
    )


# Equality with the model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layout", "output"),
    [
        ("BSR", "factored", "probabilities"),
        ("BSR", "factored", "logits"),
        ("BSR", "merged", "probabilities"),
        ("BLR", "factored", "probabilities"),
        ("BLR", "merged", "logits"),
        ("LSR", "merged", "probabilities"),
        ("LLR", "merged", "logits"),
    ],
)
def test_the_file_computes_the_model(exported, kind, layout, output):
    model, report = exported(kind, True, layout, output)
    x = random_images(model)
    np.testing.assert_allclose(run(report.path, x, output), oracle(model, x, output), atol=ATOL)
    verified = verify_tflite(report.path, model, x)
    assert verified.output == output
    assert verified.images == 40
    for kernels in (verified.default, verified.reference):
        assert kernels.max_difference <= ATOL
        assert 0 < kernels.mean_difference <= kernels.max_difference
        assert kernels.agreement == 1.0


@pytest.mark.parametrize(
    ("size", "rank", "units"),
    [((6, 4), 1, 2), ((6, 4), 4, 1), ((1, 5), 1, 1), ((5, 1), 1, 2), ((1, 1), 1, 1), ((1, 1), 1, 2)],
)
def test_least_and_largest_ranks_and_the_smallest_images(tmp_path, size, rank, units):
    model = random_model("BLR" if units == 1 else "BSR", size, rank, units)
    x = random_images(model)
    export_tflite(model, tmp_path / "m.tflite", batch_size=None)
    np.testing.assert_allclose(
        run(tmp_path / "m.tflite", x, batch=40), oracle(model, x, "probabilities"), atol=ATOL
    )


@pytest.mark.parametrize(
    ("kind", "batch_size"), [("BSR", None), ("BSR", 1), ("BSR", 16), ("BLR", None), ("LSR", None)]
)
def test_the_batch_size_is_written(exported, kind, batch_size):
    model, report = exported(kind, batch_size=batch_size)
    x = random_images(model)
    interpreter = Interpreter(str(report.path))
    rows = -1 if batch_size is None else batch_size
    assert interpreter.get_input_details()[0]["shape_signature"].tolist() == [rows, 7, 5]
    assert interpreter.get_output_details()[0]["shape_signature"].tolist() == [rows, model.units]
    # 40 images are neither a multiple of 16 nor of 1 + 256.
    verified = verify_tflite(report.path, model, x)
    assert max(verified.default.max_difference, verified.reference.max_difference) <= ATOL


@pytest.mark.parametrize(
    ("batch_size", "calls"), [(None, [1, 5, 256, 256, 82]), (256, [256, 256, 256]), (1, [1] * 600)]
)
def test_verification_runs_every_image_at_the_batch_size_of_the_file(exported, batch_size, calls):
    model, report = exported("BSR", batch_size=batch_size)
    x = random_images(model, T=600)
    interpreter = loaded(report.path.read_bytes(), "default")
    set_tensor, rows = interpreter.set_tensor, []
    interpreter.set_tensor = lambda index, piece: (rows.append(len(piece)), set_tensor(index, piece))
    scores = file_scores(interpreter, x)
    assert rows == calls
    np.testing.assert_allclose(scores, oracle(model, x, "probabilities"), atol=ATOL)
    assert len(file_scores(interpreter, x[:1])) == 1


@pytest.mark.parametrize(("kind", "layout"), [("BSR", "factored"), ("LSR", "merged")])
def test_input_scale_costs_nothing_and_takes_raw_pixels(tmp_path, exported, kind, layout):
    model, plain = exported(kind, True, layout)
    pixels = np.random.default_rng(1).integers(0, 256, size=(40, 7, 5)).astype("uint8")
    raw = export_tflite(model, tmp_path / "raw.tflite", layout=layout, input_scale=1 / 255)
    assert (raw.ops, raw.parameters) == (plain.ops, plain.parameters)
    assert raw.bytes <= plain.bytes + 200, "the scale is named in the metadata, and nowhere else"
    expected = oracle(model, pixels / 255, "probabilities")
    np.testing.assert_allclose(run(raw.path, pixels.astype("float32")), expected, atol=ATOL)
    verify_tflite(raw.path, model, pixels)
    verify_tflite(raw.path, model, pixels, input_scale=1 / 255)
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(raw.path, model, pixels, input_scale=1.0)
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(plain.path, model, pixels, input_scale=1 / 255)


@pytest.mark.parametrize(
    ("policy", "output"),
    [("mixed_float16", "probabilities"), ("mixed_bfloat16", "probabilities"), ("float64", "logits")],
)
def test_other_precisions_become_float32_with_builtin_operators(tmp_path, policy, output):
    with dtype_policy(policy):
        model = random_model("BSR")
    x = random_images(model)
    report = export_tflite(model, tmp_path / "m.tflite", output=output)
    assert not any("CUSTOM" in op for op in report.ops)
    np.testing.assert_allclose(run(report.path, x, output), oracle(model, x, output), atol=ATOL)
    verify_tflite(report.path, model, x)


def test_a_file_with_raw_pixels_and_labels(tmp_path, digits):
    x, y = digits
    model = least_squares_model(x[:1200], y[:1200], units=10, rank=2)
    report = export_tflite(model, tmp_path / "digits.tflite", input_scale=1 / 16)
    pixels, y = 16 * x[1200:], y[1200:]
    verified = verify_tflite(report.path, model, pixels, y, input_scale=1 / 16)
    by_hand = np.mean(run(report.path, pixels).argmax(axis=1) == y)
    assert verified.default.accuracy == verified.reference.accuracy == verified.keras_accuracy == by_hand
    assert by_hand > 0.5
    one_hot = verify_tflite(report.path, model, pixels[..., None], np.eye(10)[y], input_scale=1 / 16)
    assert one_hot == verified


# What is in the file --------------------------------------------------------------------------------------------


MUL = ("FULLY_CONNECTED", "RESHAPE", "MUL", "SUM")


@pytest.mark.parametrize(
    ("kind", "options", "ops"),
    [
        ("BSR", {}, (*MUL, "SOFTMAX")),
        ("BSR", {"output": "logits"}, MUL),
        ("BSR", {"batch_size": None}, ("RESHAPE", *MUL, "SOFTMAX")),
        ("BSR", {"layout": "merged"}, ("RESHAPE", "FULLY_CONNECTED", "SOFTMAX")),
        ("BLR", {}, ("FULLY_CONNECTED", "RESHAPE", "FULLY_CONNECTED", "LOGISTIC")),
        ("BLR", {"output": "logits"}, ("FULLY_CONNECTED", "RESHAPE", "FULLY_CONNECTED")),
        ("BLR", {"layout": "merged"}, ("RESHAPE", "FULLY_CONNECTED", "LOGISTIC")),
        ("LSR", {}, ("RESHAPE", "FULLY_CONNECTED", "SOFTMAX")),
        ("LLR", {"layout": "merged"}, ("RESHAPE", "FULLY_CONNECTED", "LOGISTIC")),
    ],
)
def test_operators(exported, kind, options, ops):
    _, report = exported(kind, **options)
    assert report.ops == ops
    bilinear = kind in ("BSR", "BLR")
    assert report.layout == (options.get("layout", "factored") if bilinear else "merged")


def test_a_bias_is_one_addition_when_factored_and_free_otherwise(exported):
    assert exported("BSR", True, "factored")[1].ops == (*MUL, "ADD", "SOFTMAX")
    for kind, layout in (("BSR", "merged"), ("BLR", "factored")):
        without, with_bias = (exported(kind, use_bias, layout)[1] for use_bias in (False, True))
        assert with_bias.ops == without.ops
        assert with_bias.parameters == without.parameters + (3 if kind == "BSR" else 1)


def test_the_same_model_gives_the_same_bytes(tmp_path):
    first, second = tmp_path / "first.tflite", tmp_path / "second.tflite"
    options = {"layout": "merged", "batch_size": None, "input_scale": 0.5}
    export_tflite(random_model("BSR", use_bias=True), first, **options)
    export_tflite(random_model("BLR"), second)
    export_tflite(random_model("BSR", use_bias=True), second, **options)
    assert first.read_bytes() == second.read_bytes()


def test_report(exported):
    model, report = exported("BSR", True)
    assert report.bytes == report.path.stat().st_size
    assert report.parameters == 2 * (7 + 5) * 3 + 3
    assert str(report) == (
        f"{report.path}: {report.bytes:,} bytes, 75 parameters, float32, factored, probabilities; "
        "FULLY_CONNECTED, RESHAPE, MUL, SUM, ADD, SOFTMAX"
    )
    text = str(verify_tflite(report.path, model, random_images(model), np.zeros(40)))
    assert text.startswith(f"{report.path}: probabilities of 40 images as in Keras, accuracy in Keras 0.")
    assert "\n  default kernels: max difference " in text
    assert "\n  reference kernels: max difference " in text


def test_a_factored_file_is_a_third_of_a_dense_one(tmp_path):
    model = random_model("BSR", size=(28, 28), rank=4, units=10)
    factored = export_tflite(model, tmp_path / "m.tflite")
    merged = export_tflite(model, tmp_path / "merged.tflite", layout="merged")
    dense = keras.Sequential(
        [keras.Input((28, 28), batch_size=1), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    )
    plain = len(tf.lite.TFLiteConverter.from_keras_model(dense).convert())
    assert factored.bytes <= 11_200
    assert plain >= 2.9 * factored.bytes
    assert merged.bytes >= 2.9 * factored.bytes
    assert (factored.parameters, merged.parameters) == (4 * 56 * 10, 7840)


def test_links_are_followed(tmp_path):
    model = random_model("BSR")
    (tmp_path / "store").mkdir()
    for name, write in (("m.tflite", export_tflite), ("m", export_saved_model)):
        write(model, tmp_path / "store" / name)
        link = tmp_path / name
        link.symlink_to(tmp_path / "store" / name)
        write(model, link)
        assert link.is_symlink()
    assert {entry.name for entry in (tmp_path / "store").iterdir()} == {"m", "m.tflite"}


# SavedModel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "output"), [("BSR", "logits"), ("BLR", "probabilities"), ("LSR", "probabilities")]
)
def test_a_saved_model_computes_the_model(tmp_path, kind, output):
    model = random_model(kind, use_bias=True)
    export_saved_model(model, tmp_path / "m", output)
    serve = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    assert serve.structured_input_signature[1]["image"].shape.as_list() == [None, 7, 5]
    for T in (1, 40):
        x = random_images(model, T)
        results = serve(image=tf.constant(x))
        assert set(results) == {output}
        np.testing.assert_allclose(results[output], oracle(model, x, output), atol=ATOL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_a_saved_model_needs_neither_keras_nor_this_package(tmp_path):
    model = random_model("BSR")
    export_saved_model(model, tmp_path / "m")
    np.save(tmp_path / "x.npy", random_images(model))
    script = """
import sys
sys.modules["keras"] = sys.modules["keras_bilinear"] = None
import numpy as np, tensorflow as tf
serve = tf.saved_model.load("m").signatures["serving_default"]
np.save("p.npy", serve(image=tf.constant(np.load("x.npy")))["probabilities"])
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)
    expected = oracle(model, random_images(model), "probabilities")
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), expected, atol=ATOL)


def test_a_saved_model_is_replaced_and_nothing_else_is(tmp_path):
    target = tmp_path / "m"
    target.mkdir()  # An empty folder, as `tempfile` makes one, is as good as none.
    export_saved_model(random_model("BSR"), target)
    export_saved_model(random_model("BLR"), target)
    assert tf.saved_model.load(str(target)).signatures["serving_default"].structured_outputs[
        "probabilities"
    ].shape.as_list() == [None, 1]
    (target / "notes.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for taken in (target, file, other):
        with pytest.raises(ValueError, match=r"Expected `path` to be free, or a SavedModel.*Received: path="):
            export_saved_model(random_model("BSR"), taken)
    assert file.read_text() == (other / "notes.txt").read_text() == (target / "notes.txt").read_text() == "mine"
    assert {entry.name for entry in tmp_path.iterdir()} == {"m", "file", "other"}


# Errors, before anything is written -----------------------------------------------------------------------------


def with_nan(kind):
    model = random_model(kind, use_bias=True)
    model.head.bias.assign([np.nan] * model.units)
    return model


def with_infinite_factor():
    model = random_model("BSR")
    A, B = model.factors()
    A[0, 0, 0] = np.inf
    model.head.assign_factors(A, B)
    return model


def network(image):
    """A plain Keras model on any input."""
    return keras.Model(image, keras.layers.GlobalAveragePooling1D()(image) if len(image.shape) == 3 else image)


DATA = tf.data.Dataset.from_tensors(np.zeros((4, 7, 5))).batch(1)
NOT_WRITTEN = [
    (lambda: keras.Sequential(), {}, r"Expected a model of keras_bilinear.*Received: a Sequential"),
    (lambda: keras.Sequential([keras.layers.Dense(3)]), {}, r"functional or sequential.*Received: a Sequential"),
    (lambda: None, {}, r"Expected a model of keras_bilinear.*Received: a NoneType"),
    (lambda: kb.BilinearSoftmaxRegression(3, 2, input_shape=(7, 5)), {}, r"Expected a fitted model\. .* all zero"),
    (
        lambda: network(keras.Input((35,))),
        {},
        r"takes images of a fixed size. Received: input of shape \(None, 35\)",
    ),
    (lambda: network(keras.Input((None, 5))), {}, r"takes images of a fixed size. Received: .*None, None, 5"),
    (
        lambda: keras.Model(i := keras.Input((7, 5)), i),
        {},
        r"one row of scores for an image. Received: output of shape .*7, 5",
    ),
    (
        lambda: keras.Model([i := keras.Input((7, 5)), j := keras.Input((7, 5))], i + j),
        {},
        "network with one input",
    ),
    (lambda: keras.Model(i := keras.Input((7, 5)), [i, i]), {}, "network with one output"),
    (lambda: kb.BilinearSoftmaxRegression(3, 2), {}, "Expected a model with weights"),
    (lambda: kb.LinearLogisticRegression(), {}, "Expected a model with weights"),
    (lambda: with_nan("BSR"), {}, "finite float32 weights. Received: NaN"),
    (lambda: with_nan("LSR"), {}, "finite float32 weights. Received: NaN"),
    (with_infinite_factor, {}, "finite float32 weights. Received: NaN or infinity"),
    (lambda: random_model("BSR"), {"output": "classes"}, r"`output` to be one of .*output='classes'"),
    (lambda: random_model("BSR"), {"output": None}, r"`output` to be one of .*output=None"),
]


@pytest.mark.parametrize("write", [export_tflite, export_saved_model])
@pytest.mark.parametrize(("model", "options", "message"), NOT_WRITTEN)
def test_a_faulty_model_is_refused_and_nothing_written(tmp_path, write, model, options, message):
    with pytest.raises(ValueError, match=message):
        write(model(), tmp_path / "m", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "dw"}, "`layout` to be one of"),
        ({"layout": ["merged"]}, "`layout` to be one of"),
        ({"batch_size": 0}, "`batch_size` to be an integer >= 1. Received: batch_size=0"),
        ({"batch_size": 1.5}, "`batch_size`"),
        ({"batch_size": True}, "`batch_size`"),
        ({"batch_size": 2**31}, "`batch_size` to be an integer <= 2147483647. Received: batch_size=2147483648"),
        (
            {"batch_size": np.int64(10**9)},
            r"at most 7,669,584 images of 7 x 5 a call. Received: batch_size=1000000000",
        ),
        ({"batch_size": 10**400}, "`batch_size` to be an integer <= 2147483647"),
        ({"input_scale": 0}, "`input_scale` to be a finite number > 0. Received: input_scale=0"),
        ({"input_scale": -1.0}, "`input_scale`"),
        ({"input_scale": np.nan}, "`input_scale`"),
        ({"input_scale": np.inf}, "`input_scale`"),
        ({"input_scale": "1/255"}, "`input_scale`"),
        ({"input_scale": 1e300}, "`input_scale` within float32"),
        ({"quantize": "int4"}, "`quantize` to be one of"),
        ({"quantize": "float32"}, "`quantize` to be one of"),
        ({"quantize": ["int8"]}, "`quantize` to be one of"),
        ({"io": "uint8"}, "`io` to be one of .'float32'.. Received: io='uint8'"),
        ({"io": "int16", "quantize": "int8"}, "`io` to be one of"),
        ({"io": None}, "`io` to be one of"),
        ({"labels": "abc"}, "`labels` to be . different names"),
        ({"labels": ["a", "b", "b"]}, "`labels` to be . different names"),
        ({"labels": ["a"]}, "`labels` to be . different names"),
        ({"labels": [0, 1, 2]}, "`labels` to be . different names"),
        ({"labels": 3}, "`labels` to be . different names"),
        ({"labels": ["a", "b", "\ud800"]}, "`labels` to be . different names"),
        ({"input_scale": 1e-320}, "`input_scale` within float32"),
        ({"validation_data": (np.zeros((4, 5, 7)),)}, r"`x` of shape \(T, 7, 5\)"),
        (
            {"validation_data": np.zeros((4, 7, 5))},
            r"`validation_data` to be \(x, y\) or \(x,\).*Received: no tuple",
        ),
        ({"validation_data": (1, 2, 3)}, r"`validation_data` to be .*Received: 3 parts"),
        ({"validation_data": ()}, r"`validation_data` to be .*Received: 0 parts"),
        ({"validation_data": DATA}, r"`validation_data` to be .*Received: no tuple but a _BatchDataset"),
        ({"validation_data": {"x": 1}}, r"`validation_data` to be .*Received: no tuple but a dict"),
        ({"validation_data": (DATA,)}, r"Expected `x` to be an array of images. Received: a _BatchDataset"),
        ({"validation_data": ({"image": np.zeros((4, 7, 5))},)}, r"`x` to be an array of images. Received: a dict"),
        ({"validation_data": (np.zeros((4, 7, 5)), DATA)}, r"Expected `y` to be an array of real numbers"),
    ],
)
def test_a_faulty_option_is_refused_and_nothing_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export_tflite(random_model("BSR"), tmp_path / "m", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [export_tflite, export_saved_model])
@pytest.mark.parametrize("path", ["loop", "nul\0", "", None])
def test_a_path_that_leads_nowhere_is_refused(tmp_path, monkeypatch, write, path):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(ValueError, match=r"Expected `path` to be a place to write to\. Received: path="):
        write(random_model("BSR"), path)
    assert os.listdir() == ["loop"]


@pytest.mark.parametrize("path", [".", "pipe", "/dev/zero", "nul\0", None])
def test_what_is_no_file_is_not_read(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    model = random_model("BSR")
    with pytest.raises(ValueError, match=r"Expected `path` to be a file\. Received: path="):
        verify_tflite(path, model, random_images(model))


@pytest.mark.parametrize("write", [export_tflite, export_saved_model])
def test_a_missing_folder_is_named(tmp_path, write):
    with pytest.raises(FileNotFoundError, match=r"Expected an existing folder .*missing\. Received: path="):
        write(random_model("BSR"), tmp_path / "missing" / "m")
    assert list(tmp_path.iterdir()) == []


def test_folders_and_pipes_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a device or a pipe")):
        with pytest.raises(ValueError, match=rf"Expected `path` to be a file. Received: path=.*{kind}"):
            export_tflite(random_model("BSR"), path)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "m.tflite"
    export_tflite(random_model("BSR"), target)
    before = target.read_bytes()
    monkeypatch.setattr(export.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        export_tflite(random_model("BLR"), target)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == before


@pytest.mark.parametrize("failing", ["save", "rename"])
def test_a_failed_write_leaves_the_old_saved_model(tmp_path, monkeypatch, failing):
    target = tmp_path / "m"
    export_saved_model(random_model("BSR"), target)
    before = (target / "saved_model.pb").read_bytes()
    if failing == "save":
        monkeypatch.setattr(tf.saved_model, "save", lambda module, path, signatures: fail(Path(path).mkdir()))
    else:
        rename = Path.rename
        # The new folder cannot take its place, with the old one already moved away: on disks that cannot exchange.
        monkeypatch.setattr(atomic_files, "exchanged", lambda one, other: False)
        monkeypatch.setattr(
            Path,
            "rename",
            lambda self, to: fail() if to == target and (self / "new").exists() else rename(self, to),
        )
        save = tf.saved_model.save
        monkeypatch.setattr(
            tf.saved_model,
            "save",
            lambda module, path, signatures: (save(module, path, signatures), (Path(path) / "new").touch()),
        )
    with pytest.raises(OSError, match="disk full"):
        export_saved_model(random_model("BLR"), target)
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "saved_model.pb").read_bytes() == before


def fail(*_):
    raise OSError("disk full")


def test_without_the_runtime_the_error_says_what_to_install(exported, tmp_path, monkeypatch):
    model, report = exported("BSR")
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(ImportError, match=r"pip install ai-edge-litert"):
        export_tflite(model, tmp_path / "other.tflite")
    with pytest.raises(ImportError, match=r"pip install ai-edge-litert"):
        verify_tflite(report.path, model, random_images(model))
    assert list(tmp_path.iterdir()) == []


# Verification that fails ----------------------------------------------------------------------------------------


def test_the_file_of_another_model_is_refused(exported):
    path, model = exported("BSR")[1].path, random_model("BSR", seed=5)
    with pytest.raises(
        VerificationError, match=r"Expected max \|difference\| <= 5e-05 .* default kernels\. Received: 0\.\d"
    ):
        verify_tflite(path, model, random_images(model))
    for other in (random_model("BSR", size=(5, 7)), random_model("BSR", units=4), random_model("BLR")):
        with pytest.raises(VerificationError, match=r"Expected images of \d x \d and \d outputs.*Received"):
            verify_tflite(path, other, random_images(other))


@pytest.mark.parametrize("kind", ["BSR", "BLR", "LSR"])
def test_a_small_change_of_one_weight_is_noticed(exported, kind):
    model, report = random_model(kind), exported(kind)[1]
    x = random_images(model)
    first = model.trainable_variables[0]
    values = as_numpy(first)
    values[2, 0] += 1e-3
    first.assign(values)
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(report.path, model, x)


def test_a_damaged_file_is_refused(exported, tmp_path):
    model, report = exported("BSR")
    path, content = tmp_path / "m.tflite", report.path.read_bytes()
    for damaged in (content[:0], content[:200], content[:1500], content[:-4], b"not TFLite" * 100):
        path.write_bytes(damaged)
        with pytest.raises(VerificationError, match="Expected a TFLite file"):
            verify_tflite(path, model, random_images(model))


def write_other(path, function, *, flex=False, trackable=None):
    image = tf.TensorSpec((1, 7, 5), tf.float32, name="image")
    module = tf.Module() if trackable is None else trackable
    serve = tf.function(function, input_signature=[image]).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], module)
    if flex:
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    path.write_bytes(converter.convert())


def test_flex_operators_are_refused(tmp_path):
    def serve(image):
        z = tf.linalg.det(tf.matmul(image, image, transpose_a=True))
        return {"probabilities": tf.nn.softmax(tf.stack([z, z, z], axis=-1))}

    model = random_model("BSR")
    write_other(tmp_path / "m.tflite", serve, flex=True)
    with pytest.raises(
        VerificationError, match=r"Expected builtin operators.*Received: CUSTOM:FlexMatrixDeterminant"
    ):
        verify_tflite(tmp_path / "m.tflite", model, random_images(model))


def test_variables_are_refused(tmp_path):
    model = random_model("BSR")
    write_other(tmp_path / "m.tflite", lambda image: {"probabilities": model(image)}, trackable=model)
    with pytest.raises(
        VerificationError, match=r"Expected builtin operators without variables. Received: VAR_HANDLE"
    ):
        verify_tflite(tmp_path / "m.tflite", model, random_images(model))


def test_other_signatures_are_refused(tmp_path):
    model = random_model("BSR")
    x = random_images(model)
    write_other(tmp_path / "m.tflite", lambda image: {"classes": image[:, 0, :3]})
    with pytest.raises(VerificationError, match=r"Expected a signature as one of.*Received: .*'classes'"):
        verify_tflite(tmp_path / "m.tflite", model, x)
    write_other(tmp_path / "m.tflite", lambda pixels: {"probabilities": pixels[:, 0, :3]})
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(tmp_path / "m.tflite", model, x)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ((6e-5, 0.0, 1.0, 0.9), r"max \|difference\| <= 5e-05 .*Received: 6e-05"),
        ((5e-5, 6e-6, 1.0, 0.9), r"mean \|difference\| <= 5e-06 .*Received: 6e-06"),
        ((np.nan, 0.0, 1.0, 0.9), r"max \|difference\|.*Received: nan"),
        ((0.0, 0.0, 0.99, 0.9), r"class agreement >= 0.999 .* reference kernels. Received: 0.99"),
        ((0.0, 0.0, 1.0, 0.899), r"accuracy drop <= 0.0006 .*Received: 0.001"),
    ],
)
def test_each_gate(figures, message):
    gates, expected = GATES[None], np.full((10_000, 3), 1 / 3)
    with pytest.raises(VerificationError, match=message):
        check_gates(KernelReport("reference", *figures), gates, expected, keras_accuracy=0.9)
    better = KernelReport("reference", 5e-5, 5e-6, 0.999, 0.95)
    check_gates(better, gates, expected, keras_accuracy=0.9)


def test_images_that_change_class_by_chance_are_no_evidence_against_a_file():
    gates = GATES["int8"]
    one_of_forty = KernelReport("default", 0.0, 0.0, 0.975, 0.875)
    check_gates(one_of_forty, gates, np.full((40, 3), 1 / 3), keras_accuracy=0.9)
    with pytest.raises(VerificationError, match="accuracy drop"):
        check_gates(one_of_forty, gates, np.full((4000, 3), 1 / 3), keras_accuracy=0.9)


def test_a_single_output_has_no_small_ones_beside_it():
    report = KernelReport("default", 0.1, 0.02, 1.0, None)
    check_gates(report, GATES["int8"], np.full((100, 1), 0.5), None)
    with pytest.raises(VerificationError, match=r"mean \|difference\|"):
        check_gates(report, GATES["int8"], np.full((100, 3), 1 / 3), None)


def test_large_logits_are_compared_by_their_size(tmp_path):
    model = random_model("BSR")
    A, B = model.factors()
    model.head.assign_factors(300 * A, 300 * B)
    x = random_images(model)
    export_tflite(model, tmp_path / "m.tflite", output="logits")
    report = verify_tflite(tmp_path / "m.tflite", model, x)
    # Rounding of numbers around 1e5, in float32: far above the limit for numbers around 1.
    assert max(report.default.max_difference, report.reference.max_difference) > 5e-5


def test_a_tie_may_be_broken_either_way_but_a_lead_may_not():
    expected = np.array([[0.5, 0.5, 0.0], [0.6, 0.4, 0.0]])
    labels = np.array([0, 0])
    tie, lead = expected.copy(), expected.copy()
    tie[0, 0] -= 1e-7
    lead[1, 0] -= 0.3
    report = compared("default", tie, expected, "probabilities", labels)
    assert (report.agreement, report.accuracy) == (1.0, 1.0)
    report = compared("default", lead, expected, "probabilities", labels)
    assert (report.agreement, report.accuracy) == (0.5, 0.5)


@pytest.mark.parametrize(("output", "threshold"), [("probabilities", 0.5), ("logits", 0.0)])
def test_a_single_score_is_compared_with_its_threshold(output, threshold):
    expected = threshold + np.array([[0.2], [-0.2], [0.1]])
    scores = threshold + np.array([[0.2], [-0.2], [-0.1]])
    report = compared("default", scores, expected, output, np.array([1, 0, 1]))
    assert report.agreement == report.accuracy == 2 / 3
    assert report.mean_difference == pytest.approx(0.2 / 3)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 5, 7)), None, r"Expected `x` of shape \(T, 7, 5\)"),
        (np.zeros((0, 7, 5)), None, r"Expected `x` of shape \(T, 7, 5\).*Received: \(0, 7, 5\)"),
        (np.full((2, 7, 5), np.nan), None, "Expected finite numbers in `x`"),
        (np.zeros((2, 7, 5)), [0, 3], "whole numbers from 0 to 2"),
        (np.zeros((2, 7, 5)), [0], "one label for each image"),
    ],
)
def test_faulty_data_is_refused(tmp_path, x, y, message):
    with pytest.raises(ValueError, match=message) as caught:
        verify_tflite(tmp_path / "not read yet", random_model("BSR"), x, y)
    assert not isinstance(caught.value, VerificationError)


def test_faulty_arguments_of_the_verification(tmp_path):
    model = random_model("BSR")
    x = random_images(model)
    with pytest.raises(FileNotFoundError):
        verify_tflite(tmp_path / "missing.tflite", model, x)
    with pytest.raises(ValueError, match="Expected a model of keras_bilinear"):
        verify_tflite(tmp_path / "missing.tflite", keras.Sequential(), x)
    with pytest.raises(ValueError, match="`input_scale`"):
        verify_tflite(tmp_path / "missing.tflite", model, x, input_scale=0.0)


def test_a_network_with_a_single_number_among_its_constants(tmp_path):
    image = keras.Input((6, 6, 1))
    maps = keras.layers.Conv2D(2, 3, activation="softplus")(image)
    network = keras.Model(image, keras.layers.Dense(3, activation="softmax")(keras.layers.Flatten()(maps)))
    x = np.random.default_rng(0).uniform(size=(40, 6, 6, 1)).astype("float32")
    path = tmp_path / "softplus.tflite"
    export_tflite(network, path, "int16x8", representative_data=x, validation_data=(x,))
    assert () in [shape for _, shape in litert.stored_weights(path.read_bytes())]
