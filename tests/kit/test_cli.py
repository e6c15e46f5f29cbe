"""The command line of the deployment kit: real models of handwritten digits, real files, the real interpreter."""

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_bilinear_export.cli import main
from keras_bilinear_export.faults import is_foreseeable
from keras_bilinear_export.images import from_dataset, from_npz
from keras_bilinear_export.options import VARIANTS, command_line, parsed
from keras_bilinear_export.quiet import quiet_stderr

import keras_bilinear as kb
from keras_bilinear import atomic_files
from keras_bilinear.export import litert
from tests.files import least_squares_model, random_model

ROOT = Path(kb.__file__).parents[1]
LAYOUTS = ("factored", "merged")
LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SMALL = ["--variants", "float32", "int8", "--layouts", "factored", "--latency-runs", "0"]
ONE_FILE = ["--variants", "float32", "--layouts", "factored", "--latency-runs", "0"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments):
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    return Done(code, out.getvalue(), err.getvalue())


def report_in(folder):
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def called(folder, model, *options, **arrays):
    """The command with a model and its images, all in this folder; the files are in its folder "out"."""
    model.save(folder / "model.keras")
    np.savez(folder / "images.npz", **arrays)
    return run(folder / "model.keras", "--data", folder / "images.npz", "--out", folder / "out", *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of digits with pixels 0 to 1, and images with pixels 0 to 16."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("kit")
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8)
    least_squares_model(x[:1300] / 16, y[:1300], units=10, rank=2).save(folder / "my digits.keras")
    np.savez(folder / "images.npz", x=x[-900:].astype("uint8"), y=y[-900:])
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return keras.models.load_model(folder / "my digits.keras")


@pytest.fixture(scope="module")
def digits_model(folder):
    """The arguments that every call needs."""
    return [folder / "my digits.keras", "--data", folder / "images.npz", "--input-scale", "1/16"]


@pytest.fixture(scope="module")
def everything(folder, digits_model):
    """One call that writes all there is."""
    out = folder / "every thing"
    done = run(*digits_model, "--out", out, "--labels", *LABELS, "--saved-model", "--latency-runs", "20")
    return done, out


# What is written ------------------------------------------------------------------------------------------------


def test_every_variant_in_every_layout(everything):
    done, out = everything
    assert (done.code, done.err) == (0, "")
    files = {f"my digits-{variant}-{layout}.tflite" for variant in VARIANTS for layout in LAYOUTS}
    assert names_in(out) == files | {"report.json", "report.md", "my digits-saved-model"}
    report = report_in(out)
    assert {file["name"] for file in report["files"]} == files
    assert report["missed"] == []
    for file in report["files"]:
        content = (out / file["name"]).read_bytes()
        assert file["bytes"] == len(content)
        assert tuple(file["operators"]) == litert.operators(content)
        facts = litert.metadata(content)
        assert facts["labels"] == LABELS
        assert facts["input_scale"] == 1 / 16
        assert facts.get("quantize") == VARIANTS[file["variant"]]
        assert file["microseconds"] > 0
    weights = {file["variant"]: set(file["weights"]) for file in report["files"] if file["layout"] == "factored"}
    assert weights["float32"] == {"FLOAT32"}
    assert weights["float16"] == {"FLOAT16"}
    assert weights["int8"] == weights["int16x8"] == {"INT8"}
    # Each factor has 160 numbers, too few for the converter.
    assert weights["dynamic"] == {"FLOAT32"}


def test_figures_are_those_of_verify_tflite_on_images_that_did_not_calibrate(everything, folder, model):
    _, out = everything
    report = report_in(out)
    with np.load(folder / "images.npz") as data:
        x, y = data["x"], data["y"]
    held_out = np.setdiff1d(np.arange(900), np.linspace(0, 899, 256).astype(int))
    assert (report["calibration_images"], report["verification_images"]) == (256, len(held_out)) == (256, 644)
    for file in report["files"][::4]:
        proof = kb.verify_tflite(out / file["name"], model, x[held_out], y[held_out])
        assert file["default"] == dataclasses.asdict(proof.default)
        assert file["reference"] == dataclasses.asdict(proof.reference)
        assert report["keras_accuracy"] == proof.keras_accuracy > 0.7


