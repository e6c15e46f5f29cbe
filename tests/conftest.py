"""Data shared by the tests: scikit-learn's digits, and MNIST where tensorflow-datasets has it prepared."""

import gc
import os
import pathlib
import random

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.atomic_files import temporary_sibling

# Two devices, for tests of several replicas: TensorFlow wants to know before it does anything.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True, scope="module")
def nothing_to_look_through():
    """Takes what a file of tests leaves behind out of the garbage collector's sight.

    TensorFlow keeps its graphs, millions of objects in the end: looking through them takes up to a minute a time.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def seeded_again():
    """Before every test, but for TensorFlow's seed: to set that makes it prepare all its graphs anew."""
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def digits():
    """(x, y): 1,797 scans of 8 x 8 pixels in [0, 1] and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.images / 16).astype("float32"), data.target.astype("int32")


@pytest.fixture(scope="session")
def mnist_is_prepared():
    folder = os.environ.get("TFDS_DATA_DIR")
    if not folder or not (pathlib.Path(folder) / "mnist").is_dir():
        pytest.skip("MNIST is not prepared: set TFDS_DATA_DIR to a tensorflow-datasets folder that holds it")


@pytest.fixture(scope="session")
def mnist(mnist_is_prepared, tmp_path_factory):
    """{"train": (x, y), "test": (x, y)} in the order of tensorflow-datasets, pixels / 255."""
    folder = tmp_path_factory.getbasetemp()
    # The processes of one run share what is above their folders.
    kept = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "mnist.npz"
    if not kept.exists():
        with temporary_sibling(kept) as new:
            with open(new, "wb") as file:
                np.savez(file, **decoded_mnist())
            os.replace(new, kept)
    with np.load(kept) as file:
        arrays = {name: file[name] for name in file.files}
    return {
        split: (arrays[f"{split}_x"].astype("float32") / 255, arrays[f"{split}_y"].astype("int32"))
        for split in ("train", "test")
    }


def decoded_mnist():
    """{"train_x": bytes (T, 28, 28), "train_y": ...} and the same of "test"."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside tensorflow-datasets and its dependencies
        import tensorflow_datasets as tfds

        data = {
            split: tfds.as_numpy(tfds.load("mnist", split=split, batch_size=-1, as_supervised=True))
            for split in ("train", "test")
        }
    return {
        f"{split}_{name}": part for split, (x, y) in data.items() for name, part in (("x", x[..., 0]), ("y", y))
    }


LONG = {
    "test_readme.py",
    "test_paper.py",
    "test_mnist.py",
    "test_properties.py",
    "test_four_models.py",
    "test_quickstart.py",
    "test_guides.py",
    "test_replicas.py",
}
"""Files of few tests that take long, and come first: at the end, one process would wait for the other."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_configure(config):
    np.set_printoptions(precision=6, suppress=True)
