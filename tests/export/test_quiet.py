"""Notes of native libraries stay away from the terminal, whatever else is written does not."""

import logging
import os
import subprocess
import sys
import threading

import pytest

from keras_bilinear.export import quiet
from keras_bilinear.export.quiet import without_notes

NOTE = b"W0000 00:00:1795.34 13938 helpers.cc:364] Ignored output_format.\n"


def test_notes_are_left_out_and_the_rest_is_kept(capfd):
    with without_notes():
        os.write(2, NOTE + b"fully_quantize: 0, inference_type: 6\n" + b"something else\n")
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "something else\nafterwards"


def test_an_error_of_a_native_library_is_kept_when_the_block_fails(capfd):
    def fails():
        with without_notes():
            os.write(2, NOTE + b"E0000 00:00:1795.3 1 x.cc:1] broken\n")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert capfd.readouterr().err == "E0000 00:00:1795.3 1 x.cc:1] broken\n"


def test_several_threads_leave_stderr_as_it_was(capfd):
    def silent():
        for _ in range(20):
            with without_notes():
                os.write(2, NOTE)

    threads = [threading.Thread(target=silent) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "afterwards"


def test_without_a_stderr_nothing_is_done():
    # The module alone, for TensorFlow takes seconds to import.
    opened = f"import os, runpy; os.close(2)\nquiet = runpy.run_path({quiet.__file__!r})"
    code = f"{opened}\nwith quiet['without_notes'](): print(1)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"1\n"


def test_an_exported_and_verified_file_writes_nothing(tmp_path, capfd, caplog):
    import numpy as np
    import tensorflow as tf

    import keras_bilinear as kb

    x, y = np.random.default_rng(0).random((60, 4, 3), dtype="float32"), np.arange(60) % 2
    model = kb.BilinearLogisticRegression(1, 1e-3, seed=0)
    model.fit(x, y, epochs=2, verbose=0)
    capfd.readouterr()
    kb.export_tflite(model, tmp_path / "a.tflite", quantize="int8", representative_data=x, validation_data=(x, y))
    assert capfd.readouterr().err == ""
    # In a notebook TensorFlow logs more.
    with caplog.at_level("INFO", logger="tensorflow"):
        kb.export_tflite(model, tmp_path / "a.tflite")
        kb.export_saved_model(model, tmp_path / "a")
        assert tf.get_logger().level == logging.INFO
    assert not caplog.records
