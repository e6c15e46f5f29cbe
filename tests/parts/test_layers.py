import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bilinear import BilinearDense, OrthogonalizedUniform
from keras_bilinear.maths import penalties
from keras_bilinear.parts.layers_within import named_layers
from tests import reference


def built(units=3, rank=2, shape=(None, 6, 5), **options):
    layer = BilinearDense(units, rank, left_initializer=keras.initializers.RandomNormal(seed=1), **options)
    layer.build(shape)
    return layer


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("use_bias", [False, True])
def test_equals_dense_on_flattened_images(units, use_bias):
    layer = built(units, use_bias=use_bias)
    X = images(7, 6, 5)
    if use_bias:
        layer.bias.assign(np.arange(units) + 1.0)
    dense = keras.layers.Dense(units, use_bias=use_bias)
    dense.build((None, 30))
    W = np.einsum("lmk,lnk->mnk", layer.A, layer.B).reshape(30, units)
    dense.set_weights([W, layer.bias.numpy()] if use_bias else [W])
    np.testing.assert_allclose(layer(X), dense(X.reshape(7, 30)), atol=1e-5)


def test_gradients_equal_the_loop_oracle():
    layer, X = built(), images(8, 6, 5)
    C = np.eye(3)[np.arange(8) % 3]
    with tf.GradientTape() as tape:
        V = ops.mean(ops.categorical_crossentropy(C.astype("float32"), layer(X), from_logits=True))
    gradients = tape.gradient(V, layer.factor_blocks)
    gA, gB = reference.likelihood_gradient(X.astype(float), C, np.ones(8), np.asarray(layer.A), np.asarray(layer.B))
    for l in range(2):
        np.testing.assert_allclose(gradients[2 * l], gA[l], atol=1e-5)
        np.testing.assert_allclose(gradients[2 * l + 1], gB[l], atol=1e-5)


def test_one_variable_per_rank_and_side():
    layer = built(use_bias=True)
    assert [v.name for v in layer.factor_blocks] == ["a_1", "b_1", "a_2", "b_2"]
    assert [tuple(v.shape) for v in layer.factor_blocks] == [(6, 3), (5, 3), (6, 3), (5, 3)]
    assert len(layer.trainable_variables) == 5
    assert layer.count_params() == 2 * (6 + 5) * 3 + 3


def test_starts_as_the_paper_does():
    layer = BilinearDense(4, 3, left_initializer="zeros", right_initializer=OrthogonalizedUniform(seed=2))
    layer.build((None, 6, 5))
    assert not np.any(layer.A)
    np.testing.assert_array_equal(layer.B, OrthogonalizedUniform(seed=2)((3, 5, 4)))
    np.testing.assert_array_equal(layer(images(2, 6, 5)), np.zeros((2, 4)))


def test_a_hidden_layer_wakes_by_default():
    """With A = 0, as in the paper, all outputs and all gradients behind a rectifier are zero, and stay so."""
    X, y = images(60, 6, 5), np.arange(60) % 3
    for left, wakes in (("zeros", False), (None, True)):
        start = {} if left is None else {"left_initializer": left}
        hidden = BilinearDense(8, 2, "relu", **start)
        model = keras.Sequential([keras.Input((6, 5)), hidden, keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        before = np.asarray(hidden.B)
        model.fit(X, y, epochs=2, verbose=0)
        assert bool(np.any(np.asarray(hidden.B) != before)) == wakes


def test_default_factors_differ_from_layer_to_layer():
    first, second = BilinearDense(4, 3), BilinearDense(4, 3)
    first.build((None, 6, 5))
    second.build((None, 6, 5))
    assert np.any(np.asarray(first.B) != np.asarray(second.B))


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ((2, 6, 5), (2, 3)),
        ((2, 6, 5, 1), (2, 3)),
        ((2, 4, 6, 5, 1), (2, 4, 3)),
        ((2, 4, 3, 6, 5, 1), (2, 4, 3, 3)),
    ],
)
def test_channel_and_leading_axes(shape, result):
    layer, X = built(), images(*shape)
    assert tuple(layer(X).shape) == result
    assert layer.compute_output_shape((None, *shape[1:])) == (None, *result[1:])
    np.testing.assert_allclose(np.reshape(layer(X), (-1, 3)), layer(X.reshape(-1, 6, 5)), atol=1e-5)


