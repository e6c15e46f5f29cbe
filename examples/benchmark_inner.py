"""How much an inner iteration costs: cached features against autodiff on the whole model, in one run.

All do the paper's gradient descent on a BSR. Two are autodiff on the whole model, with Armijo backtracking from
eta = 1: "as written" computes z = sum_l a_l^T X b_l the way the formula reads, "merged" forms W = sum_l a_l b_l^T
first. Ours caches the features of one block, after which an iteration never touches the images, and searches the
step exactly. Everything is compiled by TensorFlow, compilation is not timed, and the three alternate so that a busy
machine slows all alike.

    python examples/benchmark_inner.py            # MNIST through tensorflow-datasets, T = 5,120, L = 4
"""

import argparse
import functools
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.penalties import PENALTIES
from keras_bilinear.parts.losses import targets

ITERATIONS = 50
ALPHA = 1e-3


def mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images of a split, pixels in [0, 1], and their classes."""
    import tensorflow_datasets as tfds

    x, y = tfds.as_numpy(tfds.load("mnist", split=split, batch_size=-1, as_supervised=True))
    return x[..., 0].astype("float32") / 255, y.astype("int32")


def as_written(X: tf.Tensor, A: tf.Tensor, B: tf.Tensor) -> tf.Tensor:
    """z_{t,k} = sum_l a_{l,k}^T (X_t b_{l,k}), without further thought."""
    return tf.reduce_sum(tf.einsum("tmn,lnk->tlmk", X, B) * A, axis=(1, 2))


class Autodiff:
    """Gradient descent by autodiff of the whole model, with Armijo's rule; `blocks` are a_1, b_1, a_2, b_2, ..."""

    def __init__(
        self,
        logits: Callable[..., tf.Tensor],
        factors: tuple[np.ndarray, ...],
        x: np.ndarray,
        y: np.ndarray,
        penalty: str = "sum",
        alpha: float = ALPHA,
    ):
        self.penalty, self.alpha = PENALTIES[penalty], alpha
        self.logits, self.X = logits, tf.constant(x)
        self.blocks = [tf.Variable(factor) for pair in zip(*factors, strict=True) for factor in pair]
        self.C = targets(tf.constant(y), factors[0].shape[2], "float32")
        self.w = tf.fill([len(x)], np.float32(1 / len(x)))
        self.step = tf.function(self.iterate)

    def objective(self) -> tf.Tensor:
        """J = V + alpha R of the whole model, with the given penalty."""
        A, B = tf.stack(self.blocks[::2]), tf.stack(self.blocks[1::2])
        V = bm.cross_entropy(self.logits(self.X, A, B), self.C, self.w)
        return V + self.alpha * self.penalty.value(A, B)

    def iterate(self, active: tuple[int, ...]) -> tf.Tensor:
        """One step of the active blocks with the largest eta = 1, 1/2, 1/4, ... that satisfies Armijo's rule; J."""
        variables = [self.blocks[i] for i in active]
        with tf.GradientTape() as tape:
            J = self.objective()
        gradients, starts = tape.gradient(J, variables), [tf.identity(variable) for variable in variables]
        slope = sum(tf.reduce_sum(gradient**2) for gradient in gradients)
        eta, after = 2.0, tf.constant(np.inf)
        while after > J - 1e-4 * eta * slope and eta > 1e-12:
            eta = 0.5 * eta
            for variable, start, gradient in zip(variables, starts, gradients, strict=True):
                variable.assign(start - eta * gradient)
            after = self.objective()
        return after


def seconds(call: Callable[[], object], count: int) -> float:
    """Mean wall time of one of `count` calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def main() -> None:
    """Measures all three and prints milliseconds an iteration and the ratios."""
    parser = argparse.ArgumentParser(description="What an inner iteration costs.")
    parser.add_argument("--samples", type=int, default=5120)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    x, y = mnist(f"train[:{options.samples}]")
    model = kb.BilinearSoftmaxRegression(
        10, options.rank, alpha=ALPHA, penalty="sum", input_shape=x.shape[1:], seed=0
    )
    naive = {
        name: Autodiff(logits, model.factors(), x, y)
        for name, logits in {"autodiff as written": as_written, "autodiff, W merged": bm.logits}.items()
    }
    model.compile(kb.BlockLineSearch("gradient_descent", "factor", max_inner=ITERATIONS, tolerance=0.0))
    model.fit(x, y, verbose=0)
    everything = tuple(range(2 * options.rank))
    for autodiff in naive.values():
        autodiff.step(everything)
    times: dict[str, list[float]] = {name: [] for name in (*naive, "ours")}
    for _ in range(options.rounds):
        for name, autodiff in naive.items():
            times[name].append(seconds(functools.partial(autodiff.step, everything), 10))
        # One block a call; its share of the features and of Keras' step is counted in.
        block = seconds(lambda: model.fit(x, y, steps_per_epoch=4, verbose=0), 1) / 4
        times["ours"].append(block / model.history.history["inner_iterations"][-1])
    print(f"BSR on {len(x):,} images, L = {options.rank}, gradient descent")
    ours = median(times["ours"])
    for name, measured in times.items():
        print(f"  {name:<20}{1e3 * median(measured):8.2f} ms an iteration{median(measured) / ours:8.1f} x ours")


if __name__ == "__main__":
    main()
