"""Images of any unit and as bytes: products are those of the scaled images, in tiles or at once."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.solver import images as of_images
from keras_bilinear.solver.images import Images
from tests.problems import random_factors

M, N, K = 3, 4, 2
SCALE = ops.convert_to_tensor(1 / 255, "float64")


def pixels(T):
    return np.random.default_rng(T).integers(0, 256, (T, M, N)).astype("uint8")


KINDS = {
    "as they are": lambda values: Images(ops.convert_to_tensor(values / 255.0)),
    "scaled": lambda values: Images(
        ops.convert_to_tensor(values.astype("float64")), ops.convert_to_tensor(1 / 255, "float64")
    ),
    "bytes": lambda values: Images(ops.convert_to_tensor(values), ops.convert_to_tensor(1 / 255, "float64")),
}


@pytest.mark.parametrize("way", ["eager", "any size", "XLA"])
@pytest.mark.parametrize("T", [1, 8, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_scaled_images(kind, T, way, monkeypatch):
    monkeypatch.setattr(of_images, "TILE", 8)
    images, X, rng = KINDS[kind](pixels(T)), pixels(T) / 255.0, np.random.default_rng(0)
    W, r = rng.normal(size=(K, M, N)), rng.normal(size=(T, K))

    def products(images, W, r):
        return images.forward(W), images.adjoint(r), images.mean(), images.values()

    if way == "any size":
        known = tf.nest.map_structure(
            lambda part: None if part is None else tf.TensorSpec([None] * len(part.shape), part.dtype),
            (images, ops.convert_to_tensor(W), ops.convert_to_tensor(r)),
        )
        products = tf.function(products).get_concrete_function(*known)
    elif way == "XLA":
        products = tf.function(products, jit_compile=True)
    z, G, mean, values = products(images, ops.convert_to_tensor(W), ops.convert_to_tensor(r))
    np.testing.assert_allclose(z, np.einsum("tmn,kmn->tk", X, W), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(G, np.einsum("tk,tmn->kmn", r, X), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(values, X, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_model(kind):
    A, B = map(ops.convert_to_tensor, random_factors(M=M, N=N, K=K))
    bias = ops.convert_to_tensor(np.arange(K, dtype="float64"))
    X = ops.convert_to_tensor(pixels(20) / 255.0)
    np.testing.assert_allclose(KINDS[kind](pixels(20)).logits(A, B, bias), bm.logits(X, A, B, bias), rtol=1e-10)


def test_bytes_are_cast_a_tile_at_a_time():
    """No float copy of all images is ever made within a product."""
    largest = []

    def cast(tensor, dtype):
        largest.append(int(np.prod(tensor.shape[:1])))
        return tf.cast(tensor, dtype)

    images = KINDS["bytes"](pixels(2000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_images.ops, "cast", cast)
        images.forward(np.ones((K, M, N)))
        images.adjoint(ops.ones((2000, K), "float64"))
    assert max(largest) == of_images.TILE
