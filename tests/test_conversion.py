import keras
import numpy as np
import pytest

import keras_bilinear as kb

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
