import warnings

import numpy as np
import pytest

from keras_bilinear.data.unusual import warn_of_scale


def images():
    return np.random.default_rng(0).random((6, 4, 3))


@pytest.mark.parametrize("factor", [1e-10, 1e10, -1e10])
def test_pixels_out_of_reach_are_warned_about(factor):
    with pytest.warns(UserWarning, match="Scale the images"):
        warn_of_scale(images(), factor * images())
    with pytest.warns(UserWarning, match="Scale the images"):
        warn_of_scale(images(), images(), abs(factor))


@pytest.mark.parametrize("factor", [0.0, 1e-3, 1.0, 65535.0])
def test_usual_pixels_are_not_warned_about(factor):
    warn_of_scale(images(), factor * images())


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint64"])
def test_whole_numbers_that_nothing_scales_are(kind):
    x = np.round(images() * 200).astype(kind)
    with pytest.warns(UserWarning, match=f"whole numbers up to {x.max()}.*input_scale=1/255"):
        warn_of_scale(x, x.astype("float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_scale(x, x.astype("float32"), 1 / 255)
        warn_of_scale(x % 3, x.astype("float32") % 3)
