"""Classifies images with a TFLite file of keras_bilinear on a small device: one file to copy, no TensorFlow.

    python classify.py model.tflite image.png [more images ...]

Needs Python >= 3.9 and `pip install "ai-edge-litert>=1.4" pillow`, which brings NumPy. In a program of one's own:

    from classify import Classifier, load_image

    classifier = Classifier("model.tflite")
    label, probability = classifier.classify(load_image("image.png", classifier.image_size))
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import stat
import sys
import timeit
import warnings
from typing import Any

try:
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.interpreter import Interpreter
except ImportError as error:
    message = f"Expected ai-edge-litert and NumPy: pip install 'ai-edge-litert>=1.4'. Received: {error}"
    if __name__ == "__main__":
        print(f"classify.py: {message}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(message) from error

METADATA = b"keras_bilinear"
SEAL = re.compile(rb'"seal":"([0-9a-f]{16})"')
DTYPES = (np.float32, np.int8, np.uint8, np.int16)
MOST_THREADS = 1024
LARGEST = float(np.finfo(np.float32).max)
MOST_PIXELS = 1 << 24  # A damaged or hostile header may claim any size.
MOST_BYTES = 1 << 28  # Twice what so many pixels need at most.
# What Pillow decodes fast and without other programs, what it finds fastest first.
KINDS = ("PNG", "JPEG", "BMP", "PPM", "GIF", "TIFF", "WEBP")


class FileError(ValueError):
    """A file that cannot be used, and why."""


# The model ------------------------------------------------------------------------------------------------------


class Classifier:
    """A TFLite file of keras_bilinear, ready for one image at a time.

    Attributes:
        image_size: (M, N), rows and columns of an image.
        labels: Names of the classes; two of them for a binary model. Class numbers where the file has no labels.
        input_range: The least and the largest pixel the file expects; images are mapped to it.
        output: "probabilities" or "logits", as the file has it.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        """Reads the file at `path`, to be run on `threads` threads.

        Raises:
            FileError: if the file is missing, damaged or of another kind.
        """
        if not isinstance(threads, (int, np.integer)) or not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"Expected 1 to {MOST_THREADS} threads. Received: threads={threads!r}")
        content = read(path)
        if content[4:8] != b"TFL3":
            raise FileError(f"Expected a TFLite file. Received: {path}, {len(content)} bytes of something else")
        try:
            check_seal(content)
            self._interpreter = Interpreter(model_content=content, num_threads=threads)
            signature = self._interpreter.get_signature_runner("serving_default")
            inputs, outputs = signature.get_input_details(), signature.get_output_details()
            del signature  # Tensors are not allocated while another holds the interpreter.
            self.output = checked_signature(inputs, outputs)
            self._input, self._output = inputs["image"], outputs[self.output]
            self.image_size = tuple(int(size) for size in self._input["shape"][1:])
            # Whatever number of images a call the file was written for.
            self._interpreter.resize_tensor_input(self._input["index"], (1, *self.image_size))
            self._interpreter.allocate_tensors()
            units = checked_units(self._run(self._quantized(np.zeros(self.image_size))))
            self.labels, self.input_range = described(metadata(content), units)
        except Exception as error:  # The runtime raises all kinds of errors on damaged files.
            raise FileError(f"Expected a TFLite file of keras_bilinear. Received: {path} ({error})") from error

    def probabilities(self, image: np.ndarray) -> np.ndarray:
        """(K,) probabilities of the classes; for a binary model (1,), that of class 1.

        Args:
            image: (M, N) grey pixels: whole numbers from 0 to 255, or floating-point ones from 0 to 1.

        Raises:
            ValueError: if the image has another shape or other pixels. The runtime itself would not notice.
        """
        scores = self._dequantized(self._run(self._quantized(self._checked(image))))[0]
        return squashed(scores) if self.output == "logits" else scores

    def ranked(self, image: np.ndarray) -> list[tuple[str, float]]:
        """All labels and their probabilities, the most probable first."""
        p = self.probabilities(image)
        if len(p) == 1:
            p = np.array([1 - p[0], p[0]])
        return [(self.labels[k], float(p[k])) for k in np.argsort(-p, kind="stable")]

    def classify(self, image: np.ndarray) -> tuple[str, float]:
        """The most probable label, and its probability."""
        return self.ranked(image)[0]

    def latency(self, image: np.ndarray, repeat: int) -> np.ndarray:
        """(repeat,) seconds from handing the finished input to the interpreter until its output is read."""
        tensor = self._quantized(self._checked(image))
        return np.array(timeit.repeat(lambda: self._run(tensor), number=1, repeat=repeat))

    def _checked(self, image: np.ndarray) -> np.ndarray:
        """`image`, of the model's size, in the model's range."""
        pixels = brightness(np.asarray(image))
        if pixels.shape != self.image_size:
            raise ValueError(f"Expected an image of shape {self.image_size}. Received: shape {pixels.shape}")
        low, high = self.input_range
        return low + pixels * (high - low)

    def _quantized(self, pixels: np.ndarray) -> np.ndarray:
        """(1, M, N) in the type of the input tensor."""
        dtype = self._input["dtype"]
        if dtype != np.float32:
            scale, zero_point = self._input["quantization"]
            limits = np.iinfo(dtype)
            pixels = np.clip(np.round(pixels / scale + zero_point), limits.min, limits.max)
        return pixels.astype(dtype)[np.newaxis]

    def _run(self, tensor: np.ndarray) -> np.ndarray:
        self._interpreter.set_tensor(self._input["index"], tensor)
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self._output["index"])

    def _dequantized(self, scores: np.ndarray) -> np.ndarray:
        if scores.dtype != np.float32:
            scale, zero_point = self._output["quantization"]
            return (scores.astype("float64") - zero_point) * scale
        return scores.astype("float64")


