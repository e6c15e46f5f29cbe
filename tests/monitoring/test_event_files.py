import numpy as np
import pytest
import tensorflow as tf

from keras_bilinear.monitoring.event_files import EventLog
from tests.event_files import curves, read


def test_scalars_and_pictures_come_back(tmp_path):
    log = EventLog(str(tmp_path))
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
    log = EventLog(str(tmp_path / "ours"))
    with tf.summary.create_file_writer(str(tmp_path / "other")).as_default(), tf.summary.record_if(False):
        log.scalars({"a": 1.0}, step=1)
        log.text("b", "words", step=1)
    log.close()
    assert {"a", "b"} <= set(read(tmp_path / "ours").Tags()["tensors"])


def test_what_is_flushed_can_be_read_before_the_end(tmp_path):
    log = EventLog(str(tmp_path))
    log.scalars({"a": 1.0}, step=1)
    log.flush()
    assert curves(tmp_path) == {"a": ([1], [1.0])}


@pytest.mark.parametrize("missing", [1, 5, 40])
def test_a_torn_record_at_the_end_is_passed_over(tmp_path, missing):
    log = EventLog(str(tmp_path))
    for step in (1, 2, 3):
        log.scalars({"a": float(step)}, step)
    log.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-missing])
    assert curves(tmp_path)["a"][0] == [1, 2]
