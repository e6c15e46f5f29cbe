import functools
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.callbacks import AutomaticRank, BlockConvergence, Checkpoint
from tests.event_files import curves
from tests.interruptions import Interrupt
from tests.problems import planted

ROOT = pathlib.Path(__file__).parents[2]


def data(T=48):
    return planted(T=T, M=5, N=4, K=3).data()


def untraced(optimizer="sgd", **options):
    """Quick to fit for a few steps."""
    options = {"alpha": 1e-2, "seed": 3, "input_shape": (5, 4)} | options
    model = kb.BilinearSoftmaxRegression(3, options.pop("rank", 2), **options)
    model.compile(optimizer, jit_compile=False, run_eagerly=True)
    return model


def network():
    image = keras.Input((5, 4, 1))
    maps = keras.layers.Dropout(0.5, seed=7)(image)
    maps = keras.layers.BatchNormalization()(keras.layers.Conv2D(1, 3, padding="same")(maps))
    scores = kb.BilinearDense(3, rank=2, activation="softmax", factor_penalty=kb.penalties.Sum(1e-3))(maps)
    model = kb.AlternatingModel(image, scores)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def linear(optimizer="sgd"):
    model = kb.LinearSoftmaxRegression(3, alpha=1e-2)  # built by the first data it sees
    model.compile(optimizer, run_eagerly=True)  # nothing to trace
    return model


def exact():
    return linear(kb.BlockLineSearch(max_inner=1))


# When all that ends an epoch is done but the saving.
Kill = functools.partial(Interrupt, when="end")


class Anneal(keras.callbacks.Callback):
    """Changes what no weight holds."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.alpha = 0.9 * self.model.alpha
        self.model.optimizer.learning_rate = 0.9 * self.model.optimizer.learning_rate


def variables(model):
    ridge = [model.ridge.alpha] if hasattr(model, "ridge") else []
    return [*model.variables, *model.schedule.variables, *model.optimizer.variables, *ridge]


def state(model):
    return [variable.numpy().copy() for variable in variables(model)]


def put_back(model, values):
    for variable, value in zip(variables(model), values, strict=False):
        variable.assign(value)


def assert_equal(one, other):
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)


JUDGE = lambda: [BlockConvergence(rtol=0.0, block_rtol=0.05)]
FITS = {
    "factor": (lambda: untraced(kb.BlockLineSearch(blocks="factor"), rank=1), JUDGE),
    "grown": (
        lambda: untraced(kb.BlockLineSearch(max_inner=2), rank=4, penalty="sum"),
        lambda: [AutomaticRank(gap=1e-9)],
    ),
    "half": (lambda: untraced(keras.optimizers.Adam(0.1), dtype="mixed_float16"), JUDGE),
    "network": (network, list),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")
def test_an_interrupted_fit_ends_bit_equal(name, tmp_path):
    make, others = FITS[name]
    (x, y), path = data(), tmp_path / "fit"
    options = {"x": x, "y": y, "epochs": 6, "verbose": 0}
    if name in ("half", "network"):
        options |= {"batch_size": 24, "x": x[..., None]}  # shuffled, as by default
    model = make()
    begin = state(model)
    history = model.fit(**options, callbacks=others()).history["loss"]
    end = state(model)
    put_back(model, begin)
    with pytest.raises(KeyboardInterrupt):
        model.fit(**options, callbacks=[Checkpoint(path), *others(), Kill(3)])
    put_back(model, end[: len(model.variables)])  # whatever its weights are by now
    rest = model.fit(**options, callbacks=[Checkpoint(str(path)), *others()])
    assert rest.epoch == [3, 4, 5]
    assert rest.history["loss"] == history[3:]
    assert_equal(state(model), end)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_its_data_set_builds_resumes_too(tmp_path):
    images = tf.data.Dataset.from_tensor_slices(data()).batch(48)
    options = {"x": images, "epochs": 4, "verbose": 0, "shuffle": False}
    straight, resumed, path = linear("adam"), linear("adam"), tmp_path / "fit"
    straight.fit(**options)
    with pytest.raises(KeyboardInterrupt):
        linear("adam").fit(**options, callbacks=[Checkpoint(path), Kill(2)])
    assert resumed.fit(**options, callbacks=[Checkpoint(path)]).epoch == [2, 3]
    assert_equal(state(straight), state(resumed))
    narrow = images.map(lambda x, y: (x[:, :, 1:], y))
    with pytest.raises(KeyboardInterrupt):
        linear("adam").fit(**options, callbacks=[Checkpoint(path), Kill(2)])
    refused(linear("adam"), path, narrow, None, "training data", epochs=4, shuffle=False)
    unknown = tf.data.Dataset.from_generator(
        lambda: iter(images), output_signature=(tf.TensorSpec((None, None, None)), tf.TensorSpec((None,), "int32"))
    )
    refused(linear("adam"), tmp_path / "new", unknown, None, "`input_shape`", shuffle=False)


# Killed ---------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from tests.monitoring.test_checkpoint import *
renamed = []
def watch(event, args):
    if event == "os.rename" and str(args[1]) == sys.argv[1]:
        renamed.append(args)
        if len(renamed) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
x, y = data()
exact().fit(x, y, epochs=6, verbose=0, callbacks=[Checkpoint(sys.argv[1])])
"""


