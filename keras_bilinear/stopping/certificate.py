"""How far a fit can be from the global optimum: a lower bound on J (see `keras_bilinear.maths.duality`), beside J.

It is computed in float64, whatever the model computes in.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_bilinear.data.survey import is_data_set
from keras_bilinear.maths.bilinear import Samples
from keras_bilinear.maths.duality import DualPoint, PenaltyBound, best_bias_change, likelihood, lower_bound
from keras_bilinear.parts.losses import targets
from keras_bilinear.parts.model_protocol import BlockModel, RegressionModel, is_linear
from keras_bilinear.tables import Report, Table, percent

COUNTS_FROM = 1e-2
"""Singular values below this fraction of the largest of their class do not count for its effective rank."""
ROUNDING = 1e-12
"""This part of the bound is taken off, for float64 rounds too."""
TILE = 4096
"""So many images are cast to float64 at a time."""
UNSETTLED_BIAS = "The bias is so far from its optimum that nothing but the labels bounds J."

Gradient = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


@dataclass(frozen=True, repr=False)
class Certificate(Report):
    """How far a fit can be from the best there is: J, a lower bound on it, and the ranks in use.

    Attributes:
        objective: J.
        lower_bound: A number that the objective is above for all models of the same images, penalty and alpha: with
            any rank for "sum" and "frobenius", with the same rank for "product"; minus infinity where the penalty
            names no bound.
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
            f"J = {self.objective:.6f}, at most {self.gap:.2e} ({percent(share)}) above the optimum{ratio}\n"
            f"effective ranks {ranks}; {self.degrees_of_freedom:,} degrees of freedom\n{self.note}"
        )

    def _parts(self) -> Iterator[Table | str]:
        share = self.gap / self.objective if self.objective else 0.0
        rows = [
            ("J", f"{self.objective:.6f}"),
            ("a lower bound on J", f"{self.lower_bound:.6f}"),
            ("above the optimum by at most", f"{self.gap:.2e} ({percent(share)})"),
            ("effective ranks", ", ".join(map(str, self.effective_ranks))),
            ("degrees of freedom", f"{self.degrees_of_freedom:,}"),
        ]
        if self.ratios is not None:
            rows.insert(3, ("ratio", f"{self.ratio:.4f}"))
        yield Table(("certificate", ""), rows)
        yield self.note


