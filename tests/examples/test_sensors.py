"""The smartwatch example: its reader, its windows, and a run on a part, where the data are there."""

import importlib.util
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from tests.scripts import EXAMPLES, script

sensors = script("sensors")
WHERE = importlib.util.find_spec("seglearn")


def test_arrays_and_lists_are_read():
    content = {"X": [np.arange(6.0).reshape(2, 3)], "y": np.arange(2), "names": ["a", "b"]}
    for protocol in range(2, 5):
        read = sensors.ArraysOnly(io.BytesIO(pickle.dumps(content, protocol))).load()
        np.testing.assert_array_equal(read["X"][0], content["X"][0])
        assert read["names"] == ["a", "b"]


class Evil:
    """What a pickle can do to a reader that trusts it."""

    def __reduce__(self):
        return print, ("done",)


def test_a_pickle_that_calls_anything_is_refused(capsys):
    with pytest.raises(pickle.UnpicklingError, match=r"Expected arrays only. Received: builtins.print"):
        sensors.ArraysOnly(io.BytesIO(pickle.dumps(Evil()))).load()
    assert not capsys.readouterr().out


def test_a_tone_is_at_its_frequency():
    time = np.arange(260) / sensors.RATE
    series = np.zeros((260, 6))
    series[:, 4] = np.sin(2 * np.pi * 10 * time)
    X = sensors.log_spectra(series)
    assert X.shape == (4, 6, 51)
    axis, frequency = np.unravel_index(X[0].argmax(), X[0].shape)
    assert (axis, np.fft.rfftfreq(sensors.WINDOW, 1 / sensors.RATE)[frequency]) == (4, 10.0)


@pytest.mark.skipif(WHERE is None, reason="the data of seglearn are not installed: pip install --no-deps seglearn")
def test_a_quick_run_measures_all_methods_and_leaves_picture_and_file(tmp_path):
    command = [sys.executable, str(EXAMPLES / "sensors.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, check=True, timeout=900, capture_output=True, text=True)
    table = done.stdout.split("numbers\n")[-1].splitlines()
    assert [line[:8].strip() for line in table] == ["linear", "rank 1", "rank 2", "rank 3", "auto", "SVM"]
    assert "2,149" in table[0]
    assert imread(tmp_path / "filters.png").std() > 0.01
    assert (tmp_path / "exercises.tflite").stat().st_size < 8000


def test_without_the_data_the_example_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps seglearn"):
        sensors.recordings()
