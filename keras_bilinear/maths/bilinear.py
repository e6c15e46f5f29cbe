"""The bilinear model and its likelihood: pure functions of arrays, in `keras.ops`.

The paper's symbols, used in every module, docstring and test:

    T         samples                     X  (T, M, N)   images
    M, N      rows, columns of an image   A  (L, M, K)   left factors, columns a_{l,k}
    K         classes (`units`)           B  (L, N, K)   right factors, columns b_{l,k}
    L         ranks (`rank`)              W  (K, M, N)   W_k = sum_l a_{l,k} b_{l,k}^T
    z  (T, K) logits, z_{t,k} = sum_l a_{l,k}^T X_t b_{l,k}
    C  (T, K) targets, one-hot for K >= 2, 0/1 for K = 1
    w  (T,)   sample weights, normalised so that V is a plain weighted sum
    V         cross-entropy, J = V + alpha R the objective, eta a step size

K = 1 is the logistic model (BLR), K >= 2 the soft-max model (BSR). Both are exponential families:
V(z) = sum_t w_t (Lambda(z_t) - c_t . z_t) with the log-partition Lambda = softplus or logsumexp, so its
gradient is w (p - c) and its curvature is the covariance of c under p. Everything below follows from that.
"""

from typing import Any, NamedTuple

from keras import ops

Tensor = Any
"""An array of the active Keras backend (Keras publishes no static type for it)."""


class Factors(NamedTuple):
    """A (L, M, K), B (L, N, K) and the bias (K,), or None where the model has none."""

    A: Tensor
    B: Tensor
    bias: Tensor | None


class Samples(NamedTuple):
    """What the likelihood needs besides the logits: targets C (T, K) and weights w (T,)."""

    targets: Tensor
    weights: Tensor

    def residual(self, p: Tensor) -> Tensor:
        """dV/dz = w (p - c), (T, K) (Eqs. "cost gradient: bsr")."""
        return self.weights[:, None] * (p - self.targets)


def merged_weights(A: Tensor, B: Tensor) -> Tensor:
    """W_k = sum_l a_{l,k} b_{l,k}^T (Eq. W.AB). A (L, M, K), B (L, N, K) -> W (K, M, N)."""
    return ops.einsum("lmk,lnk->kmn", A, B)


def logits(X: Tensor, A: Tensor, B: Tensor, bias: Tensor | None = None) -> Tensor:
    """z_{t,k} = sum_l a_{l,k}^T X_t b_{l,k} + bias_k (Eq. zk.BL). X (..., M, N) -> z (..., K).

    W is merged first: one product with X costs T.MN.K multiply-adds, the factored form L times as many.
    """
    MN, K = ops.shape(A)[1] * ops.shape(B)[1], ops.shape(A)[2]
    W = ops.reshape(ops.einsum("lmk,lnk->mnk", A, B), (-1, K))
    z = ops.matmul(ops.reshape(X, (-1, MN)), W)
    z = z if len(X.shape) == 3 else ops.reshape(z, (*ops.shape(X)[:-2], K))
    return z if bias is None else z + bias


