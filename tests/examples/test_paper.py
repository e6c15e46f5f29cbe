"""The reproduction of the paper: its protocol, its bookkeeping, and a reduced run on real MNIST."""

import json
import pathlib
import runpy
import sys

import numpy as np
import pytest
import tensorflow as tf

PAPER = pathlib.Path(__file__).parents[2] / "examples" / "paper"
sys.path.insert(0, str(PAPER))

import draw  # noqa: E402
import page  # noqa: E402
import protocol  # noqa: E402
import run  # noqa: E402
from published import FIGURES  # noqa: E402


@pytest.fixture
def images(digits):
    x, y = digits
    return protocol.Images(x, y)


def rows(figure=2, T=32, splits=3):
    """Results as the run writes them, each model 0.01 better than the one before."""
    models = ("linear", "rank 1", "rank 2", "rank 3", "rank 4")
    return [
        dict(
            zip(
                run.COLUMNS,
                (figure, T, split, model, 0.1, 0.9, round(0.9 + 0.01 * i + 0.001 * split, 3), 56),
                strict=True,
            )
        )
        for split in range(splits)
        for i, model in enumerate(models)
    ]


def test_the_paper_has_76_accuracies():
    assert sum(len(values) for figure in FIGURES.values() for values in figure.accuracy.values()) == 76


def test_a_split_is_disjoint_and_the_seed_decides(images):
    split = protocol.random_split(images, 300, 200, seed=1)
    parts = [part.x.reshape(len(part.x), -1) for part in split]
    assert [len(part) for part in parts] == [300, 200, 200]
    together = np.concatenate(parts)
    # No two scans of the data set are alike.
    assert len(np.unique(together, axis=0)) == 700
    again = protocol.random_split(images, 100, 200, seed=1)
    np.testing.assert_array_equal(again.train.x, split.train.x[:100])
    np.testing.assert_array_equal(again.test.x, split.test.x)
    assert np.any(protocol.random_split(images, 300, 200, seed=2).test.x != split.test.x)


@pytest.mark.parametrize("classes", [10, 2])
def test_models_are_tuned_on_validation_and_measured_on_test(images, classes):
    chosen = images.only(np.flatnonzero(images.y < classes))
    split = protocol.random_split(chosen, 200, 60, seed=0)
    alphas = (1e-1, 1e-3)
    results = [protocol.tuned_linear(split, alphas), *protocol.tuned_bilinear(split, (1, 2), alphas)]
    assert [result.model for result in results] == ["linear", "rank 1", "rank 2"]
    K = 1 if classes == 2 else 10
    assert [result.parameters for result in results] == [64 * K, 16 * K, 32 * K]
    for result in results:
        assert result.alpha in alphas
        assert min(result.validation, result.test) > 0.8
        # The labels of the test play no part in the choice.
        assert (60 * result.test) % 1 == pytest.approx(0, abs=1e-6) or (60 * result.test) % 1 == pytest.approx(1)
    scrambled = split._replace(test=protocol.Images(split.test.x, np.roll(split.test.y, 1)))
    again = protocol.tuned_bilinear(scrambled, (1, 2), alphas)
    assert [(r.alpha, r.validation) for r in again] == [(r.alpha, r.validation) for r in results[1:]]


def test_the_summary_of_a_cell():
    cells = draw.summary(rows())
    rank_2 = next(cell for cell in cells if cell["model"] == "rank 2")
    assert rank_2["mean"] == pytest.approx(92.1)
    assert rank_2["deviation"] == pytest.approx(0.1)
    # Student's t with two degrees of freedom.
    assert rank_2["interval"] == pytest.approx(4.303 * 0.1 / np.sqrt(3), abs=1e-3)
    assert rank_2["paper"] == 91.77
    assert draw.summary(rows(splits=1))[0]["interval"] is None


def test_the_verdict_names_every_figure_that_is_out_of_reach():
    (text, *below) = page.verdict(draw.summary(rows()))
    # The paper has 93.70, 90.00, 91.77, 92.69, 91.77; we have 90.1, 91.1, 92.1, 93.1, 94.1.
    assert text.startswith("4 of 5 of the paper's figures")
    assert "+0.11 points" in text
    assert below == ["- Figure 2, T = 32, linear: 93.70 in the paper, 90.10 (deviation 0.10) here"]
    assert page.paired(rows(), 2, 32, "rank 2", "linear") == "+2.00 ± 0.00"


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "results.csv"
    assert run.done(path) == []
    run.write(path, run.table(rows()))
    assert run.done(path) == sorted(rows(), key=lambda row: (row["split"], row["model"]))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert {row["split"] for row in run.done(path)} == {0, 1}, "a split that is not whole is measured again"
    path.write_text(path.read_text()[:-10])
    assert {row["split"] for row in run.done(path)} == {0, 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.csv"]


def test_an_earlier_split_is_never_left_for_a_later_one():
    assert [unit.split for unit in run.units([2, 4], 3, quick=False)] == [0] * 10 + [1] * 10 + [2] * 10


@pytest.mark.filterwarnings("ignore")
def test_a_reduced_run_on_mnist(mnist_is_prepared, tmp_path, monkeypatch, capsys):
    # It would stay for all tests that follow in this process, and Keras compiles nothing by XLA then.
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)

    """As the command line runs it."""

    def command(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments, "--out", str(tmp_path)])
        runpy.run_path(str(PAPER / script), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.setattr(run, "QUICK", {2: (32,)})
    command("run.py", "--quick", "--figure", "3")
    first = (tmp_path / "results.csv").read_bytes()
    assert "1 splits to measure, 1 of them done before" in command("run.py", "--quick", "--figure", "3")
    assert (tmp_path / "results.csv").read_bytes() == first
    facts = json.loads((tmp_path / "results.json").read_text())
    assert [cell["splits"] for cell in facts["cells"]] == [1] * 5
    assert {"keras_bilinear", "tensorflow", "numpy"} <= set(facts["versions"])
    assert (tmp_path / "figure-3.png").stat().st_size > 10_000
    command("page.py")
    assert "rank-4 BLR" in (tmp_path / "tables.md").read_text()
