import inspect

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.models.alternation import AlternatingTraining
from keras_bilinear.parts.layers_within import named_layers
from tests import four_models

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1, clipnorm=1.0),
}
MODES = {
    "graph": {},
    "jit": {"jit_compile": True},
    "eager": {"run_eagerly": True},
    "grouped": {"steps_per_execution": 3},
}


def data():
    return four_models.data(T=48)


def regression(optimizer="adam", **options):
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.01, use_bias=True, input_shape=(6, 5), seed=0)
    # Away from A = 0, where the gradient of every b vanishes.
    model.head.assign_factors(np.full((2, 6, 3), 0.1, "float32"), np.asarray(model.head.B))
    model.compile(OPTIMIZERS[optimizer](), **options)
    return model


def backbone(layers=1):
    image = keras.Input((8, 8, 1))
    maps = keras.layers.Conv2D(1, 3, activation="relu", name="conv")(image)
    heads = [
        kb.BilinearDense(3, 2, left_initializer="glorot_uniform", name=f"head_{i}")(maps) for i in range(layers)
    ]
    scores = heads[0] if layers == 1 else keras.layers.Add()(heads)
    return kb.AlternatingModel(image, keras.layers.Softmax()(scores))


def snapshot(model):
    return [factor.numpy().copy() for factor in model.factor_blocks]


def moved(before, model):
    return [bool(np.any(old != new.numpy())) for old, new in zip(before, model.factor_blocks, strict=True)]


@pytest.mark.parametrize(
    ("optimizer", "mode"),
    [
        *((name, "eager") for name in OPTIMIZERS if name != "adam"),
        *(("adam", mode) for mode in MODES if mode != "eager"),
    ],
)
def test_only_the_active_block_moves_and_the_others_stay_bit_identical(optimizer, mode):
    x, y = data()
    model = regression(optimizer, **MODES[mode])
    # Every block gets a turn first, so that momentum and moments are not zero.
    model.fit(x, y, epochs=4, batch_size=16, verbose=0)
    for _ in range(2):
        # `fit` passes the turn on as the epoch begins.
        active = (int(model.schedule.active.value) + 1) % 4
        before, bias = snapshot(model), model.head.bias.numpy().copy()
        model.fit(x, y, epochs=1, batch_size=16, verbose=0)
        assert moved(before, model) == [index == active for index in range(4)]
        assert np.any(bias != model.head.bias.numpy())


def test_all_blocks_take_turns_in_the_papers_order():
    x, y = data()
    history = regression(run_eagerly=True).fit(x, y, epochs=9, batch_size=48, verbose=0).history
    assert [int(block) for block in history["active_block"]] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_history_has_the_same_keys_in_both_regimes():
    x, y = data()
    keys = {"loss", "objective", "step_size", "active_block", "grad_norm", "accuracy", "val_loss", "val_accuracy"}
    for optimizer in (None, "adam"):
        model = kb.BilinearSoftmaxRegression(3, 2, seed=0)
        model.compile(optimizer, run_eagerly=True)
        assert keys <= set(model.fit(x, y, validation_data=(x, y), verbose=0).history)


def test_logs_of_a_mini_batch_step():
    x, y = data()
    model = regression()
    model.compile(keras.optimizers.SGD(0.1))
    J, before = model.objective(x, y), snapshot(model)
    history = model.fit(x, y, batch_size=48, verbose=0).history
    assert history["loss"][0] == pytest.approx(J, rel=1e-5)
    assert history["objective"][0] == pytest.approx(J, rel=1e-5)
    assert history["step_size"][0] == pytest.approx(0.1)
    step = np.linalg.norm(model.factor_blocks[0].numpy() - before[0])
    assert history["grad_norm"][0] == pytest.approx(step / 0.1, rel=1e-4)
    assert step > 0


def test_adams_bias_correction_counts_per_block():
    """The first Adam step has length lr in every entry with a gradient, whenever the block's turn comes."""
    x, y = data()
    model = regression("adam", run_eagerly=True)
    model.fit(x, y, epochs=20, batch_size=24, verbose=0, callbacks=[FirstBlockOnly()])
    before = snapshot(model)
    model.schedule.active.assign(1)
    model.train_on_batch(x, y)
    change = np.abs(model.factor_blocks[1].numpy() - before[1])
    np.testing.assert_allclose(change, 0.01, rtol=1e-3)
    assert int(model.optimizer.iterations.value) == 41
    assert model.schedule.block_steps.numpy().tolist() == [40, 1, 0, 0]


