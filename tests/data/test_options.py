"""What `fit` is told beside arrays: found wrong before anything is built, changed or computed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb

K, M, N, T = 3, 4, 5, 12
RNG = np.random.default_rng(0)
X, Y = RNG.random((T, M, N)).astype("float32"), np.arange(T) % K


def data_set(x=X, y=Y, batch=4):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)


def state(model):
    """All that a refusal must leave as it is."""
    variables = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", [])]
    return model.built, model.compiled, [np.array(variable.value) for variable in variables]


def expect_refusal(model, message, x=X, y=Y, **options):
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, **{"verbose": 0, **options})
    after = state(model)
    assert before[:2] == after[:2]
    for was, now in zip(before[2], after[2], strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.fixture(scope="module")
def models():
    """An unbuilt one, a built one within a sweep, one for mini-batches, and a network."""
    within = kb.BilinearSoftmaxRegression(K, rank=2, seed=0)
    within.compile(kb.BlockLineSearch(blocks="factor"), run_eagerly=True)
    within.fit(X, Y, epochs=1, steps_per_epoch=1, verbose=0)
    mini = kb.BilinearSoftmaxRegression(K, rank=2, seed=0)
    mini.compile("adam")
    image = keras.Input((M, N))
    network = kb.AlternatingModel(image, kb.BilinearDense(K, 2, activation="softmax")(image))
    network.compile("adam", "sparse_categorical_crossentropy")
    return {"unbuilt": kb.BilinearSoftmaxRegression(K, 2), "within": within, "mini": mini, "network": network}


NAMES = ["unbuilt", "within", "mini", "network"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps_per_epoch": -1}, "`steps_per_epoch` to be an integer >= 1"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch`"),
        ({"steps_per_epoch": "10"}, "`steps_per_epoch`"),
        ({"steps_per_epoch": 2.5}, "`steps_per_epoch`"),
        ({"batch_size": []}, "`batch_size`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"batch_size": True}, "`batch_size`"),
        ({"epochs": "a"}, "`epochs`"),
        ({"epochs": -1}, "`epochs`"),
        ({"epochs": 1.0}, "`epochs`"),
        ({"initial_epoch": None, "epochs": np.nan}, "`epochs`"),
        ({"validation_split": np.nan}, "`validation_split`"),
        ({"validation_split": 1.0}, "`validation_split`"),
        ({"validation_split": "0.2"}, "`validation_split`"),
        ({"validation_split": -0.1}, "`validation_split`"),
        ({"validation_freq": 0}, "`validation_freq`"),
        ({"validation_freq": "every"}, "`validation_freq`"),
        ({"validation_data": (X, Y), "validation_steps": -1}, "`validation_steps`"),
        ({"validation_data": (X, Y), "validation_batch_size": 0}, "`validation_batch_size`"),
        ({"validation_data": "a"}, "`validation_data`"),
        ({"validation_data": 5}, "`validation_data`"),
        ({"validation_data": X}, "Expected labels in `validation_data`"),
        ({"validation_data": (X, Y, None, None)}, "a tuple of 4"),
        ({"validation_data": data_set().repeat()}, "Expected `validation_steps` with data that never end"),
        ({"callbacks": [keras.callbacks.EarlyStopping]}, "`callbacks` to be objects"),
        ({"callbacks": ["early"]}, "`callbacks` to be objects"),
    ],
)
def test_options_that_no_fit_could_use_change_nothing(models, name, options, message):
    expect_refusal(models[name], message, **options)


@pytest.mark.parametrize("name", ["unbuilt", "within", "mini"])
@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (("a", Y), "`validation_data`"),
        ((X, None), "Expected labels"),
        ((X, Y + 1), "from 0 to 2"),
        ((X[:, :3], Y), "size the model was built for"),
        ((X, Y[:5]), "one label for each image"),
        (data_set(X[:, :, :4]), "size the model was built for"),
        (tf.data.Dataset.from_tensor_slices(X).batch(4), "to yield"),
        (tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(4), "to yield"),
        (tf.data.Dataset.from_tensor_slices((X, Y)), "Batch the data set"),
        (data_set(np.stack([X, X, X], axis=-1)), "one channel"),
        (lambda: (batch for batch in [(X, Y[:, None, None])]), "one label for each image"),
        (lambda: (batch for batch in [(X[:, 1:], Y)]), "`validation_data`|size the model was built for"),
        (lambda: (batch for batch in ()), "`validation_data` to yield batches"),
    ],
)
def test_validation_data_of_any_kind_are_checked_first(models, name, validation, message):
    given = validation() if callable(validation) else validation
    expect_refusal(models[name], message, validation_data=given)


@pytest.mark.parametrize("name", ["unbuilt", "within", "mini"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "`x` to be arrays or a data set"),
        ("a", "`x` to be arrays or a data set"),
        (5, "`x` to be arrays or a data set"),
        ({"x": X}, "`x` to be arrays or a data set"),
        (tf.data.Dataset.from_tensor_slices((X, Y)), r"Batch the data set: `.batch\(32\)`"),
        (tf.data.Dataset.from_tensor_slices(X).batch(T), r"to yield \(x, y\)"),
        (tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(T), "dicts of x, y; `data.map"),
        (data_set().take(0), "an empty data set"),
        (tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(T), "dense arrays"),
        (data_set(X.reshape(T, -1), batch=T), "flat rows become images"),
        (data_set(np.stack([X] * 3, axis=-1), batch=T), "side by side"),
        (data_set(y=np.zeros((T, 7)), batch=T), "one label for each image"),
        (data_set(y=Y.astype(str), batch=T), "BilinearClassifier takes labels of any kind"),
    ],
)
def test_training_sets_of_another_kind_are_refused(models, name, x, message):
    expect_refusal(models[name], message, x=x, y=None)


def test_a_training_set_without_an_end_needs_steps(models):
    with pytest.raises(ValueError, match="Expected `steps_per_epoch` with data that never end"):
        models["mini"].fit(data_set().repeat(), verbose=0)


def test_a_data_set_cannot_be_divided(models):
    expect_refusal(models["mini"], "give `validation_data`", x=data_set(), y=None, validation_split=0.5)


def test_callbacks_refuse_before_the_model_is_built(tmp_path):
    refusals = [
        (kb.callbacks.AutomaticRank(), "an optimal rank"),
        (kb.callbacks.BlockConvergence(gap=0.1), None),
        (kb.callbacks.BilinearTensorBoard(tmp_path / "logs", certificate_freq=1), None),
    ]
    for callback, message in refusals:
        if message is not None:
            expect_refusal(kb.BilinearSoftmaxRegression(K, 2), message, callbacks=[callback])
        model = kb.BilinearSoftmaxRegression(K, 2, penalty="sum", alpha=1e-3)
        model.compile("adam")
        expect_refusal(model, message or "J is certified on all images", x=data_set(), y=None, callbacks=[callback])


def test_a_generator_gives_the_batch_that_was_looked_at_too():
    model = kb.BilinearSoftmaxRegression(K, 2, seed=0)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    history = model.fit(
        ((X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8)),
        steps_per_epoch=3,
        validation_data=((X[i : i + 6], Y[i : i + 6]) for i in (0, 6)),
        validation_steps=2,
        shuffle=False,
        verbose=0,
    )
    assert history.history["loss"][0] == pytest.approx(np.log(K))
    assert history.history["val_loss"][0] == pytest.approx(np.log(K))


def test_options_that_are_fine_are_taken():
    model = kb.BilinearSoftmaxRegression(K, 2, seed=0)
    model.compile("adam", run_eagerly=True)
    model.fit(
        data_set().repeat(),
        steps_per_epoch=np.int64(2),
        epochs=np.int32(2),
        validation_data=data_set().repeat(),
        validation_steps=1,
        validation_freq=[2],
        callbacks=[[keras.callbacks.TerminateOnNaN()]],
        shuffle=False,
        verbose=0,
    )
    model.fit(X, Y, validation_data=[X, Y], batch_size=5, validation_split=0, verbose=0)
    model.fit(X, Y, epochs=0, validation_split=0.25, verbose=0)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": []}, {"steps": -1}, {"steps": "2"}])
def test_evaluate_and_predict_check_their_numbers_too(models, options):
    model = models["within"]
    for call in (
        lambda: model.evaluate(X, Y, verbose=0, **options),
        lambda: model.predict(X, verbose=0, **options),
    ):
        with pytest.raises(ValueError, match=r"Expected `(batch_size|steps)` to be an integer >= 1"):
            call()


@pytest.mark.parametrize("validation_data", [5, "a", X, (X,), (X, Y, None, None)])
def test_a_path_checks_its_validation_data(validation_data):
    with pytest.raises(ValueError, match="`validation_data`"):
        kb.regularization_path(
            kb.BilinearSoftmaxRegression(K, 1), X, Y, [0.1], [1], validation_data=validation_data, verbose=0
        )


@pytest.mark.parametrize("fraction", [np.nan, "0.2", pytest.param(10**400, id="huge"), None, -1.0, 1.0])
def test_a_path_checks_its_validation_split(fraction):
    with pytest.raises(ValueError, match="`validation_split`"):
        kb.regularization_path(
            kb.BilinearSoftmaxRegression(K, 1), X, Y, [0.1], [1], validation_split=fraction, verbose=0
        )
