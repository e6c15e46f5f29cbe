"""What is known of a model and of its files: values only, ready for JSON."""

import math
from dataclasses import dataclass

import keras

from keras_bilinear.export import KernelReport, exportable, inference_graph, litert, slim, tflite_content
from keras_bilinear_export.exporting import Written
from keras_bilinear_export.microcontroller import arena_size


@dataclass(frozen=True)
class ModelFacts:
    """What was exported.

    Attributes:
        kind: Its class.
        image: M and N, and channels if it takes them.
        outputs: K; 1 for a binary model.
        rank: L, or None without.
        parameters: How many numbers it has, by layout.
        multiply_adds: Those of one image up to the logits, by layout; None for networks.
    """

    kind: str
    image: tuple[int, ...]
    outputs: int
    rank: int | None
    parameters: dict[str, int]
    multiply_adds: dict[str, int] | None


@dataclass(frozen=True)
class FileFacts:
    """A file of the model.

    Attributes:
        bytes_to_dense: Its size over that of Flatten + Dense in float32; None for networks.
        microseconds: Median time of a call with one image; None if it was not measured.
        weights: Types of its weights, biases apart.
        operators: In order.
        arena: Bytes of memory it works in on TensorFlow Lite Micro; None if that cannot run it or is not there.
        default, reference: Differences from Keras under the two sets of kernels.
    """

    name: str
    variant: str
    layout: str
    bytes: int
    bytes_to_dense: float | None
    microseconds: float | None
    parameters: int
    weights: tuple[str, ...]
    operators: tuple[str, ...]
    arena: int | None
    default: KernelReport
    reference: KernelReport

    def __str__(self) -> str:
        return f"{self.variant} {self.layout}"


def model_facts(model: keras.Model) -> ModelFacts:
    """Sizes of the model in each layout, whatever of it was written."""
    source = exportable(model)
    K, L, costs = source.units, None if source.factors is None else len(source.factors[0]), None
    if source.network is None:
        M = source.image_shape[0] if source.factors is None else source.factors[0].shape[1]
        pixels = math.prod(source.image_shape)
        costs = {layout: multiply_adds(M, pixels // M, K, L, layout) for layout in source.layouts}
    return ModelFacts(
        kind=type(model).__name__,
        image=source.image_shape,
        outputs=K,
        rank=L,
        parameters={layout: inference_graph(model, layout).parameters for layout in source.layouts},
        multiply_adds=costs,
    )


def multiply_adds(M: int, N: int, K: int, L: int | None, layout: str) -> int:
    """Factored: X times L K columns of N numbers, then sums over M L for each class. Merged: a weight a pixel."""
    return M * N * K if L is None or layout == "merged" else M * (N + 1) * L * K


def dense_bytes(model: keras.Model) -> int | None:
    """The size of Flatten + Dense with the weights of one of our models, which is what it is when merged."""
    ours = exportable(model).network is None
    return len(slim(tflite_content(inference_graph(model, "merged")))) if ours else None


def file_facts(file: Written, microseconds: float | None, dense_bytes: int | None) -> FileFacts:
    """What is to be said of one file; `dense_bytes` is the size of Flatten + Dense, if there is one."""
    proof = file.export.verification
    assert proof is not None  # every file is exported with images that verify it
    return FileFacts(
        name=file.name,
        variant=file.variant,
        layout=file.layout,
        bytes=file.export.bytes,
        bytes_to_dense=None if dense_bytes is None else file.export.bytes / dense_bytes,
        microseconds=microseconds,
        parameters=file.export.parameters,
        # With two axes or more, which leaves out biases and single numbers.
        weights=tuple(sorted({kind for kind, shape in litert.stored_weights(file.content) if len(shape) > 1})),
        operators=file.export.ops,
        arena=arena(file.content),
        default=proof.default,
        reference=proof.reference,
    )


def arena(content: bytes) -> int | None:
    """The peak arena on a microcontroller, where it can be found out."""
    try:
        return arena_size(content)
    except (ImportError, ValueError):
        return None
