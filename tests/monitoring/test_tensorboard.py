import copy
import pathlib
import pickle
import re
import sys
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import keras_bilinear as kb
from keras_bilinear.callbacks import AutomaticRank, BilinearTensorBoard
from keras_bilinear.maths.bilinear import canonical_factors
from keras_bilinear.monitoring.curves import of_ranks, pictures
from keras_bilinear.monitoring.pictures import mosaic
from tests.event_files import curves, read
from tests.interruptions import Interrupt
from tests.problems import planted

pytestmark = pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")

OPTIMIZERS = {
    "joint": lambda: kb.BlockLineSearch(max_inner=1),
    "factor": lambda: kb.BlockLineSearch(blocks="factor", max_inner=3),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


def data(T=80):
    return planted(T=T).data()


def make(regime="joint", rank=2):
    model = kb.BilinearSoftmaxRegression(3, rank, alpha=0.02, seed=0)
    # The solver is traced once for all models, and the step around it is not worth a trace.
    model.compile(OPTIMIZERS[regime](), run_eagerly=True)
    return model


def fit(model, *callbacks, epochs=5, **options):
    x, y = data()
    options = {"verbose": 0, "shuffle": False, "validation_data": data(30), **options}
    if not model.is_exact:
        options["batch_size"] = 40
    return model.fit(x, y, epochs=epochs, callbacks=list(callbacks), **options)


# What is written ------------------------------------------------------------------------------------------------


class Watched(NamedTuple):
    """A fit of six epochs, and where it was logged."""

    model: keras.Model
    history: dict
    folder: pathlib.Path


@pytest.fixture(scope="module", params=OPTIMIZERS)
def watched(request, tmp_path_factory):
    keras.utils.set_random_seed(0)
    folder, model = tmp_path_factory.mktemp(request.param), make(request.param)
    history = fit(model, BilinearTensorBoard(folder, certificate_freq=2), epochs=6).history
    return Watched(model, history, folder)


def test_curves_over_the_epochs_are_those_of_the_history(watched):
    drawn, model = curves(watched.folder), watched.model
    for tag, key in {
        "objective/J": "objective",
        "objective/val_J": "val_loss",
        "metrics/accuracy": "accuracy",
        "metrics/val_accuracy": "val_accuracy",
        "blocks/step_size": "step_size",
    }.items():
        steps, values = drawn[tag]
        assert steps == [1, 2, 3, 4, 5, 6]
        np.testing.assert_allclose(values, watched.history[key], rtol=1e-6)
    J, V, R = (np.array(drawn[f"objective/{name}"][1]) for name in ("J", "V", "alpha_R"))
    np.testing.assert_allclose(V + R, J, rtol=1e-6)
    np.testing.assert_allclose(R[-1], float(model.penalty()), rtol=1e-6)
    steps, magnitude = drawn["objective/log10_improvement"]
    assert steps == list(range(1 if model.is_exact else 2, 7))
    np.testing.assert_allclose(10 ** np.array(magnitude[-5:]), (J[:-1] - J[1:]) / J[1:], rtol=0.01, atol=1e-6)
    np.testing.assert_allclose(10 ** np.array(magnitude), watched.history["improvement"][-len(steps) :], rtol=1e-5)
    assert ("blocks/active" in drawn) == (not model.is_exact)


def test_ranks_and_singular_values_are_those_of_the_filters(watched):
    drawn, sigma = curves(watched.folder), np.linalg.svd(watched.model.weight_matrices(), compute_uv=False)
    for k in range(3):
        for l in range(2):
            steps, values = drawn[f"singular_values/{k}/{l + 1}"]
            assert steps == [1, 2, 3, 4, 5, 6]
            np.testing.assert_allclose(values[-1], sigma[k, l], rtol=1e-5)
        assert drawn[f"ranks/{k}"][1][-1] == np.sum(sigma[k] > 0.01 * sigma[k, 0])
    assert "singular_values/0/3" not in drawn


def test_each_block_has_its_gradient_and_its_updates(watched):
    drawn, names = curves(watched.folder), [name.replace(", ", "") for name in watched.model.block_names]
    assert {tag for tag in drawn if tag.startswith("gradient/")} == {f"gradient/{name}" for name in names}
    if not watched.model.is_exact:
        # A block that was never up has no gradient yet.
        assert [drawn[f"gradient/{name}"][0][0] for name in ("a1", "b1", "a2", "b2")] == [1, 2, 3, 4]
        assert drawn["updates/b1"] == ([1, 2, 3, 4, 5, 6], [0, 2, 2, 2, 2, 4])  # a stair, no zigzag
        assert drawn["blocks/active"][1] == [0, 1, 2, 3, 0, 1]
        assert not any(tag.startswith("step/") for tag in drawn)
        return
    active, norm, taken = (drawn[f"step/{name}"] for name in ("active_block", "grad_norm", "inner_iterations"))
    blocks = len(names)
    assert active == (list(range(1, 6 * blocks + 1)), list(range(blocks)) * 6)
    for index, name in enumerate(names):
        np.testing.assert_allclose(drawn[f"gradient/{name}"][1], norm[1][index::blocks], rtol=1e-6)
        np.testing.assert_allclose(drawn[f"updates/{name}"][1], np.cumsum(taken[1][index::blocks]))


def test_steps_are_written_as_often_as_asked(tmp_path):
    expected = {"epoch": [], "batch": list(range(1, 11)), 3: [3, 6, 9]}
    each = {
        frequency: BilinearTensorBoard(tmp_path / str(frequency), update_freq=frequency) for frequency in expected
    }
    fit(make("adam"), *each.values())
    for frequency, steps in expected.items():
        assert curves(tmp_path / str(frequency)).get("step/J", ([],))[0] == steps


def test_several_steps_in_one_execution_count_as_they_are(tmp_path):
    x, y = data()
    model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.02, seed=0)
    model.compile(kb.BlockLineSearch(blocks="factor", max_inner=3), jit_compile=False, steps_per_execution=2)
    some = BilinearTensorBoard(tmp_path / "some", update_freq=4)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[BilinearTensorBoard(tmp_path / "all"), some])
    assert curves(tmp_path / "all")["step/active_block"] == ([2, 4, 6, 8], [1, 3, 1, 3])
    assert curves(tmp_path / "some")["step/active_block"] == ([4, 8], [3, 3])


