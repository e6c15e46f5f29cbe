import pydoc
import re
import subprocess
import sys

import pytest

import keras_bilinear as kb

HEAVY = ["matplotlib", "tensorflow_datasets", "sklearn", "scipy.optimize", "tensorboard", "ai_edge_litert"]


def test_import_pulls_in_nothing_optional():
    script = (
        "import sys, tensorflow, keras\nbefore = set(sys.modules)\nimport keras_bilinear\n"
        f"added = [name for name in {HEAVY} if name in sys.modules and name not in before]\nassert not added, added"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_public_names_exist():
    for name in kb.__all__:
        assert hasattr(kb, name)


def test_the_classifier_for_scikit_learn_is_public_but_imported_when_asked_for():
    from keras_bilinear.selection.estimator import BilinearClassifier

    assert kb.BilinearClassifier is BilinearClassifier
    assert {"BilinearClassifier", *kb.__all__} <= set(dir(kb))
    # Importing all names must not need scikit-learn.
    assert "BilinearClassifier" not in kb.__all__
    with pytest.raises(AttributeError, match="has no attribute 'BilinearForest'"):
        _ = kb.BilinearForest


@pytest.mark.parametrize(
    "model",
    [
        kb.BilinearSoftmaxRegression,
        kb.BilinearLogisticRegression,
        kb.LinearSoftmaxRegression,
        kb.LinearLogisticRegression,
    ],
)
def test_the_first_screen_of_help_has_what_one_needs(model):
    """Most of the rest is of `keras.Model`, with its 1,600 lines. Python 3.13 gives each argument a line."""
    screen = "\n".join(pydoc.render_doc(model, renderer=pydoc.plaintext).splitlines()[:60])
    assert "Example:" in screen
    assert "Method resolution order" in screen  # all of the docstring is on it
    for name in ("weight_matrices()", "objective(x", "certificate(x, y)"):
        assert name in re.sub(r"\s*\|\s*", " ", screen)


def test_what_a_model_shows_is_for_users():
    import keras

    import keras_bilinear as kb

    model = kb.BilinearSoftmaxRegression(3, 2)
    shown = {name for name in dir(model) if not name.startswith("_")} - set(dir(keras.Model()))
    assert shown == {
        *("alpha", "factors", "rank", "penalty", "penalty_name", "seed", "units", "use_bias", "head", "schedule"),
        *("input_scale", "rows", "image_shape", "filter_images"),
        *("block_names", "factor_blocks", "filters", "is_exact", "num_blocks", "ranks"),
        *("canonicalize", "certificate", "convergence_report", "logits", "objective", "weight_matrices"),
    }
