"""Networks with bilinear layers, whose factors take turns or move all at once."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_bilinear.arguments import boolean
from keras_bilinear.models.alternation import AlternatingTraining
from keras_bilinear.parts.layers_within import factored_layers
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
    """A functional Keras model with `BilinearDense` or `BilinearMap` layers whose factors take turns in training.

    Every other variable, such as the kernels of a convolutional backbone, moves in every step. Turns are what the
    convex blocks of the paper want; networks learn faster all at once, in a plain `keras.Model` or, with the logs
    and the report of this package, by `alternate=False`.

    Args:
        inputs: Input of the graph, as for `keras.Model`.
        outputs: Output of the graph.
        alternate: Whether the factors take turns. If not, one block, "all", is everything that is trained.

    Raises:
        ValueError: if no layer of the graph is bilinear, or for other arguments: a dtype is its layers'.

    Example:
        >>> image = keras.Input((28, 28, 1))
        >>> maps = keras.layers.Conv2D(1, 5, activation="relu")(image)
        >>> model = AlternatingModel(image, BilinearDense(10, rank=3, activation="softmax")(maps))
        >>> model.compile("adam", "sparse_categorical_crossentropy")
    """

    @like_a_functional_model
    def __init__(
        self, inputs: Any, outputs: Any, name: str | None = None, *, alternate: bool = True, **kwargs: Any
    ):
        if set(kwargs) - {"trainable"}:  # which Keras takes and ignores
            expected = "`inputs`, `outputs`, `name`, `alternate` and `trainable`"
            raise ValueError(f"Expected {expected}. Received: {sorted(kwargs)}")
        alternate = boolean("alternate", alternate)
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        if not factored_layers(self):
            raise ValueError("Expected a graph with at least one BilinearDense or BilinearMap. Received: none")
        self._alternate = alternate
        self._start_schedule(num_blocks=len(self._blocks))

    @property
    def alternate(self) -> bool:
        """Whether the factors take turns."""
        return self._alternate

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alternate": self.alternate}

    def _check_objective(self, optimizer: Any, loss: Any) -> None:
        if isinstance(optimizer, BlockLineSearch):
            raise ValueError(
                "BlockLineSearch needs logits that are a bilinear function of the input images, with nothing "
                "in between. Expected a BilinearSoftmaxRegression or BilinearLogisticRegression; compile this "
                "model with a Keras optimizer such as 'adam', and solve the last layer, once all others are "
                "frozen, by `keras_bilinear.fit_head`."
            )
        for output, its_loss in zip(self.outputs, losses_by_output(loss, self.output_names), strict=False):
            for layer in self.layers:
                activation = (
                    "softmax" if isinstance(layer, keras.layers.Softmax) else getattr(layer, "activation", None)
                )
                name = getattr(activation, "__name__", activation)
                if layer.output is output and isinstance(name, str):
                    check_from_logits(its_loss, is_probability=name in ("softmax", "sigmoid"))
