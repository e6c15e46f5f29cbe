"""The runner for devices: compared with Keras and with oracles, here and where TensorFlow is not installed."""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tracemalloc
import venv
import zlib
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_bilinear as kb
from keras_bilinear.export import litert
from tests.files import describe, least_squares_model

RUNNER = Path(kb.__file__).parents[1] / "export" / "device" / "classify.py"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "neuf é"]


@pytest.fixture(scope="session")
def classify():
    """The runner as a module."""
    spec = importlib.util.spec_from_file_location("classify", RUNNER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["classify"] = module
    spec.loader.exec_module(module)
    return module


# Real files -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def device(tmp_path_factory, digits):
    """What is copied to a device: the runner, its checks, files of real models, images, probabilities of Keras."""
    folder = tmp_path_factory.mktemp("device")
    shutil.copy(RUNNER, folder)
    shutil.copy(Path(__file__).with_name("device_checks.py"), folder / "test_on_device.py")
    x, y = digits
    x = np.round(255 * x[:, :, :7]).astype("uint8")  # Not square: an exchange of the axes would show.
    train, test = x[:1000] / np.float32(255), x[-60:]
    bsr = least_squares_model(train, y[:1000], units=10, rank=2)
    blr = least_squares_model(train, y[:1000] == 3, units=1, rank=1, use_bias=True)

    def path(name):
        return folder / f"{name}.tflite"

    kb.export_tflite(bsr, path("bsr"))
    kb.export_tflite(bsr, path("logits"), output="logits", batch_size=None, labels=NAMES)
    kb.export_tflite(bsr, path("sixteen"), layout="merged", batch_size=16, input_scale=1 / 255, labels=NAMES)
    kb.export_tflite(blr, path("blr"), labels=["other", "three"])
    kb.export_tflite(blr, path("blr_logits"), output="logits")
    kb.export_tflite(bsr, path("int8"), "int8", representative_data=train[:100], io="int8")
    kb.export_tflite(bsr, path("int8_float"), "int8", representative_data=train[:100])
    kb.export_tflite(
        bsr, path("uint8"), "int8", representative_data=x[:100], io="uint8", input_scale=1 / 255, labels=NAMES
    )
    kb.export_tflite(bsr, path("int16"), "int16x8", representative_data=train[:100], io="int16")
    kb.export_tflite(blr, path("blr_int8"), "int8", representative_data=train[:100], io="int8")

    # Rounding in float32; with both factors in 8 bits, single probabilities move by up to 0.06 (measured).
    tolerances = dict.fromkeys(("int8", "int8_float", "uint8", "blr_int8", "int16"), 0.1)
    labels = {"blr": ["other", "three"], "blr_logits": ["0", "1"], "blr_int8": ["0", "1"]}
    labels |= dict.fromkeys(("logits", "sixteen", "uint8"), NAMES)
    cases = {}
    for file in folder.glob("*.tflite"):
        model = blr if file.stem.startswith("blr") else bsr
        np.save(file.with_suffix(".npy"), model.predict(test / np.float32(255), verbose=0))
        cases[file.stem] = {
            "tolerance": tolerances.get(file.stem, 5e-6),
            "labels": labels.get(file.stem, [str(k) for k in range(10)]),
            "input_range": [0.0, 255.0] if file.stem in ("uint8", "sixteen") else [0.0, 1.0],
        }
    (folder / "cases.json").write_text(json.dumps(cases))
    np.save(folder / "images.npy", test)
    np.save(folder / "image.npy", test[0])
    Image.fromarray(test[0]).save(folder / "image.png")
    return folder


NEEDED = ["ai-edge-litert", "pillow", "pytest"]


def distributions(names):
    """What pip would install for these packages, as it is installed here."""
    found, wanted = {}, list(names)
    while wanted:
        name = re.match(r"[\w.-]+", wanted.pop())[0].lower().replace("_", "-")
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            wanted += [need for need in found[name].requires or [] if "extra ==" not in need and is_here(need)]
    return found.values()


def is_here(need):
    """Whether a requirement is installed: those of other systems and older Pythons are not."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.distribution(re.match(r"[\w.-]+", need)[0]))
    return False


@pytest.fixture(scope="session")
def python_without_tensorflow(tmp_path_factory):
    """The Python of a virtual environment with ai-edge-litert, NumPy, Pillow and pytest only."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for distribution in distributions(NEEDED):
        for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(distribution.locate_file(name))
    return folder / "bin" / "python"


def run(python, *arguments, cwd, **environment):
    """The finished process, without the packages of the environment that runs these tests."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


def check_on_device(python, folder):
    done = run(python, "-m", "pytest", "-q", "-W", "error", "test_on_device.py", cwd=folder)
    assert done.returncode == 0, done.stdout
    cases = len(json.loads((folder / "cases.json").read_text()))
    assert f"{cases + 4} passed" in done.stdout


def test_where_tensorflow_is_not_installed(device, python_without_tensorflow):
    for package in ("tensorflow", "keras", "keras_bilinear"):
        assert "ModuleNotFoundError" in run(python_without_tensorflow, "-c", f"import {package}", cwd=device).stderr
    check_on_device(python_without_tensorflow, device)


def test_without_pillow_the_error_says_what_to_install(main, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)  # As where it is not installed: it cannot be imported.
    code, out, err = main("bsr.tflite", "image.png", "image.npy")
    assert code == 2
    assert "Traceback" not in err
    assert "Expected an image. Received: image.png (pictures need Pillow: pip install pillow" in err
    assert out.startswith("image.npy: ")


# Images ---------------------------------------------------------------------------------------------------------

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
TYPES = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8)]
TYPES += [(4, 8), (4, 16), (6, 8), (6, 16)]


def packed(samples, depth):
    """Rows of bytes (H, bytes) of samples (H, W, C)."""
    bits = np.unpackbits(samples.astype(">u2")[..., np.newaxis].view("u1"), axis=-1)[..., 16 - depth :]
    return np.packbits(bits.reshape(len(samples), -1), axis=1)


def png_file(size, colour, depth, lines, palette=b"", transparency=b""):
    """A PNG file of H x W pixels with these scanlines."""
    data = zlib.compress(lines)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", size[1], size[0], depth, colour, 0, 0, 0))]
    chunks += [(b"PLTE", palette)] if palette else []
    chunks += [(b"tRNS", transparency)] if transparency else []
    chunks += [(b"IDAT", data[:20]), (b"IDAT", data[20:]), (b"IEND", b"")]  # Cut in two, as encoders may.
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def encode_png(samples, colour, depth, **rest):
    """A PNG file of samples (H, W, C)."""
    lines = b"".join(b"\0" + bytes(row) for row in packed(samples, depth))
    return png_file(samples.shape[:2], colour, depth, lines, **rest)


def random_samples(colour, depth, H=10, W=7):
    """Smooth with some noise."""
    rng = np.random.default_rng(colour + depth)
    ramp = np.add.outer(np.arange(H), np.arange(W))[..., None] / (H + W) + 0.3 * rng.uniform(size=(H, W, 1))
    values = np.clip(ramp + rng.normal(size=(H, W, CHANNELS[colour])) / 4, 0, 1)
    return np.round(values * (2**depth - 1)).astype(int)


def by_pillow(content, background):
    """Grey pixels from 0 to 1 as Pillow sees them, on a grey background."""
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGBA")) / 255
    grey = pixels[..., :3] @ [0.299, 0.587, 0.114]
    return grey * pixels[..., 3] + background * (1 - pixels[..., 3])


def loaded(classify, folder, content, invert=False, size=None):
    path = folder / "image"  # Its name tells nothing: the content does.
    path.write_bytes(content)
    return classify.load_image(path, size or Image.open(io.BytesIO(content)).size[::-1], invert)


def grey_of(samples, depth):
    """Grey from 0 to 1 of samples without a palette or opacity."""
    return (samples[..., :3] @ [0.299, 0.587, 0.114] if samples.shape[2] > 2 else samples[..., 0]) / (2**depth - 1)


@pytest.mark.parametrize(("colour", "depth"), TYPES)
def test_png_of_every_type(classify, tmp_path, colour, depth):
    samples = random_samples(colour, depth)
    palette = np.random.default_rng(0).integers(0, 256, 3 * 2**depth).astype("uint8").tobytes()
    content = encode_png(samples, colour, depth, palette=palette if colour == 3 else b"")
    got = loaded(classify, tmp_path, content)
    if depth == 16:  # Pillow keeps 8 bits of colour and opacity.
        alpha = samples[..., -1] / 65535 if colour in (4, 6) else 1
        atol = {0: 1e-12, 2: 1 / 255}.get(colour, 2 / 255)
        np.testing.assert_allclose(got, grey_of(samples, depth) * alpha, atol=atol)
    else:
        np.testing.assert_allclose(got, by_pillow(content, background=0), atol=1e-12)
        inverted = loaded(classify, tmp_path, content, invert=True)
        np.testing.assert_allclose(inverted, 1 - by_pillow(content, background=1), atol=1e-12)


@pytest.mark.parametrize(("colour", "depth"), [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16)])
def test_a_transparent_colour(classify, tmp_path, colour, depth):
    """At the depth of the file, though Pillow names it so and scales the pixels."""
    samples = random_samples(colour, depth)
    samples[3:5] = samples[3, 2]
    key = samples[3, 2]
    content = encode_png(samples, colour, depth, transparency=key.astype(">u2").tobytes())
    grey, opaque = grey_of(samples, depth), (samples != key).any(axis=-1)
    atol = 1 / 255 if (colour, depth) == (2, 16) else 1e-12
    assert not opaque[3:5].any()
    np.testing.assert_allclose(loaded(classify, tmp_path, content), grey * opaque, atol=atol)
    np.testing.assert_allclose(loaded(classify, tmp_path, content, invert=True), (1 - grey) * opaque, atol=atol)


@pytest.mark.parametrize(("depth", "transparency"), [(8, bytes([0, 128, 40])), (2, bytes([200])), (4, b"\xff\0")])
def test_a_transparent_palette(classify, tmp_path, depth, transparency):
    samples = random_samples(3, depth) % 4
    samples[3:5] = 0
    content = encode_png(samples, 3, depth, palette=bytes(range(3 * 2**depth % 256)), transparency=transparency)
    np.testing.assert_allclose(loaded(classify, tmp_path, content), by_pillow(content, 0), atol=1e-12)
    inverted = loaded(classify, tmp_path, content, invert=True)
    np.testing.assert_allclose(inverted, 1 - by_pillow(content, 1), atol=1e-12)
    assert (inverted < 1).any()


def test_netpbm(classify, tmp_path):
    grey, colour = random_samples(0, 8), random_samples(2, 8)
    for samples in (grey[..., 0], colour):
        stream = io.BytesIO()
        Image.fromarray(samples.astype("uint8")).save(stream, "ppm")
        content = stream.getvalue()
        np.testing.assert_allclose(loaded(classify, tmp_path, content), by_pillow(content, 0), atol=1e-12)
    commented = b"P5 # a comment\n# 1 2 3\n7\t10\n100\n" + (grey % 101).astype("uint8").tobytes()
    got = loaded(classify, tmp_path, commented)
    np.testing.assert_allclose(got, grey[..., 0] % 101 / 100, atol=0.5 / 255)  # Pillow rounds to 8 bits.
    plain = b"P2 7 10 255 " + b" ".join(b"%d" % sample for sample in grey.ravel())
    np.testing.assert_allclose(loaded(classify, tmp_path, plain), grey[..., 0] / 255, atol=1e-12)
    sixteen = random_samples(0, 16)
    content = b"P5\n7 10\n65535\n" + sixteen.astype(">u2").tobytes()
    np.testing.assert_allclose(loaded(classify, tmp_path, content), sixteen[..., 0] / 65535, atol=1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
def test_npy(classify, tmp_path, dtype):
    whole = random_samples(0, 8)[..., 0]
    pixels = whole.astype(dtype) if dtype in ("uint8", "int64") else (whole / 255).astype(dtype)
    np.save(tmp_path / "a.npy", pixels)
    np.testing.assert_allclose(classify.load_image(tmp_path / "a.npy", (10, 7)), whole / 255, atol=1e-7)
    np.testing.assert_allclose(
        classify.load_image(tmp_path / "a.npy", (10, 7), invert=True), 1 - whole / 255, atol=1e-7
    )


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def test_other_kinds(classify, tmp_path):
    rgb = Image.fromarray(random_samples(2, 8).astype("uint8"))
    rgba = Image.fromarray(random_samples(6, 8).astype("uint8"))
    for kind in ("bmp", "gif", "jpeg", "webp", "tiff"):
        content = saved(rgb, kind)
        np.testing.assert_allclose(loaded(classify, tmp_path, content), by_pillow(content, 0), atol=1e-12)
    for content in (saved(rgba, "webp"), saved(rgba, "tiff"), saved(rgb.convert("CMYK"), "jpeg")):
        np.testing.assert_allclose(loaded(classify, tmp_path, content), by_pillow(content, 0), atol=1e-12)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_a_camera_held_upright(classify, tmp_path, kind):
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees.
    rgb = Image.fromarray(random_samples(2, 8).astype("uint8"))
    upright = loaded(classify, tmp_path, saved(rgb, kind, exif=exif), size=(7, 10))
    np.testing.assert_allclose(upright, by_pillow(saved(rgb, kind), 0)[::-1].T, atol=1e-12)


@pytest.mark.parametrize("kind", ["gif", "png", "tiff", "webp"])
def test_the_first_of_several_pictures(classify, tmp_path, kind):
    first, second = (Image.fromarray(np.full((10, 7), value, "uint8")) for value in (255, 0))
    content = saved(first, kind, save_all=True, append_images=[second])
    np.testing.assert_allclose(loaded(classify, tmp_path, content), 1, atol=1e-12)


def test_tiff_of_16_bits(classify, tmp_path):
    """Read where black is 0 and white 65535; Pillow says nothing of 12 bits, of signs, or that black is 65535."""
    sixteen = Image.fromarray(random_samples(0, 16)[..., 0].astype("uint16"))
    expected = np.asarray(sixteen) / 65535
    np.testing.assert_allclose(loaded(classify, tmp_path, saved(sixteen, "tiff")), expected, atol=1e-12)
    inverted = saved(sixteen, "tiff", tiffinfo={262: 0})
    with pytest.raises(classify.FileError, match="expected 8 or 16 bits a channel, from black to white"):
        loaded(classify, tmp_path, inverted)
    with pytest.raises(classify.FileError, match="expected 8 or 16 bits a channel, from black to white"):
        loaded(classify, tmp_path, saved(sixteen.convert("I"), "tiff"))


def area(image, size):
    """Every new pixel as the mean of the old ones under it, in plain loops over fine cells."""
    M, N = size
    fine = np.kron(image, np.ones(size))
    cells = fine.reshape(M, image.shape[0], N, image.shape[1])
    return cells.mean(axis=(1, 3))


@pytest.mark.parametrize("size", [(5, 3), (4, 6), (10, 7), (1, 1), (3, 7)])
def test_shrinking_averages_areas(classify, size):
    image = np.random.default_rng(0).uniform(size=(10, 7))
    np.testing.assert_allclose(classify.resized(image, size), area(image, size), atol=1e-12)


@pytest.mark.parametrize("size", [(11, 8), (28, 28), (20, 7)])
def test_growing_is_bilinear(classify, size):
    image = np.random.default_rng(0).uniform(size=(10, 7)).astype("float32")
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
    np.testing.assert_allclose(classify.resized(image, size), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(1 << 20, 1), (1, 1 << 20), (1024, 1024)])
def test_resizing_takes_no_more_memory_than_a_large_image(classify, shape):
    image = np.zeros(shape, "uint8")
    image[: len(image) // 2] = 255
    tracemalloc.start()
    got = classify.resized(image, (28, 28))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    np.testing.assert_allclose(got[:14], 255 * (len(image) > 1))
    np.testing.assert_allclose(got[14:], 0)


def test_a_large_photograph_of_a_digit_is_recognised(classify, device):
    """Dark ink on white paper, in colour and 40 times as large."""
    classifier = classify.Classifier(device / "uint8.tflite")
    right = 0
    for image in np.load(device / "images.npy")[:10]:
        paper = Image.fromarray(255 - image).resize((280, 320), Image.Resampling.NEAREST).convert("RGB")
        paper.save(device / "photograph.jpg", quality=95)
        seen = classify.load_image(device / "photograph.jpg", classifier.image_size, invert=True)
        np.testing.assert_allclose(seen, image / 255, atol=0.02)
        right += classifier.classify(seen)[0] == classifier.classify(image)[0]
    assert right == 10


# What cannot be used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((7, 8)), r"Expected an image of shape \(8, 7\). Received: shape \(7, 8\)"),
        (np.zeros((16, 7)), "Expected an image of shape"),  # The runtime itself returns two rows.
        (np.zeros((1, 8, 7)), "Expected an image of shape"),
        (np.full((8, 7), np.nan), "from 0 to 1. Received: from nan"),
        (np.full((8, 7), 255.0), "Expected float64 pixels from 0 to 1. Received: from 255.0"),
        (np.full((8, 7), 256), "from 0 to 255"),
        (np.full((8, 7), -1), "from 0 to 255"),
        (np.zeros((0, 7)), "Expected an array of pixels"),
        (np.zeros((8, 7), complex), "Expected an array of pixels"),
    ],
)
def test_faulty_images_of_a_program(classify, device, image, message):
    with pytest.raises(ValueError, match=message):
        classify.Classifier(device / "bsr.tflite").probabilities(image)


@pytest.fixture
def main(classify, device, monkeypatch, capfd):
    """The command line within this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(device)

    def run_main(*arguments):
        try:
            code = classify.main(list(map(str, arguments)))
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return run_main


GOOD_PNG = encode_png(random_samples(2, 8), 2, 8)


def with_header(*values):
    """GOOD_PNG under another header: width, height, depth, colour type, compression, filter, interlace."""
    return GOOD_PNG[:8] + png_chunk(b"IHDR", struct.pack(">IIBBBBB", *values)) + GOOD_PNG[33:]


def npy_file(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def npy_header(description):
    """A .npy file that ends with its header."""
    header = f"{{'descr': '<f8', 'fortran_order': True, {description}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", 118) + header.encode()


FAULTY_IMAGES = {
    "empty": (b"", "an empty file"),
    "text": (b"a note", "none of PNG, JPEG"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 10\n", "none of PNG, JPEG"),
    "cut": (GOOD_PNG[:-13], "broken PNG file"),
    "flipped": (GOOD_PNG[:60] + bytes([GOOD_PNG[60] ^ 1]) + GOOD_PNG[61:], "bad header checksum in b'IDAT'"),
    "huge": (with_header(2**31, 2**31, 8, 2, 0, 0, 0), "expected 1 to 16777216 pixels, received more"),
    "very large": (with_header(10**4, 10**4, 8, 2, 0, 0, 0), "expected 1 to 16777216 pixels, received "),
    "large": (with_header(4096, 4097, 8, 2, 0, 0, 0), "expected 1 to 16777216 pixels, received 4097 x 4096"),
    "no pixels": (with_header(0, 5, 8, 2, 0, 0, 0), "Received: faulty ("),
    "bad depth": (with_header(7, 10, 4, 2, 0, 0, 0), "Received: faulty ("),
    "short pgm": (b"P5 7 10 255\n" + bytes(69), "truncated"),
    "huge ppm": (b"P6 99999999 99999999 255\n", "expected 1 to 16777216 pixels, received more"),
    "large text": (b"P2 1024 513 1\n" + b"0 " * (1024 * 513), "expected 1 to 524288 pixels, received 513 x 1024"),
    "float pfm": (b"Pf\n7 10\n-1.0\n" + bytes(280), "expected 8 or 16 bits a channel"),
    "float tiff": (saved(Image.new("F", (7, 10)), "tiff"), "expected 8 or 16 bits a channel"),
    "cut jpeg": (saved(Image.new("RGB", (99, 99)), "jpeg")[:300], "Received: faulty ("),
    "bad npy": (b"\x93NUMPY\x01\0garbage", "Received: faulty ("),
    "cut npy": (npy_file(np.zeros((10, 7)))[:-1], "Received: faulty ("),
    "objects": (npy_file(np.full((10, 7), None)), "allow_pickle=False"),
    "fields": (npy_file(np.zeros((10, 7), "f4,i2")), "Expected an array of pixels"),
    "three axes": (npy_file(np.zeros((1, 10, 7))), "expected an array of two axes"),
    "no numbers": (npy_file(np.zeros((10, 7), "M8[s]")), "Expected an array of pixels"),
    "out of range": (npy_file(np.full((10, 7), 1.5)), "pixels from 0 to 1. Received: from 1.5"),
    "claims": (npy_header(f"'shape': ({2**40}, 2)"), "Received: faulty ("),
    "negative": (npy_header("'shape': (-1, 2)"), "Received: faulty ("),
}


@pytest.mark.parametrize("kind", FAULTY_IMAGES)
def test_faulty_image_files(main, device, kind):
    content, message = FAULTY_IMAGES[kind]
    (device / "faulty").write_bytes(content)
    code, out, err = main("bsr.tflite", "faulty", "image.png")
    assert code == 2
    assert "error: Expected an image. Received: faulty (" in err or "Received: faulty, an empty file" in err
    assert message in err
    assert out.startswith("image.png: ")
    assert out.count("\n") == 1


def test_a_large_array(classify, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4097, 4096), "uint8"))
    with pytest.raises(classify.FileError, match="expected 1 to 16777216 pixels, received 4097 x 4096"):
        classify.load_image(tmp_path / "a.npy", (8, 7))


