"""Reading and labelling TFLite files with LiteRT, an optional dependency."""

import json
from typing import Any

import numpy as np

METADATA = "keras_bilinear"
"""Name of the entry in a file's metadata that says how the file wants to be used, as JSON."""


def operators(content: bytes) -> tuple[str, ...]:
    """The operators of a TFLite file in order, as the file names them; "CUSTOM:name" for one not built in."""
    file = unpacked(content)
    names = {code: name for name, code in vars(schema().BuiltinOperator).items() if isinstance(code, int)}
    # Codes up to 127 are kept in the older, 8-bit field.
    codes = [max(kind.builtinCode, kind.deprecatedBuiltinCode) for kind in file.operatorCodes]
    kinds = [
        names[code] if kind.customCode is None else f"CUSTOM:{kind.customCode.decode()}"
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
    kinds = [(names[tensor.type], tensor) for tensor in tensors if has_data(file.buffers[tensor.buffer])]
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
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected JSON in the metadata {METADATA!r}. Received: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"Expected a JSON object in the metadata {METADATA!r}. Received: {facts!r}")
    return facts


def with_metadata(content: bytes, facts: dict[str, Any]) -> bytes:
    """The same file with `facts` in place of those it had; the same facts give the same bytes."""
    import flatbuffers  # comes with LiteRT

    file, buffer, entry = unpacked(content), schema().BufferT(), schema().MetadataT()
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    buffer.data = np.frombuffer(text.encode(), "uint8")
    entry.name, entry.buffer = METADATA, len(file.buffers)
    file.buffers.append(buffer)
    file.metadata = [*(old for old in file.metadata or [] if old.name != METADATA.encode()), entry]
    builder = flatbuffers.Builder(len(content) + len(buffer.data) + 1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def unpacked(content: bytes) -> Any:
    """The file as objects of LiteRT's schema."""
    return schema().ModelT.InitFromPackedBuf(content, 0)


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
