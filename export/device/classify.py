"""Classifies images with a TFLite file of keras_bilinear on a small device: one file to copy, no TensorFlow.

    python classify.py model.tflite image.png [more images ...]

Needs Python >= 3.9 and `pip install "ai-edge-litert>=1.4"`, which brings NumPy. In a program of one's own:

    from classify import Classifier, load_image

    classifier = Classifier("model.tflite")
    label, probability = classifier.classify(load_image("image.png", classifier.image_size))
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

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
DTYPES = (np.float32, np.int8, np.uint8, np.int16)
MOST_PIXELS = 1 << 24  # A damaged or hostile header may claim any size.


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
        content = read(path)
        if content[4:8] != b"TFL3":
            raise FileError(f"Expected a TFLite file. Received: {path}, {len(content)} bytes of something else")
        try:
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
        except (ValueError, RuntimeError) as error:
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
        times = np.empty(repeat)
        for run in range(repeat):
            start = time.perf_counter()
            self._run(tensor)
            times[run] = time.perf_counter() - start
        return times

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
    model = schema.Model.GetRootAs(content, 0)
    for entry in (model.Metadata(i) for i in range(model.MetadataLength())):
        if entry.Name() == METADATA and entry.Buffer() < model.BuffersLength():
            note = json.loads(bytes(model.Buffers(entry.Buffer()).DataAsNumpy()))
            if isinstance(note, dict):
                return note
            raise ValueError(f"Expected the metadata to be a JSON object. Received: {note!r}")
    return {}


def described(note: dict[str, Any], units: int) -> tuple[tuple[str, ...], tuple[float, float]]:
    """Labels and input range of a file, from its metadata or, where that is silent, the numbers and 0..1."""
    classes = max(units, 2)
    labels = note.get("labels") or [str(k) for k in range(classes)]
    if not isinstance(labels, list) or len(labels) != classes:
        raise ValueError(f"Expected {classes} labels in the metadata. Received: {labels!r}")
    limits = note.get("input_range") or [0.0, 1.0]
    try:
        low, high = (float(limit) for limit in limits)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"Expected `input_range` in the metadata to be two rising numbers. Received: {limits!r}")
    return tuple(str(label) for label in labels), (low, high)


def squashed(logits: np.ndarray) -> np.ndarray:
    """Probabilities from logits: the sigmoid of a single one, the soft-max of several."""
    if len(logits) == 1:
        return 0.5 * (1 + np.tanh(logits / 2))  # The sigmoid, without overflow.
    e = np.exp(logits - logits.max())
    return e / e.sum()


# Images ---------------------------------------------------------------------------------------------------------


def load_image(path: str | os.PathLike[str], size: tuple[int, ...], invert: bool = False) -> np.ndarray:
    """The image at `path` as `size` (M, N) grey pixels, float64 from 0 (black) to 1 (white).

    PNG (not interlaced), binary PGM and PPM and NumPy's .npy are read here, anything else by Pillow if it is
    installed. Colour becomes grey by Rec. 601. The whole image is fitted to `size`, each axis by itself: by area
    averaging where it shrinks, bilinearly where it grows.

    Args:
        path: The file. Its content tells its kind, whatever its name.
        size: Rows and columns.
        invert: The image is dark on light: swap black and white. Transparent parts become 0 in either case.

    Raises:
        FileError: if the file is missing, damaged or of a kind that cannot be read.
    """
    content = read(path)
    if not content:
        raise FileError(f"Expected an image. Received: {path}, an empty file")
    try:
        grey, alpha = decoded(content)
    except ValueError as error:
        raise FileError(f"Expected an image. Received: {path} ({error})") from error
    return resized((1 - grey if invert else grey) * alpha, size)


def decoded(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels (H, W) and how opaque they are, both from 0 to 1."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return png_image(content)
    if content[:2] in (b"P5", b"P6"):
        return grey_and_alpha(netpbm_samples(content))
    if content.startswith(b"\x93NUMPY"):
        return grey_and_alpha(brightness(npy_pixels(content))[..., np.newaxis])
    return pillow_image(content)


def brightness(pixels: np.ndarray) -> np.ndarray:
    """`pixels` as float64 from 0 to 1: whole-number types run from 0 to 255, floating-point ones from 0 to 1."""
    if pixels.dtype.kind not in "iuf" or pixels.size == 0:
        raise ValueError(f"Expected an array of pixels. Received: shape {pixels.shape}, {pixels.dtype}")
    largest = 1 if pixels.dtype.kind == "f" else 255
    low, high = pixels.min(), pixels.max()
    if not (low >= -1e-6 and high <= largest + 1e-6):  # not (...): NaN is refused, too.
        raise ValueError(f"Expected {pixels.dtype} pixels from 0 to {largest}. Received: from {low} to {high}")
    return pixels.astype("float64") / largest


def grey_and_alpha(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grey by Rec. 601, and opacity, of samples (H, W, C) from 0 to 1: grey, grey + alpha, RGB or RGBA."""
    C = samples.shape[-1]
    grey = samples[..., 0] if C < 3 else samples[..., :3] @ np.array([0.299, 0.587, 0.114])
    return grey, samples[..., -1] if C in (2, 4) else np.ones_like(grey)


