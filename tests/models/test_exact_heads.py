"""`fit_head`: the last layer of a network, solved exactly on what the frozen layers give."""

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from tests.problems import planted

M, N, T = 6, 5, 300


def problem(K=3):
    found = planted(T=T, M=M, N=N, K=max(K, 1))
    return found.X.astype("float32"), found.y


def network(K=3, penalty="product", use_bias=True, channel=False):
    """A frozen map under a head that is to be solved."""
    keras.utils.set_random_seed(0)
    image = keras.Input((M, N))
    features = kb.BilinearMap(5, 4, activation="relu", trainable=False, name="body")(image)
    if channel:
        features = keras.layers.Reshape((5, 4, 1))(features)
    head = kb.BilinearDense(
        K,
        2,
        activation="sigmoid" if K == 1 else "softmax",
        use_bias=use_bias,
        factor_penalty=None if penalty is None else kb.penalties.get(penalty, 1e-2),
        name="head",
    )
    return keras.Model(image, head(features))


def J_of(model, x, y):
    """What Keras makes of the whole network: V and the penalty."""
    loss = "binary_crossentropy" if model.output_shape[1] == 1 else "sparse_categorical_crossentropy"
    model.compile("adam", loss, run_eagerly=True)
    return model.evaluate(x, y.reshape(-1, 1), verbose=0)


@pytest.mark.parametrize(
    ("K", "penalty", "use_bias", "channel"),
    [(3, "product", True, False), (3, "sum", False, True), (1, "frobenius", True, False)],
)
def test_J_of_the_network_falls_to_that_of_the_solver(K, penalty, use_bias, channel):
    (x, y), model = problem(K), network(K, penalty, use_bias, channel)
    before, body = J_of(model, x, y), [value.copy() for value in model.get_layer("body").get_weights()]
    fit = kb.fit_head(model, x, y, epochs=8, verbose=0)
    assert np.all(np.diff(fit.history["J"]) <= 1e-5)
    assert fit.history["J"][-1] < before
    assert J_of(model, x, y) == pytest.approx(fit.history["J"][-1], rel=1e-5)
    assert fit.certificate.objective == pytest.approx(fit.history["J"][-1], rel=1e-5)
    for value, now in zip(body, model.get_layer("body").get_weights(), strict=True):
        np.testing.assert_array_equal(value, now)


def test_weights_validation_and_callbacks_are_those_of_a_fit():
    (x, y), model = problem(), network()
    weight = np.random.default_rng(0).uniform(size=T)
    fit = kb.fit_head(
        model,
        x,
        y,
        epochs=40,
        sample_weight=weight,
        validation_data=(x[:50], y[:50]),
        callbacks=[kb.callbacks.BlockConvergence(rtol=1e-3)],
        optimizer=kb.BlockLineSearch(max_inner=3),
        verbose=0,
    )
    assert 1 < len(fit.history["val_accuracy"]) < 40
    assert fit.certificate.objective == pytest.approx(fit.history["J"][-1], rel=1e-5)
    assert int(fit.model.optimizer.max_inner) == 3
    assert "sweep" in str(fit.model.convergence_report())


def test_it_goes_on_from_the_weights_that_the_head_has():
    (x, y), model = problem(), network()
    first = kb.fit_head(model, x, y, epochs=4, verbose=0).history["J"]
    again = kb.fit_head(model, x, y, epochs=1, verbose=0).history["J"]
    assert again[0] <= first[-1] + 1e-6


def test_sequential_and_alternating_networks():
    x, y = problem()
    normalization = keras.layers.Normalization(axis=None)
    normalization.adapt(x)
    head = kb.BilinearDense(3, 2, activation="softmax")
    sequential = keras.Sequential([keras.Input((M, N)), normalization, head])
    image = keras.Input((M, N))
    turns = kb.AlternatingModel(image, kb.BilinearDense(3, 2, activation="softmax")(normalization(image)))
    for model in (sequential, turns):
        fit = kb.fit_head(model, x, y, epochs=3, verbose=0)
        assert J_of(model, x, y) == pytest.approx(fit.history["J"][-1], rel=1e-5)


def thawed():
    model = network()
    model.get_layer("body").trainable = True
    return model


def frozen():
    model = network()
    model.get_layer("head").trainable = False
    return model


def ending_in(layer):
    image = keras.Input((M, N))
    return keras.Model(image, layer(image))


class Subclassed(keras.Model):
    """Of its own making."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (thawed, "trainable variables are those of its last layer.*Received: body/"),
        (frozen, "trainable variables are those of its last layer.*head/.* frozen"),
        (Subclassed, "Expected a functional or sequential network.*Received: a Subclassed"),
        (lambda: ending_in(keras.layers.Flatten()), "ends in a BilinearDense.*Received: a Flatten"),
        (lambda: ending_in(kb.BilinearDense(3, 1)), "activation='softmax'.*Received: linear"),
        (
            lambda: ending_in(kb.BilinearDense(1, 1, activation="softmax")),
            "activation='sigmoid'.*Received: softmax",
        ),
    ],
)
def test_other_networks_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        kb.fit_head(model(), *problem(), verbose=0)


@pytest.mark.parametrize(
    "options",
    [{"optimizer": keras.optimizers.Adam()}, {"sample_weight": np.zeros(T)}, {"epochs": -1}],
    ids=["optimizer", "weights", "epochs"],
)
def test_a_refusal_changes_nothing(options):
    model = network()
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"Expected"):
        kb.fit_head(model, *problem(), verbose=0, **options)
    for value, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, now)


def test_the_refusal_of_compile_names_it():
    image = keras.Input((M, N))
    model = kb.AlternatingModel(image, kb.BilinearDense(3, 1, activation="softmax")(image))
    with pytest.raises(ValueError, match="fit_head"):
        model.compile(kb.BlockLineSearch())
