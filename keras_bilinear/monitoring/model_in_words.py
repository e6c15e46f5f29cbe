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
    """The size of a layer, and its factors as a part of the weights of a linear one."""
    if isinstance(layer, BilinearMap):
        return comparison_of_map(layer)
    assert isinstance(layer, BilinearDense)
    return comparison_of_head(layer)


def comparison_of_map(layer: BilinearMap) -> str:
    """From which matrices to which, in how many numbers instead of how many."""
    (M, N), P, Q = layer.matrix_shape, layer.rows, layer.columns
    factors, weights = M * P + N * Q, M * N * P * Q
    return (
        f"{M} x {N} matrices to {P} x {Q}: {factors:,} factors, {100 * factors / weights:.3g} % of the {weights:,} "
        "weights of a linear layer"
    )


def comparison_of_head(layer: BilinearDense) -> str:
    """K and L, and the ranks if it uses fewer."""
    (M, N), K, L = layer.matrix_shape, layer.units, layer.rank
    factors, weights = L * (M + N) * K, M * N * K
    text = (
        f"{M} x {N} images, K = {K}, L = {L}: {factors:,} factors, {100 * factors / weights:.3g} % of the "
        f"{weights:,} weights of a linear layer"
    )
    fewest, most = layer.ranks().min(), layer.ranks().max()
    if most == 0 or fewest == L:  # not fitted yet, or all are in use
        return text
    return f"{text}; ranks in use {fewest}" + (f" to {most}" if fewest < most else "")