def resized(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """`image` (H, W) at `size` (M, N)."""
    rows, columns = (resampling(old, new) for old, new in zip(image.shape, size))
    return rows @ image @ columns.T


def resampling(old: int, new: int) -> np.ndarray:
    """Weights (new, old) of one axis: each new pixel from the old ones."""
    pixel = np.arange(old)
    if new <= old:
        edges = (np.arange(new + 1) * (old / new))[:, np.newaxis]
        overlap = np.minimum(edges[1:], pixel + 1) - np.maximum(edges[:-1], pixel)
        return np.clip(overlap, 0, None) * (new / old)
    centres = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    return np.clip(1 - np.abs(centres[:, np.newaxis] - pixel), 0, None)


def netpbm_samples(content: bytes) -> np.ndarray:
    """Samples (H, W, 1 or 3) from 0 to 1 of a binary PGM or PPM file."""
    header = re.match(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*\n)+(\d{1,9})" + rb"\s", content)
    if header is None:
        raise ValueError("damaged PGM or PPM header")
    width, height, largest = (int(number) for number in header.groups()[1:])
    channels = 1 if header[1] == b"5" else 3
    check_size(height, width)
    if not 1 <= largest <= 65535:
        raise ValueError(f"damaged PGM or PPM header: pixels up to {largest}")
    dtype = np.dtype(">u2" if largest > 255 else "u1")
    count = height * width * channels
    if len(content) < header.end() + count * dtype.itemsize:
        raise ValueError("truncated")
    samples = np.frombuffer(content, dtype, count, header.end()).reshape(height, width, channels)
    return np.minimum(samples / largest, 1.0)


def npy_pixels(content: bytes) -> np.ndarray:
    """The array (H, W) of a .npy file."""
    try:
        pixels = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # Damaged headers raise all kinds of errors, from Python's tokenizer on.
        raise ValueError(f"damaged .npy: {error}") from error
    if pixels.ndim != 2:
        raise ValueError(f"expected an array of two axes, received shape {pixels.shape}")
    return pixels


def pillow_image(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels and opacity of any kind of image that Pillow knows."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ValueError(
            "this kind of image needs Pillow: pip install pillow; PNG that is not interlaced, binary PGM and PPM "
            "and .npy are read without"
        ) from error
    try:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
        if image.mode.startswith("I;16"):  # `convert` would clip 16-bit grey at 255.
            return grey_and_alpha(np.asarray(image)[..., np.newaxis] / 65535)
        if image.mode in ("I", "F"):
            raise ValueError("expected 8 or 16 bits a channel")
        return grey_and_alpha(np.asarray(image.convert("RGBA")) / 255)
    except Exception as error:  # Its decoders raise all kinds of errors on damaged files.
        raise ValueError(f"Pillow cannot read it: {error}") from error


def check_size(height: int, width: int) -> None:
    """Raises a ValueError for an image without pixels or with too many."""
    if not 1 <= height * width <= MOST_PIXELS:
        raise ValueError(f"expected 1 to {MOST_PIXELS} pixels, received {height} x {width}")


# PNG ------------------------------------------------------------------------------------------------------------


class PngHeader(NamedTuple):
    """The IHDR chunk."""

    width: int
    height: int
    depth: int
    colour: int
    compression: int
    filtering: int
    interlace: int

    @property
    def channels(self) -> int:
        return {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[self.colour]


PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def png_image(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Grey pixels and opacity of a PNG file; an interlaced one is left to Pillow."""
    chunks = png_chunks(content)
    header = png_header(chunks)
    if header.interlace:
        return pillow_image(content)
    row_bits = header.width * header.channels * header.depth
    lines = inflated(chunks.get(b"IDAT", b""), header.height, 1 + (row_bits + 7) // 8)
    rows = unfiltered(lines, max(header.channels * header.depth // 8, 1))
    samples = unpacked(rows, header.depth)[:, : header.width * header.channels]
    samples = samples.reshape(header.height, header.width, header.channels)
    if header.colour == 3:
        return grey_and_alpha(palette(chunks)[samples[..., 0]] / 255)
    grey, alpha = grey_and_alpha(samples / (2**header.depth - 1))
    if b"tRNS" in chunks and header.colour in (0, 2):  # One colour stands for "transparent".
        if len(chunks[b"tRNS"]) != 2 * header.channels:
            raise ValueError("damaged PNG: transparent colour")
        alpha = (samples != np.frombuffer(chunks[b"tRNS"], ">u2")).any(axis=-1).astype("float64")
    return grey, alpha


def png_chunks(content: bytes) -> dict[bytes, bytes]:
    """The chunks by name, up to the end mark; those of one name are joined, as the pixels need."""
    chunks: dict[bytes, bytearray] = {}
    position, name = 8, b""
    while name != b"IEND":
        if len(content) < position + 12:
            raise ValueError("truncated PNG")
        length, name = struct.unpack_from(">I4s", content, position)
        data = content[position + 8 : position + 8 + length]
        position += 12 + length
        if len(content) < position:
            raise ValueError("truncated PNG")
        if zlib.crc32(name + data) != struct.unpack_from(">I", content, position - 4)[0]:
            raise ValueError(f"damaged PNG: check sum of {name!r}")
        chunks.setdefault(name, bytearray()).extend(data)
    return {name: bytes(data) for name, data in chunks.items()}


def png_header(chunks: dict[bytes, bytes]) -> PngHeader:
    """The header, or a ValueError if it cannot be that of a PNG file."""
    if len(chunks.get(b"IHDR", b"")) != 13:
        raise ValueError("damaged PNG: no header")
    header = PngHeader(*struct.unpack(">IIBBBBB", chunks[b"IHDR"]))
    if header.depth not in PNG_DEPTHS.get(header.colour, ()) or header.compression or header.filtering:
        raise ValueError(f"damaged PNG: {header}")
    check_size(header.height, header.width)
    return header


def inflated(data: bytes, height: int, line_bytes: int) -> np.ndarray:
    """The scanlines (height, line_bytes), never more, whatever `data` would swell to."""
    try:
        lines = zlib.decompressobj().decompress(data, height * line_bytes)
    except zlib.error as error:
        raise ValueError(f"damaged PNG: {error}") from error
    if len(lines) < height * line_bytes:
        raise ValueError("damaged PNG: too few pixels")
    return np.frombuffer(lines, np.uint8).reshape(height, line_bytes)


def unfiltered(lines: np.ndarray, step: int) -> np.ndarray:
    """Scanlines (H, 1 + bytes) freed of the filter that the first byte of each names.

    Args:
        lines: uint8, as inflated.
        step: How many bytes back the pixel before begins.
    """
    rows = lines[:, 1:].copy()
    above = np.zeros_like(rows[0])
    for kind, row in zip(lines[:, 0], rows):
        if kind == 1:
            row[:] = np.cumsum(row.reshape(-1, step), axis=0, dtype=np.uint8).ravel()
        elif kind == 2:
            row += above
        elif kind in (3, 4):
            restore = averaged if kind == 3 else paeth
            row[:] = np.frombuffer(restore(bytes(row), bytes(above), step), np.uint8)
        elif kind != 0:
            raise ValueError(f"damaged PNG: filter {kind}")
        above = row
    return rows


def averaged(row: bytes, above: bytes, step: int) -> bytearray:
    """The row whose filter took the mean of left and above away."""
    out = bytearray(step) + row
    for i, up in enumerate(above):
        out[i + step] = (out[i + step] + (out[i] + up) // 2) & 255
    return out[step:]


def paeth(row: bytes, above: bytes, step: int) -> bytearray:
    """The row whose filter took left, up or corner away, whichever is nearest to left + up - corner."""
    out = bytearray(step) + row
    for i, (up, corner) in enumerate(zip(above, bytes(step) + above)):
        left = out[i]
        to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        nearest = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        out[i + step] = (out[i + step] + nearest) & 255
    return out[step:]


def unpacked(rows: np.ndarray, depth: int) -> np.ndarray:
    """Samples (H, samples) of rows of bytes (H, bytes), `depth` bits each."""
    if depth == 16:
        return rows.view(">u2")
    if depth == 8:
        return rows
    bits = np.unpackbits(rows, axis=1).reshape(len(rows), -1, depth)
    return bits @ (1 << np.arange(depth)[::-1])


def palette(chunks: dict[bytes, bytes]) -> np.ndarray:
    """(256, 4) colours, RGBA from 0 to 255; black where the file's palette is shorter."""
    colours = np.frombuffer(chunks.get(b"PLTE", b""), np.uint8)
    opacity = np.frombuffer(chunks.get(b"tRNS", b""), np.uint8)
    if not 1 <= len(colours) // 3 <= 256 or len(colours) % 3 or len(opacity) > 256:
        raise ValueError("damaged PNG: palette")
    table = np.zeros((256, 4))
    table[:, 3] = 255
    table[: len(colours) // 3, :3] = colours.reshape(-1, 3)
    table[: len(opacity), 3] = opacity
    return table


# Files and the command line -------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> bytes:
    """What the file holds, or a FileError that names it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"Expected a file that can be read. Received: {path} ({error.strerror})") from error


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
    """A whole number >= 1 of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"Expected a whole number >= 1. Received: {text}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 if a file could not be used. The other images are classified all the same."""
    parser = argparse.ArgumentParser(description="Classifies images with a TFLite file of keras_bilinear.")
    parser.add_argument("model", help="the .tflite file")
    parser.add_argument("images", nargs="+", metavar="image", help=".png, .pgm, .ppm, .npy; others through Pillow")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--invert", action="store_true", help="the images are dark on light, as ink on paper")
    parser.add_argument("--repeat", type=positive, default=10, metavar="N", help="runs to time, default 10")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="threads to run on, default 1")
    options = parser.parse_intermixed_args(arguments)  # Options among the images, too.
    failed = False
    try:
        classifier = Classifier(options.model, options.threads)
    except FileError as error:
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
    try:
        sys.exit(main())
    except BrokenPipeError:  # As in `| head`: nobody reads on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
