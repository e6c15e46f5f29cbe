"""Files for microcontrollers: run on the TensorFlow Lite Micro interpreter, their C++ sources compiled and run."""

import dataclasses
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from keras_bilinear_export import firmware, microcontroller
from keras_bilinear_export.micro_model import RESOLVER_METHODS, Tensor, read_model
from keras_bilinear_export.microcontroller import arena_size, scores, write_firmware

import keras_bilinear as kb
from keras_bilinear.export import litert
from keras_bilinear.export.litert import operators
from tests.files import least_squares_model, random_model

pytest.importorskip("tflite_micro", reason="needs tflite-micro, whose wheels are for Linux on x86-64")

INTERFACE = Path(__file__).with_name("tflm")
PARTS = ["model.h", "model.cc", "classify.cc", "check.cc"]
WARNINGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
LABELS = ['say "hi"', "new\nline", "é 数 ü1", "back\\slash", "??/", "/??", "tab\t%d", "7", "8", "9"]
# One step of an int8 output is 1/256; the runtimes round in different places.
TWO_STEPS = 2 / 256


def exported(model, images, quantize=None, io="float32"):
    """The bytes of a file of `model`; `io`: type of input and output."""
    with tempfile.TemporaryDirectory() as folder:
        report = kb.export_tflite(model, Path(folder) / "m.tflite", quantize, representative_data=images, io=io)
        return without_metadata(report.path.read_bytes())


def without_metadata(content):
    """The file under which none of the metadata of an export is found."""
    return litert.with_metadata(content, {}).replace(b"keras_bilinear", b"of_other_tools")


@pytest.fixture(scope="module")
def models(digits):
    """K -> a model of the digits."""
    x, y = digits
    return {
        10: least_squares_model(x[:1000], y[:1000], units=10, rank=3),
        1: least_squares_model(x[y < 2], y[y < 2], units=1, rank=2),
    }


@pytest.fixture(scope="module")
def file(models, digits):
    """(K, quantize, io) -> the bytes of a file, converted once."""
    return functools.cache(
        lambda K=10, quantize="int8", io="int8": exported(models[K], digits[0][:64], quantize, io)
    )


def logit_step(content):
    """By how much one step of an int8 file's logits, the input of its SOFTMAX, changes them."""
    graph = litert.unpacked(content).subgraphs[0]
    softmax = graph.operators[litert.operators(content).index("SOFTMAX")]
    return float(graph.tensors[softmax.inputs[0]].quantization.scale[0])


def with_metadata(content, **facts):
    """The file with what an export says of it."""
    return litert.with_metadata(content, facts)


def function_file(function, *shape):
    """The bytes of a file of any TensorFlow function of one input."""
    module = tf.Module()
    module.serve = tf.function(function, input_signature=[tf.TensorSpec(shape, tf.float32, name="image")])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.serve.get_concrete_function()], module)
    return converter.convert()


# On the interpreter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("K", "quantize", "io"),
    [(10, "int8", "int8"), (10, "int8", "uint8"), (1, "int8", "float32"), (1, "int16x8", "float32")],
)
def test_quantized_files_agree_with_keras(file, models, digits, K, quantize, io):
    x, y = digits
    x = x[1000:1200] if K == 10 else x[y < 2][:200]
    computed = scores(file(K, quantize, io), x)
    assert computed.shape == (len(x), K)
    assert computed.dtype == np.float32
    difference = np.abs(computed - models[K].predict(x, verbose=0)).mean()
    # Measured: up to 0.002 and 0.0005.
    assert difference < (0.005 if quantize == "int8" else 0.001)


def test_it_computes_what_litert_computes(file, digits):
    x = digits[0][1000:1200]
    content = file()
    model = read_model(content)
    serve = Interpreter(model_content=content).get_signature_runner("serving_default")
    stored = np.concatenate([serve(image=image[None])["probabilities"] for image in model.image.quantized(x)])
    difference = np.abs(scores(content, x) - model.output.dequantized(stored))
    # Where one of them rounds a logit up and the other down, p moves by p (1 - p) of its step.
    assert difference.max() <= TWO_STEPS + logit_step(content) / 2
    assert difference.mean() <= TWO_STEPS / 20


