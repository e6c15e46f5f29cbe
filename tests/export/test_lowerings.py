"""Weights as they are written into files."""

import numpy as np
import pytest

from keras_bilinear.export.files import export_tflite
from keras_bilinear.export.inference_graph import inference_graph
from keras_bilinear.export.lowerings import balanced
from keras_bilinear.maths.bilinear import canonical_factors
from tests.files import random_images, random_model
from tests.problems import random_factors


def norms(A, B):
    return np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1)


@pytest.mark.parametrize("scale", [1e-30, 1e-5, 1.0, 3.0, 1e9])
def test_balancing_rounds_nothing_and_leaves_columns_alike_in_size(scale):
    A, B = random_factors()
    A, B = scale * A, B / scale
    a, b = balanced(A, B)
    np.testing.assert_array_equal(A[:, :, None] * B[:, None], a[:, :, None] * b[:, None])
    ratio = np.divide(*norms(a, b))
    assert np.all((ratio > 0.25) & (ratio < 4))
    for again, once in zip(balanced(a, b), (a, b), strict=True):
        np.testing.assert_array_equal(again, once)


def test_factors_that_are_balanced_stay_what_they_are():
    canonical = [np.asarray(factors) for factors in canonical_factors(*random_factors())]
    A, B = random_factors()
    A[0, :, 1] = B[1, :, 2] = 0  # not in use: nothing to balance
    for pair in (canonical, (A[:, :, [1]][[0]], B[:, :, [1]][[0]]), (A[:, :, [2]][[1]], B[:, :, [2]][[1]])):
        for after, before in zip(balanced(*pair), pair, strict=True):
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("kind", ["BSR", "BLR"])
def test_scores_are_the_same_to_the_last_bit(kind):
    model, x = random_model(kind), random_images(random_model(kind))
    z = inference_graph(model).scores(x)
    A, B = model.factors()
    model.head.assign_factors(np.float32(2**20) * A, np.float32(2**-20) * B)
    np.testing.assert_array_equal(inference_graph(model).scores(x), z)


def test_an_input_scale_leaves_no_factor_too_small_for_float32():
    """As it does where it is multiplied into factors that are unbalanced already."""
    model, x = random_model("BSR"), random_images(random_model("BSR"))
    A, B = model.factors()
    z = inference_graph(model).scores(x).numpy()
    model.head.assign_factors(A * np.float32(2**70), B * np.float32(2**-70))
    scaled = inference_graph(model, input_scale=2.0**-80).scores(x * np.float32(2**80)).numpy()
    np.testing.assert_array_equal(scaled, z)


@pytest.mark.parametrize(("kind", "layout"), [("BSR", "factored"), ("BSR", "merged"), ("LLR", "merged")])
def test_weights_that_vanish_in_float32_are_refused(tmp_path, kind, layout):
    model = random_model(kind)
    first = model.trainable_variables[0]
    first.assign(np.float32(1e-30) * first.numpy())
    if kind == "BSR":
        model.head.assign_factors(*(np.float32(1e-30) * factor for factor in model.factors()))
    with pytest.raises(
        ValueError, match=r"Expected weights that float32 can hold, input scale included. Received: "
    ):
        export_tflite(model, tmp_path / "m.tflite", layout=layout, input_scale=1e-30)
    assert list(tmp_path.iterdir()) == []
