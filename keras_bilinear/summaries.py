"""What there is to see of a fit: the numbers, pictures and words that TensorBoard shows."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear import bilinear_math as bm
from keras_bilinear._version import __version__
from keras_bilinear.alternation import bilinear_layers, inner_optimizer
from keras_bilinear.certificate import Certificate, effective_ranks
from keras_bilinear.mosaics import mosaic

MOST_SINGULAR_VALUES = 8
"""Of a linear model, whose filters have full rank, so many are shown."""

NOT_METRICS = {"loss", "objective", "step_size", "active_block", "grad_norm", "inner_iterations"}
"""Logs of a step that are about the solver."""

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
    """What one step did: J, step size, |gradient|, active block, line searches, and the metrics."""
    return {f"step/{'J' if name == 'objective' else name}": value for name, value in logs.items() if name != "loss"}


def of_epoch(model: Any, logs: dict[str, float], updates: np.ndarray) -> dict[str, float]:
    """How the fit stands after an epoch; in the exact regime that is a sweep.

    On mini-batches J is the mean over the epoch, and V what is left of it without alpha R of the present factors.

    Args:
        model: The model that is trained.
        logs: Those of the epoch.
        updates: How many steps each block took in it.
    """
    J, penalty = logs["objective"], float(model.penalty())
    values = {"objective/J": J, "objective/V": J - penalty, "objective/alpha_R": penalty}
    values["blocks/step_size"] = logs["step_size"]
    # Orders of magnitude: a fit that converges falls along a line, for which TensorBoard has no scale of its own.
    improvement = model.schedule.epoch_improvement()
    values["objective/log10_improvement"] = math.log10(improvement) if improvement > 0 else math.nan
    if not model.is_exact:  # there the steps tell; a sweep visits all
        values["blocks/active"] = logs["active_block"]
    norms = ops.convert_to_numpy(model.schedule.grad_norms)
    for name, norm, taken in zip(map(tag, model.block_names), norms, updates, strict=False):
        values |= {f"gradient/{name}": float(norm), f"updates/{name}": float(taken)}
    metrics = {name: value for name, value in logs.items() if name not in NOT_METRICS}
    values |= {"objective/val_J" if name == "val_loss" else f"metrics/{name}": metrics[name] for name in metrics}
    # Unknown are the gradient of a block that was never up, and an improvement where there was none.
    unknown = {name for name, value in values.items() if math.isnan(value) or math.isinf(value)} - {"objective/J"}
    return {name: value for name, value in values.items() if name not in unknown} | of_ranks(model)


def of_ranks(model: Any) -> dict[str, float]:
    """The singular values of every W_k, those that can differ from zero, and its effective rank."""
    values = {}
    for prefix, rank, W in filters(model):
        sigma = np.linalg.svd(W, compute_uv=False)
        for k, effective in enumerate(effective_ranks(sigma)):
            values[f"ranks/{prefix}{k}"] = float(effective)
            for l, value in enumerate(sigma[k, :rank]):
                values[f"singular_values/{prefix}{k}/{l + 1}"] = float(value)
    return values


def of_certificate(proof: Certificate) -> dict[str, float]:
    """How far J can be above the optimum; the ratio only where the penalty has one."""
    ratio = {} if proof.ratios is None else {"certificate/ratio": proof.ratio}
    return {"certificate/lower_bound": proof.lower_bound, "certificate/gap": proof.gap, **ratio}


def pictures(model: Any) -> dict[str, tuple[np.ndarray, str]]:
    """Tag -> pixels (H, W, 3) and what they show: W_k of all classes, and the factors they are made of."""
    drawn = {}
    for prefix, rank, W in filters(model):
        parts = {"W": (W, "W_k")}
        if bilinear_layers(model):
            A, B = (ops.convert_to_numpy(part) for part in bm.truncated_factors(W, rank))
            # As strips of three pixels: those of a stand, those of b lie.
            parts["a"] = np.repeat(A.transpose(2, 1, 0), 3, axis=2), "a_(l,k), the strongest rank to the left,"
            parts["b"] = np.repeat(B.transpose(2, 0, 1), 3, axis=1), "b_(l,k), the strongest rank on top,"
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
        names = ("J", "step_size", "grad_norm", "active_block", "inner_iterations")
        categories["Steps"] = {name.replace("_", " "): [f"step/{name}$"] for name in names}
    if with_certificate:
        categories["Certificate"] = {
            "J and its lower bound": ["objective/J$", "certificate/lower_bound$"],
            "gap": ["certificate/gap$"],
            "largest ratio": ["certificate/ratio$"],
        }
    categories["Ranks"] = {"effective rank of each class": ["ranks/.*"]}
    for prefix, _, W in filters(model):
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
    for prefix, rank, W in filters(model):
        K, M, N = W.shape
        rows[f"{prefix}images and classes"] = f"{M} x {N}, {K}"
        if bilinear_layers(model):
            factors, weights = rank * (M + N) * K, M * N * K
            share = f"{factors / weights:.0%} of the {weights:,} weights of a linear model"
            rows[f"{prefix}factors"] = f"{factors:,}, {share}"
    rows["parameters"] = f"{sum(int(np.prod(variable.shape)) for variable in model.trainable_variables):,}"
    rows |= {"keras_bilinear": __version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    rows["numpy"] = np.__version__
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def filters(model: Any) -> list[tuple[str, int, np.ndarray]]:
    """Of each layer: a prefix of its tags, empty if it is the only one; how many ranks to show; W (K, M, N)."""
    ranks = {layer.name: layer.rank for layer in bilinear_layers(model)}
    each = model.filters().items()
    return [
        (f"{name}/" if len(each) > 1 else "", min(ranks.get(name, MOST_SINGULAR_VALUES), *W.shape[1:]), W)
        for name, W in each
    ]


def only(values: list[Any]) -> Any:
    """The value that all layers share, or all of theirs as words; None if there is none."""
    distinct = list(dict.fromkeys(values))
    return ", ".join(map(str, values)) if len(distinct) > 1 else next(iter(distinct), None)


def tag(block: str) -> str:
    """A block's name as a part of a tag: "A, B" is AB."""
    return block.replace(", ", "")
