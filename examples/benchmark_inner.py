"""How much an inner iteration costs: cached features against autodiff on the whole model, in one run.

Both do the paper's gradient descent on one factor of a BSR. The naive one differentiates J of the whole model with
`tf.GradientTape` and finds its step by Armijo backtracking, a forward pass over all images for each trial. Ours
caches the block's features once, after which an iteration never touches the images. Both are compiled by
TensorFlow, compilation is not timed, and the two alternate so that a busy machine slows both alike.

    python examples/benchmark_inner.py            # MNIST through tensorflow-datasets, T = 5,120, L = 4
"""

import argparse
import time
from statistics import median

import keras
import numpy as np
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear import bilinear_math as bm
from keras_bilinear.losses import targets

ITERATIONS = 50


def mnist(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The first training images, pixels in [0, 1], and their classes."""
    import tensorflow_datasets as tfds

    x, y = tfds.as_numpy(tfds.load("mnist", split=f"train[:{samples}]", batch_size=-1, as_supervised=True))
    return x[..., 0].astype("float32") / 255, y.astype("int32")


class NaiveDescent:
    """Gradient descent on one factor by autodiff of the whole model, with Armijo's rule."""

    def __init__(self, model: kb.BilinearSoftmaxRegression, x: np.ndarray, y: np.ndarray):
        self.model, self.X = model, tf.constant(x)
        self.C = targets(tf.constant(y), model.units, "float32")
        self.w = tf.fill([len(x)], np.float32(1 / len(x)))
        self.factor = model.factor_blocks[0].value
        self.step = tf.function(self.iterate)

    def objective(self) -> tf.Tensor:
        """J = V + alpha R of the whole model."""
        return bm.cross_entropy(self.model.logits(self.X), self.C, self.w) + self.model.penalty()

    def iterate(self, eta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One step, beginning at twice the last eta; returns J and the eta that satisfied Armijo's rule."""
        with tf.GradientTape() as tape:
            J = self.objective()
        gradient = tape.gradient(J, self.factor)
        start, slope = tf.identity(self.factor), tf.reduce_sum(gradient**2)
        eta = 2 * eta
        self.factor.assign(start - eta * gradient)
        after = self.objective()
        while after > J - 1e-4 * eta * slope and eta > 1e-12:
            eta = 0.5 * eta
            self.factor.assign(start - eta * gradient)
            after = self.objective()
        return after, eta


def main() -> None:
    """Measures both and prints milliseconds an iteration and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5120)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    x, y = mnist(options.samples)

    ours = kb.BilinearSoftmaxRegression(
        10, options.rank, alpha=1e-3, penalty="sum", input_shape=x.shape[1:], seed=0
    )
    theirs = kb.BilinearSoftmaxRegression(
        10, options.rank, alpha=1e-3, penalty="sum", input_shape=x.shape[1:], seed=0
    )
    ours.compile(kb.BlockLineSearch("gradient_descent", max_inner=ITERATIONS, tolerance=0.0))
    naive, eta = NaiveDescent(theirs, x, y), tf.constant(1.0)
    ours.fit(x, y, verbose=0)
    naive.step(eta)
    times: dict[str, list[float]] = {"autodiff": [], "ours": []}
    for _ in range(options.rounds):
        begin = time.perf_counter()
        for _ in range(10):
            J, eta = naive.step(eta)
        times["autodiff"].append((time.perf_counter() - begin) / 10)
        begin = time.perf_counter()
        history = ours.fit(x, y, steps_per_epoch=4, verbose=0).history
        iterations = history["inner_iterations"][-1]
        times["ours"].append((time.perf_counter() - begin) / (4 * max(iterations, 1)))
    print(f"BSR on {len(x):,} images, L = {options.rank}, gradient descent on one factor")
    for name, seconds in times.items():
        print(f"  {name:<9} {1e3 * median(seconds):8.2f} ms an iteration")
    print(f"  ratio     {median(times['autodiff']) / median(times['ours']):8.1f}")


if __name__ == "__main__":
    main()