def check_seal(content: bytes) -> None:
    """Raises a ValueError if the file is not as the exporter sealed it: on damage LiteRT may hang, crash or guess.

    Files of earlier releases have no seal.
    """
    seals = SEAL.findall(content)
    blank = SEAL.sub(b'"seal":"%b"' % (b"0" * 16), content)
    if seals and seals != [hashlib.sha256(blank).hexdigest()[:16].encode()]:
        raise ValueError("it was changed, or damaged, since it was exported")


def checked_signature(inputs: dict[str, Any], outputs: dict[str, Any]) -> str:
    """The name of the one output, or a ValueError unless it and the input are those of keras_bilinear."""
    if list(inputs) != ["image"] or list(outputs) not in (["probabilities"], ["logits"]):
        raise ValueError(
            "Expected an input `image` and an output `probabilities` or `logits`. "
            f"Received: {', '.join(inputs)} -> {', '.join(outputs)}"
        )
    (output,) = outputs
    for name, detail in (("image", inputs["image"]), (output, outputs[output])):
        dtype, scale = detail["dtype"], detail["quantization"][0]
        if dtype not in DTYPES or (dtype != np.float32 and not scale > 0):
            raise ValueError(
                f"Expected `{name}` as float32, or quantized. Received: {np.dtype(dtype)} of scale {scale}"
            )
    shape = inputs["image"]["shape"]
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"Expected images of shape (batch, M, N). Received: {tuple(shape)}")
    return output


