"""Reading and labelling TFLite files with LiteRT, an optional dependency."""

import json
import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

METADATA = "keras_bilinear"
"""Name of the entry in a file's metadata that says how the file wants to be used, as JSON."""
MOST_NUMBERS = 2**28
"""What a tensor may have: 1 GiB of float32, for runtimes count bytes in 32 bits."""
ABSENT = -1
"""The place of an input that an operator does without."""


def operators(content: bytes) -> tuple[str, ...]:
    """The operators of a TFLite file in order, as the file names them; "CUSTOM:name" for one not built in."""
    file = unpacked(content)
    return tuple(operator_name(operator, file) for graph in file.subgraphs for operator in graph.operators)


def operator_name(operator: Any, file: Any) -> str:
    """What an operator does."""
    entry = file.operatorCodes[operator.opcodeIndex]
    if entry.customCode is not None:
        return f"CUSTOM:{entry.customCode.decode(errors='replace')}"
    names = {code: name for name, code in vars(schema().BuiltinOperator).items() if isinstance(code, int)}
    # Codes up to 127 are kept in the older, 8-bit field.
    code = max(entry.builtinCode, entry.deprecatedBuiltinCode)
    return names.get(code, f"CUSTOM:{code}")


def float_constants(content: bytes) -> Iterator[tuple[str, np.ndarray, list[tuple[str, int]]]]:
    """Name and numbers of every float32 constant of a file, and the operators that read it, each at which place."""
    file = unpacked(content)
    for graph in file.subgraphs:
        for i, tensor in enumerate(graph.tensors):
            buffer = file.buffers[tensor.buffer]
            if tensor.type == schema().TensorType.FLOAT32 and has_data(buffer):
                numbers = np.frombuffer(bytes(buffer.data), "<f4")
                readers = [
                    (operator_name(operator, file), list(operator.inputs).index(i))
                    for operator in graph.operators
                    if i in indices(operator.inputs)
                ]
                yield tensor.name.decode(errors="replace"), numbers.reshape(shape_of(tensor)), readers


