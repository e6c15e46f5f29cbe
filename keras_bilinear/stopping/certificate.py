"""How far a fit can be from the global optimum: a lower bound on J that holds for every model, found by duality.

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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.model_protocol import BlockModel, RegressionModel
from keras_bilinear.solver.descent import Samples

NEGLIGIBLE = 1e-2
"""Singular values below this fraction of the largest of their class do not count for its effective rank."""
BISECTIONS, NEWTON_STEPS = 12, 100
BALANCED = 1e-13
"""A bias is at its optimum where sum_t w_t (p_t - c_t) is this part of sum_t w_t."""
ROUNDING = 1e-12
"""This part of the bound is taken off, for float64 rounds too."""
TILE = 4096
"""So many images are cast to float64 at a time."""
WITHOUT_ARRAYS = (
    "Expected a regression model of keras_bilinear and arrays in `fit`: J is certified on all images. Received: "
    "another model, or a data set"
)


@dataclass(frozen=True)
class Certificate:
    """What a fit proves about itself.

    Attributes:
        objective: J.
        lower_bound: A number that the objective is above for all models of the same images, penalty and alpha: with
            any rank for "sum" and "frobenius", with the same rank for "product".
        ratios: (K,) 1 where no further bilinear form would lower J, above 1 where one would: |G_k|_2 over alpha
            ("sum") or over alpha |W_k|_* / L ("product"); None for the others, which rule nothing out.
        singular_values: (K, min(M, N)) of every W_k, falling.
        effective_ranks: (K,) how many of them count: those above 1 % of the largest.
        degrees_of_freedom: sum_k r (M + N - r) with the effective ranks, and K for a bias.
        note: What the bound does and does not say.
    """

    objective: float
    lower_bound: float
    ratios: np.ndarray | None
    singular_values: np.ndarray
    effective_ranks: np.ndarray
    degrees_of_freedom: int
    note: str

    @property
    def gap(self) -> float:
        """An upper bound on J - J*, never negative."""
        return max(self.objective - self.lower_bound, 0.0)

    @property
    def ratio(self) -> float:
        """The largest of `ratios`: 1 at most, up to the tolerance of the fit, at an optimum; NaN without any."""
        return float("nan") if self.ratios is None else float(np.max(self.ratios))

    def __str__(self) -> str:
        share = self.gap / self.objective if self.objective else 0.0
        ranks = ", ".join(map(str, self.effective_ranks))
        ratio = "" if self.ratios is None else f", ratio {self.ratio:.4f}"
        return (
            f"J = {self.objective:.6f}, at most {self.gap:.2e} ({share:.1e} of it) above the optimum{ratio}\n"
            f"effective ranks {ranks}; {self.degrees_of_freedom:,} degrees of freedom\n{self.note}"
        )


def certificate(model: RegressionModel, x: Any, y: Any, sample_weight: Any = None) -> Certificate:
    """The certificate of a bilinear or linear model on its training images; `model.certificate` calls this.

    Costs a product with the images for the logits and one for the gradient, in float64, and K thin SVDs of M x N
    matrices.

    Args:
        model: One of the four models of this package, built.
        x: Images (T, M, N), as for `fit`: the bound is about J on these.
        y: Labels, as for `fit`.
        sample_weight: Weights (T,), as for `fit`.

    Raises:
        ValueError: as `fit` does.
    """
    return certified(model, *model._checked(x, y, sample_weight))


def certified(model: RegressionModel, X: Any, y: Any, weight: Any) -> Certificate:
    """The certificate on data that has been checked already: X (T, M, N), labels of any form, weights (T,)."""
    X, w = ops.convert_to_numpy(X), ops.convert_to_numpy(weight).astype("float64")
    C = ops.convert_to_numpy(targets(ops.convert_to_tensor(y), model.units, "float64"))
    samples, bias = Samples(C, w / len(w)), model.head.bias
    W, penalty = weights_and_penalty(model)
    z = logits(X, W) + (0.0 if bias is None else ops.convert_to_numpy(bias.value))
    J = likelihood(z, *samples)[0] + penalty
    change = np.zeros(model.units) if bias is None else best_bias_change(z, samples)
    p = C if change is None else likelihood(z + change, *samples)[1]
    G = gradient(X, samples, p)
    sigma = np.linalg.svd(W, compute_uv=False)
    bound = BOUNDS[model.penalty_name if hasattr(model, "penalty_name") else "frobenius"]
    rank = getattr(model, "rank", min(W.shape[1:]))
    dual, ratios, note = bound(samples, p, G, sigma, float(model.alpha), rank)
    if change is None:  # q = c, where there is no gradient: the bound is the entropy of the labels
        ratios, note = None, "The bias is so far from its optimum that nothing but the labels bounds J."
    ranks = effective_ranks(sigma)
    freedom = int(np.sum(ranks * (sum(W.shape[1:]) - ranks))) + (0 if bias is None else model.units)
    return Certificate(J, dual * (1 - ROUNDING), ratios, sigma, ranks, freedom, note)


def weights_and_penalty(model: RegressionModel) -> tuple[np.ndarray, float]:
    """W (K, M, N) and alpha R, both in float64."""
    if not hasattr(model, "factors"):
        W = model.weight_matrices().astype("float64")
        return W, float(model.alpha) * float(np.sum(W**2)) / 2
    A, B = (factors.astype("float64") for factors in model.factors())
    R = type(model.head.factor_penalty).value(A, B)
    return np.einsum("lmk,lnk->kmn", A, B), float(model.alpha) * float(R)


def tiles(X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The images as rows in float64, some at a time, and where they stand."""
    for start in range(0, len(X), TILE):
        rows = slice(start, start + TILE)
        yield rows, X[rows].reshape(-1, X.shape[1] * X.shape[2]).astype("float64")


