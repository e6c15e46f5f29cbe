import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.monitoring.curves import of_step
from keras_bilinear.monitoring.progress import PREPARING
from keras_bilinear.parts.log_names import metrics_of
from keras_bilinear.solver import compiled
from tests.interruptions import Interrupt
from tests.problems import planted

NUMBER = r"\d\S*"


def data(T=48):
    return planted(T=T).data()


def regression(optimizer=None, run_eagerly=True, **options):
    # The solver is traced once for all models, and the step around it is not worth a trace.
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.01, input_shape=(6, 5), seed=0)
    model.compile(
        optimizer or kb.BlockLineSearch(blocks="factor"), jit_compile=False, run_eagerly=run_eagerly, **options
    )
    return model


def network(layers=1):
    image = keras.Input((6, 5, 1))
    heads = [kb.BilinearDense(3, 2, left_initializer="ones", name=f"head_{i}")(image) for i in range(layers)]
    scores = heads[0] if layers == 1 else keras.layers.Add()(heads)
    model = kb.AlternatingModel(image, keras.layers.Softmax()(scores))
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(0.0125), loss, metrics=["accuracy"], run_eagerly=True)
    return model


def drawings(capsys):
    """The lines that were printed, each as it was drawn over and over, without colours.

    That a graph is prepared is left out: it depends on what has run before in the process.
    """
    printed = re.sub(r"\x1b\[\d+m|\x08", "", capsys.readouterr().out).replace(PREPARING, "")
    return [[drawn.strip() for drawn in line.split("\r")] for line in printed.split("\n") if line.strip()]


def screen(capsys):
    """The lines that a terminal shows in the end."""
    return [drawn[-1] for drawn in drawings(capsys)]


def shown(line):
    """What a line says after the time, as a dict in the order it is said in."""
    return dict(part.split(": ") for part in line.split(" - ") if ": " in part)


def test_a_bar_an_epoch_says_in_words_where_the_alternation_stands(capsys):
    history = regression().fit(*data(), epochs=2, verbose=1).history
    drawn = drawings(capsys)
    lines = [line[-1] for line in drawn]
    assert lines[::2] == ["Epoch 1/2", "Epoch 2/2"]
    for epoch, line in enumerate(lines[1::2]):
        assert re.fullmatch(
            rf"4/4 ━{{20}} \d+s {NUMBER}s/step - J: {NUMBER} - accuracy: {NUMBER} - sweep: {epoch + 1} - block: b2 "
            rf"- step size: {NUMBER}",
            line,
        )
        assert len(line) <= 120
        said = shown(line)
        assert said["J"] == f"{history['objective'][epoch]:.4f}"
        assert said["accuracy"] == f"{history['accuracy'][epoch]:.4f}"
        assert float(said["step size"]) == pytest.approx(history["step_size"][epoch], rel=1e-2)
        # It moves with the blocks: the first step of an epoch is always drawn.
        begins = drawn[2 * epoch + 1][1]
        assert begins.startswith("1/4 ━")
        assert (shown(begins)["sweep"], shown(begins)["block"]) == (str(epoch), "a1")


def test_one_line_a_sweep(capsys):
    history = regression().fit(*data(), epochs=3, verbose=2).history
    lines = screen(capsys)
    assert len(lines) == 3
    for epoch, line in enumerate(lines):
        assert re.fullmatch(
            rf"{epoch + 1}/3 - \d+s - {NUMBER}s/sweep - J: {history['objective'][epoch]:.4f} - accuracy: {NUMBER} "
            rf"- sweep: {epoch + 1} - block: b2 - step size: {NUMBER}",
            line,
        )


def test_one_line_an_epoch_on_mini_batches(capsys):
    # As many batches as blocks, and still no sweep.
    network().fit(*data(), epochs=6, batch_size=12, verbose=2)
    lines = screen(capsys)
    assert [line.split(" - ")[0] for line in lines] == [f"{epoch}/6" for epoch in range(1, 7)]
    assert all("/epoch - J: " in line for line in lines)
    said = list(map(shown, lines))
    assert [each["block"] for each in said] == ["a1", "b1", "a2", "b2", "a1", "b1"]
    # A sweep ends as the next epoch begins.
    assert [each["sweep"] for each in said] == ["0", "0", "0", "0", "1", "1"]
    assert all(each["step size"] == "0.0125" for each in said)
    assert list(said[0]) == ["J", "accuracy", "sweep", "block", "step size"]