def certificate(model: RegressionModel, x: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
    """The certificate of a bilinear or linear model on its training images; `model.certificate` calls this.

    Costs a product with the images for the logits and one for the gradient, in float64, and K thin SVDs of M x N
    matrices. A data set of batches is read twice, and only its labels and logits are held in memory.

    Args:
        model: One of the four models of this package, built.
        x: Images (T, M, N), as for `fit`: the bound is about J on these. Or a `tf.data.Dataset` of (x, y) or
            (x, y, weight), which brings them in any order.
        y: Labels, as for `fit`.
        sample_weight: Weights (T,), as for `fit`.

    Raises:
        ValueError: as `fit` does.
    """
    if is_data_set(x, y, sample_weight):
        next(iter(model._batches(x)))  # builds the model
        return certified_stream(model, lambda: model._batches(x))
    return certified(model, *model._checked(x, y, sample_weight))


def certified(model: RegressionModel, X: Any, y: Any, weight: Any) -> Certificate:
    """The certificate on data that has been checked already: X (T, M, N), labels of any form, weights (T,)."""
    X, w = Pixels(ops.convert_to_numpy(X), model.input_scale), ops.convert_to_numpy(weight).astype("float64")
    C = ops.convert_to_numpy(targets(ops.convert_to_tensor(y), model.units, "float64"))
    samples = Samples(C, w / len(w))
    z = X.logits(weights_and_penalty(model)[0]) + bias_of(model)
    return concluded(model, z, samples, lambda p, change: X.gradient(samples, p))


def certified_stream(model: RegressionModel, batches: Callable[[], Iterator[tuple[Any, Any, Any]]]) -> Certificate:
    """The certificate on images that are read batch by batch, twice."""
    W, bias, K = weights_and_penalty(model)[0], bias_of(model), model.units

    def parts() -> Iterator[tuple[Pixels, Samples]]:
        for x, y, weight in batches():
            C = ops.convert_to_numpy(targets(ops.convert_to_tensor(y), K, "float64"))
            yield Pixels(x, model.input_scale), Samples(C, weight.astype("float64"))

    seen = [(X.logits(W) + bias, *samples) for X, samples in parts()]
    z, C, w = map(np.concatenate, zip(*seen, strict=True))

    def gradient(p: np.ndarray, change: np.ndarray | None) -> np.ndarray:
        # In this reading images may come in another order.
        total = np.zeros(W.shape)
        for X, samples in parts():
            p = samples.targets if change is None else likelihood(X.logits(W) + bias + change, *samples)[1]
            total += X.gradient(samples, p)
        return total / len(w)

    return concluded(model, z, Samples(C, w / len(w)), gradient)


def bias_of(model: RegressionModel) -> Any:
    """The bias (K,), or zero."""
    return 0.0 if model.head.bias is None else ops.convert_to_numpy(model.head.bias.value)


def concluded(model: RegressionModel, z: np.ndarray, samples: Samples, gradient: Gradient) -> Certificate:
    """The certificate, given the logits (T, K) and what gives dV/dW (K, M, N).

    `gradient` takes the predictions (T, K) and what the bias lacks at its best, None where that is not known.
    """
    bias, alpha = model.head.bias, float(model.alpha)
    W, R, rank, bound_of_penalty = weights_and_penalty(model)
    J = likelihood(z, *samples)[0] + alpha * R
    change = np.zeros(model.units) if bias is None else best_bias_change(z, samples)
    # Of a bias that cannot be settled nothing is known: q = c, where there is no gradient, needs none.
    p = samples.targets if change is None else likelihood(z + change, *samples)[1]
    sigma = np.linalg.svd(W, compute_uv=False)
    bound = lower_bound(bound_of_penalty, DualPoint(samples, p, gradient(p, change), sigma, alpha, rank))
    if change is None and np.isfinite(bound.value):
        bound = bound._replace(ratios=None, note=UNSETTLED_BIAS)
    ranks = effective_ranks(sigma)
    freedom = int(np.sum(ranks * (sum(W.shape[1:]) - ranks))) + (0 if bias is None else model.units)
    safe = bound.value - ROUNDING * abs(bound.value)
    return Certificate(J, safe, bound.ratios, sigma, ranks, freedom, bound.note)


def weights_and_penalty(model: RegressionModel) -> tuple[np.ndarray, float, int, PenaltyBound]:
    """W (K, M, N) and R without alpha, both in float64, the rank that W may have, and the bound that R names."""
    if is_linear(model):
        W, R = model.weight_matrices().astype("float64"), model.ridge
        return W, float(R.value(W)), min(W.shape[1:]), R.bound
    A, B = (ops.convert_to_numpy(factors).astype("float64") for factors in (model.head.A, model.head.B))
    R = model.head.factor_penalty
    return np.einsum("lmk,lnk->kmn", A, B), float(R.value(A, B)), len(A), R.bound


class Pixels(NamedTuple):
    """Images X = scale times values (T, M, N), in float64 some at a time."""

    values: np.ndarray
    scale: float

    def tiles(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values as rows, and where they stand."""
        T, M, N = self.values.shape
        for start in range(0, T, TILE):
            rows = slice(start, start + TILE)
            yield rows, self.values[rows].reshape(-1, M * N).astype("float64")

    def logits(self, W: np.ndarray) -> np.ndarray:
        """<W_k, X_t>, (T, K)."""
        W = self.scale * W.reshape(len(W), -1).T
        return np.concatenate([images @ W for _, images in self.tiles()])

    def gradient(self, samples: Samples, p: np.ndarray) -> np.ndarray:
        """G_k = dV/dW_k, (K, M, N)."""
        residual = samples.residual(p)
        G = self.scale * np.sum([residual[rows].T @ images for rows, images in self.tiles()], axis=0)
        return G.reshape(-1, *self.values.shape[1:])


def certificate_of_fit(model: RegressionModel) -> Certificate:
    """The certificate on the data that `fit` runs on, or a ValueError if that is not at hand."""
    if model._streaming is not None:
        return certified_stream(model, model._streaming.batches)
    return certified(model, *data_of_fit(model))


def expect_data_of_fit(model: BlockModel, options: dict[str, Any]) -> None:
    """Raises a ValueError as a fit begins, unless its images will be at hand, or can be read again."""
    if not (getattr(model, "_trains_exactly", False) and is_data_set(options.get("x"))):
        data_of_fit(model)


def data_of_fit(model: BlockModel) -> tuple[Any, Any, Any]:
    """The images, labels and weights that `fit` runs on, or a ValueError if they are not at hand."""
    if model._training_data is None:
        raise ValueError(
            "Expected a regression model of keras_bilinear and arrays in `fit`: J is certified on all images. "
            "Received: another model, or a data set"
        )
    return model._training_data


def effective_ranks(singular_values: np.ndarray) -> np.ndarray:
    """How many ranks of each class count, (K,). singular_values (K, min(M, N)), falling."""
    return np.sum(singular_values > COUNTS_FROM * singular_values[:, :1], axis=1)
