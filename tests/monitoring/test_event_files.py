import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.monitoring.event_files import Axis, EventLog, axes_of
from tests.event_files import curves, read


def test_an_axis_counts_as_the_fit_does():
    axis = Axis(last=0)
    axis.start(0, resumed=False)
    assert [axis.advance(count) for count in (1, 2, 5)] == [1, 2, 5]


def test_a_resumed_fit_goes_on_and_writes_nothing_twice():
    axis = Axis(last=7)
    axis.start(5, resumed=True)
    assert [axis.advance(count) for count in (6, 7, 8, 9)] == [None, None, 8, 9]
    axis = Axis(last=17, offset=10)  # other fits have been here before
    axis.start(5, resumed=True)
    assert [axis.advance(count) for count in (6, 7, 8, 9)] == [None, None, 18, 19]


def test_another_fit_begins_after_the_last_step():
    axis = Axis(last=7)
    axis.start(0, resumed=False)
    assert [axis.advance(count) for count in (1, 2)] == [8, 9]
    axis.start(2, resumed=False)
    assert axis.advance(3) == 10


def test_a_model_that_is_ahead_of_the_files_keeps_its_count():
    axis = Axis(last=7)
    axis.start(30, resumed=False)
    assert axis.advance(31) == 31


def test_scalars_and_pictures_come_back(tmp_path):
    log = EventLog(str(tmp_path), Axis(), Axis())
    log.scalars({"a/one": 1.5, "b/two": -2.0}, step=3)
    log.scalars({"a/one": float("nan")}, step=4)
    pixels = np.arange(24, dtype="uint8").reshape(2, 4, 3)
    log.picture("c/three", pixels, "what it shows", step=3)
    log.close()
    drawn = curves(tmp_path)
    assert drawn["b/two"] == ([3], [-2.0])
    np.testing.assert_array_equal(drawn["a/one"], ([3, 4], [1.5, np.nan]))
    events = read(tmp_path)
    (event,) = events.Tensors("c/three")
    width, height, png = event.tensor_proto.string_val
    assert (event.step, width, height) == (3, b"4", b"2")
    np.testing.assert_array_equal(tf.io.decode_png(png), pixels)
    assert events.SummaryMetadata("c/three").summary_description == "what it shows"


def test_it_writes_even_where_others_record_now_and_then(tmp_path):
    log = EventLog(str(tmp_path / "ours"), Axis(), Axis())
    with tf.summary.create_file_writer(str(tmp_path / "other")).as_default(), tf.summary.record_if(False):
        log.scalars({"a": 1.0}, step=1)
        log.text("b", "words", step=1)
    log.close()
    assert {"a", "b"} <= set(read(tmp_path / "ours").Tags()["tensors"])


def test_what_is_flushed_can_be_read_before_the_end(tmp_path):
    log = EventLog(str(tmp_path), Axis(), Axis())
    log.scalars({"a": 1.0}, step=1)
    log.flush()
    assert curves(tmp_path) == {"a": ([1], [1.0])}


def standing(folder):
    return [(axis.last, axis.offset) for axis in axes_of(str(folder), "a", "b")]


def test_where_the_files_of_a_folder_stand(tmp_path):
    folder = tmp_path / "run[1] *"  # no pattern
    assert standing(folder) == [(0, 0), (0, 0)]
    for step in (4, 9):
        log = EventLog(str(folder), Axis(offset=step), Axis(offset=2))
        log.scalars({"b": 1.0}, step)
        log.close()
    assert standing(folder) == [(0, 9), (9, 2)]


@pytest.mark.parametrize("missing", [1, 5, 40])
def test_a_torn_record_at_the_end_is_passed_over(tmp_path, missing):
    log = EventLog(str(tmp_path), Axis(), Axis())
    for step in (1, 2, 3):
        log.scalars({"a": float(step)}, step)
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-missing])
    assert standing(tmp_path) == [(2, 0), (0, 0)]
    assert curves(tmp_path)["a"][0] == [1, 2]
