"""What a microcontroller must know of a TFLite file, and whether TensorFlow Lite Micro can run it at all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bilinear.export import checked_facts, litert, loaded

RESOLVER_METHODS = {
    "ADD": "AddAdd",
    "AVERAGE_POOL_2D": "AddAveragePool2D",
    "CONV_2D": "AddConv2D",
    "DEPTHWISE_CONV_2D": "AddDepthwiseConv2D",
    "DEQUANTIZE": "AddDequantize",
    "FULLY_CONNECTED": "AddFullyConnected",
    "LOGISTIC": "AddLogistic",
    "MAX_POOL_2D": "AddMaxPool2D",
    "MUL": "AddMul",
    "QUANTIZE": "AddQuantize",
    "RELU": "AddRelu",
    "RESHAPE": "AddReshape",
    "SOFTMAX": "AddSoftmax",
    "SUM": "AddSum",
    "TANH": "AddTanh",
    "TRANSPOSE": "AddTranspose",
}
"""Operators that exported files can hold, and the method of `MicroMutableOpResolver` that registers each."""


@dataclass(frozen=True)
class Tensor:
    """Numbers as they lie in memory: value = (stored - zero_point) * scale, the identity for float32."""

    dtype: np.dtype
    scale: np.float32
    zero_point: int

    def quantized(self, values: np.ndarray) -> np.ndarray:
        """float32 values as they are stored: at the nearest step, halves upwards, clipped to the type's range."""
        if self.dtype == np.float32:
            return values
        ends = np.iinfo(self.dtype)
        steps = np.floor(values / self.scale + np.float32(0.5)) + np.float32(self.zero_point)
        return np.clip(steps, ends.min, ends.max).astype(self.dtype)

    def dequantized(self, stored: np.ndarray) -> np.ndarray:
        """Stored numbers as float32 values."""
        return (stored.astype("float32") - np.float32(self.zero_point)) * self.scale


@dataclass(frozen=True)
class MicroModel:
    """A TFLite file for one image of M x N pixels at a time and K outputs.

    `input_range` are the least and the largest pixel the file expects. `labels` names the classes, or is None.
    `scratch` are the bytes that CMSIS-NN asks for on top of the arena of the reference kernels.
    """

    content: bytes
    image_size: tuple[int, int]
    classes: int
    image: Tensor
    output: Tensor
    operators: tuple[str, ...]
    input_range: tuple[float, float]
    labels: tuple[str, ...] | None
    scratch: int


def read_model(content: bytes) -> MicroModel:
    """Reads a float32, int8 or int16x8 file written by `export_tflite`, or raises a ValueError for any other."""
    # LiteRT verifies the bytes, after what may end it; TensorFlow Lite Micro does not, and crashes on wrong ones.
    litert.check_structure(content)
    interpreter = loaded(content, "default")
    kinds = tuple(dict.fromkeys(litert.operators(content)))
    unknown = [kind for kind in kinds if kind not in RESOLVER_METHODS]
    if unknown:
        raise ValueError(f"Expected operators among {', '.join(RESOLVER_METHODS)}. Received: {', '.join(unknown)}")
    file = litert.unpacked(content)
    check_kind(file)
    image, output = single(interpreter.get_input_details()), single(interpreter.get_output_details())
    shapes = [details["shape_signature"].tolist() for details in (image, output)]
    if [len(shape) for shape in shapes] != [3, 2] or any(shape[0] != 1 for shape in shapes):
        raise ValueError(f"Expected images (1, M, N) and outputs (1, K), batch_size=1. Received: {shapes}")
    (_, M, N), (_, K) = shapes
    facts = checked_facts(content, K)
    labels = facts.get("labels")
    if any("\0" in label for label in labels or ()):
        raise ValueError(f"Expected `labels` without NUL, which ends a string of C. Received: {labels!r}")
    low, high = facts.get("input_range", (0.0, 1.0))
    return MicroModel(
        content=content,
        image_size=(M, N),
        classes=K,
        image=tensor(image),
        output=tensor(output),
        operators=kinds,
        input_range=(low, high),
        labels=None if labels is None else tuple(labels),
        scratch=cmsis_scratch(file),
    )


def check_kind(file: Any) -> None:
    """Raises a ValueError for weights that TensorFlow Lite Micro cannot multiply."""
    types = litert.schema().TensorType
    is_half = any(tensor.type == types.FLOAT16 for graph in file.subgraphs for tensor in graph.tensors)
    if is_half or any((x.type, w.type) == (types.FLOAT32, types.INT8) for _, x, w in products(file)):
        raise ValueError(
            "Expected a float32, int8 or int16x8 file: TensorFlow Lite Micro prepares no other. "
            f'Received: weights as quantize="{"float16" if is_half else "dynamic"}" writes them'
        )


def products(file: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, first input, second input) of every operator that has two."""
    for graph in file.subgraphs:
        for operator in graph.operators:
            if len(operator.inputs) > 1:
                first, second = (graph.tensors[index] for index in operator.inputs[:2])
                yield litert.operator_name(operator, file), first, second


def single(details: list[dict[str, Any]]) -> dict[str, Any]:
    """The only input or output."""
    if len(details) != 1:
        raise ValueError(f"Expected one input and one output. Received: {[each['name'] for each in details]}")
    return details[0]


def tensor(details: dict[str, Any]) -> Tensor:
    """How an input or output is stored; LiteRT gives float32 tensors a scale of 0."""
    scale, zero_point = details["quantization"]
    return Tensor(np.dtype(details["dtype"]), np.float32(scale if scale else 1.0), int(zero_point))


def cmsis_scratch(file: Any) -> int:
    """Bytes of scratch of CMSIS-NN on cores with DSP instructions: its int8 depthwise kernel takes two a weight."""
    sizes = [
        2 * int(np.prod(weights.shape))
        for name, image, weights in products(file)
        if name == "DEPTHWISE_CONV_2D" and litert.type_name(image) == "INT8"
    ]
    return max(sizes, default=0)