def test_sizes_are_over_flatten_and_dense(everything, model, tmp_path):
    dense = kb.export_tflite(kb.to_dense(model), tmp_path / "dense.tflite")
    for file in report_in(everything[1])["files"]:
        # But for the names of the tensors, which say how many layers there were before.
        assert file["bytes"] / file["bytes_to_dense"] == pytest.approx(dense.bytes, abs=100)


def test_sizes_of_the_model(everything):
    model = report_in(everything[1])["model"]
    M, N, K, L = 8, 8, 10, 2
    assert model["parameters"] == {"factored": L * (M + N) * K, "merged": M * N * K}
    products = sum(1 for _ in range(M) for _ in range(L * K) for _ in range(N))
    sums = sum(1 for _ in range(K) for _ in range(L * M))
    assert model["multiply_adds"] == {"factored": products + sums, "merged": M * N * K}
    assert (model["image"], model["outputs"], model["rank"]) == ([M, N], K, L)


def test_choices_are_the_best_by_the_figures(everything):
    done, out = everything
    report = report_in(out)
    merits = {
        "smallest": lambda file: file["bytes"],
        "fastest": lambda file: file["microseconds"],
        "closest to Keras": lambda file: max(
            file["default"]["mean_difference"], file["reference"]["mean_difference"]
        ),
    }
    for (aim, merit), line in zip(merits.items(), report["choices"], strict=False):
        best = min(merit(file) for file in report["files"])
        titles = [f"{file['variant']} {file['layout']}" for file in report["files"] if merit(file) == best]
        assert any(line.startswith(f"{aim}: {title}, ") for title in titles), line
        assert f"(Keras {report['keras_accuracy']:.4f})" in line
        assert f"- {line}\n" in done.out
    # Whatever is best for one aim is not beaten in all of them.
    front = report["choices"][-1].split(": ")[1].split(", ")
    assert {line.split(": ")[1].split(",")[0] for line in report["choices"][:-1]} <= set(front)


def test_the_printed_report_is_the_written_one(everything):
    done, out = everything
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert done.out.endswith(markdown)
    progress = done.out.removesuffix(markdown).splitlines()
    assert sum("verified on 644 images" in line for line in progress) == 10
    rows = [line.split("|")[1].strip() for line in markdown.splitlines() if line.startswith("| ")]
    assert all(rows.count(f"{variant} {layout}") == 2 for variant in VARIANTS for layout in LAYOUTS)
    for table in markdown.split("\n\n| ")[1:]:
        rows = table.split("\n\n")[0].splitlines()
        assert len({len(line) for line in ("| " + rows[0], *rows[1:])}) == 1, "columns stand under each other"


def test_the_saved_model(everything, folder, model):
    loaded = tf.saved_model.load(str(everything[1] / "my digits-saved-model"))
    with np.load(folder / "images.npz") as data:
        x = (data["x"][:20] / 16).astype("float32")
    scores = loaded.signatures["serving_default"](image=tf.constant(x))["probabilities"]
    np.testing.assert_allclose(scores, model.predict(x, verbose=0), atol=1e-6)


# Other models and options ---------------------------------------------------------------------------------------


