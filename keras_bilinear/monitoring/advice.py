"""What went wrong in a fit, and what to do about it, in plain sentences."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_bilinear.monitoring.fit_record import FitRecord
from keras_bilinear.parts.layers_within import named_layers
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.stopping.convergence import advice_if_stalled, remedy
from keras_bilinear.tables import percent

STILL_FALLING = 1e-5
"""A sweep that lowers J by more than this fraction of it has not converged: `BlockConvergence` would go on."""
NOISE = 1e-3
"""The same on mini-batches, where J is a mean over an epoch and not as steady."""
ORDINARY_PIXELS = 0.05, 20.0
"""Images whose largest absolute pixel is between these are in a unit that alpha is commonly chosen for."""
NOTHING = 1e-12
"""W without an entry above this moves no score: a large alpha shrinks it from sweep to sweep, but not to 0."""
NAMED = 6
"""So many blocks or classes are named; of more, only the first."""


def advice(record: FitRecord, model: BlockModel, filters: dict[str, np.ndarray]) -> Iterator[str]:
    """What a reader of the fit should know, and what to do about it. filters: W (K, M, N) of each layer."""
    yield from of_convergence(record, model)
    yield from of_objective(record)
    yield from of_separable_images(record)
    yield from of_the_pixels_unit(record)
    yield from of_blocks(record)
    yield from of_filters(filters)


def of_convergence(record: FitRecord, model: BlockModel) -> Iterator[str]:
    """What the callback that judges convergence says or, without one, how J fell at the end."""
    judgement, (fall, time) = record.judgement, record.last_change
    if judgement and judgement.converged:
        return
    if record.interruption:
        before = " before it converged" if judgement else ""
        yield f"The fit was broken off{before}. Call `fit` again: it goes on from here."
    elif judgement and judgement.stalled:
        yield f"The fit has {judgement.reason}. In such a fit {advice_if_stalled(record.is_exact)}."
    elif judgement and record.was_stopped:
        yield "The fit had not converged when another callback stopped it."
    elif judgement and judgement.grows_ranks:
        yield f"The fit is not certified to be within {judgement.goal} of the optimum. {more_ranks(model)}"
    elif judgement:
        proof = judgement.certificate
        more = remedy(proof) if proof else "Give `fit` more epochs, or a larger `rtol`."
        yield f"The fit has not converged to {judgement.goal}. {more}"
    elif fall > (STILL_FALLING if record.is_exact else NOISE):
        yield (
            f"J still fell by {percent(fall)} in {time}: more epochs may lower it further. The callback "
            "BlockConvergence ends a fit once it has converged."
        )


def more_ranks(model: BlockModel) -> str:
    """What a fit needs whose ranks grew until the epochs ran out."""
    (layer,) = named_layers(model).values()
    full = np.flatnonzero(layer.ranks() == layer.rank)
    if not len(full) or layer.rank >= min(layer.matrix_shape):
        return "Give `fit` more epochs."
    return sentence(f"{listed('class', full)} used up the `rank` of {layer.rank}: give a larger one")


def of_objective(record: FitRecord) -> Iterator[str]:
    """Whether J is a number, falls, and is that of the model."""
    J = np.array([epoch.objective for epoch in record.epochs])
    broken = np.flatnonzero(~np.isfinite(J))
    if len(broken):
        yield (
            f"J was not a finite number in {len(broken)} of {len(J)} epochs, first in epoch "
            f"{record.epochs[broken[0]].number}. Give a smaller learning rate, and look for NaN among the data."
        )
    elif not record.is_exact and len(J) > 1 and J[-1] > J[0]:
        yield f"J rose from {J[0]:.4g} in the first epoch to {J[-1]:.4g} in the last. Give a smaller learning rate."
    if record.weights_were_replaced:
        yield (
            "A callback replaced the weights when the fit had ended, as EarlyStopping does with "
            "`restore_best_weights`: J is that of the last epoch, not of the model."
        )


def of_separable_images(record: FitRecord) -> Iterator[str]:
    """Whether nothing but alpha would bound the factors: scaled up, they give as small a V as one likes."""
    all_correct = record.data.each_has_a_class and record.epochs and record.epochs[-1].accuracy == 1.0
    # On mini-batches it need not be one model that classified them all.
    if record.is_exact and all_correct and not any(head.alpha for head in record.heads):
        yield (
            "Every training image is classified correctly and alpha = 0, so J has no minimum and the factors grow "
            "as long as the fit goes on. Give alpha > 0."
        )


def of_the_pixels_unit(record: FitRecord) -> Iterator[str]:
    """Whether alpha means what it does for pixels in [0, 1]: R changes when images grow and W shrinks."""
    largest, heads = record.data.largest_pixel, [head for head in record.heads if head.alpha]
    least, most = ORDINARY_PIXELS
    if not largest or least <= largest <= most or not heads:
        return
    times = largest ** heads[0].degree
    effect = f"{times:,.0f} times less" if times > 1 else f"{1 / times:,.0f} times more"
    yield (
        f"The largest pixel is {largest:.4g}, and in this unit alpha = {heads[0].alpha:g} weighs {effect} than for "
        f"pixels in [0, 1]. Divide the images by {largest:.4g}, or choose alpha for their unit."
    )


def of_blocks(record: FitRecord) -> Iterator[str]:
    """Whether each block has had a turn."""
    blocks, waiting = len(record.blocks), [block.name for block in record.blocks if not block.was_up]
    if not waiting:
        return
    needs = f"steps: a sweep takes {blocks}" if record.is_exact else f"epochs: a sweep takes {blocks} or more"
    yield sentence(f"{listed('block', waiting)} never had a turn. Give `fit` more {needs}")


def of_filters(filters: dict[str, np.ndarray]) -> Iterator[str]:
    """Whether there is anything in them."""
    for name, W in filters.items():
        if not np.isfinite(W).all():
            yield f"Factors of layer '{name}' are not finite. Fit the model anew, with a smaller learning rate."
        elif np.abs(W).max() < NOTHING:
            yield (
                f"W = 0 in layer '{name}': all images get the same scores from it. Give a smaller alpha, or more "
                "epochs where it has only begun."
            )


def listed(noun: str, names: Sequence[Any] | np.ndarray) -> str:
    """ "block a1", "blocks a1, b1" or "blocks a1, b1, ... and 7 others"."""
    plural = "" if len(names) == 1 else "es" if noun.endswith("s") else "s"
    rest = len(names) - NAMED
    text = f"{noun}{plural} {', '.join(str(name) for name in names[:NAMED])}"
    return f"{text} and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else text


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."
