"""The scaling page: its table is what its rates and its model say."""

import re

import pytest

from tests.scripts import EXAMPLES, script

cost = script("scale/cost")
PAGE = (EXAMPLES / "scale" / "README.md").read_text("utf-8")


def test_the_table_of_the_page_is_what_its_rates_say():
    products, parsing, step = map(float, re.search(r"--rates (\S+) (\S+) (\S+)", PAGE).groups())
    rates = cost.Rates(products, parsing, step)
    rows = [cost.row(case, rates) for case in cost.CASES]
    assert [line for line in PAGE.splitlines() if line in rows] == rows


def test_what_a_worker_exchanges_does_not_grow_with_the_images():
    rates = cost.Rates(1e9, 1e8, 1e-9)
    one, many = (cost.costs(cost.Case(T, 100, 28, 10), rates) for T in (1e6, 1e9))
    for name in ("exchange", "step", "memory"):
        assert one[name] == many[name]
    for name in ("parse", "products", "bytes a worker"):
        assert many[name] == pytest.approx(1000 * one[name])
