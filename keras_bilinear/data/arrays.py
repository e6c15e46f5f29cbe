"""Checks of training data, made before anything is computed: each fault gets its own clear error."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bilinear.parts.losses import ROUNDING
from keras_bilinear.parts.matrices import is_compatible, matrix_shape


class Batch(NamedTuple):
    """Checked arrays: images x (T, M, N), labels y as given, one weight per sample (T,)."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def checked_batch(
    x: Any,
    y: Any,
    K: int,
    sample_weight: Any = None,
    class_weight: Mapping[Any, float] | None = None,
    size: tuple[int, int] | None = None,
    dtype: str = "float32",
) -> Batch:
    """Checks images, labels and weights together.

    Args:
        x: Images (T, M, N) or (T, M, N, 1), real numbers.
        y: Labels; see `checked_labels`.
        K: Number of classes; 1 for binary models.
        sample_weight: (T,) non-negative numbers, or None for all ones.
        class_weight: Weight of each class; multiplies the sample weights. Classes left out have weight 1.
        size: (M, N) the model was built for, or None.
        dtype: Of the weights returned, and of the images unless they are bytes, which stay bytes.

    Raises:
        ValueError: for anything the model cannot be trained on.
    """
    images = checked_images(x, size, dtype)
    labels = checked_labels(y, K, len(images))
    if K > 1 and labels.ndim == 2:
        labels = labels.astype(dtype)
    weight = checked_weights(sample_weight, len(images))
    if class_weight is not None:
        weight = weight * class_weights(class_weight, max(K, 2))[class_indices(labels, K)]
    expect_weight(weight.sum(), dtype)
    weight = weight.astype(dtype)
    expect_weight(weight.max(), dtype)  # or it was too little to be seen
    return Batch(images, labels, weight)


def expect_weight(total: float, dtype: str) -> None:
    """Raises a ValueError if the sum of all weights is beyond `dtype`, or nothing."""
    if not total <= np.finfo(dtype).max:
        raise ValueError(
            f"Expected weights whose sum is a {dtype} number. Received: `sample_weight`, times `class_weight` if "
            f"given, with the sum {total:.2g}"
        )
    if not total:
        raise ValueError("Expected some samples to have weight. Received: weights that are all zero")


def checked_images(x: Any, size: tuple[int, int] | None, dtype: str = "float32") -> np.ndarray:
    """`x` as a finite array (T, M, N) of `dtype` or of bytes, T >= 1; a channel axis of one is dropped."""
    images = as_array(x, "x")
    if not images.size and images.ndim in (3, 4):
        raise ValueError(f"Expected at least one image with pixels. Received: x of shape {images.shape}")
    check_image_shape("x", images.shape, size)
    images = images[..., 0] if images.ndim == 4 else images
    matrix_shape(images.shape)
    if images.dtype == "uint8":
        return images
    with np.errstate(over="ignore"):
        images = images.astype(dtype, copy=False)
    check_finite(images, "x")
    return images


def check_image_shape(name: str, shape: tuple[int | None, ...], size: tuple[int, int] | None) -> None:
    """Raises a ValueError for a shape that images of `size`, (M, N) or None if any will do, cannot have."""
    expected = f"Expected `{name}` of shape (T, M, N) or (T, M, N, 1)"
    received = f"Received: {name} of shape {shape}"
    if len(shape) == 2:
        raise ValueError(f"{expected}; flat rows become images by `x.reshape(-1, M, N)`. {received}")
    if len(shape) not in (3, 4):
        raise ValueError(f"{expected}. {received}")
    if len(shape) == 4 and shape[3] not in (1, None):
        raise ValueError(
            f"{expected}, images with one channel. Lay the channels side by side, `x.reshape(*x.shape[:2], -1)`, "
            "or take their mean, `x.mean(axis=-1)`, or give the model `input_shape` (M, N, C) and `rows`. "
            f"{received}"
        )
    if size is not None and not is_compatible(shape[1:3], size):
        raise ValueError(f"Expected images of {size[0]} x {size[1]}, the size the model was built for. {received}")


def checked_labels(y: Any, K: int, T: int) -> np.ndarray:
    """`y` as integers (T,) in 0..K-1, or as rows (T, K) that sum to 1; for K = 1 as 0/1 labels (T,)."""
    if y is None:
        raise ValueError("Expected labels `y` of shape (T,). Received: y=None")
    labels = as_array(y, "y")
    check_label_shape("y", labels.shape, K, T)
    check_finite(labels, "y")
    if K > 1 and labels.shape[1:] == (K,):
        return distributions(labels)
    return checked_class_numbers(labels.reshape(-1), max(K, 2))


def check_label_shape(name: str, shape: tuple[int | None, ...], K: int, T: int | None = None) -> None:
    """Raises a ValueError for a shape that labels of T images, if that is known, cannot have."""
    forms = [(), (1,), (None,), (K,)]
    if not 1 <= len(shape) <= 2 or shape[1:] not in forms or (None not in (shape[0], T) and shape[0] != T):
        count = "T" if T is None else T
        named = f"({count},) or ({count}, 1)" + (f", or one-hot of shape ({count}, {K})" if K > 1 else "")
        raise ValueError(
            f"Expected `{name}` of shape {named}, one label for each image. Received: labels of shape {shape}"
        )


