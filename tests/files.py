"""Models with random weights, what their files must compute, and running such a file."""

import contextlib
import json

import keras
import numpy as np
from ai_edge_litert.interpreter import Interpreter

import keras_bilinear as kb
from keras_bilinear.export import litert
from keras_bilinear.export.exportable import as_numpy

# Float32 sums of at most 1,000 products of numbers below 1: rounding stays under 2e-6 (measured 6e-7), while any
# exchanged axis, rank or class is off by 1e-2 or more.
ATOL = 5e-6


def random_model(kind, size=(7, 5), rank=2, units=3, use_bias=False, seed=0):
    """A built model with random weights, so that no symmetry hides an exchanged axis."""
    rng = np.random.default_rng(seed)
    models = {
        "BSR": lambda: kb.BilinearSoftmaxRegression(units, rank, use_bias=use_bias, input_shape=size),
        "BLR": lambda: kb.BilinearLogisticRegression(rank, use_bias=use_bias, input_shape=size),
        "LSR": lambda: kb.LinearSoftmaxRegression(units, use_bias=use_bias, input_shape=size),
        "LLR": lambda: kb.LinearLogisticRegression(use_bias=use_bias, input_shape=size),
    }
    model = models[kind]()
    K = model.units
    if kind in ("BSR", "BLR"):
        A, B = rng.normal(size=(rank, size[0], K)), rng.normal(size=(rank, size[1], K))
        model.head.assign_factors(A / np.sqrt(size[0]), B / np.sqrt(size[1]))
    else:
        model.head.kernel.assign(rng.normal(size=(size[0] * size[1], K)) / np.sqrt(size[0]))
    if use_bias:
        model.head.bias.assign(rng.normal(size=K))
    return model


def least_squares_model(x, y, units, rank, use_bias=False):
    """A BSR, or for units = 1 a BLR, that knows most of these images without being trained, which takes seconds.

    Ridge regression on the classes, each filter cut to its rank by SVD; as certain as a fitted model is.
    """
    T, M, N = x.shape
    X, targets = x.reshape(T, -1).astype("float64"), np.eye(units)[y] - 0.1 if units > 1 else 2.0 * y[:, None] - 1
    W = np.linalg.solve(X.T @ X + 30 * np.eye(M * N), X.T @ targets).T.reshape(units, M, N)
    U, sigma, V = np.linalg.svd(8 * W)
    root = np.sqrt(sigma[:, :rank])
    model = random_model("BSR" if units > 1 else "BLR", (M, N), rank, units, use_bias)
    model.head.assign_factors(
        np.einsum("kml,kl->lmk", U[..., :rank], root), np.einsum("kln,kl->lnk", V[:, :rank], root)
    )
    return model


def random_images(model, T=40, seed=1):
    return np.random.default_rng(seed).uniform(size=(T, *model.image_size)).astype("float32")


def oracle(model, x, output):
    """z_k = sum_mn W_kmn x_mn + bias_k and its squashing, in float64 NumPy."""
    z = np.einsum("kmn,tmn->tk", weights(model), x.astype("float64"))
    z = z if model.head.bias is None else z + as_numpy(model.head.bias)
    if output == "logits":
        return z
    if model.units == 1:
        return 1 / (1 + np.exp(-z))
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def weights(model):
    if hasattr(model, "factors"):
        A, B = (factors.astype("float64") for factors in model.factors())
        return sum(np.einsum("mk,nk->kmn", a, b) for a, b in zip(A, B, strict=True))
    M, N = model.image_size
    kernel = as_numpy(model.head.kernel).astype("float64")
    return np.stack([kernel[:, k].reshape(M, N) for k in range(model.units)])


def run(path, x, output="probabilities", batch=1):
    """What an application gets: the file's signature, `batch` images a call."""
    serve = Interpreter(str(path)).get_signature_runner("serving_default")
    return np.concatenate([serve(image=x[t : t + batch])[output] for t in range(0, len(x), batch)])


def computed(network, x):
    """What any Keras model computes, as `predict` does, without the graph that `predict` makes first."""
    return keras.tree.map_structure(keras.ops.convert_to_numpy, network(x, training=False))


@contextlib.contextmanager
def dtype_policy(name):
    """Keras' policy for the layers that are made within."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def describe(path, facts):
    """Writes what a file says of itself: a dict, or text that need not be JSON."""
    if isinstance(facts, dict):
        path.write_bytes(litert.with_metadata(path.read_bytes(), facts))
        return
    place = "x" * len(facts.encode())
    content = litert.with_metadata(path.read_bytes(), {place: 0})
    written = json.dumps({place: 0}, separators=(",", ":")).encode()
    # In the place of JSON of the same length, blanks at its end.
    assert content.count(written) == 1
    path.write_bytes(content.replace(written, facts.encode().ljust(len(written))))
