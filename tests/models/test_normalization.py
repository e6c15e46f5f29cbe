import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.models.normalization import outer_parts
from tests.four_models import MODELS

SIZE = (6, 5)
OPTIONS = {"use_bias": True, "input_shape": SIZE}


def images(T=200, size=SIZE, seed=0):
    """Rows and columns in units of their own, far from zero."""
    random = np.random.default_rng(seed)
    scale = np.outer(10.0 ** random.uniform(-2, 2, size[0]), random.uniform(0.5, 2, size[1]))
    return (scale * (random.normal(size=(T, *size)) + random.normal(size=size))).astype("float32")


def random_weights(model, seed=0):
    """The model, with weights of ordinary size."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape) * 0.7)
    return model


def probabilities(model, X):
    return np.asarray(model(X))


def adapted(X, **options):
    layer = keras.layers.Normalization(**options)
    layer.adapt(X)
    return layer


NORMALIZATIONS = {
    "rows": lambda X: adapted(X, axis=1),
    "columns": lambda X: adapted(X, axis=2),
    "all": lambda X: adapted(X, axis=None),
    "channel": lambda X: adapted(X[..., None], axis=1),
    "numbers": lambda X: keras.layers.Normalization(axis=1, mean=X.mean((0, 2)), variance=X.var((0, 2))),
    "a mean for each": lambda X: (X.mean(axis=0), X.var(axis=(0, 2))[:, None]),
    "product": lambda X: (X.mean(axis=0), np.outer(X.var(axis=(0, 2)), np.arange(1.0, 6.0))),
}


def standardized(X, normalization):
    if isinstance(normalization, tuple):
        mean, variance = normalization
        return (X - mean) / np.sqrt(variance)
    if not normalization.built:
        normalization.build(X.shape)
    four = normalization.mean.shape.rank == 4
    Z = np.asarray(normalization(X[..., None] if four else X))
    return Z[..., 0] if four else Z


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.parametrize("kind", MODELS)
def test_the_folded_model_gives_the_same_probabilities(kind, name):
    X = images()
    normalization = NORMALIZATIONS[name](X)
    model = random_weights(MODELS[kind](**OPTIONS | {"use_bias": name != "rows"}))
    before = probabilities(model, standardized(X, normalization))
    folded = kb.fold_normalization(model, normalization)
    assert type(folded) is type(model)
    assert np.abs(probabilities(folded, X) - before).max() <= 1e-5
    assert np.ptp(before) > 0.3, "the comparison says something"


@pytest.mark.parametrize("kind", ["LSR", "LLR"])
def test_a_linear_model_takes_any_scale(kind):
    X = images()
    moments = X.mean(axis=0), X.var(axis=0)
    model = random_weights(MODELS[kind](**OPTIONS))
    folded = kb.fold_normalization(model, moments)
    before = probabilities(model, standardized(X, moments))
    assert np.abs(probabilities(folded, X) - before).max() <= 1e-5
    flat = adapted(X.reshape(-1, 30))
    again = kb.fold_normalization(model, flat)
    np.testing.assert_allclose(probabilities(again, X), before, atol=1e-5)


def test_bytes_and_a_scale_of_the_input():
    X = np.random.default_rng(0).integers(0, 256, size=(50, *SIZE)).astype("uint8")
    normalization = adapted(X.astype("float32"), axis=1)
    model = random_weights(MODELS["BSR"](**OPTIONS, input_scale=0.5))
    folded = kb.fold_normalization(model, normalization)
    before = probabilities(model, standardized(X.astype("float32"), normalization))
    assert folded.input_scale == 0.5
    assert np.abs(probabilities(folded, X) - before).max() <= 1e-5


def test_other_scales_are_refused_and_nothing_is_changed():
    X = images()
    model = random_weights(MODELS["BSR"](**OPTIONS))
    weights = model.get_weights()
    with pytest.raises(ValueError, match=r"one for each row and one for each column.*scales up to .* off"):
        kb.fold_normalization(model, (X.mean(axis=0), X.var(axis=0)))
    for own, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(own, before)


@pytest.mark.parametrize(
    ("normalization", "message"),
    [
        (lambda X: (X.mean(0), np.zeros(SIZE)), "variances > 0. Received: a variance of 0"),
        (lambda X: (X.mean(0) * np.nan, np.ones(SIZE)), "finite means"),
        (lambda X: (np.ones(7), np.ones(7)), r"samples of shape \(6, 5\)"),
        (lambda X: keras.layers.Normalization(), "adapted or built"),
        (lambda X: adapted(X, axis=1, invert=True), "without `invert`"),
        (lambda X: keras.layers.Dense(3), "Expected `normalization`"),
        (lambda X: (np.full(SIZE, 1e6), np.ones(SIZE)), "Expected means small enough for float32"),
    ],
)
def test_what_cannot_be_folded(normalization, message):
    with pytest.raises(ValueError, match=message):
        kb.fold_normalization(random_weights(MODELS["BSR"](**OPTIONS)), normalization(images()))


def test_models_without_weights_and_other_models():
    X = images()
    with pytest.raises(ValueError, match="Expected a model with weights"):
        kb.fold_normalization(kb.BilinearSoftmaxRegression(3, 2), adapted(X, axis=1))
    for model in (keras.layers.Dense(3), keras.Sequential([keras.layers.Dense(3)])):
        with pytest.raises(ValueError, match="Expected a regression model of keras_bilinear, or a network"):
            kb.fold_normalization(model, adapted(X, axis=1))
    convolution = keras.Sequential([keras.Input((6, 5, 1)), keras.layers.Conv2D(2, 3)])
    with pytest.raises(ValueError, match=r"Expected a BilinearDense.*Received: Conv2D"):
        kb.fold_normalization(convolution, adapted(X[..., None], axis=1))
    matrices = keras.Sequential([keras.Input(SIZE), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="Expected a Dense on flat numbers"):
        kb.fold_normalization(matrices, adapted(X, axis=1))


HEADS = {
    "map": lambda: [kb.BilinearMap(4, 3, "relu"), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")],
    "map without bias": lambda: [kb.BilinearMap(2, 3, use_bias=False), kb.BilinearDense(3, 2)],
    "hidden units": lambda: [kb.BilinearDense(8, 1, "relu"), keras.layers.Dense(2)],
    "dense": lambda: [keras.layers.Flatten(), keras.layers.Dense(3, "softmax")],
    "turned": lambda: [kb.ToMatrix(rows=2, columns=1), kb.BilinearDense(3, 2, "softmax")],
    "reshaped": lambda: [keras.layers.Reshape((6, 5, 1)), kb.BilinearDense(3, 2)],
    "frozen": lambda: [kb.BilinearMap(4, 3, factor_penalty=kb.penalties.Sum(1e-3), trainable=False)],
}


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_networks(head, within, functional):
    X = images()
    normalization = adapted(X, axis=1)
    image = keras.Input(SIZE)
    layers = [*([normalization] if within else []), *HEADS[head]()]
    output = image
    for layer in layers if functional else []:
        output = layer(output)
    network = keras.Model(image, output) if functional else keras.Sequential([image, *layers])
    random_weights(network)
    before = probabilities(network, X if within else standardized(X, normalization))
    folded = kb.fold_normalization(network, normalization)
    assert not any(isinstance(layer, keras.layers.Normalization) for layer in folded.layers)
    np.testing.assert_allclose(probabilities(folded, X), before, atol=1e-5 * max(1, np.abs(before).max()))


def test_the_file_is_no_larger_and_computes_the_same(tmp_path):
    X = images()
    normalization = adapted(X, axis=1)
    model = random_weights(MODELS["BSR"](**OPTIONS))
    folded = kb.fold_normalization(model, normalization)
    plain = kb.export_tflite(model, tmp_path / "plain.tflite")
    small = kb.export_tflite(folded, tmp_path / "folded.tflite")
    assert small.bytes <= plain.bytes
    kb.verify_tflite(tmp_path / "folded.tflite", folded, X)


def test_parts_of_an_outer_product():
    random = np.random.default_rng(0)
    scale = np.outer(random.uniform(0.1, 9, 6), random.uniform(0.1, 9, 5))
    rows, columns = outer_parts(scale)
    np.testing.assert_allclose(np.outer(rows, columns), scale)
    with pytest.raises(ValueError, match=r"scales up to 0\.0"):
        outer_parts(scale * (1 + 0.1 * np.eye(6, 5)))
