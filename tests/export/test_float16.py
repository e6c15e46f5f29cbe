"""Files of float16: what they hold, and what they cannot."""

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.export.files import export_tflite
from tests.files import oracle, random_images, random_model, run


@pytest.mark.parametrize(
    ("kind", "scale", "quantize"), [("BSR", 1e5, "int16x8"), ("BSR", 1e-12, "float16"), ("BLR", 1e5, "int8")]
)
def test_unbalanced_factors_lose_nothing(tmp_path, kind, scale, quantize):
    model = random_model(kind, use_bias=True)
    A, B = model.factors()
    # Each column by another factor, so that one scale of int8 fits none of them.
    scales = np.float32(scale) ** np.linspace(0.2, 1, A.shape[0] * A.shape[2], dtype="float32")
    scales = scales.reshape(A.shape[0], 1, A.shape[2])
    x = random_images(model, T=100)
    differences = []
    for a, b in ((A, B), (A * scales, B / scales)):
        model.head.assign_factors(a, b)
        export_tflite(model, tmp_path / "m.tflite", quantize, representative_data=x)
        differences.append(np.abs(run(tmp_path / "m.tflite", x) - oracle(model, x, "probabilities")).mean())
    assert differences[1] <= 2 * differences[0] + 1e-5
    assert differences[1] <= 1e-2


@pytest.mark.parametrize(
    ("kind", "layout", "weights", "input_scale"),
    [
        ("BLR", "merged", 1e6, None),
        ("LSR", "merged", 1e-7, None),
        ("LLR", "merged", 1.0, 1e6),
        ("BSR", "factored", 1e12, None),
        ("BSR", "factored", 1.0, 1e-12),
    ],
)
def test_weights_out_of_range_are_refused(tmp_path, kind, layout, weights, input_scale):
    model = random_model(kind)
    first = model.head.kernel if kind[0] == "L" else None
    if first is not None:
        first.assign(np.float32(weights) * first.numpy())
    else:
        A, B = model.factors()
        model.head.assign_factors(np.float32(weights) * A, B)
    with pytest.raises(ValueError, match=r"Expected weights from 7.6e-06 to 65,504.*Received: \d\.\de[+-]\d\d for"):
        export_tflite(model, tmp_path / "m.tflite", "float16", layout, input_scale=input_scale)
    assert list(tmp_path.iterdir()) == []
    export_tflite(model, tmp_path / "m.tflite", layout=layout, input_scale=input_scale)


@pytest.mark.parametrize("kind", ["BSR", "BLR"])
def test_a_bias_out_of_range_is_refused(tmp_path, kind):
    model = random_model(kind, use_bias=True)
    model.head.bias.assign(np.full(model.units, 1e5))
    with pytest.raises(ValueError, match=r"1.0e[+]05 for the largest"):
        export_tflite(model, tmp_path / "m.tflite", "float16", output="logits")
    assert list(tmp_path.iterdir()) == []


def sequential(*layers):
    network = keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Flatten()])
    network.add(keras.layers.Dense(3, activation="softmax"))
    return network


def scaled(layer, factor, shape=(None, 6, 5)):
    layer.build(shape)
    layer.kernel.assign(np.float32(factor) * layer.kernel.numpy())
    return layer


def bilinear(scale):
    layer = kb.BilinearDense(4, 2, left_initializer="glorot_uniform")
    layer.build((None, 6, 5))
    layer.assign_factors(*(np.float32(scale) * np.asarray(factors) for factors in (layer.A, layer.B)))
    return layer


def one_column_away():
    """A column that rounds to zero beside one that does not, and that counts, for what follows makes it large."""
    layers = [keras.layers.Dense(2, use_bias=False) for _ in range(2)]
    network = sequential(*layers)
    layers[0].kernel.assign(np.outer(np.ones(5), [1e-3, 1e-8]))
    layers[1].kernel.assign([[1.0, 0.0], [0.0, 3e4]])
    network.layers[-1].kernel.assign(np.tile([[0.0, 0.0, 0.0], [3e3, 0.0, 0.0]], (6, 1)))
    return network


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: sequential(scaled(keras.layers.Dense(4), 1e-7)), {}),
        (lambda: sequential(scaled(keras.layers.Conv1D(4, 3), 1e6)), {}),
        (lambda: sequential(bilinear(1e3)), {"layout": "merged"}),
        (lambda: sequential(keras.layers.Rescaling(1e-9), keras.layers.ReLU(), keras.layers.Rescaling(1e9)), {}),
        (lambda: sequential(keras.layers.Activation("sigmoid")), {"input_scale": 1e-8}),
        (lambda: sequential(keras.layers.Activation("sigmoid")), {"input_scale": 1e8}),
    ],
)
def test_networks_out_of_range_are_refused(tmp_path, make, options):
    network = make()
    with pytest.raises(ValueError, match=r"Expected weights from.*Received: "):
        export_tflite(network, tmp_path / "m.tflite", "float16", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_network_whose_scores_change_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"Expected a network that float16 can hold.*Received: scores off by 0\.\d"
    ):
        export_tflite(one_column_away(), tmp_path / "m.tflite", "float16")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_may_be_out_of_range(tmp_path):
    """The mean of images that were centred before, a bound, an epsilon, a scale of 16 bits, a bilinear layer."""
    mean = keras.layers.Normalization(axis=None, mean=1e-9, variance=1.0)
    layers = [mean, keras.layers.UnitNormalization(), keras.layers.LayerNormalization(), bilinear(1e2)]
    for network, input_scale in ((sequential(*layers), None), (sequential(keras.layers.ReLU()), 1 / 65535)):
        x = np.random.default_rng(0).uniform(size=(40, 6, 5)).astype("float32") / np.float32(input_scale or 1)
        export_tflite(network, tmp_path / "m.tflite", "float16", input_scale=input_scale, validation_data=(x,))
