"""Files without what no runtime reads: on a small device a third of a file is not weights."""

from typing import Any

from keras_bilinear.export.litert import has_data, indices, packed, unpacked

OF_THE_CONVERTER = b"CONVERSION_METADATA"
"""An entry of the metadata that tells how TensorFlow has converted."""


def slim(content: bytes) -> bytes:
    """The same file: names of inner tensors, empty buffers and notes of the converter are left out.

    Inputs and outputs keep names, those of the signature.
    """
    file = unpacked(content)
    file.metadata = [entry for entry in file.metadata or [] if entry.name != OF_THE_CONVERTER]
    for graph in file.subgraphs:
        for tensor in graph.tensors:
            tensor.name = None
    for signature in file.signatureDefs or []:
        for place in [*signature.inputs, *signature.outputs]:
            file.subgraphs[signature.subgraphIndex].tensors[place.tensorIndex].name = place.name
    keep_buffers_in_use(file)
    return packed(file)


def keep_buffers_in_use(file: Any) -> None:
    """Leaves the buffers that hold something, and the first, which stands for all that hold nothing."""
    users = [user for graph in file.subgraphs for user in graph.tensors] + (file.metadata or [])
    full = sorted(indices(user.buffer for user in users if has_data(file.buffers[user.buffer])))
    for user in users:
        user.buffer = full.index(user.buffer) + 1 if user.buffer in full else 0
    file.buffers = [file.buffers[0], *(file.buffers[i] for i in full)]
