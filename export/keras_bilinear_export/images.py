"""The images that calibrate the files and those, never the same, that verify them."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bilinear.export import LEAST_IMAGES
from keras_bilinear_export.faults import one_line

MOST_CALIBRATION_IMAGES = 256


class Images(NamedTuple):
    """Images (T, M, N) or (T, M, N, C) in the units of the files; y (T,) or None belongs to x."""

    calibration: np.ndarray
    x: np.ndarray
    y: np.ndarray | None
    source: str


def from_npz(path: Path) -> Images:
    """`x`, and `y` if it is there; `x_calibration` or else some images of `x` calibrate."""
    arrays = arrays_of(path)
    if "x" not in arrays:
        raise ValueError(f"Expected {path} to hold an array x. Received: {', '.join(arrays) or 'no array'}")
    x, y, calibration = arrays["x"], arrays.get("y"), arrays.get("x_calibration")
    for images in (x, x if calibration is None else calibration):
        if images.ndim < 3:
            raise ValueError(f"Expected images of shape (T, M, N) in {path}. Received: an array {images.shape}")
    if y is not None and y.shape[:1] != x.shape[:1]:
        raise ValueError(f"Expected a label in y for each image in x. Received: x {x.shape}, y {y.shape}")
    if calibration is None:
        return split(x, y, str(path))
    if len(calibration) < LEAST_IMAGES:
        raise ValueError(f"Expected {LEAST_IMAGES} or more images in x_calibration. Received: {len(calibration)}")
    return Images(calibration, x, y, str(path))


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz archive, none of which may hold Python objects."""
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("a single array")
            with archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(
                f"Expected an .npz archive of NumPy arrays. Received: {path}: {one_line(error)}"
            ) from error


def split(x: np.ndarray, y: np.ndarray | None, source: str) -> Images:
    """Evenly spaced images calibrate, 256 of 512 or more; the others verify."""
    T = len(x)
    count = min(MOST_CALIBRATION_IMAGES, max(T // 2, LEAST_IMAGES))
    if count >= T:
        raise ValueError(
            f"Expected more than {LEAST_IMAGES} images: {LEAST_IMAGES} calibrate, and others verify. Received: {T}"
        )
    calibrates = np.zeros(T, bool)
    calibrates[evenly_spaced(T, count)] = True
    return Images(x[calibrates], x[~calibrates], None if y is None else y[~calibrates], source)


def from_dataset(name: str, input_scale: float | None) -> Images:
    """Training images calibrate and test images verify; the brightest pixel is 1 once it is scaled."""
    if name == "digits":
        train, x, y, brightest = *handwritten_digits(), 16
    else:
        train, x, y, brightest = *downloaded(name), 255
    calibration = train[evenly_spaced(len(train), MOST_CALIBRATION_IMAGES)]
    unit = brightest * (1.0 if input_scale is None else input_scale)
    return Images(calibration / unit, x / unit, y, name)


def handwritten_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training images, test images and their labels, split as in `examples/quickstart.py`."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("--dataset digits needs scikit-learn: pip install scikit-learn") from error
    data = load_digits()
    train, x, _, y = train_test_split(data.images, data.target, stratify=data.target, random_state=0)
    return train, x, y


def downloaded(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training images, test images and their labels, by tensorflow-datasets."""
    try:
        import tensorflow_datasets as tfds

        parts = tfds.load(name, split=["train", "test"], as_supervised=True, batch_size=-1)
    except ImportError as error:
        raise ImportError(
            f"--dataset {name} needs tensorflow-datasets: pip install tensorflow-datasets importlib_resources"
        ) from error
    except Exception as error:  # its own errors, and those of requests and TensorFlow, under many names
        where = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
        raise ValueError(
            f"Expected tensorflow-datasets to find {name} in {where}, the folder of TFDS_DATA_DIR, or to download "
            f"it there. Received: {type(error).__name__}: {one_line(error)}"
        ) from error
    (train, _), (x, y) = tfds.as_numpy(parts)
    return train[..., 0], x[..., 0], y


def evenly_spaced(T: int, count: int) -> np.ndarray:
    """`count` different indices from the first of T to the last."""
    return np.linspace(0, T - 1, count).astype(int)
