"""Scripts of `examples/` as modules, without their folder on the path: its `tensorboard.py` is not TensorBoard."""

import importlib.util
import pathlib

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def script(name):
    """examples/<name>.py, which imports none of its neighbours."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
