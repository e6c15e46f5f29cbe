"""Networks of bilinear maps, as files for the edge: matrix products and moves of numbers, nothing else."""

import re

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.export import export_tflite, exportable
from tests.files import computed, dtype_policy, run

SIZE = (28, 28)
SIMPLE = {"FULLY_CONNECTED", "TRANSPOSE", "RESHAPE", "ADD", "SOFTMAX", "QUANTIZE", "DEQUANTIZE"}
"""ADD is for the bias C, and rectifies, too."""


def with_biases(network):
    """Random numbers for the biases, which are zero at first: the converter leaves zeros out."""
    for variable in network.variables:
        if variable.name in ("C", "bias"):
            variable.assign(np.random.default_rng(2).normal(size=variable.shape))
    return network


def two_layers(rows=12, columns=12, size=SIZE):
    """The network that has the numbers of BSR at rank 4."""
    layers = [kb.BilinearMap(rows, columns, "relu"), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
    return with_biases(keras.Sequential([keras.Input(size), *layers]))


def deep():
    """Both products first, in either order, without a bias, and a bilinear head."""
    layers = [kb.BilinearMap(4, 20, "relu"), kb.BilinearMap(16, 9, "tanh", use_bias=False)]
    return with_biases(
        keras.Sequential([keras.Input(SIZE), *layers, kb.BilinearDense(3, 2, "softmax", True, "glorot_uniform")])
    )


def of_maps():
    """Channels as columns, a hidden bilinear layer on them, and matrices of matrices."""
    image = keras.Input((8, 8, 3))
    columns = kb.BilinearMap(6, 5, "relu")(kb.ToMatrix(rows=1, columns=(2, 3))(image))
    places = kb.BilinearDense(7, 2, "relu", left_initializer="glorot_uniform")(
        kb.ToMatrix(rows=(2, 1), columns=3)(image)
    )
    stacked = kb.BilinearMap(3, 2)(keras.layers.Reshape((4, 2, 8, 3))(image))
    flat = [keras.layers.Flatten()(part) for part in (columns, places, stacked)]
    scores = keras.layers.Dense(4, "softmax")(keras.layers.Concatenate()(flat))
    return with_biases(keras.Model(image, scores))


def images(network, T=64):
    return np.random.default_rng(1).uniform(size=(T, *network.input_shape[1:])).astype("float32")


@pytest.mark.parametrize(("make", "batch_size"), [(two_layers, 4), (deep, 1), (of_maps, 1), (of_maps, None)])
def test_a_network_of_maps_becomes_a_file(tmp_path, make, batch_size):
    network = make()
    x = images(network)
    report = export_tflite(network, tmp_path / "m.tflite", batch_size=batch_size, validation_data=(x,))
    assert report.parameters == network.count_params()
    if batch_size == 1:
        np.testing.assert_allclose(run(report.path, x), computed(network, x), atol=5e-6)
        assert not set(report.ops) & {"BATCH_MATMUL", "SHAPE", "PACK", "STRIDED_SLICE"}


@pytest.mark.parametrize(
    ("make", "quantize"),
    [
        (two_layers, "dynamic"),
        (two_layers, "int8"),
        (deep, "float16"),
        (deep, "int8"),
        (of_maps, "int8"),
        (of_maps, "int16x8"),
    ],
)
@pytest.mark.filterwarnings("ignore:quantize='dynamic' has left")
def test_it_passes_its_gates_in_every_storage(tmp_path, make, quantize):
    network = make()
    x = images(network, 128)
    report = export_tflite(
        network, tmp_path / "m.tflite", quantize, representative_data=x[:64], validation_data=(x[64:],)
    )
    assert "BATCH_MATMUL" not in report.ops
    if make is two_layers:
        assert set(report.ops) <= SIMPLE


@pytest.mark.parametrize(("rows", "columns", "size"), [(12, 12, SIZE), (2, 20, (9, 30)), (20, 2, (30, 9))])
def test_operators_of_the_two_layer_network(tmp_path, rows, columns, size):
    network = two_layers(rows, columns, size)
    report = export_tflite(network, tmp_path / "m.tflite")
    assert sorted(report.ops) == sorted([*3 * ["FULLY_CONNECTED"], *2 * ["TRANSPOSE"], "ADD", "RESHAPE", "SOFTMAX"])


def test_what_a_file_holds_beside_its_weights_is_small_and_the_same_again(tmp_path):
    network = two_layers()
    assert network.count_params() == 2266
    contents = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.tflite"
        report = export_tflite(network, path, "int8", representative_data=images(network))
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert report.bytes - report.parameters <= 3000


def test_layouts_are_those_of_the_bilinear_heads():
    assert exportable(two_layers()).layouts == ("merged",)
    assert exportable(deep()).layouts == ("factored", "merged")


def test_a_network_of_another_precision(tmp_path):
    with dtype_policy("mixed_bfloat16"):
        network = two_layers()
    x = images(network)
    export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
    np.testing.assert_allclose(run(tmp_path / "m.tflite", x), computed(network, x).astype("float32"), atol=5e-2)


def test_within_a_wrapper_and_a_class_of_ones_own_there_is_no_batched_product_either(tmp_path):
    class Louder(kb.BilinearMap):
        def call(self, X):
            return 2 * super().call(X)

    image = keras.Input((5, 8, 6))
    scores = keras.layers.Flatten()(keras.layers.TimeDistributed(kb.BilinearMap(2, 3))(Louder(4, 3)(image)))
    network = keras.Model(image, keras.layers.Dense(3, "softmax")(scores))
    x = images(network)
    report = export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
    assert not [op for op in report.ops if re.search("BATCH_MATMUL|VARIABLE|CUSTOM", op)]
