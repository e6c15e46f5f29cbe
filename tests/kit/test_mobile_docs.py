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


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{column of the table: (file, images, probabilities of Keras)}: 28 x 28 and ten classes, as in the table."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    model = kb.BilinearSoftmaxRegression(10, rank=4, input_shape=(28, 28))
    model.head.assign_factors(rng.normal(size=(4, 28, 10)) / 8, rng.normal(size=(4, 28, 10)) / 8)
    x = rng.integers(0, 256, (100, 28, 28)).astype("float32")
    p = model.predict(x / 255, verbose=0)
    paths = [folder / f"{name}.tflite" for name in ("float32", "uint8", "int8")]
    kb.export_tflite(model, paths[0], input_scale=1 / 255)
    for path, io in zip(paths[1:], ("uint8", "int8"), strict=True):
        kb.export_tflite(model, path, "int8", representative_data=x, input_scale=1 / 255, io=io)
    for path in paths:
        describe(path, NOTE)
    return {column: (path, x, p) for column, path in zip(("float32", UINT8, "int8"), paths, strict=True)}


@pytest.mark.parametrize(("name", "file"), [("android", "Tensors.kt"), ("ios", "Tensors.swift")])
def test_the_fields_of_the_file_format(name, file):
    """The numbers of the fields that the code reads, against the generated reader of the format."""

    def number(getter):
        """A field has its place in a table at 4 + 2 * number."""
        return (int(re.search(r"Offset\((\d+)\)", inspect.getsource(getter))[1]) - 4) // 2

    code = block(name, file)
    assert [int(field) for field in re.findall(r"field\(model, (\d)\)", code)] == [
        number(schema.Model.BuffersLength),
        number(schema.Model.MetadataLength),
    ]
    assert [int(field) for field in re.findall(r"field\(entry, (\d)\)", code)] == [
        number(schema.Metadata.Name),
        number(schema.Metadata.Buffer),
    ]
    (data,) = re.findall(r"(?:field\(buffer|int\(index\)\)), (\d)\)", code)
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

SWIFT = """
import Foundation
let arguments = CommandLine.arguments
if arguments[1] == "metadata" {
  FileHandle.standardOutput.write(metadata(of: try! Data(contentsOf: URL(fileURLWithPath: arguments[2]))))
} else {
  let given = FileHandle.standardInput.readDataToEndOfFile()
  let quantized = arguments[2] != "FLOAT32"
  let scale = Float(arguments[3])!
  let zeroPoint = Int(arguments[4])!
  if arguments[1] == "encode" {
    let pixels = decode(given)
    let data = quantized ? encode(pixels, scale: scale, zeroPoint: zeroPoint) : encode(pixels)
    FileHandle.standardOutput.write(data)
  } else {
    let scores = quantized ? decode(given, scale: scale, zeroPoint: zeroPoint) : decode(given)
    FileHandle.standardOutput.write(encode(scores))
  }
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


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    """The command of a program around `Tensors.swift`."""
    if not shutil.which("swiftc"):
        pytest.skip("swiftc is not installed")
    folder = tmp_path_factory.mktemp("swift")
    (folder / "Tensors.swift").write_text(block("ios", "Tensors.swift"), encoding="utf-8")
    (folder / "main.swift").write_text(SWIFT, encoding="utf-8")
    compiled(folder, "swiftc", "Tensors.swift", "main.swift", "-o", "tensors")
    return [str(folder / "tensors")]


@pytest.fixture(params=["kotlin", "swift"])
def program(request):
    """Runs the code of the instructions: bytes in, bytes out."""
    command = request.getfixturevalue(request.param)

    def run(*arguments, given=b""):
        done = subprocess.run([*command, *map(str, arguments)], input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.language = request.param
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
    if (program.language, column) == ("swift", "int8"):
        pytest.skip("the Swift library has no int8 tensors, as the instructions say")
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
