"""A real TensorBoard on what a fit has written: its endpoints, and its pages in a real browser."""

import io
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import keras
import numpy as np
import pytest
from matplotlib.image import imread

import keras_bilinear as kb
from keras_bilinear.monitoring.pictures import GREY, mosaic
from tests.browsers import BROWSER
from tests.problems import planted

X, Y = planted(T=80).data()


class Board:
    """The running server, and a model that one of its runs, "exact", ended with."""

    def __init__(self, address, model, history):
        self.address, self.model, self.history = address, model, history

    def get(self, plugin, endpoint, body=None, **query):
        url = f"{self.address}data/plugin/{plugin}/{endpoint}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def json(self, *args, **query):
        return json.loads(self.get(*args, **query))


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    for name, optimizer in (("mini", keras.optimizers.Adam(0.05)), ("exact", kb.BlockLineSearch(blocks="factor"))):
        model = kb.BilinearSoftmaxRegression(3, 2, alpha=0.02, seed=0)
        model.compile(optimizer, run_eagerly=True)
        watch = kb.callbacks.BilinearTensorBoard(logs / name)
        history = model.fit(X, Y, epochs=5, verbose=0, validation_data=(X[:30], Y[:30]), callbacks=[watch]).history
    # It reads logs without TensorFlow, whose import takes longer than all that is asked of it.
    script = "import sys; sys.modules['tensorflow'] = None; from tensorboard.main import run_main; run_main()"
    command = [sys.executable, "-c", script, "--logdir", logs, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        found = (re.search(r"http://127\.0\.0\.1:\d+/", line) for line in server.stderr)
        board = Board(next(filter(None, found))[0], model, history)
        deadline = time.monotonic() + 60
        while set(board.json("scalars", "tags")) != {"mini", "exact"}:
            assert time.monotonic() < deadline, "TensorBoard has not read the runs"
            time.sleep(0.5)
        yield board
        server.terminate()


def test_scalars_are_served(board):
    points = board.json("scalars", "scalars", run="exact", tag="objective/J")
    assert [step for _, step, _ in points] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose([value for _, _, value in points], board.history["objective"], rtol=1e-6)
    assert {"ranks/0", "singular_values/2/2", "gradient/b1", "metrics/val_accuracy"} <= set(
        board.json("scalars", "tags")["mini"]
    )


def test_images_are_served(board):
    shown = board.json("images", "images", run="exact", tag="filters/W", sample=0)
    assert [image["step"] for image in shown] == [1, 4, 5]
    png = board.get("images", "individualImage", **dict(urllib.parse.parse_qsl(shown[-1]["query"])))
    pixels = (255 * imread(io.BytesIO(png), format="png")[..., :3]).round()
    np.testing.assert_allclose(pixels, mosaic(board.model.weight_matrices()), atol=1)


def test_custom_scalars_group_the_curves(board):
    layout = board.json("custom_scalars", "layout")
    assert {"Objective", "Blocks", "Steps", "Ranks"} <= {category["title"] for category in layout["category"]}
    matches = board.json("custom_scalars", "scalars", run="exact", tag="gradient/.*")["tag_to_events"]
    assert set(matches) == {f"gradient/{name}" for name in ("a1", "b1", "a2", "b2")}


def test_the_solver_is_the_first_choice_that_the_page_shows(board):
    experiment = board.json("hparams", "experiment", body={"experimentName": ""})
    names = [info["name"] for info in experiment["hparamInfos"]]
    assert names == ["solver", *sorted(names[1:])]


def test_hparams_compare_the_runs(board):
    body = {
        "experimentName": "",
        "allowedStatuses": ["STATUS_SUCCESS"],
        "colParams": [],
        "startIndex": 0,
        "sliceSize": 9,
    }
    groups = board.json("hparams", "session_groups", body=body)["sessionGroups"]
    assert {group["name"] for group in groups} == {"mini", "exact"}  # as their folders are
    solvers = {group["hparams"]["solver"] for group in groups}
    assert solvers == {"Adam", "BlockLineSearch"}
    (exact,) = (group for group in groups if group["hparams"]["solver"] == "BlockLineSearch")
    values = {metric["name"]["tag"]: metric["value"] for metric in exact["metricValues"]}
    assert values["metrics/val_accuracy"] == pytest.approx(board.history["val_accuracy"][-1], rel=1e-6)


def test_the_text_describes_the_model(board):
    (text,) = board.json("text", "text", run="exact", tag="model")
    assert "<td>BilinearSoftmaxRegression</td>" in text["text"]


def page(board, name, folder):
    """A page as the browser shows it, without its header and its side bar: (height, width, 3), uint8."""
    if BROWSER is None:
        pytest.skip("Chromium is needed to look at TensorBoard")
    file = folder / f"{name}.png"
    options = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1500,1000"]
    options += ["--virtual-time-budget=20000", f"--screenshot={file}", f"{board.address}#{name}"]
    subprocess.run([BROWSER, *options], check=True, capture_output=True, timeout=120)
    return (255 * imread(file)[70:, 370:, :3]).round().astype(int)


def test_the_custom_scalars_page_draws_curves(board, tmp_path):
    pixels = page(board, "custom_scalars", tmp_path)
    colourful = np.ptp(pixels, axis=2) > 100
    # Curves of both runs all over the page: more than its few blue buttons.
    assert np.sum(colourful) > 3000
    assert np.mean(np.any(colourful, axis=0)) > 0.4


def test_the_images_page_shows_the_filters(board, tmp_path):
    pixels = page(board, "images", tmp_path).reshape(-1, 3)
    for colour in ((103, 0, 31), (GREY, GREY, GREY)):  # the strongest red of the scale, and the lines between tiles
        assert np.sum(np.all(pixels == colour, axis=1)) > 200
