import re

import keras
import numpy as np
import pytest

import keras_bilinear as kb
from tests.problems import planted


def lines(model, *args, **kwargs):
    """What `summary` prints below Keras' table and its totals."""
    printed = []
    model.summary(*args, print_fn=printed.append, **kwargs)
    table, *own = printed
    assert table.startswith(f'Model: "{model.name}"')
    return [line.strip() for line in own]


def state(model):
    numbers = sum(int(np.prod(weight.shape)) for weight in model.schedule.weights)
    return f"State of the alternation: {numbers} numbers, none of them exported"


def test_factors_beside_the_weights_of_a_linear_layer():
    model = kb.BilinearSoftmaxRegression(10, 3, input_shape=(28, 28))
    said = "bilinear: 28 x 28 images, K = 10, L = 3: 1,680 factors, 21.4 % of the 7,840 weights of a linear layer"
    assert lines(model) == [said, state(model)]


def test_a_bias_belongs_to_either_and_larger_images_gain_more():
    model = kb.BilinearLogisticRegression(1, use_bias=True, input_shape=(1000, 500))
    assert "1,500 factors, 0.3 % of the 500,000 weights" in lines(model)[0]


def test_each_layer_of_a_network():
    image = keras.Input((8, 7, 1))
    heads = [kb.BilinearDense(3, rank, name=f"head_{rank}")(image) for rank in (1, 2)]
    model = kb.AlternatingModel(image, keras.layers.Softmax()(keras.layers.Add()(heads)))
    *layers, last = lines(model)
    assert [line.split(": ")[0] for line in layers] == ["head_1", "head_2"]
    assert "8 x 7 images, K = 3, L = 2: 90 factors, 53.6 % of the 168 weights" in layers[1]
    assert last == state(model)


def test_ranks_in_use_are_told_where_they_differ_from_L():
    model = kb.BilinearSoftmaxRegression(3, 4, input_shape=(6, 5))
    A, B = np.ones((4, 6, 3), "float32"), np.ones((4, 5, 3), "float32")
    model.head.assign_factors(A, B)
    assert lines(model)[0].endswith("linear layer")
    A[2:, :, 0] = B[3:, :, 1] = 0.0
    model.head.assign_factors(A, B)
    assert lines(model)[0].endswith("linear layer; ranks in use 2 to 4")
    A[2:] = 0.0
    model.head.assign_factors(A, B)
    assert lines(model)[0].endswith("linear layer; ranks in use 2")


@pytest.mark.filterwarnings("ignore::keras_bilinear.callbacks.ConvergenceWarning")
def test_ranks_that_were_found_automatically():
    model = kb.BilinearSoftmaxRegression(3, "auto", alpha=0.02, penalty="sum", input_shape=(6, 5))
    assert "ranks" not in lines(model)[0]  # none before the fit
    model.compile(run_eagerly=True)
    model.fit(*planted(T=60).data(), epochs=4, verbose=0)
    fewest, most = model.ranks().min(), model.ranks().max()
    assert re.search(rf"ranks in use {fewest}\b" if fewest == most else f"{fewest} to {most}$", lines(model)[0])


@pytest.mark.parametrize("shape", [None, (6, 5)])
def test_linear_models_have_nothing_to_compare(shape):
    model = kb.LinearSoftmaxRegression(3, input_shape=shape)
    assert lines(model) == [state(model)]


def test_a_model_that_is_not_built():
    model = kb.BilinearSoftmaxRegression(3, 2)
    assert lines(model) == [state(model)]
    model.build((None, 6, 5))
    assert "6 x 5 images" in lines(model)[0]


def test_arguments_are_those_of_keras(capsys):
    model = kb.BilinearSoftmaxRegression(3, 2, input_shape=(6, 5))
    printed = []
    assert model.summary(60, None, printed.append, show_trainable=True) is None
    assert "Trainable" in printed[0]
    assert max(map(len, printed[0].splitlines())) == 60
    assert len(printed) == 3
    assert capsys.readouterr().out == ""
    with pytest.raises(TypeError, match="width"):
        model.summary(width=60)


def test_it_prints_where_keras_does(capsys):
    kb.BilinearSoftmaxRegression(3, 2, input_shape=(6, 5)).summary()
    printed = capsys.readouterr().out
    assert printed.index("Non-trainable params") < printed.index("bilinear: 6 x 5 images") < printed.index("State")
