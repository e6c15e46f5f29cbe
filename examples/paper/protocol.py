"""One cell of the paper: a random split, alpha chosen on its validation images, the accuracy on its test."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

import keras_bilinear as kb

ALPHAS = tuple(10.0 ** np.arange(0.0, -5.1, -0.5))
"""For every model alike: for L = 1 the product penalty is the ridge of the linear model."""


class Images(NamedTuple):
    """Images x (T, M, N) in [0, 1] and labels y (T,), 0..K-1."""

    x: np.ndarray
    y: np.ndarray

    def only(self, chosen: np.ndarray) -> "Images":
        """Some of them, by index."""
        return Images(self.x[chosen], self.y[chosen])


class Split(NamedTuple):
    """Disjoint images to train on, to choose alpha by, and to measure with."""

    train: Images
    validation: Images
    test: Images


class Result(NamedTuple):
    """What a model reaches on a split: fractions of images, 0 to 1."""

    model: str
    alpha: float
    validation: float
    test: float
    parameters: int


def pooled(dataset: str, classes: Sequence[int]) -> Images:
    """Training and test images of some classes together, by tensorflow-datasets; labels by place in `classes`."""
    import tensorflow_datasets as tfds

    parts = tfds.as_numpy(tfds.load(dataset, split=["train", "test"], as_supervised=True, batch_size=-1))
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    chosen = np.isin(y, classes)
    return Images(x[chosen, :, :, 0].astype("float32") / 255, np.searchsorted(classes, y[chosen]))


def random_split(images: Images, T: int, held_out: int, seed: int) -> Split:
    """A split that the seed decides; with the same seed, the images of a smaller T are among those of a larger."""
    order = np.random.default_rng(seed).permutation(len(images.x))
    validation, test, train = np.split(order, [held_out, 2 * held_out])
    return Split(images.only(train[:T]), images.only(validation), images.only(test))


def tuned_bilinear(
    split: Split,
    ranks: Sequence[int],
    alphas: Sequence[float] = ALPHAS,
    penalty: str = "product",
    bias: bool = False,
) -> Iterator[Result]:
    """BLR or BSR: the most accurate alpha on the validation images for each rank, the largest of equals."""
    K = classes_of(split)
    settings: dict[str, Any] = {"rank": 1, "penalty": penalty, "use_bias": bias, "seed": 0}
    model = kb.BilinearLogisticRegression(**settings) if K == 1 else kb.BilinearSoftmaxRegression(K, **settings)
    path = kb.regularization_path(model, *split.train, alphas, ranks, split.validation, rtol=1e-4, verbose=0)
    for rank in ranks:
        best = max((p for p in path.points if p.rank == rank), key=lambda p: (p.accuracy, p.alpha))
        W = np.einsum("lmk,lnk->mnk", best.factors.A, best.factors.B)
        offset = 0.0 if best.factors.bias is None else best.factors.bias
        test = accuracy(W.reshape(-1, K), offset, split.test)
        yield Result(f"rank {rank}", best.alpha, best.accuracy, test, best.parameters)


def tuned_linear(split: Split, alphas: Sequence[float] = ALPHAS, bias: bool = False) -> Result:
    """LLR or LSR by scikit-learn, tuned in the same way."""
    K, (x, y) = classes_of(split), split.train
    model = LogisticRegression(fit_intercept=bias, max_iter=500, warm_start=True)
    results = []
    for alpha in sorted(alphas, reverse=True):
        model.set_params(C=1 / (alpha * len(x))).fit(x.reshape(len(x), -1), y)
        W, offset = model.coef_.T, model.intercept_
        validation, test = (accuracy(W, offset, part) for part in (split.validation, split.test))
        results.append(Result("linear", alpha, validation, test, W.size + bias * K))
    return max(results, key=lambda result: (result.validation, result.alpha))


def classes_of(split: Split) -> int:
    """K: 1 for two classes, which the logistic models tell apart by one score."""
    count = len(np.unique(split.validation.y))
    return 1 if count == 2 else count


def accuracy(W: np.ndarray, offset: np.ndarray | float, images: Images) -> float:
    """Fraction of the images whose class has the largest score. W (M N, K)."""
    z = images.x.reshape(len(images.x), -1) @ W + offset
    guess = z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(axis=1)
    return float(np.mean(guess == images.y))
