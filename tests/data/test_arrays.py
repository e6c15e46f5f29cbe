import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.data import arrays as data
from keras_bilinear.data.unusual import warn_of_one_class


def good(T=6, M=4, N=3, K=3):
    rng = np.random.default_rng(0)
    return rng.random((T, M, N)), np.arange(T) % max(K, 2)


@pytest.mark.parametrize("form", [lambda x: x, tf.convert_to_tensor, lambda x: x.tolist(), lambda x: x[..., None]])
def test_images_in_every_form(form):
    x, y = good()
    batch = data.checked_batch(form(x), y, K=3)
    np.testing.assert_allclose(batch.x, x, rtol=1e-6)
    assert batch.x.dtype == "float32"
    assert batch.weight.tolist() == [1.0] * 6


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float64", "bool"])
def test_images_of_every_dtype(dtype):
    x, y = good()
    found = data.checked_batch((x * 200).astype(dtype), y, K=3).x.dtype
    assert found == ("uint8" if dtype == "uint8" else "float32"), "bytes stay bytes"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(6), r"shape \(T, M, N\)"),
        (np.zeros((6, 4)), r"shape \(T, M, N\)"),
        (np.zeros((6, 4, 3, 3)), "one channel.*side by side"),
        (np.zeros((6, 12)), "x.reshape"),
        (np.zeros((6, 4, 3, 1, 1)), r"shape \(T, M, N\)"),
        (np.zeros((0, 4, 3)), "at least one image"),
        (np.zeros((6, 0, 3)), "at least one image"),
        (np.full((6, 4, 3), np.nan), "finite numbers in `x`"),
        (np.where(np.arange(72).reshape(6, 4, 3) == 70, np.inf, 0), "finite numbers in `x`"),
        (np.zeros((6, 4, 3), complex), "real numbers"),
        (np.full((6, 4, 3), "a"), "real numbers"),
        ([[[1, 2], [3]], [[1, 2], [3, 4]]], "array of numbers"),
        (tf.ragged.constant([[[1.0, 2.0], [3.0]]]), "dense array"),
        (np.zeros((6, 5, 3)), "size the model was built for"),
    ],
)
def test_bad_images(x, message):
    with pytest.raises(ValueError, match=message):
        data.checked_images(x, (4, 3))


@pytest.mark.parametrize(
    "form", [lambda y: y, lambda y: y[:, None], lambda y: y.astype(float), lambda y: y.tolist()]
)
def test_labels_in_every_form(form):
    y = np.array([0, 1, 2, 0, 1, 2])
    assert data.checked_labels(form(y), 3, 6).tolist() == y.tolist()


def test_one_hot_and_binary_labels():
    one_hot = np.eye(3)[[0, 1, 2]]
    np.testing.assert_array_equal(data.checked_labels(one_hot, 3, 3), one_hot)
    for y in ([0, 1, 1], [[0], [1], [1]], [False, True, True], [0.0, 1.0, 1.0]):
        assert data.checked_labels(np.array(y), 1, 3).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("y", "K", "message"),
    [
        (None, 3, "Expected labels"),
        ([0, 1, 2, 3, 0, 1], 3, r"0 to 2. Received: \[3\]"),
        ([0, 1, -1, 2, 0, 1], 3, r"Received: \[-1\]"),
        ([0, 1, 2, 0, 1, 0.5], 3, r"Received: \[0.5\]"),
        ([0, 1, 2, 0, 1, np.nan], 3, "finite numbers in `y`"),
        ([0, 1, 2], 3, "one label for each image"),
        (np.zeros((6, 2)), 3, "one label for each image"),
        (np.zeros((6, 3)), 3, "one-hot"),
        (np.eye(3)[[0, 1, 2, 0, 1, 2]] * 2 - np.eye(3)[[1, 2, 0, 1, 2, 0]], 3, "one-hot"),
        (["cat"] * 6, 3, "BilinearClassifier takes labels of any kind"),
        (np.array(["cat", 1, 2, 0, 1, 2], object), 3, "BilinearClassifier"),
        (np.eye(3)[[0, 1, 2, 0, 1, 2]] * 0.99, 3, "a row that sums to 0.99"),
        (tf.cast([0, 0.9, 1, 0, 1, 1], "bfloat16"), 3, "Received: \\[0.89"),
        (tf.cast([0, 0.9, 1, 0, 1, 1], "bfloat16"), 1, "Received: \\[0.89"),
        ([0, 1, 2, 0, 1, 1], 1, "0 to 1"),
        ([-1, 1, -1, 1, -1, 1], 1, "0 to 1"),
    ],
)
def test_bad_labels(y, K, message):
    with pytest.raises(ValueError, match=message):
        data.checked_labels(y, K, 6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("factor", [0.9995, 1.0004, 1.0])
def test_rows_of_soft_labels_are_divided_by_their_sum(factor, dtype):
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 6).astype(dtype) * factor
    labels = data.checked_batch(good()[0], rows, 3, dtype="float64").y
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(labels, rows / factor, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8", "int64", "bool"])
def test_labels_of_every_dtype(dtype):
    y = np.array([0, 1, 1, 0])
    assert data.checked_labels(tf.cast(y, dtype), 3, 4).tolist() == y.tolist()


@pytest.mark.parametrize("name", ["x", "y", "sample_weight"])
def test_masked_entries_are_refused(name):
    x, y = good()
    given = {"x": x, "y": y, "sample_weight": np.ones(6)}
    unmasked = {**given, name: np.ma.masked_array(given[name], mask=False)}
    assert data.checked_batch(K=3, **unmasked).x.shape == x.shape
    mask = np.zeros(given[name].shape, bool)
    mask.flat[2] = True
    for masked in (np.ma.masked_array(given[name], mask), list(np.ma.masked_array(given[name], mask))):
        with pytest.raises(ValueError, match=f"Expected `{name}` without masked entries"):
            data.checked_batch(K=3, **{**given, name: masked})


def test_sparse_matrices_are_refused():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="dense array"):
        data.checked_images(scipy_sparse.eye(4).tocsr(), None)


