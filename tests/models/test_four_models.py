import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.maths.penalties import PENALTIES
from keras_bilinear.models.full_batch import exact_options
from keras_bilinear.parts import optimizers
from keras_bilinear.parts.optimizers import BLOCKS
from keras_bilinear.solver.directions import DIRECTIONS
from tests import reference
from tests.four_models import MODELS, classes, data
from tests.problems import one_hot, planted, soft_labels


@pytest.mark.parametrize("name", MODELS)
def test_fit_simply_works(name):
    x, y = data(name)
    model = MODELS[name](alpha=0.01)
    history = model.fit(x, y, epochs=3, verbose=0).history
    assert {"loss", "objective", "step_size", "active_block", "grad_norm", "accuracy"} <= set(history)
    assert len(history["objective"]) == 3
    p = model.predict(x, verbose=0)
    assert p.shape == (60, classes(name))
    guess = p.argmax(axis=1) if classes(name) > 1 else p[:, 0] > 0.5
    assert history["accuracy"][-1] == pytest.approx(np.mean(guess == y))
    assert history["accuracy"][-1] > 0.7


@pytest.mark.parametrize(("name", "use_bias"), [("BSR", True), ("BLR", False), ("LSR", False), ("LLR", True)])
def test_objective_history_evaluate_and_the_loops_agree(name, use_bias):
    x, y = data(name)
    model = MODELS[name](alpha=0.02, use_bias=use_bias)
    model.compile(jit_compile=False)
    s = np.linspace(0.5, 1.5, 60)
    history = model.fit(x, y, sample_weight=s, epochs=2, verbose=0).history
    J = model.objective(x, y, sample_weight=s)
    assert history["objective"][-1] == pytest.approx(J, rel=1e-5)
    assert history["loss"][-1] == pytest.approx(J, rel=1e-5)
    assert model.evaluate(x, y, sample_weight=s, batch_size=60, verbose=0)[0] == pytest.approx(J, rel=1e-5)
    W, C = model.weight_matrices().astype(float), one_hot(y, classes(name))
    bias = model.head.bias.numpy() if use_bias else 0.0
    V = reference.cross_entropy(np.einsum("kmn,tmn->tk", W, x) + bias, C, s)
    if name in ("BSR", "BLR"):
        R = reference.penalty("product", *(factor.astype(float) for factor in model.factors()))
    else:
        R = 0.5 * np.sum(W**2)
    assert pytest.approx(V + 0.02 * R, rel=1e-5) == J


# Every setting once: how they meet is checked in test_blocks and test_joint.
@pytest.mark.parametrize(
    ("name", "penalty", "inner", "blocks"),
    [("BSR", *settings) for settings in zip(PENALTIES, DIRECTIONS, BLOCKS, strict=True)]
    + [("BLR", "product", "cg", "joint")],
)
def test_J_never_rises(name, penalty, inner, blocks):
    x, y = data(name)
    model = MODELS[name](alpha=0.01, penalty=penalty)
    model.compile(kb.BlockLineSearch(inner=inner, blocks=blocks), jit_compile=False)
    steps = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: steps.append(logs["objective"]))
    model.build((None, *x.shape[1:]))
    steps.append(model.objective(x, y))
    model.fit(x, y, epochs=4, verbose=0, callbacks=[record])
    assert len(steps) == 1 + 4 * {"factor": 4, "side": 2, "joint": 1}[blocks]
    assert np.all(np.diff(steps) <= 1e-6 * np.array(steps[:-1]))
    assert steps[-1] < steps[0]


@pytest.mark.parametrize("inner", ["cg", "newton_cg"])
def test_planted_factors_are_recovered(inner):
    problem = planted(T=600, L=2, scale=0.5)
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.0, seed=0)
    model.compile(kb.BlockLineSearch(inner=inner))
    C = soft_labels(problem)
    model.fit(problem.X, C, epochs=50, verbose=0)
    W = np.einsum("lmk,lnk->kmn", problem.A, problem.B)
    found = model.weight_matrices()
    # Soft-max is blind to what all classes share, which the likelihood leaves where it is.
    W, found = (value - value.mean(axis=0) for value in (W, found))
    assert np.linalg.norm(found - W) <= 1e-2 * np.linalg.norm(W)
    assert model.objective(problem.X, C) == pytest.approx(-np.mean(np.sum(C * np.log(C), axis=1)), rel=1e-4)


