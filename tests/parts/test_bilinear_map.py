import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bilinear import BilinearMap
from keras_bilinear.maths import penalties
from keras_bilinear.parts.layers_within import bilinear_layers, factored_layers
from tests import reference


def built(rows=3, columns=4, shape=(None, 6, 5), **options):
    layer = BilinearMap(rows, columns, **options)
    layer.build(shape)
    return layer


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def by_loops(layer, X):
    """y_{p,q} = sum_{m,n} a_{m,p} x_{m,n} b_{n,q} + c_{p,q} of each matrix."""
    A, B = (np.asarray(factor, "float64") for factor in (layer.A.value, layer.B.value))
    C = np.zeros((layer.rows, layer.columns)) if layer.C is None else np.asarray(layer.C.value, "float64")
    return np.stack([A.T @ x @ B + C for x in X.reshape(-1, *X.shape[-2:]).astype("float64")])


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", [None, "relu", "softmax"])
def test_it_is_the_formula(use_bias, activation):
    layer, X = built(use_bias=use_bias, activation=activation), images(7, 6, 5)
    if use_bias:
        layer.C.assign(images(3, 4, seed=1))
    f = keras.activations.get(activation)
    np.testing.assert_allclose(layer(X), f(ops.convert_to_tensor(by_loops(layer, X))), atol=1e-5)


def test_it_equals_dense_with_the_kronecker_product_for_a_kernel():
    layer, X = built(), images(7, 6, 5)
    kernel = np.einsum("mp,nq->mnpq", layer.A.value, layer.B.value).reshape(30, 12)
    np.testing.assert_allclose(np.reshape(layer(X), (7, 12)), X.reshape(7, 30) @ kernel, atol=1e-5)


def test_weights_have_the_papers_letters():
    layer = built(factor_penalty=penalties.Sum(0.1))
    assert [weight.name for weight in layer.weights] == ["A", "B", "C", "alpha"]
    assert [tuple(weight.shape) for weight in layer.trainable_weights] == [(6, 3), (5, 4), (3, 4)]
    assert built(use_bias=False).C is None
    assert layer.factor_blocks == [layer.A, layer.B]
    assert factored_layers(keras.Sequential([keras.Input((6, 5)), layer])) == [layer]
    assert bilinear_layers(keras.Sequential([keras.Input((6, 5)), layer])) == []


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ((2, 6, 5), (2, 3, 4)),
        ((2, 6, 5, 1), (2, 3, 4)),
        ((2, 7, 6, 5), (2, 7, 3, 4)),
        ((2, 3, 7, 6, 5), (2, 3, 7, 3, 4)),
    ],
)
def test_leading_axes_and_channel(shape, result):
    layer, X = built(), images(*shape)
    assert tuple(layer(X).shape) == result
    assert layer.compute_output_shape((None, *shape[1:])) == (None, *result[1:])
    np.testing.assert_allclose(np.reshape(layer(X), (-1, 3, 4)), by_loops(layer, X.reshape(-1, 6, 5)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool"])
def test_any_input_dtype(dtype):
    layer, X = built(), (images(3, 6, 5) * 3 > 1).astype(dtype)
    np.testing.assert_allclose(layer(X), by_loops(layer, X), rtol=1e-3, atol=1e-5)
    assert layer(X).dtype == "float32"


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_any_dtype_policy(policy):
    layer, X = built(dtype=policy, factor_penalty=penalties.Product(0.1)), images(3, 6, 5)
    Y = layer(X)
    assert keras.backend.standardize_dtype(Y.dtype) == keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(layer.A.dtype) == keras.DTypePolicy(policy).variable_dtype
    exact = np.einsum(
        "mp,tmn,nq->tpq", *(np.asarray(ops.cast(part, "float64")) for part in (layer.A.value, X, layer.B.value))
    )
    tolerance = 1e-5 if policy in ("float32", "float64") else 0.1
    np.testing.assert_allclose(ops.cast(Y, "float32"), exact, atol=tolerance)
    assert layer.losses[0].dtype == "float32"


@pytest.mark.parametrize("name", ["sum", "product", "frobenius"])
def test_its_penalty_is_that_of_its_forms(name):
    layer = built(factor_penalty=penalties.get(name, 0.3))
    layer(images(2, 6, 5))
    A, B = (np.asarray(factor, "float64") for factor in (layer.A.value, layer.B.value))
    pairs = [(p, q) for p in range(3) for q in range(4)]
    a, b = (
        np.stack(columns, axis=1)[None] for columns in zip(*((A[:, p], B[:, q]) for p, q in pairs), strict=True)
    )
    assert float(layer.losses[0]) == pytest.approx(0.3 * reference.penalty(name, a, b), rel=1e-5)
    norms = np.sum(A**2), np.sum(B**2)
    stated = 4 * norms[0] + 3 * norms[1] if name == "sum" else norms[0] * norms[1]
    assert float(layer.penalty()) == pytest.approx(0.15 * stated, rel=1e-5)


def test_the_penalty_counts_once_and_its_weight_may_change():
    layer = built(factor_penalty=penalties.Sum(0.3))
    image = keras.Input((6, 5))
    model = keras.Model(image, keras.layers.add([layer(image), layer(2.0 * image)]))
    assert len(model.losses) == 1
    layer.alpha = 0.6
    layer(images(2, 6, 5))
    assert float(layer.losses[0]) == pytest.approx(float(layer.penalty()))
    assert BilinearMap.from_config(layer.get_config()).factor_penalty.alpha == 0.6
    layer.A.trainable = False
    layer(images(2, 6, 5))
    assert len(layer.losses) == 1
    with pytest.raises(ValueError, match="no alpha"):
        built().alpha = 0.1


def test_config_round_trip():
    layer = built(
        activation="tanh",
        use_bias=False,
        left_initializer="he_normal",
        right_initializer=keras.initializers.Orthogonal(2.0, seed=1),
        factor_penalty=penalties.Frobenius(0.2),
        name="map",
    )
    clone = keras.layers.deserialize(keras.layers.serialize(layer))
    assert clone.get_config() == layer.get_config()
    assert isinstance(clone.factor_penalty, penalties.Frobenius)


def test_eager_graph_jit_and_symbolic_agree():
    layer, X = built(activation="tanh"), images(4, 6, 5)
    eager = np.asarray(layer(X))
    np.testing.assert_allclose(tf.function(layer)(X), eager, atol=1e-6)
    np.testing.assert_allclose(tf.function(layer, jit_compile=True)(X), eager, atol=1e-6)
    symbolic = keras.Input((6, 5))
    output = layer(symbolic)
    assert (output.shape, output.dtype) == ((None, 3, 4), "float32")
    np.testing.assert_allclose(keras.Model(symbolic, output)(X), eager, atol=1e-6)
    unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 6, 5))])
    np.testing.assert_allclose(unknown(X[:, None])[:, 0], eager, atol=1e-6)


