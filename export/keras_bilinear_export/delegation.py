"""Which operators of a file LiteRT hands to XNNPACK, its fast library; the others run in plain kernels."""

from typing import Any

from keras_bilinear.export.files import litert


def delegated_operators(content: bytes) -> tuple[str, ...]:
    """The operators that the default delegate takes, in the order of the file."""
    interpreter = litert.runtime().interpreter.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    # No public method tells. What a delegate has taken stays in this list, followed by the delegates.
    nodes = interpreter._get_ops_details()
    operators = [node for node in nodes if node["op_name"] != "DELEGATE"]
    taken = {index for node in nodes[len(operators) :] for index in indices_within(node, operators)}
    return tuple(node["op_name"] for node in operators if node["index"] in taken)


def indices_within(delegate: dict[str, Any], operators: list[dict[str, Any]]) -> set[int]:
    """The operators on the way from the inputs of a delegate to its outputs."""
    inputs, wanted, found = set(delegate["inputs"]), set(delegate["outputs"]), set()
    for operator in reversed(operators):
        if wanted & set(operator["outputs"]):
            found.add(operator["index"])
            wanted |= set(operator["inputs"]) - inputs
    return found
