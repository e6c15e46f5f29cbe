"""What a report says of real fits, compared with their history and with what is computed independently."""

import copy
import gc
import math
import pickle
import re
import weakref

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.callbacks import AutomaticRank, BlockConvergence, ConvergenceWarning
from keras_bilinear.monitoring.report import WIDTH
from tests import reference
from tests.interruptions import Interrupt
from tests.problems import one_hot, planted, soft_labels

pytestmark = pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")


def data(T=60, K=3, **options):
    return planted(T=T, K=K, **options).data()


def separable(T=60):
    """Images of a class each, by the largest of three pixels, with a margin."""
    x = np.random.default_rng(0).normal(size=(T, 6, 5)).astype("float32")
    y = (np.arange(T) % 3).astype("int32")
    x[np.arange(T), y, y] += 20.0
    return x, y


def make(optimizer=None, alpha=0.02, rank=2, K=3, run_eagerly=True, **options):
    return ready(kb.BilinearSoftmaxRegression(K, rank, alpha=alpha, seed=0, **options), optimizer, run_eagerly)


def ready(model, optimizer=None, run_eagerly=True):
    # The solver is traced once for all models, and the step around it is not worth a trace.
    model.compile(optimizer, jit_compile=False, run_eagerly=run_eagerly)
    return model


def network(optimizer="adam", names=("top", "bottom"), penalty=None):
    image = keras.Input((6, 5))
    heads = [
        kb.BilinearDense(3, rank, left_initializer="glorot_uniform", name=name, factor_penalty=penalty)(image)
        for rank, name in zip((2, 1), names, strict=True)
    ]
    model = kb.AlternatingModel(image, keras.layers.Softmax()(keras.layers.Add()(heads)))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


