"""Lower bounds on J that hold for every model of the same images, found by duality: pure functions of arrays.

J is not convex in the factors, but it is never below a function of W = sum_l a b^T alone that is convex:

    sum          1/2 sum_l (|a_l|^2 + |b_l|^2)  >=  |W_k|_*              equal for the balanced factors of an SVD
    product      1/2 sum_l |a_l|^2 |b_l|^2      >=  |W_k|_*^2 / (2 L)    Cauchy-Schwarz over the L ranks
    frobenius    1/2 |sum_l a_l b_l^T|_F^2       =  1/2 |W_k|_F^2

with the nuclear norm |W|_*, the sum of the singular values. V is convex in W, too, and by the conjugate of the
log-partition it is the largest of functions that are linear in W,

    V(W) = max over q of  sum_t w_t (H(q_t) + (q_t - c_t) . z_t),        H(q) = - sum_k q_k ln q_k,

where each q_t is a distribution over the classes. Exchanging minimum and maximum, every q gives a lower bound

    J >= sum_t w_t H(q_t) + sum_k min over W of (<G_k, W> + penalty of W),     G_k = sum_t w_t (q_tk - c_tk) X_t,

and the inner minimum is known: for the sum penalty 0 if |G_k|_2 <= alpha and minus infinity otherwise, for the
product penalty - L / (2 alpha) |G_k|_2^2, for the Frobenius one - 1 / (2 alpha) |G_k|_F^2, with the spectral norm
|G|_2. At a global optimum the bound of its own predictions q = p is J itself. Elsewhere q is taken between the
labels and the predictions, q = c + s (p - c), where G is s times the gradient dV/dW: s = 0 always is feasible,
and at best s = 1.

An unpenalised bias asks for sum_t w_t (q_t - c_t) = 0, so p is taken at the best bias for the present W.

All of it is computed in float64, whatever the model computes in: a bound that owes a digit to rounding is none.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_bilinear.maths.bilinear import Samples, cross_entropy, probabilities

BISECTIONS, NEWTON_STEPS = 12, 100
BALANCED = 1e-13
"""A bias is at its optimum where sum_t w_t (p_t - c_t) is this part of sum_t w_t."""
NO_PENALTY = (
    "Without a penalty (alpha = 0) there is no bound but the entropy of the labels, 0 for hard ones, and on "
    "separable images no optimum."
)


class DualPoint(NamedTuple):
    """Where the dual is taken, all in float64.

    Fields:
        samples: Labels C (T, K) and weights w (T,).
        p: Predictions (T, K), at the best bias.
        G: dV/dW_k for these, (K, M, N).
        singular_values: Of every W_k, (K, min(M, N)).
        alpha: Weight of the penalty, >= 0.
        rank: L of the model.
    """

    samples: Samples
    p: np.ndarray
    G: np.ndarray
    singular_values: np.ndarray
    alpha: float
    rank: int


class Bound(NamedTuple):
    """A lower bound on J, the ratios (K,) of a `Certificate` or None, and what the bound says and does not say."""

    value: float
    ratios: np.ndarray | None
    note: str


PenaltyBound = Callable[[DualPoint], Bound]
"""The lower bound on J with one penalty, for alpha > 0."""


def lower_bound(of_penalty: PenaltyBound, point: DualPoint) -> Bound:
    """The bound of a penalty; with alpha = 0 there is one for all."""
    return of_penalty(point) if point.alpha else Bound(entropy(point, 0.0), None, NO_PENALTY)


def no_bound(point: DualPoint) -> Bound:
    """That of a penalty of which nothing is proven, not even that it is above zero."""
    return Bound(-np.inf, None, "Nothing is known of J*: this penalty names no lower bound.")


def sum_bound(point: DualPoint) -> Bound:
    """The largest s <= 1 for which every |s G_k|_2 <= alpha."""
    steepest = spectral_norms(point.G)
    scale = min(1.0, point.alpha / max(steepest.max(), 1e-30))
    return Bound(entropy(point, scale), steepest / point.alpha, "J* is the least J of any rank.")


def product_bound(point: DualPoint) -> Bound:
    """Every s is feasible."""
    _, _, G, sigma, alpha, rank = point
    steepest, allowed = spectral_norms(G), alpha / rank * sigma.sum(axis=1)
    ratios = np.divide(steepest, allowed, out=np.full_like(steepest, np.inf), where=allowed > 0)
    note = f"J* is the least J of rank {rank}: the product penalty weighs 1 / L, so other ranks have another J."
    return Bound(best_scale(point, rank / (2 * alpha) * np.sum(steepest**2)), ratios, note)


def frobenius_bound(point: DualPoint) -> Bound:
    """Every s is feasible. The optimum is that of the linear model, which has full rank."""
    note = (
        "J* is the least J of the linear model with the same penalty, of full rank: the gap is what the rank costs "
        "and what the fit lacks, and does not say which. The sum and the product penalty tell."
    )
    return Bound(best_scale(point, np.sum(point.G**2) / (2 * point.alpha)), None, note)


def spectral_norms(G: np.ndarray) -> np.ndarray:
    """|G_k|_2, (K,)."""
    return np.linalg.norm(G, 2, axis=(1, 2))


def between(point: DualPoint, s: float) -> np.ndarray:
    """q = c + s (p - c), (T, K): the labels for s = 0, the predictions for s = 1."""
    C = point.samples.targets
    return C + s * (point.p - C)


def entropy(point: DualPoint, s: float) -> float:
    """sum_t w_t H(q_t) between the labels and the predictions."""
    return float(np.sum(point.samples.weights * np.sum(surprise(between(point, s)), axis=1)))


def surprise(q: np.ndarray) -> np.ndarray:
    """- q ln q for each class, with that of the other class added for K = 1."""
    h = -q * np.log(np.maximum(q, 1e-300))
    return h - (1 - q) * np.log(np.maximum(1 - q, 1e-300)) if q.shape[1] == 1 else h


def best_scale(point: DualPoint, quadratic: float) -> float:
    """The maximum over s in [0, 1] of sum_t w_t H(q_t) - s^2 quadratic, a concave function, by bisection."""
    change = point.p - point.samples.targets

    def slope(s: float) -> float:
        q = np.clip(between(point, s), 1e-300, 1.0)
        odds = np.log(q) - np.log(np.maximum(1 - q, 1e-300)) if q.shape[1] == 1 else np.log(q)
        return -float(np.sum(point.samples.weights * np.sum(change * odds, axis=1))) - 2 * s * quadratic

    if not slope(1.0) < 0:
        return entropy(point, 1.0) - float(quadratic)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return entropy(point, low) - (low**2 * float(quadratic) if low else 0.0)


def best_bias_change(z: np.ndarray, samples: Samples) -> np.ndarray | None:
    """What the bias lacks at the present W, (K,): damped Newton steps on a convex function, in float64.

    None where they do not get there; then nothing is known of a free bias.
    """
    C, w = samples
    change = np.zeros(z.shape[1])
    V, p = likelihood(z, C, w)
    for _ in range(NEWTON_STEPS):
        g = w @ (p - C)
        if np.abs(g).max() <= BALANCED * w.sum():
            return change
        H = np.diag(w @ p) - (w[:, None] * p).T @ p
        # A shift of all K changes nothing, so H is singular: the smallest of the solutions.
        step = np.linalg.lstsq(H, -g, rcond=1e-12)[0]
        # Where the curvature has all but vanished, a step is as long as a logit can be wrong.
        step *= min(1.0, 10.0 / max(np.abs(step).max(), 1e-300))
        while True:
            V_new, p_new = likelihood(z + change + step, C, w)
            if V_new <= V + 0.25 * g @ step + 1e-15 * abs(V) or np.abs(step).max() < 1e-12:
                break
            step /= 2
        change, V, p = change + step, V_new, p_new
    return None


def likelihood(z: np.ndarray, C: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
    """V and the probabilities, in the precision of z."""
    return float(cross_entropy(z, C, w)), ops.convert_to_numpy(probabilities(z))