@pytest.mark.parametrize(
    ("weight", "class_weight"),
    [
        ([3e38] * 6, None),
        ([1e30] * 6, {0: 1e30}),
        ([1.0] * 6, {0: 1e39}),
        ([1e-30] * 6, dict.fromkeys(range(3), 1e-30)),
    ],
)
def test_weights_that_float32_cannot_hold(weight, class_weight):
    x, y = good()
    with pytest.raises(ValueError, match=r"weights whose sum is a float32 number|weights that are all zero"):
        data.checked_batch(x, y, 3, weight, class_weight)
    assert np.isfinite(data.checked_batch(x, y, 3, weight, class_weight, dtype="float64").weight).all()


@pytest.mark.parametrize("K", [1, 3])
def test_a_single_class_is_warned_about(K):
    x, _ = good(T=3)
    with pytest.warns(UserWarning, match="one class only"):
        warn_of_one_class(data.class_indices(data.checked_batch(x, [1, 1, 1], K).y, K))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1, 1], "sample_weight` of shape"),
        ([1, 1, 1, 1, 1, -1], "`sample_weight` >= 0"),
        ([1, 1, 1, 1, 1, np.inf], "finite numbers in `sample_weight`"),
        ([0] * 6, "all zero"),
        (["a"] * 6, "real numbers"),
    ],
)
def test_bad_weights(weight, message):
    x, y = good()
    with pytest.raises(ValueError, match=message):
        data.checked_batch(x, y, 3, weight)


def test_class_and_sample_weights_multiply():
    x, y = good()
    batch = data.checked_batch(x, y, 3, np.arange(6), class_weight={0: 2.0, 2: 3.0})
    np.testing.assert_allclose(batch.weight, np.arange(6) * np.array([2, 1, 3, 2, 1, 3]))
    onehot = data.checked_batch(x, np.eye(3)[y], 3, np.arange(6), class_weight={0: 2.0, 2: 3.0})
    np.testing.assert_allclose(onehot.weight, batch.weight)


@pytest.mark.parametrize("class_weight", [{3: 1.0}, {"a": 1.0}, {0: -1.0}, {0: np.nan}])
def test_bad_class_weights(class_weight):
    with pytest.raises(ValueError, match="Expected"):
        data.checked_batch(*good(), 3, class_weight=class_weight)


def test_the_only_batch_of_a_dataset():
    x, y = good()
    one = tf.data.Dataset.from_tensors((x, y))
    for dataset in (one, one.repeat(), one.repeat(2)):
        np.testing.assert_array_equal(data.the_only_batch(dataset)["x"], x)
    with pytest.raises(ValueError, match="changing or partial batch"):
        data.the_only_batch(tf.data.Dataset.from_tensor_slices((x, y)).batch(4))
    with pytest.raises(ValueError, match="yields"):
        data.the_only_batch(tf.data.Dataset.from_tensors(x))
    with pytest.raises(ValueError, match="x=None"):
        data.the_only_batch(None)


@pytest.mark.parametrize("one", [1, 1.0, True, np.int64(1), np.float32(1)])
def test_a_class_is_named_by_any_number_equal_to_it(one):
    assert data.class_weights({one: 2.0}, 3).tolist() == [1.0, 2.0, 1.0]


def test_balanced_weights_are_the_classifiers():
    with pytest.raises(ValueError, match="BilinearClassifier takes 'balanced'"):
        data.class_weights("balanced", 3)


@pytest.mark.parametrize("class_weight", ["balanced", [1.0, 2.0, 3.0], {1.5: 1.0}, {np.nan: 1.0}])
def test_class_weights_that_name_no_class(class_weight):
    with pytest.raises(ValueError, match="Expected `class_weight`"):
        data.class_weights(class_weight, 3)


@pytest.mark.parametrize("beside", ["y", "sample_weight"])
@pytest.mark.parametrize("form", [lambda d: d, iter])
def test_labels_and_weights_beside_a_dataset_are_refused(form, beside):
    x, y = good()
    with pytest.raises(ValueError, match="within the data set"):
        data.the_only_batch(form(tf.data.Dataset.from_tensors((x, y))), **{beside: y})
