"""The pictures of fits and of paths: what is drawn is what was measured, whatever that was."""

import json

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from keras_bilinear.maths.bilinear import Factors
from keras_bilinear.plots.curves import plot_convergence, plot_path
from keras_bilinear.selection.path import PathPoint, RegularizationPath
from tests.pictures import fits_the_page, is_picture


@pytest.fixture(scope="module")
def few_digits(digits):
    x, y = digits
    return x[:150], y[:150]


def exact():
    """A model of which the solver is traced once, and the step around it not."""
    model = kb.BilinearSoftmaxRegression(10, 1, alpha=1e-2, seed=0)
    model.compile(run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def fitted(few_digits):
    """The History of a fit that has converged, with a validation part."""
    model = exact()
    stop = kb.callbacks.BlockConvergence(rtol=1e-2)
    history = model.fit(*few_digits, epochs=50, verbose=0, validation_split=0.2, callbacks=[stop])
    assert stop.converged
    return history


def labels(panel):
    """What its legend says, top to bottom."""
    return [text.get_text() for text in panel.get_legend().get_texts()] if panel.get_legend() else []


def line(panel, label):
    """The line the legend names so."""
    (found,) = (line for line in panel.lines if line.get_label() == label)
    return found


def test_convergence_of_a_fit(fitted, tmp_path):
    figure = plot_convergence(fitted, tmp_path / "convergence.png")
    assert is_picture(tmp_path / "convergence.png")
    assert fits_the_page(figure)
    assert [panel.get_title() for panel in figure.axes] == ["objective $J$", "relative decrease of $J$", "accuracy"]
    assert {panel.get_xlabel() for panel in figure.axes} == {"sweep"}
    objective, _, accuracy = figure.axes
    for panel, training, validation in (
        (objective, "objective", "val_loss"),
        (accuracy, "accuracy", "val_accuracy"),
    ):
        assert labels(panel) == ["training", "validation"]
        for drawn, key in zip(panel.lines, (training, validation), strict=True):
            np.testing.assert_array_equal(drawn.get_xdata(), np.arange(len(fitted.epoch)) + 1)
            np.testing.assert_array_equal(drawn.get_ydata(), fitted.history[key])


def test_the_decrease_is_that_which_ends_the_fit(fitted):
    _, decrease, _ = plot_convergence(fitted).axes
    assert decrease.get_yscale() == "log"
    J = np.array(fitted.history["objective"])
    tolerance, curve = decrease.lines
    np.testing.assert_array_equal(tolerance.get_ydata(), 1e-2)
    assert labels(decrease) == ["rtol = 0.01"]
    np.testing.assert_array_equal(curve.get_xdata()[1:], np.arange(2, len(J) + 1))
    np.testing.assert_allclose(curve.get_ydata()[1:], (J[:-1] - J[1:]) / np.abs(J[1:]))
    # The last sweep alone lies below the line, and is what the schedule measured.
    assert np.all((curve.get_ydata()[1:] <= 1e-2) == ([False] * (len(J) - 2) + [True]))
    assert curve.get_ydata()[-1] == pytest.approx(fitted.model.schedule.sweep_improvement(0.0), rel=1e-3)


def test_mini_batches_count_epochs_and_show_what_passes_the_turn(few_digits):
    model = kb.BilinearSoftmaxRegression(10, 1, seed=0)
    model.compile(keras.optimizers.Adam(0.01), metrics=[], run_eagerly=True)
    stop = kb.callbacks.BlockConvergence(rtol=0.0, block_rtol=0.02)
    with pytest.warns(kb.callbacks.ConvergenceWarning):
        history = model.fit(*few_digits, epochs=2, verbose=0, callbacks=[stop])
    objective, decrease = plot_convergence(history).axes
    assert objective.get_xlabel() == decrease.get_xlabel() == "epoch"
    assert labels(objective) == []
    assert labels(decrease) == ["block_rtol = 0.02"]


def test_without_the_callback_there_is_no_tolerance(few_digits):
    history = exact().fit(*few_digits, epochs=2, verbose=0)
    _, decrease, _ = plot_convergence(history).axes
    assert len(decrease.lines) == 1
    assert labels(decrease) == []


def test_a_fit_of_one_sweep_has_no_decrease(few_digits, tmp_path):
    history = exact().fit(*few_digits, epochs=1, verbose=0)
    figure = plot_convergence(history, tmp_path / "one.png")
    assert [panel.get_title() for panel in figure.axes] == ["objective $J$", "accuracy"]
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert [tick for tick in panel.get_xticks() if low <= tick <= high] == [1]


def test_a_resumed_fit_goes_on_counting(few_digits):
    model = exact()
    history = keras.callbacks.History()
    model.fit(*few_digits, epochs=2, verbose=0, callbacks=[history])
    resumed = model.fit(*few_digits, initial_epoch=2, epochs=5, verbose=0)
    for panel in plot_convergence(resumed).axes:
        np.testing.assert_array_equal(panel.lines[0].get_xdata(), [3, 4, 5])
    # A History given to both fits has the logs of both.
    model.fit(*few_digits, initial_epoch=2, epochs=5, verbose=0, callbacks=[history])
    assert len(history.epoch) == 3
    np.testing.assert_array_equal(plot_convergence(history).axes[0].lines[0].get_xdata(), [1, 2, 3, 4, 5])


def test_logs_from_a_file_are_drawn_alike(fitted):
    logs = json.loads(json.dumps(fitted.history))
    drawn, again = plot_convergence(fitted).axes, plot_convergence(logs).axes
    for panel, copy in zip(drawn, again, strict=True):
        assert (panel.get_title(), panel.get_xlabel()) == (copy.get_title(), copy.get_xlabel())
        curves = [line for line in panel.lines if not line.get_label().startswith("rtol")]
        for curve, repeated in zip(curves, copy.lines, strict=True):
            np.testing.assert_array_equal(curve.get_xydata(), repeated.get_xydata())


def test_sweeps_without_decrease_are_marked_on_the_axis(tmp_path):
    figure = plot_convergence({"objective": [1.0, 0.5, 0.5, 0.6, 0.3]}, tmp_path / "plateau.png")
    assert is_picture(tmp_path / "plateau.png")
    _, decrease = figure.axes
    curve, marks = decrease.lines
    np.testing.assert_array_equal(curve.get_ydata(), [np.nan, 1.0, np.nan, np.nan, (0.6 - 0.3) / 0.3])
    np.testing.assert_array_equal(marks.get_xydata(), [(3, 0), (4, 0)])
    assert labels(decrease) == ["no decrease"]
    assert decrease.get_ylim()[0] > 0.01, "the scale is that of the sweeps with a decrease"


def test_fits_that_gain_nothing_can_be_drawn(tmp_path):
    plot_convergence({"objective": [0.5] * 4}, tmp_path / "flat.png")
    assert is_picture(tmp_path / "flat.png")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_values_that_are_not_finite_are_marked_on_the_axis(bad):
    figure = plot_convergence({"objective": [1.0, bad, 0.5, 0.4], "accuracy": [0.1, 0.2, 0.3, 0.4]})
    objective, decrease, _ = figure.axes
    curve, marks = objective.lines
    np.testing.assert_array_equal(curve.get_ydata(), [1.0, np.nan, 0.5, 0.4])
    np.testing.assert_array_equal(marks.get_xydata(), [(2, 0)])
    assert labels(objective) == ["not finite"]
    assert np.isfinite(decrease.lines[0].get_ydata()[3])


def test_a_fit_without_any_finite_value_can_be_drawn(tmp_path):
    plot_convergence({"objective": [float("nan")] * 3}, tmp_path / "nothing.png")
    assert is_picture(tmp_path / "nothing.png")


@pytest.mark.parametrize(("sweeps", "marker"), [(30, "."), (1000, "")])
def test_many_sweeps_have_no_dots(sweeps, marker):
    figure = plot_convergence({"objective": 1 + 1 / np.arange(1, sweeps + 1)})
    assert fits_the_page(figure)
    assert {line.get_marker() for panel in figure.axes for line in panel.lines} == {marker}


def test_what_was_not_measured_every_sweep_is_left_out(few_digits):
    x, y = few_digits
    history = exact().fit(x, y, epochs=3, verbose=0, validation_data=(x, y), validation_freq=2)
    assert len(history.history["val_accuracy"]) == 1
    objective, _, accuracy = plot_convergence(history).axes
    assert [len(objective.lines), len(accuracy.lines)] == [1, 1]


@pytest.mark.parametrize(
    "history", [None, {"loss": [1.0]}, {"objective": []}, [1.0, 0.5], keras.callbacks.History()]
)
def test_a_history_without_objective_is_refused(history):
    with pytest.raises(ValueError, match="Expected the History"):
        plot_convergence(history)


def path_of(*rows):
    """A path with (rank, alpha, accuracy) as its points, two numbers a rank and a standard error of 0.01."""
    points = []
    for rank, alpha, accuracy in rows:
        factors = Factors(np.zeros((rank, 1, 1)), np.zeros((rank, 1, 1)), None)
        points.append(PathPoint(rank, alpha, 1.0, 1.0, accuracy, 0.01, factors, None))
    return RegularizationPath(points)


def test_path_shows_every_fit_and_rings_the_best_and_the_choice(tmp_path):
    path = path_of(
        (1, 0.1, 0.80), (1, 0.01, 0.85), (2, 0.1, 0.895), (2, 0.01, 0.88), (3, 0.1, 0.90), (3, 0.01, 0.89)
    )
    figure = plot_path(path, tmp_path / "path.png")
    assert is_picture(tmp_path / "path.png")
    assert fits_the_page(figure)
    (panel,) = figure.axes
    drawn = {
        (float(x), float(y)) for line in panel.lines for x, y in line.get_xydata() if len(line.get_xydata()) == 1
    }
    assert drawn == {(2.0 * point.rank, point.accuracy) for point in path.points}
    (bests,) = (container[0].get_xydata() for container in panel.containers)
    np.testing.assert_allclose(bests, [(2, 0.85), (4, 0.895), (6, 0.90)])
    rings = {line.get_label(): tuple(line.get_xydata()[0]) for line in panel.lines if ":" in line.get_label()}
    assert {name.split(":")[0]: place for name, place in rings.items()} == {
        "best": (6, 0.90),
        "smallest within a standard error of it": (4, 0.895),
    }


def test_path_names_the_largest_and_the_smallest_alpha_once():
    (panel,) = plot_path(path_of(*((rank, alpha, 0.8) for rank in (1, 2) for alpha in (0.1, 0.03, 0.01)))).axes
    dots = [line for line in panel.lines if line.get_label().startswith("$\\alpha")]
    assert [dot.get_label() for dot in dots] == ["$\\alpha$ = 0.1", "$\\alpha$ = 0.01"]
    light, dark = (float(dot.get_color()) for dot in dots)
    assert light > dark


def test_a_path_of_one_fit_can_be_drawn():
    assert len(plot_path(path_of((2, 0.0, 1.0))).axes) == 1


def test_only_paths_are_drawn_as_paths():
    with pytest.raises(ValueError, match="Expected the path"):
        plot_path([])


def test_epochs_that_are_no_sweeps_are_called_epochs(few_digits):
    model = kb.BilinearSoftmaxRegression(10, 1, seed=0)
    model.compile(kb.BlockLineSearch(blocks="factor", max_inner=2), run_eagerly=True)
    options = {"epochs": 2, "verbose": 0, "callbacks": [kb.callbacks.BlockConvergence(rtol=1e-9)]}
    with pytest.warns(kb.callbacks.ConvergenceWarning):
        figure = plot_convergence(model.fit(*few_digits, steps_per_epoch=3, **options))
    assert {panel.get_xlabel() for panel in figure.axes} == {"epoch"}
    assert figure.axes[1].get_legend() is None