def logits(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """<W_k, X_t>, (T, K)."""
    return np.concatenate([images @ W.reshape(len(W), -1).T for _, images in tiles(X)])


def gradient(X: np.ndarray, samples: Samples, p: np.ndarray) -> np.ndarray:
    """G_k = dV/dW_k, (K, M, N)."""
    residual = samples.residual(p)
    return np.sum([residual[rows].T @ images for rows, images in tiles(X)], axis=0).reshape(-1, *X.shape[1:])


def certificate_of_fit(model: RegressionModel) -> Certificate:
    """The certificate on the data that `fit` runs on, or a ValueError if that is not at hand."""
    return certified(model, *data_of_fit(model))


def data_of_fit(model: BlockModel) -> tuple[Any, Any, Any]:
    """The images, labels and weights that `fit` runs on, or a ValueError if they are not at hand."""
    if model._training_data is None:
        raise ValueError(WITHOUT_ARRAYS)
    return model._training_data


def effective_ranks(singular_values: np.ndarray) -> np.ndarray:
    """How many ranks of each class count, (K,). singular_values (K, min(M, N)), falling."""
    return np.sum(singular_values > NEGLIGIBLE * singular_values[:, :1], axis=1)


def sum_bound(
    samples: Samples, p: np.ndarray, G: np.ndarray, sigma: np.ndarray, alpha: float, rank: int
) -> tuple[float, np.ndarray | None, str]:
    """The largest s <= 1 for which every |s G_k|_2 <= alpha."""
    steepest = np.linalg.norm(G, 2, axis=(1, 2))
    if alpha == 0.0:
        return entropy(samples, p, 0.0), None, NO_PENALTY
    note = "J* is the least J of any rank."
    return entropy(samples, p, min(1.0, alpha / max(steepest.max(), 1e-30))), steepest / alpha, note


def product_bound(
    samples: Samples, p: np.ndarray, G: np.ndarray, sigma: np.ndarray, alpha: float, rank: int
) -> tuple[float, np.ndarray | None, str]:
    """Every s is feasible."""
    if alpha == 0.0:
        return entropy(samples, p, 0.0), None, NO_PENALTY
    steepest, allowed = np.linalg.norm(G, 2, axis=(1, 2)), alpha / rank * sigma.sum(axis=1)
    ratios = np.divide(steepest, allowed, out=np.full_like(steepest, np.inf), where=allowed > 0)
    note = f"J* is the least J of rank {rank}: the product penalty weighs 1 / L, so other ranks have another J."
    return best_scale(samples, p, rank / (2 * alpha) * np.sum(steepest**2)), ratios, note


def frobenius_bound(
    samples: Samples, p: np.ndarray, G: np.ndarray, sigma: np.ndarray, alpha: float, rank: int
) -> tuple[float, np.ndarray | None, str]:
    """Every s is feasible. The optimum is that of the linear model, which has full rank."""
    if alpha == 0.0:
        return entropy(samples, p, 0.0), None, NO_PENALTY
    note = (
        "J* is the least J of the linear model with the same penalty, of full rank: the gap is what the rank costs "
        "and what the fit lacks, and does not say which. The sum and the product penalty tell."
    )
    return best_scale(samples, p, np.sum(G**2) / (2 * alpha)), None, note


BOUNDS = {"sum": sum_bound, "product": product_bound, "frobenius": frobenius_bound}
NO_PENALTY = (
    "Without a penalty (alpha = 0) there is no bound but the entropy of the labels, 0 for hard ones, and on "
    "separable images no optimum."
)


def entropy(samples: Samples, p: np.ndarray, s: float) -> float:
    """sum_t w_t H(q_t) for q = c + s (p - c)."""
    q = samples.targets + s * (p - samples.targets)
    return float(np.sum(samples.weights * np.sum(surprise(q), axis=1)))


def surprise(q: np.ndarray) -> np.ndarray:
    """- q ln q for each class, with that of the other class added for K = 1."""
    h = -q * np.log(np.maximum(q, 1e-300))
    return h - (1 - q) * np.log(np.maximum(1 - q, 1e-300)) if q.shape[1] == 1 else h


def best_scale(samples: Samples, p: np.ndarray, quadratic: float) -> float:
    """The maximum over s in [0, 1] of sum_t w_t H(q_t) - s^2 quadratic, a concave function, by bisection."""
    C, change = samples.targets, p - samples.targets

    def slope(s: float) -> float:
        q = np.clip(C + s * change, 1e-300, 1.0)
        odds = np.log(q) - np.log(np.maximum(1 - q, 1e-300)) if q.shape[1] == 1 else np.log(q)
        return -float(np.sum(samples.weights * np.sum(change * odds, axis=1))) - 2 * s * quadratic

    low, high = 0.0, 1.0
    if slope(1.0) < 0:
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    else:
        low = 1.0
    return entropy(samples, p, low) - (low**2 * float(quadratic) if low else 0.0)


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
    return float(bm.cross_entropy(z, C, w)), ops.convert_to_numpy(bm.probabilities(z))