def checked_units(scores: np.ndarray) -> int:
    """K, from the output for one image of zeros, which NaN among the weights would make NaN."""
    if scores.ndim != 2 or len(scores) != 1 or scores.size == 0:
        raise ValueError(f"Expected an output of shape (1, K) for one image. Received: {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("Expected finite weights. Received: NaN or infinity among them")
    return scores.size


def metadata(content: bytes) -> dict[str, Any]:
    """What the exporter noted in the file; nothing in files without a note."""
    try:
        model = schema.Model.GetRootAs(content, 0)
        entries = [model.Metadata(i) for i in range(model.MetadataLength())]
        places = [entry.Buffer() for entry in entries if entry.Name() == METADATA]
        if not places:
            return {}
        if places[0] >= model.BuffersLength():
            raise IndexError(f"buffer {places[0]} of {model.BuffersLength()}")
        note = json.loads(bytes(model.Buffers(places[0]).DataAsNumpy()))
    except Exception as error:  # Damaged offsets raise all kinds of errors, and so does damaged JSON.
        raise ValueError(f"Expected JSON in the metadata. Received: {error}") from error
    if not isinstance(note, dict):
        raise ValueError(f"Expected the metadata to be a JSON object. Received: {note!r}")
    return note


def described(note: dict[str, Any], units: int) -> tuple[tuple[str, ...], tuple[float, float]]:
    """Labels and input range of a file, from its metadata or, where that is silent, the numbers and 0..1."""
    labels, limits = note.get("labels"), note.get("input_range")
    classes = max(units, 2)
    names = [str(k) for k in range(classes)] if labels is None else labels
    if not isinstance(names, list) or len(names) != classes or not all(isinstance(name, str) for name in names):
        raise ValueError(f"Expected {classes} labels in the metadata. Received: {labels!r}")
    low, high = rising([0.0, 1.0] if limits is None else limits)
    return tuple(names), (low, high)


def rising(limits: Any) -> tuple[float, float]:
    """Two finite numbers, the second greater than the first, or a ValueError."""
    if isinstance(limits, list) and len(limits) == 2 and all(type(limit) in (int, float) for limit in limits):
        low, high = limits
        if -LARGEST <= low < high <= LARGEST:
            return float(low), float(high)
    raise ValueError(f"Expected `input_range` in the metadata to be two rising numbers. Received: {limits!r}")


def squashed(logits: np.ndarray) -> np.ndarray:
    """Probabilities from logits: the sigmoid of a single one, the soft-max of several."""
    if len(logits) == 1:
        return 0.5 * (1 + np.tanh(logits / 2))  # The sigmoid, without overflow.
    e = np.exp(logits - logits.max())
    return e / e.sum()


# Images ---------------------------------------------------------------------------------------------------------


def load_image(path: str | os.PathLike[str], size: tuple[int, ...], invert: bool = False) -> np.ndarray:
    """The image at `path` as `size` (M, N) grey pixels, float64 from 0 (black) to 1 (white).

    NumPy's .npy is read here; PNG, JPEG, BMP, PGM, PPM, GIF, TIFF and WebP by Pillow, upright as their EXIF says,
    and the first picture of several. Colour becomes grey by Rec. 601. The whole image is fitted to `size`, each
    axis by itself: by area averaging where it shrinks, bilinearly where it grows.

    Args:
        path: The file, of at most 2^24 pixels. Its content tells its kind, whatever its name.
        size: Rows and columns.
        invert: The image is dark on light: swap black and white. Transparent parts become 0 in either case.

    Raises:
        FileError: if the file is missing, damaged or of a kind that cannot be read.
    """
    if len(size) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in size):
        raise ValueError(f"Expected a size of two whole numbers (M, N) >= 1. Received: {size}")
    content = read(path)
    if not content:
        raise FileError(f"Expected an image. Received: {path}, an empty file")
    channels = npy_channels if content.startswith(b"\x93NUMPY") else picture_channels
    try:
        grey, opacity = channels(content, size)
    except Exception as error:  # NumPy, Python and Pillow raise all kinds of errors on damaged files.
        reason = error if isinstance(error, (ValueError, OSError)) else f"damaged: {error!r}"
        raise FileError(f"Expected an image. Received: {path} ({reason})") from error
    return opacity - grey if invert else grey


def npy_channels(content: bytes, size: tuple[int, ...]) -> tuple[np.ndarray, float]:
    """Grey pixels of a .npy file, from 0 to 1, and that they are opaque."""
    pixels = np.load(io.BytesIO(content), allow_pickle=False)
    if pixels.ndim != 2:
        raise ValueError(f"expected an array of two axes, received shape {pixels.shape}")
    check_size(pixels.shape[0], pixels.shape[1], MOST_PIXELS)
    return resized(brightness(pixels), size), 1.0