def other_file(path, function, size=(1, 8, 7), **options):
    """A TFLite file of another function of `image`."""
    image = tf.TensorSpec(size, tf.float32, name="image")
    serve = tf.function(function, input_signature=[image]).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], tf.Module())
    for name, value in options.items():
        setattr(converter, name, value)
    path.write_bytes(converter.convert())


@pytest.mark.parametrize(
    ("function", "size", "message"),
    [
        (lambda image: {"classes": image[:, 0]}, (1, 8, 7), r"Received: image -> classes"),
        (lambda image: {"probabilities": image[:, 0], "b": image[:, 1]}, (1, 8, 7), "Received: image -> "),
        (lambda image: {"probabilities": tf.nn.softmax(image)}, (1, 8, 7), r"output of shape \(1, K\)"),
        (lambda image: {"probabilities": tf.nn.softmax(image)}, (1, 8), r"images of shape \(batch, M, N\)"),
        (
            lambda image: {"probabilities": tf.argmax(image[:, 0])[None, None]},
            (1, 8, 7),
            "as float32, or quantized",
        ),
        (lambda image: {"logits": image[:, 0] + np.float32("nan")}, (1, 8, 7), "finite weights"),
    ],
)
def test_tflite_files_of_another_kind(classify, tmp_path, function, size, message):
    other_file(tmp_path / "other.tflite", function, size)
    with pytest.raises(classify.FileError, match=f"Expected a TFLite file of keras_bilinear.*{message}"):
        classify.Classifier(tmp_path / "other.tflite")


