"""Every Python snippet of the README runs, in order, in one folder, as a reader would run them."""

import pathlib
import re

from tests.test_directions import FOLDERS

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_every_snippet_runs(tmp_path, monkeypatch, recwarn):
    text = README.read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(snippets) == 13
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in snippets:
        exec(compile(snippet, str(README), "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {
        "digits.tflite",
        "digits_saved_model",
        "camera.tflite",
        "fast.tflite",
        "path.png",
        "logs",
        "convergence.png",
        "filters.png",
    }
    assert (names["again"].weight_matrices() - names["W"]).max() < 1e-4


def test_what_the_readme_names_exists():
    text = README.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+\.py)`", text):
        assert list(README.parent.glob(f"[!.]*/**/{name}")), name
    for page in (README, README.parent / ".github" / "CONTRIBUTING.md"):
        folders = re.findall(r"^\| `(\w+)/` \|", page.read_text(encoding="utf-8"), re.M)
        assert folders == FOLDERS, f"the map of {page.name}"
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (README.parent / picture).is_file()
