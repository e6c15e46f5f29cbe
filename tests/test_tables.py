"""Reports as notebooks show them: in Markdown, from the same facts as their text."""

import re
from dataclasses import dataclass

import pytest

import keras_bilinear as kb
from keras_bilinear.tables import Report, Table


@dataclass(frozen=True, repr=False)
class Sums(Report):
    """Some numbers, and a path in which Markdown would see emphasis."""

    path: str = "a_b_c|*d*"

    def __str__(self):
        return f"two sums in {self.path}"

    def _parts(self):
        yield Table(("name", "sum", ""), [("|W|", "1,234", ""), ("b", "-0.5", "best")])
        yield self.path


def test_a_report_is_a_table_in_a_notebook_and_its_text_elsewhere():
    assert Sums()._repr_markdown_() == (
        "| name | sum |  |\n|---|---:|---|\n| \\|W\\| | 1,234 |  |\n| b | -0.5 | best |\n\na\\_b\\_c\\|\\*d\\*"
    )
    assert repr(Sums()) == str(Sums()) == "two sums in a_b_c|*d*"


@pytest.fixture(scope="module")
def reports(tmp_path_factory, digits):
    """One of each kind."""
    x, y = digits[0][:200], digits[1][:200]
    model = kb.BilinearSoftmaxRegression(10, 1, alpha=1e-2, seed=0)
    model.fit(x, y, epochs=2, verbose=0)
    path = kb.regularization_path(model, x, y, alphas=[1e-1, 1e-2], ranks=[1], max_sweeps=2, verbose=0)
    dense = kb.LinearSoftmaxRegression(10, input_shape=(8, 8))
    file = tmp_path_factory.mktemp("files") / "m.tflite"
    found = {
        "convergence": model.convergence_report(),
        "certificate": model.certificate(x, y),
        "path": path,
        "point": path.best,
        "compression": kb.compression_report(kb.to_dense(dense), kb.compress(kb.to_dense(dense), 1), x, y),
        "export": kb.export_tflite(model, file, validation_data=(x, y)),
    }
    return {**found, "verification": found["export"].verification, "kernels": found["export"].verification.default}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["convergence", "certificate", "path", "point", "compression", "export", "verification", "kernels"]
)
def test_every_report_shows_as_a_table(reports, name):
    report = reports[name]
    shown = report._repr_markdown_()
    assert repr(report) == str(report)
    tables = re.findall(r"(?:^\|.*\|\n?)+", shown, re.M)
    assert tables
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table
    # The text and the table know the same numbers.
    numbers = set(re.findall(r"\d+\.\d{4,}", shown))
    assert name == "certificate" or numbers <= set(re.findall(r"\d+\.\d{4,}", str(report)))


def test_a_file_with_scores_has_no_accuracy_in_its_table():
    report = kb.export.KernelReport("default", 1e-7, 1e-8, float("nan"), 0.25, "mean absolute error")
    assert "| default | 1.0e-07 | 1.0e-08 |  | 0.2500 |" in report._repr_markdown_()
    assert "mean absolute error" in report._repr_markdown_()