def test_the_penalty_keeps_full_precision_under_mixed_precision():
    mixed = built(dtype="mixed_float16", factor_penalty=penalties.Product(0.1))
    plain = built(factor_penalty=penalties.Product(0.1))
    plain.assign_factors(mixed.A, mixed.B)
    mixed(images(2, 6, 5))
    assert mixed.losses[0].dtype == "float32"
    assert float(mixed.losses[0]) == float(plain.penalty())


@pytest.mark.parametrize("penalty", [penalties.Sum, penalties.Product, penalties.Frobenius])
def test_the_penalty_is_among_the_losses(penalty):
    layer = built(factor_penalty=penalty(0.3))
    layer(images(2, 6, 5))
    A, B = np.asarray(layer.A, float), np.asarray(layer.B, float)
    expected = 0.3 * reference.penalty(penalty.__name__.lower(), A, B)
    assert float(layer.losses[0]) == pytest.approx(expected, rel=1e-5)
    layer.alpha = 0.6
    layer(images(2, 6, 5))
    assert float(layer.losses[0]) == pytest.approx(2 * expected, rel=1e-5)
    assert BilinearDense.from_config(layer.get_config()).factor_penalty.alpha == 0.6


class Twice(keras.layers.Layer):
    """Calls its layer twice."""

    def __init__(self, layer, **options):
        super().__init__(**options)
        self.layer = layer

    def call(self, X):
        return self.layer(X) + self.layer(2.0 * X)


class SubclassedTwice(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, X):
        return self.layer(X) + self.layer(2.0 * X)


def graph(call, shape=(6, 5)):
    X = keras.Input(shape)
    return keras.Model(X, call(X))


def within_models(layer):
    inner = graph(layer)
    return graph(lambda X: graph(lambda X: inner(X) + layer(X))(X) + inner(2.0 * X))


REACHED = {
    "twice": lambda layer: graph(lambda X: layer(X) + layer(2.0 * X)),
    "within models": within_models,
    "by another layer": lambda layer: graph(Twice(layer)),
    "in time": lambda layer: graph(keras.layers.TimeDistributed(layer), (4, 6, 5)),
    "in any time": lambda layer: graph(keras.layers.TimeDistributed(layer), (None, 6, 5)),
    "by a subclass": SubclassedTwice,
}


@pytest.mark.parametrize("reached", REACHED)
def test_the_penalty_counts_once_however_the_layer_is_reached(reached):
    model = REACHED[reached](built(factor_penalty=penalties.Product(0.3)))
    X = images(8, 4, 6, 5) if "time" in reached else images(8, 6, 5)
    for options in ({}, {"jit_compile": True}, {"run_eagerly": True})[: 3 if reached == "twice" else 1]:
        # Of the loss nothing but the penalty is left.
        model.compile(keras.optimizers.SGD(0.0), loss=lambda y, z: 0.0 * ops.mean(z), **options)
        (layer,) = named_layers(model).values() or [model.layer]
        for alpha in (0.3, 0.6):
            layer.alpha = alpha
            A, B = np.asarray(layer.A, float), np.asarray(layer.B, float)
            expected = pytest.approx(alpha * reference.penalty("product", A, B), rel=1e-5)
            for step in (model.train_on_batch, model.test_on_batch):
                assert step(X, np.zeros(8)) == expected
                model.reset_metrics()  # not every Keras does
    assert len(model.losses) == 1


def test_the_gradient_of_the_penalty_reaches_every_factor():
    layer = built(factor_penalty=penalties.Frobenius(0.3))
    model = REACHED["twice"](layer)
    with tf.GradientTape() as tape:
        model(images(2, 6, 5))
        total = sum(model.losses)
    gA, gB = penalties.Frobenius.gradient(layer.A, layer.B)
    for factor, slope in zip(layer.factor_blocks, tape.gradient(total, layer.factor_blocks), strict=True):
        side, rank = factor.name.split("_")
        expected = {"a": gA, "b": gB}[side][int(rank) - 1]
        np.testing.assert_allclose(slope, 0.3 * expected, rtol=1e-4, atol=1e-6)


def test_the_penalty_of_a_layer_is_left_out_only_while_all_of_it_is_frozen():
    layer = built(factor_penalty=penalties.Sum(0.3))
    model = graph(layer)
    for frozen in (layer.left_factors[0], *layer.right_factors):
        frozen.trainable = False
        model(images(2, 6, 5))
        assert [float(loss) for loss in model.losses] == [pytest.approx(float(layer.penalty()))]
    layer.trainable = False
    model(images(2, 6, 5))
    assert model.losses == []
    layer.trainable = True
    model(images(2, 6, 5))
    assert len(model.losses) == 1


