"""Data sets that yield what no model of images and labels can be trained on."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.datasets import check_dataset
from tests.files import random_images, random_model

X, Y = random_images(random_model("BSR"), 6), np.arange(6) % 3
SETS = {
    "without labels": (X, "images without labels"),
    "a tuple without labels": ((X,), "images without labels"),
    "dicts": ({"image": X, "label": Y}, "dicts of image, label; `data.map"),
    "images in dicts": (({"image": X}, Y), "{'image': .* among its parts"),
    "labels in dicts": ((X, {"label": Y}), "{'label': .* among its parts"),
    "too many parts": ((X, Y, Y, Y), "4 parts"),
    "names": ((X, Y.astype(str)), ".*tf.string.* among its parts"),
    "ragged": ((tf.ragged.constant([[[1.0, 2.0], [3.0]]] * 6), Y), "RaggedTensorSpec"),
}


def batches(parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(6)


@pytest.mark.parametrize(("parts", "message"), SETS.values(), ids=SETS)
def test_sets_are_refused_by_what_they_say_they_yield(parts, message):
    with pytest.raises(ValueError, match=f"Expected the data set `x` to yield batches.*Received: {message}"):
        check_dataset(batches(parts), "x")


def test_sets_that_will_do():
    for data in (batches((X, Y)), batches((X, Y, Y)).repeat(), batches((X[..., None], np.eye(3)[Y])), (X, Y), None):
        check_dataset(data, "x")
    with pytest.raises(ValueError, match="Received: an empty one"):
        check_dataset(batches((X, Y)).take(0), "x")


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_nothing_changes_before_a_set_is_refused(optimizer):
    model, data = random_model("BSR"), batches({"image": X, "label": Y})
    model.compile(optimizer)
    before = [variable.numpy() for variable in model.variables]
    for act in (
        lambda: model.fit(data, verbose=0),
        lambda: model.fit(X, Y, validation_data=data, verbose=0),
        lambda: model.evaluate(data, verbose=0),
    ):
        with pytest.raises(ValueError, match=r"Expected the data set `(x|validation_data)` to yield"):
            act()
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
