"""Networks in which bilinear layers take turns."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_bilinear.models.alternation import AlternatingTraining
from keras_bilinear.parts.layers_within import bilinear_layers
from keras_bilinear.parts.losses import check_from_logits, losses_by_output
from keras_bilinear.parts.optimizers import BlockLineSearch


def like_a_functional_model(init: Callable[..., None]) -> Callable[..., None]:
    """The same constructor, taken by every Keras since 3.8 for that of a functional model.

    Only of such classes does Keras save the graph; it looks at the arguments, and older releases at those of a
    wrapper around their own constructor.
    """

    @functools.wraps(init)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)

    return wrapper


@keras.saving.register_keras_serializable(package="keras_bilinear")
class AlternatingModel(AlternatingTraining, keras.Model):
    """A functional Keras model with `BilinearDense` layers whose factors take turns in training.

    Every other variable, such as the kernels of a convolutional backbone, moves in every step.

    Args:
        inputs: Input of the graph, as for `keras.Model`.
        outputs: Output of the graph.

    Raises:
        ValueError: if no layer of the graph is a `BilinearDense`, or for other arguments: a dtype is its layers'.

    Example:
        >>> image = keras.Input((28, 28, 1))
        >>> maps = keras.layers.Conv2D(1, 5, activation="relu")(image)
        >>> model = AlternatingModel(image, BilinearDense(10, rank=3, activation="softmax")(maps))
        >>> model.compile("adam", "sparse_categorical_crossentropy")
    """

    @like_a_functional_model
    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, **kwargs: Any):
        if set(kwargs) - {"trainable"}:  # which Keras takes and ignores
            raise ValueError(f"Expected `inputs`, `outputs`, `name` and `trainable`. Received: {sorted(kwargs)}")
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        layers = bilinear_layers(self)
        if not layers:
            raise ValueError("Expected a graph with at least one BilinearDense layer. Received: none")
        self._start_schedule(num_blocks=sum(2 * layer.rank for layer in layers))

    def _check_objective(self, optimizer: Any, loss: Any) -> None:
        if isinstance(optimizer, BlockLineSearch):
            raise ValueError(
                "BlockLineSearch needs logits that are a bilinear function of the input images, with nothing "
                "in between. Expected a BilinearSoftmaxRegression or BilinearLogisticRegression; compile this "
                "model with a Keras optimizer such as 'adam'."
            )
        for output, its_loss in zip(self.outputs, losses_by_output(loss, self.output_names), strict=False):
            for layer in self.layers:
                activation = (
                    "softmax" if isinstance(layer, keras.layers.Softmax) else getattr(layer, "activation", None)
                )
                name = getattr(activation, "__name__", activation)
                if layer.output is output and isinstance(name, str):
                    check_from_logits(its_loss, is_probability=name in ("softmax", "sigmoid"))
