"""The API reference: every public name, from its docstring, as web pages or as one table.

    python examples/api.py                        # pages in out/reference, for a browser
    python examples/api.py --table examples/api.md

Needs: pip install -e ".[docs]"
"""

import argparse
import importlib
import inspect
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_bilinear as kb

ON_DEMAND = ["BilinearClassifier"]
"""Names of the package that are imported when they are asked for."""
FACES = ("callbacks", "losses", "penalties", "plots", "export")
"""Modules with public names of their own, beside those of the package."""
TITLE = """# Every public name

What `import keras_bilinear as kb` offers. `python examples/api.py` makes the whole reference, as web pages.
"""


def public_names() -> dict[str, dict[str, Any]]:
    """For each public module the names it offers, without modules, in the order of the alphabet."""
    modules = {"kb": kb} | {f"kb.{face}": importlib.import_module(f"keras_bilinear.{face}") for face in FACES}
    return {
        title: {
            name: getattr(module, name)
            for name in sorted([*module.__all__, *(ON_DEMAND if module is kb else [])], key=str.lower)
            if not inspect.ismodule(getattr(module, name)) and not name.startswith("_")
        }
        for title, module in modules.items()
    }


def table() -> str:
    """All public names with the first sentence of what their docstrings say, in Markdown."""
    lines = [TITLE]
    for title, names in public_names().items():
        lines += [f"| `{title}` | |", "|---|---|"]
        lines += [f"| `{name}` | {first_sentence(thing)} |" for name, thing in names.items()]
        lines.append("")
    return "\n".join(lines)


def first_sentence(thing: Any) -> str:
    """The first line of a docstring; of a constant, its value."""
    if not callable(thing):
        return f"{thing!r}"
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def write_pages(out: Path) -> None:
    """Writes the reference as HTML, with a search box."""
    import pdoc

    pdoc.render.configure(docformat="google", show_source=False)
    kb.__all__ += ON_DEMAND  # which is what pdoc goes by
    pdoc.pdoc("keras_bilinear", "keras_bilinear.export", output_directory=out)


def main() -> None:
    """Writes the pages, or the table."""
    parser = argparse.ArgumentParser(description="The API reference of keras_bilinear.")
    parser.add_argument("--out", type=Path, default=Path("out/reference"), help="folder of the pages")
    parser.add_argument("--table", type=Path, help="write only the table of all names, to this file")
    options = parser.parse_args()
    if options.table:
        options.table.write_text(table(), encoding="utf-8")
        print(f"Written: {options.table}")
        return
    write_pages(options.out)
    print(f"Written: {options.out / 'index.html'}")


if __name__ == "__main__":
    main()
