"""Every Python snippet of the README, and of the page on training, runs in order, as a reader would run it."""

import json
import pathlib
import re

import pytest

from tests.test_directions import FOLDERS

README = pathlib.Path(__file__).parents[1] / "README.md"
TRAINING = README.parent / "examples" / "training.md"
PACKAGE = README.parent / ".github" / "PACKAGE.md"
PAGES = [
    *(README, PACKAGE, README.parent / ".github" / "CONTRIBUTING.md"),
    *sorted(README.parent.glob("examples/**/*.md")),
    *sorted(path for path in README.parent.glob("export/**/*.md") if "node_modules" not in path.parts),
    *sorted(README.parent.glob("examples/guides/*.ipynb")),
]


def run_snippets(page, folder, monkeypatch):
    """Runs all of a page; what it leaves behind, as names and as files."""
    snippets, names = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S), {}
    assert len(snippets) >= 5
    monkeypatch.chdir(folder)
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), names)
    return names, {path.name for path in folder.iterdir()}


def test_the_readme_runs(tmp_path, monkeypatch, recwarn):
    names, files = run_snippets(README, tmp_path, monkeypatch)
    written = {"digits.tflite", "camera.tflite", "digits_saved_model", "logs", "filters.png", "convergence.png"}
    assert files == written
    assert names["report"].bytes < 10_000
    assert max(names["found"].ranks()) > 1


def test_the_page_on_training_runs(tmp_path, monkeypatch, recwarn):
    names, files = run_snippets(TRAINING, tmp_path, monkeypatch)
    assert files == {"fit.checkpoint", "logs", "filters.png", "convergence.png"} - {"fit.checkpoint"}
    assert (names["again"].weight_matrices() - names["W"]).max() < 1e-4


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180


def words_of(page):
    """The text of a page; of a guide, that between its cells of code."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join(
        "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
    )


def anchors_of(page):
    """Where links into a page may point, as GitHub names its headings."""
    headings = re.findall(r"^#+ (.*)$", words_of(page), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_page_of_the_package_stands_alone():
    text = PACKAGE.read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https://)", text)
    # Its snippet runs, as the README's.
    (snippet,) = re.findall(r"```python\n.*?```", text, re.S)
    assert snippet in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_what_pages_name_exists(page):
    text = words_of(page)
    for name in re.findall(r"`(\w+\.py)`", text):
        assert list(README.parent.glob(f"[!.]*/**/{name}")), name
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text):
        assert (page.parent / link).exists(), link
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", text):
        assert anchor in anchors_of(page.parent / target if target else page)


@pytest.mark.parametrize(
    "page", [README, README.parent / ".github" / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_the_map_names_all_folders(page):
    assert re.findall(r"^\| `(\w+)/` \|", page.read_text(encoding="utf-8"), re.M) == FOLDERS