def picture_channels(content: bytes, size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Grey times opacity, and opacity, both from 0 to 1, of a picture."""
    image = opened(content)
    if image.mode.startswith("I"):  # Grey of 16 bits, which `convert` would clip at 255.
        pixels = np.asarray(image)
        opaque = pixels != image.info.get("transparency", -1)
        return resized(pixels * opaque, size) / 65535, resized(opaque, size)
    *colours, alpha = (np.asarray(channel) for channel in image.convert("RGBA").split())
    red, green, blue = (resized(np.multiply(colour, alpha, dtype="uint16"), size) for colour in colours)
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255**2, resized(alpha, size) / 255


def opened(content: bytes) -> Any:
    """The picture as Pillow reads it, upright, or a ValueError: before decoding, if it has too many pixels."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ValueError("pictures need Pillow: pip install pillow; .npy is read without") from error
    try:
        image = Image.open(io.BytesIO(content), formats=KINDS)
    except UnidentifiedImageError as error:
        raise ValueError(f"none of {', '.join(KINDS)} and .npy, or damaged at its beginning") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"expected 1 to {MOST_PIXELS} pixels, received more: {error}") from error
    in_python = any(part[0] in Image.DECODERS for part in image.tile)  # Rare variants, a microsecond a sample.
    check_size(image.height, image.width, MOST_PIXELS >> 5 if in_python else MOST_PIXELS)
    check_depth(image)
    image.verify()  # The check sums of PNG, which decoding would not look at.
    image = Image.open(io.BytesIO(content), formats=KINDS)
    if image.format == "PNG" and "transparency" in image.info:
        image.info["transparency"] = scaled(image.info["transparency"], image.mode, content[24])
    return ImageOps.exif_transpose(image)


def check_size(height: int, width: int, most: int) -> None:
    """Raises a ValueError for an image without pixels or with too many."""
    if not 1 <= height * width <= most:
        raise ValueError(f"expected 1 to {most} pixels, received {height} x {width}")


def check_depth(image: Any) -> None:
    """Raises a ValueError where Pillow does not tell what is white: floats, TIFF of 12 or 32 bits or inverted."""
    tags = getattr(image, "tag_v2", None)
    plain_tiff = image.mode.startswith("I;16") and tags and (tags.get(258), tags.get(262)) == ((16,), 1)
    if image.mode == "F" or (tags and image.mode.startswith("I") and not plain_tiff):
        raise ValueError("expected 8 or 16 bits a channel, from black to white")


def scaled(key: Any, mode: str, depth: int) -> Any:
    """The transparent colour of a PNG at the depth of its pixels; Pillow may leave it at that of the file."""
    if mode == "RGB":
        return tuple(value >> (depth - 8) for value in key)
    highest = 2**depth - 1
    return key * 255 // highest if mode in ("1", "L") and key <= highest else key


def brightness(pixels: np.ndarray) -> np.ndarray:
    """`pixels` as float64 from 0 to 1: whole-number types run from 0 to 255, floating-point ones from 0 to 1."""
    if pixels.dtype.kind not in "iuf" or pixels.size == 0:
        raise ValueError(f"Expected an array of pixels. Received: shape {pixels.shape}, {pixels.dtype}")
    largest = 1 if pixels.dtype.kind == "f" else 255
    low, high = pixels.min(), pixels.max()
    if not (low >= -1e-6 and high <= largest + 1e-6):  # not (...): NaN is refused, too.
        raise ValueError(f"Expected {pixels.dtype} pixels from 0 to {largest}. Received: from {low} to {high}")
    return np.divide(pixels, largest, dtype="float64")