def distributions(rows: np.ndarray) -> np.ndarray:
    """Rows (T, K) of probabilities, divided by what they sum to: 1 but for rounding, or a ValueError.

    The least excess would let J fall without end: a score that is added to all classes would change V.
    """
    rows = rows.astype("float64")
    total = rows.sum(axis=1, keepdims=True)
    if np.any(rows < 0) or np.any(np.abs(total - 1) > ROUNDING):
        raise ValueError(
            "Expected one-hot labels: rows of non-negative numbers that sum to 1. Received: a row that sums to "
            f"{total[np.argmax(np.abs(total - 1))][0]:.6g}, the least number {rows.min():.2g}"
        )
    return rows / total


def checked_class_numbers(labels: np.ndarray, classes: int) -> np.ndarray:
    """Whole numbers in 0..classes-1 as int32."""
    whole = np.equal(labels, np.round(labels)) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
    wrong = labels[~whole | (labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(
            f"Expected labels that are whole numbers from 0 to {classes - 1}. Received: {wrong[:5].tolist()}"
        )
    return labels.astype("int32")


def checked_weights(sample_weight: Any, T: int) -> np.ndarray:
    """`sample_weight` as finite, non-negative float64 (T,); ones for None."""
    if sample_weight is None:
        return np.ones(T)
    weight = as_array(sample_weight, "sample_weight")
    if weight.shape not in {(T,), (T, 1)}:
        raise ValueError(f"Expected `sample_weight` of shape ({T},). Received: {weight.shape}")
    check_finite(weight, "sample_weight")
    if np.any(weight < 0):
        raise ValueError(f"Expected `sample_weight` >= 0. Received: a weight of {weight.min()}")
    return weight.reshape(-1).astype("float64")


def class_weights(class_weight: Any, classes: int) -> np.ndarray:
    """The weight of each class, (classes,), from a dict of some of them; 1 for those left out."""
    if not isinstance(class_weight, Mapping):
        raise ValueError(
            "Expected `class_weight` to map classes to weights; BilinearClassifier takes 'balanced' as well. "
            f"Received: {class_weight!r}"
        )
    # A class may be any number that equals it, as 1.0 does.
    unknown = sorted(str(name) for name in class_weight if name not in range(classes))
    if unknown:
        raise ValueError(f"Expected `class_weight` keys from 0 to {classes - 1}. Received: {', '.join(unknown)}")
    weights = np.ones(classes)
    weights[[int(name) for name in class_weight]] = checked_weights(list(class_weight.values()), len(class_weight))
    return weights


def class_indices(labels: np.ndarray, K: int) -> np.ndarray:
    """The class number of each sample, (T,), from class numbers or one-hot rows."""
    return labels.argmax(axis=1) if K > 1 and labels.ndim == 2 else labels


def is_array(x: Any) -> bool:
    """Whether `x` holds all samples at once, rather than yielding batches."""
    sparse = isinstance(x, tf.RaggedTensor | tf.SparseTensor) or hasattr(x, "toarray")  # as_array refuses them
    return sparse or isinstance(x, list) or hasattr(x, "__array__")


def the_only_batch(dataset: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
    """x, y and sample_weight of a dataset that always yields one and the same batch, or a ValueError."""
    advice = "solves each block on all the data. Pass arrays, one full batch, or compile with a Keras optimizer."
    if dataset is None:
        raise ValueError("Expected training images `x`. Received: x=None")
    expect_labels_within(y, sample_weight)
    batches = [batch for batch, _ in zip(dataset, range(2), strict=False)]
    if len(batches) == 1:
        # The next pass must bring the same batch again.
        batches += [batch for batch, _ in zip(dataset, range(1), strict=False)]
    if not batches or not isinstance(batches[0], tuple) or len(batches[0]) < 2:
        raise ValueError(f"Expected data that yields (x, y) or (x, y, weight). BlockLineSearch {advice}")
    if len(batches) == 2 and not all(np.array_equal(a, b) for a, b in zip(*batches, strict=True)):
        raise ValueError(
            "Expected one full batch, or several of a data set that ends. Received: a changing or partial batch. "
            f"BlockLineSearch {advice}"
        )
    return dict(zip(("x", "y", "sample_weight"), batches[0], strict=False))


def expect_labels_within(y: Any, sample_weight: Any) -> None:
    """Raises a ValueError for labels or weights that are given beside a data set."""
    if y is not None or sample_weight is not None:
        raise ValueError(
            "Expected labels and weights within the data set. Received: `y` or `sample_weight` beside it"
        )


def as_array(value: Any, name: str) -> np.ndarray:
    """`value` as an array of real numbers, or a ValueError that says what was received."""
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor) or hasattr(value, "toarray"):
        raise ValueError(f"Expected `{name}` to be a dense array. Received: a {type(value).__name__}")
    parts = value if isinstance(value, list | tuple) else [value]
    if any(np.ma.is_masked(part) for part in parts):
        raise ValueError(
            f"Expected `{name}` without masked entries: leave them out, or give them the weight 0. Received: a "
            "masked array"
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"Expected `{name}` to be an array of numbers. Received: {error}") from error
    if array.dtype.name == "bfloat16":
        array = array.astype("float32")  # NumPy cannot tell whether its numbers are whole
    if array.dtype.kind not in "biuf":
        advice = " (BilinearClassifier takes labels of any kind)" if name == "y" else ""
        raise ValueError(f"Expected `{name}` to be an array of real numbers{advice}. Received: dtype {array.dtype}")
    return array


def check_finite(array: np.ndarray, name: str) -> None:
    """Raises a ValueError if `array` holds NaN or infinity. Minimum and maximum carry both, without a copy."""
    if array.dtype.kind not in "biu" and array.size and not np.isfinite([array.min(), array.max()]).all():
        raise ValueError(f"Expected finite numbers in `{name}`. Received: NaN or infinity")