def mapped(X: Tensor, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
    """Y = A^T X B + C. X (..., M, N), A (M, P), B (N, Q), C (P, Q) -> Y (..., P, Q).

    By products of two matrices, never of batches of them, which microcontrollers lack. Of X B, then (X B)^T A and
    that turned back, and of X^T A, then (A^T X) B, it is what takes fewer multiply-adds.
    """
    (M, P), (N, Q) = A.shape, B.shape
    Y = ops.reshape(X, (-1, M, N))
    if M * Q * (N + P) <= P * N * (M + Q):
        Y = turned(rows_times(turned(rows_times(Y, B)), A))
    else:
        Y = rows_times(turned(rows_times(turned(Y), A)), B)
    Y = Y if len(X.shape) == 3 else ops.reshape(Y, (*ops.shape(X)[:-2], P, Q))
    return Y if C is None else Y + C


def rows_times(X: Tensor, B: Tensor) -> Tensor:
    """X B, every row of every matrix at once. X (T, M, N), B (N, Q) -> (T, M, Q)."""
    M, (N, Q) = X.shape[1], B.shape
    return ops.reshape(ops.matmul(ops.reshape(X, (-1, N)), B), (-1, M, Q))


def turned(X: Tensor) -> Tensor:
    """X^T. X (T, M, N) -> (T, N, M)."""
    return ops.transpose(X, (0, 2, 1))


def left_features(X: Tensor, B: Tensor) -> Tensor:
    """f_{k,t,l} = X_t b_{l,k}, what the left factors multiply. X (T, M, N), B (S, N, K) -> F (K, T, S M).

    Class-major, so that forward and adjoint products are batches of K contiguous matrix-vector products.
    """
    M, (S, N, K) = ops.shape(X)[1], ops.shape(B)
    columns = ops.reshape(ops.transpose(B, (1, 0, 2)), (N, S * K))
    F = ops.reshape(ops.matmul(ops.reshape(X, (-1, N)), columns), (-1, M, S, K))
    return ops.reshape(ops.transpose(F, (3, 0, 2, 1)), (K, -1, S * M))


def right_features(X: Tensor, A: Tensor) -> Tensor:
    """f_{k,t,l} = X_t^T a_{l,k}, what the right factors multiply. X (T, M, N), A (S, M, K) -> F (K, T, S N)."""
    N, (S, M, K) = ops.shape(X)[2], ops.shape(A)
    rows = ops.reshape(ops.transpose(A, (2, 0, 1)), (1, K * S, M))
    F = ops.reshape(ops.matmul(rows, X), (-1, K, S, N))
    return ops.reshape(ops.transpose(F, (1, 0, 2, 3)), (K, -1, S * N))


def log_partition(z: Tensor) -> Tensor:
    """Lambda(z): softplus for K = 1, logsumexp over the classes otherwise. z (T, K) -> (T,)."""
    return ops.softplus(z)[:, 0] if z.shape[1] == 1 else ops.logsumexp(z, axis=1)


def probabilities(z: Tensor) -> Tensor:
    """p = gradient of Lambda: the logistic function for K = 1 (Eq. LR), soft-max otherwise (Eq. bsr)."""
    return ops.sigmoid(z) if z.shape[-1] == 1 else ops.softmax(z, axis=-1)


def covariance_product(p: Tensor, dz: Tensor) -> Tensor:
    """Cov_p dz, the Hessian of Lambda along dz. p (T, K), dz (T, K) -> (T, K)."""
    if p.shape[1] == 1:
        return p * (1 - p) * dz
    return p * (dz - ops.sum(p * dz, axis=1, keepdims=True))


def cross_entropy(z: Tensor, C: Tensor, w: Tensor) -> Tensor:
    """V = sum_t w_t (Lambda(z_t) - c_t . z_t) (Eq. crossentropy). z, C (T, K), w (T,) -> scalar."""
    return ops.sum(w * log_partition(margins(z, C)))


def margins(z: Tensor, C: Tensor) -> Tensor:
    """u with Lambda(u) = Lambda(z) - c . z, linear in z; z, C, u (T, K).

    The difference of two large numbers would drown a small V in float32 rounding; Lambda(u) does not. For K >= 2 u
    is z minus the logit of the class, for K = 1 it is z turned so that the class is on the negative side.
    """
    if (z.shape[1] == 1) != (C.shape[1] == 1):
        raise ValueError(f"Expected logits and targets of the same classes. Received: {z.shape} and {C.shape}")
    return (1 - 2 * C) * z if z.shape[1] == 1 else z - ops.sum(C * z, axis=1, keepdims=True)


def normalised_weights(sample_weight: Tensor) -> Tensor:
    """w_t = s_t / T, Keras' convention for weighted losses (`reduction="sum_over_batch_size"`)."""
    return sample_weight / ops.cast(ops.shape(sample_weight)[0], sample_weight.dtype)


def canonical_factors(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """The representative of (A, B) -> (A R, B R^-T) that is an SVD of every W_k.

    a_{l,k} = sqrt(s_l) u_l and b_{l,k} = sqrt(s_l) v_l (Sec. "Equivalence between LLR and BLR"), ordered by
    falling s_l; the entry of u_l that is largest in size is positive. W is unchanged. Ranks beyond
    min(M, N) become zero. A (L, M, K), B (L, N, K) -> the same shapes.
    """
    return truncated_factors(merged_weights(A, B), rank=A.shape[0])


def truncated_factors(W: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best rank-L factors of every W_k, in canonical form (Eq. SVD.decomposition).

    W (K, M, N) -> A (L, M, K), B (L, N, K) with sum_l a b^T = W exactly when L >= rank W_k.
    """
    U, s, Vt = ops.svd(W, full_matrices=False)
    pivot = ops.argmax(ops.abs(U), axis=1, keepdims=True)
    sign = ops.sign(ops.take_along_axis(U, pivot, axis=1))
    root = ops.sqrt(s)[:, None, :]
    A = ops.transpose(U * sign * root, (2, 1, 0))
    B = ops.transpose(ops.transpose(Vt, (0, 2, 1)) * sign * root, (2, 1, 0))
    missing = max(rank - A.shape[0], 0)
    pad = ((0, missing), (0, 0), (0, 0))
    return ops.pad(A[:rank], pad), ops.pad(B[:rank], pad)
