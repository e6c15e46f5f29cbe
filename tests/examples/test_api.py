"""The API reference builds without a warning and holds every public name."""

import pathlib
import re
import subprocess
import sys

import pytest

import keras_bilinear as kb
from tests.scripts import EXAMPLES, script

ROOT = pathlib.Path(kb.__file__).parents[1]
api = script("api")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The reference, built as a reader builds it: {page: text}."""
    out = tmp_path_factory.mktemp("reference")
    command = [sys.executable, EXAMPLES / "api.py", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Warn:" not in done.stderr
    return {path.stem: path.read_text(encoding="utf-8") for path in out.glob("**/*.html")}


@pytest.mark.parametrize("title", api.public_names())
def test_every_public_name_is_on_its_page(pages, title):
    page = pages[title.removeprefix("kb.").replace("kb", "keras_bilinear")]
    for name in api.public_names()[title]:
        assert f'id="{name}"' in page


def test_the_table_is_that_of_the_present_docstrings():
    assert (EXAMPLES / "api.md").read_text(encoding="utf-8") == api.table()


def test_every_name_of_the_table_says_what_it_is():
    for line in re.findall(r"^\| `.*`.*$", api.table(), re.M)[1:]:
        assert not line.endswith("|  |"), line