class Steps(keras.callbacks.Callback):
    """What every step logs."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


def fit(model, x, y, epochs=3, **options):
    history = model.fit(x, y, epochs=epochs, verbose=0, **options).history
    return model.convergence_report(), history


def warned(report, words):
    return any(words in warning for warning in report.warnings)


# The numbers ----------------------------------------------------------------------------------------------------


def test_a_converged_fit_with_all_its_numbers():
    x, y = data()
    model, stop = make(use_bias=True, run_eagerly=False), BlockConvergence(rtol=1e-4)
    report, history = fit(model, x, y, 100, callbacks=[stop])
    assert report.converged is True
    assert report.reason == stop.reason
    assert report.is_exact
    np.testing.assert_allclose(report.objectives, history["objective"])
    np.testing.assert_array_equal(report.improvements, history["improvement"])
    assert report.epochs == report.sweeps == report.total_sweeps == len(history["objective"])
    np.testing.assert_array_equal(report.steps, 1 + np.arange(report.epochs))
    J = np.array(history["objective"])
    np.testing.assert_allclose(report.improvements[1:], -np.diff(J) / J[1:], atol=1e-6)
    assert report.improvements[0] > report.improvements[1]
    A, B = (factor.astype("float64") for factor in model.factors())
    z = reference.logits(x, A, B) + np.asarray(model.head.bias)
    V = reference.cross_entropy(z, one_hot(y, 3), np.ones(len(y)))
    assert report.cross_entropy == pytest.approx(V, rel=1e-5)
    assert report.penalty == pytest.approx(0.02 * reference.penalty("product", A, B), rel=1e-5)
    assert report.objective == pytest.approx(model.objective(x, y), rel=1e-6)
    (block,) = report.blocks
    assert block.name == "A, B"
    assert block.updates == sum(history["inner_iterations"]) == int(model.schedule.block_steps.value[0])
    assert block.grad_norm == history["grad_norm"][-1]
    sigma = np.linalg.svd(model.weight_matrices(), compute_uv=False)
    np.testing.assert_array_equal(report.effective_ranks["bilinear"], [np.sum(s > 0.01 * s[0]) for s in sigma])
    assert report.ranks == {"bilinear": 2}
    assert report.seconds > 0
    assert report.certificate is None
    assert report.warnings == ()
    text = str(report)
    for part in (
        "BilinearSoftmaxRegression: K = 3, L = 2, product penalty, alpha = 0.02; BlockLineSearch(",
        "Converged: the last sweep lowered J",
        f"{report.sweeps} sweeps in {report.epochs} epochs",
        f"J = {report.objective:#.6g} = V + alpha R = {report.cross_entropy:#.6g} + {report.penalty:#.6g}",
        f"{report.improvements[-2]:.1e}",
        f"{block.updates}  ",
        f"{block.grad_norm:.1e}",
        "at most 2: 2, 2, 2",
    ):
        assert part in text
    assert "in all" not in text


MODELS = {
    "factor": lambda: make(kb.BlockLineSearch(blocks="factor"), penalty="sum"),
    "LSR": lambda: ready(kb.LinearSoftmaxRegression(3, alpha=0.02)),
    "BLR": lambda: ready(kb.BilinearLogisticRegression(2, alpha=0.02, penalty="frobenius", seed=0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_exact_models(name):
    model, steps = MODELS[name](), Steps()
    x, y = data(K=1 if name == "BLR" else 3)
    fit(model, x, y, 1)
    before = model.objective(x, y)
    report, history = fit(model, x, y, 2, callbacks=[steps])
    after = report.objectives[0]
    assert report.improvements[0] == pytest.approx((before - after) / after, abs=1e-6)
    assert [block.name for block in report.blocks] == model.block_names
    for index, block in enumerate(report.blocks):
        turns = [logs for logs in steps.logs if int(logs["active_block"]) == index]
        assert len(turns) == 2
        assert block.updates == sum(logs["inner_iterations"] for logs in turns)
        assert block.grad_norm == turns[-1]["grad_norm"]
    assert (report.sweeps, report.total_sweeps, report.step_name) == (2, 3, "sweep")
    assert list(report.steps) == [2, 3]
    np.testing.assert_allclose(report.objectives, history["objective"])
    assert report.objective == pytest.approx(report.cross_entropy + report.penalty)
    assert report.penalty == pytest.approx(float(model.penalty()))
    assert "2 sweeps in 2 epochs" in str(report)
    assert "3 sweeps in all" in str(report)
    assert ("L = " in str(report)) == (name != "LSR")
    if name == "LSR":
        assert report.ranks == {"linear": 5}
        assert "ridge penalty, alpha = 0.02" in report.model


@pytest.mark.parametrize(("mode", "steps"), [({"run_eagerly": True}, 1), ({"steps_per_execution": 3}, 6)])
def test_mini_batches(mode, steps):
    x, y = data(T=48)
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.02, seed=0)
    model.compile(keras.optimizers.Adam(0.01), **mode)
    fit(model, x, y, 2, batch_size=48 // steps)
    report, history = fit(model, x, y, 7, batch_size=48 // steps)
    np.testing.assert_allclose(report.objectives, history["objective"])
    assert report.step_name == "epoch"
    assert not report.is_exact
    # The turns of the first fit were those of a1 and b1.
    assert [block.name for block in report.blocks] == ["a1", "b1", "a2", "b2"]
    assert [block.updates // steps for block in report.blocks] == [2, 1, 2, 2]
    norms = dict(zip(history["active_block"], history["grad_norm"], strict=True))
    assert [block.grad_norm for block in report.blocks] == pytest.approx([norms[index] for index in range(4)])
    # One ends with the second epoch, the other with the sixth.
    assert (report.epochs, report.sweeps, report.total_sweeps) == (7, 2, 2)
    assert math.isnan(report.improvements[0])
    J = np.array(history["objective"])
    np.testing.assert_allclose(report.improvements[1:], -np.diff(J) / J[1:], rtol=1e-6)
    assert report.converged is None
    assert report.cross_entropy == pytest.approx(J[-1] - float(model.penalty()))
    assert f"J = {J[-1]:#.6g} (mean over the last epoch) = V" in str(report)
    assert "Adam" in report.model


@pytest.mark.parametrize(("epochs", "sweeps"), [(3, 0), (4, 1), (8, 2), (9, 2)])
def test_sweeps_of_mini_batches_end_with_the_turn_of_the_last_block(epochs, sweeps):
    report, _ = fit(make("sgd"), *data(), epochs, batch_size=60)
    assert report.sweeps == sweeps


def test_a_network_with_two_bilinear_layers():
    x, y = data()
    report, _ = fit(network(penalty=kb.penalties.Sum(1e-3)), x, y, 3)
    assert [block.name for block in report.blocks] == [f"top/{n}" for n in ("a1", "b1", "a2", "b2")] + [
        "bottom/a1",
        "bottom/b1",
    ]
    assert report.ranks == {"top": 2, "bottom": 1}
    assert list(report.effective_ranks["bottom"]) == [1, 1, 1]
    assert report.model.startswith(
        "AlternatingModel: top with K = 3, L = 2, sum penalty, alpha = 0.001; bottom with"
    )
    assert "effective ranks of bottom, at most 1: 1, 1, 1" in str(report)
    assert warned(report, "Blocks b2".replace("b2", "top/b2, bottom/a1, bottom/b1") + " never had a turn")
    assert "no turn" in str(report)


def test_it_is_about_the_last_fit_and_what_comes_after_changes_little():
    x, y = data()
    model = make()
    first, _ = fit(model, x, y, 4)
    second, history = fit(model, x, y, 1)
    assert (first.sweeps, second.sweeps, second.total_sweeps) == (4, 1, 5)
    assert second.blocks[0].updates == history["inner_iterations"][0]
    text = str(second)
    model.alpha = 7.0
    model.compile("adam", run_eagerly=True)
    model.train_on_batch(x, y)
    assert str(model.convergence_report()) == text
    with pytest.raises(ValueError, match="Expected"):
        model.fit(x[:, :2], y, verbose=0)
    assert str(model.convergence_report()) == text, "a fit that never began leaves no trace"


def test_a_resumed_fit_counts_its_own_steps(tmp_path):
    x, y = data(T=48)
    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        make("sgd").fit(x, y, batch_size=24, epochs=6, verbose=0, callbacks=[backup(), Interrupt(4)])
    model = make("sgd")
    report, history = fit(model, x, y, 6, batch_size=24, callbacks=[backup()])
    assert report.epochs == len(history["loss"]) == 2
    assert list(report.steps) == [5, 6]
    assert [block.updates for block in report.blocks] == [2, 2, 0, 0]
    assert model.schedule.block_steps.numpy().tolist() == [4, 4, 2, 2]
    assert (report.sweeps, report.total_sweeps) == (0, 1)


def test_epochs_that_are_no_sweeps():
    x, y = data()
    report, _ = fit(make(kb.BlockLineSearch(blocks="factor")), x, y, 3, steps_per_epoch=1)
    assert report.step_name == "epoch"
    assert (report.epochs, report.sweeps) == (3, 0)
    assert [block.was_up for block in report.blocks] == [True, True, True, False]
    assert math.isnan(report.blocks[3].grad_norm)
    assert warned(report, "Block b2 never had a turn. Give `fit` more steps: a sweep takes 4.")


# How it ended ---------------------------------------------------------------------------------------------------


def test_the_epochs_ran_out_and_nobody_judged():
    model = make(alpha=0.1)
    report, _ = fit(model, *data(), 2)
    assert report.converged is None
    last = f"{100 * report.improvements[-1]:.2g} %"
    assert report.reason == (
        f"the epochs ran out; the last sweep lowered J by {last}; no callback judged convergence"
    )
    assert report.warnings == (
        f"J still fell by {last} in the last sweep: more epochs may lower it further. The callback "
        "BlockConvergence ends a fit once it has converged.",
    )
    report, _ = fit(model, *data(), 30)
    assert report.converged is None
    assert report.warnings == (), "it has converged, though nobody says so"


def test_the_epochs_ran_out_before_it_converged():
    with pytest.warns(ConvergenceWarning):
        report, _ = fit(make(), *data(), 2, callbacks=[BlockConvergence(rtol=1e-6)])
    assert report.converged is False
    assert report.reason.startswith("the epochs ran out; the last sweep lowered J by ")
    assert report.reason.endswith("rtol=1e-06")
    assert warned(report, "has not converged to rtol=1e-06. Give `fit` more epochs")
    assert "Not converged: the epochs ran out" in str(report)


def test_mini_batches_that_still_improve():
    model = make("adam")
    report, history = fit(model, *data(), 6, batch_size=60)
    J = history["objective"]
    assert warned(report, f"J still fell by {100 * (J[1] - J[5]) / J[5]:.2g} % in the last 4 epochs")
    report, _ = fit(model, *data(), 1)
    assert "how much the last epoch lowered J is not known" in report.reason


@pytest.mark.parametrize(
    ("callbacks", "reason"),
    [([], "a callback stopped the fit"), ([BlockConvergence(rtol=0.0)], "another callback stopped the fit")],
)
def test_another_callback_stopped_it(callbacks, reason):
    report, _ = fit(make(), *data(), 9, callbacks=[*callbacks, Stop()])
    assert report.reason == reason
    assert report.converged is (False if callbacks else None)
    assert warned(report, "when another callback stopped it") == bool(callbacks)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_interrupted_between_two_epochs(optimizer):
    x, y = data()
    model = make(optimizer)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, epochs=9, verbose=0, callbacks=[BlockConvergence(rtol=0.0), Interrupt(2)])
    report = model.convergence_report()
    assert report.reason == "KeyboardInterrupt interrupted the fit in epoch 3"
    assert report.converged is False
    assert report.epochs == 2
    assert report.cross_entropy == pytest.approx(report.objective - float(model.penalty()))
    assert warned(report, "broken off before it converged. Call `fit` again")
    if optimizer is None:
        assert report.objective == pytest.approx(model.objective(x, y), rel=1e-6)
    report, _ = fit(model, x, y, 1)
    assert "interrupted" not in report.reason


def test_broken_off_within_an_epoch_by_an_error():
    model = make(kb.BlockLineSearch(blocks="factor"))
    with pytest.raises(OSError, match="disk"):
        model.fit(*data(), epochs=9, verbose=0, callbacks=[Interrupt(1, 0, OSError("disk"))])
    report = model.convergence_report()
    assert report.reason == "OSError interrupted the fit in epoch 2"
    assert (report.converged, report.epochs, report.sweeps) == (None, 1, 1)
    assert report.blocks[0].updates > report.blocks[1].updates > 0, "it has had another turn"
    # Of the model as it is now, J is not known.
    assert math.isnan(report.cross_entropy)
    assert report.penalty == pytest.approx(float(model.penalty()))
    assert f"J = {report.objective:#.6g}; alpha R = {report.penalty:#.6g}" in str(report)


def test_broken_off_in_the_last_block_of_a_sweep_ends_none():
    x, y = data(T=48)
    model = make("sgd")
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, epochs=9, batch_size=16, verbose=0, callbacks=[Interrupt(3, 0)])
    assert model.convergence_report().sweeps == 0


def test_broken_off_in_the_first_step():
    model = make(kb.BlockLineSearch(blocks="factor"))
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data(), epochs=9, verbose=0, callbacks=[Interrupt(0, 0)])
    report = model.convergence_report()
    assert report.epochs == 0
    assert [block.was_up for block in report.blocks] == [True, False, False, False]
    assert "no whole epoch" in str(report)


def test_a_step_that_cannot_be_traced():
    class Broken(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise ValueError("Expected another step")

    model = make(Broken())
    with pytest.raises(ValueError, match="Expected another step"):
        model.fit(*data(), verbose=0)
    assert "ValueError interrupted the fit in epoch 1" in str(model.convergence_report())


def test_automatic_ranks_end_certified():
    model, grow = make(alpha=0.02, rank="auto", penalty="sum"), AutomaticRank()
    report, _ = fit(model, *data(), 100, callbacks=[BlockConvergence(), grow])
    assert report.converged is True
    assert report.reason == grow.reason
    assert report.certificate is grow.certificate
    np.testing.assert_array_equal(report.effective_ranks["bilinear"], grow.certificate.effective_ranks)
    assert f"is at most {grow.certificate.gap:.1e} (" in str(report)
    assert report.warnings == ()


def test_automatic_ranks_that_are_used_up(digits):
    x, y = digits[0][:300], digits[1][:300]
    model, grow = make(alpha=3e-3, rank=1, K=10, penalty="sum"), AutomaticRank()
    report, _ = fit(model, x, y, 8, callbacks=[grow])
    assert report.converged is False
    assert "Classes 0, 1, 2, 3, 4, 5 and 4 others used up the `rank` of 1: give a larger one." in report.warnings[0]
    assert report.certificate is grow.certificate


def test_a_certified_gap(digits):
    x, y = digits[0][:300], digits[1][:300]
    stop = BlockConvergence(gap=0.2)
    report, _ = fit(make(alpha=1e-2, rank=3, K=10), x, y, 30, callbacks=[stop])
    assert report.converged
    assert report.reason.startswith("certified")
    assert report.certificate is stop.certificate
    report, _ = fit(make(alpha=1e-2, rank=3, K=10), x, y, 1, callbacks=[stop])
    assert not report.converged
    assert report.certificate is stop.certificate, "not that of the earlier fit"
    assert report.certificate.objective == pytest.approx(report.objective, rel=1e-5)


def test_weights_that_were_replaced_as_the_fit_ended():
    x, y = data()
    rise = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < 3 else 50.0)
    restore = keras.callbacks.EarlyStopping("objective", mode="min", patience=9, restore_best_weights=True)
    model = make("sgd")
    report, history = fit(model, x, y, 6, batch_size=60, callbacks=[rise, restore])
    assert restore.best_epoch < 5
    assert warned(report, "A callback replaced the weights")
    assert report.penalty != pytest.approx(float(model.penalty()))
    assert report.total_sweeps == 1
    assert warned(report, f"J rose from {history['objective'][0]:.4g} in the first epoch")


# What to know ---------------------------------------------------------------------------------------------------

SEPARABLE = "Every training image is classified correctly and alpha = 0"


def test_separable_images_without_a_penalty():
    x, y = separable()
    for alpha in (0.0, 1e-3):
        for model in (ready(kb.LinearSoftmaxRegression(3, alpha)), make(alpha=alpha)):
            assert warned(fit(model, x, y, 3)[0], SEPARABLE) == (alpha == 0.0)
    assert not warned(fit(make(alpha=0.0), *data(T=300), 3)[0], SEPARABLE)


def test_soft_labels_have_a_minimum():
    problem = planted(T=60)
    report, history = fit(make(alpha=0.0), problem.X.astype("float32"), soft_labels(problem), 20)
    assert history["accuracy"][-1] == 1.0
    assert not warned(report, SEPARABLE)


def test_a_large_alpha_leaves_nothing():
    for linear, words in ((False, "W = 0 in layer 'bilinear'"), (True, "W = 0 in layer 'linear'")):
        model = ready(kb.LinearSoftmaxRegression(3, alpha=0.1)) if linear else make(alpha=100.0, penalty="sum")
        x, y = data()
        report, _ = fit(model, 0.0 * x if linear else x, y, 2)
        assert warned(report, words)
    assert list(report.effective_ranks["linear"]) == [0, 0, 0]


@pytest.mark.parametrize(("penalty", "optimizer"), [("sum", None), ("product", "adam")])
def test_pixels_in_another_unit_change_what_alpha_means(penalty, optimizer):
    x, y = data()
    x, model = np.abs(x) / np.abs(x).max(), make(optimizer, penalty=penalty)
    for unit, times in ((255.0, {"sum": "255", "product": "65,025"}), (0.01, {"sum": "100", "product": "10,000"})):
        report, _ = fit(model, unit * x, y, 1)
        words = f"alpha = 0.02 weighs {times[penalty]} times {'less' if unit > 1 else 'more'}"
        assert warned(report, words), report.warnings
    assert not warned(fit(model, x, y, 1)[0], "weighs")
    model.alpha = 0.0
    assert not warned(fit(model, 255.0 * x, y, 1)[0], "weighs")


@pytest.mark.filterwarnings("ignore:The images are whole numbers")
def test_pixels_of_a_linear_model_in_bytes():
    x, y = data()
    linear = ready(kb.LinearSoftmaxRegression(3, alpha=0.02))
    assert warned(fit(linear, (np.abs(x) / np.abs(x).max() * 255).astype("uint8"), y, 2)[0], "times less")


def test_a_loss_that_is_no_number():
    x, y = data(T=48)
    report, history = fit(make(keras.optimizers.SGD(1e18)), x, y, 6, batch_size=16)
    broken = ~np.isfinite(history["objective"])
    assert broken.any()
    assert warned(
        report, f"J was not a finite number in {broken.sum()} of 6 epochs, first in epoch {broken.argmax() + 1}."
    )
    # Refused steps are turns all the same.
    refused = [block for block in report.blocks if not block.updates]
    assert refused
    assert all(block.was_up for block in report.blocks)
    assert re.search(rf"{refused[0].name} +0 +nan", str(report))


# Text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["exact", "adam"])
def test_many_blocks_and_classes_stay_readable(optimizer):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 9, 8)).astype("float32"), np.arange(200) % 100
    exact = kb.BlockLineSearch(blocks="factor", max_inner=2)
    model = make(exact if optimizer == "exact" else optimizer, K=100, rank=8)
    report, _ = fit(model, x, y, 1 if optimizer == "exact" else 4, batch_size=200 if optimizer == "adam" else None)
    assert len(report.blocks) == 16
    assert len(report.effective_ranks["bilinear"]) == 100
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < 40
    ranks, counts = np.unique(report.effective_ranks["bilinear"], return_counts=True)
    expected = ", ".join(f"{rank} for {count}" for rank, count in zip(ranks, counts, strict=True))
    assert f"at most 8: {expected} of 100 classes" in str(report)
    start = next(index for index, line in enumerate(lines) if line.startswith("block"))
    shown = [line.split()[0] for line in lines[start + 1 : start + 9]]
    norms = {block.name: block.grad_norm for block in report.blocks if block.was_up}
    steepest = sorted(norms, key=norms.get, reverse=True)[:8]
    assert shown[: len(steepest)] == steepest
    assert lines[start + 9].startswith("8 others")


# What it leaves alone -------------------------------------------------------------------------------------------


def test_without_a_fit_there_is_none(tmp_path):
    x, y = data()
    model = make()
    with pytest.raises(ValueError, match="Expected a model on which `fit` has been called"):
        model.convergence_report()
    model.train_on_batch(x, y)
    with pytest.raises(ValueError, match="Expected a model on which"):
        model.convergence_report()
    fit(model, x, y, 1)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.clone_model(model)):
        assert other._last_fit is None
        with pytest.raises(ValueError, match="Expected a model on which"):
            other.convergence_report()
    model.export(tmp_path / "exported", verbose=False)
    assert model.convergence_report().sweeps == 1


def test_networks_are_saved_and_cloned_as_before(tmp_path):
    x, y = data()
    model = network()
    fit(model, x, y, 2)
    model.save(tmp_path / "model.keras")
    for other in (keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert other._last_fit is None
        fit(other, x, y, 1) if other.compiled else None


def test_it_keeps_neither_data_nor_callbacks():
    models, kept = [make(), make("sgd")], []
    for model in models:
        (x, y), judge, steps = data(), BlockConvergence(), Steps()
        steps.images = x
        fit(model, x, y, 2, callbacks=[judge, steps])
        kept += [weakref.ref(part) for part in (x, judge, steps)]
    keras.backend.clear_session()
    del x, judge, steps
    gc.collect()
    assert [part() is None for part in kept] == [True] * 6
    assert [model.convergence_report().epochs for model in models] == [2, 2]


# Found in use ---------------------------------------------------------------------------------------------------


def test_J_and_its_parts_belong_together_after_ranks_have_grown(digits):
    x, y = digits[0][:200], digits[1][:200]
    model, seen = make(K=10, rank="auto", alpha=0.03, penalty="sum"), []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(model.penalty()))
    )
    report, history = fit(model, x, y, epochs=3, callbacks=[note])
    assert report.penalty == pytest.approx(seen[-1], rel=1e-6)
    assert report.cross_entropy == pytest.approx(history["objective"][-1] - seen[-1], rel=1e-6)


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_end"])
def test_while_the_fit_runs_there_is_none_yet(hook):
    model = make()
    ask = keras.callbacks.LambdaCallback(**{hook: lambda *_: model.convergence_report()})
    with pytest.raises(ValueError, match="whose fit still runs"):
        fit(model, *data(), epochs=1, callbacks=[ask])


def test_a_fit_within_a_fit_leaves_the_report_of_the_outer_one():
    model, inner = make(), []

    def fit_once_more(epoch, logs):
        if epoch == 1 and not inner:
            inner.append(model.fit(*data(), epochs=1, verbose=0))

    report, history = fit(
        model, *data(), epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=fit_once_more)]
    )
    assert inner
    assert report.epochs == 3
    np.testing.assert_allclose(report.objectives, history["objective"])


def test_at_a_prompt_it_is_its_text():
    report, _ = fit(make(), *data(), epochs=1)
    assert repr(report) == str(report)
    assert report != copy.copy(report)


def test_factors_in_another_form_are_no_other_weights():
    model = make()
    canonicalize = keras.callbacks.LambdaCallback(on_train_end=lambda logs: model.canonicalize())
    report, _ = fit(model, *data(), callbacks=[canonicalize])
    assert not warned(report, "replaced the weights")