def test_a_process_killed_while_it_saves_loses_one_epoch_and_leaves_nothing(tmp_path, capsys):
    path, alien = tmp_path / "fit", tmp_path / f".{'0' * 16}-{'0' * 32}.tmp"
    alien.touch()  # what another program, or another checkpoint, is about to write
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.run([sys.executable, "-c", CHILD, str(path)], env=environment, cwd=ROOT)
    assert child.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    x, y = data()
    straight, resumed = exact(), exact()
    straight.fit(x, y, epochs=6, verbose=0)
    capsys.readouterr()
    assert resumed.fit(x, y, epochs=6, verbose=2, callbacks=[Checkpoint(path)]).epoch == [2, 3, 4, 5]
    assert_equal(state(straight), state(resumed))
    assert list(tmp_path.iterdir()) == [alien]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}: the fit goes on after 2 epochs."
    assert lines[1].startswith("3/6 - ")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("broken off") / "fit"
    with pytest.raises(KeyboardInterrupt):
        untraced().fit(*data(), epochs=6, verbose=0, callbacks=[Checkpoint(path), Kill(2)])
    return path.read_bytes()


@pytest.fixture
def broken_off(saved, tmp_path):
    """The file of a fit of six epochs of which two are done."""
    path = tmp_path / "fit"
    path.write_bytes(saved)
    return path


def refused(model, path, x, y, match, **options):
    """Asserts that `fit` refuses, and leaves the model and the file as they are."""
    built, content = model.built, path.read_bytes() if os.path.isfile(path) else None
    before = state(model) if built else []
    with pytest.raises(ValueError, match=f"(?s)Expected.*{match}"):
        model.fit(x, y, **{"epochs": 6, "verbose": 0, "callbacks": [Checkpoint(path)]} | options)
    assert model.built == built
    assert_equal(before, state(model) if built else [])
    assert (path.read_bytes() if os.path.isfile(path) else None) == content


# Another fit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "options"),
    [
        (r"model.config.alpha: 0.01\. Received: model.config.alpha: 0.02", {"alpha": 2e-2}),
        ("model.config.rank: 2", {"rank": 1}),
        ("model.config.penalty: product", {"penalty": "sum"}),
        ("model.config.use_bias: False", {"use_bias": True}),
        ("model.config.seed: 3", {"seed": 4}),
        (r"model.config.input_shape.* 5\.", {"input_shape": (4, 5)}),
        ("float32.*float64", {"dtype": "float64"}),
    ],
)
def test_another_model_is_refused(match, options, broken_off):
    refused(untraced(**options), broken_off, *data(), match)


