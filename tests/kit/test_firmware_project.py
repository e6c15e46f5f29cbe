"""The project in export/firmware, built by CMake and run: with the interpreter of the tflite-micro wheel."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from keras_bilinear_export.microcontroller import scores, write_firmware

import keras_bilinear as kb
from tests.files import least_squares_model

pytest.importorskip("tflite_micro", reason="needs tflite-micro, whose wheels are for Linux on x86-64")

PROJECT = Path(kb.__file__).parents[1] / "export" / "firmware"
INTERFACE = Path(__file__).with_name("tflm")


def done(*command, folder, given=None):
    """What a command prints; it must end well."""
    run = subprocess.run(command, cwd=folder, input=given, capture_output=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled interpreter, as a list of CMake."""
    for tool in ("cmake", "g++", "nm"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} to build the project")
    from tflite_micro.python.tflite_micro import _runtime

    wheel, folder = Path(_runtime.__file__), tmp_path_factory.mktemp("library")
    if b"_ZN6tflite5micro16MicroInterpreterC1E" not in wheel.read_bytes():
        pytest.skip("this tflite-micro exports another C++ interface than tests/kit/tflm declares")
    # It is a module of Python, whose names it must find and here never uses.
    names = re.findall(r"\b(_?Py\w+)", done("nm", "-D", "--undefined-only", str(wheel), folder=folder))
    (folder / "python.c").write_text("".join(f"char {name}[64];\n" for name in sorted(set(names))))
    done("g++", "-x", "c", "python.c", "-shared", "-fPIC", "-o", "libpython_names.so", folder=folder)
    (folder / "libtflm.so").symlink_to(wheel)  # CMake looks for a library by a library's name
    return f"{folder / 'libtflm.so'};{folder / 'libpython_names.so'}"


@pytest.fixture(scope="module")
def content(digits, tmp_path_factory):
    x, y = digits
    path = tmp_path_factory.mktemp("file") / "digits.tflite"
    model = least_squares_model(x[:1000], y[:1000], units=10, rank=2)
    kb.export_tflite(model, path, "int8", representative_data=x[:64], io="int8")
    return path.read_bytes()


def test_the_project_builds_and_classifies_as_the_interpreter_does(content, library, digits, tmp_path):
    write_firmware(content, tmp_path, "digits")
    settings = {"MODEL": tmp_path, "TFLM_LIBRARY": library, "TFLM_INCLUDE": INTERFACE}
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    done("cmake", "-S", str(PROJECT), "-B", "build", *defined, folder=tmp_path)
    done("cmake", "--build", "build", folder=tmp_path)
    pixels = np.round(digits[0][1000:1020] * 255).astype("uint8")
    printed = done("build/classify", folder=tmp_path, given=pixels.tobytes())
    computed = np.array([line.split() for line in printed.splitlines()], "float32")
    np.testing.assert_array_equal(computed, scores(content, pixels * np.float32(1 / 255)))


@pytest.mark.parametrize(("missing", "message"), [("MODEL", "write_firmware"), ("TFLM_LIBRARY", "tflite-micro")])
def test_what_is_missing_is_said(missing, message, library, tmp_path):
    (tmp_path / "digits_model.h").touch()
    settings = {"MODEL": tmp_path, "TFLM_LIBRARY": library} | {missing: ""}
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    command = ["cmake", "-S", PROJECT, "-B", "build", *defined]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode != 0
    assert re.search(rf"Expected[^.]*{message}", run.stderr, re.S)