def test_flex_operators(classify, tmp_path):
    def determinant(image):
        return {"logits": tf.stack([tf.linalg.det(image[:, :7])] * 3, axis=-1)}

    ops = tf.lite.TargetSpec(supported_ops=[tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS])
    other_file(tmp_path / "flex.tflite", determinant, target_spec=ops)
    with pytest.raises(classify.FileError, match="Expected a TFLite file of keras_bilinear"):
        classify.Classifier(tmp_path / "flex.tflite")


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", r"metadata to be a JSON object. Received: \[1\]"),
        ('{"labels": ["a", "b"]}', "Expected 10 labels in the metadata"),
        ('{"labels": 10}', "Expected 10 labels in the metadata"),
        ('{"input_range": [255, 0]}', "two rising numbers"),
        ('{"input_range": [0, 1, 2]}', "two rising numbers"),
        ('{"input_range": [0, NaN]}', "two rising numbers"),
        ('{"input_range": ["a", "b"]}', "two rising numbers"),
        ('{"input_range": [false, true]}', "two rising numbers"),
        (f'{{"input_range": [0, {10**400}]}}', "two rising numbers"),
        ('{"input_range": [0, 1e39]}', "two rising numbers"),
        ('{"labels": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}', "Expected 10 labels in the metadata"),
        ("[" * 100_000, "Expected JSON in the metadata"),
    ],
)
def test_faulty_metadata(classify, device, tmp_path, note, message):
    path = tmp_path / "m.tflite"
    shutil.copy(device / "bsr.tflite", path)
    describe(path, note)
    with pytest.raises(classify.FileError, match=f"Expected a TFLite file of keras_bilinear.*{message}"):
        classify.Classifier(path)