@pytest.mark.parametrize(
    ("match", "optimizer"),
    [
        ("optimizer.class_name: SGD.*BlockLineSearch", kb.BlockLineSearch()),
        ("optimizer.class_name: SGD.*Adam", "adam"),
        (r"optimizer.config.learning_rate: 0.01\. Received.*: 0.02", keras.optimizers.SGD(0.02)),
        ("optimizer.config.momentum: 0", keras.optimizers.SGD(0.01, momentum=0.9)),
    ],
)
def test_another_optimizer_is_refused(match, optimizer, broken_off):
    refused(untraced(optimizer), broken_off, *data(), match)


def test_another_loss_other_options_and_fewer_epochs_are_refused(broken_off):
    model, (x, y) = untraced(), data()
    refused(model, broken_off, x, y, "steps_per_epoch: None", steps_per_epoch=3)
    refused(model, broken_off, x, y, "batch_size: None", batch_size=16)
    refused(model, broken_off, x, y, "validation_split", validation_split=0.5)
    refused(model, broken_off, x, y, "`epochs` >= 2.*epochs=1", epochs=1)
    refused(model, broken_off, x, y, "`epochs` to be an integer.*'6'", epochs="6")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    refused(model, broken_off, x, y, "loss.class_name: CrossEntropy")


def test_other_data_are_refused(broken_off):
    model, (x, y) = untraced(), data()
    almost = x.copy()
    almost[7, 3, 2] = np.nextafter(x[7, 3, 2], np.inf)
    refused(model, broken_off, almost, y, "training data")
    refused(untraced(input_shape=None), broken_off, x[:, 1:], y, "model.config.input_shape")
    refused(model, broken_off, x, (y + 1) % 3, "training data")
    refused(model, broken_off, x[:-1], y[:-1], "training data")
    refused(model, broken_off, x, y, "training data", sample_weight=np.full(48, 2.0))
    refused(model, broken_off, x, y, "class_weight: None", class_weight={0: 2.0})
    assert model.fit(x, y, epochs=2, verbose=0, callbacks=[Checkpoint(broken_off)]).epoch == []


@pytest.mark.parametrize("kind", ["arrays", "lists", "data set"])
def test_other_data_are_refused_by_a_model_without_weights(kind, tmp_path):
    given = {
        "arrays": lambda x, y: (x, y),
        "lists": lambda x, y: (x.tolist(), y.tolist()),
        "data set": lambda x, y: (tf.data.Dataset.from_tensors((x, y)), None),
    }[kind]
    path, (x, y) = tmp_path / "fit", data()
    with pytest.raises(KeyboardInterrupt):
        exact().fit(*given(x, y), epochs=6, verbose=0, callbacks=[Checkpoint(path), Kill(2)])
    if kind == "arrays":
        refused(exact(), path, x[:, 1:], y, "training data")
    model = exact()
    with pytest.raises(ValueError, match="Expected the training data"):
        model.fit(*given(2 * x, y), epochs=6, verbose=0, callbacks=[Checkpoint(path)])
    assert int(model.optimizer.iterations.value) == 0
    assert model.fit(*given(x, y), epochs=6, verbose=0, callbacks=[Checkpoint(path)]).epoch == [2, 3, 4, 5]


class Own(keras.layers.Layer):
    """A layer that cannot be described."""

    def __init__(self, function, size):
        super().__init__()
        self.function, self.size = function, size

    def build(self, input_shape):
        self.shift = self.add_weight(shape=(self.size,), initializer="zeros")

    def call(self, x):
        return self.function(x) + keras.ops.sum(self.shift)


