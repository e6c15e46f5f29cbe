import keras
import numpy as np
import pytest
from keras import layers

import keras_bilinear as kb
from tests.four_models import MODELS, data

SIZE = (6, 5)


def dense_model(K, use_bias=True, activation=None, seed=0):
    activation = activation or ("sigmoid" if K == 1 else "softmax")
    layers = [keras.Input(SIZE), keras.layers.Flatten(), keras.layers.Dense(K, activation, use_bias)]
    model = keras.Sequential(layers)
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def images(T=9):
    return np.random.default_rng(1).normal(size=(T, *SIZE)).astype("float32")


def predictions(model):
    """As `model.predict`, without the seconds it takes to set up."""
    return keras.ops.convert_to_numpy(model(images()))


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("use_bias", [False, True])
def test_from_dense_is_exact_at_full_rank(K, use_bias):
    dense = dense_model(K, use_bias)
    model = kb.from_dense(dense, rank=5, input_shape=SIZE)
    assert isinstance(model, kb.BilinearLogisticRegression if K == 1 else kb.BilinearSoftmaxRegression)
    np.testing.assert_allclose(predictions(model), predictions(dense), atol=1e-5)


def test_reshape_in_place_of_flatten():
    flat = dense_model(3)
    layers = [keras.Input(SIZE), keras.layers.Reshape((30,)), keras.layers.Dense(3, "softmax")]
    reshaped = keras.Sequential(layers)
    reshaped.set_weights(flat.get_weights())
    found = [kb.from_dense(dense, 2, SIZE).weight_matrices() for dense in (flat, reshaped)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_from_dense_is_the_best_approximation_below(rank):
    dense = dense_model(3)
    kernel = dense.layers[-1].kernel.numpy()
    W = kb.from_dense(dense, rank, SIZE).weight_matrices()
    for k in range(3):
        exact = kernel[:, k].reshape(SIZE)
        rest = np.linalg.svd(exact, compute_uv=False)[rank:]
        assert np.linalg.norm(W[k] - exact) == pytest.approx(np.linalg.norm(rest), rel=1e-4)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("kind", ["BSR", "BLR", "LSR"])
def test_to_dense_keeps_the_predictions_and_comes_back(kind, use_bias, tmp_path):
    options = {"use_bias": use_bias, "input_shape": SIZE}
    model = {
        "BSR": lambda: kb.BilinearSoftmaxRegression(3, 2, **options),
        "BLR": lambda: kb.BilinearLogisticRegression(2, **options),
        "LSR": lambda: kb.LinearSoftmaxRegression(3, **options),
    }[kind]()
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    dense = kb.to_dense(model)
    p = predictions(model)
    np.testing.assert_allclose(predictions(dense), p, atol=1e-5)
    dense.save(tmp_path / "dense.keras")
    back = kb.from_dense(keras.models.load_model(tmp_path / "dense.keras"), 5 if kind == "LSR" else 2, SIZE)
    np.testing.assert_allclose(predictions(back), p, atol=1e-5)


def test_a_converted_model_can_be_trained_on():
    x, y = images(60), np.arange(60) % 3
    model = kb.from_dense(dense_model(3), 2, SIZE, alpha=0.01, penalty="sum")
    before = model.objective(x, y)
    model.fit(x, y, epochs=2, verbose=0)
    assert model.objective(x, y) < before


def two_layers():
    return keras.Sequential([keras.Input((30,)), keras.layers.Dense(4), keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("dense", "rank", "shape", "message"),
    [
        (two_layers, 2, SIZE, "one built Dense layer"),
        (lambda: keras.layers.Dense(3), 2, SIZE, "one built Dense layer"),
        (lambda: "model", 2, SIZE, "one built Dense layer"),
        (lambda: dense_model(3), 2, (5, 5), "25 rows"),
        (lambda: dense_model(3), 0, SIZE, "`rank`"),
        (lambda: dense_model(3, activation="relu"), 2, SIZE, "activation"),
        (lambda: dense_model(3, activation="sigmoid"), 2, SIZE, "activation"),
    ],
)
def test_what_cannot_be_converted(dense, rank, shape, message):
    with pytest.raises(ValueError, match=message):
        kb.from_dense(dense(), rank, shape)


def network(function, scale=1.0, size=SIZE):
    """A functional model with random weights."""
    image = keras.Input(size)
    return with_random_weights(keras.Model(image, function(image)), scale)


def with_random_weights(model, scale=1.0):
    rng = np.random.default_rng(0)
    model.set_weights([scale * rng.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def flat(image, **options):
    return layers.Flatten(**options)(image)


def dense(x, units=3, activation="softmax", **options):
    return layers.Dense(units, activation, **options)(x)


def with_large_biases(model):
    model.layers[-1].bias.assign([1e3, -1e3, 500.0])
    return model


def residual(image):
    return layers.Softmax()(dense(flat(image), activation=None) + flat(image)[:, :3])


def used_twice(image):
    square = layers.Dense(30)
    return square(square(flat(image)))


class Subclassed(keras.Model):
    def __init__(self, scale):
        super().__init__()
        self.flatten, self.dense, self.scale = layers.Flatten(), layers.Dense(3, "softmax"), scale

    def call(self, x):
        return self.dense(self.flatten(self.scale * x))


def subclassed(scale):
    model = Subclassed(scale)
    model(np.zeros((1, *SIZE)))
    return with_random_weights(model)


def single_layer(activation, **options):
    layer = layers.Dense(3, activation, **options)
    layer.build((None, 30))
    return with_random_weights(layer)


def with_adapter():
    """A layer whose kernel is not among its weights, but the sum of one and of LoRA's product."""
    layer = single_layer("softmax")
    layer.enable_lora(2)
    return with_random_weights(layer)


def quantized():
    layer = single_layer("softmax")
    layer.quantize("int8")
    return layer


def compiled(loss, units=3):
    model = network(lambda image: dense(flat(image), units, activation=None))
    model.compile("sgd", loss)
    return model


MISREAD = {
    "pixels times 255": lambda: network(lambda image: dense(flat(image * 255.0))),
    "times 255 behind large biases": lambda: with_large_biases(network(lambda image: dense(flat(image * 255.0)))),
    "times 255 of small weights": lambda: network(lambda image: dense(flat(image * 255.0)), scale=1e-6),
    "times 255 in half precision": lambda: network(lambda image: dense(flat(image * 255.0), dtype="float16")),
    "times 1.01": lambda: network(lambda image: dense(flat(image * 1.01))),
    "offset": lambda: network(lambda image: dense(flat(image - 0.5))),
    "rescaled": lambda: network(lambda image: dense(flat(layers.Rescaling(1 / 255)(image)))),
    "normalised": lambda: network(lambda image: dense(flat(layers.Normalization(mean=0.5, variance=0.1)(image)))),
    "columns first": lambda: network(lambda image: dense(flat(image, data_format="channels_first"))),
    "transposed": lambda: network(lambda image: dense(flat(keras.ops.transpose(image, (0, 2, 1))))),
    "permuted": lambda: network(lambda image: dense(flat(layers.Permute((2, 1))(image)))),
    "mirrored": lambda: network(lambda image: dense(flat(keras.ops.flip(image, axis=2)))),
    "clipped": lambda: network(lambda image: dense(flat(keras.ops.minimum(image, 255.0))), scale=0.01),
    "residual": lambda: network(residual),
    "soft-max twice": lambda: network(lambda image: layers.Softmax()(dense(flat(image)))),
    "temperature": lambda: network(lambda image: layers.Softmax()(dense(flat(image), activation=None) / 2.0)),
    "ReLU and soft-max": lambda: network(lambda image: layers.Softmax()(dense(flat(image), activation="relu"))),
    "tanh": lambda: network(lambda image: dense(flat(image), units=1, activation="tanh")),
    "random": lambda: network(lambda image: dense(layers.Dropout(0.5)(flat(image), training=True))),
    "used twice": lambda: network(used_twice),
    "subclassed": lambda: subclassed(scale=255.0),
    "ReLU alone": lambda: single_layer("relu"),
}


@pytest.mark.parametrize("kind", MISREAD)
def test_a_model_that_is_not_what_its_kernel_says(kind):
    with pytest.raises(ValueError, match=r"Expected a model that gives z = W x \+ bias .* Received: .* that gives"):
        kb.from_dense(MISREAD[kind](), 1, SIZE)


REFUSED = [
    (lambda: network(lambda image: dense(flat(image)), size=(5, 6)), r"that of the model, \(5, 6\)"),
    (lambda: network(lambda image: dense(flat(image)), size=(5, 2, 3)), r"that of the model, \(5, 2, 3\)"),
    (lambda: network(lambda image: dense(flat(image)), size=(5, 2, 3, 1)), r"images \(M, N\) or \(M, N, C\)"),
    (lambda: network(lambda image: [dense(flat(image))] * 2), "one output"),
    (lambda: network(lambda image: dense(layers.BatchNormalization()(flat(image)))), "one built Dense"),
    (lambda: keras.Sequential([keras.Input(SIZE), dense_model(3)]), "one built Dense"),
    (lambda: keras.Sequential([layers.Flatten(), layers.Dense(3)]), "one built Dense"),
    (quantized, "quantised to int8"),
    (lambda: compiled("mse"), "log-odds"),
    (lambda: compiled(keras.losses.Hinge(), units=1), "log-odds"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED)
def test_models_of_another_kind(model, message):
    with pytest.raises(ValueError, match=message):
        kb.from_dense(model(), 1, SIZE)


def test_two_inputs():
    pair = [keras.Input(SIZE), keras.Input(SIZE)]
    with pytest.raises(ValueError, match="one input"):
        kb.from_dense(keras.Model(pair, dense(flat(pair[0] + pair[1]))), 1, SIZE)


@pytest.mark.parametrize("shape", [(6, 5, 3), (6.0, 5), "65", (30,), None, (6, None), 30, (6, 5, 1, 1)])
def test_shapes_that_are_none_of_an_image(shape):
    with pytest.raises(ValueError, match=r"`input_shape` to be \(M, N\)|Expected `rows` with images of 3 channels"):
        kb.from_dense(dense_model(3), 1, shape)


KEPT = {
    "logits": lambda: network(lambda image: dense(flat(image), activation=None)),
    "soft-max as a layer": lambda: network(lambda image: layers.Softmax()(dense(flat(image), activation=None))),
    "a channel": lambda: network(lambda image: dense(flat(image)), size=(*SIZE, 1)),
    "a channel in front": lambda: network(lambda image: dense(flat(image)), size=(1, *SIZE)),
    "flat": lambda: network(dense, size=(30,)),
    "dropout and noise": lambda: network(
        lambda image: dense(layers.Dropout(0.5)(flat(layers.GaussianNoise(0.5)(image))))
    ),
    "large weights": lambda: network(lambda image: dense(flat(image)), scale=1e6),
    "small weights": lambda: network(lambda image: dense(flat(image)), scale=1e-6),
    "large biases": lambda: with_large_biases(network(lambda image: dense(flat(image)))),
    "half precision": lambda: network(lambda image: dense(flat(image), dtype="mixed_float16")),
    "half precision before": lambda: network(lambda image: dense(flat(image, dtype="mixed_float16"))),
    "bfloat16": lambda: network(lambda image: dense(flat(image), dtype="bfloat16")),
    "subclassed": lambda: subclassed(scale=1.0),
    "a layer": lambda: single_layer("softmax"),
    "a layer of logits": lambda: single_layer(None),
    "a layer with LoRA": with_adapter,
    "trained on logits": lambda: compiled(keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_model_that_is_what_its_kernel_says(kind):
    source, x = KEPT[kind](), images()
    model = kb.from_dense(source, 5, SIZE)
    shape = (30,) if isinstance(source, layers.Dense) else (getattr(source, "input_shape", None) or (0, *SIZE))[1:]
    given = keras.ops.convert_to_numpy(keras.ops.cast(source(x.reshape(-1, *shape)), "float32"))
    expected = given if np.allclose(given.sum(axis=1), 1, atol=0.05) else keras.ops.softmax(given)
    half = kind in ("half precision", "half precision before", "bfloat16")
    np.testing.assert_allclose(predictions(model), expected, atol=0.03 if half else 1e-5)


def test_weights_that_are_not_finite():
    dense = dense_model(3)
    dense.layers[-1].bias.assign([1.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="finite weights"):
        kb.from_dense(dense, 2, SIZE)


def test_to_dense_of_another_model():
    with pytest.raises(ValueError, match="Expected a regression model"):
        kb.to_dense(dense_model(3))
    with pytest.raises(ValueError, match="with weights"):
        kb.to_dense(kb.BilinearSoftmaxRegression(3, 2))


@pytest.mark.parametrize(("name", "use_bias"), [("LLR", True), ("LSR", False)])
def test_the_linear_models_of_this_package_are_sources(name, use_bias):
    x, y = data(name)
    linear = MODELS[name](use_bias=use_bias)
    linear.fit(x, y, epochs=3, verbose=0)
    full = kb.from_dense(linear, rank=5, input_shape=(6, 5))
    np.testing.assert_allclose(full(x), linear(x), atol=1e-5)
    assert kb.compress(linear, rank=2).rank == 2
    with pytest.raises(ValueError, match=r"to be that of the model, \(6, 5\)"):
        kb.from_dense(linear, rank=2, input_shape=(5, 6))
    with pytest.raises(ValueError, match="Expected one built Dense layer"):
        kb.compress(kb.LinearSoftmaxRegression(3), rank=2)
