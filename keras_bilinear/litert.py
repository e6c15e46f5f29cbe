"""Reading and labelling TFLite files with LiteRT, an optional dependency."""

import json
import struct
from typing import Any

import numpy as np

METADATA = "keras_bilinear"
"""Name of the entry in a file's metadata that says how the file wants to be used, as JSON."""
ABSENT = -1
"""The place of an input that an operator does without."""


def operators(content: bytes) -> tuple[str, ...]:
    """The operators of a TFLite file in order, as the file names them; "CUSTOM:name" for one not built in."""
    file = unpacked(content)
    names = {code: name for name, code in vars(schema().BuiltinOperator).items() if isinstance(code, int)}
    # Codes up to 127 are kept in the older, 8-bit field.
    codes = [max(kind.builtinCode, kind.deprecatedBuiltinCode) for kind in file.operatorCodes]
    kinds = [
        names.get(code, f"CUSTOM:{code}")
        if kind.customCode is None
        else f"CUSTOM:{kind.customCode.decode(errors='replace')}"
        for code, kind in zip(codes, file.operatorCodes, strict=True)
    ]
    return tuple(kinds[operator.opcodeIndex] for graph in file.subgraphs for operator in graph.operators)


def stored_weights(content: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of every constant of a file: [("INT8", (40, 28)), ("FLOAT32", (10,))].

    Whole numbers of 32 or 64 bits are left out: they are shapes, or the biases of integer operators.
    """
    file = unpacked(content)
    names = {code: name for name, code in vars(schema().TensorType).items() if isinstance(code, int)}
    tensors = [tensor for graph in file.subgraphs for tensor in graph.tensors]
    kinds = [
        (names.get(tensor.type, str(tensor.type)), tensor)
        for tensor in tensors
        if has_data(file.buffers[tensor.buffer])
    ]
    # A single number has no shape.
    return [
        (kind, () if tensor.shape is None else tuple(map(int, tensor.shape)))
        for kind, tensor in kinds
        if kind not in ("INT32", "INT64")
    ]


def has_data(buffer: Any) -> bool:
    """Whether a buffer of the file holds anything: a tensor without is computed when the file runs."""
    return buffer.data is not None and len(buffer.data) > 0


def metadata(content: bytes) -> dict[str, Any]:
    """What `with_metadata` has written into a file; empty for any other file.

    Raises:
        ValueError: if the entry is there, but holds no JSON object.
    """
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
    import flatbuffers  # comes with LiteRT

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
    builder = flatbuffers.Builder(len(content) + len(text) + 1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def check_structure(content: bytes) -> None:
    """Raises a ValueError for damage on which LiteRT may end the process, or answer at random."""
    file = unpacked(content)
    try:
        for signature in file.signatureDefs or []:
            tensors = file.subgraphs[signature.subgraphIndex].tensors
            for place in [*signature.inputs, *signature.outputs]:
                tensors[place.tensorIndex]
        sound = all(is_computable(graph, file) for graph in file.subgraphs)
    except (IndexError, TypeError) as error:
        raise ValueError(
            f"Expected a TFLite file. Received: one with a place that does not exist ({error})"
        ) from error
    if not sound:
        raise ValueError("Expected a TFLite file. Received: one whose operators read what no other has written")


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


def indices(vector: Any) -> set[int]:
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
        raise ImportError(
            'Reading TFLite files needs ai-edge-litert: pip install "keras-bilinear[export]"'
        ) from error
    return ai_edge_litert