def network():
    layers = [BilinearMap(4, 3, "relu", name="first"), BilinearMap(2, 3), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(3, activation="softmax")])


def test_trains_and_loads_in_a_fresh_process(tmp_path):
    model, X, y = network(), images(60, 6, 5), np.arange(60) % 3
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    before = model.evaluate(X, y, verbose=0)
    model.fit(X, y, epochs=10, verbose=0)
    assert model.evaluate(X, y, verbose=0) < before
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "p.npy", model.predict(X, verbose=0))
    script = (
        "import sys, numpy as np, keras, keras_bilinear\n"
        "folder = sys.argv[1]\n"
        "model = keras.models.load_model(folder + '/model.keras')\n"
        "p = model.predict(np.load(folder + '/x.npy'), verbose=0)\n"
        "assert np.array_equal(p, np.load(folder + '/p.npy'))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)


def test_weights_of_another_form_are_refused(tmp_path):
    source, target = built(use_bias=False), built()
    store = {}
    source.save_own_variables(store)
    with pytest.raises(ValueError, match=r"Expected 3 arrays for layer .* a BilinearMap. Received: 2"):
        target.load_own_variables(store)


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 2.0, "3", None, True])
def test_bad_sizes(name, value):
    with pytest.raises(ValueError, match=f"Expected `{name}` to be an integer >= 1"):
        BilinearMap(**{"rows": 3, "columns": 2, name: value})


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 8, 8, 3), (4, None, 8), (4, 0, 8)])
def test_bad_input_shape(shape):
    for act in (BilinearMap(3, 2).build, BilinearMap(3, 2).compute_output_shape):
        with pytest.raises(ValueError, match=r"Expected .* Received: input of shape"):
            act(shape)


def test_matrices_of_another_size_than_built_for():
    with pytest.raises(ValueError, match="Expected images of 6 x 5"):
        built()(images(2, 5, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor_penalty": "sum"}, "Expected `factor_penalty`"),
        ({"use_bias": 1}, "Expected `use_bias`"),
        ({"dtype": "int32"}, "Expected `dtype`"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        BilinearMap(3, 2, **options)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
def test_it_stays_in_floating_point_in_networks_that_keras_quantises():
    model = network()
    with pytest.warns(UserWarning, match=r"BilinearMap layer stays in floating point.*export_tflite"):
        model.quantize("int8")
    assert {weight.dtype for weight in model.get_layer("first").weights} == {"float32"}


def test_a_mask_ends_here():
    """Rows are mixed, so none of those of the result can be told to be padding."""
    masked = keras.layers.Masking()(images(2, 6, 5))
    with pytest.warns(UserWarning, match="does not support mask"):
        built()(masked)
