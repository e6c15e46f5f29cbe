"""What there is to see of a fit: the numbers, pictures and words that TensorBoard shows."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bilinear._version import __version__
from keras_bilinear.monitoring.fit_facts import heads_of
from keras_bilinear.monitoring.model_in_words import comparison
from keras_bilinear.monitoring.pictures import mosaic
from keras_bilinear.parts import log_names as log
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.layers_within import named_factored_layers, named_layers, parameter_count
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.parts.optimizers import inner_optimizer
from keras_bilinear.stopping.certificate import Certificate, effective_ranks

HYPERPARAMETERS = ("solver", "alpha", "blocks", "inner", "penalty", "rank", "step_size", "type")
"""The columns of the HParams page, of which it hides all but the first five."""

OUTCOMES = {
    "objective/J": "J",
    "metrics/accuracy": "training accuracy",
    "metrics/val_accuracy": "validation accuracy",
    "objective/val_J": "validation J",
}
"""The curves whose last values the HParams page compares, and their names there."""


def of_step(logs: dict[str, Any]) -> dict[str, float]:
    """What one step did: J and its parts, step size, |gradient|, active block, line searches, and the metrics."""
    parts = (log.LOSS, *log.NAMES_OF_J, log.PENALTY)
    others = {f"step/{name}": value for name, value in logs.items() if name not in parts}
    return parts_of_objective("step", logs) | numbers(others)


def of_epoch(model: BlockModel, logs: dict[str, Any]) -> dict[str, float]:
    """How the fit stands after an epoch; in the exact regime that is a sweep.

    On mini-batches J is the mean over the epoch, and V what is left of it without alpha R of the present factors.

    Args:
        model: The model that is trained.
        logs: Those of the epoch.
    """
    values = {**parts_of_objective("objective", logs), "blocks/step_size": logs[log.STEP_SIZE]}
    improvement = logs.get(log.IMPROVEMENT, math.nan)
    if 0 < improvement < math.inf:
        # Orders of magnitude: TensorBoard gives no chart a logarithmic scale of itself.
        values["objective/log10_improvement"] = math.log10(improvement)
    if not model.is_exact:  # there the steps tell; a sweep visits all
        values["blocks/active"] = logs[log.ACTIVE_BLOCK]
    norms, steps = map(ops.convert_to_numpy, (model.schedule.grad_norms, model.schedule.block_steps))
    for name, norm, taken in zip(map(tag, model.block_names), norms, steps, strict=False):
        # All so far: those of an epoch jump between nothing and all where blocks take turns.
        values[f"updates/{name}"] = float(taken)
        if not math.isnan(norm):  # it has had a turn
            values[f"gradient/{name}"] = float(norm)
    metrics = log.metrics_of(logs)
    values |= {
        "objective/val_J" if name == log.HELD_OUT_LOSS else f"metrics/{name}": metrics[name] for name in metrics
    }
    return numbers(values) | of_ranks(model)


def parts_of_objective(group: str, logs: dict[str, Any]) -> dict[str, float]:
    """J = V + alpha R."""
    J, penalty = logs[log.OBJECTIVE], logs[log.PENALTY]
    return {f"{group}/J": J, f"{group}/V": J - penalty, f"{group}/alpha_R": penalty}


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """A number for each value: the mean of an array, as of a metric by class. What is no number is left out."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {name: float(array.mean()) for name, array in arrays.items() if array.dtype.kind in "biuf"}


def of_ranks(model: BlockModel) -> dict[str, float]:
    """The singular values of every W_k of bilinear layers, and its effective rank."""
    values = {}
    for prefix, layer in prefixed_layers(model):
        _, sigma, _ = decomposed(layer)
        for k, effective in enumerate(effective_ranks(sigma)):
            values[f"ranks/{prefix}{k}"] = float(effective)
            for l, value in enumerate(sigma[k]):
                values[f"singular_values/{prefix}{k}/{l + 1}"] = float(value)
    return values


def of_certificate(proof: Certificate) -> dict[str, float]:
    """How far J can be above the optimum; the ratio only where the penalty has one."""
    ratio = {} if proof.ratios is None else {"certificate/ratio": proof.ratio}
    return {"certificate/lower_bound": proof.lower_bound, "certificate/gap": proof.gap, **ratio}


def pictures(model: BlockModel) -> dict[str, tuple[np.ndarray, str]]:
    """Tag -> pixels (H, W, 3) and what they show: W_k of all classes, and the factors they are made of."""
    layers = prefixed_layers(model)
    filters = list(model.filters().values())
    prefixes = [prefix for prefix, _ in layers] or [""] * len(filters)
    parts = {f"{prefix}W": (W, "W_k") for prefix, W in zip(prefixes, filters, strict=True)}
    for prefix, layer in layers:
        a, b = canonical(*decomposed(layer))
        # As strips of three pixels: those of a stand, those of b lie.
        parts[f"{prefix}a"] = np.repeat(a, 3, axis=2), "a_(l,k), the strongest rank to the left,"
        parts[f"{prefix}b"] = np.repeat(b.transpose(0, 2, 1), 3, axis=1), "b_(l,k), the strongest rank on top,"
    drawn = {}
    for name, (tiles, words) in parts.items():
        order = f"{words} for k = 0 to {len(tiles) - 1} in reading order"
        scale = f"Red raises the score, blue lowers it; the strongest colour is {np.abs(tiles).max():.3g}."
        drawn[f"filters/{name}"] = mosaic(tiles), f"{order}. {scale}"
    return drawn


