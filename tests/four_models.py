"""The four models, small and seeded, by the names that the paper gives them."""

import keras_bilinear as kb
from tests.problems import planted

MODELS = {
    "BSR": lambda **options: kb.BilinearSoftmaxRegression(3, 2, **{"alpha": 1e-2, "seed": 0, **options}),
    "BLR": lambda **options: kb.BilinearLogisticRegression(2, **{"alpha": 1e-2, "seed": 0, **options}),
    "LSR": lambda **options: kb.LinearSoftmaxRegression(3, **{"alpha": 1e-2, **options}),
    "LLR": lambda **options: kb.LinearLogisticRegression(**{"alpha": 1e-2, **options}),
}


def classes(name):
    return 1 if name in ("BLR", "LLR") else 3


def data(name="BSR", T=60):
    """Images of 6 x 5 pixels in float32 and their classes, for the model `name`."""
    problem = planted(T=T, K=classes(name))
    return problem.X.astype("float32"), problem.y
