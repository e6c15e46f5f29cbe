"""Reading TFLite files with LiteRT, an optional dependency."""

from typing import Any


def operators(content: bytes) -> tuple[str, ...]:
    """The operators of a TFLite file in order, as the file names them; "CUSTOM:name" for one not built in."""
    schema = runtime().schema_py_generated
    file = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    # Codes up to 127 are kept in the older, 8-bit field.
    codes = [max(kind.builtinCode, kind.deprecatedBuiltinCode) for kind in file.operatorCodes]
    kinds = [
        names[code] if kind.customCode is None else f"CUSTOM:{kind.customCode.decode()}"
        for code, kind in zip(codes, file.operatorCodes, strict=True)
    ]
    return tuple(kinds[operator.opcodeIndex] for graph in file.subgraphs for operator in graph.operators)


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
