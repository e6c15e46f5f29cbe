"""Files and folders that take their place whole or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

SAVED_MODEL_ENTRIES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}


@contextlib.contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """A free path beside `target`, on the same file system; whatever is still there at the end is removed."""
    path = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield path
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


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