def test_binary_model_raw_pixels_one_image_or_many(tmp_path, digits):
    x, y = digits
    keep = y < 2
    pair, pixels = least_squares_model(x[keep], y[keep], units=1, rank=1), (x[keep] * 16)[..., None].astype("uint8")
    (tmp_path / "names.txt").write_text("zero\n\none\n", encoding="utf-8")
    options = "--variants int8 --layouts factored --io uint8 --input-scale 0.0625 --batch dynamic --output logits"
    options = [*options.split(), "--labels-file", tmp_path / "names.txt", "--latency-runs", "10"]
    done = called(tmp_path, pair, *options, x=pixels, y=y[keep])
    assert (done.code, done.err) == (0, "")
    report = report_in(tmp_path / "out")
    assert [(file["variant"], file["layout"]) for file in report["files"]] == [("int8", "factored")]
    content = (tmp_path / "out" / "model-int8-factored.tflite").read_bytes()
    assert litert.metadata(content)["labels"] == ["zero", "one"]
    interpreter = litert.runtime().interpreter.Interpreter(model_content=content)
    image, scores = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    assert (image["dtype"], scores["dtype"]) == (np.uint8, np.uint8)
    assert image["shape_signature"].tolist() == [-1, 8, 8]
    assert list(interpreter.get_signature_list()["serving_default"]["outputs"]) == ["logits"]
    assert report["files"][0]["microseconds"] > 0


def test_linear_model_has_one_layout(tmp_path, digits):
    done = called(tmp_path, random_model("LSR", (8, 8), units=10), *ONE_FILE, x=digits[0][:100])
    assert (done.code, done.err) == (0, "")
    assert names_in(tmp_path / "out") == {"model-float32-merged.tflite", "report.json", "report.md"}
    report = report_in(tmp_path / "out")
    (file,) = report["files"]
    # No labels, no accuracy; no runs, no time.
    assert report["keras_accuracy"] is file["default"]["accuracy"] is file["microseconds"] is None
    assert (report["calibration_images"], report["verification_images"]) == (50, 50)
    assert "accuracy" not in done.out
    assert "fastest" not in done.out


def test_network_with_an_operator_that_int16_lacks(tmp_path, digits):
    x, y = digits
    image = keras.Input((8, 8, 1))
    maps = keras.layers.PReLU()(keras.layers.Conv2D(1, 3)(image))
    head = kb.BilinearDense(10, rank=1, activation="softmax", left_initializer="glorot_uniform")
    options = ["--variants", "float32", "int16x8", "--layouts", "factored", "--latency-runs", "10"]
    done = called(tmp_path, keras.Model(image, head(maps)), *options, x=x[:200], y=y[:200])
    assert (done.code, done.err) == (1, "")
    report = report_in(tmp_path / "out")
    (file,), (missed,) = report["files"], report["missed"]
    assert file["bytes_to_dense"] is report["model"]["multiply_adds"] is None
    assert file["microseconds"] > 0
    assert missed["reason"].startswith("The converter cannot write it: ")
    assert "PRELU" in missed["reason"]


def test_network_that_int8_cannot_hold_has_other_files(tmp_path, digits):
    x, y = digits
    black = [keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Rescaling(0.0)]
    network = keras.Sequential([*black, keras.layers.Dense(10, activation="softmax")])
    options = ["--variants", "float32", "int8", "--latency-runs", "0"]
    done = called(tmp_path, network, *options, x=x[:200], y=y[:200])
    assert (done.code, done.err) == (1, "")
    (file,), (missed,) = (report_in(tmp_path / "out")[key] for key in ("files", "missed"))
    assert (file["variant"], missed["variant"]) == ("float32", "int8")
    assert "scores that are all the same" in missed["reason"]