def test_pictures_are_the_filters_and_their_factors(watched):
    events = read(watched.folder)
    for tag in ("filters/W", "filters/a", "filters/b"):
        assert [event.step for event in events.Tensors(tag)] == [1, 4, 6]

    def shown(tag):
        return tf.io.decode_png(events.Tensors(tag)[-1].tensor_proto.string_val[2]).numpy().astype(int)

    np.testing.assert_allclose(shown("filters/W"), mosaic(watched.model.weight_matrices()), atol=1)
    A, B = map(np.asarray, canonical_factors(*watched.model.factors()))
    for tag, strips in {
        "a": np.repeat(A.transpose(2, 1, 0), 3, 2),
        "b": np.repeat(B.transpose(2, 0, 1), 3, 1),
    }.items():
        np.testing.assert_array_equal(shown(f"filters/{tag}"), mosaic(strips))


def test_pictures_come_as_often_as_asked_and_at_the_end(tmp_path):
    fit(make(), *(BilinearTensorBoard(tmp_path / str(frequency), image_freq=frequency) for frequency in (0, 2)))
    assert "filters/W" not in read(tmp_path / "0").Tags()["tensors"]
    assert [event.step for event in read(tmp_path / "2").Tensors("filters/W")] == [2, 4, 5]


def test_the_layout_shows_every_curve_and_no_empty_chart(watched):
    (event,) = read(watched.folder).Tensors("custom_scalars__config__")
    tags, found = set(curves(watched.folder)), set()
    for category in Layout.FromString(event.tensor_proto.string_val[0]).category:
        for chart in category.chart:
            matches = {tag for tag in tags if any(re.match(pattern, tag) for pattern in chart.multiline.tag)}
            assert matches, chart.title
            found |= matches
    assert tags - found <= {"step/accuracy"}


def test_J_and_its_parts_have_panels_of_their_own(watched):
    (event,) = read(watched.folder).Tensors("custom_scalars__config__")
    charts = [
        chart
        for category in Layout.FromString(event.tensor_proto.string_val[0]).category
        for chart in category.chart
    ]
    tags = ["objective/J", "objective/V", "objective/alpha_R"]
    shown = [{tag for tag in tags if any(re.match(p, tag) for p in chart.multiline.tag)} for chart in charts]
    assert all(len(each) <= 1 for each in shown)
    assert [each for each in shown if each][:3] == [{tag} for tag in tags]


