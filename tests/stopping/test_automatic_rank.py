"""Ranks found by the certificate: grown, given up, stored, resumed and exported."""

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.callbacks import AutomaticRank, BlockConvergence, ConvergenceWarning
from keras_bilinear.export.files import export_tflite
from keras_bilinear.export.inference_graph import inference_graph
from keras_bilinear.export.lowerings import in_use
from keras_bilinear.stopping.automatic_rank import grow
from tests.event_files import read as read_events
from tests.files import oracle, random_images, random_model, run


@pytest.fixture(scope="module")
def digits600(digits):
    x, y = digits
    return x[:600], y[:600]


def make(rank="auto", alpha=3e-3, penalty="sum"):
    model = kb.BilinearSoftmaxRegression(10, rank, alpha=alpha, penalty=penalty, seed=0)
    # The solver is traced once for all models, and the step around it is not worth a trace.
    model.compile(run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def automatic(digits600):
    model = make()
    model.fit(*digits600, epochs=60, verbose=0)
    return model


def test_it_ends_certified_with_the_ranks_of_the_optimum(automatic, digits600):
    proof = automatic.certificate(*digits600)
    assert proof.objective == pytest.approx(0.321800, rel=1e-3)
    assert proof.gap <= 1e-3 * proof.objective
    # The ranks of the optimum, found with all eight ranks at once to the last digit (see test_certificate).
    np.testing.assert_array_equal(proof.effective_ranks, [1, 2, 3, 3, 2, 3, 2, 3, 3, 3])
    assert np.all(automatic.ranks() >= proof.effective_ranks)
    assert np.all(automatic.ranks() <= proof.effective_ranks + 1)
    A, B = automatic.factors()
    unused = ~(A.any(axis=1) & B.any(axis=1))
    assert not A.transpose(0, 2, 1)[unused].any()
    assert not B.transpose(0, 2, 1)[unused].any()


def test_a_file_holds_only_the_ranks_in_use(automatic, digits600, tmp_path):
    x, y = digits600
    report = export_tflite(automatic, tmp_path / "m.tflite", validation_data=(x, y))
    # On images this small, the matrix that adds up columns of different ranks would outweigh what they save.
    assert report.parameters == automatic.ranks().max() * 16 * 10
    full = random_model("BSR", (8, 8), automatic.rank, 10)
    assert report.bytes < 0.6 * export_tflite(full, tmp_path / "full.tflite").bytes
    export_tflite(automatic, tmp_path / "m.tflite", "int8", representative_data=x[:100], validation_data=(x, y))


def test_it_is_saved_with_the_model_and_goes_on(automatic, digits600, tmp_path):
    automatic.save(tmp_path / "m.keras")
    model = keras.models.load_model(tmp_path / "m.keras")
    assert model.get_config()["rank"] == "auto"
    np.testing.assert_array_equal(model.ranks(), automatic.ranks())
    history = model.fit(*digits600, epochs=60, verbose=0)
    # Rounding decides how many sweeps either takes.
    assert len(history.epoch) <= automatic.convergence_report().sweeps // 2, "it was certified already"


def test_too_few_ranks_are_said(digits600):
    model = make(2)
    callback = AutomaticRank()
    with pytest.warns(ConvergenceWarning, match="a `rank` above 2, which some classes have used up"):
        model.fit(*digits600, epochs=12, verbose=0, callbacks=[callback])
    assert callback.reason == "the epochs ran out"
    assert callback.certificate.ratio > 1.3


def test_too_few_epochs_are_said(digits600):
    model = make()
    with pytest.warns(ConvergenceWarning, match="Give it more epochs"):
        model.fit(*digits600, epochs=2, verbose=0)
    assert model.ranks().max() <= 2, "it starts with one"


def test_a_large_alpha_needs_no_rank(digits600):
    model = make(alpha=1.0)
    callback = AutomaticRank()
    model.fit(*digits600, epochs=30, verbose=0, callbacks=[callback])
    assert callback.reason.startswith("certified")
    assert model.ranks().max() <= 1
    assert np.abs(model.weight_matrices()).max() < 1e-3


def test_binary_models_and_a_bias(digits):
    x, y = digits
    x, y = x[y < 2], y[y < 2]
    model = kb.BilinearLogisticRegression("auto", alpha=1e-2, penalty="sum", use_bias=True, seed=0)
    model.fit(x, y, epochs=60, verbose=0)
    proof = model.certificate(x, y)
    assert proof.gap <= 1e-3 * proof.objective


@pytest.mark.parametrize("penalty", ["product", "frobenius"])
def test_no_other_penalty_has_an_optimal_rank(penalty, digits600):
    with pytest.raises(ValueError, match=r'Expected penalty="sum" with rank="auto"'):
        kb.BilinearSoftmaxRegression(10, "auto", alpha=1e-3, penalty=penalty)
    model = kb.BilinearSoftmaxRegression(10, 2, alpha=1e-3, penalty=penalty)
    with pytest.raises(ValueError, match="only there has J an optimal rank"):
        model.fit(*digits600, epochs=1, verbose=0, callbacks=[AutomaticRank()])


def test_other_ranks_are_refused():
    for rank in ("most", 0, 1.5, None):
        with pytest.raises(ValueError, match="`rank`"):
            kb.BilinearSoftmaxRegression(10, rank, alpha=1e-3, penalty="sum")


def test_mini_batches_train_all_ranks(digits600):
    model = kb.BilinearSoftmaxRegression(10, "auto", alpha=1e-3, penalty="sum", seed=0)
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    model.fit(*digits600, epochs=2, batch_size=300, verbose=0)
    assert len(model.factors()[0]) == 8
    with pytest.raises(ValueError, match="compiled with BlockLineSearch"):
        model.fit(*digits600, epochs=1, verbose=0, callbacks=[AutomaticRank()])


def test_growing_gives_up_what_is_negligible_and_wakes_one_rank():
    model = random_model("BSR", rank=4)
    A, B = model.factors()
    A[2:] = B[2:] = 1e-6
    model.head.assign_factors(A, B)
    W = model.weight_matrices()
    grow(model, np.array([True, False, False]))
    A, B = model.factors()
    assert not A[2:].any()
    assert B[2:].any(axis=1).tolist() == [[True, False, False], [False, False, False]]
    np.testing.assert_allclose(model.weight_matrices(), W, atol=1e-5)
    assert model.ranks().tolist() == [2, 2, 2]


# Stopping by the certificate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["sum", "product"])
def test_a_certified_fit_stops(digits600, penalty):
    model = make(4, penalty=penalty)
    stop = BlockConvergence(rtol=0.0, gap=1e-2)
    model.fit(*digits600, epochs=200, verbose=0, callbacks=[stop])
    assert stop.converged
    assert stop.reason.startswith("certified: J is at most ")
    assert stop.certificate.gap <= 1e-2 * stop.certificate.objective
    assert model._training_data is None, "the images are not kept beyond the fit"


def test_a_fit_that_cannot_be_certified_converges_as_before(digits600):
    model = make(1)
    stop = BlockConvergence(rtol=1e-4, gap=1e-3)
    model.fit(*digits600, epochs=200, verbose=0, callbacks=[stop])
    assert stop.reason.startswith("converged")
    assert stop.certificate.gap > 1e-3 * stop.certificate.objective


def test_mini_batches_of_arrays_are_certified_and_data_sets_are_not(digits600):
    import tensorflow as tf

    x, y = digits600
    model = make(2)
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    stop = BlockConvergence(rtol=1.0, block_rtol=1.0, gap=0.5)
    model.fit(x, y, epochs=20, batch_size=300, verbose=0, callbacks=[stop])
    assert stop.certificate is not None
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    with pytest.raises(ValueError, match="arrays in `fit`"):
        model.fit(data, epochs=20, verbose=0, shuffle=False, callbacks=[stop])


@pytest.mark.parametrize("gap", [-1.0, float("nan"), "small"])
def test_faulty_gaps(gap):
    for callback in (BlockConvergence, AutomaticRank):
        with pytest.raises(ValueError, match="`gap`"):
            callback(gap=gap)


# Files of classes with different ranks --------------------------------------------------------------------------


def ragged_model():
    """Ranks 3, 1, 0 and 2 of four, the unused ones in between."""
    model = random_model("BSR", (9, 8), 4, 4, use_bias=True)
    A, B = model.factors()
    for k, unused in enumerate(([1], [0, 2, 3], [0, 1, 2, 3], [0, 2])):
        A[unused, :, k] = B[unused, :, k] = 0.0
    model.head.assign_factors(A, B)
    return model


def test_columns_in_use_come_first():
    A, B = ragged_model().factors()
    a, b = in_use(A, B)
    assert a.shape == (3, 9, 4)
    np.testing.assert_allclose(np.einsum("lmk,lnk->kmn", a, b), np.einsum("lmk,lnk->kmn", A, B), atol=1e-6)


@pytest.mark.parametrize("quantized", [False, True])
def test_a_ragged_graph_is_the_model(quantized):
    model = ragged_model()
    x = random_images(model)
    graph = inference_graph(model, quantized=quantized)
    np.testing.assert_allclose(graph.scores(x).numpy(), oracle(model, x, "logits"), atol=5e-6)
    assert graph.parameters == 6 * 17 + 4


@pytest.mark.parametrize("quantize", [None, "float16", "dynamic", "int8", "int16x8"])
@pytest.mark.filterwarnings("ignore:quantize='dynamic' has left")
def test_ragged_files(tmp_path, quantize):
    model = ragged_model()
    x = random_images(model, T=200)
    export_tflite(model, tmp_path / "m.tflite", quantize, representative_data=x[:100])
    difference = np.abs(run(tmp_path / "m.tflite", x[100:]) - oracle(model, x[100:], "probabilities"))
    assert difference.mean() <= {None: 1e-6, "float16": 1e-3}.get(quantize, 1e-2)


def test_unused_ranks_of_binary_models_are_left_out(tmp_path):
    model = random_model("BLR", rank=3)
    A, B = model.factors()
    A[1] = B[1] = 0.0
    model.head.assign_factors(A, B)
    report = export_tflite(model, tmp_path / "m.tflite", validation_data=(random_images(model),))
    assert report.parameters == 2 * 12


# Beside the rest ------------------------------------------------------------------------------------------------


def test_a_fit_that_was_interrupted_while_ranks_grew_goes_on(automatic, digits600, tmp_path):
    x, y = digits600
    part = make()
    with pytest.warns(ConvergenceWarning):
        part.fit(x, y, epochs=4, verbose=0)
    part.save(tmp_path / "part.keras")
    resumed = keras.models.load_model(tmp_path / "part.keras")
    np.testing.assert_array_equal(resumed.factors(), part.factors())
    resumed.fit(x, y, epochs=60, initial_epoch=4, verbose=0)
    np.testing.assert_array_equal(resumed.factors(), automatic.factors())


def test_ranks_that_have_converged_do_not_end_the_growth(digits600):
    model = make()
    loose, grows = BlockConvergence(rtol=1e-2), AutomaticRank()
    model.fit(*digits600, epochs=60, verbose=0, callbacks=[loose, grows])
    assert grows.converged
    assert model.ranks().max() >= 3
    assert (loose.converged, loose.reason) == (False, "another callback stopped the fit")
    # And it counts again in a fit without growth.
    fixed = BlockConvergence(rtol=1e-2)
    again = make(2)
    again.fit(*digits600, epochs=60, verbose=0, callbacks=[fixed])
    assert fixed.converged


def test_the_classifier_of_scikit_learn_finds_the_ranks_too(digits600):
    x, y = digits600
    classifier = kb.BilinearClassifier("auto", alpha=3e-3, penalty="sum", use_bias=False).fit(x, y)
    proof = classifier.model_.certificate(x, y)
    assert proof.gap <= 1e-3 * proof.objective
    assert classifier.model_.ranks().max() >= 3
    with pytest.warns(ConvergenceWarning, match="certified to be within tol=0.001 of its optimum"):
        kb.BilinearClassifier("auto", alpha=3e-3, penalty="sum", use_bias=False, max_iter=2).fit(x, y)


def test_tensorboard_records_it(digits600, tmp_path):
    model = make(alpha=0.1)
    history = model.fit(*digits600, epochs=60, verbose=0, callbacks=[keras.callbacks.TensorBoard(tmp_path)])
    events = read_events(tmp_path / "train")  # all of them: TensorBoard itself keeps ten unless told otherwise
    assert len(events.Tensors("epoch_objective")) == len(history.epoch)


@pytest.mark.parametrize(("size", "most"), [((3, 5), 3), ((20, 4), 4), ((12, 12), 8)])
def test_no_more_ranks_than_a_matrix_can_have(size, most, tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(80, *size)).astype("float32"), np.arange(80) % 3
    declared = kb.BilinearSoftmaxRegression(3, "auto", 0.02, "sum", input_shape=size, seed=0)
    found = kb.BilinearSoftmaxRegression(3, "auto", 0.02, "sum", seed=0)
    for model in (declared, found):
        model.compile("sgd", run_eagerly=True)
        model.fit(x, y, epochs=1, batch_size=80, verbose=0)
        assert model.rank == most
        assert model.factors()[0].shape == (most, size[0], 3)
        assert len(model.block_names) == model.schedule.num_blocks == 2 * most
    found.save(tmp_path / "found.keras")
    loaded = keras.models.load_model(tmp_path / "found.keras")
    assert loaded.get_config()["rank"] == "auto"
    for own, again in zip(found.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(own, again)
    np.testing.assert_array_equal(loaded(x), found(x))


def test_no_advice_to_take_more_ranks_than_there_can_be():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 2, 6)).astype("float32"), np.arange(200) % 3
    model = kb.BilinearSoftmaxRegression(3, "auto", 1e-5, "sum", seed=0)
    with pytest.warns(ConvergenceWarning, match="Give it more epochs"):
        model.fit(x, y, epochs=8, verbose=0, callbacks=[AutomaticRank(gap=0.0)])
    assert model.ranks().max() == model.rank == 2
    assert "Give `fit` more epochs" in str(model.convergence_report())
