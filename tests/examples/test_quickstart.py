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
WRITTEN = {"bilinear.tflite", "linear.tflite", "network.tflite", "convergence.png", "filters.png"}


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
        monkeypatch.syspath_prepend(str(SCRIPT.parent))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(sys.argv, code, *capsys.readouterr())

    return run


def table(output):
    """The printed table: {name of the model: [numbers, bytes, right in Keras, right in the file]}."""
    lines = output.splitlines()
    start = next(i for i, line in enumerate(lines) if "right in the file" in line)
    rows = {line[:26].strip(): line[26:].split() for line in lines[start + 1 : start + 4]}
    return {name: [float(cell.replace(",", "").rstrip("%")) for cell in cells] for name, cells in rows.items()}


def check_finished(done, out):
    """Exit code 0, no warning, and five files that the last lines name, of the sizes in the table."""
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr, done.stderr
    assert {path.name for path in out.iterdir()} == WRITTEN
    written = done.stdout.split("Written:")[1].split()[: len(WRITTEN)]
    assert {pathlib.Path(path).name for path in written} == WRITTEN
    assert is_picture(out / "convergence.png")
    assert is_picture(out / "filters.png")
    for name, row in zip(("linear", "bilinear", "network"), table(done.stdout).values(), strict=True):
        assert row[1] == (out / f"{name}.tflite").stat().st_size


def test_digits_as_a_camera_sees_them(tmp_path):
    done = quickstart(tmp_path, "--samples", 2000, "--epochs", 6, "--rank", 2)
    # The default folder is below the working directory, not beside the script.
    check_finished(done, tmp_path / "out" / "quickstart")
    assert done.stderr == ""
    assert done.stdout.startswith("Importing TensorFlow")
    models = table(done.stdout)
    assert list(models) == ["linear model", "bilinear, rank 2", "network of bilinear maps"]
    linear, bilinear, network = models.values()
    assert [linear[0], bilinear[0], network[0]] == [28 * 28 * 10, 2 * (28 + 28) * 10, 2266]
    assert network[1] < 0.6 * linear[1]
    assert network[3] > linear[3] > 60
    assert f"The network reads {network[3]:.1f}%" in done.stdout


@pytest.mark.parametrize("samples", ["0", "99"])
def test_arguments_that_make_no_sense(quickstart_here, samples):
    done = quickstart_here("--samples", samples)
    assert done.returncode == 2
    assert "Expected --samples >= 100" in done.stderr
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
    assert "use --dataset camera" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