def stored_weights(content: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of every constant of a file: [("INT8", (40, 28)), ("FLOAT32", (10,))].

    Whole numbers of 32 or 64 bits are left out: they are shapes, or the biases of integer operators.
    """
    file = unpacked(content)
    tensors = [tensor for graph in file.subgraphs for tensor in graph.tensors]
    stored = [(type_name(t), shape_of(t)) for t in tensors if has_data(file.buffers[t.buffer])]
    return [(kind, shape) for kind, shape in stored if kind not in ("INT32", "INT64")]


def type_name(tensor: Any) -> str:
    """The type of a tensor's numbers, as LiteRT calls it."""
    names = {code: name for name, code in vars(schema().TensorType).items() if isinstance(code, int)}
    return names.get(tensor.type, str(tensor.type))


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor; a single number has none."""
    return () if tensor.shape is None else tuple(map(int, tensor.shape))


def has_data(buffer: Any) -> bool:
    """Whether a buffer of the file holds anything: a tensor without is computed when the file runs."""
    return buffer.data is not None and len(buffer.data) > 0


def metadata(content: bytes) -> dict[str, Any]:
    """What `with_metadata` has written into a file, or a ValueError if that is no JSON; empty for any other."""
    file = unpacked(content)
    entries = [entry for entry in file.metadata or [] if entry.name == METADATA.encode()]
    if not entries:
        return {}
    try:
        facts = json.loads(bytes(file.buffers[entries[0].buffer].data))
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"Expected JSON in the metadata {METADATA!r}. Received: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"Expected a JSON object in the metadata {METADATA!r}. Received: {facts!r}")
    return facts


def with_metadata(content: bytes, facts: dict[str, Any]) -> bytes:
    """The same file with `facts` in place of those it had; the same facts give the same bytes."""
    file, entry = unpacked(content), schema().MetadataT()
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    entries = file.metadata or []
    # In the place of what was said before, which would stay in the file.
    places = [old.buffer for old in entries if old.name == METADATA.encode()] or [len(file.buffers)]
    if places[0] == len(file.buffers):
        file.buffers.append(schema().BufferT())
    file.buffers[places[0]].data = np.frombuffer(text, "uint8")
    entry.name, entry.buffer = METADATA, places[0]
    file.metadata = [*(old for old in entries if old.name != METADATA.encode()), entry]
    return packed(file)


def packed(file: Any) -> bytes:
    """The bytes of a file. Equal vectors, such as the shapes and scales of several tensors, are written once."""
    import flatbuffers  # comes with LiteRT

    class Sharing(flatbuffers.Builder):
        """Writes no vector twice."""

        def CreateNumpyVector(self, x: np.ndarray) -> int:
            key = x.dtype.str, x.tobytes()
            if key not in written:
                written[key] = super().CreateNumpyVector(x)
            return written[key]

    written: dict[tuple[str, bytes], int] = {}
    builder = Sharing(1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def check_structure(content: bytes) -> None:
    """Raises a ValueError for damage on which LiteRT may end the process, or answer at random."""
    file = unpacked(content)
    try:
        fault = next(faults(file), None)
    except (IndexError, TypeError) as error:
        fault = f"a place that does not exist ({error})"
    if fault:
        raise ValueError(f"Expected a TFLite file. Received: one with {fault}")


def faults(file: Any) -> Iterator[str]:
    """What is wrong with a file."""
    for graph in file.subgraphs:
        if not is_computable(graph, file):
            yield "operators that read what no other has written"
        yield from filter(None, map(tensor_fault, graph.tensors))
        if any(ends_the_process(operator, graph, file) for operator in graph.operators):
            yield "a soft-max of scores that are all the same, as those of a network are that is not fitted"
    if not all(is_of_its_graph(signature, file) for signature in file.signatureDefs or []):
        yield "a signature that is not about its inputs and outputs"


def tensor_fault(tensor: Any) -> str | None:
    """A size, a scale or a zero point that no tensor has."""
    shape, codes, kind = shape_of(tensor), tensor.quantization, type_name(tensor).lower()
    if min(shape, default=1) < 0 or math.prod(shape) > MOST_NUMBERS:
        return f"a tensor of shape {shape}"
    given = (None, None) if codes is None else (codes.scale, codes.zeroPoint)
    scales, zeros = (np.asarray([] if numbers is None else numbers) for numbers in given)
    ends = np.iinfo(kind if kind in ("int8", "uint8", "int16", "int32") else "int64")
    if np.all((scales >= 0) & (scales < np.inf)) and np.all((zeros >= ends.min) & (zeros <= ends.max)):
        return None
    return f"scales {scales} and zero points {zeros} of {kind}"


def ends_the_process(operator: Any, graph: Any, file: Any) -> bool:
    """Whether it is a soft-max of int8 numbers of so small a scale that LiteRT gives up, and everything with it."""
    if operator_name(operator, file) != "SOFTMAX":
        return False
    tensor = graph.tensors[operator.inputs[0]]
    scale = (
        1.0 if tensor.quantization is None or tensor.quantization.scale is None else tensor.quantization.scale[0]
    )
    beta = getattr(operator.builtinOptions, "beta", 1.0)
    return type_name(tensor) in ("INT8", "UINT8") and scale * beta <= 2.0**-26


def is_of_its_graph(signature: Any, file: Any) -> bool:
    """Whether a signature names the inputs and outputs of its graph, and no other tensors."""
    graph = file.subgraphs[signature.subgraphIndex]
    pairs = [(signature.inputs, graph.inputs), (signature.outputs, graph.outputs)]
    return all(indices(place.tensorIndex for place in named) == indices(given) for named, given in pairs)


def is_computable(graph: Any, file: Any) -> bool:
    """Whether each tensor is an input, a constant or the output of one operator, before any other reads it."""
    given, results = indices(graph.inputs), indices(graph.outputs)
    tensors = set(range(len(graph.tensors)))
    known = given | {i for i in tensors if is_known(graph.tensors[i], file)}
    for operator in graph.operators:
        file.operatorCodes[operator.opcodeIndex]
        inputs, outputs = indices(operator.inputs) - {ABSENT}, indices(operator.outputs)
        if not inputs <= known or not outputs <= tensors - known:
            return False
        known |= outputs
    return given | results <= known & tensors


def is_known(tensor: Any, file: Any) -> bool:
    """Whether a tensor has numbers before the file runs, or none at all."""
    return has_data(file.buffers[tensor.buffer]) or tensor.isVariable or 0 in indices(tensor.shape)


def indices(vector: Iterable[Any] | None) -> set[int]:
    """The numbers of a vector, which may be missing."""
    return set() if vector is None else set(map(int, vector))


def unpacked(content: bytes) -> Any:
    """The file as objects of LiteRT's schema, or a ValueError if it is no such file."""
    if content[4:8] != b"TFL3":
        raise ValueError(f"Expected a TFLite file. Received: {len(content):,} bytes of something else")
    try:
        return schema().ModelT.InitFromPackedBuf(content, 0)
    except (struct.error, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected a TFLite file. Received: a damaged one ({error})") from error


def schema() -> Any:
    """LiteRT's description of the file format."""
    return runtime().schema_py_generated


def runtime() -> Any:
    """The package `ai_edge_litert`, an optional dependency, with the two modules used here."""
    try:
        import ai_edge_litert.interpreter
        import ai_edge_litert.schema_py_generated
    except ImportError as error:
        raise ImportError("Reading TFLite files needs ai-edge-litert: pip install ai-edge-litert") from error
    return ai_edge_litert