def test_a_file_that_misses_a_gate_is_not_written_and_an_old_one_is_gone(tmp_path, folder, digits_model):
    with np.load(folder / "images.npz") as data:
        x, y = data["x"][:300], data["y"][:300]
    # Calibrated on images far darker than those it will see, int8 cuts off most of what is in them.
    np.savez(tmp_path / "dark.npz", x=x, y=y, x_calibration=x[:100] / 8)
    model, out = digits_model[0], tmp_path / "out"
    out.mkdir()
    (out / "my digits-int8-factored.tflite").write_bytes(b"old")
    done = run(model, "--data", tmp_path / "dark.npz", "--input-scale", "1/16", "--out", out, *SMALL)
    assert (done.code, done.err) == (1, "")
    assert names_in(out) == {"my digits-float32-factored.tflite", "report.json", "report.md"}
    (missed,) = report_in(out)["missed"]
    assert (missed["variant"], missed["layout"]) == ("int8", "factored")
    for words in ("Expected ", " against Keras under the default kernels. Received: "):
        assert words in missed["reason"]
    assert done.out.count(missed["reason"]) == 2  # when it happened, and in the report
    assert "float32 factored: " in done.out


def test_all_files_take_their_places_at_once(tmp_path, digits_model, monkeypatch):
    out, moments = tmp_path / "out", []
    exchanged = atomic_files.exchanged

    def watched(new, old):
        moments.append((names_in(new), names_in(old)))
        return exchanged(new, old)

    monkeypatch.setattr(atomic_files, "exchanged", watched)
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "report.json").write_text("old")
    assert run(*digits_model, "--out", out, *ONE_FILE).code == 0
    all_of_it = {"my digits-float32-factored.tflite", "report.json", "report.md", "notes.txt"}
    assert moments == [(all_of_it, {"notes.txt", "report.json"})]
    assert names_in(out) == all_of_it
    assert report_in(out)["files"]
    assert names_in(tmp_path) == {"out"}


def test_where_every_file_misses_its_gate(tmp_path, folder, digits_model):
    with np.load(folder / "images.npz") as data:
        np.savez(tmp_path / "dark.npz", x=data["x"], y=data["y"], x_calibration=data["x"][:100] / 8)
    options = ["--input-scale", "1/16", "--out", tmp_path / "out", "--variants", "int8", "--layouts", "merged"]
    done = run(digits_model[0], "--data", tmp_path / "dark.npz", *options)
    assert (done.code, done.err) == (1, "")
    assert names_in(tmp_path / "out") == {"report.json", "report.md"}
    report = report_in(tmp_path / "out")
    assert report["files"] == report["choices"] == []
    assert len(report["missed"]) == 1


# Faults ---------------------------------------------------------------------------------------------------------


def check_fault(done, *words):
    """Exit code 2, and one line on stderr that says these words."""
    assert done.code == 2
    assert done.err.startswith("keras-bilinear-export: ")
    assert done.err.count("\n") == 1, done.err
    assert len(done.err) < 500
    for word in words:
        assert word in done.err


@pytest.fixture
def damaged(folder, tmp_path):
    """The model's file, changed by a function of its bytes."""

    def write(change, name="damaged.keras"):
        (tmp_path / name).write_bytes(change((folder / "my digits.keras").read_bytes()))
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"", ["Expected a model saved by Keras", "empty"]),
        (lambda content: content[:1], ["Expected a model saved by Keras"]),
        (lambda content: content[: len(content) // 2], ["damaged.keras, which is empty or damaged"]),
        (lambda content: content[:-1], ["damaged.keras, which is empty or damaged"]),
        (lambda content: content.replace(b"\x89HDF", b"\x00HDF"), ["damaged.keras"]),  # told by zipfile or by HDF5
        (lambda content: b"PK" + bytes(1000), ["damaged.keras, which is empty or damaged"]),
        (lambda content: zipped(note="no model"), ["damaged.keras", "config.json"]),
        (lambda content: zipped(**{"config.json": "{}", "metadata.json": "{}"}), ["damaged.keras"]),
        (lambda content: zipped(**{"config.json": "{", "metadata.json": "{}"}), ["damaged.keras", "property name"]),
    ],
)
def test_a_model_file_that_is_none(damaged, folder, tmp_path, change, words):
    done = run(damaged(change), "--data", folder / "images.npz", "--out", tmp_path / "out")
    check_fault(done, *words)
    assert not (tmp_path / "out").exists()