def test_full_rank_frobenius_BSR_reaches_the_linear_optimum():
    x, y = data("BSR")
    linear = MODELS["LSR"](alpha=0.05)
    linear.fit(x, y, epochs=5, verbose=0)
    model = kb.BilinearSoftmaxRegression(3, 5, alpha=0.05, penalty="frobenius", seed=1)
    model.fit(x, y, epochs=30, verbose=0)
    assert model.objective(x, y) == pytest.approx(linear.objective(x, y), rel=1e-3)


@pytest.mark.parametrize(("name", "bias"), [("LSR", False), ("LLR", False), ("LSR", True)])
def test_linear_baselines_agree_with_scikit_learn(name, bias, digits):
    from sklearn.linear_model import LogisticRegression

    x, y = digits[0][:400], digits[1][:400]
    y = (y == 8).astype("int32") if name == "LLR" else y
    alpha = 1e-3
    model = (
        kb.LinearLogisticRegression(alpha, bias) if name == "LLR" else kb.LinearSoftmaxRegression(10, alpha, bias)
    )
    model.fit(x, y, epochs=10, verbose=0)
    sklearn = LogisticRegression(C=1 / (alpha * 400), fit_intercept=bias, tol=1e-8, max_iter=5000)
    sklearn.fit(x.reshape(400, -1), y)
    ours = model.predict(x, verbose=0)
    theirs = sklearn.predict_proba(x.reshape(400, -1))
    np.testing.assert_allclose(ours[:, -1], theirs[:, -1], atol=5e-3)


def test_all_blocks_end_at_the_same_J():
    x, y = data("BSR")
    ends = {}
    for blocks, count in (("factor", 4), ("side", 2), ("joint", 1)):
        model = MODELS["BSR"](alpha=0.02)
        model.compile(kb.BlockLineSearch(blocks=blocks), jit_compile=False)
        history = model.fit(x, y, epochs=40, verbose=0).history
        ends[blocks] = history["objective"][-1]
        assert max(history["active_block"]) == count - 1
    assert ends["factor"] == pytest.approx(ends["side"], rel=1e-3)
    assert ends["joint"] <= ends["factor"] * (1 + 1e-3)


def test_the_default_never_ends_above_the_schedule_of_the_paper():
    problem = planted(T=60, scale=2.0)
    default = kb.BilinearSoftmaxRegression(3, 2, alpha=1e-2)
    default.fit(problem.X, problem.y, epochs=40, verbose=0)
    for seed in range(2):
        model = kb.BilinearSoftmaxRegression(3, 2, alpha=1e-2, seed=seed)
        model.compile(kb.BlockLineSearch(blocks="factor"), jit_compile=False)
        model.fit(problem.X, problem.y, epochs=25, verbose=0)
        ends = model.objective(problem.X, problem.y)
        assert default.objective(problem.X, problem.y) <= ends * (1 + 1e-4)