class FirstBlockOnly(keras.callbacks.Callback):
    """Never passes the turn on."""

    passes_turns = True


# A second layer is a longer list of blocks, whatever runs the step.
@pytest.mark.parametrize(("layers", "mode"), [(1, "jit"), (1, "grouped"), (2, "graph")])
def test_a_backbone_always_moves_while_the_factors_take_turns(layers, mode):
    x = np.random.default_rng(0).normal(size=(24, 8, 8, 1)).astype("float32")
    y = np.arange(24) % 3
    model = backbone(layers)
    model.compile("adam", "sparse_categorical_crossentropy", **MODES[mode])
    for active in range(4 * layers):
        before, kernel = snapshot(model), model.get_layer("conv").kernel.numpy().copy()
        model.fit(x, y, batch_size=8, verbose=0)
        assert moved(before, model) == [index == active for index in range(4 * layers)]
        assert np.any(kernel != model.get_layer("conv").kernel.numpy())


def test_a_backbone_learns_and_survives_saving(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 8, 8, 1)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0).astype("int32") + (x[:, 0, 0, 0] > 1)
    model = backbone()
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, epochs=30, batch_size=20, verbose=0).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, kb.AlternatingModel)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    for old, new in zip(model.schedule.weights, again.schedule.weights, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_bilinear_layers_of_nested_models_are_found():
    inner = keras.Sequential([keras.Input((6, 5)), kb.BilinearDense(3, 2, activation="softmax")])
    image = keras.Input((6, 5))
    model = kb.AlternatingModel(image, inner(image))
    assert list(named_layers(model).values()) == [inner.layers[-1]]
    assert len(model.factor_blocks) == 4


class Pair(keras.layers.Layer):
    """Bilinear layers in an attribute and in a list."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = kb.BilinearDense(3, 1)
        self.others = [kb.BilinearDense(3, 1)]

    def call(self, x):
        return self.first(x) + self.others[0](x)


def test_bilinear_layers_within_other_layers_take_turns():
    movie = keras.Input((2, 6, 5))
    frames = keras.layers.TimeDistributed(kb.BilinearDense(3, 2, left_initializer="ones"))
    pair = Pair()
    scores = keras.layers.GlobalAveragePooling1D()(frames(movie))
    scores = keras.layers.Add()([scores, pair(keras.layers.Reshape((12, 5))(movie))])
    model = kb.AlternatingModel(movie, keras.layers.Softmax()(scores))
    assert list(named_layers(model).values()) == [frames.layer, pair.first, *pair.others]
    assert model._other_variables == []
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = data()
    before = snapshot(model)
    model.fit(np.stack([x, x], axis=1), y, verbose=0)
    assert moved(before, model) == [True] + 7 * [False]


def test_mixed_precision_moves_only_the_active_block():
    x, y = data()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = regression("adam", run_eagerly=True)
        before = snapshot(model)
        history = model.fit(x, y, batch_size=16, verbose=0).history
    finally:
        keras.config.set_dtype_policy("float32")
    assert moved(before, model) == [True, False, False, False]
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert 0 < history["grad_norm"][0] < 100


def test_a_loss_scale_counts_one_step_a_step_and_changes_nothing_else():
    x, y = data()
    plain, scaled = (regression("adam", run_eagerly=True) for _ in range(2))
    scaler = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["adam"](), initial_scale=2.0, dynamic_growth_steps=5)
    scaled.compile(scaler, run_eagerly=True)
    for model in (plain, scaled):
        model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
        assert model.schedule.block_steps.numpy().tolist() == [3, 3, 0, 0]
    # Six steps: the scale has doubled after five.
    assert (int(scaler.step_counter.value), float(scaler.dynamic_scale.value)) == (1, 4.0)
    assert int(scaler.inner_optimizer.iterations.value) == int(plain.optimizer.iterations.value) == 6
    for old, new in zip(plain.trainable_variables, scaled.trainable_variables, strict=True):
        np.testing.assert_allclose(old.numpy(), new.numpy(), rtol=1e-5, atol=1e-7)


def test_gradients_that_overflow_lower_the_scale_and_are_no_step():
    x, y = data()
    model = regression("adam")
    scaler = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["adam"](), initial_scale=3e38)
    model.compile(scaler)
    before = [variable.numpy().copy() for variable in model.trainable_variables]
    model.train_on_batch(1e3 * x, y)
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    assert float(scaler.dynamic_scale.value) == pytest.approx(1.5e38)
    assert not np.any(model.schedule.block_steps.numpy())
    assert int(scaler.inner_optimizer.iterations.value) == 0


def test_a_loss_that_is_not_finite_leaves_the_last_finite_weights():
    x = np.random.default_rng(0).normal(size=(24, 8, 8, 1)).astype("float32")
    model = backbone()
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    model.train_on_batch(x, np.arange(24) % 3)
    before = [variable.numpy().copy() for variable in model.trainable_variables]
    # Not a NaN among the pixels: on some processors the rectifier of the network makes that a zero.
    weight = np.where(np.arange(24) == 0, np.nan, 1.0)
    assert np.isnan(model.train_on_batch(x, np.arange(24) % 3, weight, return_dict=True)["loss"])
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())


def test_gradient_accumulation_is_refused():
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        kb.BilinearSoftmaxRegression(3, 2).compile(keras.optimizers.Adam(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        backbone().compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "sparse_categorical_crossentropy")


def test_the_exact_regime_needs_a_bilinear_function_of_the_images():
    with pytest.raises(ValueError, match=r"nothing\s+in between"):
        backbone().compile(kb.BlockLineSearch(), "sparse_categorical_crossentropy")
    model = keras.Sequential([keras.Input((6, 5)), kb.BilinearDense(3, 2, activation="softmax")])
    model.compile(kb.BlockLineSearch(), "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="takes no gradient steps"):
        model.fit(*data(), verbose=0)


@pytest.mark.parametrize(
    ("activation", "loss"),
    [
        ("softmax", keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        (None, "categorical_crossentropy"),
        (None, keras.losses.SparseCategoricalCrossentropy()),
    ],
)
def test_losses_that_contradict_the_output(activation, loss):
    image = keras.Input((6, 5))
    model = kb.AlternatingModel(image, kb.BilinearDense(3, 2, activation=activation)(image))
    with pytest.raises(ValueError, match="Expected a loss with from_logits"):
        model.compile("adam", loss)


def two_outputs():
    image = keras.Input((6, 5))
    heads = [kb.BilinearDense(3, 2, activation, name=name) for name, activation in (("p", "softmax"), ("z", None))]
    return kb.AlternatingModel(image, [head(image) for head in heads])


def test_losses_of_several_outputs_are_compared_with_their_own():
    probability = "sparse_categorical_crossentropy"
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for good in ([probability, logits], {"z": logits, "p": probability}, {"z": logits}):
        two_outputs().compile("sgd", good)
    for bad in ([logits, probability], {"z": probability, "p": probability}, {"p": logits}, probability, logits):
        with pytest.raises(ValueError, match="Expected a loss with from_logits"):
            two_outputs().compile("sgd", bad)


def test_a_loss_of_ones_own_is_taken_as_it_is():
    def my_crossentropy(y, z):
        return keras.losses.sparse_categorical_crossentropy(y, z, from_logits=True)

    image = keras.Input((6, 5))
    kb.AlternatingModel(image, kb.BilinearDense(3, 2)(image)).compile("sgd", my_crossentropy)


def test_a_graph_without_bilinear_layers():
    image = keras.Input((6,))
    with pytest.raises(ValueError, match="at least one BilinearDense"):
        kb.AlternatingModel(image, keras.layers.Dense(3)(image))


def test_a_learning_rate_schedule_and_a_callback_that_sets_the_rate():
    x, y = data()
    model = regression()
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model.compile(keras.optimizers.SGD(rate), run_eagerly=True)
    assert model.fit(x, y, verbose=0).history["step_size"][0] < 0.1
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=[halve]).history
    np.testing.assert_allclose(history["step_size"], [0.05, 0.025])


def test_the_mixin_is_what_the_models_share():
    assert issubclass(kb.AlternatingModel, AlternatingTraining)
    assert issubclass(kb.BilinearSoftmaxRegression, AlternatingTraining)


@pytest.mark.parametrize("kind", [list, dict])
def test_with_several_outputs_J_is_the_mean_over_images(kind):
    x, y = four_models.data(T=80)
    image = keras.Input((6, 5))
    outputs = {name: kb.BilinearDense(3, 2, name=name)(image) for name in "uv"}
    model = kb.AlternatingModel(image, outputs if kind is dict else list(outputs.values()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"u": loss, "v": loss} if kind is dict else [loss, loss]
    model.compile(keras.optimizers.SGD(0.0), losses, run_eagerly=True)
    labels = {"u": y, "v": y} if kind is dict else [y, y]
    history = model.fit(x, labels, batch_size=64, shuffle=False, verbose=0).history  # batches of 64 and 16
    expected = model.evaluate(x, labels, batch_size=80, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(history["objective"], expected, rtol=1e-5)


def test_fit_without_compile_says_so():
    image = keras.Input((6, 5))
    model = kb.AlternatingModel(image, kb.BilinearDense(3, 2)(image))
    with pytest.raises(ValueError, match="compile"):
        model.fit(np.zeros((4, 6, 5)), np.zeros(4), verbose=0)


def test_layers_of_one_name_in_models_within_the_model_are_told_apart():
    image = keras.Input((6, 5))
    parts = [keras.Sequential([keras.Input((6, 5)), kb.BilinearDense(3, rank, name="h")]) for rank in (1, 2)]
    model = kb.AlternatingModel(image, keras.layers.add([part(image) for part in parts]))
    assert model.block_names == ["h/a1", "h/b1", "h_2/a1", "h_2/b1", "h_2/a2", "h_2/b2"]
    assert list(model.filters()) == ["h", "h_2"]


def grouped(blocks, size):
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.01, input_shape=(6, 5), seed=0)
    solver = kb.BlockLineSearch(blocks=blocks, max_inner=1)
    model.compile(solver, steps_per_execution=size, run_eagerly=blocks != "joint")  # one of them in a graph
    return model


@pytest.mark.parametrize(("blocks", "size"), [("joint", 4), ("factor", 3), ("factor", 1000)])
def test_an_epoch_stays_a_sweep_however_many_steps_are_executed_together(blocks, size, tmp_path):
    x, y = data()
    model = grouped(blocks, size)
    if size == 4:
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
        assert model.steps_per_execution == 4
    model.evaluate(x, y, verbose=0)  # traced with groups of another size
    assert len(model.fit(x, y, epochs=3, verbose=0).history["J"]) == 3
    assert int(model.schedule.sweep.numpy()) == 3
    J = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    assert pytest.approx(model.objective(x, y), rel=1e-4) == J


def test_an_epoch_has_the_steps_it_was_given_however_many_are_executed_together():
    x, y = data()
    model = grouped("factor", 4)
    model.fit(x, y, epochs=2, steps_per_epoch=6, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 12
    model.steps_per_execution = 5
    model.fit(x, y, epochs=1, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 16


@pytest.mark.parametrize("size", [0, -1, 2.5, "auto", None, True])
@pytest.mark.parametrize("make", [backbone, lambda: kb.LinearSoftmaxRegression(3)])
def test_bad_sizes_of_groups_of_steps_are_refused(make, size):
    model = make()
    with pytest.raises(ValueError, match="Expected `steps_per_execution`"):
        model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=size)
    assert not model.compiled


def network():
    image = keras.Input((6, 5))
    layer = kb.BilinearDense(3, 2, factor_penalty=kb.penalties.Sum(0.1), left_initializer="ones")
    scores = keras.layers.add([layer(image), layer(keras.layers.Rescaling(0.5)(image))])
    model = kb.AlternatingModel(image, keras.layers.Softmax()(scores))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


def exact():
    return kb.LinearSoftmaxRegression(3, alpha=0.1)


NAMES_OF_J = ["objective", "J", "val_objective", "val_J", "val_loss"]


@pytest.mark.parametrize("make", [exact, network])
def test_callbacks_know_which_way_is_better(make, tmp_path):
    x, y = data()
    watch = [keras.callbacks.EarlyStopping(name, patience=9) for name in (*NAMES_OF_J, "accuracy", "val_accuracy")]
    watch.append(keras.callbacks.ReduceLROnPlateau("val_J"))
    told = keras.callbacks.EarlyStopping("J", mode="max", patience=9)
    best = [
        keras.callbacks.ModelCheckpoint(tmp_path / f"{name}.weights.h5", name, 0, True, True)
        for name in ("val_J", "val_accuracy")
    ]
    model = make()
    history = model.fit(x, y, epochs=2, validation_data=(x, y), verbose=0, callbacks=[*watch, told, [best]]).history
    assert [callback.monitor_op(1, 2) for callback in watch] == 5 * [True] + 2 * [False] + [True]
    assert not told.monitor_op(1, 2)
    assert len(list(tmp_path.iterdir())) == 2
    assert history["J"] == history["objective"]
    assert history["val_J"] == history["val_objective"] == history["val_loss"]
    loss, _ = model.evaluate(x, y, batch_size=48, verbose=0)  # as ever a list of the loss and the metrics
    assert history["val_J"][-1] == pytest.approx(loss, rel=1e-5)


def test_a_layer_that_is_used_twice_has_one_penalty_in_J():
    x, y = data()
    model = network()
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", run_eagerly=True)
    history = model.fit(x, y, batch_size=48, verbose=0).history
    V = np.mean(-np.log(np.asarray(model(x))[np.arange(48), y]))
    assert history["penalty"][0] == pytest.approx(float(model.penalty()), rel=1e-6)
    assert history["J"][0] == history["loss"][0] == pytest.approx(V + float(model.penalty()), rel=1e-5)
    assert model.evaluate(x, y, batch_size=48, verbose=0)[0] == pytest.approx(history["J"][0], rel=1e-6)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
@pytest.mark.parametrize("kind", [kb.AlternatingModel, kb.BilinearSoftmaxRegression, kb.LinearLogisticRegression])
def test_signatures_are_those_of_keras(kind, method):
    def arguments(owner):
        return [(p.name, p.default, p.kind) for p in inspect.signature(getattr(owner, method)).parameters.values()]

    assert arguments(kind) == arguments(keras.Model)


def test_one_optimizer_is_needed():
    several = getattr(keras.optimizers, "MultiOptimizer", None)
    wrong = [None]
    if several is not None:
        choice = keras.optimizers.OptimizerMap(keras.optimizers.Adam())
        wrong += [several(choice), keras.optimizers.LossScaleOptimizer(several(choice)), choice]
    model, linear = network(), exact()
    before = model.optimizer
    for optimizer in wrong:
        with pytest.raises(ValueError, match=r"Expected one Keras optimizer|Could not interpret"):
            model.compile(optimizer, "sparse_categorical_crossentropy")
        if optimizer is not None:
            with pytest.raises(ValueError, match=r"Expected one Keras optimizer|Could not interpret"):
                linear.compile(optimizer)
    assert model.optimizer is before
    assert not linear.compiled


# Saving ---------------------------------------------------------------------------------------------------------


MODELS = four_models.MODELS | {"network": lambda input_shape: kb.AlternatingModel(*graph())}


def graph():
    image = keras.Input((5, 4))
    return image, kb.BilinearDense(3, rank=1)(image)


@pytest.mark.parametrize("name", MODELS)
def test_the_legacy_format_that_could_not_be_loaded_is_refused(name, tmp_path):
    model = MODELS[name](input_shape=(5, 4))
    model.compile(
        "sgd", None if name != "network" else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    kept = tmp_path / "model.h5"
    kept.write_bytes(b"the user's")
    for path in (
        kept,
        str(kept),
        tmp_path / "model.hdf5",
        tmp_path / "model.weights.h5",
        tmp_path / "no" / "model.h5",
    ):
        with pytest.raises(ValueError, match=r"(?s)Expected.*\.keras.*Received: filepath=.*h"):
            model.save(path)
    with pytest.raises(ValueError, match=r"\.keras"):
        model.save(kept, overwrite=True, include_optimizer=False)
    best = keras.callbacks.ModelCheckpoint(kept)
    best.set_model(model)
    with pytest.raises(ValueError, match=r"\.keras"):
        best.on_epoch_end(0, {})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the user's"]


@pytest.mark.parametrize("name", MODELS)
def test_what_can_be_loaded_again_is_saved(name, tmp_path):
    model, other = (MODELS[name](input_shape=(5, 4)) for _ in range(2))
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    model.save(tmp_path / "folder.h5", zipped=False)
    for again in (other, *(keras.models.load_model(tmp_path / path) for path in ("model.keras", "folder.h5"))):
        for old, new in zip(model.variables, again.variables, strict=True):
            np.testing.assert_array_equal(old.numpy(), new.numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plain_networks_still_go_to_the_legacy_format(tmp_path):
    inner = kb.BilinearSoftmaxRegression(3, rank=2, input_shape=(5, 4))
    image = keras.Input((5, 4))
    for model in (keras.Model(*graph()), keras.Model(image, inner(image))):
        model.save(tmp_path / "model.h5")
        again = keras.models.load_model(tmp_path / "model.h5")
        for old, new in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(old.numpy(), new.numpy())