def test_metadata_that_points_nowhere(classify, device, tmp_path):
    file = litert.unpacked(litert.with_metadata((device / "bsr.tflite").read_bytes(), {"labels": NAMES}))
    (entry,) = [entry for entry in file.metadata if entry.name == litert.METADATA.encode()]
    entry.buffer = len(file.buffers)
    builder = flatbuffers.Builder(4096)
    builder.Finish(file.Pack(builder), b"TFL3")
    (tmp_path / "m.tflite").write_bytes(builder.Output())
    with pytest.raises(classify.FileError, match=r"Expected JSON in the metadata\. Received: buffer"):
        classify.Classifier(tmp_path / "m.tflite")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"zero"', b'"xero"'),
        (b'"input_range":[0.0', b'"input_range":[9.0'),
        (b'"seal":"', b'"seal":"0123456789abcdef"'),
    ],
)
def test_a_file_changed_since_it_was_exported(classify, device, tmp_path, before, after):
    content = (device / "uint8.tflite").read_bytes()
    place = content.index(before)
    path = tmp_path / "m.tflite"
    path.write_bytes(content[:place] + after + content[place + len(after) :])
    with pytest.raises(classify.FileError, match="changed, or damaged, since it was exported"):
        classify.Classifier(path)


def test_unknown_metadata_is_ignored(classify, device, tmp_path):
    path = tmp_path / "m.tflite"
    shutil.copy(device / "bsr.tflite", path)
    describe(path, {"labels": NAMES, "input_range": [0, 2], "sha256": "0" * 64, "of the future": {"a": [None]}})
    classifier = classify.Classifier(path)
    assert (list(classifier.labels), classifier.input_range) == (NAMES, (0.0, 2.0))