def zipped(**texts):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return content.getvalue()


def test_code_in_a_model_file_is_not_run(folder, tmp_path):
    trap = str(tmp_path / "trap")
    image = keras.Input((8, 8))
    layer = keras.layers.Lambda(lambda x: (open(trap, "w").close(), x)[1])
    scores = keras.layers.Dense(10, activation="softmax")(keras.layers.Flatten()(layer(image)))
    keras.Model(image, scores).save(tmp_path / "lambda.keras")
    os.unlink(trap)
    keras.models.load_model(tmp_path / "lambda.keras", safe_mode=False)
    os.unlink(trap)  # so loading is enough to run what is in the file
    done = run(tmp_path / "lambda.keras", "--data", folder / "images.npz", "--out", tmp_path / "out")
    check_fault(done, "Expected a model without Python code", "Lambda", "safe mode refuses")
    assert not os.path.exists(trap)
    assert not (tmp_path / "out").exists()


def test_a_class_that_only_its_author_has(folder, tmp_path):
    class Own(keras.layers.Layer):
        def call(self, x):
            return x

    image = keras.Input((8, 8))
    scores = keras.layers.Dense(10)(keras.layers.Flatten()(Own()(image)))
    keras.Model(image, scores).save(tmp_path / "own.keras")
    done = run(tmp_path / "own.keras", "--data", folder / "images.npz", "--out", tmp_path / "out")
    check_fault(done, "Could not locate class 'Own'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.head.assign_factors(*map(np.zeros_like, model.factors())), ["fitted", "all zero"]),
        (
            lambda model: model.head.assign_factors(*(np.nan * factor for factor in model.factors())),
            ["finite float32 weights", "NaN"],
        ),
    ],
)
def test_weights_that_make_no_file(folder, tmp_path, change, words):
    model = keras.models.load_model(folder / "my digits.keras")
    change(model)
    model.save(tmp_path / "bad.keras")
    done = run(tmp_path / "bad.keras", "--data", folder / "images.npz", "--out", tmp_path / "out")
    check_fault(done, *words)
    assert not (tmp_path / "out").exists()


def images(T=100, size=(8, 8), seed=0):
    return np.random.default_rng(seed).uniform(size=(T, *size))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": images()}, ["an array x", "Received: images"]),
        ({}, ["an array x", "no array"]),
        ({"x": images(size=(8, 9))}, ["shape (T, 8, 8)", "9)"]),
        ({"x": images(size=(64,))}, ["shape (T, M, N)", "(100, 64)"]),
        ({"x": np.float32(3)}, ["shape (T, M, N)", "()"]),
        ({"x": images(20)}, ["more than 32 images", "Received: 20"]),
        ({"x": images(32)}, ["more than 32 images", "Received: 32"]),
        ({"x": images(), "x_calibration": images(31)}, ["32 or more images", "Received: 31"]),
        ({"x": images(), "x_calibration": images(40, (4, 4))}, ["shape (T, 8, 8)"]),
        ({"x": images(), "x_calibration": np.ones((40, 8, 8))}, ["images that differ"]),
        ({"x": images(), "y": np.zeros(99, int)}, ["a label in y for each image"]),
        ({"x": images(), "y": np.full(100, 10)}, ["whole numbers from 0 to 9"]),
        ({"x": images() * np.nan}, ["finite numbers", "NaN"]),
        ({"x": np.array(["a"] * 100).reshape(-1, 1, 1)}, ["real numbers"]),
        ({"x": np.array([None] * 100)}, ["an .npz archive", "allow_pickle"]),
    ],
)
def test_images_that_do_not_do(folder, tmp_path, arrays, words):
    np.savez(tmp_path / "bad.npz", **arrays)
    done = run(folder / "my digits.keras", "--data", tmp_path / "bad.npz", "--out", tmp_path / "out", *ONE_FILE)
    check_fault(done, *words)
    assert not (tmp_path / "out").exists()


