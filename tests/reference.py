"""The paper in plain NumPy loops: slow, obvious, and the oracle for everything else."""

import math

import numpy as np


def logits(X, A, B, bias=None):
    """z_{t,k} = sum_l a_{l,k}^T X_t b_{l,k} + bias_k."""
    T, L, K = len(X), A.shape[0], A.shape[2]
    z = np.zeros((T, K))
    for t in range(T):
        for k in range(K):
            z[t, k] = 0.0 if bias is None else bias[k]
            for l in range(L):
                z[t, k] += A[l, :, k] @ X[t] @ B[l, :, k]
    return z


def probabilities(z):
    """The logistic function of the only logit for K = 1, soft-max otherwise."""
    p = np.zeros_like(z)
    for t in range(len(z)):
        if z.shape[1] == 1:
            p[t, 0] = 1.0 / (1.0 + math.exp(-z[t, 0]))
        else:
            e = [math.exp(value - max(z[t])) for value in z[t]]
            p[t] = [value / sum(e) for value in e]
    return p


def cross_entropy(z, C, s):
    """V = -1/T sum_t s_t ln p(c_t)."""
    p, V = probabilities(z), 0.0
    for t in range(len(z)):
        if z.shape[1] == 1:
            likelihood = p[t, 0] if C[t, 0] == 1 else 1 - p[t, 0]
            V -= s[t] * math.log(likelihood)
        else:
            V -= s[t] * sum(C[t, k] * math.log(p[t, k]) for k in range(z.shape[1]))
    return V / len(z)


def penalty(name, A, B):
    """R(A, B) of the three strategies, class by class."""
    R = 0.0
    for k in range(A.shape[2]):
        if name == "frobenius":
            W = sum(np.outer(A[l, :, k], B[l, :, k]) for l in range(len(A)))
            R += 0.5 * np.sum(W**2)
            continue
        for l in range(len(A)):
            a, b = np.sum(A[l, :, k] ** 2), np.sum(B[l, :, k] ** 2)
            R += 0.5 * (a + b if name == "sum" else a * b)
    return R


def objective(X, C, s, A, B, alpha, name, bias=None):
    """J = V + alpha R."""
    return cross_entropy(logits(X, A, B, bias), C, s) + alpha * penalty(name, A, B)


def likelihood_gradient(X, C, s, A, B, bias=None):
    """(dV/dA, dV/dB): 1/T sum_t s_t (p - c) X_t b and 1/T sum_t s_t (p - c) X_t^T a."""
    p = probabilities(logits(X, A, B, bias))
    gA, gB = np.zeros_like(A), np.zeros_like(B)
    for t in range(len(X)):
        for k in range(A.shape[2]):
            residual = s[t] * (p[t, k] - C[t, k]) / len(X)
            for l in range(len(A)):
                gA[l, :, k] += residual * X[t] @ B[l, :, k]
                gB[l, :, k] += residual * X[t].T @ A[l, :, k]
    return gA, gB


def finite_difference(f, x, h=1e-6):
    """Central differences of a scalar function at every entry of x."""
    g = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = h
        g[index] = (f(x + step) - f(x - step)) / (2 * h)
    return g


def gram_schmidt(B):
    """Algorithms 1 and 2, "Initialization": b_l <- b_l - S (S^T b_l), class by class."""
    B = B.copy()
    for k in range(B.shape[2]):
        for l in range(1, len(B)):
            S = np.stack([B[m, :, k] / np.linalg.norm(B[m, :, k]) for m in range(l)], axis=1)
            B[l, :, k] -= S @ (S.T @ B[l, :, k])
    return B


