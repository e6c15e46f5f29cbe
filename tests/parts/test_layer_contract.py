"""What Keras asks of a layer, asked of both bilinear ones."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bilinear import BilinearDense, BilinearMap
from keras_bilinear.maths import penalties

POLICIES = ["float32", "float64", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
MADE = {
    "dense": lambda **options: BilinearDense(**{"units": 3, "rank": 2, **options}),
    "map": lambda **options: BilinearMap(**{"rows": 3, "columns": 4, **options}),
}
FORMULA = {"dense": "lmk,tmn,lnk->tk", "map": "mp,tmn,nq->tpq"}
both = pytest.mark.parametrize("kind", MADE)


def built(kind, **options):
    layer = MADE[kind](**options)
    layer.build((None, 6, 5))
    return layer


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def exact(kind, layer, X):
    """What it is to compute, in float64."""
    A, X, B = (np.asarray(ops.cast(part, "float64")) for part in (layer.A, X, layer.B))
    return np.einsum(FORMULA[kind], A, X, B)


@both
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool"])
def test_any_input_dtype(kind, dtype):
    layer, X = built(kind), (images(3, 6, 5) * 3 > 1).astype(dtype)
    np.testing.assert_allclose(layer(X), exact(kind, layer, X), rtol=1e-3, atol=1e-5)
    assert layer(X).dtype == "float32"


@both
@pytest.mark.parametrize("policy", POLICIES)
def test_any_dtype_policy(kind, policy):
    layer, X = built(kind, dtype=policy, factor_penalty=penalties.Product(0.1)), images(3, 6, 5)
    Y = layer(X)
    assert keras.backend.standardize_dtype(Y.dtype) == keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(layer.A.dtype) == keras.DTypePolicy(policy).variable_dtype
    tolerance = 1e-5 if policy in ("float32", "float64") else 0.1
    np.testing.assert_allclose(ops.cast(Y, "float32"), exact(kind, layer, X), atol=tolerance)
    assert layer.losses[0].dtype == "float32"


@both
def test_config_round_trip(kind):
    layer = built(
        kind,
        activation="tanh",
        use_bias=True,
        left_initializer="he_normal",
        right_initializer=keras.initializers.Orthogonal(2.0, seed=1),
        factor_penalty=penalties.Frobenius(0.2),
        name="layer",
    )
    clone = keras.layers.deserialize(keras.layers.serialize(layer))
    assert clone.get_config() == layer.get_config()
    assert isinstance(clone.factor_penalty, penalties.Frobenius)


@both
def test_eager_graph_jit_and_symbolic_agree(kind):
    layer, X = built(kind, activation="softmax"), images(4, 6, 5)
    eager, symbolic = np.asarray(layer(X)), keras.Input((6, 5))
    output = layer(symbolic)
    assert (output.shape, output.dtype) == ((None, *eager.shape[1:]), "float32")
    unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 6, 5, 1))])
    for found in (
        tf.function(layer)(X),
        tf.function(layer, jit_compile=True)(X),
        keras.Model(symbolic, output)(X),
        unknown(X[:, None, ..., None])[:, 0],
    ):
        np.testing.assert_allclose(found, eager, atol=1e-6)


LOAD = """
import sys, numpy as np, keras, keras_bilinear
folder = sys.argv[1]
model = keras.models.load_model(folder + "/model.keras")
assert np.array_equal(model.predict(np.load(folder + "/x.npy"), verbose=0), np.load(folder + "/p.npy"))
"""


def test_both_train_and_load_in_a_fresh_process(tmp_path):
    layers = [MADE["map"](activation="relu"), MADE["dense"](activation="softmax", use_bias=True)]
    model, X, y = keras.Sequential([keras.Input((6, 5)), *layers]), images(60, 6, 5), np.arange(60) % 3
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    before = model.evaluate(X, y, verbose=0)
    model.fit(X, y, epochs=10, verbose=0)
    assert model.evaluate(X, y, verbose=0) < before
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "p.npy", model.predict(X, verbose=0))
    subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("kind", "name"), [("dense", "units"), ("dense", "rank"), ("map", "rows"), ("map", "columns")]
)
@pytest.mark.parametrize("value", [0, -1, 2.5, 2.0, "3", None, True])
def test_bad_sizes(kind, name, value):
    with pytest.raises(ValueError, match=f"Expected `{name}` to be an integer >= 1"):
        MADE[kind](**{name: value})


@both
@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 8, 8, 3), (4, None, 8), (4, 0, 8)])
def test_bad_input_shape(kind, shape):
    for act in (MADE[kind]().build, MADE[kind]().compute_output_shape):
        with pytest.raises(ValueError, match=r"Expected .* Received: input of shape"):
            act(shape)


@both
def test_matrices_of_another_size_than_built_for(kind):
    with pytest.raises(ValueError, match="Expected images of 6 x 5"):
        built(kind)(images(2, 5, 6))


@both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor_penalty": "sum"}, "Expected `factor_penalty`"),
        ({"use_bias": 1}, "Expected `use_bias`"),
        ({"dtype": "int32"}, "Expected `dtype`"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(ValueError, match=message):
        MADE[kind](**options)


@both
def test_without_a_penalty_there_is_no_alpha(kind):
    layer = built(kind)
    assert layer.alpha is None
    with pytest.raises(ValueError, match="no alpha"):
        layer.alpha = 0.1
