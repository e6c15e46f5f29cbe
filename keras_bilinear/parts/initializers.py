"""How the paper starts the right factors (Algorithms 1 and 2, "Initialization")."""

from typing import Any

import keras
from keras import ops

from keras_bilinear.arguments import integer
from keras_bilinear.maths.bilinear import Tensor


@keras.saving.register_keras_serializable(package="keras_bilinear")
class OrthogonalizedUniform(keras.initializers.Initializer):
    """b_{l,k} uniform on [-1, 1], then made orthogonal to b_{1,k}, ..., b_{l-1,k} for every class k.

    Different ranks thus start from different directions, which speeds up convergence; nothing keeps them
    orthogonal later on. At most N vectors of length N can be mutually orthogonal, so for L > N the ranks are
    taken in groups of N, each group orthogonal within itself.

    Args:
        seed: Integer for reproducible factors; None draws one.

    Raises:
        ValueError: if `seed` is neither an integer of 64 bits nor None.

    Example:
        >>> B = OrthogonalizedUniform(seed=1)((2, 28, 10))   # (L, N, K)
    """

    def __init__(self, seed: int | None = None):
        self.seed = None if seed is None else integer("seed", seed, 1 - 2**63, 2**63 - 1)
        self._uniform = keras.initializers.RandomUniform(-1.0, 1.0, seed=self.seed)

    def __call__(self, shape: tuple[int, int, int], dtype: str | None = None) -> Tensor:
        """Draws B of shape (L, N, K).

        Raises:
            ValueError: if `shape` is not (L, N, K).
        """
        if len(shape) != 3:
            raise ValueError(f"Expected a shape (L, N, K). Received: shape={tuple(shape)}")
        L, N, _ = shape
        drawn = self._uniform(shape, dtype="float32")
        groups = [orthogonalized(drawn[first : first + N]) for first in range(0, L, N)]
        return ops.cast(ops.concatenate(groups), dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


def orthogonalized(B: Tensor) -> Tensor:
    """Gram-Schmidt along the ranks without normalisation, b_l <- b_l - S (S^T b_l). B (L, N, K), L <= N.

    With the QR decomposition [b_1 ... b_L] = Q R the residual of b_l is R_{ll} q_l, whatever the signs in Q.
    """
    Q, R = ops.qr(ops.transpose(B, (2, 1, 0)))
    residual = Q * ops.diagonal(R, axis1=1, axis2=2)[:, None, :]
    return ops.transpose(residual, (2, 1, 0))
