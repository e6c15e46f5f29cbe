"""Runs the guides, all in one kernel, and saves them with what they show.

    python examples/guides/execute.py                          # all
    python examples/guides/execute.py certificate.ipynb        # one

Needs: pip install -e .[test]; the guide on microcontrollers tflite-micro, for Linux on x86-64
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
HELPERS = [FOLDER.parent / "camera_digits.py"]
"""What guides import from the folder above."""
BEFORE = """
from keras_bilinear_export.quiet import quiet_stderr

with quiet_stderr(unless=lambda error: False):
    import ai_edge_litert.interpreter
    import keras_bilinear
"""
"""Imports what writes notes to the terminal as it is imported, which readers of a guide need not see."""
FORGET = "%reset -f"
"""Between two guides, so that none lives on what another has defined."""


def executed(paths: Sequence[Path], work: Path) -> list[NotebookNode]:
    """The guides with what their cells have shown, or a CellExecutionError.

    One kernel runs them all, for TensorFlow takes longer to import than most guides to run. What they write goes
    into the folder `work`.
    """
    guides = [nbformat.read(path, as_version=4) for path in paths]
    cells = [nbformat.v4.new_code_cell(BEFORE)]
    for guide in guides:
        cells += [nbformat.v4.new_code_cell(FORGET), *guide.cells]
    place = work / FOLDER.name
    place.mkdir()
    for helper in HELPERS:
        shutil.copy(helper, work)
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(place)}},
    )
    client.execute(env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    for guide in guides:
        number_cells(guide)
    return guides


def number_cells(guide: NotebookNode) -> None:
    """From one, as if the guide had been alone."""
    code = [cell for cell in guide.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number


def main() -> None:
    """Runs and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guides", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    paths = parser.parse_args().guides
    with tempfile.TemporaryDirectory() as work:
        for path, guide in zip(paths, executed(paths, Path(work)), strict=True):
            nbformat.write(guide, path)
            print(f"Written: {path}")


if __name__ == "__main__":
    main()
