import keras
import numpy as np
import pytest
from keras import ops

from keras_bilinear import BilinearMap
from keras_bilinear.maths import penalties
from keras_bilinear.parts.layers_within import factored_layers, named_layers
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
    assert named_layers(keras.Sequential([keras.Input((6, 5)), layer])) == {}


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


def network():
    layers = [BilinearMap(4, 3, "relu", name="first"), BilinearMap(2, 3), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((6, 5)), *layers, keras.layers.Dense(3, activation="softmax")])


def test_weights_of_another_form_are_refused(tmp_path):
    source, target = built(use_bias=False), built()
    store = {}
    source.save_own_variables(store)
    with pytest.raises(ValueError, match=r"Expected 3 arrays for layer .* a BilinearMap. Received: 2"):
        target.load_own_variables(store)


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
