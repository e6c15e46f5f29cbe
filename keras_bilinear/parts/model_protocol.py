"""What monitoring and stopping read of the models, which they never import."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeGuard

import keras
import numpy as np

from keras_bilinear.maths.bilinear import Tensor
from keras_bilinear.parts.layers_within import factored_layers
from keras_bilinear.parts.schedule import BlockSchedule


class BlockModel(Protocol):
    """A `keras.Model` that trains block by block: a network, or one of the four regression models."""

    built: bool
    compiled: bool
    optimizer: Any
    loss: Any
    layers: Sequence[keras.layers.Layer]
    variables: list[keras.Variable]
    distribute_strategy: Any
    schedule: BlockSchedule
    _last_fit: Any  # a FitRecord or None
    _training_data: tuple[Any, Any, Any] | None  # images (T, M, N), labels, weights (T,) of a fit to arrays
    _streaming: Any  # the callback that takes the steps of a fit to a stream of images, or None
    _rank_is_automatic: bool

    @property
    def is_exact(self) -> bool: ...
    @property
    def block_names(self) -> list[str]: ...
    def build(self, input_shape: tuple[int | None, ...]) -> None: ...
    def filters(self) -> dict[str, np.ndarray]: ...  # W (K, M, N) by the name of the layer
    def penalty(self) -> Tensor: ...  # alpha R
    def _build_optimizer(self) -> None: ...


class RegressionModel(BlockModel, Protocol):
    """One of the four models with a single layer over the image, its `head`."""

    units: int
    alpha: float
    input_scale: float
    image_size: tuple[int, int]
    head: Any
    stop_training: bool

    @property
    def _trains_exactly(self) -> bool: ...
    def weight_matrices(self) -> np.ndarray: ...  # W (K, M, N)
    def _images(self, pixels: Tensor) -> Any: ...  # solver.images.Images
    def _solved(self, X: Any, samples: Any, active: Any, max_inner: int | None = None) -> Any: ...
    def _batches(self, dataset: Any) -> Iterator[tuple[Any, Any, Any]]: ...  # images, labels and weights of each
    def _checked(self, x: Any, y: Any, sample_weight: Any = None) -> tuple[Any, Any, Any]: ...


class BilinearModel(RegressionModel, Protocol):
    """BLR or BSR: the head is a `BilinearDense`."""

    rank: int
    penalty_name: str

    def factors(self) -> tuple[np.ndarray, np.ndarray]: ...  # A (L, M, K) and B (L, N, K)
    def ranks(self) -> np.ndarray: ...  # (K,)
    def canonicalize(self) -> None: ...


class LinearModel(RegressionModel, Protocol):
    """LLR or LSR: the head is a `keras.layers.Dense` on the pixels."""

    ridge: Any  # the penalty, whose alpha is a variable


def is_on_arrays(model: BlockModel) -> TypeGuard[RegressionModel]:
    """Whether a fit to arrays runs, whose data is at hand: only of regression models it is."""
    return model._training_data is not None


def is_linear(model: BlockModel) -> TypeGuard[LinearModel]:
    """Whether a built model has no bilinear layer."""
    return not factored_layers(model)


def expect_schedule(model: object) -> None:
    """Raises a ValueError if the model is not trained block by block."""
    if not isinstance(getattr(model, "schedule", None), BlockSchedule):
        raise ValueError("Expected a model that trains block by block, such as BilinearSoftmaxRegression.")
