"""The page of export/web in real Chromium: real files, real strokes, LiteRT.js against Keras."""

import functools
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bilinear as kb
from tests.browsers import BROWSER
from tests.files import describe

WEB = pathlib.Path(__file__).parents[2] / "export" / "web"
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def points(percents):
    """Places on the pad, in parts of its sides."""
    return [tuple(int(number) / 100 for number in place.split()) for place in percents.split(",")]


ZERO = [(0.5 + 0.17 * np.sin(a), 0.5 - 0.3 * np.cos(a)) for a in np.linspace(0, 2 * np.pi, 17)]
DIGITS = {
    "0": ZERO,
    "1": points("52 20, 50 50, 48 80"),
    "2": points("36 32, 44 22, 56 22, 63 32, 58 46, 45 62, 35 78, 66 78"),
    "3": points("38 24, 52 20, 62 30, 58 42, 48 47, 60 53, 65 66, 56 79, 38 77"),
    "4": points("60 80, 60 20, 32 60, 70 60"),
    "5": points("65 22, 40 22, 38 45, 55 42, 66 55, 62 72, 48 80, 36 75"),
    "6": points("60 20, 45 35, 38 55, 40 72, 50 80, 62 72, 60 58, 50 52, 40 60"),
    "7": points("33 25, 66 25, 58 45, 47 80"),
    "8": points("62 28, 50 20, 38 30, 50 47, 64 65, 50 80, 37 66, 50 47, 62 30"),
    "9": points("62 35, 50 25, 40 35, 50 48, 62 38, 62 30, 60 55, 56 80"),
}
"""Each drawn in one stroke, as people do."""
ONE, SEVEN = DIGITS["1"], DIGITS["7"]


# The page, served and driven -------------------------------------------------------------------------------------