def layout(model: BlockModel, with_steps: bool, with_certificate: bool) -> dict[str, dict[str, list[str]]]:
    """Which curves belong together: category -> title of a chart -> regular expressions of tags."""
    categories = {
        "Objective": {
            "J = V + alpha R, and J on validation images": ["objective/(J|val_J)$"],
            "V, the cross-entropy": ["objective/V$"],
            "alpha R, the penalty": ["objective/alpha_R$"],
            "metrics": ["metrics/.*"],
            "log10 of the relative decrease of J": ["objective/log10_improvement$"],
        },
        "Blocks": {
            "norm of the gradient": ["gradient/.*"],
            "updates so far": ["updates/.*"],
            "step size": ["blocks/step_size$"],
            **({} if model.is_exact else {"active block": ["blocks/active$"]}),
        },
    }
    if with_steps:
        names = (log.STEP_SIZE, log.GRAD_NORM, log.ACTIVE_BLOCK, log.INNER_ITERATIONS)
        categories["Steps"] = {
            **{title: [f"step/{name}$"] for title, name in (("J", "J"), ("V", "V"), ("alpha R", "alpha_R"))},
            **{name.replace("_", " "): [f"step/{name}$"] for name in names if model.is_exact or name != names[-1]},
        }
    if with_certificate:
        categories["Certificate"] = {
            "J and its lower bound": ["objective/J$", "certificate/lower_bound$"],
            "gap": ["certificate/gap$"],
            "largest ratio": ["certificate/ratio$"],
        }
    layers = prefixed_layers(model)
    if layers:
        categories["Ranks"] = {"effective rank of each class": ["ranks/.*"]}
    for prefix, layer in layers:
        for k in range(layer.units):
            categories["Ranks"][f"singular values of W_{prefix}{k}"] = [f"singular_values/{prefix}{k}/.*"]
    return categories


def hyperparameters(model: BlockModel) -> dict[str, Any]:
    """What was chosen, by the names in `HYPERPARAMETERS`; what a model does not have is left out."""
    optimizer, heads = inner_optimizer(model.optimizer), heads_of(model)
    values = {
        "alpha": shared([decimal(head.alpha) for head in heads]),
        "blocks": getattr(optimizer, "blocks", None),
        "inner": getattr(optimizer, "inner", None),
        "penalty": shared([head.penalty for head in heads if head.rank and head.penalty]),
        "rank": "auto" if model._rank_is_automatic else shared([head.rank for head in heads if head.rank]),
        "solver": type(optimizer).__name__,
        "step_size": None if model.is_exact else decimal(optimizer.learning_rate),
        "type": type(model).__name__,
    }
    return {name: value for name, value in values.items() if value is not None}


def description(model: BlockModel) -> str:
    """A table in Markdown: what is trained, how large it is, and on which versions."""
    rows = dict(hyperparameters(model))
    layers = named_factored_layers(model)
    rows |= {f"{name}/size" if len(layers) > 1 else "size": comparison(layers[name]) for name in layers}
    rows["parameters"] = f"{parameter_count(model):,}"
    rows |= {"keras_bilinear": __version__, "keras": keras.__version__, "tensorflow": tf.__version__}
    rows["numpy"] = np.__version__
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def prefixed_layers(model: BlockModel) -> list[tuple[str, BilinearDense]]:
    """The bilinear layers, each with a prefix of its tags: empty if it is the only one."""
    layers = named_layers(model)
    return [(f"{name}/" if len(layers) > 1 else "", layer) for name, layer in layers.items()]


def decomposed(layer: BilinearDense) -> tuple[np.ndarray, ...]:
    """W_k = U_k diag(sigma_k) V_k^T from the L x L product of triangular factors; W_k itself is far larger.

    In float64, which has decompositions for every dtype of factors. Returns U (K, M, R), sigma (K, R) and
    V (K, N, R) with R = min(L, M, N); nothing but zeros for factors that are not finite.
    """
    A, B = (
        np.nan_to_num(np.stack([factor.numpy() for factor in side]).astype("float64"), posinf=0.0, neginf=0.0)
        for side in (layer.left_factors, layer.right_factors)
    )
    (QA, RA), (QB, RB) = np.linalg.qr(A.transpose(2, 1, 0)), np.linalg.qr(B.transpose(2, 1, 0))
    U, sigma, Vt = np.linalg.svd(RA @ RB.transpose(0, 2, 1), full_matrices=False)
    return QA @ U, sigma, QB @ Vt.transpose(0, 2, 1)


def canonical(U: np.ndarray, sigma: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a (K, M, R) and b (K, N, R) with the length sqrt(sigma), as `maths.bilinear.canonical_factors` has them."""
    pivot = np.abs(U).argmax(axis=1)[:, None]
    scale = np.sqrt(sigma)[:, None] * np.sign(np.take_along_axis(U, pivot, axis=1))
    return U * scale, V * scale


def decimal(number: Any) -> float:
    """A float32 as it was written: 0.02, and not 0.019999999552965164."""
    return float(f"{float(ops.convert_to_numpy(number)):.7g}")


def shared(values: list[Any]) -> Any:
    """The value that all layers share, or all of theirs as words; None if there is none."""
    distinct = list(dict.fromkeys(values))
    return ", ".join(map(str, values)) if len(distinct) > 1 else next(iter(distinct), None)


def tag(block: str) -> str:
    """A block's name as a part of a tag: "A, B" is AB."""
    return block.replace(", ", "")
