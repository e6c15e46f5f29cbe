import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.plots import plot_map
from tests.pictures import is_picture


def test_both_factors_are_drawn_on_one_scale(tmp_path):
    layer = kb.BilinearMap(4, 3)
    layer.build((None, 28, 9))
    layer.B.assign(2 * np.ones((9, 3)))
    figure = plot_map(layer, tmp_path / "map.png")
    assert is_picture(tmp_path / "map.png")
    A, B = (panel.images[0] for panel in figure.axes[:2])
    np.testing.assert_array_equal(A.get_array(), layer.A.numpy())
    np.testing.assert_array_equal(B.get_array(), layer.B.numpy())
    assert A.get_clim() == B.get_clim() == (-2, 2)
    assert [panel.get_xlabel() for panel in figure.axes[:2]] == ["row of $Y$", "column of $Y$"]
    inches = figure.get_size_inches()
    for panel in figure.axes:  # nothing sticks out
        box = panel.get_position()
        assert 0 < box.x0 < box.x1 < 1
        assert 0 < box.y0 < box.y1 < 1
    assert max(inches) < 8


@pytest.mark.parametrize("layer", [kb.BilinearMap(2, 2), kb.BilinearDense(2, 1), keras.layers.Dense(2), None])
def test_what_is_no_built_map_is_refused(layer):
    with pytest.raises(ValueError, match="Expected a BilinearMap that is built"):
        plot_map(layer)
