"""What `summary` says beyond Keras' table: the factors of bilinear layers beside the weights of linear ones."""

from keras_bilinear.parts.bilinear_map import BilinearMap
from keras_bilinear.parts.factored_layer import FactoredLayer
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.schedule import BlockSchedule


def summary_lines(layers: dict[str, FactoredLayer], schedule: BlockSchedule) -> list[str]:
    """A line for each built layer, and one for the numbers of the schedule, which no layer of a network has."""
    state = f" State of the alternation: {schedule.count_params():,} numbers, none of them exported"
    return [*(f" {name}: {comparison(layer)}" for name, layer in layers.items()), state]


def comparison(layer: FactoredLayer) -> str:
    """The size of a layer, its factors as a part of the weights of a linear one, and its ranks if it uses fewer."""
    M, N = layer.matrix_shape
    if isinstance(layer, BilinearMap):
        P, Q = layer.rows, layer.columns
        return f"{M} x {N} matrices to {P} x {Q}: {share(M * P + N * Q, M * N * P * Q)}"
    assert isinstance(layer, BilinearDense)
    K, L = layer.units, layer.rank
    text = f"{M} x {N} images, K = {K}, L = {L}: {share(L * (M + N) * K, M * N * K)}"
    fewest, most = layer.ranks().min(), layer.ranks().max()
    if most == 0 or fewest == L:  # not fitted yet, or all are in use
        return text
    return f"{text}; ranks in use {fewest}" + (f" to {most}" if fewest < most else "")


def share(factors: int, weights: int) -> str:
    """In how many numbers, instead of how many."""
    return f"{factors:,} factors, {100 * factors / weights:.3g} % of the {weights:,} weights of a linear layer"