def test_a_network_of_other_layers_is_refused(tmp_path):
    def network(activation, layer):
        image = keras.Input((5, 4))
        maps = keras.layers.Activation(activation)(layer(image))
        model = kb.AlternatingModel(image, kb.BilinearDense(3, 1)(maps))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, run_eagerly=True)
        return model

    own = lambda size=2: Own(lambda maps: 2 * maps, size)
    for layer in (own, lambda: keras.layers.Lambda(lambda maps: 2 * maps)):
        path, (x, y) = tmp_path / "fit", data()
        with pytest.raises(KeyboardInterrupt):
            network("tanh", layer()).fit(x, y, epochs=6, verbose=0, callbacks=[Checkpoint(path), Kill(1)])
        refused(network("relu", layer()), path, x, y, "activation: tanh")
        refused(network("tanh", keras.layers.Dropout(0.5)), path, x, y, "model.config|class_name: Lambda")
        refused(network("tanh", layer()), path, x + 1, y, "training data")
        if layer is own:
            refused(network("tanh", own(3)), path, x, y, r"15 variables.*\[\[3\], 'float32'\] instead of \[\[2\]")
        assert network("tanh", layer()).fit(x, y, epochs=2, verbose=0, callbacks=[Checkpoint(path)]).epoch == [1]


def test_the_same_model_goes_on_from_what_callbacks_made_of_it(tmp_path):
    """The learning rate and alpha are no longer those that the fit began with, and are no others either."""
    path, options = tmp_path / "fit", {"epochs": 5, "verbose": 0, "batch_size": 48, "shuffle": False}
    straight, model = linear(), linear()
    straight.fit(*data(), **options, callbacks=[Anneal()])
    for epoch in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data(), **options, callbacks=[Anneal(), Checkpoint(path), Kill(epoch)])
    model.alpha *= 2
    refused(model, path, *data(), "alpha", **options)
    model.alpha /= 2
    assert model.fit(*data(), **options, callbacks=[Anneal(), Checkpoint(path)]).epoch == [3, 4]
    assert_equal(state(straight), state(model))


# The file -------------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused(broken_off):
    model, whole = untraced(), broken_off.read_bytes()
    for length in (0, 5, 28, 40, 60, len(whole) // 2, len(whole) - 1):
        broken_off.write_bytes(whole[:length])
        refused(model, broken_off, *data(), "a damaged file" if length >= 28 else "another file")
    for place in (28, 60, 68, 500, len(whole) - 1):
        broken_off.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(model, broken_off, *data(), "a damaged file")
    broken_off.write_bytes(whole + b"0")
    refused(model, broken_off, *data(), "a damaged file")
    model.save(broken_off.with_suffix(".keras"))
    refused(model, broken_off.with_suffix(".keras"), *data(), "another file")


@pytest.mark.parametrize(
    "path", [5, None, b"fit", "", "a\0b", "gs://bucket/fit", pathlib.PurePath("s3://bucket/fit")]
)
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ValueError, match=r"Expected `path`.*Received"):
        Checkpoint(path)
    with pytest.raises(ValueError, match="`delete_checkpoint` to be True or False"):
        Checkpoint("fit", "no")


def test_where_there_can_be_no_file_it_is_refused(tmp_path):
    model = linear()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", pathlib.Path("/dev/zero")):
        refused(model, path, *data(), "to be a file")
    for path in (tmp_path / "no" / "fit", tmp_path / "file" / "fit"):
        refused(model, path, *data(), "an existing folder")
    for path in (tmp_path / "loop", pathlib.Path("/proc/fit"), tmp_path / ("long" * 100)):
        refused(model, path, *data(), "read and written")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_and_a_long_name_work_and_the_folder_may_change(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / ("n" * 250))
    monkeypatch.chdir(tmp_path)
    move = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: os.chdir("there"))
    with pytest.raises(FileNotFoundError):  # there is no folder within that folder
        linear().fit(*data(), epochs=6, verbose=0, callbacks=[Checkpoint("link"), move])
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["n" * 250]


# How fits end ---------------------------------------------------------------------------------------------------