def hparams_of(folder, tag):
    content = read(folder).SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
    return HParamsPluginData.FromString(content)


def test_hyperparameters_and_outcomes(watched):
    chosen = hparams_of(watched.folder, "session_start_info").session_start_info.hparams
    optimizer = watched.model.optimizer
    solver = {"solver": "Adam", "step_size": pytest.approx(0.05)}
    if watched.model.is_exact:
        solver = {"solver": "BlockLineSearch", "inner": "cg", "blocks": optimizer.blocks}
    model = {"alpha": pytest.approx(0.02), "penalty": "product", "rank": 2, "type": "BilinearSoftmaxRegression"}
    assert {name: value.number_value or value.string_value for name, value in chosen.items()} == model | solver
    experiment = hparams_of(watched.folder, "experiment").experiment
    assert {info.name.tag for info in experiment.metric_infos} <= set(curves(watched.folder))
    assert set(chosen) <= {info.name for info in experiment.hparam_infos}
    assert [info.name for info in experiment.hparam_infos if info.differs] == ["solver"]
    assert hparams_of(watched.folder, "session_end_info").session_end_info.status == 1  # success


def test_a_description_in_words(watched):
    (event,) = read(watched.folder).Tensors("model")
    text = event.tensor_proto.string_val[0].decode()
    for words in (
        "| rank | 2 |",
        "L = 2: 66 factors, 73.3 % of the 90 weights",
        f"| tensorflow | {tf.__version__} |",
    ):
        assert words in text


def test_certificates_when_asked(watched):
    proof, drawn = watched.model.certificate(*data()), curves(watched.folder)
    for name in ("lower_bound", "gap", "ratio"):
        steps, values = drawn[f"certificate/{name}"]
        assert steps == [2, 4, 6]
        np.testing.assert_allclose(values[-1], getattr(proof, name), rtol=1e-4)


def test_a_linear_model_and_a_binary_one(tmp_path):
    x, y = data()
    linear = BilinearTensorBoard(tmp_path / "linear", certificate_freq=1)
    model = kb.LinearSoftmaxRegression(3, alpha=0.1)
    model.compile(run_eagerly=True)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[linear])
    drawn, tags = curves(tmp_path / "linear"), read(tmp_path / "linear").Tags()["tensors"]
    assert {"gradient/W", "certificate/gap"} <= set(drawn)
    assert "certificate/ratio" not in drawn
    assert not any(tag.startswith("ranks") for tag in drawn)  # they are full
    assert [tag for tag in tags if tag.startswith("filters")] == ["filters/W"]
    binary = BilinearTensorBoard(tmp_path / "binary")
    model = kb.BilinearLogisticRegression(1, seed=0)
    model.compile(run_eagerly=True)
    model.fit(x, y > 0, epochs=2, verbose=0, callbacks=[binary])
    assert {"ranks/0", "singular_values/0/1"} <= set(curves(tmp_path / "binary"))


def test_a_network_with_two_bilinear_layers(tmp_path):
    x, y = data()
    image = keras.Input(x.shape[1:])
    two = [kb.BilinearDense(3, rank, name=name)(image) for name, rank in (("u", 1), ("v", 2))]
    model = kb.AlternatingModel(image, keras.layers.add(two))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    model.fit(x, y, epochs=6, batch_size=80, verbose=0, callbacks=[BilinearTensorBoard(tmp_path)])
    drawn = curves(tmp_path)
    assert {"gradient/u/a1", "gradient/v/b2", "ranks/u/0", "singular_values/v/2/2"} <= set(drawn)
    assert "filters/v/b" in read(tmp_path).Tags()["tensors"]
    chosen = hparams_of(tmp_path, "session_start_info").session_start_info.hparams
    assert chosen["rank"].string_value == "1, 2"


def test_while_ranks_grow(tmp_path):
    x, y = data()
    model = kb.BilinearSoftmaxRegression(3, rank="auto", alpha=0.02, penalty="sum", seed=0)
    model.compile(run_eagerly=True)
    model.fit(x, y, epochs=4, verbose=0, callbacks=[AutomaticRank(), BilinearTensorBoard(tmp_path)])
    steps, ranks = curves(tmp_path)["ranks/0"]
    assert steps == [1, 2, 3, 4]
    assert ranks[0] == 1
    assert hparams_of(tmp_path, "session_start_info").session_start_info.hparams["rank"].string_value == "auto"