@pytest.mark.parametrize("layout", ["factored", "merged"])
@pytest.mark.parametrize("K", [10, 1])
def test_float32_files_of_the_library_run(models, digits, tmp_path, K, layout):
    kb.export_tflite(models[K], tmp_path / "m.tflite", layout=layout)
    content = (tmp_path / "m.tflite").read_bytes()
    x = digits[0][:20]
    np.testing.assert_allclose(scores(content, x), models[K].predict(x, verbose=0), atol=5e-6)


def test_int8_on_mnist_loses_no_accuracy_to_speak_of(mnist):
    (x, y), (x_test, y_test) = mnist["train"], mnist["test"]
    x_test, y_test = x_test[:3000], y_test[:3000]
    model = least_squares_model(x[:5000], y[:5000], units=10, rank=4)
    by_keras = np.mean(model.predict(x_test, verbose=0).argmax(axis=1) == y_test)
    on_tflm = np.mean(scores(exported(model, x[:64], "int8", "int8"), x_test).argmax(axis=1) == y_test)
    assert by_keras > 0.7
    assert by_keras - on_tflm <= 0.003


@pytest.mark.parametrize(("K", "quantize", "io"), [(10, "int8", "int8"), (1, None, "float32")])
def test_the_arena_is_the_smallest(file, K, quantize, io):
    content = file(K, quantize, io)
    arena = arena_size(content)
    model = read_model(content)
    assert arena % 16 == 0
    assert arena > 8 * 8 * model.image.dtype.itemsize
    # Each tries one arena, this one and the next smaller, in a new process.
    steps = arena // 16
    for low, high in [(steps - 1, steps + 1), (steps - 2, steps)]:
        command = [sys.executable, microcontroller.PROBE, str(low), str(high)]
        probe = subprocess.run(command, input=content, capture_output=True, timeout=60, check=True)
        assert probe.stdout.split()[-2:] == [b"%d" % (steps - 1), b"%d" % steps]


# Descends from argv[1] steps until the interpreter ends the process.
DESCEND = """
import sys
sys.path.insert(0, sys.argv[2])
from arena_probe import STEP, runs
content = sys.stdin.buffer.read()
for steps in range(int(sys.argv[1]), 0, -1):
    print(steps, flush=True)
    runs(content, steps * STEP)
"""