def test_a_fit_that_ends_begins_anew_unless_its_end_is_kept(tmp_path, capsys):
    path, (x, y) = tmp_path / "fit", data()
    kept = lambda: [Checkpoint(path, delete_checkpoint=False), BlockConvergence(rtol=5e-2)]
    model, later = exact(), exact()
    first = model.fit(x, y, epochs=10, verbose=0, callbacks=kept()).epoch
    assert 1 < first[-1] < 9
    assert model.fit(x, y, epochs=10, verbose=0, callbacks=kept()).epoch == []
    assert later.fit(x, y, epochs=10, verbose=2, callbacks=kept()).epoch == []
    assert capsys.readouterr().out == f"{path}: the fit had ended after {len(first)} epochs.\n"
    assert_equal(state(later), state(model))
    more = list(range(len(first), 12))
    for either in (model, later):
        saved = path.read_bytes()
        assert either.fit(x, y, epochs=12, verbose=0, callbacks=kept()[:1]).epoch == more
        path.write_bytes(saved)
    assert_equal(state(later), state(model))
    assert exact().fit(x, y, epochs=12, verbose=0, callbacks=[Checkpoint(path)]).epoch == more
    assert not path.exists()
    assert exact().fit(x, y, epochs=2, verbose=0, callbacks=[Checkpoint(path)]).epoch == [0, 1]


def test_the_first_of_two_fits_does_not_go_on_from_the_second(tmp_path):
    path, options = tmp_path / "fit", {"x": data()[0], "y": data()[1], "epochs": 4, "verbose": 0}
    model = exact()
    model.fit(**options, callbacks=[Checkpoint(path)])
    with pytest.raises(KeyboardInterrupt):
        model.fit(**options, callbacks=[Checkpoint(path), Kill(2)])
    refused(exact(), path, *data(), "begins_after_steps: 4. Received: fit.begins_after_steps: 0", epochs=4)
    assert model.fit(**options, callbacks=[Checkpoint(path)]).epoch == [2, 3]


def test_the_epoch_that_ends_the_fit_runs_again_so_that_all_callbacks_see_it(tmp_path):
    class KillAtTheEnd(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            raise KeyboardInterrupt

    stop, path = BlockConvergence(rtol=5e-2), tmp_path / "fit"
    options = {"x": data()[0], "y": data()[1], "epochs": 10, "verbose": 0}
    straight, model = exact(), exact()
    epochs = straight.fit(**options, callbacks=[BlockConvergence(rtol=5e-2)]).epoch
    with pytest.raises(KeyboardInterrupt):
        model.fit(**options, callbacks=[Checkpoint(path), stop, KillAtTheEnd()])
    assert model.fit(**options, callbacks=[Checkpoint(path), stop]).epoch == epochs[-1:]
    assert stop.converged
    assert "converged" in model.convergence_report().reason
    assert_equal(state(straight), state(model))


def test_one_callback_resumes_and_only_fits_of_ours(tmp_path):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    for other in (backup, Checkpoint("there")):
        refused(linear(), tmp_path / "fit", *data(), "one callback", callbacks=[[Checkpoint("here")], other])
    image = keras.Input((5, 4))
    plain = keras.Model(image, kb.BilinearDense(3, 1)(image))
    plain.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"trains block by block.*Functional"):
        plain.fit(*data(), verbose=0, callbacks=[Checkpoint(tmp_path / "fit")])
    assert list(tmp_path.iterdir()) == []


def test_curves_and_report_of_a_resumed_fit(tmp_path, broken_off):
    model = untraced()
    watch = kb.callbacks.BilinearTensorBoard(tmp_path / "logs")
    model.fit(*data(), epochs=6, verbose=0, callbacks=[Checkpoint(broken_off), watch])
    report = model.convergence_report()
    assert list(report.steps) == [3, 4, 5, 6]
    assert report.total_sweeps == 1
    assert curves(tmp_path / "logs")["objective/J"][0] == [3, 4, 5, 6]
