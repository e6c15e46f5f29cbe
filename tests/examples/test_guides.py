"""The guides run, in a kernel as a reader's, and what is committed with them is what they show."""

import importlib.util
import re

import nbformat
import pytest

from tests.scripts import EXAMPLES, script

GUIDES = {path.stem: path for path in sorted((EXAMPLES / "guides").glob("*.ipynb"))}
ON_LINUX = {"microcontroller"}
"""Guides that need tflite-micro, which has wheels for Linux on x86-64 only."""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """{name: guide}, all run by one kernel."""
    has_micro = importlib.util.find_spec("tflite_micro") is not None
    paths = [path for name, path in GUIDES.items() if has_micro or name not in ON_LINUX]
    guides = script("guides/execute").executed(paths, tmp_path_factory.mktemp("guides"))
    return {path.stem: guide for path, guide in zip(paths, guides, strict=True)}


def shown(guide):
    """What each cell of code shows: the kinds of its outputs."""
    cells = [cell for cell in guide.cells if cell.cell_type == "code"]
    return [[(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs] for cell in cells]


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_runs_and_shows_what_is_committed_with_it(executed, name):
    if name not in executed:
        pytest.skip("needs tflite-micro, for Linux on x86-64")
    assert shown(executed[name]) == shown(nbformat.read(GUIDES[name], as_version=4))
    streams = [output for cell in executed[name].cells for output in cell.get("outputs", []) if "text" in output]
    assert not [stream.text for stream in streams if stream.name == "stderr"]


@pytest.mark.parametrize("name", GUIDES)
def test_what_is_committed_can_be_read(name):
    guide, text = nbformat.read(GUIDES[name], as_version=4), GUIDES[name].read_text(encoding="utf-8")
    nbformat.validate(guide)
    kinds = [kind for cell in shown(guide) for kind in cell]
    assert kinds
    # A picture is shown once, as what its cell returns.
    pictures = [kind for kind in kinds if "image/png" in kind]
    assert all(kind[0] == "execute_result" for kind in pictures)
    assert len(pictures) == len(re.findall(r"plots\.plot_", "".join(cell.source for cell in guide.cells)))
    assert [cell.execution_count for cell in guide.cells if cell.cell_type == "code"] == [
        *range(1, len(shown(guide)) + 1)
    ]
    # No addresses, and no paths of the machine it ran on.
    assert not re.search(r"0x[0-9a-f]{6,}|[\" (]/\w+/\w|\b[A-Z]:\\\\", text)
    assert len(text) < 600_000


def test_reports_are_tables_in_the_guides():
    kinds = [kind for path in GUIDES.values() for cell in shown(nbformat.read(path, 4)) for kind in cell]
    assert sum("text/markdown" in kind for kind in kinds) >= 6
