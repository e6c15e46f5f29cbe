"""What is known of a model and of its files: values only, ready for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_bilinear.export.files import litert
from keras_bilinear.export.inference_graph import ImageModel, inference_graph
from keras_bilinear.export.quantization import CALIBRATED
from keras_bilinear.export.verification import KernelReport
from keras_bilinear.models.regression import ImageRegression
from keras_bilinear_export.delegation import delegated_operators
from keras_bilinear_export.dense import DenseFile
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
class DenseFacts:
    """A file of Flatten + Dense with the same function, for "1" image a call or for "any" number.

    Attributes:
        operators: In order.
        delegated: How many of them XNNPACK computes.
        microseconds: Median time of a call with one image; None if it was not measured.
    """

    variant: str
    batch: str
    bytes: int
    operators: tuple[str, ...]
    delegated: int
    microseconds: float | None


@dataclass(frozen=True)
class FileFacts:
    """A file of the model; `operators`, `delegated` and `microseconds` as in `DenseFacts`.

    Attributes:
        bytes_to_dense: Its size over that of Flatten + Dense in float32; None for networks, as the next two.
        time_to_dense: Its time over that of Flatten + Dense for one image a call, in int8 for a file that computes
            in whole numbers, in float32 otherwise.
        time_to_dense_any: The same over Flatten + Dense for any number, which is what Keras' own export writes.
        weights: Types of its weights, biases apart.
        arena: Bytes of memory it works in on TensorFlow Lite Micro; None if that cannot run it or is not there.
        default, reference: Differences from Keras under the two sets of kernels.
    """

    name: str
    variant: str
    layout: str
    bytes: int
    bytes_to_dense: float | None
    microseconds: float | None
    time_to_dense: float | None
    time_to_dense_any: float | None
    parameters: int
    weights: tuple[str, ...]
    operators: tuple[str, ...]
    delegated: int
    arena: int | None
    default: KernelReport
    reference: KernelReport

    def __str__(self) -> str:
        return f"{self.variant} {self.layout}"


def model_facts(model: ImageModel, layouts: Sequence[str]) -> ModelFacts:
    """Sizes of the model in each layout, whatever of it was written."""
    graphs = {layout: inference_graph(model, layout) for layout in layouts}
    image, K = next((graph.image_shape, graph.units) for graph in graphs.values())
    L = getattr(model, "rank", None)
    costs = None
    if isinstance(model, ImageRegression):
        M, N = model.image_size
        costs = {layout: multiply_adds(M, N, K, L, layout) for layout in layouts}
    return ModelFacts(
        kind=type(model).__name__,
        image=image,
        outputs=K,
        rank=L,
        parameters={layout: graph.parameters for layout, graph in graphs.items()},
        multiply_adds=costs,
    )


def multiply_adds(M: int, N: int, K: int, L: int | None, layout: str) -> int:
    """Factored: X times L K columns of N numbers, then sums over M L for each class. Merged: a weight a pixel."""
    return M * N * K if L is None or layout == "merged" else M * (N + 1) * L * K


def dense_facts(file: DenseFile, microseconds: float | None) -> DenseFacts:
    """What is to be said of one file of Flatten + Dense."""
    return DenseFacts(
        variant=file.variant,
        batch=file.batch,
        bytes=len(file.content),
        operators=litert.operators(file.content),
        delegated=len(delegated_operators(file.content)),
        microseconds=microseconds,
    )


def file_facts(file: Written, microseconds: float | None, dense: Mapping[tuple[str, str], DenseFacts]) -> FileFacts:
    """What is to be said of one file; `dense` by variant and batch, empty for networks."""
    peer = "int8" if file.variant in CALIBRATED else "float32"
    base, one, any_number = (dense.get(key) for key in (("float32", "1"), (peer, "1"), (peer, "any")))
    proof = file.export.verification
    assert proof is not None  # every file is exported with images that verify it
    return FileFacts(
        name=file.name,
        variant=file.variant,
        layout=file.layout,
        bytes=file.export.bytes,
        bytes_to_dense=None if base is None else file.export.bytes / base.bytes,
        microseconds=microseconds,
        time_to_dense=ratio(microseconds, one),
        time_to_dense_any=ratio(microseconds, any_number),
        parameters=file.export.parameters,
        weights=weight_types(file.content),
        operators=file.export.ops,
        delegated=len(delegated_operators(file.content)),
        arena=arena(file.content),
        default=proof.default,
        reference=proof.reference,
    )


def ratio(microseconds: float | None, dense: DenseFacts | None) -> float | None:
    """A time over that of a dense file, if both are known."""
    if microseconds is None or dense is None or dense.microseconds is None:
        return None
    return microseconds / dense.microseconds


def arena(content: bytes) -> int | None:
    """The peak arena on a microcontroller, where it can be found out."""
    try:
        return arena_size(content)
    except (ImportError, ValueError):
        return None


def weight_types(content: bytes) -> tuple[str, ...]:
    """Types of the constants with two axes or more, which leaves out biases and single numbers."""
    return tuple(sorted({kind for kind, shape in litert.stored_weights(content) if len(shape) > 1}))
