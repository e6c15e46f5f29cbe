"""What the paper leaves open, measured on MNIST with ten classes: one experiment each, in questions.csv.

    python examples/paper/questions.py                     # all of them
    python examples/paper/questions.py start penalty       # only these
    python examples/paper/questions.py --quick             # a smaller version of each

Rows are (question, setting, seed, figure, value). What is there already is not measured again.
"""

import argparse
import csv
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from protocol import ALPHAS, Images, Split, pooled, random_split, tuned_bilinear, tuned_linear
from run import write
from sklearn.linear_model import LogisticRegression

import keras_bilinear as kb

COLUMNS = ("question", "setting", "seed", "figure", "value")
Rows = Iterator[tuple[str, str, float]]


class Scale(NamedTuple):
    """How much is measured."""

    seeds: int
    starts: int
    alphas: tuple[float, ...]
    T: int
    largest: int


FULL = Scale(seeds=3, starts=20, alphas=ALPHAS[2:10], T=5120, largest=60_000)
QUICK = Scale(seeds=1, starts=2, alphas=(1e-2, 1e-3), T=500, largest=2000)


def ten_classes(scale: Scale, seed: int) -> Split:
    """The split of the paper's Figure 4."""
    return random_split(pooled("mnist", range(10)), scale.T, 10_000, seed)


def ranks(scale: Scale, seed: int) -> Rows:
    """From which rank on is BSR as good as LSR?"""
    split = ten_classes(scale, seed)
    for result in (tuned_linear(split, scale.alphas), *tuned_bilinear(split, (1, 2, 3, 4, 5, 6), scale.alphas)):
        yield result.model, "accuracy", result.test
        yield result.model, "parameters", result.parameters


def penalties(scale: Scale, seed: int) -> Rows:
    """Which of the three penalties, each with its own best alpha?"""
    split = ten_classes(scale, seed)
    for penalty in ("product", "sum", "frobenius"):
        for result in tuned_bilinear(split, (3, 4), scale.alphas, penalty):
            yield f"{penalty}, {result.model}", "accuracy", result.test


def intercept(scale: Scale, seed: int) -> Rows:
    """With a bias for each class, or without?"""
    split = ten_classes(scale, seed)
    for bias, name in ((False, "without"), (True, "with")):
        for result in (
            tuned_linear(split, scale.alphas, bias),
            *tuned_bilinear(split, (4,), scale.alphas, bias=bias),
        ):
            yield f"{result.model}, {name}", "accuracy", result.test


def start(scale: Scale, seed: int) -> Rows:
    """How many sweeps of the paper's schedule from each start, and to which J? 640 images, L = 3, alpha = 0.01."""
    split = random_split(pooled("mnist", range(10)), 640, 10_000, 0)
    rng = np.random.default_rng(seed)
    uniform = rng.uniform(-1, 1, (2, 3, 28, 10)).astype("float32")
    linear = LogisticRegression(C=1 / (1e-2 * 640), fit_intercept=False, max_iter=500)
    linear.fit(split.train.x.reshape(640, -1), split.train.y)
    svd = kb.BilinearSoftmaxRegression(10, 3, alpha=1e-2, input_shape=(28, 28))
    svd.head.assign_factors(*kb.from_dense(dense_of(linear), 3, (28, 28)).factors())
    paper = kb.BilinearSoftmaxRegression(10, 3, alpha=1e-2, input_shape=(28, 28), seed=seed)
    starts = {
        "the paper's: a = 0, b random, orthogonal": paper.factors(),
        "a = 0, b random": (np.zeros_like(uniform[0]), uniform[1]),
        "a and b random": (uniform[0], uniform[1]),
    }
    runs = [(name, factors, "factor") for name, factors in starts.items()]
    if seed == 0:  # These do not depend on it.
        runs += [("SVD of the linear solution", svd.factors(), "factor")]
        runs += [("all factors at once, the default, which starts from the images", paper.factors(), "joint")]
    for name, factors, blocks in runs:
        sweeps, J = sweeps_from(factors, split.train, blocks)
        yield name, "sweeps", sweeps
        yield name, "J", J