def test_a_sweep_cut_into_epochs_is_not_called_an_epoch(capsys):
    regression().fit(*data(), epochs=3, steps_per_epoch=2, verbose=2)
    lines = screen(capsys)
    assert all("s/epoch - " in line for line in lines)
    assert [shown(line)["sweep"] for line in lines] == ["0", "1", "1"]
    assert [shown(line)["block"] for line in lines] == ["b1", "b2", "b1"]


def test_blocks_of_several_layers_have_the_names_of_their_layers(capsys):
    network(layers=2).fit(*data(), epochs=5, batch_size=48, verbose=2)
    assert shown(screen(capsys)[-1])["block"] == "head_1/a1"


@pytest.mark.parametrize("make", [lambda: kb.BilinearLogisticRegression(2), lambda: kb.LinearSoftmaxRegression(3)])
def test_a_single_block_is_not_named(make, capsys):
    (x, y), model = data(), make()
    model.compile(run_eagerly=True)
    model.fit(x, np.minimum(y, 1), verbose=2)
    (line,) = screen(capsys)
    assert "s/sweep - " in line
    assert list(shown(line)) == ["J", "accuracy", "sweep", "step size"]


@pytest.mark.parametrize("verbose", [1, 2])
def test_metrics_and_validation_come_last_and_validation_draws_nothing(verbose, capsys):
    x, y = data()
    model = regression(metrics=["accuracy", keras.metrics.F1Score(name="f1")])
    y = np.eye(3)[y]
    history = model.fit(x, y, validation_data=(x, y), epochs=2, verbose=verbose).history
    lines = [line for line in screen(capsys) if "Epoch" not in line]
    assert len(lines) == 2
    said = shown(lines[-1])
    assert list(said)[:5] == ["J", "accuracy", "sweep", "block", "step size"]
    assert set(list(said)[5:]) == {"f1", "val_accuracy", "val_f1", "val_loss"}
    # Several numbers by their mean, as in Keras' bar.
    assert said["f1"] == f"{np.mean(history['f1'][-1]):.4f}"
    assert said["val_loss"] == f"{history['val_loss'][-1]:.4f}"


class Curious(keras.callbacks.Callback):
    """Looks at the data, and fits another model, while `fit` runs."""

    def on_epoch_end(self, epoch, logs=None):
        x, y = data()
        self.model.evaluate(x, y, verbose=0)
        self.model.predict(x, verbose=0)
        regression().fit(x, y, verbose=0)


@pytest.mark.parametrize("verbose", [1, 2])
def test_other_callbacks_may_evaluate_predict_and_fit(verbose, capsys):
    regression().fit(*data(), epochs=2, verbose=verbose, callbacks=[Curious()])
    lines = screen(capsys)
    assert len(lines) == {1: 4, 2: 2}[verbose]
    assert [shown(line)["sweep"] for line in lines if "J" in line] == ["1", "2"]


def test_what_the_first_fit_of_its_kind_waits_for_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(compiled, "_made", set())
    for seen in (1, 0):
        model = regression(kb.BlockLineSearch(max_inner=2), run_eagerly=False)
        model.fit(*data(), epochs=2, verbose=1)
        assert capsys.readouterr().out.count(PREPARING) == seen
    monkeypatch.setattr(compiled, "_made", set())
    regression().fit(*data(), epochs=1, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("jit", [False, True])
def test_a_graph_is_announced_before_it_is_made(jit):
    happened = []
    step = compiled.Compiled(lambda x: happened.append("made") or 2 * x, jit)
    with compiled.told(lambda: happened.append("announced")):
        for rows in (2, 2, 3):
            step(keras.ops.ones((rows, 3)))
    # XLA compiles for each shape.
    assert happened == ["announced", "made"] * (2 if jit else 1)


@pytest.mark.parametrize("nested", [False, True])
def test_a_bar_of_ones_own_takes_its_place(nested, capsys):
    own = keras.callbacks.ProgbarLogger()
    regression().fit(*data(), verbose=1, callbacks=[[own]] if nested else own)
    (line,) = screen(capsys)
    assert "objective: " in line
    assert "sweep: " not in line


def test_auto_is_a_bar_and_one_epoch_has_no_heading(capsys):
    regression().fit(*data())
    (line,) = screen(capsys)
    assert re.match(r"4/4 ━{20} .*/step - J: ", line)


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_the_history_and_other_callbacks_get_every_log_as_it_is(optimizer, tmp_path, capsys):
    logs, steps = {}, {}
    for verbose in (0, 1, 2):
        file = tmp_path / f"{verbose}.csv"
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs, steps=steps, verbose=verbose: steps.update({verbose: logs})
        )
        callbacks = [record, keras.callbacks.CSVLogger(file)]
        history = regression(optimizer).fit(*data(), epochs=2, shuffle=False, verbose=verbose, callbacks=callbacks)
        logs[verbose] = (history.history, file.read_text())
        assert bool(capsys.readouterr().out) == bool(verbose)
    assert {"loss", "objective", "step_size", "active_block", "grad_norm", "improvement", "accuracy"} <= set(
        logs[0][0]
    )
    assert repr(logs[0]) == repr(logs[1]) == repr(logs[2])  # NaN is the improvement of a first epoch
    assert steps[0] == steps[1] == steps[2]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so at the end of each
