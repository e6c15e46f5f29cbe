"""A TFLite file for a microcontroller: its C++ sources, its arena, and its scores on TensorFlow Lite Micro here."""

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bilinear.export import temporary_sibling
from keras_bilinear_export import firmware
from keras_bilinear_export.arena_probe import STEP
from keras_bilinear_export.micro_model import MicroModel, read_model

PROBE = Path(__file__).with_name("arena_probe.py")
CANDIDATES = 64
"""Images of noise among which those for the check of the firmware are chosen."""
LARGEST_ARENA = 2**26
"""64 MiB, more memory than any microcontroller has."""


@dataclass(frozen=True)
class FirmwareReport:
    """What was written: the files, the bytes of model and arena, and the operators to register.

    `arena_bytes` was measured with the reference kernels; the header adds the `scratch_bytes` of CMSIS-NN.
    """

    files: tuple[Path, ...]
    model_bytes: int
    arena_bytes: int
    scratch_bytes: int
    operators: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{', '.join(str(path) for path in self.files)}: model {self.model_bytes:,} bytes, arena "
            f"{self.arena_bytes:,} + {self.scratch_bytes:,} bytes; {', '.join(self.operators)}"
        )


def write_firmware(
    content: bytes,
    folder: str | os.PathLike[str],
    name: str = "classifier",
    images: np.ndarray | None = None,
) -> FirmwareReport:
    """Writes `NAME_model.h`, `NAME_model.cc`, `NAME_classify.cc` and `NAME_check.cc` for a TFLite file.

    What is written for different names goes into one program.

    Args:
        content: The bytes of a float32, int8 or int16x8 file that `export_tflite` wrote for one image a call.
        folder: Where to write, existing. Files of these names are replaced.
        name: What files and C++ identifiers start with.
        images: Three or more images (T, M, N) of camera pixels, uint8. The firmware carries the first three and
            their scores, and checks itself by them. By default noise, of which the file is least sure.

    Returns:
        What was written.

    Raises:
        ValueError: if the file, the name or the images are unfit, TensorFlow Lite Micro does not run the file, or a
            folder lies where a file is to be written.
        FileNotFoundError: if the folder does not exist.
        ImportError: if tflite-micro or ai-edge-litert is not installed.
    """
    prefix = firmware.checked_prefix(name)
    target = Path(folder).resolve()
    if not target.is_dir():
        raise FileNotFoundError(f"Expected an existing folder. Received: folder={str(folder)!r}")
    model = read_model(content)
    known = least_sure(model) if images is None else checked_images(model, images)
    arena = measured_arena(model)
    sources = {
        f"{prefix}_model.h": firmware.header(model, prefix, arena),
        f"{prefix}_model.cc": firmware.data(model, prefix),
        f"{prefix}_classify.cc": firmware.example(model, prefix),
        f"{prefix}_check.cc": firmware.check(model, prefix, known, camera_scores(model, known)),
    }
    replace_files({target / file: text for file, text in sources.items()})
    files = tuple(target / file for file in sources)
    return FirmwareReport(files, len(content), arena, model.scratch, model.operators)


def checked_images(model: MicroModel, images: np.ndarray) -> np.ndarray:
    """The first three, or a ValueError."""
    x = np.asarray(images)
    M, N = model.image_size
    if x.dtype != np.uint8 or x.shape[1:] != (M, N) or len(x) < firmware.KNOWN:
        raise ValueError(
            f"Expected {firmware.KNOWN} or more `images` (T, {M}, {N}) of camera pixels, uint8. "
            f"Received: {x.dtype} {x.shape}"
        )
    return x[: firmware.KNOWN]


def least_sure(model: MicroModel) -> np.ndarray:
    """Noise, always the same, whose scores lie closest together: those that say 0 or 1 hide a wrong kernel."""
    noise = np.random.default_rng(0).integers(256, size=(CANDIDATES, *model.image_size), dtype="uint8")
    spread = np.abs(camera_scores(model, noise) - (0.5 if model.classes == 1 else 0.0)).max(axis=1)
    return noise[np.argsort(spread, kind="stable")[: firmware.KNOWN]]


def camera_scores(model: MicroModel, pixels: np.ndarray) -> np.ndarray:
    """What `classify` of the firmware gives for images of camera pixels, (T, K)."""
    low, high = (np.float32(end) for end in model.input_range)
    return scores(model.content, low + pixels * ((high - low) / np.float32(255)))


def arena_size(content: bytes) -> int:
    """Bytes of the smallest tensor arena in which the file runs on this machine's TensorFlow Lite Micro.

    Tried out, because what the interpreter records leaves out the memory that it needs while it prepares the file.

    Raises:
        ValueError: as `write_firmware` does.
        ImportError: as `write_firmware` does.
    """
    return measured_arena(read_model(content))


def scores(content: bytes, x: np.ndarray) -> np.ndarray:
    """What TensorFlow Lite Micro computes for images x (T, M, N) in the file's units: float32 (T, K), dequantised.

    Raises:
        ValueError: as `write_firmware` does, or if x has another shape.
        ImportError: as `write_firmware` does.
    """
    model = read_model(content)
    X = np.asarray(x, dtype="float32")
    if X.ndim != 3 or X.shape[1:] != model.image_size:
        M, N = model.image_size
        raise ValueError(f"Expected images (T, {M}, {N}). Received: {X.shape}")
    interpreter = loaded(model)
    stored = np.empty((len(X), model.classes), model.output.dtype)
    for t, image in enumerate(model.image.quantized(X)):
        interpreter.set_input(image[None], 0)
        interpreter.invoke()
        stored[t] = interpreter.get_output(0)[0]
    return model.output.dequantized(stored)


def measured_arena(model: MicroModel) -> int:
    """The smallest arena that runs the model, in bytes."""
    loaded(model)  # Raises if no arena is large enough.
    low, high = 0, LARGEST_ARENA // STEP
    while high - low > 1:
        command = [sys.executable, str(PROBE), str(low), str(high)]
        probe = subprocess.run(command, input=model.content, capture_output=True, timeout=60, check=False)
        if probe.returncode > 0:
            raise RuntimeError(f"{PROBE.name}: {probe.stderr.decode(errors='replace')}")
        low, high = (int(steps) for steps in probe.stdout.splitlines()[-1].split())
        if probe.returncode < 0:  # A signal ended it in the arena that it tried.
            low = (low + high) // 2
    return high * STEP


def loaded(model: MicroModel) -> Any:
    """The interpreter in this process, with more memory than it needs."""
    try:
        return tflm().Interpreter.from_bytes(model.content, arena_size=LARGEST_ARENA)
    except RuntimeError as error:
        raise ValueError(f"Expected a file that TensorFlow Lite Micro runs. Received: {error}") from error


def tflm() -> Any:
    """The runtime of the package `tflite_micro`, an optional dependency."""
    try:
        from tflite_micro import runtime
    except ImportError as error:
        raise ImportError(
            "Running TensorFlow Lite Micro needs tflite-micro, for Linux on x86-64: pip install tflite-micro"
        ) from error
    return runtime


def replace_files(texts: dict[Path, str]) -> None:
    """Writes all files beside their places first, then puts them there: all or none."""
    folders = [str(path) for path in texts if path.is_dir()]
    if folders:
        raise ValueError(f"Expected files to write or replace. Received: folders {', '.join(folders)}")
    with contextlib.ExitStack() as stack:
        new = {path: stack.enter_context(temporary_sibling(path)) for path in texts}
        for path, text in texts.items():
            new[path].write_text(text, encoding="ascii")
        for path in texts:
            os.replace(new[path], path)
