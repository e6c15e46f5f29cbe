"""Reading TFLite files, and writing what they say of themselves."""

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from keras_bilinear.export import ConversionError, VerificationError, export_tflite, litert, verify_tflite
from tests.files import random_images, random_model

FACTS = {"labels": ["null", "eins", "zwei £"], "input_range": [0.0, 255.0]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "m.tflite"
    return export_tflite(random_model("BSR"), path).path.read_bytes()


def test_metadata_are_read_back_and_change_nothing_else(plain):
    assert litert.metadata(plain) == {}
    named = litert.with_metadata(plain, FACTS)
    assert litert.metadata(named) == FACTS
    assert litert.operators(named) == litert.operators(plain)
    assert litert.stored_weights(named) == litert.stored_weights(plain)
    image = random_images(random_model("BSR"), T=1)
    runs = [
        Interpreter(model_content=content).get_signature_runner("serving_default") for content in (plain, named)
    ]
    np.testing.assert_array_equal(*(run(image=image)["probabilities"] for run in runs))


def test_the_same_facts_give_the_same_bytes(plain):
    reordered = dict(reversed(FACTS.items()))
    assert litert.with_metadata(plain, FACTS) == litert.with_metadata(plain, reordered)


def test_metadata_cost_little(plain):
    assert len(litert.with_metadata(plain, {})) <= len(plain) + 150


def test_stored_weights(plain):
    weights = litert.stored_weights(plain)
    assert sorted(weights) == [("FLOAT32", (1, 14, 3)), ("FLOAT32", (6, 5))] or sorted(weights) == [
        ("FLOAT32", (6, 5)),
        ("FLOAT32", (14, 3)),
    ]


# Damaged files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """quantize -> a model, and the bytes of its file, of which nothing but its scores can be checked."""
    path, model = tmp_path_factory.mktemp("damaged") / "m.tflite", random_model("BSR", use_bias=True)
    contents = {}
    for quantize in (None, "int8"):
        export_tflite(model, path, quantize, representative_data=random_images(model))
        facts = {} if quantize is None else {"quantize": quantize}
        contents[quantize] = litert.with_metadata(path.read_bytes(), facts)
    return model, contents


@pytest.fixture
def verified(files, tmp_path):
    """Verifies the bytes of a file."""

    def verify(content):
        (tmp_path / "m.tflite").write_bytes(content)
        return verify_tflite(tmp_path / "m.tflite", files[0], random_images(files[0], T=4))

    return verify


def setting(value, *path):
    """Puts a value where a path of names and indices leads within a file."""

    def change(file):
        place = file
        for step in path[:-1]:
            place = getattr(place, step) if isinstance(step, str) else place[step]
        last = path[-1]
        setattr(place, last, value) if isinstance(last, str) else place.__setitem__(last, value)

    return change


def ops(*path):
    return ("subgraphs", 0, "operators", *path)


def tensors(*path):
    return ("subgraphs", 0, "tensors", *path)


DAMAGE = [
    # Written by two operators, LiteRT frees it twice: "double free or corruption".
    (None, setting([9], *ops(-1, "outputs")), "operators that read what no other has written"),
    (None, setting([11], *ops(0, "inputs")), "operators that read"),
    (None, setting([99, 1, -1], *ops(0, "inputs")), "operators that read"),
    (None, setting([99], *ops(0, "outputs")), "operators that read"),
    (None, setting([-5], *ops(0, "outputs")), "operators that read"),
    (None, setting([1], *ops(0, "outputs")), "operators that read"),
    (None, setting([99], "subgraphs", 0, "outputs"), "operators that read"),
    (None, setting([99], "subgraphs", 0, "inputs"), "operators that read"),
    (None, setting([], "subgraphs", 0, "operators"), "operators that read"),
    (None, setting(99, *ops(0, "opcodeIndex")), "a place that does not exist"),
    (None, setting(99, *tensors(1, "buffer")), "a place that does not exist"),
    (None, setting(0, *tensors(1, "buffer")), "operators that read"),
    (None, setting([], "subgraphs"), "a place that does not exist"),
    (None, setting(3, "signatureDefs", 0, "subgraphIndex"), "a place that does not exist"),
    (None, setting(99, "signatureDefs", 0, "inputs", 0, "tensorIndex"), "a signature that is not about"),
    (None, setting(0, "signatureDefs", 0, "outputs", 0, "tensorIndex"), "a signature that is not about"),
    (None, setting([], "signatureDefs"), "Expected a signature"),
    (None, setting(99, "metadata", 0, "buffer"), None),
    (None, setting(99, "metadata", -1, "buffer"), "Expected JSON in the metadata"),
    (None, setting(np.array([1, 7, 2**30], "int32"), *tensors(0, "shape")), "a tensor of shape"),
    (None, setting(np.array([1, -7, 5], "int32"), *tensors(0, "shape")), "a tensor of shape"),
    (None, setting(np.array([2, 7, 5], "int32"), *tensors(0, "shape")), "those of the model. Received: images"),
    (None, setting(np.array([1, 5, 7], "int32"), *tensors(0, "shape")), "those of the model. Received: images"),
    (
        None,
        setting(np.array([1, 7, 6], "int32"), *tensors(1, "shape")),
        "Expected a TFLite file. Received: .*bytes",
    ),
    (None, setting(b"\xff\xfe", *tensors(0, "name")), "Expected a file that LiteRT runs"),
    (None, setting(4, *tensors(0, "type")), "Expected"),  # int64
    (None, setting(999, "operatorCodes", 0, "builtinCode"), "Expected"),
    ("int8", setting([-384], *tensors(-6, "quantization", "zeroPoint")), "zero points .* of int8"),
    ("int8", setting([-0.004], *tensors(-6, "quantization", "scale")), "scales .* of int8"),
    ("int8", setting([float("nan")], *tensors(-6, "quantization", "scale")), "scales .* of int8"),
]


@pytest.mark.parametrize(("quantize", "damage", "message"), DAMAGE)
def test_damage_is_refused_and_ends_no_process(files, verified, quantize, damage, message):
    file = litert.unpacked(files[1][quantize])
    damage(file)
    if message is None:  # what the converter says of itself is no matter
        verified(litert.packed(file))
        return
    with pytest.raises(VerificationError, match=message):
        verified(litert.packed(file))


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_flipped_bit_is_harmless_or_refused(files, verified, quantize):
    content, refused = files[1][quantize], 0
    for bit in range(11, 8 * len(content), 8 * len(content) // 30):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            verified(bytes(damaged))
        except VerificationError:
            refused += 1
    assert refused > 10


def test_bytes_that_are_no_file(files, verified):
    rng, content = np.random.default_rng(0), files[1][None]
    starts = (b"", b"\0\0\0\0TFL3", b"\x1c\0\0\0TFL3", content[:100], content[:1000])
    noise = [start + rng.bytes(size) for start in starts for size in (0, 8, 300, 2000)]
    for damaged in [*noise, *(content[:size] for size in range(0, len(content), len(content) // 20))]:
        with pytest.raises(VerificationError, match="Expected "):
            verified(damaged)


def test_a_network_that_gives_all_images_the_same_score_ends_no_process(tmp_path):
    """LiteRT does not survive the soft-max of such scores in int8."""
    image = keras.Input((7, 5))
    flat = keras.layers.Flatten()(image)
    network = keras.Model(image, keras.layers.Dense(3, kernel_initializer="zeros", activation="softmax")(flat))
    x = np.random.default_rng(0).uniform(size=(40, 7, 5))
    with pytest.raises(ConversionError, match="a soft-max of scores that are all the same"):
        export_tflite(network, tmp_path / "m.tflite", "int8", representative_data=x)
    assert list(tmp_path.iterdir()) == []
