"""Files that earlier versions have written are read as they were."""

import json
import pathlib
import zipfile

import keras
import numpy as np
import pytest
from packaging.version import Version

import keras_bilinear as kb

SAVED = pathlib.Path(__file__).with_name("saved")


@pytest.mark.parametrize("name", ["softmax", "network", "linear"])
@pytest.mark.parametrize("version", ["0.1.0"])
def test_a_model_saved_by_an_earlier_version_predicts_and_trains_as_before(name, version):
    kept, file = np.load(SAVED / f"probabilities_{version}.npz"), SAVED / f"{name}_{version}.keras"
    writer = json.loads(zipfile.ZipFile(file).read("metadata.json"))["keras_version"]
    if name == "network" and Version(keras.__version__) < Version(writer):
        pytest.skip(f"Keras {writer} has saved settings of its own layers that this older Keras does not know")
    model = keras.models.load_model(file)
    assert isinstance(model, kb.AlternatingModel | kb.BilinearSoftmaxRegression | kb.LinearLogisticRegression)
    np.testing.assert_allclose(model.predict(kept["x"], verbose=0), kept[name], atol=1e-6)
    y = np.arange(len(kept["x"])) % (2 if name == "linear" else 3)
    before = model.evaluate(kept["x"], y, verbose=0)[0]
    model.fit(kept["x"], y, epochs=3, verbose=0)
    assert model.evaluate(kept["x"], y, verbose=0)[0] < before
