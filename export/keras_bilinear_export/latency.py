"""How long files take for one image on this machine."""

import timeit
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bilinear.export import litert, quantizer

CALLS = 10
"""Calls timed at once: few enough that most are never interrupted, and the clock itself does not count."""


def median_latencies(files: Sequence[bytes], image: np.ndarray, runs: int) -> list[float]:
    """Median time of `invoke` for each file in microseconds: one thread, the image (M, N) set once.

    The files take turns, so that whatever else the machine does slows all of them alike.
    """
    calls = [ready(content, image).invoke for content in files]
    seconds = [[timeit.timeit(invoke, number=CALLS) for invoke in calls] for _ in range(-(-runs // CALLS))]
    return (np.median(seconds, axis=0) / CALLS * 1e6).tolist()


def ready(content: bytes, image: np.ndarray) -> Any:
    """An interpreter that holds the image and has run once."""
    interpreter = litert.runtime().interpreter.Interpreter(model_content=content, num_threads=1)
    tensor = interpreter.get_input_details()[0]
    interpreter.resize_tensor_input(tensor["index"], (1, *image.shape))
    interpreter.allocate_tensors()
    interpreter.set_tensor(tensor["index"], quantizer(tensor)(image[None]))
    interpreter.invoke()
    return interpreter
