"""Files and folders that take their place whole or not at all."""

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

SAVED_MODEL_ENTRIES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}


@contextlib.contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """A free path beside `target`, on the same file system; whatever is still there at the end is removed."""
    path = target.with_name(f"{temporary_prefix(target)}{uuid.uuid4().hex}.tmp")
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def temporary_prefix(target: Path) -> str:
    """How the names of its temporary siblings begin: no longer where `target` has a long name."""
    return f".{hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}-"


def remove_leftovers(target: Path) -> None:
    """Removes the temporary files that processes left beside `target` that were killed while they wrote it."""
    for path in target.parent.glob(f"{temporary_prefix(target)}{'[0-9a-f]' * 32}.tmp"):
        path.unlink(missing_ok=True)


def replace_file(target: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Puts a file of these parts in the place of `target`.

    If the process is killed or the power fails at any moment, the old file is there, whole, or the new one.
    """
    with temporary_sibling(target) as new:
        with new.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened, and need not be
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def replace_folder(target: Path, new: Path) -> None:
    """Puts `new` in the place of `target`; if that fails, the old folder is back where it was."""
    with temporary_sibling(target) as old:
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise


def is_replaceable(target: Path) -> bool:
    """Whether `target` is an empty folder, or a SavedModel with nothing of the user's beside it."""
    if not target.is_dir():
        return False
    names = {entry.name for entry in target.iterdir()}
    return not names or ("saved_model.pb" in names and names <= SAVED_MODEL_ENTRIES)


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The place behind `path`, links followed, or a FileNotFoundError if it has no folder to be in."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Expected an existing folder {target.parent}. Received: path={str(path)!r}")
    return target
