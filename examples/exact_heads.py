"""The last layer of a network by Adam and by the exact solver, on MNIST: J, accuracy and the certificate.

A network is trained by Adam, then all but its last layer is frozen, and that one goes on from the same weights, by
Adam and by `keras_bilinear.fit_head`.

    python examples/exact_heads.py                        a BilinearMap in front
    python examples/exact_heads.py --body convolution     a convolution, 7 x 7 places by 16 channels
    python examples/exact_heads.py --alpha 1e-2 --rank 6  where the optimum can be certified
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from benchmark_inner import mnist

import keras_bilinear as kb

Data = tuple[np.ndarray, np.ndarray]


def network_of(body: str, rank: int, alpha: float) -> keras.Model:
    """A network whose last layer is bilinear, with the sum penalty."""
    image = keras.Input((28, 28))
    if body == "map":
        features = kb.BilinearMap(16, 16, activation="relu")(image)
    else:
        channel = keras.layers.Reshape((28, 28, 1))(image)
        maps = keras.layers.Conv2D(16, 5, strides=4, padding="same", activation="relu")(channel)
        features = kb.ToMatrix(rows=(1, 2), columns=3)(maps)
    penalty = kb.penalties.Sum(alpha)
    head = kb.BilinearDense(10, rank, activation="softmax", use_bias=True, factor_penalty=penalty)
    return keras.Model(image, head(features))


def by_adam(network: keras.Model, data: Data, rate: float, epochs: int) -> None:
    """So many epochs of Adam on what can be trained."""
    network.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    network.fit(*data, epochs=epochs, batch_size=256, verbose=0)


def tell(name: str, network: keras.Model, data: Data, test: Data, work: Callable[[], object]) -> None:
    """Does some work and prints where it led, and how long it took."""
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    J, _ = network.evaluate(*data, batch_size=2000, verbose=0)
    _, accuracy = network.evaluate(*test, batch_size=2000, verbose=0)
    print(f"{name:28} J {J:.4f}, {accuracy:.2%} of the test images right, {seconds:.0f} s")


def main() -> None:
    """Prints one line for each way to train the head, and the certificate of the exact one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body", choices=("map", "convolution"), default="map")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=1e-3)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    data, test = mnist(f"train[:{args.images}]"), mnist("test")
    network = network_of(args.body, args.rank, args.alpha)
    tell("all layers by Adam", network, data, test, lambda: by_adam(network, data, 3e-3, 12))
    for layer in network.layers[:-1]:
        layer.trainable = False
    weights = network.get_weights()
    tell("then the head by Adam", network, data, test, lambda: by_adam(network, data, 1e-3, 10))
    network.set_weights(weights)
    stop = kb.callbacks.BlockConvergence(rtol=1e-4)
    fits: list[kb.HeadFit] = []
    tell(
        "or the head by fit_head",
        network,
        data,
        test,
        lambda: fits.append(kb.fit_head(network, *data, callbacks=[stop], verbose=0)),
    )
    print(fits[0].certificate)


if __name__ == "__main__":
    main()
