"""Handwritten digits as a camera would see them: real scans, enlarged, turned a little, not quite in the middle."""

import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIDE = 28
"""Pixels of a side of an image."""


def camera_digits(copies: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images (T, 28, 28) in [0, 1] and classes, for training and for tests: x, y, x_test, y_test.

    They come from the 1,797 scans of 8 x 8 pixels in scikit-learn, each seen `copies` times: turned by some 8
    degrees, 18 to 24 pixels high, up to 2 pixels off the middle. A quarter of the scans is for tests only.
    """
    rng, scans = np.random.default_rng(seed), load_digits()
    x, x_test, y, y_test = train_test_split(
        scans.images / 16, scans.target, stratify=scans.target, random_state=seed
    )
    parts = [(seen(part, copies, rng), np.tile(classes, copies)) for part, classes in ((x, y), (x_test, y_test))]
    return *parts[0], *parts[1]


def seen(scans: np.ndarray, copies: int, rng: np.random.Generator) -> np.ndarray:
    """All scans, `copies` times, each time in another place."""
    return np.stack([placed(scan, rng) for _ in range(copies) for scan in scans]).astype("float32")


def placed(scan: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One scan, enlarged by cubic interpolation."""
    angle, height = np.deg2rad(rng.normal(0, 8)), rng.uniform(18, 24)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    back = turn * len(scan) / height  # from a pixel of the image to one of the scan
    middle = (SIDE - 1) / 2 + rng.uniform(-2, 2, 2)
    image = ndimage.affine_transform(scan, back, (len(scan) - 1) / 2 - back @ middle, (SIDE, SIDE))
    return np.clip(image, 0, 1)