@pytest.mark.parametrize("threads", [0, -1, 2**31, 1.5, "2", None])
def test_faulty_threads(classify, device, threads):
    with pytest.raises(ValueError, match=r"Expected 1 to 1024 threads\. Received: threads="):
        classify.Classifier(device / "bsr.tflite", threads)


@pytest.mark.parametrize("size", [(), (8,), (8, 7, 1), (0, 7), (8, -7), (8.0, 7.5)])
def test_faulty_sizes(classify, device, size):
    with pytest.raises(ValueError, match="Expected a size of two whole numbers"):
        classify.load_image(device / "image.png", size)


def test_a_range_that_does_not_begin_at_zero(classify, device, tmp_path):
    path = tmp_path / "m.tflite"
    shutil.copy(device / "bsr.tflite", path)
    describe(path, {"input_range": [-1, 1], "labels": None})
    image = np.load(device / "images.npy")[0]
    plain = classify.Classifier(device / "bsr.tflite")
    # The file's model takes -1..1 here, so half of the pixels above and below grey give what 0..1 does.
    half = (image / 255 + 1) / 2
    np.testing.assert_allclose(classify.Classifier(path).probabilities(half), plain.probabilities(image), atol=1e-5)


def test_pixels_beyond_the_calibration_saturate(classify, device):
    classifier = classify.Classifier(device / "int8.tflite")
    white = np.ones(classifier.image_size)
    expected = classifier.probabilities(white)
    classifier.input_range = (0.0, 1.5)
    np.testing.assert_array_equal(classifier.probabilities(white), expected)


