"""Files of models of colour images take such images."""

import numpy as np
import pytest

import keras_bilinear as kb

SHAPE = (32, 32, 3)


def data(T=60):
    random = np.random.default_rng(0)
    x = random.uniform(size=(T, *SHAPE)).astype("float32")
    return x, np.einsum("tmnc,kmnc->tk", x, random.normal(size=(3, *SHAPE))).argmax(axis=1)


def fitted(rows, rank=2):
    model = kb.BilinearSoftmaxRegression(3, rank, 1e-2, input_shape=SHAPE, rows=rows, seed=0)
    model.fit(*data(), epochs=2, verbose=0)
    return model


@pytest.mark.parametrize("rows", [1, (3, 1)])
@pytest.mark.parametrize("layout", ["factored", "merged"])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_file_takes_the_images_and_is_verified(tmp_path, rows, layout, quantize):
    model, (x, y) = fitted(rows), data()
    path = tmp_path / "model.tflite"
    options = {"representative_data": x} if quantize else {}
    kb.export_tflite(model, path, layout=layout, quantize=quantize, **options)
    kb.verify_tflite(path, model, x, y)
    with pytest.raises(ValueError, match="Expected `x` of shape"):
        kb.verify_tflite(path, model, np.moveaxis(x, 3, 1), y)


def test_linear_models_and_saved_models(tmp_path):
    x, y = data()
    model = kb.LinearSoftmaxRegression(3, 1e-2, input_shape=SHAPE, rows=2)
    model.fit(x, y, epochs=1, verbose=0)
    kb.export_tflite(model, tmp_path / "linear.tflite")
    kb.verify_tflite(tmp_path / "linear.tflite", model, x, y)
    kb.export_saved_model(model, tmp_path / "saved")
