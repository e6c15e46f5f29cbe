"""Looks for the smallest arena in which TensorFlow Lite Micro runs the TFLite file on stdin.

argv: an arena that is too small and one that is not, in steps of 16 bytes. Every line of the output is such a pair,
narrower each time. A program of its own, because the interpreter may end the process instead of raising where the
arena is too small: the caller goes on from the last line.
"""

import sys

import numpy as np

STEP = 16
"""Bytes; the interpreter aligns what it keeps in the arena to them."""


def main() -> None:
    """Bisects until the two are neighbours."""
    content = sys.stdin.buffer.read()
    low, high = int(sys.argv[1]), int(sys.argv[2])
    print(low, high, flush=True)
    while high - low > 1:
        tried = (low + high) // 2
        low, high = (low, tried) if runs(content, tried * STEP) else (tried, high)
        print(low, high, flush=True)


def runs(content: bytes, arena: int) -> bool:
    """Whether one inference of a black image succeeds in so many bytes."""
    from tflite_micro import runtime

    try:
        interpreter = runtime.Interpreter.from_bytes(content, arena_size=arena)
        image = interpreter.get_input_details(0)
        interpreter.set_input(np.zeros(image["shape"], image["dtype"]), 0)
        interpreter.invoke()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main()
