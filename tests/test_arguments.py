"""Numbers as people give them: taken as what they are, or refused, wherever the package asks for one."""

from decimal import Decimal
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from keras_bilinear import arguments

NO_NUMBERS = [
    np.True_,
    np.array(True),
    True,
    b"1",
    bytearray(b"1"),
    "1",
    np.str_("1"),
    np.array("1"),
    [3],
    np.array([3]),
    np.timedelta64(3, "s"),
    1j,
    np.complex64(1),
    10**400,
    10**5000,
    Fraction(10**400),
    float("nan"),
    Decimal("nan"),
    np.float16("inf"),
    tf.constant(True),
    tf.constant("1"),
    keras.layers.Dense,
    {},
    -1,
]
NOT_IN_FLOAT32 = [1e39, 1e-50, 3.5e38, 1e-39, 10**39, Decimal("1e-100"), Fraction(1, 10**60), np.float64(1e300)]
NOT_IN_INT32 = [2**31, 10**12, np.uint64(2**63), np.int64(2**31), np.array(2**40)]
NOT_WHOLE = [3.0, np.float32(3), np.array(3.0), tf.constant(3.0), Fraction(3), Decimal(3)]

X, Y = np.random.default_rng(0).uniform(size=(8, 4, 3)), np.arange(8) % 2


def unbuilt():
    return kb.BilinearLogisticRegression(1)


def set_alpha(model):
    def assign(value):
        model.alpha = value

    return assign


def set_in(optimizer, name):
    return lambda value: setattr(optimizer, name, value)


MODELS = {
    "unbuilt BLR": kb.BilinearLogisticRegression(1, alpha=0.5),
    "BLR": kb.BilinearLogisticRegression(1, alpha=0.5, input_shape=(4, 3)),
    "unbuilt LSR": kb.LinearSoftmaxRegression(3, alpha=0.5),
    "penalty": kb.penalties.Sum(0.5),
    "layer": kb.BilinearDense(3, 2, factor_penalty=kb.penalties.Sum(0.5)),
}
OPTIMIZER = kb.BlockLineSearch(max_inner=7, tolerance=0.5)
DENSE = keras.layers.Dense(1)
DENSE.build((None, 12))

FLOATS = {
    "BSR": lambda v: kb.BilinearSoftmaxRegression(3, 2, alpha=v),
    "LLR": lambda v: kb.LinearLogisticRegression(alpha=v),
    "get": lambda v: kb.penalties.get("product", v),
    "Ridge": kb.penalties.Ridge,
    "Frobenius": kb.penalties.Frobenius,
    "compress": lambda v: kb.compress(DENSE, 1, (4, 3), alpha=v),
    "from_dense": lambda v: kb.from_dense(DENSE, 1, (4, 3), alpha=v),
    "tolerance": lambda v: kb.BlockLineSearch(tolerance=v),
    "assigned tolerance": set_in(OPTIMIZER, "tolerance"),
    "rtol": lambda v: kb.callbacks.BlockConvergence(rtol=v),
    "block_rtol": lambda v: kb.callbacks.BlockConvergence(block_rtol=v),
    "gap": lambda v: kb.callbacks.BlockConvergence(gap=v),
    "gap of ranks": lambda v: kb.callbacks.AutomaticRank(gap=v),
    "alphas": lambda v: kb.regularization_path(unbuilt(), X, Y, [0.1, v], [1]),
    "rtol of a path": lambda v: kb.regularization_path(unbuilt(), X, Y, [0.1], [1], rtol=v, verbose=0),
    "alpha of a classifier": lambda v: kb.BilinearClassifier(alpha=v).fit(X, Y),
    "tol": lambda v: kb.BilinearClassifier(tol=v).fit(X, Y),
    **{f"alpha of {name}": set_alpha(model) for name, model in MODELS.items()},
}
INTEGERS = {
    "units": lambda v: kb.LinearSoftmaxRegression(v),
    "rank": lambda v: kb.BilinearSoftmaxRegression(3, v),
    "units of a layer": lambda v: kb.BilinearDense(v, 1),
    "rank of a layer": lambda v: kb.BilinearDense(3, v),
    "rank of compress": lambda v: kb.compress(DENSE, v, (4, 3)),
    "max_inner": lambda v: kb.BlockLineSearch(max_inner=v),
    "assigned max_inner": set_in(OPTIMIZER, "max_inner"),
    "ranks": lambda v: kb.regularization_path(unbuilt(), X, Y, [0.1], [1, v]),
    "folds": lambda v: kb.regularization_path(unbuilt(), X, Y, [0.1], [1], folds=v),
    "max_sweeps": lambda v: kb.regularization_path(unbuilt(), X, Y, [0.1], [1], max_sweeps=v, verbose=0),
    "max_iter": lambda v: kb.BilinearClassifier(max_iter=v).fit(X, Y),
    "image_freq": lambda v: kb.callbacks.BilinearTensorBoard(image_freq=v),
    "certificate_freq": lambda v: kb.callbacks.BilinearTensorBoard(certificate_freq=v),
    "input_shape": lambda v: kb.BilinearSoftmaxRegression(3, 1, input_shape=(4, v)),
}


@pytest.mark.parametrize("where", FLOATS)
def test_no_float_is_made_of_what_is_none_or_beyond_float32(where):
    for value in NO_NUMBERS + NOT_IN_FLOAT32:
        with pytest.raises(ValueError, match=r"Expected .* Received: "):
            FLOATS[where](value)
    assert all(float(model.alpha) == 0.5 for name, model in MODELS.items() if name != "layer")
    assert MODELS["layer"].factor_penalty.alpha == OPTIMIZER.tolerance == 0.5


@pytest.mark.parametrize("where", INTEGERS)
def test_no_integer_is_made_of_what_is_none_or_beyond_int32(where):
    for value in NO_NUMBERS + NOT_IN_INT32 + NOT_WHOLE:
        with pytest.raises(ValueError, match=r"Expected .* Received: "):
            INTEGERS[where](value)
    assert OPTIMIZER.max_inner == 7


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0.0),
        (np.int8(3), 3.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.25"), 0.25),
        (np.float16(0.25), 0.25),
        (np.array(0.25), 0.25),
        (tf.constant(0.25), 0.25),
        (tf.constant(0.25, "bfloat16"), 0.25),
        (keras.Variable(0.25), 0.25),
        (3.4e38, 3.4e38),
        (1.2e-38, 1.2e-38),
    ],
)
def test_numbers_of_any_type_are_floats(value, number):
    for found in (arguments.non_negative("alpha", value), kb.penalties.Sum(value).alpha):
        assert type(found) is float
        assert found == number


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), tf.constant(3)])
def test_whole_numbers_of_any_type_are_integers(value):
    found = arguments.positive_integer("rank", value)
    assert type(found) is int
    assert found == 3
    assert arguments.positive_integer("rank", 2**31 - 1) == 2**31 - 1


def test_errors_stay_short():
    for value in (10**5000, list(range(10_000)), "x" * 10_000):
        with pytest.raises(ValueError, match="Received") as error:
            arguments.positive("scale", value)
        assert len(str(error.value)) < 250
