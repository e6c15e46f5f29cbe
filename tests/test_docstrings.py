"""Every example of a docstring runs, on small images, and shows what it says it shows."""

import contextlib
import doctest
import importlib
import io
import pkgutil

import keras
import numpy as np
import pytest

import keras_bilinear as kb

MODULES = [module.name for module in pkgutil.walk_packages(kb.__path__, "keras_bilinear.")]
EXAMPLES = [
    pytest.param(test, id=test.name)
    for name in MODULES
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name)
    if test.examples
]
SHOWN = doctest.OutputChecker()


@pytest.fixture(scope="module")
def names(digits):
    """What the examples take for granted."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = digits[0][:120], digits[1][:120]
    linear = kb.LinearSoftmaxRegression(10, alpha=1e-2)
    bilinear = kb.BilinearSoftmaxRegression(10, rank=2, alpha=1e-2, seed=0)
    for model in (linear, bilinear):
        model.fit(x, y, epochs=2, verbose=0)
    given = {"x": x, "y": y, "x_train": x, "y_train": y, "x_test": x, "y_test": y, "is_nine": y == 9}
    models = {"linear": linear, "bilinear": bilinear, "model": bilinear}
    peers = {"LogisticRegression": LogisticRegression, "GridSearchCV": GridSearchCV}
    return {
        "keras": keras,
        "np": np,
        "kb": kb,
        "keras_bilinear": kb,
        **vars(kb),
        **vars(kb.plots),
        **given,
        **models,
        **peers,
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("test", EXAMPLES)
def test_an_example_runs(test, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {**names, "BilinearClassifier": kb.BilinearClassifier}
    for example in test.examples:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(example.source, test.name, "single"), scope)
        if example.want:
            assert SHOWN.check_output(example.want, output.getvalue(), doctest.ELLIPSIS), output.getvalue()
