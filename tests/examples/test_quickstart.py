"""The quickstart, run as a user runs it, from another working directory: once in another process."""

import http.server
import os
import pathlib
import runpy
import subprocess
import sys
import threading

import pytest

import keras_bilinear
from tests.pictures import is_picture

ROOT = pathlib.Path(keras_bilinear.__file__).parents[1]
SCRIPT = ROOT / "examples" / "quickstart.py"
WRITTEN = {"bilinear.tflite", "linear.tflite", "convergence.png", "filters.png"}


def quickstart(folder, *arguments, **environment):
    """The finished process; `keras_bilinear` is found whether or not it is installed."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def quickstart_here(tmp_path, monkeypatch, capsys):
    """As `quickstart` in `tmp_path`, but within this process, which has imported TensorFlow already."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(sys.argv, code, *capsys.readouterr())

    return run


def table(output):
    """The printed table: {name of the model: [parameters, test accuracy, J, bytes]}."""
    lines = output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("model "))
    rows = [line[:12].strip() for line in lines[start + 1 : start + 3]]
    figures = [
        [float(cell.replace(",", "")) for cell in line[12:].split()] for line in lines[start + 1 : start + 3]
    ]
    return dict(zip(rows, figures, strict=True))


def check_finished(done, out):
    """Exit code 0, no warning, and four files that the last lines name."""
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr, done.stderr
    assert {path.name for path in out.iterdir()} == WRITTEN
    written = done.stdout.split("Written:")[1].split()
    assert {pathlib.Path(path).name for path in written} == WRITTEN
    assert is_picture(out / "convergence.png")
    assert is_picture(out / "filters.png")


def test_digits(tmp_path):
    done = quickstart(tmp_path, "--epochs", 2, "--rank", 2)
    # The default folder is below the working directory, not beside the script.
    out = tmp_path / "out" / "quickstart"
    check_finished(done, out)
    models = table(done.stdout)
    assert list(models) == ["BSR, rank 2", "LSR"]
    bilinear, linear = models.values()
    assert [bilinear[0], linear[0]] == [2 * (8 + 8) * 10, 8 * 8 * 10]
    assert min(bilinear[1], linear[1]) > 0.9
    assert bilinear[3] == (out / "bilinear.tflite").stat().st_size
    assert linear[3] == (out / "linear.tflite").stat().st_size
    assert "450 test images" in done.stdout
    # Two sweeps are too few: said in a line of its own, not as a Python warning.
    assert "stopped after 2 sweeps: the epochs ran out" in done.stdout


def test_pair_of_classes(tmp_path, quickstart_here):
    done = quickstart_here("--pair", 8, 9, "--epochs", 3, "--rank", 1, "--out", tmp_path / "pair")
    check_finished(done, tmp_path / "pair")
    models = table(done.stdout)
    assert list(models) == ["BLR, rank 1", "LLR"]
    assert [row[0] for row in models.values()] == [8 + 8, 8 * 8]
    assert min(row[1] for row in models.values()) > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "8", "10"], "Expected --pair to be two different classes"),
        (["--samples", "0"], "Expected --samples >= 1"),
    ],
)
def test_arguments_that_make_no_sense(quickstart_here, arguments, message):
    done = quickstart_here(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def web_without_data():
    """The address of a proxy for which no page exists.

    Without any network tensorflow-datasets tries again for minutes; "not found" it takes at its word.
    """

    class NotFound(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, format, *args):  # the name is that of the base class
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_data_that_cannot_be_loaded(tmp_path, web_without_data):
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"], web_without_data)
    done = quickstart(
        tmp_path, "--dataset", "fashion_mnist", **proxies, NO_PROXY="", no_proxy="", TFDS_DATA_DIR=str(tmp_path)
    )
    assert done.returncode == 1
    assert f"Expected tensorflow-datasets to find fashion_mnist in {tmp_path}" in done.stderr
    assert "use --dataset digits" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(
    not (pathlib.Path(os.environ.get("TFDS_DATA_DIR", "")) / "mnist").is_dir(),
    reason="MNIST is not prepared: set TFDS_DATA_DIR to a tensorflow-datasets folder that holds it",
)
@pytest.mark.filterwarnings("ignore")  # deprecations inside tensorflow-datasets
def test_mnist(tmp_path, quickstart_here):
    arguments = ("--pair", 8, 9, "--samples", 1000, "--epochs", 2, "--out", tmp_path / "mnist")
    done = quickstart_here("--dataset", "mnist", *arguments)
    check_finished(done, tmp_path / "mnist")
    bilinear, linear = table(done.stdout).values()
    assert [bilinear[0], linear[0]] == [3 * (28 + 28), 28 * 28]
    assert min(bilinear[1], linear[1]) > 0.9
    assert bilinear[3] < linear[3] / 2 + 100, "the bilinear file is about half as large"
