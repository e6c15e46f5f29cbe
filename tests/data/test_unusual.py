import warnings

import numpy as np
import pytest

from keras_bilinear.data.unusual import warn_of_guess, warn_of_rank, warn_of_scale


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


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        (3, (6, 5), r"rank=3 takes 3 \(6 \+ 5\) = 33 numbers a class, the linear model 30. .*the linear model"),
        (4, (3, 9), r"= 48 numbers a class, the linear model 27; no matrix of 3 x 9 has a rank above 3"),
    ],
)
def test_ranks_that_are_too_many_are_warned_about(rank, size, message):
    with pytest.warns(UserWarning, match=message):
        warn_of_rank(rank, size)


def test_ranks_that_save_numbers_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_rank(2, (6, 5))
        warn_of_rank(4, (8, 8))  # as many as the linear model


def test_a_guessed_shape_is_told():
    with pytest.warns(UserWarning, match="Rows of 63 numbers .* 1 x 63: a linear model.* `image_shape`"):
        warn_of_guess(63, (1, 63), "image_shape")
    with pytest.warns(UserWarning, match="Rows of 64 numbers .* 8 x 8 row by row.* `input_shape`"):
        warn_of_guess(64, (8, 8), "input_shape")
