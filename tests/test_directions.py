"""The house has one direction: a folder imports only from those before it in the map of CONTRIBUTING."""

import ast
import graphlib
import pathlib

import pytest

import keras_bilinear

PACKAGE = pathlib.Path(keras_bilinear.__file__).parent
FOLDERS = ["maths", "solver", "parts", "data", "stopping", "monitoring", "models", "export", "selection", "plots"]
GROUND = ["arguments", "atomic_files", "tables", "_version"]
MODULES = [path.relative_to(PACKAGE) for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]


def nodes(path):
    """All of a file, in pieces."""
    return list(ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))))


def imported(path):
    """The modules of the package that a file imports, anywhere in it, as parts of their paths."""
    names = [node.module for node in nodes(path) if isinstance(node, ast.ImportFrom) and not node.level]
    names += [alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names]
    return [name.split(".")[1:] for name in names if name and name.split(".")[0] == PACKAGE.name]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_from_no_later_folder(path):
    for parts in imported(path):
        assert parts, f"{path} imports the package itself, whose names come last"
        assert parts[0] in GROUND or FOLDERS.index(parts[0]) <= FOLDERS.index(path.parts[0]), (
            f"{path} imports {'.'.join(parts)}"
        )


def test_the_kit_imports_only_names_that_are_offered():
    for path in sorted((PACKAGE.parent / "export" / "keras_bilinear_export").glob("*.py")):
        assert all(parts in ([], ["export"]) for parts in imported(path)), path
        offered = [node for node in nodes(path) if getattr(node, "module", None) == "keras_bilinear.export"]
        assert {alias.name for node in offered for alias in node.names} <= set(keras_bilinear.export.__all__), path


def test_every_folder_has_its_place():
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(FOLDERS)


def test_no_module_imports_itself_through_others():
    """Not for its types either: what a module asks of another that stands higher is a `Protocol`."""
    files = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    graph = {
        name: {
            (*node.module.split(".")[1:], alias.name)
            if (*node.module.split(".")[1:], alias.name) in files
            else tuple(node.module.split(".")[1:])
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}.")
            for alias in node.names
        }
        for name, path in files.items()
    }
    list(graphlib.TopologicalSorter(graph).static_order())  # or a CycleError


def test_no_file_is_too_long_to_read_at_once():
    long = [path for path in PACKAGE.rglob("*.py") if len(path.read_text("utf-8").splitlines()) > 300]
    assert not long