def test_a_data_set_builds_the_model_with_its_first_batch(tmp_path):
    model = kb.BilinearSoftmaxRegression(3, 2, seed=0)
    model.compile("adam", run_eagerly=True)
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(40)
    model.fit(batches, epochs=2, verbose=0, shuffle=False, callbacks=[BilinearTensorBoard(tmp_path)])
    assert curves(tmp_path)["objective/J"][0] == [1, 2]
    assert "66 factors" in read(tmp_path).Tensors("model")[0].tensor_proto.string_val[0].decode()


def test_a_fit_without_an_epoch_writes_nothing(tmp_path):
    fit(make(), BilinearTensorBoard(tmp_path), epochs=0)
    assert not list(tmp_path.iterdir())


def test_metrics_that_are_arrays_and_logs_that_are_no_numbers(tmp_path):
    x, y = data()
    model = kb.BilinearSoftmaxRegression(3, 2, seed=0)
    model.compile(metrics=[keras.metrics.F1Score(name="f1")], run_eagerly=True)
    others = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(note="hello", lost=np.nan))
    options = {"epochs": 2, "verbose": 0, "callbacks": [others, BilinearTensorBoard(tmp_path)]}
    history = model.fit(x, np.eye(3)[y], **options).history
    drawn = curves(tmp_path)
    np.testing.assert_allclose(drawn["metrics/f1"][1], np.mean(history["f1"], axis=1), rtol=1e-6)
    np.testing.assert_array_equal(drawn["metrics/lost"][1], [np.nan, np.nan])
    assert "metrics/note" not in drawn
    assert drawn["step/f1"][0] == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_factors_of_any_precision(dtype):
    model = kb.BilinearSoftmaxRegression(3, 2, seed=0, dtype=dtype, input_shape=(6, 5))
    model.head.assign_factors(np.random.default_rng(0).normal(size=(2, 6, 3)), model.factors()[1])
    sigma = np.linalg.svd(model.weight_matrices().astype("float32"), compute_uv=False)
    assert of_ranks(model)["singular_values/1/1"] == pytest.approx(sigma[1, 0], rel=0.01)
    assert pictures(model)["filters/a"][0].dtype == "uint8"