def convex_optimum(X, C, alpha, L=None, iterations=1500):
    """The least V(W) + alpha sum_k |W_k|_*, or with L the least V(W) + alpha / (2 L) sum_k |W_k|_*^2.

    By accelerated proximal gradient steps on W (K, M, N), which know nothing of factors.
    """
    T, M, N = X.shape
    flat, K = X.reshape(T, -1), C.shape[1]
    step = 2.0 * T / np.linalg.norm(flat, 2) ** 2  # the curvature of V is at most half that of the squared error

    def likelihood(W):
        z = flat @ W.reshape(K, -1).T
        if K == 1:
            p = 1 / (1 + np.exp(-z))
            return np.mean(np.logaddexp(0, z) - C * z), p
        top = z.max(axis=1, keepdims=True)
        e = np.exp(z - top)
        return np.mean(np.log(e.sum(axis=1)) + top[:, 0] - np.sum(C * z, axis=1)), e / e.sum(axis=1, keepdims=True)

    def shrunk(s):
        if L is None:
            return np.maximum(s - step * alpha, 0)
        c = step * alpha / L
        active = np.arange(1, len(s) + 1)
        thresholds = c * np.cumsum(s) / (1 + c * active)
        return np.maximum(s - thresholds[np.sum(s > thresholds) - 1], 0)

    def penalty(W):
        norms = np.linalg.svd(W, compute_uv=False).sum(axis=1)
        return alpha * np.sum(norms if L is None else norms**2 / (2 * L))

    W = V = np.zeros((K, M, N))
    t = 1.0
    for _ in range(iterations):
        _, p = likelihood(V)
        G = ((p - C).T @ flat / T).reshape(K, M, N)
        U, s, Vt = np.linalg.svd(V - step * G, full_matrices=False)
        new = (U * np.stack([shrunk(row) for row in s])[:, None, :]) @ Vt
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        # Start the momentum anew where it leads uphill.
        uphill = np.sum((V - new) * (new - W)) > 0
        t_new = 1.0 if uphill else t_new
        V = new + (0.0 if uphill else (t - 1) / t_new) * (new - W)
        W, t = new, t_new
    return likelihood(W)[0] + penalty(W)


def penalised_optimum(X, C, s, alpha, penalty, rank, has_bias, iterations=20_000):
    """(W, bias or None, J*) of the least 1/T sum_t s_t l(z_t, c_t) + alpha R(W), l the cross-entropy.

    R is the least of the penalty over all factors of W: sum_k |W_k|_* ("sum"), sum_k |W_k|_*^2 / (2 rank)
    ("product"), or 1/2 |W|_F^2 ("frobenius" and "ridge"). By accelerated proximal gradient steps.
    """
    T, M, N = X.shape
    K, w = C.shape[1], s / T
    flat = np.hstack([X.reshape(T, -1), np.ones((T, 1))]) if has_bias else X.reshape(T, -1).copy()
    unit = np.abs(flat[:, : M * N]).max() or 1.0
    flat[:, : M * N] /= unit  # W in units in which pixels are at most 1, as the bias's
    step = 1.0 / (0.5 * np.linalg.norm(np.sqrt(w)[:, None] * flat, 2) ** 2)

    def likelihood(U):
        z = flat @ U
        if K == 1:
            return np.sum(w * (np.logaddexp(0, z) - C * z)[:, 0]), 1 / (1 + np.exp(-z))
        top = z.max(axis=1, keepdims=True)
        e = np.exp(z - top)
        total = e.sum(axis=1, keepdims=True)
        return np.sum(w * (np.log(total) + top - np.sum(C * z, axis=1, keepdims=True))[:, 0]), e / total

    def shrunk(values):
        if penalty == "sum":
            return np.maximum(values - step * alpha / unit, 0)
        c = step * alpha / unit**2
        if penalty != "product":
            return values / (1 + c)
        thresholds = c / rank * np.cumsum(values) / (1 + c / rank * np.arange(1, len(values) + 1))
        return np.maximum(values - thresholds[max(np.sum(values > thresholds) - 1, 0)], 0)

    def proximal(U):
        left, values, right = np.linalg.svd(U[: M * N].T.reshape(K, M, N), full_matrices=False)
        W = (left * np.stack([shrunk(row) for row in values])[:, None, :]) @ right
        return np.vstack([W.reshape(K, -1).T, U[M * N :]])

    def R(U):
        values = np.linalg.svd(U[: M * N].T.reshape(K, M, N), compute_uv=False) / unit
        nuclear = values.sum(axis=1)
        return np.sum(
            nuclear if penalty == "sum" else nuclear**2 / (2 * rank) if penalty == "product" else values**2 / 2
        )

    U = V = np.zeros((flat.shape[1], K))
    if penalty in ("frobenius", "ridge"):
        R = lambda U: np.sum((U[: M * N] / unit) ** 2) / 2
    t = 1.0
    for _ in range(iterations):
        p = likelihood(V)[1]
        new = proximal(V - step * (flat.T @ (w[:, None] * (p - C))))
        uphill = np.sum((V - new) * (new - U)) > 0
        t_new = 1.0 if uphill else (1 + np.sqrt(1 + 4 * t * t)) / 2
        moved = np.abs(new - V).max()
        V = new + (0.0 if uphill else (t - 1) / t_new) * (new - U)
        U, t = new, t_new
        if moved <= 1e-14 * max(1.0, np.abs(U).max()):
            break
    W = (U[: M * N] / unit).T.reshape(K, M, N)
    return W, U[M * N] if has_bias else None, likelihood(U)[0] + alpha * R(U)
