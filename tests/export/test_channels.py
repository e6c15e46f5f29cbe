"""Files of models of colour images take such images."""

import numpy as np
import pytest

import keras_bilinear as kb

SHAPE = (32, 32, 3)


def data(T=60):
    random = np.random.default_rng(0)
    return random.uniform(size=(T, *SHAPE)).astype("float32"), random.integers(3, size=T)


def random_model(rows):
    model, random = kb.BilinearSoftmaxRegression(3, 2, input_shape=SHAPE, rows=rows), np.random.default_rng(1)
    model.head.assign_factors(*(random.normal(size=part.shape) / part.shape[1] for part in model.factors()))
    return model


@pytest.mark.parametrize(
    ("rows", "layout", "quantize"),
    [(1, "factored", None), (1, "merged", "int8"), ((3, 1), "factored", "int8"), ((3, 1), "merged", None)],
)
def test_a_file_takes_the_images_and_is_verified(tmp_path, rows, layout, quantize):
    model, (x, y) = random_model(rows), data()
    path = tmp_path / "model.tflite"
    options = {"representative_data": x} if quantize else {}
    kb.export_tflite(model, path, layout=layout, quantize=quantize, **options)
    kb.verify_tflite(path, model, x, y)
    with pytest.raises(ValueError, match="Expected `x` of shape"):
        kb.verify_tflite(path, model, np.moveaxis(x, 3, 1), y)


def test_linear_models_and_saved_models(tmp_path):
    x, y = data()
    model = kb.LinearSoftmaxRegression(3, input_shape=SHAPE, rows=2)
    model.head.kernel.assign(np.random.default_rng(1).normal(size=model.head.kernel.shape) / 30)
    kb.export_tflite(model, tmp_path / "linear.tflite")
    kb.verify_tflite(tmp_path / "linear.tflite", model, x, y)
    kb.export_saved_model(model, tmp_path / "saved")
