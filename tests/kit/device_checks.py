"""What must hold on the device itself: needs classify.py beside it, LiteRT, NumPy and pytest, and no TensorFlow.

`test_device.py` writes the folder of cases, copies this file into it and runs it there, as

    python -m pytest test_on_device.py

would on a device: cases.json, images.npy, and for each case a .tflite file and the probabilities of Keras.
"""

import json
import subprocess
import sys
from pathlib import Path

import classify
import numpy as np
import pytest

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "cases.json").read_text())
IMAGES = np.load(FOLDER / "images.npy")


@pytest.mark.parametrize("name", CASES)
def test_probabilities_are_those_of_keras(name):
    case = CASES[name]
    expected = np.load(FOLDER / f"{name}.npy")
    classifier = classify.Classifier(FOLDER / f"{name}.tflite")
    got = np.array([classifier.probabilities(image) for image in IMAGES])
    np.testing.assert_allclose(got, expected, atol=case["tolerance"])
    assert list(classifier.labels) == case["labels"]
    assert list(classifier.input_range) == case["input_range"]
    likely = np.stack([1 - expected, expected], axis=1)[..., 0] if expected.shape[1] == 1 else expected
    sure = np.ptp(np.sort(likely)[:, -2:], axis=1) > 2 * case["tolerance"]
    assert sure.sum() > len(IMAGES) / 2
    for t in np.flatnonzero(sure):
        label, probability = classifier.classify(IMAGES[t])
        assert label == case["labels"][likely[t].argmax()]
        assert probability == pytest.approx(likely[t].max(), abs=case["tolerance"])


@pytest.mark.parametrize("name", ["logits", "blr", "uint8"])
def test_the_command_line(name):
    command = [sys.executable, "classify.py", f"{name}.tflite", "image.png", "image.npy", "--json", "--repeat", "3"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = np.load(FOLDER / f"{name}.npy")[0]
    ranked = sorted([*expected] if len(expected) > 1 else [1 - expected[0], expected[0]])[::-1]
    png, npy = map(json.loads, done.stdout.splitlines())
    for result in (png, npy):
        assert [entry["probability"] for entry in result["top"]] == pytest.approx(
            ranked[:3], abs=CASES[name]["tolerance"]
        )
        assert result["latency_us"]["runs"] == 3
        assert 0 < result["latency_us"]["median"] <= result["latency_us"]["p90"]
    assert (png["image"], npy["image"]) == ("image.png", "image.npy")
    assert png["top"] == npy["top"]


def test_tensorflow_is_not_needed():
    script = "import sys, classify; print(*(set(sys.modules) & {'tensorflow', 'keras', 'keras_bilinear', 'PIL'}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
