"""Folders that take their place whole, in processes that are killed at every step on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bilinear import atomic_files
from keras_bilinear.atomic_files import checked_target, put_in_place, recover, replace_folder, staged

# The module alone, in a process without TensorFlow, whose children can be forked and killed by the dozen. Each dies
# at another of the steps that Python tells of: before every call that makes, renames, links or removes anything.
KILLED = """
import importlib.util, json, os, shutil, signal, sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("atomic_files", sys.argv[1])
atomic_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(atomic_files)
if sys.argv[4] == "one by one":
    atomic_files.exchanged = lambda one, other: False

OLD = {"a": "old", "report": "old", "model/saved_model.pb": "old", "model/variables/v": "old"}
KEPT = {"notes.txt": "mine", "mine/deep/x": "mine"}
NEW = {"b": "new", "report": "new", "model/saved_model.pb": "new", "model/variables/v": "new"}

def write(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

def texts_in(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}

def act(root):
    if sys.argv[2] == "replace":
        with atomic_files.temporary_sibling(root / "m") as new:
            write(new, NEW)
            atomic_files.replace_folder(root / "m", new)
    else:
        with atomic_files.staged(root / "m") as new:
            write(new, NEW)
            atomic_files.put_in_place(new, root / "m", gone=["a"], last=["report"])

seen, steps = [], 0
while True:
    root = Path(sys.argv[3]) / str(steps)
    write(root / "m", {**OLD, **(KEPT if sys.argv[2] == "put" else {})})
    child = os.fork()
    if child == 0:
        left = steps
        def hook(event, arguments):
            global left
            if event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        act(root)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    before = texts_in(root / "m")
    if sys.argv[2] == "replace":
        atomic_files.recover(root / "m")
    seen.append((before, texts_in(root / "m")))
    if ended != -signal.SIGKILL:
        break
    steps += 1
print(json.dumps({"ended": ended, "seen": seen, "old": OLD, "kept": KEPT, "new": NEW}))
"""


def killed_at_every_step(folder, act, way="in one step"):
    """What lies there after each kill, before and after `recover`, and what may."""
    command = [sys.executable, "-c", KILLED, atomic_files.__file__, act, str(folder), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    results = json.loads(done.stdout)
    assert results["ended"] == 0, done.stderr
    assert len(results["seen"]) >= 20
    return results


def can_exchange(folder):
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    return atomic_files.exchanged(folder / "one", folder / "other")


@pytest.fixture(autouse=True)
def _needs_fork():
    if not hasattr(os, "fork"):
        pytest.skip("kills children that it forks")


def test_a_folder_is_the_old_or_the_new_one_whenever_the_process_is_killed(tmp_path):
    if not can_exchange(tmp_path):
        pytest.skip("this disk cannot exchange folders in one step")
    results = killed_at_every_step(tmp_path, "replace")
    states = [before for before, _ in results["seen"]]
    assert all(state in (results["old"], results["new"]) for state in states)
    assert states[0] == results["old"]
    assert states[-1] == results["new"]


def test_where_two_steps_are_needed_the_next_call_brings_the_folder_back(tmp_path):
    results = killed_at_every_step(tmp_path, "replace", "one by one")
    states = [before for before, _ in results["seen"]]
    assert {} in states, "this is the moment between the two steps"
    assert all(after in (results["old"], results["new"]) for _, after in results["seen"])


def test_many_files_take_their_places_together_and_those_of_the_user_stay(tmp_path):
    if not can_exchange(tmp_path):
        pytest.skip("this disk cannot exchange folders in one step")
    results = killed_at_every_step(tmp_path, "put")
    old, new = ({**results[key], **results["kept"]} for key in ("old", "new"))
    states = [{name: text for name, text in before.items() if ".tmp/" not in name} for before, _ in results["seen"]]
    assert all(state in (old, new) for state in states)
    assert (states[0], states[-1]) == (old, new)


def test_one_by_one_the_report_is_missing_while_files_are_mixed(tmp_path):
    results = killed_at_every_step(tmp_path, "put", "one by one")
    old, new = ({**results[key], **results["kept"]} for key in ("old", "new"))
    states = [{name: text for name, text in before.items() if ".tmp/" not in name} for before, _ in results["seen"]]
    mixed = [state for state in states if state not in (old, new)]
    assert mixed
    assert not any("report" in state for state in mixed)
    assert all(state.items() >= results["kept"].items() for state in states)


def stage_and_put(folder, texts, **names):
    with staged(folder) as new:
        for name, text in texts.items():
            (new / name).write_text(text)
        put_in_place(new, folder, **names)
    return new


def test_links_modes_and_times_of_what_stays(tmp_path):
    folder = tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("mine")
    (folder / "link").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "sub").chmod(0o750)
    folder.chmod(0o711)
    before = {path: path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    stage_and_put(folder, {"m.tflite": "new"})
    for path, state in before.items():
        assert path.lstat()[:3] == state[:3], "the same file by the same name"
    assert (folder / "link").readlink() == Path("nowhere")
    assert [oct(path.stat().st_mode)[-3:] for path in (folder, folder / "sub")] == ["711", "750"]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_folder_that_the_process_works_in_stays_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = stage_and_put(tmp_path, {"a": "new"})
    assert new.parent == tmp_path
    assert os.listdir() == ["a"]


def test_what_comes_at_the_last_moment_stays(tmp_path, monkeypatch):
    exchanged = atomic_files.exchanged
    monkeypatch.setattr(
        atomic_files, "exchanged", lambda new, old: ((old / "late").write_text("mine"), exchanged(new, old))[1]
    )
    (tmp_path / "out").mkdir()
    stage_and_put(tmp_path / "out", {"a": "new"})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "late"}


def test_files_that_cannot_have_a_second_name_are_left_alone(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError("no second names here")

    monkeypatch.setattr(os, "link", fail)
    folder = tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("mine")
    (folder / "b").write_text("old")
    stage_and_put(folder, {"a": "new"}, gone=["b"])
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {"a", "sub", "sub/file"}


def test_a_failed_replacement_leaves_the_old_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "exchanged", lambda one, other: False)
    target = tmp_path / "m"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(FileNotFoundError):
        replace_folder(target, tmp_path / "not there")
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_what_was_set_aside_goes_once_there_is_a_new_folder(tmp_path):
    (tmp_path / ".m.replaced").mkdir()
    (tmp_path / "m").mkdir()
    recover(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("loop", "Expected `path` to be a place to write to. Received: path=.*loop"),
        ("loop/m", "Expected `path` to be a place to write to. Received: path=.*loop"),
        ("nul\0", r"a place to write to. Received: path='.*nul\\x00', .*null"),
        ("x" * 300, "a place to write to. Received: path='.*xxx', .*too long"),
        ("", "a place to write to. Received: path='', empty"),
        (5, "a place to write to. Received: path='5', .*int"),
        (None, "a place to write to. Received: path='None', .*NoneType"),
        (b"bytes", "a place to write to. Received: path=.*bytes"),
        ("file/m", "Expected an existing folder .*file. Received"),
        ("missing/m", "Expected an existing folder .*missing. Received"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop2")
    (tmp_path / "loop2").symlink_to("loop")
    (tmp_path / "file").touch()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        checked_target(path)


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # this process may be one that is let in everywhere
    with pytest.raises(PermissionError, match=r"Expected a folder that may be written to, .* Received: path="):
        checked_target(tmp_path / "m")