@pytest.mark.parametrize("verbose", [1, 2])
def test_a_pipeline_of_unknown_length(verbose, capsys):
    x, y = data()
    unknown = tf.data.Dataset.from_tensor_slices((x[..., None], y)).batch(16).filter(lambda x, y: True)
    network().fit(unknown, shuffle=False, epochs=2, verbose=verbose)
    lines = [line for line in screen(capsys) if "Epoch" not in line]
    assert [line.split()[0] for line in lines] == {1: ["3/3", "3/3"], 2: ["1/2", "2/2"]}[verbose]
    assert list(shown(lines[0])) == ["J", "accuracy", "sweep", "block", "step size"]


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_several_steps_at_once(optimizer, capsys):
    model = regression(optimizer, run_eagerly=False, steps_per_execution=2)
    model.fit(*data(), batch_size=None if optimizer is None else 12, epochs=2, verbose=1)
    bars = screen(capsys)[1::2]
    assert all(bar.startswith("4/4 ━") for bar in bars)
    assert [shown(bar)["sweep"] for bar in bars] == (["1", "2"] if optimizer is None else ["0", "0"])


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_later_epoch_to_begin_with(verbose, capsys):
    model = regression()
    model.fit(*data(), epochs=1, verbose=0)
    model.fit(*data(), initial_epoch=8, epochs=10, verbose=verbose)
    lines = screen(capsys)
    said = [shown(line)["sweep"] for line in lines if "J" in line]
    assert said == ["2", "3"]
    assert re.match({1: r"Epoch 9/10$", 2: r" ?9/10 - "}[verbose], lines[0])


def test_an_interrupted_fit_goes_on_counting(tmp_path, capsys):
    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        regression().fit(*data(), epochs=3, verbose=2, callbacks=[backup(), Interrupt(2)])
    regression().fit(*data(), epochs=3, verbose=2, callbacks=[backup()])
    lines = screen(capsys)
    assert [line.split(" - ")[0] for line in lines] == ["1/3", "2/3", "3/3"]
    assert [shown(line)["sweep"] for line in lines] == ["1", "2", "3"]


def test_the_classifier_of_scikit_learn_shows_the_same(capsys):
    pytest.importorskip("sklearn")
    classifier = kb.BilinearClassifier(verbose=2, random_state=0).fit(*data())
    lines = screen(capsys)
    assert len(lines) == classifier.n_iter_
    assert shown(lines[-1])["sweep"] == str(classifier.n_iter_)


@pytest.mark.parametrize("verbose", [1, 2])
def test_without_interactive_logging_it_goes_where_the_lines_of_keras_go(verbose, capsys, caplog):
    keras.config.disable_interactive_logging()
    try:
        with caplog.at_level(logging.INFO, logger="absl"):
            regression().fit(*data(), verbose=verbose)
    finally:
        keras.config.enable_interactive_logging()
    assert capsys.readouterr().out == ""
    assert "sweep: 1 - block: b2" in caplog.messages[-1]


def test_numbers_too_small_for_four_decimals_are_shown(capsys):
    x, y = data()
    model = regression()
    model.fit(x, y, sample_weight=np.ones(48), epochs=1, verbose=2)
    model.compile(keras.optimizers.SGD(1.25e-7), run_eagerly=True)
    small = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: logs.update(tiny=-1.234e-5, nothing=0.0))
    model.fit(x, y, verbose=2, callbacks=[small])
    said = shown(screen(capsys)[-1])
    assert (said["step size"], said["tiny"], said["nothing"]) == ("1.25e-07", "-1.23e-05", "0.0000")


def test_J_is_no_metric_whatever_it_is_called():
    step = {"loss": 1.0, "objective": 1.0, "J": 1.0, "penalty": 0.1, "accuracy": 0.5}
    held_out = {"val_loss": 2.0, "val_objective": 2.0, "val_J": 2.0, "val_accuracy": 0.4}
    assert list(metrics_of(step | held_out)) == ["accuracy", "val_loss", "val_accuracy"]
    assert set(of_step(step)) == {"step/J", "step/V", "step/alpha_R", "step/accuracy"}
