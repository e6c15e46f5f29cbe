"""What there is to see of a fit: the numbers, pictures and words that TensorBoard shows."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear._version import __version__
from keras_bilinear.certificate import Certificate, effective_ranks
from keras_bilinear.layers import BilinearDense, bilinear_layers
from keras_bilinear.mosaics import mosaic
from keras_bilinear.optimizers import inner_optimizer
from keras_bilinear.progress import SOLVER_LOGS

MOST_SINGULAR_VALUES = 8
"""Of a linear model, whose filters have full rank, so many are shown."""

HYPERPARAMETERS = ("alpha", "blocks", "inner", "penalty", "rank", "solver", "step_size", "type")
"""The columns of the HParams page, which sorts them by name and hides all but the first five."""

OUTCOMES = {
    "objective/J": "J",
    "metrics/accuracy": "training accuracy",
    "metrics/val_accuracy": "validation accuracy",
    "objective/val_J": "validation J",
}
"""The curves whose last values the HParams page compares, and their names there."""


def of_step(logs: dict[str, float]) -> dict[str, float]:
    """What one step did: J and its parts, step size, |gradient|, active block, line searches, and the metrics."""
    others = {f"step/{name}": value for name, value in logs.items() if name not in ("loss", "objective", "penalty")}
    return parts_of_objective("step", logs) | others


def parts_of_objective(group: str, logs: dict[str, float]) -> dict[str, float]:
    """J = V + alpha R."""
    J, penalty = logs["objective"], logs["penalty"]
    return {f"{group}/J": J, f"{group}/V": J - penalty, f"{group}/alpha_R": penalty}


def of_epoch(model: Any, logs: dict[str, float], updates: np.ndarray) -> dict[str, float]:
    """How the fit stands after an epoch; in the exact regime that is a sweep.

    On mini-batches J is the mean over the epoch, and V what is left of it without alpha R of the present factors.

    Args:
        model: The model that is trained.
        logs: Those of the epoch.
        updates: How many steps each block took in it.
    """
    values = {**parts_of_objective("objective", logs), "blocks/step_size": logs["step_size"]}
    # Orders of magnitude: a fit that converges falls along a line, for which TensorBoard has no scale of its own.
    improvement = model.schedule.epoch_improvement()
    values["objective/log10_improvement"] = math.log10(improvement) if improvement > 0 else math.nan
    if not model.is_exact:  # there the steps tell; a sweep visits all
        values["blocks/active"] = logs["active_block"]
    norms = ops.convert_to_numpy(model.schedule.grad_norms)
    for name, norm, taken in zip(map(tag, model.block_names), norms, updates, strict=False):
        values |= {f"gradient/{name}": float(norm), f"updates/{name}": float(taken)}
    metrics = {name: value for name, value in logs.items() if name not in SOLVER_LOGS}
    values |= {"objective/val_J" if name == "val_loss" else f"metrics/{name}": metrics[name] for name in metrics}
    # Unknown are the gradient of a block that was never up, and an improvement where there was none.
    unknown = {name for name, value in values.items() if math.isnan(value) or math.isinf(value)} - {"objective/J"}
    return {name: value for name, value in values.items() if name not in unknown} | of_ranks(model)


def of_ranks(model: Any) -> dict[str, float]:
    """The singular values of every W_k, those that can differ from zero, and its effective rank."""
    values = {}
    for prefix, _, _, sigma, _ in decompositions(model):
        for k, effective in enumerate(effective_ranks(sigma)):
            values[f"ranks/{prefix}{k}"] = float(effective)
            for l, value in enumerate(sigma[k, :MOST_SINGULAR_VALUES]):
                values[f"singular_values/{prefix}{k}/{l + 1}"] = float(value)
    return values


def of_certificate(proof: Certificate) -> dict[str, float]:
    """How far J can be above the optimum; the ratio only where the penalty has one."""
    ratio = {} if proof.ratios is None else {"certificate/ratio": proof.ratio}
    return {"certificate/lower_bound": proof.lower_bound, "certificate/gap": proof.gap, **ratio}


def pictures(model: Any) -> dict[str, tuple[np.ndarray, str]]:
    """Tag -> pixels (H, W, 3) and what they show: W_k of all classes, and the factors they are made of."""
    drawn = {}
    for prefix, W, U, sigma, V in decompositions(model):
        parts = {"W": (W, "W_k")}
        if bilinear_layers(model):
            a, b = canonical(U, sigma, V)
            # As strips of three pixels: those of a stand, those of b lie.
            parts["a"] = np.repeat(a, 3, axis=2), "a_(l,k), the strongest rank to the left,"
            parts["b"] = np.repeat(b.transpose(0, 2, 1), 3, axis=1), "b_(l,k), the strongest rank on top,"
        for name, (tiles, words) in parts.items():
            order = f"{words} for k = 0 to {len(W) - 1} in reading order"
            scale = f"Red raises the score, blue lowers it; the strongest colour is {np.abs(tiles).max():.3g}."
            drawn[f"filters/{prefix}{name}"] = mosaic(tiles), f"{order}. {scale}"
    return drawn


def layout(model: Any, with_steps: bool, with_certificate: bool) -> dict[str, dict[str, list[str]]]:
    """Which curves belong together: category -> title of a chart -> regular expressions of tags."""
    categories = {
        "Objective": {
            "J = V + alpha R, and J on validation images": ["objective/(J|V|alpha_R|val_J)$"],
            "metrics": ["metrics/.*"],
            "log10 of the relative decrease of J": ["objective/log10_improvement$"],
        },
        "Blocks": {
            "norm of the gradient": ["gradient/.*"],
            "updates": ["updates/.*"],
            "step size": ["blocks/step_size$"],
            **({} if model.is_exact else {"active block": ["blocks/active$"]}),
        },
    }
    if with_steps:
        names = ("step_size", "grad_norm", "active_block", "inner_iterations")
        categories["Steps"] = {
            "J = V + alpha R": ["step/(J|V|alpha_R)$"],
            **{name.replace("_", " "): [f"step/{name}$"] for name in names if model.is_exact or name != names[-1]},
        }
    if with_certificate:
        categories["Certificate"] = {
            "J and its lower bound": ["objective/J$", "certificate/lower_bound$"],
            "gap": ["certificate/gap$"],
            "largest ratio": ["certificate/ratio$"],
        }
    categories["Ranks"] = {"effective rank of each class": ["ranks/.*"]}
    for prefix, W, *_ in decompositions(model):
        for k in range(len(W)):
            categories["Ranks"][f"singular values of W_{prefix}{k}"] = [f"singular_values/{prefix}{k}/.*"]
    return categories


def hyperparameters(model: Any) -> dict[str, Any]:
    """What was chosen, by the names in `HYPERPARAMETERS`; what a model does not have is left out."""
    optimizer, layers = inner_optimizer(model.optimizer), bilinear_layers(model)
    values = {
        "alpha": only([float(layer.alpha or 0) for layer in layers]) if layers else model.alpha,
        "blocks": getattr(optimizer, "blocks", None),
        "inner": getattr(optimizer, "inner", None),
        "penalty": only([type(layer.factor_penalty).__name__.lower() for layer in layers if layer.factor_penalty]),
        "rank": only([layer.rank for layer in layers]),
        "solver": type(optimizer).__name__,
        "step_size": None if model.is_exact else float(optimizer.learning_rate),
        "type": type(model).__name__,
    }
    return {name: value for name, value in values.items() if value is not None}


def description(model: Any) -> str:
    """A table in Markdown: what is trained, how large it is, and on which versions."""
    rows = dict(hyperparameters(model))
    for prefix, W, _, sigma, _ in decompositions(model):
        K, M, N = W.shape
        rows[f"{prefix}images and classes"] = f"{M} x {N}, {K}"
        if bilinear_layers(model):
            factors, weights = sigma.shape[1] * (M + N) * K, M * N * K
            share = f"{factors / weights:.0%} of the {weights:,} weights of a linear model"
            rows[f"{prefix}factors"] = f"{factors:,}, {share}"
    rows["parameters"] = f"{sum(int(np.prod(variable.shape)) for variable in model.trainable_variables):,}"
    rows |= {"keras_bilinear": __version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    rows["numpy"] = np.__version__
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


class Decomposition(NamedTuple):
    """The filters of a layer and their singular value decomposition W_k = U_k diag(sigma_k) V_k^T.

    Fields:
        prefix: Of the layer's tags; empty if it is the only one.
        W: (K, M, N).
        U: (K, M, R), with R = min(L, M, N) singular values that can differ from zero.
        sigma: (K, R), falling.
        V: (K, N, R).
    """

    prefix: str
    W: np.ndarray
    U: np.ndarray
    sigma: np.ndarray
    V: np.ndarray


def decompositions(model: Any) -> list[Decomposition]:
    """Those of all bilinear layers, or of the one linear layer."""
    layers = bilinear_layers(model)
    if not layers:
        (W,) = model.filters().values()
        U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
        return [Decomposition("", W, U, sigma, Vt.transpose(0, 2, 1))]
    return [Decomposition(f"{layer.name}/" if len(layers) > 1 else "", *decomposed(layer)) for layer in layers]


def decomposed(layer: BilinearDense) -> tuple[np.ndarray, ...]:
    """W, U, sigma, V of a bilinear layer, from the L x L product of triangular factors; W_k is far larger."""
    A = np.stack([factor.numpy() for factor in layer.left_factors]).transpose(2, 1, 0)
    B = np.stack([factor.numpy() for factor in layer.right_factors]).transpose(2, 1, 0)
    (QA, RA), (QB, RB) = np.linalg.qr(A), np.linalg.qr(B)
    U, sigma, Vt = np.linalg.svd(RA @ RB.transpose(0, 2, 1), full_matrices=False)
    return A @ B.transpose(0, 2, 1), QA @ U, sigma, QB @ Vt.transpose(0, 2, 1)


def canonical(U: np.ndarray, sigma: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a (K, M, R) and b (K, N, R) with the length sqrt(sigma), as `bilinear_math.canonical_factors` has them."""
    pivot = np.abs(U).argmax(axis=1)[:, None]
    scale = np.sqrt(sigma)[:, None] * np.sign(np.take_along_axis(U, pivot, axis=1))
    return U * scale, V * scale


def only(values: list[Any]) -> Any:
    """The value that all layers share, or all of theirs as words; None if there is none."""
    distinct = list(dict.fromkeys(values))
    return ", ".join(map(str, values)) if len(distinct) > 1 else next(iter(distinct), None)


def tag(block: str) -> str:
    """A block's name as a part of a tag: "A, B" is AB."""
    return block.replace(", ", "")
