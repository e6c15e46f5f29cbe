"""Networks that contain bilinear layers, as files for the edge."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.export import export_saved_model, export_tflite, exportable, verify_tflite
from keras_bilinear.export.float32_copy import float32_copy, in_float32
from tests.files import computed, dtype_policy, random_images, random_model, run

SIZE = (9, 8)


def head(units=3, activation="softmax", use_bias=True):
    return kb.BilinearDense(units, 2, activation=activation, use_bias=use_bias, left_initializer="glorot_uniform")


def backbone(units=3):
    """Convolution and normalisation with statistics of their own, the head in a model within the model."""
    image = keras.Input((*SIZE, 1))
    maps = keras.layers.Conv2D(1, 3, activation="relu")(image)
    maps = keras.layers.BatchNormalization()(maps)
    top = keras.Sequential([keras.Input((7, 6, 1)), head(units, "sigmoid" if units == 1 else "softmax")])
    network = kb.AlternatingModel(image, top(maps))
    for variable in network.variables:
        if "moving" in variable.name or "bias" in variable.name:
            variable.assign(np.random.default_rng(2).uniform(0.5, 2.0, variable.shape))
    return network


def sequential(units=3):
    return keras.Sequential(
        [keras.Input(SIZE), keras.layers.Rescaling(0.5), head(units), keras.layers.Activation("linear")]
    )


def two_heads(units=3):
    image = keras.Input(SIZE)
    flipped = keras.layers.Permute((2, 1))(image)
    scores = keras.layers.Add()([head(units, None)(image), head(units, None, use_bias=False)(flipped)])
    return keras.Model(image, keras.layers.Softmax()(scores))


def frames(units=3):
    """Five images in one, each with scores of its own, by the layer's own axes and by Keras' wrapper."""
    image = keras.Input((5, *SIZE))
    frames = keras.layers.Reshape((5, *SIZE, 1))(image)
    scores = keras.layers.Add()([head(units, None)(frames), keras.layers.TimeDistributed(head(units, None))(image)])
    return keras.Model(image, keras.layers.Softmax()(keras.layers.GlobalAveragePooling1D()(scores)))


def plain_dense(units=3):
    return kb.to_dense(random_model("BSR", SIZE, units=units))


NETWORKS = [backbone, sequential, two_heads, frames, plain_dense]


def pixels(network, T=40):
    return np.random.default_rng(1).uniform(size=(T, *network.input_shape[1:])).astype("float32")


@pytest.mark.parametrize(("make", "layout"), [*((make, "factored") for make in NETWORKS), (frames, "merged")])
def test_a_network_becomes_a_file(tmp_path, make, layout):
    network = make()
    x = pixels(network)
    report = export_tflite(network, tmp_path / "m.tflite", layout=layout, validation_data=(x,))
    np.testing.assert_allclose(run(report.path, x), computed(network, x), atol=5e-6)
    assert not any(op.startswith("CUSTOM") or op.endswith("VARIABLE") for op in report.ops)


def test_layouts_differ_only_where_a_layer_is_lowered():
    ours = keras.Sequential([keras.Input(SIZE), random_model("BSR", SIZE)])
    for network in (plain_dense(), ours, keras.Sequential([keras.Input(SIZE), Doubled(3, 2)])):
        assert exportable(network).layouts == ("merged",)
    for network in (backbone(), random_model("BLR", SIZE)):
        assert exportable(network).layouts == ("factored", "merged")


def test_a_factored_head_stays_factored(tmp_path):
    network = sequential()
    factored, merged = (
        export_tflite(network, tmp_path / "m.tflite", layout=layout) for layout in ("factored", "merged")
    )
    assert {"MUL", "SUM"} <= set(factored.ops)
    assert "SUM" not in merged.ops
    assert factored.parameters == 2 * (9 + 8) * 3 + 3
    assert merged.parameters == 9 * 8 * 3 + 3


@pytest.mark.parametrize(("make", "quantize"), [(backbone, "float16"), (backbone, "int8"), (two_heads, "dynamic")])
@pytest.mark.filterwarnings("ignore:quantize='dynamic' has left")
def test_a_quantised_network(tmp_path, make, quantize):
    network = make()
    x = pixels(network, T=100)
    export_tflite(
        network,
        tmp_path / "m.tflite",
        quantize,
        representative_data=x[:50],
        validation_data=(x[50:],),
        labels=["a", "b", "c"],
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_a_network_of_another_precision_becomes_float32(tmp_path, policy):
    with dtype_policy(policy):
        network = backbone()
    x = pixels(network)
    report = export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
    assert not any(op.startswith("CUSTOM") for op in report.ops)
    rounding = {"mixed_bfloat16": 3e-2, "float64": 5e-6}[policy]
    np.testing.assert_allclose(run(report.path, x), computed(network, x).astype("float32"), atol=rounding)


def test_a_binary_network_and_its_labels(tmp_path):
    network = backbone(units=1)
    x = pixels(network)
    y = (computed(network, x)[:, 0] > 0.5).astype(int)
    report = export_tflite(network, tmp_path / "m.tflite", labels=["no", "yes"], validation_data=(x, y))
    assert report.verification.default.accuracy == 1.0


def normalised():
    """A layer that derives what it computes from its weights, when it is told to."""
    image = keras.Input(SIZE)
    normalisation = keras.layers.Normalization(axis=None)
    normalisation.adapt(np.random.default_rng(0).normal(0.3, 0.1, size=(50, *SIZE)))
    return keras.Model(image, head()(normalisation(image)))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_state_beside_the_weights_is_kept(tmp_path, policy):
    with dtype_policy(policy):
        network = normalised()
    x = pixels(network)
    export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
    rounding = 5e-6 if policy == "float32" else 2e-2
    np.testing.assert_allclose(run(tmp_path / "m.tflite", x), computed(network, x), atol=rounding)


class Gain(keras.layers.Layer):
    """Holds a number that is neither in its config nor among its weights."""

    gain = 1.0

    def call(self, X):
        return self.gain * X


class Doubled(kb.BilinearDense):
    def call(self, X):
        return super().call(2 * X)


def test_layers_of_their_own_making_are_taken_as_they_are(tmp_path):
    for layers in ([Gain(), head()], [Doubled(3, 2, activation="softmax", left_initializer="glorot_uniform")]):
        network = keras.Sequential([keras.Input(SIZE), *layers])
        layers[0].gain = 3.0
        x = pixels(network)
        export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
        np.testing.assert_allclose(run(tmp_path / "m.tflite", x), computed(network, x), atol=5e-6)


def test_what_cannot_be_copied_into_float32_is_said(tmp_path):
    network = keras.Sequential([keras.Input(SIZE), Gain(dtype="mixed_float16"), head()])
    network.layers[0].gain = 3.0
    with pytest.raises(ValueError, match="Expected layers that their config and weights describe"):
        export_tflite(network, tmp_path / "m.tflite")


def test_our_models_within_networks(tmp_path):
    """Their state of training is not finite before the first fit, and no part of what they compute."""
    image = keras.Input(SIZE)
    inner = [random_model(kind, SIZE) for kind in ("BSR", "LSR")]
    inner.append(kb.AlternatingModel(image, head()(image)))
    for model in inner:
        network = keras.Sequential([keras.Input(SIZE), keras.layers.Rescaling(0.5), model])
        x = pixels(network)
        export_tflite(network, tmp_path / "m.tflite", validation_data=(x,))
        np.testing.assert_allclose(run(tmp_path / "m.tflite", x), computed(network, x), atol=5e-6)
    export_saved_model(network, tmp_path / "saved")


@pytest.mark.parametrize(
    ("activation", "units", "output"),
    [("softmax", 3, "logits"), ("sigmoid", 1, "logits"), (None, 3, "probabilities")],
)
def test_an_output_that_is_plainly_something_else_is_refused(tmp_path, activation, units, output):
    network = keras.Sequential([keras.Input(SIZE), keras.layers.Rescaling(20.0), head(units, activation)])
    with pytest.raises(ValueError, match="`output` to say what the network's last layer gives"):
        export_tflite(network, tmp_path / "m.tflite", output=output)


def test_pixels_in_other_units_are_refused(tmp_path):
    network = keras.Sequential([keras.Input(SIZE), head()])
    network.layers[0].assign_factors(*(5 * part for part in (network.layers[0].A, network.layers[0].B)))
    x = pixels(network, 64)
    with pytest.raises(ValueError, match="certain of the class of most images"):
        export_tflite(network, tmp_path / "m.tflite", "int8", representative_data=255 * x)


def test_loops_are_refused_where_they_crash_the_converter(tmp_path):
    image = keras.Input(SIZE)
    network = keras.Model(image, keras.layers.Dense(3, activation="softmax")(keras.layers.LSTM(4)(image)))
    with pytest.raises(ValueError, match=r"without loops for quantize='int8'.*unroll=True"):
        export_tflite(network, tmp_path / "m.tflite", "int8", representative_data=pixels(network))
    assert list(tmp_path.iterdir()) == []


def test_an_input_scale_and_images_without_a_channel_axis(tmp_path):
    network = backbone()
    x = pixels(network)
    export_tflite(network, tmp_path / "m.tflite", input_scale=1 / 255, validation_data=(255 * x[..., 0],))
    np.testing.assert_allclose(run(tmp_path / "m.tflite", 255 * x), computed(network, x), atol=5e-6)


def test_a_network_becomes_a_saved_model(tmp_path):
    network = backbone()
    x = pixels(network)
    export_saved_model(network, tmp_path / "m")
    serve = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    np.testing.assert_allclose(serve(image=tf.constant(x))["probabilities"], computed(network, x), atol=5e-6)


def test_operators_that_are_not_built_in_are_named(tmp_path):
    image = keras.Input((4, 4))
    scores = keras.layers.Concatenate()([keras.ops.det(image)[:, None], keras.ops.det(2 * image)[:, None]])
    with pytest.raises(ValueError, match=r"built-in operators. Received: TF Select ops: MatrixDeterminant"):
        export_tflite(keras.Model(image, scores), tmp_path / "m.tflite", output="logits")
    assert list(tmp_path.iterdir()) == []


def holds(*layers):
    """A network of layers before a bilinear one."""
    image = keras.Input(SIZE)
    maps = image
    for layer in layers:
        maps = layer(maps)
    return keras.Model(image, head()(maps))


def with_inner(name, change):
    """A network whose layer, or a layer within it, was changed after it was built."""
    layer = {
        "dense": lambda: keras.layers.Dense(8),
        "wrapped": lambda: keras.layers.TimeDistributed(keras.layers.Dense(8)),
        "nested": lambda: keras.Sequential([keras.Input(SIZE), keras.layers.Dense(8)]),
    }[name]()
    network = holds(layer)
    change({"dense": lambda: layer, "wrapped": lambda: layer.layer, "nested": lambda: layer.layers[0]}[name]())
    return network


@pytest.mark.parametrize("mode", ["int8", "float8"])
@pytest.mark.parametrize("name", ["dense", "wrapped", "nested"])
def test_layers_that_keras_has_quantised_are_refused(tmp_path, name, mode):
    network = with_inner(name, lambda layer: layer.quantize(mode))
    for act in (
        lambda: export_tflite(network, tmp_path / "m.tflite"),
        lambda: export_saved_model(network, tmp_path / "m"),
        lambda: verify_tflite(tmp_path / "m.tflite", network, pixels(network)),
    ):
        with pytest.raises(
            ValueError, match=r"export_tflite\(model, path, quantize=\"int8\"\).*quantised by Keras"
        ):
            act()
    assert list(tmp_path.iterdir()) == []


def test_lora_is_part_of_what_a_layer_computes(tmp_path):
    def adapted(layer):
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.random.default_rng(0).normal(size=layer.lora_kernel_b.shape))

    for policy in ("float32", "mixed_bfloat16"):
        with dtype_policy(policy):
            network = with_inner("dense", adapted)
        export_tflite(network, tmp_path / "m.tflite", validation_data=(pixels(network),))


def test_lora_that_no_config_speaks_of_is_refused_in_another_precision(tmp_path):
    with dtype_policy("mixed_bfloat16"):
        network = with_inner("wrapped", lambda layer: layer.enable_lora(2))
    export_tflite(network, tmp_path / "m.tflite")  # the wrapper's config has it
    with dtype_policy("mixed_bfloat16"):
        image = keras.Input(SIZE)
        attention = keras.layers.MultiHeadAttention(1, 2)
        network = keras.Model(image, head()(attention(image, image)))
    attention.query_dense.enable_lora(2)
    with pytest.raises(ValueError, match=r"Expected layers that their config and weights describe.*multi_head"):
        export_tflite(network, tmp_path / "m.tflite")


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_our_models_refuse_to_be_quantised_by_keras(mode):
    models = [random_model(kind) for kind in ("BSR", "BLR", "LSR", "LLR")] + [backbone()]
    for model in models:
        model.compile("sgd")
        variables = model.variables
        before = [variable.numpy() for variable in variables]
        with pytest.raises(ValueError, match=rf"{type(model).__name__} to keep floating-point.*export_tflite"):
            model.quantize(mode)
        assert [id(variable) for variable in model.variables] == [id(variable) for variable in variables]
        for variable, value in zip(variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        assert model.quantization_mode is None


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
def test_bilinear_layers_stay_in_floating_point_in_networks_that_keras_quantises():
    network = sequential()
    with pytest.warns(UserWarning, match=r"BilinearDense layer stays in floating point.*export_tflite"):
        network.quantize("int8")
    assert {variable.dtype for variable in network.variables} == {"float32"}


@pytest.mark.parametrize(
    "change",
    [lambda head: head.quantize("int8"), lambda head: head.quantize("float8"), lambda head: head.enable_lora(2)],
)
def test_a_linear_model_whose_weights_mean_something_else_to_keras_is_refused(tmp_path, change):
    model = random_model("LSR", SIZE)
    x, y = random_images(model), np.zeros(40)
    change(model.head)
    for act in (
        lambda: export_tflite(model, tmp_path / "m.tflite"),
        lambda: export_saved_model(model, tmp_path / "m"),
        lambda: verify_tflite(tmp_path / "m.tflite", model, x),
        lambda: model.objective(x, y),
        lambda: model.certificate(x, y),
        lambda: model.evaluate(x, y),
        lambda: model.fit(x, y),
        model.weight_matrices,
        lambda: kb.to_dense(model),
    ):
        with pytest.raises(ValueError, match=r"Expected floating-point weights as fitted; `export_tflite\("):
            act()
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_refused(tmp_path):
    for network in (backbone(), sequential(), plain_dense()):
        first = network.trainable_variables[0]
        first.assign(np.full(first.shape, np.nan))
        with pytest.raises(ValueError, match="finite float32 weights"):
            export_tflite(network, tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []


def test_exporting_leaves_the_network_as_it_was(tmp_path):
    network = backbone()
    x = pixels(network)
    before = [variable.numpy() for variable in network.variables]
    expected = computed(network, x)
    export_tflite(network, tmp_path / "m.tflite")
    for old, variable in zip(before, network.variables, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())
    np.testing.assert_array_equal(computed(network, x), expected)


def test_a_copy_computes_the_same_in_float32():
    network = backbone()
    copy = float32_copy(network)
    x = pixels(network)
    np.testing.assert_allclose(computed(copy, x), computed(network, x), atol=1e-6)
    assert {variable.dtype for variable in copy.trainable_variables} == {"float32"}


def test_only_floating_types_of_a_config_become_float32():
    config = {
        "dtype": {"class_name": "DTypePolicy"},
        "layer": {"config": [{"dtype": "bfloat16"}, {"dtype": "int32"}]},
    }
    assert in_float32(config) == {
        "dtype": "float32",
        "layer": {"config": [{"dtype": "float32"}, {"dtype": "int32"}]},
    }


def test_a_dynamic_batch(tmp_path):
    network = two_heads()
    x = pixels(network, 5)
    export_tflite(network, tmp_path / "m.tflite", batch_size=None, validation_data=(x,))
    for batch in (1, 5):
        np.testing.assert_allclose(run(tmp_path / "m.tflite", x, batch=batch), computed(network, x), atol=5e-6)
