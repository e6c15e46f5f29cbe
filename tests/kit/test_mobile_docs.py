"""The instructions for Android and iOS: what they say of the files, and their code where a compiler is there."""

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

import keras_bilinear as kb
from tests.files import describe

DOCS = Path(kb.__file__).parents[1] / "export"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "neuf é"]
NOTE = {"input_range": [0.0, 255.0], "labels": NAMES}
UINT8 = 'int8, `io="uint8"`'


def doc(name):
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def block(name, file):
    """The code of one file of the instructions."""
    return re.search(rf"<!-- {re.escape(file)} -->\n```\w+\n(.*?)```", doc(name), re.S)[1]


def model_of_the_tables():
    """28 x 28 and ten classes, with random weights."""
    rng = np.random.default_rng(0)
    model = kb.BilinearSoftmaxRegression(10, rank=4, input_shape=(28, 28))
    model.head.assign_factors(rng.normal(size=(4, 28, 10)) / 8, rng.normal(size=(4, 28, 10)) / 8)
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{column of the table: (file, images, probabilities of Keras)}: 28 x 28 and ten classes, as in the table."""
    folder, model, rng = tmp_path_factory.mktemp("files"), model_of_the_tables(), np.random.default_rng(1)
    x = rng.integers(0, 256, (100, 28, 28)).astype("float32")
    p = model.predict(x / 255, verbose=0)
    paths = [folder / f"{name}.tflite" for name in ("float32", "uint8", "int8")]
    kb.export_tflite(model, paths[0], input_scale=1 / 255)
    for path, io in zip(paths[1:], ("uint8", "int8"), strict=True):
        kb.export_tflite(model, path, "int8", representative_data=x, input_scale=1 / 255, io=io)
    for path in paths:
        describe(path, NOTE)
    return {column: (path, x, p) for column, path in zip(("float32", UINT8, "int8"), paths, strict=True)}


def test_the_fields_of_the_file_format():
    """The numbers of the fields that the code reads, against the generated reader of the format."""

    def number(getter):
        """A field has its place in a table at 4 + 2 * number."""
        return (int(re.search(r"Offset\((\d+)\)", inspect.getsource(getter))[1]) - 4) // 2

    code = block("android", "Tensors.kt")
    assert [int(field) for field in re.findall(r"field\(model, (\d)\)", code)] == [
        number(schema.Model.BuffersLength),
        number(schema.Model.MetadataLength),
    ]
    assert [int(field) for field in re.findall(r"field\(entry, (\d)\)", code)] == [
        number(schema.Metadata.Name),
        number(schema.Metadata.Buffer),
    ]
    (data,) = re.findall(r"field\(buffer, (\d)\)", code)
    assert int(data) == number(schema.Buffer.DataLength)


KOTLIN = """
fun main(arguments: Array<String>) {
    if (arguments[0] == "metadata") {
        System.out.write(metadata(ByteBuffer.wrap(java.io.File(arguments[1]).readBytes())).toByteArray())
        return System.out.flush()
    }
    val given = ByteBuffer.wrap(System.`in`.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    val type = arguments[1]
    val scale = arguments[2].toFloat()
    val zeroPoint = arguments[3].toInt()
    val numbers = when (arguments[0]) {
        "grey" -> grey(IntArray(given.remaining() / 4) { given.getInt() })
        "decode" -> decode(given, type, scale, zeroPoint)
        else -> FloatArray(given.remaining() / 4) { given.getFloat() }
    }
    val bytes = encode(numbers, if (arguments[0] == "encode") type else "FLOAT32", scale, zeroPoint)
    System.out.write(ByteArray(bytes.remaining()) { bytes.get() })
    System.out.flush()
}
"""


def compiled(folder, *command):
    """Compiles within `folder`; the code of the instructions must give no warning either."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Tensors." not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def kotlin(tmp_path_factory):
    """The command of a program around `Tensors.kt`."""
    if not (shutil.which("kotlinc") and shutil.which("java")):
        pytest.skip("kotlinc and java are not installed")
    folder = tmp_path_factory.mktemp("kotlin")
    (folder / "Tensors.kt").write_text(block("android", "Tensors.kt") + KOTLIN, encoding="utf-8")
    compiled(folder, "kotlinc", "Tensors.kt", "-include-runtime", "-d", "tensors.jar")
    return ["java", "-Dfile.encoding=UTF-8", "-jar", str(folder / "tensors.jar")]


@pytest.fixture
def program(kotlin):
    """Runs the code of the instructions: bytes in, bytes out."""

    def run(*arguments, given=b""):
        done = subprocess.run([*kotlin, *map(str, arguments)], input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_code_reads_the_note(files, program, tmp_path):
    for file, _, _ in files.values():
        assert json.loads(program("metadata", file)) == NOTE
    plain = tmp_path / "plain.tflite"
    model = kb.BilinearLogisticRegression(rank=1, input_shape=(3, 4))
    model.head.assign_factors(np.ones((1, 3, 1)), np.ones((1, 4, 1)))
    kb.export_tflite(model, plain)
    assert json.loads(program("metadata", plain)) == {}


@pytest.mark.parametrize("column", ["float32", UINT8, "int8"])
def test_the_code_feeds_and_reads_a_file(files, program, column):
    file, x, p = files[column]
    interpreter = Interpreter(str(file))
    interpreter.allocate_tensors()
    (given,), (returned,) = interpreter.get_input_details(), interpreter.get_output_details()

    def tensor(details):
        return np.dtype(details["dtype"]).name.upper(), *details["quantization"]

    for image, expected in zip(x[:2], p, strict=False):
        data = program("encode", *tensor(given), given=image.astype("<f4").tobytes())
        interpreter.set_tensor(given["index"], np.frombuffer(data, given["dtype"]).reshape(given["shape"]))
        interpreter.invoke()
        scores = interpreter.get_tensor(returned["index"]).tobytes()
        got = np.frombuffer(program("decode", *tensor(returned), given=scores), "<f4")
        np.testing.assert_allclose(got, expected, atol=5e-6 if column == "float32" else 0.03)


def test_grey_of_kotlin(kotlin):
    argb = np.random.default_rng(0).integers(0, 256, (50, 4)).astype("uint8")
    given = np.ascontiguousarray(argb[:, ::-1]).tobytes()  # An Int of a Bitmap is 0xAARRGGBB.
    done = subprocess.run([*kotlin, "grey", "", "0", "0"], input=given, capture_output=True, check=True)
    np.testing.assert_allclose(np.frombuffer(done.stdout, "<f4"), argb[:, 1:] @ [0.299, 0.587, 0.114], atol=1e-4)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_the_files_of_the_swift_code(quantize, files, tmp_path):
    """It writes and reads float32 of the shapes in its table, and knows the note by the name it has in the file."""
    model, x = model_of_the_tables(), files["float32"][1]
    options = {} if quantize is None else {"quantize": quantize, "representative_data": x}
    kb.export_tflite(model, tmp_path / "digits.tflite", input_scale=1 / 255, labels=NAMES, **options)
    interpreter = Interpreter(str(tmp_path / "digits.tflite"))
    (given,), (returned,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert [tuple(each["shape"]) for each in (given, returned)] == [(1, 28, 28), (1, 10)]
    assert given["dtype"] == returned["dtype"] == np.float32
    for details in (given, returned):
        assert f"float32, {4 * np.prod(details['shape'])} bytes" in doc("ios")
    code = block("ios", "Classifier.swift")
    assert 'metadata(key: "keras_bilinear")' in code
    assert b"keras_bilinear" in (tmp_path / "digits.tflite").read_bytes()


def test_the_dependencies_of_both_are_pinned():
    assert re.search(r'litert:litert:\d+\.\d+\.\d+"', doc("android"))
    assert re.search(r'revision: "[0-9a-f]{40}"', doc("ios"))
    assert "Podfile" not in doc("ios")
