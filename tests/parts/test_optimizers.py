import keras
import pytest
from keras import ops

from keras_bilinear import BlockLineSearch
from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Samples
from keras_bilinear.solver.compiled import Compiled


def test_config_round_trip_through_keras():
    optimizer = BlockLineSearch("newton_cg", "side", max_inner=7, tolerance=1e-3)
    optimizer.tolerance = 1e-4
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, BlockLineSearch)
    assert (again.inner, again.blocks, again.max_inner) == ("newton_cg", "side", 7)
    assert again.tolerance == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "adam"}, "`inner` to be one of"),
        ({"blocks": "pixels"}, "`blocks` to be one of"),
        ({"max_inner": 0}, "`max_inner`"),
        ({"max_inner": 1.5}, "`max_inner`"),
        ({"tolerance": -1}, "`tolerance`"),
        ({"tolerance": float("inf")}, "`tolerance`"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        BlockLineSearch(**options)


def test_bad_assignments_change_nothing():
    optimizer = BlockLineSearch(max_inner=7)
    with pytest.raises(ValueError, match="`max_inner`"):
        optimizer.max_inner = 0
    with pytest.raises(ValueError, match="`tolerance`"):
        optimizer.tolerance = -1.0
    assert optimizer.max_inner == 7


def test_without_xla_one_graph_serves_images_of_any_size_and_number():
    traced = []

    def total(X, samples, bias, penalty):
        traced.append((X.shape, samples.targets.shape))
        return penalty.degree * ops.sum(ops.sum(X, axis=(1, 2)) * samples.weights)

    for T, M, N, K in ((3, 5, 6, 2), (4, 5, 6, 3), (3, 7, 2, 4), (3, 5, 6, 1), (4, 2, 2, 1)):
        solve = Compiled(total, jit=False, penalty=penalties.Product)  # equal ones are one graph
        samples = Samples(ops.ones((T, K)), ops.ones((T,)))
        assert float(solve(ops.ones((T, M, N)), samples, None)) == 2 * T * M * N
    assert traced == [((None, None, None), (None, None)), ((None, None, None), (None, 1))]


@pytest.mark.parametrize("option", ["learning_rate", "clipnorm", "weight_decay", "use_ema"])
def test_settings_of_gradient_steps_are_refused(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        BlockLineSearch(**{option: 0.1})
