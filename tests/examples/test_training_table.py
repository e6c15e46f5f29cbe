"""The table of training times is written from runs, and nothing else of its page is touched."""

import re
from typing import NamedTuple

import numpy as np
import pytest

from tests.scripts import EXAMPLES, script

training_table = script("training_table")


class Run(NamedTuple):
    """What the table reads of `benchmark_peers.Run`."""

    seconds: list
    J: list
    W: np.ndarray
    searches: tuple

    def time_to(self, J):
        return next((second for second, value in zip(self.seconds, self.J, strict=True) if value <= J), np.inf)

    def searches_to(self, J):
        return self.searches[self.J.index(next(value for value in self.J if value <= J))]


@pytest.fixture
def column():
    """Runs that need 1, 2 and 4 s to 1.001 J*, and as many line searches; the linear model takes 4 s."""
    x, W = np.eye(10, 16, dtype="float32").reshape(10, 4, 4), np.eye(10, 16).reshape(10, 4, 4)
    runs = {}
    for name in training_table.NAMES:
        linear = "LSR" in name
        runs[name] = [
            Run([0.5, 4.0 if linear else end], [1.005, 1.0005], W, (2, int(end))) for end in (4.0, 1.0, 2.0)
        ]
    return training_table.Column((x, np.arange(10), 3, "product", 1e-3), runs, 1.0, 10.0)


def test_it_holds_medians_and_what_they_are_of_newton_cg(column):
    x, y = column.problem[:2]
    text = training_table.table([column], (x, y), 3)
    assert "| `BlockLineSearch()`, the default | 0.5 s | 2 s | 100.0 % |" in text
    assert "newton-cg: whole fit | 4 s |  | 100.0 % |" in text
    assert "0.12 / 0.50. Line searches to 1.001 J*: 2." in text


def test_a_solver_that_does_not_get_there_says_so(column):
    assert training_table.in_words(column.seconds("ours", 0.9), column.budget) == "> 10 s"


def test_it_takes_the_place_of_the_one_before(column, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{training_table.START}\nold\n{training_table.END}\nafter\n", encoding="utf-8")
    for _ in range(2):  # and of itself
        training_table.write(page, training_table.table([column], column.problem[:2], 3))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count(training_table.START) == 1
    page.write_text("no table", encoding="utf-8")
    with pytest.raises(SystemExit, match="Expected one table"):
        training_table.write(page, "new")


def test_the_page_has_a_line_for_every_solver_that_the_benchmark_runs():
    source = (EXAMPLES / "benchmark_training.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in source for name in training_table.NAMES)
    page = (EXAMPLES / "training.md").read_text(encoding="utf-8")
    (text,) = re.findall(f"{re.escape(training_table.START)}(.*?){re.escape(training_table.END)}", page, re.S)
    assert all(f"| {title} |" in text for title in training_table.NAMES.values())