class Page:
    """The driver's commands as methods, for the page that is open."""

    def __init__(self, process, address):
        self.process = process
        self.address = address
        self.shown = None

    def __getattr__(self, command):
        return functools.partial(self.run, command)

    def run(self, command, **options):
        if command in ("open", "choose", "drop"):
            self.shown = None
        self.process.stdin.write(json.dumps({"command": command, **options}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, f"{command}: {answer['error']}"
        return answer["value"]

    def show(self, model, **options):
        """The page with a model and nothing drawn: that which is open, or, where that would differ, a new one."""
        if self.shown == (model, options):
            self.erase()
        else:
            self.open(url=f"{self.address}/index.html?model={model}", **options)
            self.shown = (model, options)

    def erase(self):
        self.click(selector="#clear")
        self.wait(until="document.getElementById('announcement').textContent === ''")

    def text(self, name):
        return self.call(body="return document.getElementById(argument).textContent", argument=name)

    def answer(self):
        """(class, probability in percent), once a stroke or a picture is announced."""
        self.wait(until="document.getElementById('announcement').textContent !== ''")
        name, percent = self.text("announcement").rsplit(", ", 1)
        assert name == self.text("class")
        assert percent == self.text("certainty")
        return name, float(percent.removesuffix(" %"))

    def probabilities(self, images):
        body = """
            const { classify } = await import("./app.js");
            const results = [];
            for (const pixels of argument) results.push((await classify(Float32Array.from(pixels))).probabilities);
            return results;"""
        return np.array(self.call(body=body, argument=images.reshape(len(images), -1).tolist()))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder to serve: the page's own files, and room for models beside them."""
    if not (WEB / "node_modules" / "@litertjs" / "core").is_dir():
        pytest.skip("LiteRT.js is not installed: npm install --prefix export/web")
    folder = tmp_path_factory.mktemp("site")
    for entry in WEB.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def page(site):
    if shutil.which("node") is None or BROWSER is None:
        pytest.skip("Node.js and Chromium are needed to open the page")
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        pytest.skip("playwright-core is not installed: npm install --prefix export/web")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(site))
    driver = [shutil.which("node"), str(pathlib.Path(__file__).with_name("web_driver.mjs")), str(WEB), BROWSER]
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        subprocess.Popen(driver, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Page(process, f"http://127.0.0.1:{server.server_port}")
        process.stdin.close()
        process.wait(timeout=30)
        server.shutdown()


@pytest.fixture(autouse=True)
def without_problems(page):
    """No test leaves an error in the console, nor a request to another server, unless it asked for them."""
    yield
    assert page.problems() == []


# Models, trained on real digits ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handwritten(request):
    """(x, y, x_test, y_test): digits of 28 x 28, MNIST where it is prepared, else scikit-learn's enlarged to it."""
    try:
        data = request.getfixturevalue("mnist")
    except pytest.skip.Exception:
        return enlarged(*request.getfixturevalue("digits"))
    (x, y), (x_test, y_test) = data["train"], data["test"]
    return x[:2000], y[:2000], x_test[:100], y_test[:100]


def enlarged(x, y):
    """Scans of 8 x 8 fitted as MNIST's were: 20 x 20 of 28 x 28 pixels, centres of mass at pixel 14."""
    large = keras.ops.convert_to_numpy(keras.ops.image.resize(x[..., None], (20, 20)))[..., 0]
    images = np.pad(large, ((0, 0), (4, 4), (4, 4)))
    for i, image in enumerate(images):
        shift = [round(14 - image.sum(1 - axis) @ np.arange(28) / image.sum()) for axis in (0, 1)]
        images[i] = np.roll(image, shift, axis=(0, 1))
    return images[:1600], y[:1600], images[1600:1700], y[1600:1700]


@pytest.fixture(scope="module")
def model(handwritten, site):
    """Ten classes, in model.tflite, the file the page looks for."""
    x, y, *_ = handwritten
    model = kb.BilinearSoftmaxRegression(10, rank=3, alpha=1e-3, seed=0)
    model.compile(run_eagerly=True)
    model.fit(x, y, epochs=8, verbose=0)
    kb.export_tflite(model, site / "model.tflite")
    return model


# Drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "pointer", "scheme"),
    [("desktop", "mouse", "light"), ("phone", "touch", "light"), ("desktop", "pen", "dark")],
)
def test_drawn_digits(page, model, tmp_path, device, pointer, scheme):
    page.show("model.tflite", device=device, scheme=scheme)
    for name, points in {"1": ONE, "0": ZERO, "7": SEVEN}.items():
        answer, percent = drawn(page, points, pointer)
        assert answer == name
        assert percent > 50
    page.screenshot(path=str(tmp_path / f"{device}-{scheme}.png"))
    assert "ms" in page.text("latency")


@pytest.mark.parametrize(("device", "pointer"), [("desktop", "mouse"), ("phone", "touch")])
def test_the_page_reads_drawn_digits_with_its_own_file(page, device, pointer):
    page.open(url=f"{page.address}/index.html", device=device)
    answers = [drawn(page, points, pointer)[0] for points in DIGITS.values()]
    assert sum(answer == name for answer, name in zip(answers, DIGITS, strict=True)) >= 9, answers


def drawn(page, points, pointer="mouse"):
    """What the page takes a stroke for: (class, probability in percent)."""
    page.erase()
    page.stroke(points=points, pointer=pointer)
    return page.answer()


def test_the_answer_follows_the_pen_before_it_is_lifted(page, model):
    page.show("model.tflite")
    page.call(
        body="""
        const pad = document.getElementById("pad");
        const { left, top, width } = pad.getBoundingClientRect();
        pad.setPointerCapture = () => {};
        const send = (type, y) => pad.dispatchEvent(
            new PointerEvent(type, { pointerId: 1, clientX: left + width / 2, clientY: top + y * width }));
        send("pointerdown", 0.2);
        for (const y of [0.4, 0.6, 0.8]) send("pointermove", y);"""
    )
    page.wait(until="document.getElementById('class').textContent === '1'")
    assert page.text("announcement") == ""  # Screen readers hear whole strokes only.


def test_all_classes_are_shown(page, model):
    page.show("model.tflite")
    page.stroke(points=ZERO)
    page.answer()
    body = """return [...document.querySelectorAll("#bars li")].map((row) => [
        row.querySelector(".label").textContent,
        parseFloat(row.querySelector(".percent").textContent) / 100,
        row.querySelector(".fill").getAnimations().forEach((each) => each.finish()) ??
            row.querySelector(".fill").offsetWidth / row.querySelector(".track").offsetWidth,
        row.classList.contains("top"),
    ])"""
    labels, percents, lengths, top = zip(*page.call(body=body), strict=True)
    assert labels == tuple("0123456789")
    assert sum(percents) == pytest.approx(1, abs=0.006)
    assert lengths == pytest.approx(percents, abs=0.01)
    assert [i for i, is_top in enumerate(top) if is_top] == [0]


@pytest.mark.parametrize("device", ["phone", "small"])
def test_a_phone_neither_scrolls_while_drawing_nor_overflows(page, model, device):
    page.show("model.tflite", device=device)
    page.stroke(points=[(0.5, 0.8), (0.5, 0.1)], pointer="touch")  # Elsewhere, a swipe that scrolls down.
    page.answer()
    width, inner, scrolled = page.call(
        body="return [document.documentElement.scrollWidth, innerWidth, document.documentElement.scrollTop]"
    )
    assert width <= inner
    assert scrolled == 0


def test_on_a_phone_the_drawing_and_all_bars_are_in_view(page, model):
    page.show("model.tflite", device="phone")
    bottom = page.call(body="return document.querySelector('#bars li:last-child').getBoundingClientRect().bottom")
    assert bottom < 844


def test_keyboard(page, model):
    page.open(url=f"{page.address}/index.html?model=model.tflite")  # with the focus where it is at first
    page.press(keys=["Tab", *["ArrowUp"] * 9, " ", *["ArrowDown"] * 18, " "])
    assert page.answer()[0] == "1"
    focused = []
    for _ in range(3):
        page.press(keys=["Tab"])
        focused.append(page.call(body="return document.activeElement.id"))
    assert focused == ["clear", "open-picture", "open-model"]
    page.press(keys=["Shift+Tab"] * 3 + ["Escape"])
    page.wait(until="document.body.classList.contains('empty')")
    assert page.text("certainty") == "Nothing drawn yet"


# What the model is given, and what it gives ----------------------------------------------------------------------


def test_float32_probabilities_are_those_of_keras(page, model, handwritten):
    x = handwritten[2][:50]
    page.show("model.tflite")
    np.testing.assert_allclose(page.probabilities(x), model.predict(x, verbose=0), atol=5e-5)


def test_int8_probabilities_are_near_those_of_keras(page, model, handwritten, site):
    x_train, _, x, _ = handwritten
    kb.export_tflite(model, site / "int8.tflite", quantize="int8", representative_data=x_train[:200])
    page.show("int8.tflite")
    assert "int8" in page.text("facts")
    difference = np.abs(page.probabilities(x) - model.predict(x, verbose=0))
    assert 0 < difference.mean() <= 1e-2


def test_other_models_sizes_and_ranges(page, model, tmp_path):
    others = [
        (kb.BilinearSoftmaxRegression(4, 2, input_shape=(9, 6)), {"output": "logits"}),
        (kb.BilinearLogisticRegression(2, use_bias=True, input_shape=(6, 9)), {}),
        (kb.BilinearLogisticRegression(2, input_shape=(8, 8)), {"output": "logits"}),
        (kb.LinearSoftmaxRegression(12, input_shape=(40, 30)), {"input_scale": 1 / 255}),
    ]
    page.show("model.tflite")
    rng = np.random.default_rng(0)
    for i, (other, options) in enumerate(others):
        M, N = other.image_size
        other.set_weights([rng.normal(scale=0.7, size=np.shape(weight)) for weight in other.get_weights()])
        path = tmp_path / f"other{i}.tflite"
        labels = ["no", "yes"] if other.units == 1 else [f"class {k}" for k in range(other.units)]
        kb.export_tflite(other, path, labels=labels, **options)
        page.choose(selector="#open-model", file=str(path))
        page.wait(until=f"document.getElementById('facts').textContent.startsWith('{path.name} ')")
        assert f"{M} \N{MULTIPLICATION SIGN} {N} pixels" in page.text("facts")

        x = rng.uniform(size=(20, M, N)).astype("float32")
        expected = keras.ops.convert_to_numpy(other(x))
        if other.units == 1:
            expected = np.hstack([1 - expected, expected])
        np.testing.assert_allclose(page.probabilities(x), expected, atol=5e-5)
        page.stroke(points=ZERO)
        assert page.answer()[0] in labels


FITTED = """
    const { fitted } = await import("./image.js");
    return argument.map(([values, width, height]) =>
        Array.from(fitted({ values: Float32Array.from(values), width, height }, 28, 28)));"""


def test_fitted_as_mnist_was(page, mnist, model):
    """Digits of MNIST, enlarged and moved, are fitted to what they were: they were fitted in the same way."""
    x = mnist["test"][0][100:130]
    rng = np.random.default_rng(0)
    drawings = []
    for image in x:
        top, left, bottom, right = rng.integers(0, 40, 4)
        drawing = np.pad(image.repeat(3, axis=0).repeat(3, axis=1), ((top, bottom), (left, right)))
        drawings.append((drawing.round(3).ravel().tolist(), drawing.shape[1], drawing.shape[0]))
    page.show("model.tflite")
    fitted = np.array(page.call(body=FITTED, argument=drawings)).reshape(x.shape)
    pixel = np.arange(28) + 0.5
    for axis in (1, 2):
        centres = np.einsum("tmn->tm" if axis == 1 else "tmn->tn", fitted) @ pixel / fitted.sum((1, 2))
        np.testing.assert_allclose(centres, 14.5, atol=1e-3)
    np.testing.assert_allclose(fitted.sum((1, 2)), x.sum((1, 2)), rtol=1e-3)
    # MNIST moved its digits by whole pixels only, so half a pixel may be between the two.
    assert np.abs(fitted - x).mean() < 0.5 * np.abs(np.roll(x, 1, axis=2) - x).mean()
    same = model.predict(fitted, verbose=0).argmax(1) == model.predict(x, verbose=0).argmax(1)
    assert same.mean() >= 0.9


def test_no_ink_falls_off_the_image(page, model):
    """An L whose mass is far from the middle of its box."""
    drawing = np.zeros((200, 200))
    drawing[20:180, 20:60] = drawing[150:180, 20:190] = 1
    page.show("model.tflite")
    (image,) = page.call(body=FITTED, argument=[(drawing.ravel().tolist(), 200, 200)])
    step = 170 / 20
    assert sum(image) == pytest.approx(drawing.sum() / step**2, rel=1e-4)


# Files that are opened or dropped --------------------------------------------------------------------------------


def write_png(path, image):
    """A picture of 0 for black to 1 for white."""
    path.write_bytes(tf.io.encode_png(np.round(image[..., None] * 255).astype("uint8")).numpy())


def test_pictures(page, model, handwritten, tmp_path):
    x = handwritten[2]
    image = x[model.predict(x, verbose=0).max(axis=1).argmax()]  # One that leaves no doubt.
    (expected,) = model.predict(image[None], verbose=0)
    write_png(tmp_path / "same size.png", image)
    scan = 0.9 - 0.7 * np.pad(image.repeat(20, axis=0).repeat(20, axis=1), ((150, 400), (300, 90)))
    write_png(tmp_path / "scan.png", scan)
    write_png(tmp_path / "blank.png", np.ones((50, 50)))
    page.show("model.tflite")
    page.choose(selector="#open-picture", file=str(tmp_path / "same size.png"))
    assert page.answer() == (str(expected.argmax()), pytest.approx(100 * expected.max(), abs=0.051))
    page.erase()
    page.drop(file=str(tmp_path / "scan.png"))
    assert page.answer()[0] == str(expected.argmax())
    page.choose(selector="#open-picture", file=str(tmp_path / "blank.png"))
    page.wait(until="!document.getElementById('message').hidden")
    assert page.text("message") == "There is no ink in blank.png."


def test_models_are_opened_and_dropped(page, model, tmp_path):
    for name in ("first", "second"):
        kb.export_tflite(model, tmp_path / f"{name}.tflite", labels=[f"{name} {word}" for word in WORDS])
    page.show("model.tflite")
    page.stroke(points=ONE)
    assert page.answer()[0] == "1"
    page.choose(selector="#open-model", file=str(tmp_path / "first.tflite"))
    page.wait(until="document.getElementById('class').textContent === 'first one'")
    page.drop(file=str(tmp_path / "second.tflite"))
    page.wait(until="document.getElementById('class').textContent === 'second one'")


# Errors, said in the page ----------------------------------------------------------------------------------------


def test_a_missing_model(page, model, site):
    page.show("nowhere.tflite")
    assert page.text("message").startswith("There is no nowhere.tflite beside this page yet.")
    (problem,) = page.problems()
    assert "404" in problem
    page.choose(selector="#open-model", file=str(site / "model.tflite"))
    page.wait(until="document.body.classList.contains('loaded')")
    assert page.call(body="return document.getElementById('message').hidden")
    page.show("model.tflite")


def write_keras_model(path, model):
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())


