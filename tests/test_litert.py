"""Reading TFLite files, and writing what they say of themselves."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from keras_bilinear import litert
from keras_bilinear.export import export_tflite
from tests.files import random_images, random_model

FACTS = {"labels": ["null", "eins", "zwei £"], "input_range": [0.0, 255.0]}


@pytest.fixture
def plain(tmp_path):
    return export_tflite(random_model("BSR"), tmp_path / "m.tflite").path.read_bytes()


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