def test_damaged_tflite_files(classify, device, tmp_path):
    """Refused before LiteRT sees them, which may hang or end the process on some."""
    rng = np.random.default_rng(0)
    path = tmp_path / "m.tflite"
    for name in ("logits", "uint8"):
        content = (device / f"{name}.tflite").read_bytes()
        cut = [content[:length] for length in (0, 3, 8, 100, len(content) // 2, len(content) - 4)]
        for damaged in (*cut, b"\0" * 4000, b"\0\0\0\0TFL3", bytes(4) + b"TFL3" + bytes(4000)):
            path.write_bytes(damaged)
            with pytest.raises(classify.FileError, match="Expected a TFLite file"):
                classify.Classifier(path)
        seal = content.index(b'"seal":"')
        for place in rng.integers(len(content), size=200):
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            if not seal <= place < seal + 25:  # Without a seal that can be read it is a file of an earlier release.
                with pytest.raises(classify.FileError, match="Expected a TFLite file"):
                    classify.Classifier(path)


def good_images():
    """A file of each kind."""
    grey, rgb, rgba = (random_samples(colour, 8, 12, 9).astype("uint8") for colour in (0, 2, 6))
    grey, rgb, rgba = Image.fromarray(grey[..., 0]), Image.fromarray(rgb), Image.fromarray(rgba)
    exif = Image.Exif()
    exif[0x0112] = 6
    for image in (grey, rgb, rgba, grey.convert("1"), rgb.convert("P"), grey.convert("I;16")):
        yield f"png {image.mode}", saved(image, "png", exif=exif)
    yield "png, transparent", saved(grey, "png", transparency=7)
    yield "png, moving", saved(rgb, "png", save_all=True, append_images=[rgb.rotate(180)])
    for image in (grey, rgb, rgb.convert("CMYK")):
        yield f"jpeg {image.mode}", saved(image, "jpeg", exif=exif, progressive=image is rgb)
    for image in (rgb, rgb.convert("P"), grey.convert("1")):
        yield f"bmp {image.mode}", saved(image, "bmp")
        yield f"gif {image.mode}", saved(image, "gif", save_all=True, append_images=[image.rotate(180)])
    for image in (grey, rgb, grey.convert("1")):
        yield f"ppm {image.mode}", saved(image, "ppm")
    for number, highest in ((1, 1), (2, 255), (3, 99)):
        pixels = b" ".join(b"%d" % (value % (highest + 1)) for value in range(324))
        yield f"P{number}", b"P%d 9 12 %d\n" % (number, highest) + pixels
    for options in ({}, {"lossless": True}, {"save_all": True, "append_images": [rgba.rotate(180)]}):
        yield f"webp {options}", saved(rgba, "webp", **options)
    for compression in (None, "tiff_lzw", "jpeg", "packbits"):
        yield f"tiff {compression}", saved(rgb, "tiff", compression=compression)
    yield "tiff, fax", saved(grey.convert("1"), "tiff", compression="group4")
    yield "tiff I;16", saved(grey.convert("I;16"), "tiff")
    pixels = np.asarray(grey)
    for array in (pixels, np.asfortranarray(pixels / 255), pixels.astype(object), pixels.astype(">i4")):
        yield f"npy {array.dtype}", npy_file(array)


def test_damaged_images(classify, tmp_path):
    """Refused, or read as far as nothing shows the damage: never another error, whatever byte is wrong."""
    rng = np.random.default_rng(0)
    path = tmp_path / "image"
    tried, refused = 0, {}

    def is_refused(content):
        path.write_bytes(content)
        try:
            pixels = classify.load_image(path, (8, 7))
        except classify.FileError:
            return True
        assert pixels.shape == (8, 7)
        assert pixels.min() > -1e-5
        assert pixels.max() < 1 + 1e-5
        return False

    for kind, content in good_images():
        assert is_refused(content) == (kind == "npy object")
        cut = [content[: len(content) * part // 8] for part in range(8)]
        flipped = []
        for _ in range(12):
            damaged = bytearray(content)
            # The headers above all.
            damaged[rng.integers(rng.choice([len(content), min(len(content), 100)]))] ^= 1 << rng.integers(8)
            flipped.append(damaged)
        results = [is_refused(damaged) for damaged in (*cut, *flipped)]
        tried, refused[kind] = tried + len(results), sum(results)
        assert results[0]
        if kind.startswith("png") and kind != "png, moving":  # Their check sums tell.
            assert all(results)
    assert tried > 600
    assert min(refused.values()) > 2


@pytest.fixture
def unreadable(tmp_path):
    """Paths of what is no file that ends."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # No block of it takes any room.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
    return tmp_path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a Unix system")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe", "a device, a pipe or a socket"),
        ("socket", "a device, a pipe or a socket"),
        ("zero", "a device, a pipe or a socket"),
        ("/dev/zero", "a device, a pipe or a socket"),
        ("/dev/null", "a device, a pipe or a socket"),
        ("loop", "symbolic links"),
        ("large", "1099511627776 bytes; at most 268435456 are read"),
        ("", "Is a directory"),
        ("missing", "No such file"),
        ("x" * 300, "name too long"),
        ("nul\0", "embedded null"),
        ("\ud800", "surrogates not allowed"),
        ("pipe/image.png", "Not a directory"),
    ],
)
def test_paths_of_what_is_no_file(classify, unreadable, name, message):
    for use in (classify.Classifier, lambda path: classify.load_image(path, (8, 7))):
        for path in (unreadable / name, os.path.join(unreadable, name)):
            with pytest.raises(classify.FileError, match=f"Expected a file that can be read.*{message}"):
                use(path)


def test_a_file_that_says_it_is_empty(classify):
    """As those of the system do, of which some never end."""
    path = Path("/proc/self/status")
    if not path.is_file():
        pytest.skip("needs /proc")
    with pytest.raises(classify.FileError, match="an empty file"):
        classify.load_image(path, (8, 7))


# The command line -----------------------------------------------------------------------------------------------


def test_text_and_json(main, device):
    code, text, _ = main("logits.tflite", "image.png", "--repeat", "7")
    assert code == 0
    code, line, _ = main("logits.tflite", "--json", "image.png", "--repeat", "7")
    assert code == 0
    result = json.loads(line)
    assert set(result) == {"image", "label", "probability", "top", "latency_us"}
    assert len(result["top"]) == 3
    assert result["top"][0] == {"label": result["label"], "probability": result["probability"]}
    assert result["latency_us"]["runs"] == 7
    top = ", ".join(f"{entry['label']} {entry['probability']:.4f}" for entry in result["top"])
    assert text.startswith(f"image.png: {top}; ")
    assert " us, 90 % within " in text


def test_invert_and_threads(main, device):
    Image.fromarray(255 - np.load(device / "image.npy")).save(device / "ink.png")
    _, plain, _ = main("bsr.tflite", "image.png", "--json")
    _, inverted, _ = main("bsr.tflite", "ink.png", "--json", "--invert", "--threads", "2")
    assert json.loads(inverted)["top"] == json.loads(plain)["top"]
    _, other, _ = main("bsr.tflite", "ink.png", "--json")
    assert json.loads(other)["top"] != json.loads(plain)["top"]


def test_two_labels_of_a_binary_model(main, device):
    _, line, _ = main("blr.tflite", "image.png", "--json")
    top = json.loads(line)["top"]
    assert {entry["label"] for entry in top} == {"other", "three"}
    assert sum(entry["probability"] for entry in top) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.tflite", "image.png"], "Received: missing.tflite (No such file or directory)"),
        ([".", "image.png"], "Received: . (Is a directory)"),
        (["image.png", "image.png"], "Expected a TFLite file. Received: image.png, "),
        (["bsr.tflite", "missing.png"], "Received: missing.png (No such file or directory)"),
        (["bsr.tflite", "."], "Received: . (Is a directory)"),
        (["bsr.tflite"], "the following arguments are required"),
        (["bsr.tflite", "image.png", "--repeat", "0"], "Expected a whole number >= 1 and < 1000000. Received: 0"),
        (["bsr.tflite", "image.png", "--threads", "two"], "Received: two"),
        (["bsr.tflite", "image.png", "--threads", "2000"], "Expected 1 to 1024 threads. Received: threads=2000"),
        (["bsr.tflite", "image.png", "--repeat", "9" * 5000], "Expected a whole number >= 1 and < 1000000"),
        (["bsr.tflite", "/dev/zero"], "Received: /dev/zero (a device, a pipe or a socket)"),
    ],
)
def test_faulty_arguments(main, arguments, message):
    code, out, err = main(*arguments)
    assert code == 2
    assert message in err
    assert out == ""


def test_a_terminal_that_knows_ascii_only_and_a_reader_that_leaves(device):
    done = run(
        sys.executable, "classify.py", "logits.tflite", "image.png", cwd=device, PYTHONIOENCODING="ascii:strict"
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    script = f"{sys.executable} classify.py bsr.tflite {'image.png ' * 50} | true"
    done = subprocess.run(script, shell=True, cwd=device, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_without_the_runtime_the_error_says_what_to_install(device):
    done = run(sys.executable, "-S", "-E", "classify.py", "bsr.tflite", "image.png", cwd=device)
    assert done.returncode == 2
    assert "pip install 'ai-edge-litert>=1.4'. Received: No module named 'numpy'" in done.stderr
    done = run(sys.executable, "-S", "-E", "-c", "import classify", cwd=device)
    assert "ImportError: Expected ai-edge-litert and NumPy" in done.stderr