def sweeps_from(factors: tuple[np.ndarray, np.ndarray], train: Images, blocks: str) -> tuple[int, float]:
    """Sweeps until one lowers J by less than 1e-5 of it, and J there."""
    model = kb.BilinearSoftmaxRegression(10, 3, alpha=1e-2, input_shape=(28, 28))
    model.head.assign_factors(*factors)
    model.compile(kb.BlockLineSearch(blocks=blocks))
    stop = kb.callbacks.BlockConvergence(rtol=1e-5)
    history = model.fit(*train, epochs=500, verbose=0, callbacks=[stop])
    return len(history.epoch), history.history["objective"][-1]


def dense_of(linear: LogisticRegression) -> keras.Model:
    """A plain Keras model with the weights of scikit-learn's."""
    dense = keras.Sequential(
        [keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(10, use_bias=False)]
    )
    dense.layers[-1].kernel.assign(linear.coef_.T)
    return dense


def everything(scale: Scale, seed: int) -> Rows:
    """All training images and the official test: rank 4 against LSR, alpha by the last sixth of the former."""
    import tensorflow_datasets as tfds

    parts = tfds.as_numpy(tfds.load("mnist", split=["train", "test"], as_supervised=True, batch_size=-1))
    train, test = (Images(x[..., 0].astype("float32") / 255, y) for x, y in parts)
    train = Images(train.x[: scale.largest], train.y[: scale.largest])
    cut = scale.largest * 5 // 6
    tuning = Split(Images(train.x[:cut], train.y[:cut]), Images(train.x[cut:], train.y[cut:]), test)
    alphas = [alpha for alpha in scale.alphas if alpha <= 1e-3]
    for bias, name in ((False, "without"), (True, "with")):
        linear = tuned_linear(tuning, alphas, bias)
        yield (
            f"LSR, {name} intercept",
            "accuracy",
            tuned_linear(Split(train, test, test), [linear.alpha], bias).test,
        )
        (best,) = tuned_bilinear(tuning, (4,), alphas, bias=bias)
        (final,) = tuned_bilinear(Split(train, test, test), (4,), [best.alpha], bias=bias)
        yield f"rank 4, {name} intercept", "accuracy", final.test


QUESTIONS: dict[str, tuple[Callable[[Scale, int], Rows], str]] = {
    "ranks": (ranks, "seeds"),
    "penalty": (penalties, "seeds"),
    "intercept": (intercept, "seeds"),
    "start": (start, "starts"),
    "everything": (everything, ""),
}


def read(path: Path) -> list[dict[str, str]]:
    """The rows measured before."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Measures what is missing, one seed of one question at a time."""
    parser = argparse.ArgumentParser(description="What the paper leaves open.")
    parser.add_argument("question", nargs="*", choices=[*QUESTIONS, []], help="all by default")
    parser.add_argument("--quick", action="store_true", help="few images, seeds and alphas")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    args = parser.parse_args()
    tf.config.experimental.enable_op_determinism()
    warnings.simplefilter("ignore")  # fits that end before they converge: said by their sweeps
    scale = QUICK if args.quick else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "questions.csv"
    found = read(path)
    wanted = [
        (name, seed)
        for name in args.question or QUESTIONS
        for seed in range(getattr(scale, QUESTIONS[name][1] or "_", 1))
    ]
    missing = [unit for unit in wanted if unit not in {(row["question"], int(row["seed"])) for row in found}]
    progress = keras.utils.Progbar(len(missing), unit_name="seed")
    for name, seed in missing:
        try:
            measured = list(QUESTIONS[name][0](scale, seed))
        except KeyboardInterrupt:
            sys.exit("\nInterrupted. The same command goes on from here.")
        found += [
            dict(zip(COLUMNS, (name, setting, str(seed), figure, f"{value:.7g}"), strict=True))
            for setting, figure, value in measured
        ]
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        write(path, text.getvalue())
        progress.add(1)
    print(f"\nWritten: {path}")


if __name__ == "__main__":
    main()
