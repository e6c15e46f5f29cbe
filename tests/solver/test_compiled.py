"""Graphs of the solver are shared by tensors of every size, but not by those of one class and of many."""

import pytest
from keras import ops

from keras_bilinear.solver.compiled import Compiled


@pytest.fixture
def traces():
    return []


@pytest.fixture
def total(traces):
    """A step that says when it is traced."""

    def step(factors):
        traces.append(factors.shape)
        return ops.sum(factors)

    return Compiled(step, jit=False)


def test_one_graph_serves_every_size_and_rank(total, traces):
    for shape in ((2, 3, 4), (1, 3, 4), (5, 1, 7)):
        assert float(total(ops.ones(shape))) == shape[0] * shape[1] * shape[2]
    assert len(traces) == 1


def test_one_class_has_a_graph_of_its_own(total, traces):
    for shape in ((2, 3, 4), (2, 3, 1), (1, 1, 1), (2, 2, 2)):
        total(ops.ones(shape))
    assert len(traces) == 2
    assert traces[1][-1] == 1


def test_scalars_and_missing_tensors_are_given_on(traces):
    step = Compiled(lambda scale, bias: traces.append(bias) or 2 * scale, jit=False)
    assert float(step(ops.ones(()), None)) == 2
    assert traces == [None]