def test_the_penalty_is_never_taken_in_half_precision():
    layer = built(dtype="float16", factor_penalty=penalties.Product(1.0))
    layer.assign_factors(300.0 * layer.A, layer.B)  # their squares are beyond float16
    A, B = np.asarray(layer.A, float), np.asarray(layer.B, float)
    assert float(layer.losses[0]) == pytest.approx(reference.penalty("product", A, B), rel=1e-5)


def test_layers_do_not_share_the_penalty_they_were_given():
    shared = penalties.Sum(0.3)
    first, second = built(factor_penalty=shared), built(factor_penalty=shared)
    first.alpha = 0.1
    assert second.get_config()["factor_penalty"]["config"]["alpha"] == 0.3


@pytest.mark.parametrize("shape", [(2, 6, 5, 3), (2, 7, 7, 64), (2, 4, 6, 5), (2, 4, 6, 5, 3)])
def test_maps_with_several_channels_are_refused_by_name_of_what_lays_them_out(shape):
    """They were taken for as many matrices as they have rows."""
    layer, message = BilinearDense(3, 2), r"Expected one matrix a sample.*ToMatrix.*Reshape.*Received: input of"
    symbolic = keras.Input(shape[1:])
    for act in (
        lambda: layer(images(*shape)),
        lambda: layer(symbolic),
        lambda: layer.build(shape),
        lambda: layer.compute_output_shape(shape),
        lambda: tf.function(built())(images(*shape)),
    ):
        with pytest.raises(ValueError, match=message):
            act()
    assert not layer.built


def test_a_sequence_of_matrices_is_one_call_for_each():
    layer, X = built(), images(2, 4, 6, 5)
    z = keras.layers.TimeDistributed(layer)(X)
    assert tuple(z.shape) == (2, 4, 3)
    np.testing.assert_allclose(z, layer(X[..., None]), atol=1e-5)


def sequential():
    return keras.Sequential([keras.Input((6, 5)), BilinearDense(3, 2, activation="softmax")])


def functional():
    image = keras.Input((8, 8, 1))
    maps = keras.layers.Reshape((6, 12))(keras.layers.Conv2D(2, 3)(image))
    return keras.Model(image, BilinearDense(3, 2, activation="softmax")(maps))


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.head = BilinearDense(3, 2, use_bias=True, factor_penalty=penalties.Sum(0.01))

    def call(self, X):
        return ops.softmax(self.head(X))


@pytest.mark.parametrize(("make", "shape"), [(sequential, (6, 5)), (functional, (8, 8, 1)), (Subclassed, (6, 5))])
def test_trains_and_saves_in_every_kind_of_model(make, shape, tmp_path):
    model, X = make(), images(20, *shape)
    model.compile("adam", "sparse_categorical_crossentropy")
    before = model.evaluate(X, np.arange(20) % 3, verbose=0)
    model.fit(X, np.arange(20) % 3, epochs=20, verbose=0)
    assert model.evaluate(X, np.arange(20) % 3, verbose=0) < before
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))


def test_loading_weights_leaves_alpha_alone(tmp_path):
    source = keras.Sequential([keras.Input((6, 5)), BilinearDense(3, 2, factor_penalty=penalties.Sum(0.5))])
    target = keras.Sequential([keras.Input((6, 5)), BilinearDense(3, 2, factor_penalty=penalties.Sum(0.1))])
    source.save_weights(tmp_path / "w.weights.h5")
    target.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(target.layers[0].B, source.layers[0].B)
    assert float(target.layers[0].alpha) == pytest.approx(0.1)


def test_shapes_are_checked_in_graphs_that_do_not_know_them():
    layer = BilinearDense(3, rank=2, left_initializer="ones")
    X = np.random.default_rng(0).normal(size=(7, 4, 5)).astype("float32")
    z = layer(X)
    specs = [None, (None, None, None), (None, None, 5), (None, 4, 5)]
    for spec in specs:
        graph = tf.function(layer, input_signature=[tf.TensorSpec(spec, tf.float32)])
        np.testing.assert_allclose(graph(X), z, rtol=1e-5)
        with pytest.raises((tf.errors.InvalidArgumentError, TypeError)):
            graph(X.transpose(0, 2, 1))
    either = tf.function(layer, input_signature=[tf.TensorSpec((None, 4, 5, None), tf.float32)])
    np.testing.assert_allclose(either(X[..., None]), z, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        either(X[..., None].repeat(2, -1))
    many = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 5, 1), tf.float32)])
    np.testing.assert_allclose(many(X[:, None, ..., None]), z[:, None], rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        many(X[:, None, :3, :, None])