def test_the_search_goes_on_after_a_crash(file, monkeypatch):
    content = file()
    arena = arena_size(content)
    command = [sys.executable, "-c", DESCEND, str(arena // 16 - 1), microcontroller.PROBE.parent]
    ended = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
    crashed = 16 * int(ended.stdout.split()[-1])
    if ended.returncode >= 0 or 2 * crashed <= arena:
        pytest.skip("this tflite-micro does not crash where the search would try first")
    monkeypatch.setattr(microcontroller, "LARGEST_ARENA", 2 * crashed)  # The first to be tried is the middle.
    assert arena_size(content) == arena


def test_numbers_as_they_are_stored():
    tensor = Tensor(np.dtype("int8"), np.float32(0.5), -3)
    np.testing.assert_array_equal(
        tensor.quantized(np.float32([0.0, 0.24, 0.25, -0.25, 1.0, 1e9, -1e9])), [-3, -3, -2, -3, -1, 127, -128]
    )
    np.testing.assert_array_equal(tensor.dequantized(np.int8([-128, -3, 127])), np.float32([-62.5, 0, 65]))


# The sources ----------------------------------------------------------------------------------------------------


def compiled(folder, *arguments):
    """What g++ makes of the sources in `folder`, with warnings as errors."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the C++ sources")
    command = [compiler, *WARNINGS, *arguments]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr


MAIN = r"""
#include <stdio.h>
#include "digits_model.h"

int main() {
  fwrite(digits_model, 1, digits_model_size, stderr);
  printf("%d %d %d %d ", digits_rows, digits_columns, digits_classes, int(digits_arena_size));
  printf("%.9g %d ", digits_input_scale, digits_input_zero_point);
  printf("%.9g %d ", digits_output_scale, digits_output_zero_point);
  printf("%.9g %.9g %d", digits_input_low, digits_input_high, int(reinterpret_cast<uintptr_t>(digits_model) % 16));
  LABELS
}
"""
PRINT_LABELS = 'for (const char* label : digits_labels) printf("%c%s", 0, label);'


@pytest.mark.parametrize(("K", "io", "labels"), [(10, "int8", LABELS), (1, "float32", None)])
def test_the_sources_hold_the_file_and_its_constants(file, tmp_path, K, io, labels):
    metadata = {"input_range": [0, 2.5]} if labels is None else {"input_range": [0, 2.5], "labels": labels}
    content = with_metadata(file(K, "int8", io), **metadata)
    report = write_firmware(content, tmp_path, "digits")
    assert [path.name for path in report.files] == [f"digits_{part}" for part in PARTS]
    assert sorted(report.files) == sorted(tmp_path.iterdir())
    assert ("digits_labels" in (tmp_path / "digits_model.h").read_text()) == (labels is not None)
    (tmp_path / "main.cc").write_text(MAIN.replace("LABELS", PRINT_LABELS if labels else ""))
    compiled(tmp_path, "main.cc", "digits_model.cc", "-o", "main")
    printed = subprocess.run([tmp_path / "main"], capture_output=True, timeout=60, check=True)
    assert printed.stderr == content
    constants, *names = printed.stdout.decode().split("\0")
    assert names == (labels or [])
    image, output = (details[0] for details in (inputs(content), outputs(content)))
    scales = [each["quantization"] if each["quantization"][0] else (1.0, 0) for each in (image, output)]
    arena = report.arena_bytes + report.scratch_bytes
    expected = [8, 8, K, arena, *np.float32(scales[0]), *np.float32(scales[1]), 0, np.float32(2.5), 0]
    np.testing.assert_array_equal(np.float32(constants.split()), np.float32(expected))
    # CMSIS-NN keeps the 8 x 3 x 10 depthwise weights in 16 bits.
    assert report.scratch_bytes == (480 if K == 10 else 0)


def inputs(content):
    return Interpreter(model_content=content).get_input_details()


def outputs(content):
    return Interpreter(model_content=content).get_output_details()


BRIDGE = """
#include "NAME_model.h"

extern "C" bool setup_NAME() { return NAME_setup(); }
extern "C" bool check_NAME() { return NAME_check(); }
extern "C" bool classify_NAME(const uint8_t* pixels, float* scores) { return NAME_classify(pixels, scores); }
"""
# In a process of its own, so that wrong C++ ends no more than that.
CLASSIFY = """
import ctypes, sys
import numpy as np
library, pixels = ctypes.CDLL("./program.so"), np.load("pixels.npy")
def call(function, name, *arrays):
    function = getattr(library, f"{function}_{name}")
    function.restype = ctypes.c_bool
    return function(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
models = dict(argument.split("=") for argument in sys.argv[1:])
assert not any(call("check", name) for name in models), "checked before the setup"
if not all(call("setup", name) for name in [*models, *models]):
    sys.exit("setup failed")
if not all(call("check", name) for name in models):
    sys.exit("check failed")
for name, K in models.items():
    scores = np.zeros((len(pixels), int(K)), "float32")
    for image, row in zip(pixels, scores):
        assert call("classify", name, image, row)
    np.save(f"{name}.npy", scores)
"""


EXPORTED = [b"_ZN6tflite5micro16MicroInterpreterC1E", b"_ZN6tflite17PythonOpsResolverC1Ev"]
"""Names of the constructors in the wheel, as C++ mangles them."""


def classified(folder, pixels, **models):
    """The process that ran the C++ sources in `folder`, name=K, on the interpreter of the tflite-micro wheel."""
    from tflite_micro.python.tflite_micro import _runtime

    wheel = Path(_runtime.__file__)
    exported = wheel.read_bytes()
    if (
        b"_ZN6tflite5micro16MicroInterpreterC1E" not in exported
        or b"_ZN6tflite17PythonOpsResolverC1Ev" not in exported
    ):
        pytest.skip("this tflite-micro exports another C++ interface than tests/tflm declares")
    for name in models:
        (folder / f"{name}_bridge.cc").write_text(BRIDGE.replace("NAME", name))
    np.save(folder / "pixels.npy", pixels)
    linked = [
        "-I",
        str(INTERFACE),
        "-fPIC",
        "-shared",
        str(wheel),
        f"-Wl,-rpath,{wheel.parent}",
        "-o",
        "program.so",
    ]
    compiled(folder, *sorted(path.name for path in folder.glob("*.cc")), *linked)
    command = [sys.executable, "-c", CLASSIFY, *(f"{name}={K}" for name, K in models.items())]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def camera(digits, count=50):
    """Pixels of a camera, 0 to 255."""
    return np.round(digits[0][1000 : 1000 + count] * 255).astype("uint8")


@pytest.mark.parametrize(
    ("quantize", "io"),
    [
        ("int8", "int8"),
        ("int8", "uint8"),
        ("int16x8", "int16"),
    ],
)
def test_the_sources_classify_as_the_interpreter_does(file, tmp_path, digits, quantize, io):
    content = with_metadata(file(10, quantize, io), input_range=[0, 1])
    pixels = camera(digits)
    write_firmware(content, tmp_path, "digits", images=pixels)
    run = classified(tmp_path, pixels, digits=10)
    assert run.returncode == 0, run.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "digits.npy"), scores(content, pixels * np.float32(1 / 255)))


def test_two_models_in_one_program(file, tmp_path, digits):
    contents = {"digits": file(), "Digits": file(1, None, "float32")}
    for name, content in contents.items():
        write_firmware(content, tmp_path, name)
    pixels = camera(digits)
    run = classified(tmp_path, pixels, digits=10, Digits=1)
    assert run.returncode == 0, run.stderr
    for name, content in contents.items():
        np.testing.assert_array_equal(
            np.load(tmp_path / f"{name}.npy"), scores(content, pixels * np.float32(1 / 255))
        )


def test_the_check_finds_a_kernel_that_is_wrong(file, tmp_path, digits):
    write_firmware(file(), tmp_path, "digits", images=camera(digits))
    source = tmp_path / "digits_classify.cc"
    # As if pixels came in another order.
    source.write_text(source.read_text().replace("stored(pixels[i])", "stored(pixels[i ^ 1])"))
    run = classified(tmp_path, camera(digits), digits=10)
    assert run.returncode != 0
    assert "check failed" in run.stderr


@pytest.mark.parametrize("name", ["digits", "pair"])
def test_images_for_the_check_are_those_of_which_it_is_least_sure(file, name):
    model = read_model(file(10 if name == "digits" else 1))
    chosen = microcontroller.camera_scores(model, microcontroller.least_sure(model))
    others = microcontroller.camera_scores(
        model, np.random.default_rng(1).integers(256, size=(20, 8, 8), dtype="uint8")
    )
    if name == "pair":
        chosen, others = abs(chosen - 0.5), abs(others - 0.5)
    assert chosen.max() <= np.median(others.max(axis=1))


@pytest.mark.parametrize(
    "images", [np.zeros((2, 8, 8), "uint8"), np.zeros((3, 8, 9), "uint8"), np.zeros((3, 8, 8))]
)
def test_wrong_images_for_the_check(file, tmp_path, images):
    with pytest.raises(ValueError, match=r"Expected 3 or more `images` \(T, 8, 8\) of camera pixels, uint8"):
        write_firmware(file(), tmp_path, images=images)
    assert not list(tmp_path.iterdir())


def test_the_sources_register_no_operator_too_few(file, tmp_path, digits):
    write_firmware(file(), tmp_path, "digits")
    source = tmp_path / "digits_classify.cc"
    source.write_text(source.read_text().replace("resolver.AddSoftmax() != 0", "false"))
    run = classified(tmp_path, np.zeros((1, 8, 8), "uint8"), digits=10)
    assert run.returncode != 0
    assert "SOFTMAX" in run.stderr
    assert "setup failed" in run.stderr


def test_the_sources_compile_with_older_releases(file, tmp_path):
    model = read_model(file())
    (tmp_path / "digits_model.h").write_text(firmware.header(model, "digits", 4096))
    (tmp_path / "digits_classify.cc").write_text(firmware.example(model, "digits"))
    compiled(tmp_path, "-fsyntax-only", "-DFLAT_NAMESPACE", "-I", str(INTERFACE), "digits_classify.cc")


@pytest.mark.parametrize("source", PARTS[1:])
def test_sources_of_two_models_do_not_compile(file, tmp_path, source):
    """As they lie there when the process is killed while it puts them in place."""
    model, other = read_model(file()), read_model(with_metadata(file(), input_range=[0, 255]))
    known = np.zeros((3, 8, 8), "uint8"), np.zeros((3, 10), "float32")
    make = {
        "model.cc": firmware.data,
        "classify.cc": firmware.example,
        "check.cc": lambda *arguments: firmware.check(*arguments, *known),
    }[source]
    (tmp_path / source).write_text(make(model, "digits"))
    command = ["-fsyntax-only", "-I", str(INTERFACE), source]
    (tmp_path / "digits_model.h").write_text(firmware.header(model, "digits", 4096))
    compiled(tmp_path, *command)
    (tmp_path / "digits_model.h").write_text(firmware.header(other, "digits", 4096))
    with pytest.raises(AssertionError, match=r"digits_model\.h is of another model"):
        compiled(tmp_path, *command)


def test_every_operator_of_a_file_has_its_method(models, file, tmp_path):
    used = set()
    for K, model in models.items():
        for layout in ("factored", "merged"):
            used.update(kb.export_tflite(model, tmp_path / "m.tflite", layout=layout).ops)
        for io in ("float32", "int8"):
            used.update(operators(file(K, "int8", io)))
    # A bias adds ADD, or hides in another operator; the rest is of networks.
    of_networks = {"AVERAGE_POOL_2D", "CONV_2D", "MAX_POOL_2D", "RELU", "TANH", "TRANSPOSE"}
    assert used == set(RESOLVER_METHODS) - {"ADD"} - of_networks


def small_network(kind):
    """A fitted network for the digits with a map, or with convolutions, in it."""
    inner = {
        "maps": [kb.BilinearMap(6, 5, "relu"), kb.BilinearMap(4, 7, "tanh", use_bias=False)],
        "convolution": [
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            kb.ToMatrix(rows=(1, 2), columns=3),
        ],
    }[kind]
    head = kb.BilinearDense(10, 2, "softmax", use_bias=True, left_initializer="glorot_uniform")
    return keras.Sequential([keras.Input((8, 8)), *inner, head])


@pytest.mark.parametrize("kind", ["maps", "convolution"])
def test_networks_run_in_int8_and_as_firmware(kind, digits, tmp_path):
    x, y = digits
    network = small_network(kind)
    network.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    network.fit(x[:1000], y[:1000], epochs=8, verbose=0)
    content = exported(network, x[:64], "int8", "int8")
    assert "BATCH_MATMUL" not in operators(content)
    by_keras, computed = network.predict(x[1000:1200], verbose=0), scores(content, x[1000:1200])
    assert np.mean(by_keras.argmax(axis=1) == computed.argmax(axis=1)) > 0.95
    assert np.abs(by_keras - computed).mean() < 0.01
    content = with_metadata(content, input_range=[0, 1])
    pixels = camera(digits)
    write_firmware(content, tmp_path, "digits")
    run = classified(tmp_path, pixels, digits=10)
    assert run.returncode == 0, run.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "digits.npy"), scores(content, pixels * np.float32(1 / 255)))


def test_the_python_of_the_instructions(file, tmp_path, monkeypatch, digits):
    page = Path(__file__).parents[2] / "export" / "microcontroller.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.tflite").write_bytes(file())
    exec(compile(snippet, str(page), "exec"), {"images": digits[0][:3], "camera_images": camera(digits, 3)})
    assert "digits_setup" in (tmp_path / "digits_classify.cc").read_text()


# What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "1digit", "_digits", "digits_", "a__b", "digits-8", "zahl_ä", "a b", "a\n", "٣"]
)
def test_a_bad_identifier(file, tmp_path, name):
    with pytest.raises(ValueError, match=r"Expected `name` to start C\+\+ identifiers"):
        write_firmware(file(), tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"x", b"no model, but some text", bytes(2000)])
def test_bytes_that_are_no_model(tmp_path, content):
    for function in (arena_size, lambda wrong: scores(wrong, np.zeros((1, 8, 8))), read_model):
        with pytest.raises(ValueError, match="Expected a TFLite file"):
            function(content)
    with pytest.raises(ValueError, match="Expected a TFLite file"):
        write_firmware(content, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_cut_short(file):
    for length in (20, 1000, len(file()) - 1):
        with pytest.raises(ValueError, match="Expected a TFLite file"):
            read_model(file()[:length])


@pytest.mark.parametrize("quantize", ["float16", "dynamic"])
def test_kinds_that_the_runtime_does_not_prepare(file, quantize):
    # At 8 x 8 the converter leaves so few weights in float32: a dynamic file would be none.
    content = exported(random_model("BSR", (28, 28), 4, 10), None, quantize)
    with pytest.raises(ValueError, match=f'float32, int8 or int16x8 file.*quantize="{quantize}"'):
        read_model(content)
    # It does not, indeed.
    with pytest.raises(ValueError, match="Expected a file that TensorFlow Lite Micro runs"):
        microcontroller.loaded(dataclasses.replace(read_model(file()), content=content))


def test_operators_that_are_not_known():
    with pytest.raises(ValueError, match=r"Expected operators among ADD, .*Received: COS"):
        read_model(function_file(lambda image: tf.cos(tf.reshape(image, (1, 64))), 1, 8, 8))


@pytest.mark.parametrize("shape", [(16, 8, 8), (None, 8, 8), (1, 8, 8, 1), (1, 64)])
def test_images_of_another_shape(shape):
    content = function_file(lambda image: tf.nn.softmax(tf.reshape(image, (shape[0] or -1, 64))), *shape)
    with pytest.raises(ValueError, match=r"Expected images \(1, M, N\) and outputs \(1, K\)"):
        read_model(content)


def test_images_that_do_not_fit(file):
    with pytest.raises(ValueError, match=r"Expected images \(T, 8, 8\). Received: \(2, 8, 9\)"):
        scores(file(), np.zeros((2, 8, 9)))


@pytest.mark.parametrize(
    ("labels", "message"), [(["one"], "10 different names"), ([*"abcdefghi", "a\0b"], "without NUL")]
)
def test_wrong_labels(file, labels, message):
    with pytest.raises(ValueError, match=f"Expected `labels` .*{message}"):
        read_model(with_metadata(file(), labels=labels))


def test_a_file_that_was_changed(models, digits, tmp_path):
    path = tmp_path / "m.tflite"
    kb.export_tflite(models[10], path, representative_data=digits[0][:64])
    content = path.read_bytes()
    assert read_model(content).input_range == (0, 1)
    with pytest.raises(ValueError, match="Expected a file as it was written"):
        read_model(content.replace(b'"input_range":[0.0,1.0]', b'"input_range":[0.0,9.0]'))


def test_a_wrong_range(file):
    with pytest.raises(ValueError, match="Expected an `input_range` of pixels"):
        read_model(with_metadata(file(), input_range=[1, 0]))


def test_metadata_that_is_none_of_ours(file):
    model = read_model(file())
    assert (model.labels, model.input_range) == (None, (0.0, 1.0))
    model = read_model(with_metadata(file(), labels=LABELS, input_range=[-1, 255], quantize="int8"))
    assert (model.labels, model.input_range) == (tuple(LABELS), (-1.0, 255.0))


def test_a_missing_folder(file, tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected an existing folder"):
        write_firmware(file(), tmp_path / "missing")


def test_all_files_or_none(file, tmp_path):
    (tmp_path / "classifier_model.h").write_text("mine")
    (tmp_path / "classifier_classify.cc").mkdir()
    with pytest.raises(ValueError, match=r"Received: folders .*classifier_classify\.cc"):
        write_firmware(file(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classifier_classify.cc", "classifier_model.h"]
    assert (tmp_path / "classifier_model.h").read_text() == "mine"
    (tmp_path / "classifier_classify.cc").rmdir()
    write_firmware(file(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"classifier_{part}" for part in PARTS)


def test_without_the_runtime(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    for function in (arena_size, lambda content: scores(content, np.zeros((1, 8, 8)))):
        with pytest.raises(ImportError, match=r"pip install tflite-micro"):
            function(file())
