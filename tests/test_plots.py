"""The pictures: what is drawn is what the model holds, and the files are pictures."""

import sys

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

import keras_bilinear as kb
from keras_bilinear.path import PathPoint, RegularizationPath
from keras_bilinear.plots import plot_convergence, plot_filters, plot_path


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


def is_picture(path):
    pixels = imread(path)
    return pixels.ndim == 3 and min(pixels.shape[:2]) > 100 and pixels[..., :3].std() > 0.01


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


@pytest.mark.parametrize("units", [1, 2, 10])
@pytest.mark.parametrize("shape", [(8, 8), (1, 12), (40, 3)])
def test_panels_stay_inside_the_picture_and_apart(units, shape):
    figure = plot_filters([bilinear(units, shape=shape), linear(units, shape)])
    boxes = [panel.get_position() for panel in figure.axes]
    assert all(0 < box.x0 < box.x1 < 1 and 0 < box.y0 < box.y1 < 1 for box in boxes)
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.parametrize("units", [1, 10])
def test_labels_are_not_cut_off(units):
    figure = plot_filters([bilinear(units, rank=3), linear(units)])
    figure.canvas.draw()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    assert 800 <= width * figure.dpi <= 1000, "made for a README, at most a thousand pixels wide"


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
    with pytest.raises(ImportError, match=r'pip install "keras-bilinear\[plot\]"'):
        plot_filters(linear())


@pytest.fixture(scope="module")
def few_digits(digits):
    x, y = digits
    return x[:150], y[:150]


def test_convergence_of_a_fit(few_digits, tmp_path):
    history = kb.BilinearSoftmaxRegression(10, 1, seed=0).fit(
        *few_digits, epochs=3, verbose=0, validation_split=0.2
    )
    figure = plot_convergence(history, tmp_path / "convergence.png")
    assert is_picture(tmp_path / "convergence.png")
    J, accuracy = figure.axes
    assert J.get_xlabel() == "sweep"
    np.testing.assert_array_equal(J.lines[0].get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(J.lines[0].get_ydata(), history.history["objective"])
    np.testing.assert_array_equal(accuracy.lines[0].get_ydata(), history.history["accuracy"])
    np.testing.assert_array_equal(accuracy.lines[1].get_ydata(), history.history["val_accuracy"])
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["training", "validation"]


def test_convergence_without_accuracy_is_one_panel_and_mini_batches_count_epochs(few_digits):
    model = kb.BilinearSoftmaxRegression(10, 1, seed=0)
    model.compile(keras.optimizers.Adam(0.01), metrics=[])
    (J,) = plot_convergence(model.fit(*few_digits, epochs=2, verbose=0)).axes
    assert J.get_xlabel() == "epoch"


@pytest.mark.parametrize("history", [None, {"objective": [1.0]}, keras.callbacks.History()])
def test_a_history_without_objective_is_refused(history):
    with pytest.raises(ValueError, match="Expected the History"):
        plot_convergence(history)


def path_of(*rows):
    """A path with (rank, alpha, accuracy) as its points, two numbers a rank and a standard error of 0.01."""
    points = [
        PathPoint(rank, alpha, 1.0, 1.0, accuracy, 0.01, 2 * rank, 100, None) for rank, alpha, accuracy in rows
    ]
    return RegularizationPath(bilinear(), points)


def test_path_shows_every_fit_and_rings_the_best_and_the_choice(tmp_path):
    path = path_of(
        (1, 0.1, 0.80), (1, 0.01, 0.85), (2, 0.1, 0.895), (2, 0.01, 0.88), (3, 0.1, 0.90), (3, 0.01, 0.89)
    )
    figure = plot_path(path, tmp_path / "path.png")
    assert is_picture(tmp_path / "path.png")
    (panel,) = figure.axes
    drawn = {
        (float(x), float(y)) for line in panel.lines for x, y in line.get_xydata() if len(line.get_xydata()) == 1
    }
    assert drawn == {(2.0 * point.rank, point.accuracy) for point in path.points}
    (bests,) = (container[0].get_xydata() for container in panel.containers)
    np.testing.assert_allclose(bests, [(2, 0.85), (4, 0.895), (6, 0.90)])
    rings = {line.get_label(): tuple(line.get_xydata()[0]) for line in panel.lines if "alpha" in line.get_label()}
    assert {name.split(":")[0]: place for name, place in rings.items()} == {"best": (6, 0.90), "1 s.e.": (4, 0.895)}


def test_a_path_of_one_fit_can_be_drawn():
    assert len(plot_path(path_of((2, 0.0, 1.0))).axes) == 1


def test_only_paths_are_drawn_as_paths():
    with pytest.raises(ValueError, match="Expected the path"):
        plot_path([])