def truncated(path, model):
    kb.export_tflite(model, path)
    path.write_bytes(path.read_bytes()[:-500])


def labelled(path, model, labels):
    kb.export_tflite(model, path)
    describe(path, {"labels": labels})


FAULTY = {
    "page": (
        lambda path, model: path.write_text("<html>a page, not a model</html>"),
        "page.tflite is not a TFLite file.",
    ),
    "truncated": (truncated, "truncated.tflite is damaged or incomplete."),
    "dynamic": (
        lambda path, model: kb.export_tflite(model, path, batch_size=None),
        "dynamic.tflite takes any number of images at a time, and the web runtime needs exactly one. "
        "Export it with batch_size=1.",
    ),
    "four": (
        lambda path, model: kb.export_tflite(model, path, batch_size=4),
        "four.tflite takes 4 images at a time, and the web runtime needs exactly one. Export it with batch_size=1.",
    ),
    "labels": (
        lambda path, model: labelled(path, model, ["one", "two"]),
        "labels.tflite has 2 labels for 10 classes.",
    ),
    "kind": (
        lambda path, model: write_keras_model(
            path, keras.Sequential([keras.Input((4,), batch_size=1, name="x"), keras.layers.Dense(2)])
        ),
        "kind.tflite is another kind of model: it maps x (1 \N{MULTIPLICATION SIGN} 4) to "
        "output_0 (1 \N{MULTIPLICATION SIGN} 2), "
        "not one grey image to its classes.",
    ),
}


def test_models_that_cannot_be_used(page, model, tmp_path):
    page.show("model.tflite")
    for name, (write, message) in FAULTY.items():
        path = tmp_path / f"{name}.tflite"
        write(path, model)
        page.choose(selector="#open-model", file=str(path))
        page.wait(until=f"document.getElementById('message').textContent.startsWith('{path.name} ')")
        assert page.text("message") == message
    page.stroke(points=ONE)  # The model that was there before still works.
    assert page.answer()[0] == "1"


def test_without_the_runtime_the_page_says_what_to_install(page, model, site):
    installed = site / "node_modules"
    target = os.readlink(installed)
    installed.unlink()
    page.shown = None
    try:
        page.show("model.tflite")
        assert page.text("message").startswith("LiteRT.js is not there. Run “npm install”")
        assert "404" in page.problems()[0]
    finally:
        installed.symlink_to(target)
        page.shown = None
    page.show("model.tflite")