def test_a_file_of_images_that_is_none(folder, tmp_path):
    whole = (folder / "images.npz").read_bytes()
    np.save(tmp_path / "one.npy", images())
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(flipped)
    for name in ("one.npy", "half.npz", "empty.npz", "flipped.npz"):
        done = run(folder / "my digits.keras", "--data", tmp_path / name, "--out", tmp_path / "out")
        check_fault(done, "Expected an .npz archive of NumPy arrays", name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "no/such/folder"], ["No such file or directory: no/such/folder"]),
        (["--out", "file"], ["File exists: file"]),
        (["--data", "none.npz"], ["No such file or directory: none.npz"]),
        (["--input-scale", "1/65536"], ["in the units of the file"]),
        (["--labels", "a", "b"], ["10 different names"]),
        (["--labels-file", "none.txt"], ["No such file or directory: none.txt"]),
        (["--labels-file", "binary.txt"], ["Expected a text file in UTF-8"]),
        (["--out", "taken"], ["report.md to be free", "a folder"]),
        (["--out", "taken2", "--saved-model"], ["a SavedModel to replace"]),
    ],
)
def test_other_faults(folder, digits_model, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a file")
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("taken/report.md").mkdir(parents=True)
    Path("taken2/my digits-saved-model").mkdir(parents=True)
    Path("taken2/my digits-saved-model/diary.txt").write_text("dear diary")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    done = run(*digits_model, "--out", "out", *ONE_FILE, *options)
    check_fault(done, *words)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["none.keras", "folder.keras", "model.h5"])
def test_a_path_that_is_no_model_file(folder, tmp_path, name):
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "model.h5").write_bytes(b"\x89HDF")
    done = run(tmp_path / name, "--data", folder / "images.npz", "--out", tmp_path / "out")
    check_fault(done, name)