def test_weights_that_are_lost_do_not_end_the_fit(tmp_path):
    class Lose(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.head.left_factors[0].assign(np.full((6, 3), np.nan))

    model = make("adam")
    fit(model, Lose(), BilinearTensorBoard(tmp_path), epochs=1)
    assert "filters/W" in read(tmp_path).Tags()["tensors"]


def test_epochs_that_are_no_sweeps_have_the_improvement_of_the_epoch(tmp_path):
    history = fit(make("factor"), BilinearTensorBoard(tmp_path), epochs=4, steps_per_epoch=2).history
    J = np.array(history["objective"])
    steps, magnitude = curves(tmp_path)["objective/log10_improvement"]
    assert steps == [2, 3, 4]
    np.testing.assert_allclose(10 ** np.array(magnitude), (J[:-1] - J[1:]) / J[1:], rtol=1e-3)


def test_a_fit_that_is_watched_is_the_same_fit(watched):
    model = make("adam" if not watched.model.is_exact else watched.model.optimizer.blocks)
    fit(model, epochs=6)
    for old, new in zip(model.variables, watched.model.variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


# Beside others, resumed, killed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [3, "epoch"])
def test_beside_the_tensorboard_callback_of_keras(frequency, tmp_path):
    regime = "factor" if frequency == "epoch" else "adam"

    def callbacks(name):
        ours = BilinearTensorBoard(tmp_path / name, update_freq=1)
        keras_own = keras.callbacks.TensorBoard(tmp_path / name, update_freq=frequency)
        return {"first": [ours, keras_own], "second": [keras_own, ours], "alone": [keras_own]}[name]

    for name in ("first", "second", "alone"):
        fit(make(regime), *callbacks(name), epochs=3)
    for name in ("first", "second"):
        assert curves(tmp_path / name)["step/J"][0] == list(range(1, 13 if regime == "factor" else 7))
        assert curves(tmp_path / name)["objective/J"][0] == [1, 2, 3]
        for part in ("train", "validation"):
            assert curves(tmp_path / name / part) == curves(tmp_path / "alone" / part)
    assert curves(tmp_path / "alone" / "train")


@pytest.mark.parametrize(("regime", "ours_first"), [("factor", False), ("adam", True)])
def test_a_resumed_run_has_the_curves_of_one_that_was_never_interrupted(regime, ours_first, tmp_path):
    def callbacks(name):
        pair = [
            BilinearTensorBoard(tmp_path / name, update_freq=1),
            keras.callbacks.BackupAndRestore(tmp_path / f"{name}-backup"),
        ]
        return pair if ours_first else pair[::-1]

    fit(make(regime), *callbacks("straight"), epochs=7)
    with pytest.raises(KeyboardInterrupt):
        fit(make(regime), *callbacks("broken"), Interrupt(3, 1), epochs=7)
    assert list((tmp_path / "broken").glob("events*"))
    fit(make(regime), *callbacks("broken"), epochs=7)
    straight, broken = curves(tmp_path / "straight"), curves(tmp_path / "broken")
    assert set(straight) == set(broken)
    for tag, (steps, values) in straight.items():
        # Steps of the epoch that was broken off are there twice, and alike.
        assert set(zip(*broken[tag], strict=True)) == set(zip(steps, values, strict=True)), tag
        assert tag.startswith("step/") or broken[tag][0] == steps, tag
    assert len(broken["objective/J"][0]) == 7


def test_a_model_that_trains_on_goes_on_along_its_curves(tmp_path):
    callback, model = BilinearTensorBoard(tmp_path), make("factor")
    fit(model, callback, epochs=2)
    fit(model, callback, initial_epoch=2, epochs=3)  # the same callback again
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    fit(loaded, BilinearTensorBoard(tmp_path), initial_epoch=3, epochs=4)
    drawn = curves(tmp_path)
    assert drawn["objective/J"][0] == [1, 2, 3, 4]
    assert drawn["step/J"][0] == list(range(1, 17))
    assert [event.step for event in read(tmp_path).Tensors("filters/W")] == [1, 2, 3, 4]
    assert [event.step for event in read(tmp_path).Tensors("model")] == [0, 2, 3]


def test_a_process_killed_after_an_epoch_leaves_all_of_it(tmp_path):
    found = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: found.append(curves(tmp_path)))
    fit(make("factor"), BilinearTensorBoard(tmp_path), look, epochs=3)
    for epoch, drawn in enumerate(found, start=1):
        assert drawn["objective/J"][0] == list(range(1, epoch + 1))
        assert drawn["step/J"][0] == list(range(1, 4 * epoch + 1))


# What is refused ------------------------------------------------------------------------------------------------


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install tensorboard"):
        BilinearTensorBoard(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update_freq": "sweep"}, "Expected `update_freq` to be one of"),
        ({"update_freq": 0}, "Expected `update_freq` to be an integer >= 1"),
        ({"image_freq": -1}, "Expected `image_freq` to be an integer >= 0"),
        ({"certificate_freq": 1.5}, "Expected `certificate_freq` to be an integer >= 0"),
        ({"certificate_freq": True}, "Expected `certificate_freq` to be an integer >= 0"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        BilinearTensorBoard(tmp_path, **arguments)


def test_a_model_without_blocks_is_refused_and_nothing_is_written(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="trains block by block"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[BilinearTensorBoard(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_certificates_need_arrays(tmp_path):
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(20)
    with pytest.raises(ValueError, match=r"Expected .* arrays in `fit`"):
        make("adam").fit(
            batches, shuffle=False, verbose=0, callbacks=[BilinearTensorBoard(tmp_path, certificate_freq=1)]
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_refused_before_the_fit(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match="Expected `log_dir` to be a folder"):
        fit(make(), BilinearTensorBoard(tmp_path / "file" / "logs"))


def test_it_can_be_copied(tmp_path):
    callback = BilinearTensorBoard(tmp_path / "logs")
    model = make()
    fit(model, callback, epochs=1)
    copies = copy.deepcopy(callback), pickle.loads(pickle.dumps(BilinearTensorBoard(tmp_path / "logs")))
    for epoch, copied in enumerate(copies, start=1):
        fit(model, copied, initial_epoch=epoch, epochs=epoch + 1)
    assert curves(tmp_path / "logs")["objective/J"][0] == [1, 2, 3]
