"""The filters: what is drawn is what the model holds, and the files are pictures."""

import itertools
import sys

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure

import keras_bilinear as kb
from keras_bilinear.plots import plot_filters
from tests.pictures import fits_the_page, is_picture


def bilinear(units=3, rank=2, shape=(6, 5), seed=0):
    """A model with weights everywhere, as after a fit: the left factors start at zero."""
    if units == 1:
        model = kb.BilinearLogisticRegression(rank, input_shape=shape, seed=seed)
    else:
        model = kb.BilinearSoftmaxRegression(units, rank, input_shape=shape, seed=seed)
    return with_weights(model, seed)


def linear(units=3, shape=(6, 5)):
    if units == 1:
        return with_weights(kb.LinearLogisticRegression(input_shape=shape))
    return with_weights(kb.LinearSoftmaxRegression(units, input_shape=shape))


def with_weights(model, seed=0):
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    return model


def filters_of(figure):
    """The panels with a picture that is a filter, not a colour scale, in the order drawn."""
    return [panel for panel in figure.axes if panel.images]


def curves_of(figure):
    """The curves of each panel of factors, (L, M), in the order drawn."""
    panels = [panel for panel in figure.axes if panel.lines]
    return [np.array([line.get_ydata() for line in panel.lines[1:]]) for panel in panels]


@pytest.mark.parametrize("make", [bilinear, linear])
@pytest.mark.parametrize("units", [1, 3])
def test_filters_are_the_weight_matrices_on_one_symmetric_scale(make, units, tmp_path):
    model = make(units)
    figure = plot_filters(model, tmp_path / "filters.png")
    assert isinstance(figure, Figure)
    assert is_picture(tmp_path / "filters.png")
    W = model.weight_matrices()
    panels = filters_of(figure)
    np.testing.assert_array_equal([panel.images[0].get_array() for panel in panels], W)
    assert {panel.images[0].get_clim() for panel in panels} == {(-np.abs(W).max(), np.abs(W).max())}


@pytest.mark.parametrize("units", [1, 3])
def test_curves_are_canonical_factors(units):
    model = bilinear(units, rank=3)
    before = model.factors()
    curves = curves_of(plot_filters(model))
    rows, columns = curves[:units], curves[units:]
    for a, b, W in zip(rows, columns, model.weight_matrices(), strict=True):
        np.testing.assert_allclose(a.T @ b, W, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1), rtol=1e-4)
        assert np.all(np.diff(np.linalg.norm(a, axis=1)) <= 0), "the strongest rank comes first"
    for left, after in zip(before, model.factors(), strict=True):
        np.testing.assert_array_equal(left, after)


def test_linear_models_have_no_curves():
    assert not curves_of(plot_filters(linear()))


def test_several_models_stand_below_each_other():
    figure = plot_filters([bilinear(), linear()])
    above, below = filters_of(figure)[:3], filters_of(figure)[3:]
    for first, second in zip(above, below, strict=True):
        assert first.get_position().x0 == pytest.approx(second.get_position().x0)
        assert first.get_position().y0 > second.get_position().y1


@pytest.mark.parametrize(
    ("units", "shape"), [(1, (40, 3)), (2, (1, 12)), (10, (8, 8)), (10, (1, 12)), (10, (40, 3))]
)
def test_panels_stay_inside_the_picture_and_apart(units, shape):
    figure = plot_filters([bilinear(units, shape=shape), linear(units, shape)])
    boxes = [panel.get_position() for panel in figure.axes]
    assert all(0 < box.x0 < box.x1 < 1 and 0 < box.y0 < box.y1 < 1 for box in boxes)
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.parametrize("units", [1, 10])
def test_labels_are_not_cut_off_and_legible(units):
    assert fits_the_page(plot_filters([bilinear(units, rank=3), linear(units)]))


def test_names_of_two_words_do_not_touch():
    names = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker"]
    names += ["Bag", "Ankle boot"]
    figure = plot_filters(linear(10), class_names=names)
    figure.draw_without_rendering()
    boxes = [panel.title.get_window_extent() for panel in figure.axes]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_legend_names_each_rank_drawn():
    legend = next(panel.get_legend() for panel in plot_filters(bilinear(rank=3)).axes if panel.get_legend())
    assert [text.get_text() for text in legend.get_texts()] == ["1", "2", "3"]


def test_many_ranks_show_the_strongest_and_say_so():
    figure = plot_filters(bilinear(rank=9, shape=(12, 12)))
    legend = next(panel.get_legend() for panel in figure.axes if panel.get_legend())
    assert len(legend.get_texts()) == 6
    assert "of 9" in legend.get_title().get_text()


def test_titles():
    titles = [panel.get_title() for panel in filters_of(plot_filters(linear()))]
    assert titles == ["0", "1", "2"]
    titles = [panel.get_title() for panel in filters_of(plot_filters(linear(), class_names=["cat", "dog", "owl"]))]
    assert titles == ["cat", "dog", "owl"]


def test_a_model_of_zeros_is_drawn_white(tmp_path):
    # Its scale would be from 0 to 0, which matplotlib warns about.
    plot_filters(kb.BilinearSoftmaxRegression(3, 2, input_shape=(6, 5)), tmp_path / "zeros.png")
    assert is_picture(tmp_path / "zeros.png")


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (lambda: [], None, "Expected regression models.*Received: none"),
        (keras.Sequential, None, "Expected regression models.*Received: Sequential"),
        (lambda: [linear(), "a path"], None, "Received: LinearSoftmaxRegression, str"),
        (lambda: kb.LinearSoftmaxRegression(3), None, "Expected a model with weights"),
        (lambda: [linear(3), linear(4)], None, r"same classes.*units=\[3, 4\]"),
        (linear, ["one"], "Expected a list of 3 `class_names`"),
        (linear, "abc", "Expected a list of 3 `class_names`"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, names, message):
    with pytest.raises(ValueError, match=message):
        plot_filters(make(), class_names=names)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        plot_filters(linear())


