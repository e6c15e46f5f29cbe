"""Files and folders that take their place whole or not at all, whenever the process is killed."""

import contextlib
import ctypes
import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

SAVED_MODEL_ENTRIES = {"saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"}
HERE, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


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


def exchanged(one: Path, other: Path) -> bool:
    """Whether the two have changed places, in one step: the system, or the disk, may have no such step."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    return rename is not None and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


def replace_folder(target: Path, new: Path) -> None:
    """Puts `new` in the place of `target`, and what was there in the place of `new` or nowhere.

    Where the two cannot change places in one step, the old folder is set aside for a moment, under a name by which
    `recover` finds it.
    """
    recover(target)
    if not target.exists():
        new.rename(target)
    elif not exchanged(new, target):
        target.rename(aside(target))
        try:
            new.rename(target)
        except BaseException:
            recover(target)
            raise
        shutil.rmtree(aside(target))


def aside(target: Path) -> Path:
    """Where a folder waits while another takes its place."""
    return target.with_name(f".{target.name}.replaced")


def recover(target: Path) -> None:
    """Ends what a killed `replace_folder` has left: the old folder comes back if there is no new one."""
    if aside(target).is_dir():
        if target.exists():
            shutil.rmtree(aside(target))
        else:
            aside(target).rename(target)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """An empty folder for what `put_in_place` will put into `folder`, a resolved path; removed at the end.

    It lies beside `folder`, to take its place as a whole, or within where that is not possible: if `folder` is a
    disk of its own, its parent may not be changed, or the process works in it.
    """
    with temporary_sibling(folder / "new") as within, temporary_sibling(folder) as beside:
        within.mkdir()
        with contextlib.suppress(OSError):
            if not Path.cwd().is_relative_to(folder):
                within.rename(beside)
        yield within if within.exists() else beside


def put_in_place(new: Path, folder: Path, gone: Collection[str] = (), last: Collection[str] = ()) -> None:
    """Puts everything in the staged folder `new` into `folder`, from which the names `gone` go; all else stays.

    In one step where the disk can. Otherwise one by one, the names `last` at the end; what was there by those names
    goes first, so that without them it shows that not all is in place.
    """
    names = {path.name for path in new.iterdir()}
    others = [path for path in folder.iterdir() if path.name not in names.union(gone)]
    if new.parent == folder.parent and all_linked(others, folder, new) and exchanged(new, folder):
        for path in new.iterdir():
            # Came while the others were linked.
            if path.name not in gone and not os.path.lexists(folder / path.name):
                path.rename(folder / path.name)
        return
    for name in (*last, *gone):
        (folder / name).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name in last):
        if (new / name).is_dir():
            replace_folder(folder / name, new / name)
        else:
            os.replace(new / name, folder / name)


def all_linked(paths: Collection[Path], folder: Path, new: Path) -> bool:
    """Whether the paths are in `new`, too, and it has the owner and mode of `folder`; some disks do not let it."""
    try:
        for path in paths:
            link(path, new / path.name)
        as_before(folder, new)
        os.utime(new)
    except OSError:
        return False
    return True


def link(path: Path, second: Path) -> None:
    """A second name for a file, or a folder of such for a folder, which cannot have two."""
    if path.is_dir() and not path.is_symlink():
        second.mkdir()
        for entry in path.iterdir():
            link(entry, second / entry.name)
        as_before(path, second)
    else:
        os.link(path, second, follow_symlinks=False)


def as_before(old: Path, new: Path) -> None:
    """The owner, mode and times of the one folder for the other."""
    state = old.stat()
    os.chown(new, state.st_uid, state.st_gid)
    shutil.copystat(old, new)


def is_replaceable(target: Path) -> bool:
    """Whether `target` is an empty folder, or a SavedModel with nothing of the user's beside it."""
    if not target.is_dir():
        return False
    names = {entry.name for entry in target.iterdir()}
    return not names or ("saved_model.pb" in names and names <= SAVED_MODEL_ENTRIES)


def followed(path: str | os.PathLike[str]) -> Path:
    """The place behind `path`, or a RuntimeError where links go round: from Python 3.13 on they would be left."""
    target = Path(path).resolve()
    if any(place.is_symlink() for place in (target, *target.parents)):
        raise RuntimeError("a loop of links")
    return target


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The place behind `path`, links followed, or an error that says why nothing can be written there.

    Raises:
        FileNotFoundError: if it has no folder to be in.
        PermissionError: if nothing may be written into that.
        ValueError: if it is no path, empty or a loop of links.
    """
    received = f"Received: path={str(path)!r}"
    try:
        if not os.fspath(path):
            raise ValueError("empty")
        target = followed(path)
        target.exists()
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"Expected `path` to be a place to write to. {received}, {error}") from error
    if not target.parent.is_dir():
        raise FileNotFoundError(f"Expected an existing folder {target.parent}. {received}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"Expected a folder that may be written to, {target.parent}. {received}")
    return target