def test_without_litert(digits_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    done = run(*digits_model, "--out", tmp_path / "out")
    check_fault(done, "needs ai-edge-litert: pip install ai-edge-litert")


@pytest.fixture
def disk(tmp_path):
    """A disk of its own, mounted with these options; "remount,ro" changes them."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command here")
        if done.returncode:
            pytest.skip(f"needs the right to mount a disk: {done.stderr.strip()}")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True, timeout=20)


# Full at the first file, at the last report, and within the SavedModel.
@pytest.mark.parametrize(("size", "options"), [("4k", []), ("16k", []), ("24k", ["--saved-model"])])
def test_a_full_disk_leaves_the_folder_as_it_was(disk, digits_model, size, options):
    out = disk(f"size={size}")
    (out / "my digits-float32-factored.tflite").write_bytes(b"old")
    done = run(*digits_model, "--out", out, *options, *SMALL)
    check_fault(done, "No space left on device")
    assert names_in(out) == {"my digits-float32-factored.tflite"}
    assert (out / "my digits-float32-factored.tflite").read_bytes() == b"old"


def test_a_folder_that_cannot_be_written_to(disk, digits_model):
    out = disk("size=1m")
    (out / "report.json").write_text("old")
    disk("remount,ro")
    check_fault(run(*digits_model, "--out", out), f"Read-only file system: {out}")
    check_fault(run(*digits_model, "--out", out / "new"), f"Read-only file system: {out / 'new'}")
    assert names_in(out) == {"report.json"}


# Command line, data sets, stderr --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"), [("1/255", 1 / 255), ("0.5", 0.5), ("2", 2.0), ("1e-3", 1e-3), (" 1/16 ", 1 / 16)]
)
def test_input_scale(text, value):
    assert parsed(["m.keras", "--data", "d.npz", "--out", "o", "--input-scale", text]).input_scale == value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input-scale", "0"], "a number > 0"),
        (["--input-scale", "1/0"], "a number > 0"),
        (["--input-scale", "nan"], "a number > 0"),
        (["--input-scale", "-1/255"], "expected one argument"),
        (["--variants", "int4"], "invalid choice"),
        (["--latency-runs", "-1"], "a whole number >= 0"),
        (["--latency-runs", "many"], "a whole number >= 0"),
        (["--dataset", "digits"], "not allowed with argument"),
        (["--io", "uint8", "--variants", "float32"], "Expected int8 among --variants"),
        (["--labels", "a", "--labels-file", "b"], "not allowed with argument"),
    ],
)
def test_arguments_that_make_no_sense(options, words):
    done = run("m.keras", "--data", "d.npz", "--out", "o", *options)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_digits_have_pixels_of_one_after_scaling():
    plain, scaled = from_dataset("digits", None), from_dataset("digits", 1 / 16)
    assert plain.x.max() == plain.calibration.max() == 1.0
    assert set(np.unique(scaled.x)) <= set(range(17))
    assert (len(plain.calibration), len(plain.x), len(plain.y)) == (256, 450, 450)


@pytest.mark.skipif(
    not (Path(os.environ.get("TFDS_DATA_DIR", "")) / "mnist").is_dir(),
    reason="MNIST is not prepared: set TFDS_DATA_DIR to a tensorflow-datasets folder that holds it",
)
@pytest.mark.filterwarnings("ignore")  # deprecations inside tensorflow-datasets and its dependencies
def test_mnist_has_pixels_of_one_after_scaling():
    images = from_dataset("mnist", 1 / 255)
    assert (len(images.calibration), len(images.x), len(images.y)) == (256, 10_000, 10_000)
    assert set(np.unique(images.x)) == set(range(256))


@pytest.mark.parametrize(("T", "calibrate"), [(33, 32), (40, 32), (64, 32), (100, 50), (512, 256), (900, 256)])
def test_no_image_both_calibrates_and_verifies(tmp_path, T, calibrate):
    x = np.arange(T * 4.0).reshape(T, 2, 2)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(T))
    images = from_npz(tmp_path / "x.npz")
    assert len(images.calibration) == calibrate
    np.testing.assert_array_equal(images.x, x[images.y])
    np.testing.assert_array_equal(np.unique(np.concatenate([images.x, images.calibration])), np.unique(x))


def test_stderr_is_shown_when_something_unknown_fails(capfd):
    def failing(error):
        with quiet_stderr(unless=is_foreseeable):
            os.write(2, b"a native note\n")
            raise error

    for error, shown in ((ValueError("known"), ""), (KeyError("unknown"), "a native note\n")):
        with pytest.raises(type(error)):
            failing(error)
        assert capfd.readouterr().err == shown
    with quiet_stderr(unless=is_foreseeable):
        os.write(2, b"a native note\n")
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "afterwards"


def test_in_a_process_of_its_own(folder, tmp_path):
    command = [sys.executable, "-m", "keras_bilinear_export", "my digits.keras", "--dataset", "digits"]
    done = subprocess.run(
        [*command, "--out", tmp_path / "out", "--variants", "int8", "--layouts", "merged", "--latency-runs", "10"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "export")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Not a word of TensorFlow's and LiteRT's notes.
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("int8 merged: ")
    assert names_in(tmp_path / "out") == {"my digits-int8-merged.tflite", "report.json", "report.md"}


def test_commands_of_the_readme_are_understood():
    text = (ROOT / "export" / "README.md").read_text(encoding="utf-8")
    commands = [line.split()[1:] for line in text.splitlines() if line.startswith("keras-bilinear-export ")]
    assert len(commands) == 2
    for command in commands:
        assert parsed(command).model.suffix == ".keras"
    named = set(re.findall(r"`(--[a-z-]+)", text))
    assert named == set(re.findall(r"--[a-z-]+", command_line().format_help())) - {"--help", "--out"}
