"""The four models, small and seeded, by the names that the paper gives them."""

import keras_bilinear as kb

MODELS = {
    "BSR": lambda **options: kb.BilinearSoftmaxRegression(3, 2, 1e-2, seed=0, **options),
    "BLR": lambda **options: kb.BilinearLogisticRegression(2, 1e-2, seed=0, **options),
    "LSR": lambda **options: kb.LinearSoftmaxRegression(3, 1e-2, **options),
    "LLR": lambda **options: kb.LinearLogisticRegression(1e-2, **options),
}