def test_a_notebook_shows_it_as_a_picture():
    png = plot_filters(kb.LinearSoftmaxRegression(3, input_shape=(6, 5)))._repr_png_()
    assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("units", [1, 3])
def test_three_channels_are_drawn_in_colour_around_grey(tmp_path, units):
    model = kb.BilinearSoftmaxRegression(3, 2, input_shape=(6, 5, 3), rows=1)
    if units == 1:
        model = kb.BilinearLogisticRegression(2, input_shape=(6, 5, 3), rows=(3, 1))
    figure = plot_filters(with_weights(model), tmp_path / "colours.png")
    W = model.filter_images()
    shown = [np.asarray(panel.images[0].get_array()) for panel in filters_of(figure)[:units]]
    np.testing.assert_allclose(shown, (1 + W / np.abs(W).max()) / 2, atol=1e-6)
    assert is_picture(tmp_path / "colours.png")


def test_other_channels_are_drawn_as_the_matrix_they_make():
    model = with_weights(kb.LinearSoftmaxRegression(3, input_shape=(6, 5, 2), rows=1))
    shown = [np.asarray(panel.images[0].get_array()) for panel in filters_of(plot_filters(model))[:3]]
    np.testing.assert_array_equal(shown, model.weight_matrices())


WATCH = {
    "row_names": ["x", "y", "z", "turn x", "turn y", "turn z"],
    "column_values": np.linspace(0, 25, 51),
    "xlabel": "frequency in Hz",
    "ylabel": "axis",
}


def bars_of(panel):
    """The lengths of the bars in a panel, all of the first rank, then of the next."""
    return [bar.get_width() for group in panel.containers for bar in group]


@pytest.mark.parametrize("units", [1, 7])
def test_named_rows_are_bars_beside_the_matrix(units):
    model = bilinear(units, shape=(6, 51))
    figure = plot_filters(model, **WATCH)
    assert fits_the_page(figure)
    filters, bars = filters_of(figure), [panel for panel in figure.axes if panel.containers]
    assert len(filters) == len(bars) == units
    curves = [panel for panel in figure.axes if len(panel.lines) == 3 and not panel.containers]
    for panel, beside, far, W in zip(filters, bars, curves, model.weight_matrices(), strict=True):
        a, b = np.reshape(bars_of(beside), (2, 6)), np.array([line.get_ydata() for line in far.lines[1:]])
        np.testing.assert_allclose(a.T @ b, W, atol=1e-4)
        assert panel.get_position().y0 == pytest.approx(beside.get_position().y0), "a bar lies at its row"
        assert panel.get_ylim() == beside.get_ylim()
        assert [text.get_text() for text in panel.get_yticklabels()] == WATCH["row_names"]
        np.testing.assert_array_equal(far.lines[1].get_xdata(), WATCH["column_values"])


def test_ticks_are_round_values_at_their_columns():
    figure = plot_filters(linear(3, (6, 51)), **WATCH)
    last = filters_of(figure)[-1]
    assert [text.get_text() for text in last.get_xticklabels()] == ["0", "10", "20"]
    np.testing.assert_allclose(last.get_xticks(), [0, 20, 40])
    assert last.get_xlabel() == "frequency in Hz"


@pytest.mark.parametrize(("shape", "ratio"), [((8, 8), 1.0), ((6, 9), 6 / 9), ((12, 8), 1.5), ((10, 40), 0.25)])
def test_panels_have_the_shape_of_the_matrix(shape, ratio):
    figure = plot_filters(bilinear(4, shape=shape))
    box, size = filters_of(figure)[0].get_position(), figure.get_size_inches()
    assert box.height * size[1] / (box.width * size[0]) == pytest.approx(ratio)


def test_ranks_that_are_zero_are_left_out():
    model = bilinear(3, rank=4, shape=(6, 5))
    A, B = model.factors()
    A[2:], A[1, :, 0] = 0.0, 0.0
    model.head.assign_factors(A, B)
    figure = plot_filters(model)
    legend = next(panel.get_legend() for panel in figure.axes if panel.get_legend())
    assert [text.get_text() for text in legend.get_texts()] == ["1", "2"]
    first, *others = curves_of(figure)[:3]
    assert np.isfinite(first).all(axis=1).tolist() == [True, False]
    assert all(np.isfinite(curves).all() for curves in others)


def test_many_units_of_a_network_are_drawn_in_rows_of_ten():
    network = keras.Sequential(
        [keras.Input((6, 5)), kb.BilinearDense(23, 1, "relu", name="hidden"), keras.layers.Dense(3)]
    )
    figure = plot_filters(network)
    panels, (layer, _) = filters_of(figure), network.layers
    W = np.asarray(keras.ops.einsum("lmk,lnk->kmn", layer.A, layer.B))
    np.testing.assert_allclose([panel.images[0].get_array() for panel in panels], W, atol=1e-6)
    rows = np.unique([round(panel.get_position().y0, 6) for panel in panels], return_counts=True)[1]
    assert rows.tolist() == [3, 10, 10]
    assert fits_the_page(figure)
    assert len(filters_of(plot_filters(layer))) == 23


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_names": ["a"]}, "Expected a list of 6 `row_names`"),
        ({"row_names": "abcdef"}, "Expected a list of 6 `row_names`"),
        ({"column_values": [1, 2]}, "Expected 5 rising `column_values`"),
        ({"column_values": [1, 2, 3, 3, 4]}, "Expected 5 rising `column_values`"),
    ],
)
def test_names_and_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plot_filters(linear(), **options)
