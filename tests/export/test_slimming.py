"""What is left out of a file changes nothing that a runtime does."""

import numpy as np
import pytest

from keras_bilinear.export import litert
from keras_bilinear.export.converter import tflite_content
from keras_bilinear.export.inference_graph import inference_graph
from keras_bilinear.export.interpreter import file_scores, loaded
from keras_bilinear.export.slimming import slim
from tests.files import random_images, random_model


@pytest.fixture(scope="module")
def files():
    """quantize -> a file as the converter writes it."""
    model = random_model("BSR", size=(28, 28), units=10, use_bias=True)
    x = random_images(model)
    return x, {
        quantize: tflite_content(
            inference_graph(model, quantized=quantize == "int8"), quantize=quantize, images=x if quantize else None
        )
        for quantize in (None, "int8")
    }


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_scores_stay_bit_for_bit_and_a_good_part_is_gone(files, quantize):
    x, content = files[0], files[1][quantize]
    smaller = slim(content)
    assert len(content) - len(smaller) > (600 if quantize else 400)
    for kernels in ("default", "reference"):
        np.testing.assert_array_equal(
            file_scores(loaded(smaller, kernels), x), file_scores(loaded(content, kernels), x)
        )
    assert slim(smaller) == smaller
    assert litert.operators(smaller) == litert.operators(content)
    assert litert.stored_weights(smaller) == litert.stored_weights(content)


def test_ends_keep_the_names_of_the_signature(files):
    smaller = slim(files[1]["int8"])
    interpreter = loaded(smaller, "default")
    assert interpreter.get_signature_list() == loaded(files[1]["int8"], "default").get_signature_list()
    assert interpreter.get_input_details()[0]["name"] == "image"
    assert interpreter.get_output_details()[0]["name"] == "probabilities"
    assert litert.metadata(litert.with_metadata(smaller, {"labels": ["a"]})) == {"labels": ["a"]}
    names = [entry.name for entry in litert.unpacked(smaller).metadata]
    assert names == [b"min_runtime_version"]
