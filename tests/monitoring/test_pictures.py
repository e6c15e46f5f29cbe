import numpy as np
import pytest

from keras_bilinear.monitoring.pictures import GREY, colours, mosaic


def test_red_is_positive_blue_is_negative_white_is_zero():
    blue, white, red = colours(np.array([-2.0, 0.0, 2.0]))
    assert blue[2] > 2 * blue[0]
    assert red[0] > 2 * red[2]
    np.testing.assert_array_equal(white, [247, 247, 247])


def test_the_scale_is_symmetric_and_common():
    half, whole = colours(np.array([0.5, 1.0])), colours(np.array([1.0]))
    np.testing.assert_array_equal(half[1], whole[0])
    assert half[0, 1] > whole[0, 1]  # paler
    np.testing.assert_array_equal(colours(np.array([0.5, -1.0]))[0], half[0])


def test_zeros_are_white_and_what_is_not_finite_too():
    assert np.all(colours(np.zeros((2, 3))) == 247)
    np.testing.assert_array_equal(colours(np.array([np.nan, np.inf, 1.0])), colours(np.array([0.0, 0.0, 1.0])))


def test_tiles_lie_in_reading_order_with_grey_between_them():
    tiles = np.arange(1.0, 4.0)[:, None, None] * np.ones((3, 40, 96))
    picture = mosaic(tiles)
    assert picture.shape == (40, 290, 3)
    for k in range(3):
        np.testing.assert_array_equal(
            picture[:, 97 * k : 97 * k + 96], np.broadcast_to(colours(tiles)[k], (40, 96, 3))
        )
    assert np.all(picture[:, [96, 193]] == GREY)


def test_ten_classes_are_two_rows_of_five():
    tiles = np.random.default_rng(0).normal(size=(10, 24, 20))
    picture = mosaic(tiles)
    assert picture.shape == (49, 104, 3)
    np.testing.assert_array_equal(picture[25:49, 42:62], colours(tiles)[7])


@pytest.mark.parametrize("K", [1, 2, 7, 11, 100])
def test_places_without_a_tile_are_grey(K):
    picture = mosaic(np.ones((K, 96, 96)))
    rows, columns = (picture.shape[0] + 1) // 97, (picture.shape[1] + 1) // 97
    assert rows * columns >= K > (rows - 1) * columns
    shown = [
        np.any(picture[97 * r : 97 * r + 96, 97 * c : 97 * c + 96] != GREY)
        for r in range(rows)
        for c in range(columns)
    ]
    assert shown == [True] * K + [False] * (rows * columns - K)
