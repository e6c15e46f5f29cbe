"""What files say of themselves, and what is noticed of damage to it."""

import numpy as np
import pytest

from keras_bilinear.export import VerificationError, export_tflite, litert, verify_tflite
from keras_bilinear.export.metadata import checked_facts, sealed
from tests.files import random_images, random_model

LABELS = ["null", "eins", "zwei £"]


@pytest.fixture(scope="module")
def model():
    return random_model("BSR")


@pytest.fixture(scope="module")
def content(model, tmp_path_factory):
    """A float32 file with labels and a range; nothing of what they say shows in its scores."""
    path = tmp_path_factory.mktemp("sealed") / "m.tflite"
    export_tflite(
        model, path, labels=LABELS, representative_data=random_images(model), validation_data=images(model)
    )
    return path.read_bytes()


def images(model):
    return (random_images(model, T=8),)


def check_refused(tmp_path, model, content, message, x=None):
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(VerificationError, match=message):
        verify_tflite(path, model, *(images(model) if x is None else (x,)))


def test_the_seal_costs_little_and_is_the_same_each_time(content):
    facts = litert.metadata(content)
    del facts["seal"]
    unsealed = litert.with_metadata(content, facts)
    assert len(content) <= len(unsealed) + 32
    assert sealed(unsealed, facts) == content
    assert checked_facts(content, 3) == litert.metadata(content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"input_range":[0.0,1.0]', '"input_range":[0.0,9.0]'),
        ('"input_range":[0.0,1.0]', '"input_range":[0.0,1.8]'),
        ('"eins"', '"eios"'),
        ('["null","eins"', '["eins","null"'),
        ('"labels"', '"mabels"'),
        ("keras_bilinear", "keras_bilinera"),
        ("image", "hmage"),
    ],
)
def test_a_change_of_what_the_device_reads_is_noticed(tmp_path, model, content, old, new):
    assert old.encode() in content
    check_refused(tmp_path, model, content.replace(old.encode(), new.encode()), "Expected a file as it was written")


def test_a_seal_by_another_name_is_noticed(tmp_path, model, content):
    check_refused(tmp_path, model, content.replace(b'"seal"', b'"sebl"'), "Expected metadata .*Received: .*'sebl'")


def test_facts_that_are_exchanged_with_the_old_seal_are_noticed(tmp_path, model, content):
    facts = {**litert.metadata(content), "labels": ["a", "b", "c"]}
    check_refused(tmp_path, model, litert.with_metadata(content, facts), "Expected a file as it was written")


def test_every_flipped_bit_is_noticed(content):
    start = content.index(b'{"input_range"')
    flips = [*range(8 * start, 8 * (content.index(b"}", start) + 1), 3), *range(0, 8 * len(content), 157)]
    for bit in flips:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="Expected "):
            checked_facts(bytes(damaged), 3)


def test_files_of_earlier_releases_have_no_seal(tmp_path, model, content):
    facts = litert.metadata(content)
    del facts["seal"]
    (tmp_path / "m.tflite").write_bytes(litert.with_metadata(content, facts))
    verify_tflite(tmp_path / "m.tflite", model, *images(model))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"range": [0, 1]}, "Expected metadata .*Received: .'range'."),
        ({"quantize": 8}, "Expected a file quantised as one of .*Received: 8"),
        ({"quantize": []}, "Expected a file quantised as one of"),
        ({"input_scale": -1.0}, "`input_scale` that is a number > 0 in the metadata. Received: -1.0"),
        ({"input_scale": "1/255"}, "`input_scale` that is a number > 0"),
        ({"input_scale": float("nan")}, "`input_scale` that is a number > 0"),
        ({"input_scale": 1e300}, "`input_scale` that is a number > 0"),
        ({"input_scale": True}, "`input_scale` that is a number > 0"),
        ({"input_range": [1, 0]}, r"`input_range` of pixels.*Received: \[1, 0\]"),
        ({"input_range": [0.2, 1]}, "`input_range` of pixels"),
        ({"input_range": [0, 0.5]}, "`input_range` of pixels"),
        ({"input_range": [0, 1, 2]}, "`input_range` of pixels"),
        ({"input_range": [0, float("inf")]}, "`input_range` of pixels"),
        ({"input_range": "01"}, "`input_range` of pixels"),
        ({"input_range": None, "input_scale": None, "labels": None}, "`labels` to be 3 different names"),
        ({"input_scale": 1 / 255, "input_range": [0, 1]}, "`input_range` of pixels .* with input_scale=0.0039"),
        ({"labels": ["a", "b"]}, "`labels` to be 3 different names"),
        ({"labels": ["a", "b", "b"]}, "`labels` to be 3 different names"),
        ({"labels": ["a", "b", ["c"]]}, "`labels` to be 3 different names"),
        ({"labels": 3}, "`labels` to be 3 different names"),
        ({"seal": "0" * 16}, "Expected a file as it was written"),
        ({"seal": None}, "Expected a file as it was written"),
        # The images of the test, 0 to 1, reach less than an eighth of it.
        ({"input_range": [0, 9]}, "images in the units of the file, pixels from 0 to 9. Received: pixels from 0"),
    ],
)
def test_what_no_export_says_is_refused(tmp_path, model, content, facts, message):
    check_refused(tmp_path, model, litert.with_metadata(content, facts), message)


@pytest.mark.parametrize("note", [b"{", b"[1]", b'"a"', b"\xff\xfe", b"", b'{"labels":', b"9" * 5000])
def test_notes_that_are_no_json_object_are_refused(tmp_path, model, content, note):
    file = litert.unpacked(content)
    entry = next(entry for entry in file.metadata if entry.name == b"keras_bilinear")
    file.buffers[entry.buffer].data = np.frombuffer(note, "uint8")
    check_refused(tmp_path, model, litert.packed(file), "Expected (JSON|a JSON object) in the metadata")


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_images_in_other_units_prove_nothing(tmp_path, model, quantize):
    """All scores of a file for 0..255 are nearly the same on 0..1, whatever is wrong with it."""
    x = random_images(model, T=64)
    path = tmp_path / "m.tflite"
    report = export_tflite(model, path, quantize, input_scale=1 / 255, representative_data=255 * x)
    verify_tflite(path, model, 255 * x)
    for wrong in (x, 255 * 255 * x, np.zeros_like(x)):
        check_refused(
            tmp_path, model, report.path.read_bytes(), "in the units of the file, pixels from 0 to 255", wrong
        )
    with pytest.raises(VerificationError, match="in the units of the file, pixels from 0 to 255"):
        export_tflite(
            model,
            tmp_path / "new",
            quantize,
            input_scale=1 / 255,
            representative_data=255 * x,
            validation_data=(x,),
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.tflite"]


def test_a_file_that_does_not_say_its_range_has_that_of_the_scale_given(tmp_path, model):
    x = random_images(model)
    export_tflite(model, tmp_path / "plain.tflite")
    with pytest.raises(VerificationError, match="in the units of the file, pixels from 0 to 255"):
        verify_tflite(tmp_path / "plain.tflite", model, x, input_scale=1 / 255)