@pytest.mark.parametrize("name", ["BSR", "BLR"])
def test_labels_in_every_form_give_the_same_fit(name):
    x, y = data(name)
    forms = [y, y[:, None], y.astype("float32"), y.astype("uint8")]
    forms += [np.eye(3, dtype="float32")[y]] if name == "BSR" else [y.astype(bool)]
    ends = []
    for form in forms:
        model = MODELS[name](alpha=0.01)
        history = model.fit(x, form, epochs=1, verbose=0).history
        ends.append(history["objective"][-1])
    np.testing.assert_allclose(ends, ends[0], rtol=1e-6)
    for form in forms:
        seen = model.evaluate(x, form, batch_size=60, verbose=0)
        assert seen == pytest.approx([ends[-1], history["accuracy"][-1]], rel=1e-5)


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_class_weight_is_a_sample_weight(optimizer):
    x, y = data("BSR")
    classes, data_set = {"class_weight": {0: 2.0, 1.0: 0.5}}, tf.data.Dataset.from_tensors((x, y))
    ends = []
    for given, weights in (
        ((x, y), {"sample_weight": np.array([2.0, 0.5, 1.0])[y]}),
        ((x, y), classes),
        ((data_set,), classes),
    ):
        model = MODELS["BSR"](alpha=0.01)
        model.compile(optimizer, run_eagerly=True)
        fit = model.fit(*given, batch_size=60, epochs=2, verbose=0, shuffle=False, **weights)
        ends.append(fit.history["loss"][-1])
    np.testing.assert_allclose(ends, ends[0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_validation_metrics_and_callbacks(optimizer):
    x, y = data("BSR", T=90)
    model = MODELS["BSR"](alpha=0.01)
    top2 = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")
    model.compile(optimizer, metrics=["accuracy", top2], run_eagerly=True)
    for validation in ({"validation_data": (x[60:], y[60:])}, {"validation_split": 1 / 3}):
        history = model.fit(x, y, epochs=2, verbose=0, **validation).history
        assert {"val_loss", "val_accuracy", "val_top2", "top2"} <= set(history)
        assert history["val_loss"][-1] == pytest.approx(model.objective(x[60:], y[60:]), rel=1e-4)


@pytest.mark.parametrize(("name", "optimizer"), [("BLR", None), ("LLR", "sgd")])
def test_metrics_of_binary_models_see_labels_and_scores_of_one_shape(optimizer, name):
    x, y = data(name)
    model = MODELS[name](alpha=0.01)
    metrics = [
        keras.metrics.F1Score(threshold=0.5),
        keras.metrics.BinaryCrossentropy(),
        keras.metrics.AUC(name="auc"),
    ]
    model.compile(optimizer, metrics=metrics, weighted_metrics=["mse"], run_eagerly=optimizer == "sgd")
    model.fit(x, y, sample_weight=np.ones(60), verbose=0)
    p = model.predict(x, verbose=0)[:, 0]
    hits = np.sum((p > 0.5) & (y == 1))
    expected = {
        "f1_score": 2 * hits / (np.sum(p > 0.5) + np.sum(y)),
        "binary_crossentropy": -np.mean(np.log(np.where(y == 1, p, 1 - p))),
        "mse": np.mean((p - y) ** 2),
    }
    for labels in (y, y[:, None]):
        found = model.evaluate(x, labels, return_dict=True, verbose=0)
        assert {key: float(np.squeeze(found[key])) for key in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("given", ["y", "sample_weight"])
def test_labels_beside_a_full_batch_dataset_are_refused(given):
    x, y = data("BSR")
    with pytest.raises(ValueError, match="within the data set"):
        MODELS["BSR"]().fit(tf.data.Dataset.from_tensors((x, y)), **{given: y}, verbose=0)


def test_early_stopping_on_the_objective():
    x, y = data("BSR")
    stop = keras.callbacks.EarlyStopping(monitor="objective", mode="min", min_delta=0.01, patience=1)
    history = MODELS["BSR"](alpha=0.01).fit(x, y, epochs=100, verbose=0, callbacks=[stop]).history
    assert len(history["loss"]) < 100


def test_fit_continues_from_the_present_factors():
    x, y = data("BSR")
    once, twice = MODELS["BSR"](alpha=0.01), MODELS["BSR"](alpha=0.01)
    once.fit(x, y, epochs=4, verbose=0)
    twice.fit(x, y, epochs=2, verbose=0)
    twice.fit(x, y, epochs=2, verbose=0)
    for a, b in zip(once.factors(), twice.factors(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_config_and_file_round_trip(name, tmp_path):
    x, y = data(name)
    model = MODELS[name](alpha=0.03, use_bias=True, input_shape=(6, 5))
    model.fit(x, y, epochs=1, verbose=0)
    model.alpha = 0.04
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is type(model)
    assert again.alpha == pytest.approx(0.04)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    first = model.fit(x, y, initial_epoch=1, epochs=3, verbose=0).history["objective"]
    assert again.fit(x, y, initial_epoch=1, epochs=3, verbose=0).history["objective"] == first
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_saved_without_input_shape_and_before_compile(tmp_path):
    model = MODELS["BSR"]()
    model.build((None, 6, 5))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for a, b in zip(model.factors(), again.factors(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_reading_the_model():
    x, y = data("BSR")
    model = MODELS["BSR"](alpha=0.01)
    with pytest.raises(ValueError, match="Expected a model with weights"):
        model.factors()
    model.fit(x, y, epochs=2, verbose=0)
    A, B = model.factors()
    W = model.weight_matrices()
    assert (A.shape, B.shape, W.shape) == ((2, 6, 3), (2, 5, 3), (3, 6, 5))
    np.testing.assert_allclose(W, np.einsum("lmk,lnk->kmn", A, B), atol=1e-5)
    p = model.predict(x, verbose=0)
    model.canonicalize()
    np.testing.assert_allclose(model.predict(x, verbose=0), p, atol=1e-5)
    np.testing.assert_allclose(
        np.linalg.norm(model.factors()[0], axis=1), np.linalg.norm(model.factors()[1], axis=1), atol=1e-5
    )


def test_images_with_a_channel_axis_and_raw_bytes():
    x, y = data("LSR")
    raw = np.clip(x * 40 + 128, 0, 255).astype("uint8")
    model, channel = (MODELS["LSR"](alpha=0.01, input_scale=1 / 255) for _ in range(2))
    model.fit(raw, y, epochs=1, verbose=0)
    channel.fit(raw[..., None], y, epochs=1, verbose=0)
    np.testing.assert_array_equal(model.predict(raw, verbose=0), channel.predict(raw[..., None], verbose=0))


@pytest.mark.parametrize("policy", ["float64", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_dtype_policies(policy, optimizer):
    x, y = data("BSR")
    keras.config.set_dtype_policy(policy)
    try:
        model = MODELS["BSR"](alpha=0.01)
        model.compile(optimizer, run_eagerly=True)
        model.fit(x, y, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    p = model.predict(x, verbose=0)
    assert p.dtype in ("float32", "float64")
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    V = model.evaluate(x, y, batch_size=60, verbose=0)[0]
    assert pytest.approx(model.objective(x, y), rel=2e-2) == V


@pytest.mark.parametrize(("name", "blocks"), [("BSR", "factor"), ("BSR", "joint")])
def test_XLA_eager_steps_and_execution_in_groups_give_the_same_fit(name, blocks):
    x, y = data(name)
    ends = []
    grouped = [{"steps_per_execution": 4}] if blocks == "factor" else []  # a joint sweep is one step
    for options in ({"jit_compile": True}, {"run_eagerly": True}, {"jit_compile": False}, *grouped):
        model = MODELS[name](alpha=0.01)
        model.compile(kb.BlockLineSearch(blocks=blocks, max_inner=5), **options)
        ends.append(model.fit(x, y, epochs=2, verbose=0).history["objective"][-1])
    np.testing.assert_allclose(ends, ends[0], rtol=1e-4)


@pytest.mark.parametrize("regime", ["exact", "mini-batches"])
def test_changing_alpha_or_a_tolerance_or_the_block_traces_nothing_anew(regime, monkeypatch):
    x, y = data("BSR")
    model = MODELS["BSR"](alpha=0.5)
    model.compile(kb.BlockLineSearch(blocks="factor") if regime == "exact" else "adam", jit_compile=False)
    traces = []
    train_step = model.train_step
    monkeypatch.setattr(model, "train_step", lambda data: traces.append(1) or train_step(data))
    model.fit(x, y, epochs=2, verbose=0)
    J = model.objective(x, y)
    model.alpha = 0.001
    if regime == "exact":
        model.optimizer.tolerance = 1e-5
        model.optimizer.max_inner = 7
    model.fit(x, y, epochs=3, verbose=0)
    assert model.objective(x, y) < J
    assert len(traces) == 1


@pytest.mark.parametrize("jit", [False, True])
def test_models_of_one_shape_share_one_solver(jit, monkeypatch):
    x, y = data("BSR")
    traces, step = [], "curvature_of" if jit else "step_joint"
    untraced = getattr(optimizers, step)

    def traced(*args, **kwargs):
        traces.append(jit)
        return untraced(*args, **kwargs)

    monkeypatch.setattr(optimizers, step, traced)
    for seed, alpha in ((0, 0.1), (1, 0.01)):
        model = MODELS["BSR"](alpha=alpha, seed=seed)
        model.compile(jit_compile=jit)
        model.fit(x, y, epochs=2, verbose=0)
        model.alpha, model.optimizer.tolerance, model.optimizer.max_inner = 0.5 * alpha, 1e-5, 7
        model.fit(x, y, epochs=1, verbose=0)
    assert len(traces) == 1


def test_a_large_step_is_run_without_a_graph_of_its_own():
    """Keras' own step would be traced for every new model; what it was told about that stays as it is."""
    x, y = data("BSR")
    model, seen = MODELS["BSR"](), []
    model.compile()
    train_step = model.train_step
    model.train_step = lambda data: seen.append(tf.inside_function()) or train_step(data)
    model.fit(x, y, epochs=3, verbose=0)
    assert seen == [False] * 3
    assert not model.run_eagerly


@pytest.mark.skipif(len(tf.config.list_physical_devices()) > 1, reason="XLA pays on an accelerator")
def test_on_a_CPU_only_many_small_steps_are_compiled_unless_asked_for():
    model = MODELS["BSR"]()
    for blocks, jit, compiles in (
        ("joint", "auto", False),
        ("factor", "auto", True),
        ("side", "auto", True),
        ("joint", True, True),
        ("factor", False, False),
    ):
        model.compile(kb.BlockLineSearch(blocks=blocks), jit_compile=jit)
        assert model._jit_solver is compiles
        assert not model.jit_compile
    model.compile(kb.BlockLineSearch(blocks="factor"), run_eagerly=True)
    assert not model._jit_solver


def test_the_full_batch_is_handed_over_without_an_autotuner_to_wait_for():
    """It sleeps in growing intervals, and the end of a fit would wait for it to wake."""
    x, y = data("BSR")
    model = MODELS["BSR"]()
    model.compile()
    handed_over = exact_options({"x": x, "y": y}, model._checked(x, y), 1)["x"]
    assert handed_over.options().autotune.enabled is False


def test_training_on_batches_by_hand():
    x, y = data("BSR")
    model, same = MODELS["BSR"](alpha=0.01), MODELS["BSR"](alpha=0.01)
    for each in (model, same):
        each.compile(kb.BlockLineSearch(blocks="factor"), jit_compile=False)
    logs = [model.train_on_batch(x, y, return_dict=True) for _ in range(4)]
    assert [int(log["active_block"]) for log in logs] == [0, 1, 2, 3]
    same.fit(x, y, epochs=1, verbose=0)
    np.testing.assert_allclose(model.factors()[0], same.factors()[0], atol=1e-6)
    with pytest.raises(ValueError, match="another batch than before"):
        model.train_on_batch(x[:30], y[:30])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "`rank`"),
        ({"rank": 1.5}, "`rank`"),
        ({"units": 0}, "`units`"),
        ({"units": 1}, "`units` >= 2"),
        ({"penalty": "lasso"}, "`penalty`"),
        ({"alpha": -1}, "`alpha`"),
        ({"alpha": float("nan")}, "`alpha`"),
        ({"input_shape": (28,)}, "batch of matrices"),
        ({"input_shape": (28, 28, 3)}, "channels"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        kb.BilinearSoftmaxRegression(**{"units": 3, "rank": 2, **options})


@pytest.mark.parametrize("optimizer", [None, "adam"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[..., None].repeat(3, -1), y), "one channel"),
        (lambda x, y: (x[:, :4], y), "built for"),
        (lambda x, y: (np.where(x > 2, np.nan, x), y), "finite numbers in `x`"),
        (lambda x, y: (x, y[:10]), "one label for each image"),
        (lambda x, y: (x, y + 1), "0 to 2"),
        (lambda x, y: (x[:0], y[:0]), "at least one image"),
        (lambda x, y: (x, y, -np.ones(60)), "`sample_weight` >= 0"),
        (lambda x, y: (x, y, np.zeros(60)), "all zero"),
        (lambda x, y: (x, None), "Expected labels"),
    ],
)
def test_bad_data_changes_nothing(optimizer, change, message):
    x, y = data("BSR")
    model = MODELS["BSR"](alpha=0.01, input_shape=(6, 5))
    model.compile(optimizer)
    before = [v.numpy() for v in model.variables]
    x, y, *weight = change(x, y)
    for call in (model.fit, model.train_on_batch, model.evaluate, model.test_on_batch):
        with pytest.raises(ValueError, match=message):
            call(x, y, sample_weight=weight[0] if weight else None)
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())


def test_bad_validation_data_is_found_before_training():
    x, y = data("BSR")
    model = MODELS["BSR"]()
    with pytest.raises(ValueError, match="0 to 2"):
        model.fit(x, y, validation_data=(x, y + 1), verbose=0)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_validation_arrays_beside_a_dataset_are_checked_and_need_labels(optimizer):
    x, y = data("BSR")
    model = MODELS["BSR"]()
    model.compile(optimizer, jit_compile=False)
    training = tf.data.Dataset.from_tensors((x, y))
    for validation, message in (((x, y + 1), "0 to 2"), ((x,), "Expected labels"), (x, "Expected labels")):
        with pytest.raises(ValueError, match=message):
            model.fit(training, validation_data=validation, shuffle=False, verbose=0)


def test_only_a_fit_warns_of_a_single_class():
    x, y = data("BSR")
    one = x[y == 1], y[y == 1]
    model = MODELS["BSR"](alpha=0.01)
    model.compile("sgd", run_eagerly=True)
    # Warnings are errors here.
    model.fit(x, y, validation_data=one, verbose=0)
    model.train_on_batch(*one)
    model.evaluate(*one, verbose=0)
    model.objective(*one)
    assert model.test_on_batch(*one)[0] == pytest.approx(model.objective(*one), rel=1e-4)


def test_pixels_out_of_reach_proceed_with_a_warning():
    x, y = data("BSR")
    model = MODELS["BSR"]()
    model.compile("sgd", run_eagerly=True)
    with pytest.warns(UserWarning, match="Scale the images"):
        model.fit(1e10 * x, y, verbose=0)


def test_one_class_only_proceeds_with_a_warning():
    x, y = data("BSR")
    with pytest.warns(UserWarning, match="one class only"):
        MODELS["BSR"](alpha=0.1).fit(x, np.zeros_like(y), epochs=1, verbose=0)


def test_the_exact_regime_refuses_mini_batches():
    x, y = data("BSR")
    model = MODELS["BSR"]()
    with pytest.raises(ValueError, match="Expected full batches"):
        model.fit(x, y, batch_size=32, verbose=0)
    model.fit(x, y, batch_size=60, verbose=0)
    with pytest.raises(ValueError, match="changing or partial batch"):
        model.fit(iter([(x[:32], y[:32]), (x[32:], y[32:])]), verbose=0, shuffle=False)
    model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0, shuffle=False)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_losses_that_contradict_the_model(optimizer):
    model = MODELS["BSR"]()
    with pytest.raises(ValueError, match="from_logits=False"):
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="Expected one loss"):
        model.compile(optimizer, {"bilinear": "sparse_categorical_crossentropy"})
    if optimizer is None:
        for loss in ("mse", keras.losses.CategoricalCrossentropy(label_smoothing=0.1)):
            with pytest.raises(ValueError, match="minimises the cross-entropy"):
                model.compile(optimizer, loss)
    model.compile(optimizer, "sparse_categorical_crossentropy", run_eagerly=True)
    x, y = data("BSR")
    model.fit(x, y, verbose=0)
    assert model.evaluate(x, y, batch_size=60, verbose=0)[0] == pytest.approx(model.objective(x, y), rel=1e-4)


@pytest.mark.filterwarnings("ignore:The fit has separated")  # it ends where J is tiny
@pytest.mark.parametrize(("alpha", "shift"), [(0.0, 0.0), (0.0, 100.0), (1e-3, 100.0)])
def test_the_reported_J_is_the_true_one_even_where_it_is_tiny(alpha, shift, digits):
    """A difference of large logits once drowned J in rounding: it rose, or came out negative."""
    x, y = digits[0][:300] + np.float32(shift), digits[1][:300]
    model = kb.BilinearSoftmaxRegression(10, 3, alpha=alpha, seed=0)
    steps = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: steps.append(logs["objective"]))
    model.fit(x, y, epochs=10, verbose=0, callbacks=[record])
    A, B = (factor.astype("float64") for factor in model.factors())
    z = np.einsum("lmk,tmn,lnk->tk", A, x.astype("float64"), B)
    V = np.mean(np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1)) + z.max(axis=1) - z[np.arange(300), y])
    J = V + alpha * reference.penalty("product", A, B)
    rounding = 1e-6 * np.abs(z).max()
    assert steps[-1] == pytest.approx(J, rel=1e-4, abs=rounding)
    assert np.all(np.diff(steps) <= 1e-6 * np.array(steps[:-1]) + 0.1 * rounding)


def test_convergence_is_not_judged_by_the_J_of_another_problem():
    x, y = data("BSR")
    model = MODELS["BSR"](alpha=0.01)
    convergence = kb.callbacks.BlockConvergence(rtol=1e-3)
    model.fit(x, y, epochs=100, verbose=0, callbacks=[convergence])
    model.alpha = 0.1
    J = model.fit(x, y, epochs=100, verbose=0, callbacks=[convergence]).history["objective"]
    assert len(J) > 1
    assert convergence.converged


def test_validation_data_from_a_dataset_and_no_steps_given():
    x, y = data("BSR")
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    for optimizer in (None, "adam"):
        model = MODELS["BSR"](alpha=0.01)
        model.compile(optimizer, run_eagerly=True)
        history = model.fit(x, y, validation_data=held_out, steps_per_epoch=None, verbose=0).history
        assert history["val_loss"][0] == pytest.approx(model.objective(x, y), rel=2e-2)


# One of them in a graph.
@pytest.mark.parametrize(("name", "loss"), [("BSR", None), ("BSR", "keras"), ("BLR", "keras"), ("LLR", None)])
def test_labels_and_weights_of_a_dataset_that_make_no_sense_stop_the_update(name, loss):
    x, y = data(name)
    K = 3 if name == "BSR" else 1
    model = MODELS[name](alpha=0.01, input_shape=(6, 5))
    loss = loss and ("categorical_crossentropy" if K > 1 else "binary_crossentropy")
    model.compile("adam", loss=loss, run_eagerly=(name, loss) != ("BSR", None))
    before = [factor.numpy() for factor in model.factor_blocks]
    good, ones = np.eye(3)[y] if K > 1 else 1.0 * y, np.ones(60)
    wrong = [2 * good - 1, 0 * good - 1, 0.5 * good, 2 * good + 2]
    for labels, weights in [*((labels, ones) for labels in wrong), (good, -ones)]:
        batches = tf.data.Dataset.from_tensor_slices((x, labels, weights)).batch(30)
        assert np.isnan(model.fit(batches, verbose=0, shuffle=False).history["loss"][0])
        assert np.isnan(model.evaluate(batches, verbose=0)[0])
    for old, new in zip(before, model.factor_blocks, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    assert np.isfinite(model.evaluate(x, good, verbose=0)[0])


@pytest.mark.parametrize("use_bias", [False, True])
def test_soft_labels_that_sum_to_one_but_for_rounding_have_one_V(use_bias):
    x, y = data("BSR")
    rounded = np.eye(3)[y] * 0.9991
    model = MODELS["BSR"](alpha=1e-3, use_bias=use_bias)
    model.compile(run_eagerly=True)
    model.fit(x, rounded, epochs=5, verbose=0)
    J = model.objective(x, rounded)
    np.testing.assert_allclose(J, model.objective(x, y), rtol=1e-6)
    batches = tf.data.Dataset.from_tensor_slices((x, rounded)).batch(20)
    for found in (model.evaluate(x, rounded, verbose=0)[0], model.evaluate(batches, verbose=0)[0]):
        assert found == pytest.approx(J, rel=1e-5)
    proof = model.certificate(x, rounded)
    assert proof.objective == pytest.approx(J, rel=1e-6)
    assert proof.lower_bound <= J


@pytest.mark.parametrize("use_bias", [False, True])
def test_what_may_be_a_shift_of_all_scores_does_not_lower_J(use_bias):
    model = MODELS["BSR"](alpha=0.0, use_bias=use_bias, input_shape=(6, 5))
    x, rows = np.ones((9, 6, 5)), 0.9991 * np.tile(np.full((3, 3), 0.1) + 0.7 * np.eye(3), (3, 1))
    model.fit(x, rows, epochs=5, verbose=0)  # of images that are all alike nothing can be told
    assert model.objective(x, rows) == pytest.approx(np.log(3), rel=1e-5)


@pytest.mark.parametrize("name", ["BSR", "LLR"])  # a head of either kind
def test_images_of_another_shape_are_refused_and_a_channel_may_come_later(name):
    x, _ = data(name)
    model = MODELS[name](input_shape=(6, 5))
    p = model.predict(x, verbose=0)
    np.testing.assert_array_equal(model.predict(x[..., None], verbose=0), p)
    for wrong in (x.reshape(60, 5, 6), x[:, None], x.reshape(60, 30), x[..., None].repeat(3, -1)):
        with pytest.raises(ValueError, match="Expected"):
            model(wrong)
    with pytest.raises(ValueError, match="as built"):
        model.build((None, 7, 7))
    model.build((None, 6, 5))
    np.testing.assert_array_equal(model.predict(x, verbose=0), p)


@pytest.mark.parametrize("name", ["BSR", "LLR"])
def test_a_graph_that_has_seen_both_ranks_still_knows_rows_and_columns(name):
    x, y = data(name)
    model = MODELS[name](input_shape=(6, 5))
    z = model.predict(x, verbose=0), model.predict(x[..., None], verbose=0)
    np.testing.assert_array_equal(*z)
    wrong = [
        x.transpose(0, 2, 1),
        x.reshape(60, 30),
        x[0],
        x[:, None],
        x[..., None].repeat(3, -1),
        x[..., None, None],
        x.reshape(30, 12, 5),
    ]
    unknown = tf.TensorSpec(None, tf.float32)
    for images in wrong:
        for call in (model.predict, model.predict_on_batch, model):
            with pytest.raises(ValueError, match="Expected"):
                call(images)
        with pytest.raises(ValueError, match="Expected"):
            model.predict(tf.data.Dataset.from_tensors(images), verbose=0)
    model.compile(run_eagerly=False)
    graph = tf.function(model, input_signature=[unknown])
    for images in (x, x[..., None]):
        np.testing.assert_allclose(graph(tf.constant(images, tf.float32)), z[0], rtol=1e-5)
    for images in wrong:
        with pytest.raises(tf.errors.InvalidArgumentError):
            graph(tf.constant(images, tf.float32))
    blind = tf.data.Dataset.from_generator(
        lambda: iter([(x.transpose(0, 2, 1), y)]), output_signature=(unknown, unknown)
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.evaluate(blind, verbose=0)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_frozen_factors_are_refused(optimizer):
    x, y = data("BSR")
    model = MODELS["BSR"](input_shape=(6, 5))
    model.head.trainable = False
    model.compile(optimizer)
    with pytest.raises(ValueError, match="to be trainable"):
        model.fit(x, y, verbose=0)


def test_a_new_optimizer_counts_from_zero():
    x, y = data("BSR")
    model = MODELS["BSR"](input_shape=(6, 5))
    model.compile("adam", run_eagerly=True)
    model.train_on_batch(x, y)
    assert np.any(model.schedule.block_steps.numpy())
    model.compile("adam")
    assert not np.any(model.schedule.block_steps.numpy())


def test_averaged_weights_are_refused():
    with pytest.raises(ValueError, match="use_ema"):
        MODELS["BSR"]().compile(keras.optimizers.Adam(use_ema=True))


@pytest.mark.parametrize(("name", "dtype"), [("BSR", "float64"), ("LLR", "mixed_float16")])
def test_the_dtype_is_a_setting_that_is_saved(name, dtype, tmp_path):
    x, _ = data(name)
    model = MODELS[name](dtype=dtype, input_shape=(6, 5))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.dtype_policy.name == again.head.dtype_policy.name == dtype
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_an_unbuilt_model_can_be_saved(tmp_path):
    for compiled_first in (False, True):
        model = MODELS["BSR"](alpha=0.5)
        if compiled_first:
            model.compile()
        with pytest.warns(UserWarning, match="not yet been built"):
            model.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras").alpha == 0.5


def test_block_names_are_those_of_a_sweep():
    model = kb.BilinearSoftmaxRegression(3, 2, input_shape=(4, 5))
    names = {}
    for blocks in ("joint", "side", "factor"):
        model.compile(kb.BlockLineSearch(blocks=blocks))
        names[blocks] = model.block_names
    assert names == {"joint": ["A, B"], "side": ["A", "B"], "factor": ["a1", "b1", "a2", "b2"]}
    model.compile("adam")
    assert model.block_names == names["factor"]
    assert kb.LinearSoftmaxRegression(3).block_names == ["W"]
    image = keras.Input((4, 5))
    two = [kb.BilinearDense(3, rank, name=name)(image) for name, rank in (("left", 1), ("right", 2))]
    network = kb.AlternatingModel(image, keras.layers.add(two))
    assert network.block_names == ["left/a1", "left/b1", "right/a1", "right/b1", "right/a2", "right/b2"]


def test_a_network_knows_its_filters_and_its_penalty():
    image = keras.Input((4, 5))
    penalty = kb.penalties.Sum(0.5)
    two = [kb.BilinearDense(3, 2, left_initializer="ones", factor_penalty=penalty, name=n)(image) for n in "uv"]
    network = kb.AlternatingModel(image, keras.layers.add(two))
    layers = [network.get_layer(name) for name in "uv"]
    assert list(network.filters()) == ["u", "v"]
    for layer in layers:
        W = np.einsum("lmk,lnk->kmn", keras.ops.convert_to_numpy(layer.A), keras.ops.convert_to_numpy(layer.B))
        np.testing.assert_allclose(network.filters()[layer.name], W, rtol=1e-5)
    np.testing.assert_allclose(float(network.penalty()), sum(float(layer.penalty()) for layer in layers), rtol=1e-6)
    (W,) = kb.LinearSoftmaxRegression(3, input_shape=(4, 5)).filters().values()
    assert W.shape == (3, 4, 5)