def resized(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """`image` (H, W) at `size` (M, N)."""
    for resampled in (shrunk, grown):  # Growing last: no step makes more pixels than the image or the result has.
        for new in size:
            image = resampled(image, new).T
    return image


def shrunk(image: np.ndarray, new: int) -> np.ndarray:
    """The means of `new` equal stretches of rows, which may end within a row; no more rows than before."""
    old = len(image)
    if new >= old:
        return image
    first, cut = np.divmod(np.arange(new) * old, new)
    before = image[first] * (cut / new)[:, np.newaxis]  # What of its first row belongs to the stretch before.
    sums = np.stack([rows.sum(axis=0, dtype="float64") for rows in np.split(image, first[1:])]) - before
    sums[:-1] += before[1:]
    return sums * (new / old)


def grown(image: np.ndarray, new: int) -> np.ndarray:
    """`new` rows, each between the two nearest; no fewer than before."""
    old = len(image)
    if new <= old:
        return image
    centres = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    return np.clip(1 - np.abs(centres[:, np.newaxis] - np.arange(old)), 0, None) @ image


# Files and the command line -------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> bytes:
    """What the file holds, or a FileError that names it. Devices and pipes, which may never end, are not opened."""
    path = os.fspath(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # `open` tells of folders
            raise ValueError("a device, a pipe or a socket")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"{found.st_size} bytes; at most {MOST_BYTES} are read")
        with open(path, "rb") as file:
            return file.read(found.st_size)  # Some files of the system are 0 bytes long and never end.
    except (OSError, ValueError) as error:  # ValueError: a path of characters that no file can have, too.
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"Expected a file that can be read. Received: {path} ({reason})") from error


def report(classifier: Classifier, path: str, invert: bool, repeat: int) -> dict[str, Any]:
    """One image: the three most probable labels, and the latency in microseconds."""
    image = load_image(path, classifier.image_size, invert)
    top = classifier.ranked(image)[:3]
    median, slow = np.percentile(classifier.latency(image, repeat) * 1e6, [50, 90])
    return {
        "image": path,
        "label": top[0][0],
        "probability": top[0][1],
        "top": [{"label": label, "probability": p} for label, p in top],
        "latency_us": {"median": round(float(median), 2), "p90": round(float(slow), 2), "runs": repeat},
    }


def line(result: dict[str, Any]) -> str:
    """A report as one line of text."""
    top = ", ".join(f"{entry['label']} {entry['probability']:.4f}" for entry in result["top"])
    latency = result["latency_us"]
    return f"{result['image']}: {top}; {latency['median']:.1f} us, 90 % within {latency['p90']:.1f} us"


def positive(text: str) -> int:
    """A whole number >= 1 of the command line, of at most six digits."""
    if not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"Expected a whole number >= 1 and < 1000000. Received: {text}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 if a file could not be used. The other images are classified all the same."""
    parser = argparse.ArgumentParser(description="Classifies images with a TFLite file of keras_bilinear.")
    parser.add_argument("model", help="the .tflite file")
    parser.add_argument("images", nargs="+", metavar="image", help=f"{', '.join(KINDS)} or .npy")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--invert", action="store_true", help="the images are dark on light, as ink on paper")
    parser.add_argument("--repeat", type=positive, default=10, metavar="N", help="runs to time, default 10")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="threads to run on, default 1")
    options = parser.parse_intermixed_args(arguments)  # Options among the images, too.
    failed = False
    try:
        classifier = Classifier(options.model, options.threads)
    except ValueError as error:
        parser.error(str(error))
    for path in options.images:
        try:
            result = report(classifier, path, options.invert, options.repeat)
        except FileError as error:
            failed = True
            print(f"{parser.prog}: error: {error}", file=sys.stderr, flush=True)
        else:
            print(json.dumps(result) if options.json else line(result), flush=True)
    return 2 if failed else 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Labels in any language, on any terminal.
    warnings.filterwarnings("ignore", "Image size")  # Pillow's bound is wider than ours, which refuses.
    try:
        sys.exit(main())
    except BrokenPipeError:  # As in `| head`: nobody reads on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
