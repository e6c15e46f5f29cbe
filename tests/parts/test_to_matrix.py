import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear import ToMatrix

T, M, N, C = 2, 4, 3, 5
MAP = np.arange(T * M * N * C, dtype="float32").reshape(T, M, N, C)


def by_loops(rows, columns):
    """Entry (i, j) of each matrix, the last of several axes running fastest."""
    sizes = dict(zip((1, 2, 3), (M, N, C), strict=True))
    i, j = (
        [dict(zip(axes, index, strict=True)) for index in np.ndindex(*map(sizes.get, axes))]
        for axes in (rows, columns)
    )
    return np.array([[[x[tuple(map((r | c).get, (1, 2, 3)))] for c in j] for r in i] for x in MAP])


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((1,), (2, 3)), ((1, 2), (3,)), ((3, 1), (2,)), ((2,), (1, 3)), ((3,), (1, 2)), ((2, 1), (3,))],
)
def test_axes_make_rows_and_columns_the_last_fastest(rows, columns):
    layer = ToMatrix(rows, columns)
    np.testing.assert_array_equal(layer(MAP), by_loops(rows, columns))
    np.testing.assert_array_equal(tf.function(layer)(MAP), by_loops(rows, columns))
    assert layer.compute_output_shape((None, M, N, C)) == (None, *layer(MAP).shape[1:])


def test_one_axis_is_a_number_and_the_last_is_minus_one():
    np.testing.assert_array_equal(ToMatrix(rows=(1, 2), columns=-1)(MAP), MAP.reshape(T, M * N, C))
    np.testing.assert_array_equal(ToMatrix(1, (2, -1))(MAP), MAP.reshape(T, M, N * C))
    np.testing.assert_array_equal(ToMatrix(2, 1)(MAP[..., 0]), MAP[..., 0].transpose(0, 2, 1))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int32"])
def test_the_dtype_stays(dtype):
    image = keras.Input((M, N, C), dtype=dtype)
    symbolic = ToMatrix(1, (2, 3))(image)
    assert (symbolic.dtype, symbolic.shape) == (dtype, (None, M, N * C))
    assert keras.Model(image, symbolic)(MAP.astype(dtype)).dtype == dtype


def test_a_network_with_it_is_saved_and_trains(tmp_path):
    image = keras.Input((8, 8, 1))
    maps = keras.layers.Conv2D(4, 3, activation="relu")(image)
    scores = kb.BilinearDense(3, 2, "softmax")(ToMatrix(rows=(1, 2), columns=3)(maps))
    model = keras.Model(image, scores)
    x = np.random.default_rng(0).normal(size=(12, 8, 8, 1)).astype("float32")
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, np.arange(12) % 3, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    layer = next(layer for layer in again.layers if isinstance(layer, ToMatrix))
    assert (layer.rows, layer.columns) == ((1, 2), (3,))


@pytest.mark.parametrize("axes", [0, 1.0, "1", None, (), (1, 0), (True,), True, [1, "2"], {1}])
@pytest.mark.parametrize("name", ["rows", "columns"])
def test_what_is_no_axis_is_refused(name, axes):
    with pytest.raises(ValueError, match=f"Expected `{name}` to be an axis or several.*Received: {name}="):
        ToMatrix(**{"rows": 1, "columns": 2, name: axes})


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 2), (1, (2, 2)), ((1, 2, 3), 3), (1, (2, 4)), (1, (2, -2)), (1, (2, -4))]
)
def test_each_axis_is_named_once(rows, columns):
    layer = ToMatrix(rows, columns)
    for act in (layer, lambda x: layer.compute_output_shape(x.shape)):
        with pytest.raises(ValueError, match=r"each of the axes 1 to 3 once. Received: rows=.* of shape"):
            act(MAP)


@pytest.mark.parametrize("shape", [(None, None, 3), (4, None, 3), (4, 0, 3)])
def test_sizes_are_known(shape):
    with pytest.raises(ValueError, match="Expected an input of known, non-zero size"):
        ToMatrix(1, (2, 3))(keras.Input(shape))
