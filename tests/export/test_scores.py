"""Networks whose outputs are no classes: several of them, regression, several labels an image."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.export import VerificationError, export_saved_model, export_tflite, verify_tflite
from keras_bilinear.export.gates import GATES, check_gates, compared
from tests.files import computed, random_images, random_model, run

SIZE = (9, 8)


def body(image):
    return kb.BilinearMap(5, 4, "relu")(image)


def regression():
    """A number that is far from 0 and 1, and its matrix of companions."""
    image = keras.Input(SIZE)
    return keras.Model(image, keras.layers.Rescaling(30.0)(kb.BilinearDense(1, 2, use_bias=True)(body(image))))


def several_labels():
    image = keras.Input(SIZE)
    return keras.Model(image, kb.BilinearDense(6, 2, "sigmoid")(body(image)))


def a_picture():
    """As many numbers out as an autoencoder gives."""
    image = keras.Input(SIZE)
    return keras.Model(image, kb.BilinearMap(9, 8)(body(image)))


def several_outputs(kind):
    image = keras.Input(SIZE)
    Y = body(image)
    heads = {
        "kind": kb.BilinearDense(3, 2, "softmax", name="kind")(Y),
        "angle": keras.layers.Rescaling(40.0, name="angle")(kb.BilinearDense(1, 1)(Y)),
        "map": kb.BilinearMap(2, 3, name="map")(Y),
    }
    return keras.Model(image, heads if kind == "dict" else list(heads.values()))


NETWORKS = {
    "regression": regression,
    "several labels": several_labels,
    "a picture": a_picture,
    "a list": lambda: several_outputs("list"),
    "a dict": lambda: several_outputs("dict"),
}


def images(T=96):
    return np.random.default_rng(1).uniform(size=(T, *SIZE)).astype("float32")


def predictions(network, x):
    given = computed(network, x)
    names = ["kind", "angle", "map"]
    return given if isinstance(given, dict) else dict(zip(names, given, strict=True)) if len(given) == 3 else given


@pytest.mark.parametrize(("name", "batch_size"), [*((name, 1) for name in NETWORKS), ("a dict", None)])
def test_every_output_is_in_the_file_by_its_name(tmp_path, name, batch_size):
    network, x = NETWORKS[name](), images()
    path = tmp_path / "m.tflite"
    report = export_tflite(network, path, output="scores", batch_size=batch_size, validation_data=(x,))
    assert report.output == report.verification.output == "scores"
    assert "BATCH_MATMUL" not in report.ops
    expected = predictions(network, x)
    expected = expected if isinstance(expected, dict) else {"scores": expected}
    for output, values in expected.items():
        np.testing.assert_allclose(run(path, x, output), values, rtol=1e-5, atol=1e-4)
    assert report.verification.default.accuracy is None


@pytest.mark.parametrize(
    ("name", "quantize"),
    [
        ("regression", "int8"),
        ("several labels", "float16"),
        ("a picture", "int16x8"),
        ("a list", "int8"),
        ("a dict", "float16"),
        ("a dict", "int16x8"),
    ],
)
def test_in_every_storage(tmp_path, name, quantize):
    network, x = NETWORKS[name](), images()
    export_tflite(
        network,
        tmp_path / "m.tflite",
        quantize,
        output="scores",
        representative_data=x[:48],
        validation_data=(x[48:],),
    )


def mean_error(y, predicted):
    return np.mean(np.abs(y - predicted))


def test_a_metric_of_ones_own_is_compared(tmp_path):
    network, x = regression(), images()
    path, y = tmp_path / "m.tflite", computed(regression(), images())
    report = export_tflite(
        network, path, "int8", output="scores", representative_data=x, validation_data=(x, y), metric=mean_error
    )
    by_keras = mean_error(y, computed(network, x))
    assert report.verification.keras_accuracy == pytest.approx(by_keras, rel=1e-5)
    assert "metric in Keras" in str(report)
    assert "agreement" not in str(report)
    exact = computed(network, x)
    with pytest.raises(VerificationError, match=r"Expected the metric within .* that of Keras, under the default"):
        verify_tflite(path, network, x, exact, metric=lambda y, z: 1e3 * np.abs(y - z).max())


def test_a_metric_of_several_outputs_has_them_by_name(tmp_path):
    network, x = several_outputs("dict"), images()
    seen = []

    def metric(y, predicted):
        seen.append({name: part.shape for name, part in predicted.items()})
        return predicted["angle"].mean()

    export_tflite(network, tmp_path / "m.tflite", output="scores", validation_data=(x, None), metric=metric)
    assert seen[0] == {"angle": (96, 1), "kind": (96, 3), "map": (96, 2, 3)}


def test_the_file_of_another_network_is_refused(tmp_path):
    path, x = tmp_path / "m.tflite", images()
    export_tflite(several_outputs("list"), path, output="scores")
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(path, several_outputs("list"), x)
    with pytest.raises(VerificationError, match="Expected a signature as one of"):
        verify_tflite(path, several_labels(), x)


def test_small_numbers_are_judged_by_their_own_size(tmp_path):
    """In units of 1 each error would pass."""
    image = keras.Input(SIZE)
    networks = []
    for _ in range(2):
        tiny = keras.layers.Rescaling(1e-4, name="tiny")(kb.BilinearDense(1, 1)(image))
        networks.append(keras.Model(image, [tiny, kb.BilinearDense(2, 1, name="large")(image)]))
    networks[1].get_layer("large").set_weights(networks[0].get_layer("large").get_weights())
    export_tflite(networks[0], tmp_path / "m.tflite", output="scores", validation_data=(images(),))
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        verify_tflite(tmp_path / "m.tflite", networks[1], images())


def test_a_saved_model_has_them_too(tmp_path):
    network, x = several_outputs("dict"), images(5)
    export_saved_model(network, tmp_path / "m", output="scores")
    served = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"](image=tf.constant(x))
    for name, values in computed(network, x).items():
        np.testing.assert_allclose(served[name], values, rtol=1e-5, atol=1e-5)


def test_what_is_refused(tmp_path):
    path, x = tmp_path / "m.tflite", images()
    with pytest.raises(ValueError, match=r'any output but "scores", a network with one output'):
        export_tflite(several_outputs("list"), path)
    with pytest.raises(ValueError, match=r'any output but "scores", a network with one row of scores'):
        export_tflite(a_picture(), path)
    with pytest.raises(ValueError, match="for a model of classes"):
        export_tflite(random_model("BSR"), path, output="scores")
    image = keras.Input(SIZE)
    with pytest.raises(ValueError, match="Expected outputs of different names"):
        export_tflite(keras.Model(image, 2 * [body(image)]), path, output="scores")
    for options in ({"metric": mean_error}, {"output": "scores", "metric": "mse"}):
        with pytest.raises(ValueError, match="Expected `metric` to be a function"):
            export_tflite(several_labels(), path, **options)
    assert list(tmp_path.iterdir()) == []
    model = random_model("BSR", SIZE)
    export_tflite(model, path)
    verify_tflite(path, model, random_images(model))
    with pytest.raises(ValueError, match="Expected `metric` to be a function"):
        verify_tflite(path, model, x, metric=mean_error)


def test_several_labels_have_names(tmp_path):
    names = list("abcdef")
    export_tflite(
        several_labels(), tmp_path / "m.tflite", output="scores", labels=names, validation_data=(images(),)
    )


def test_one_image_in_five_hundred_may_be_farther_off_in_whole_numbers():
    """A network is so certain that an image on the border between two classes goes from one end to the other."""
    expected = np.tile([1.0, 0.0, 0.0], (1000, 1))
    scores = expected.copy()
    scores[:2] = [0.1, 0.9, 0.0]
    report = compared("default", scores, expected, "probabilities", None)
    assert (report.max_difference, report.spared_difference) == (0.9, 0.0)
    check_gates(report, GATES["int8"], expected, None)
    with pytest.raises(VerificationError, match=r"max \|difference\|"):
        check_gates(report, GATES[None], expected, None)
    for wrong in (0.1, np.nan):
        scores[2] = [wrong, 1 - wrong, 0.0]
        with pytest.raises(VerificationError, match=r"max \|difference\|"):
            check_gates(compared("default", scores, expected, "probabilities", None), GATES["int8"], expected, None)
    few = compared("default", scores[:10], expected[:10], "probabilities", None)
    assert np.isnan(few.spared_difference)
