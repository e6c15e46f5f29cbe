"""One reading of all images: what is summed up of several models at once.

Where the images are read batch by batch, a line search cannot look at them as often as it likes. So a reading takes
along all the steps it may turn out to take: their logits cost columns of one product with the images, and so do
their gradients. Sums over batches do not ask in which order the images come.
"""

from typing import NamedTuple

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.solver.images import Images


class Filters(NamedTuple):
    """n models of the same images, z = <W_k, X> + bias_k.

    Fields:
        W: (n, K, M, N).
        bias: (n, K), zero where a model has none.
    """

    W: Tensor
    bias: Tensor


class Sums(NamedTuple):
    """What a batch adds to a reading, of n models.

    Fields:
        V: The cross-entropies, (n,).
        G: dV/dW of all but the first, (n - 1, K, M, N).
        shares: dV/dbias of all but the first, (n - 1, K).
    """

    V: Tensor
    G: Tensor
    shares: Tensor


def sums_of(X: Images, samples: Samples, filters: Filters) -> tuple[Sums, Tensor]:
    """The sums of a batch of images and, for metrics, the logits (T, K) of the first model.

    Of the first model the gradient is known already: it is where the last reading has led to.
    """
    n, K = filters.bias.shape
    size = ops.shape(filters.W)[2:]
    z = X.forward(ops.reshape(filters.W, (n * K, *size))) + ops.reshape(filters.bias, (n * K,))
    each = ops.split(z, n, axis=1)
    V = ops.stack([bm.cross_entropy(one, *samples) for one in each])
    residuals = ops.concatenate([samples.residual(bm.probabilities(one)) for one in each[1:]], axis=1)
    G = ops.reshape(X.adjoint(residuals), (n - 1, K, *size))
    return Sums(V, G, ops.reshape(ops.sum(residuals, axis=0), (n - 1, K))), each[0]
