"""The exact solver for the last layer of a network: all in front of it is frozen, and is run once."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bilinear.maths.penalties import PENALTIES
from keras_bilinear.models.bilinear import BilinearLogisticRegression, BilinearRegression, BilinearSoftmaxRegression
from keras_bilinear.parts.layers import BilinearDense
from keras_bilinear.parts.matrices import size_of_images
from keras_bilinear.parts.networks import is_functional, only
from keras_bilinear.parts.optimizers import BlockLineSearch
from keras_bilinear.stopping.certificate import Certificate

EXPECTED = "Expected a functional or sequential network that ends in a BilinearDense"


@dataclass(frozen=True)
class HeadFit:
    """What `fit_head` did.

    Attributes:
        history: Logs by their names, one number a sweep, as in the history of a Keras fit.
        certificate: How far J of the head on these features can be above the optimum.
        model: A BSR or BLR of the features, with the weights that the head has now; it has the convergence report.
    """

    history: dict[str, list[float]]
    certificate: Certificate
    model: BilinearRegression


def fit_head(
    network: keras.Model,
    x: Any,
    y: Any,
    epochs: int = 30,
    *,
    sample_weight: Any = None,
    validation_data: tuple[Any, ...] | None = None,
    optimizer: BlockLineSearch | None = None,
    callbacks: Any = None,
    batch_size: int = 256,
    verbose: Any = "auto",
) -> HeadFit:
    """Solves the last layer of a network exactly, where that is the only one to be trained.

    Layers in front of it are frozen: trained before, a `Normalization`, a Fourier transform. They are run once over
    the images, as in `predict`, and what they give, the features, is kept in memory. On it J = V + alpha R of the
    head, a `BilinearDense` with softmax or sigmoid, is what `BilinearSoftmaxRegression` minimises, so it is fitted
    by that model, from the weights that the head has, and J never rises. R and alpha are the head's
    `factor_penalty`; without one alpha is 0.

    It is a function, and not a `compile` of the network with `BlockLineSearch`, so that it takes networks of any
    class: Keras trains a plain `keras.Model` by steps on images, each of which would run all layers again. What the
    network was compiled with is not looked at and stays as it is, and so is the state of its optimizer.

    Args:
        network: A functional or sequential model whose trainable variables are those of its last layer.
        x: Training images or other samples (T, ...), an array, as the network takes them.
        y: Labels (T,), or one-hot rows (T, K).
        epochs: At most so many sweeps of the solver.
        sample_weight: Weights (T,).
        validation_data: (x, y) or (x, y, weight), for "val_" logs.
        optimizer: A `BlockLineSearch`; that of the four models by default.
        callbacks: For this fit, such as `keras_bilinear.callbacks.BlockConvergence()`.
        batch_size: So many images go through the frozen layers at a time.
        verbose: As in `fit`.

    Returns:
        History, certificate and the model of the features. The network has the new weights.

    Raises:
        ValueError: if the network ends in another layer, if others can be trained or the last one cannot, for a
            penalty of the user's own, another optimizer, and unfit data. The network is unchanged then.

    Example:
        >>> image = keras.Input((8, 8))
        >>> body = BilinearMap(6, 6, activation="relu", trainable=False)
        >>> network = keras.Model(image, BilinearDense(10, rank=2, activation="softmax")(body(image)))
        >>> fit = fit_head(network, x, y, epochs=2, verbose=0)
        >>> len(fit.history["J"]), fit.certificate.gap >= 0
        (2, True)
    """
    head = head_of(network)
    model = regression_like(head)
    if not isinstance(optimizer, BlockLineSearch | None):
        raise ValueError(f"Expected `optimizer` to be a BlockLineSearch, or None. Received: {optimizer!r}")
    model.compile(optimizer)
    body = keras.Model(network.inputs, head.input)

    def features(samples: Any) -> np.ndarray:
        return np.asarray(body.predict(samples, batch_size=batch_size, verbose=0), head.variable_dtype)

    F = features(x)
    held_out = None if validation_data is None else (features(validation_data[0]), *validation_data[1:])
    history = model.fit(
        F,
        y,
        epochs=epochs,
        sample_weight=sample_weight,
        validation_data=held_out,
        callbacks=callbacks,
        verbose=verbose,
    )
    certificate = model.certificate(F, y, sample_weight)
    copy_weights(model.head, head)
    return HeadFit(history.history, certificate, model)


def head_of(network: Any) -> BilinearDense:
    """The layer that the network ends in, or a ValueError if that is not all there is to train."""
    if not is_functional(network):
        raise ValueError(f"{EXPECTED}, built. Received: a {type(network).__name__}")
    only("input", network, "input_shape")
    only("output", network, "output_shape")
    head = network.layers[-1]
    if type(head) is not BilinearDense or head.output is not network.outputs[0]:
        ends = [layer for layer in network.layers if layer.output is network.outputs[0]] or [head]
        received = ", ".join(f"a {type(layer).__name__}, '{layer.name}'" for layer in ends)
        raise ValueError(f"{EXPECTED}, used nowhere else. Received: {received}")
    expect_probabilities(head)
    expect_frozen_body(network, head)
    return head


def expect_probabilities(head: BilinearDense) -> None:
    """Raises a ValueError unless the layer gives the probabilities of one matrix a sample."""
    expected = "sigmoid" if head.units == 1 else "softmax"
    if head.activation is not keras.activations.get(expected):
        name = getattr(head.activation, "__name__", head.activation)
        raise ValueError(
            f"Expected the last layer, of {head.units} units, to have activation='{expected}': what is solved is "
            f"the cross-entropy of its probabilities. Received: {name}"
        )
    size_of_images(head.input.shape)


def expect_frozen_body(network: keras.Model, head: BilinearDense) -> None:
    """Raises a ValueError unless the variables to be trained are those of the head."""
    own, trained = head.trainable_variables_in_order(), network.trainable_variables
    others, frozen = missing_from(own, trained), missing_from(trained, own)
    if others or frozen:
        received = f"{', '.join(others[:4])} to be trained" if others else f"{', '.join(frozen[:4])} frozen"
        raise ValueError(
            "Expected a network whose trainable variables are those of its last layer; `layer.trainable = False` "
            f"freezes the others. Received: {received}"
        )


def missing_from(known: list[keras.Variable], variables: list[keras.Variable]) -> list[str]:
    """The names of the variables that are not among those known."""
    ids = set(map(id, known))
    return [variable.path for variable in variables if id(variable) not in ids]


def regression_like(head: BilinearDense) -> BilinearRegression:
    """A BSR or BLR of what the layer takes, with its weights and its penalty."""
    settings: dict[str, Any] = {
        "rank": head.rank,
        "alpha": 0.0 if head.alpha is None else float(head.alpha),
        "penalty": penalty_name(head),
        "use_bias": head.use_bias,
        "input_shape": size_of_images(head.input.shape),
        "dtype": head.variable_dtype,
    }
    single = head.units == 1
    model = BilinearLogisticRegression(**settings) if single else BilinearSoftmaxRegression(head.units, **settings)
    copy_weights(head, model.head)
    return model


def penalty_name(head: BilinearDense) -> str:
    """What the four models call the penalty of the layer, or a ValueError if they do not know it."""
    if head.factor_penalty is None:
        return "product"  # with alpha = 0 all are alike
    names = [name for name, kind in PENALTIES.items() if type(head.factor_penalty) is kind]
    if not names:
        raise ValueError(
            f"Expected a `factor_penalty` among {sorted(PENALTIES)}. Received: {type(head.factor_penalty).__name__}"
        )
    return names[0]


def copy_weights(source: BilinearDense, target: BilinearDense) -> None:
    """Gives one layer the factors and the bias of another."""
    target.assign_factors(*(ops.cast(side, target.variable_dtype) for side in source.forms))
    if source.bias is not None and target.bias is not None:
        target.bias.assign(source.bias.value)
