"""The file a fit resumes from: facts as JSON and the bytes of every variable, all under one checksum."""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bilinear.atomic_files import followed, remove_leftovers, replace_file, temporary_sibling

MAGIC = b"keras_bilinear checkpoint 1\n"
"""What such a file begins with."""
CHECKSUM = hashlib.sha256


class Saved(NamedTuple):
    """What a checkpoint holds: facts that JSON can say, and the values of variables in their order."""

    facts: dict[str, Any]
    values: list[np.ndarray]


def write_checkpoint(path: Path, facts: dict[str, Any], variables: Sequence[keras.Variable]) -> None:
    """Puts a checkpoint in the place of `path`, whole or not at all."""
    facts = {**facts, "variables": [kind_of(variable) for variable in variables]}
    head = json.dumps(facts).encode()
    # Bytes are written as they are: no number changes, not even a NaN.
    content = [len(head).to_bytes(8, "little"), head]
    content += [np.ravel(variable.numpy()).view("uint8").tobytes() for variable in variables]
    checksum = CHECKSUM()
    for part in content:
        checksum.update(part)
    replace_file(path, [MAGIC, checksum.digest(), *content])


def read_checkpoint(path: Path) -> Saved:
    """What `write_checkpoint` wrote, or a ValueError unless every byte of it is there."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(
                f"Expected a checkpoint of keras_bilinear, or no file. Received: path={str(path)!r}, another file"
            )
        checksum, content = file.read(CHECKSUM().digest_size), memoryview(file.read())
    if CHECKSUM(content).digest() != checksum:
        raise ValueError(
            f"Expected a whole checkpoint. Received: path={str(path)!r}, a damaged file. Delete it to fit anew."
        )
    end = 8 + int.from_bytes(content[:8], "little")
    facts, values = json.loads(bytes(content[8:end])), []
    for shape, name in facts["variables"]:
        dtype = tf.as_dtype(name).as_numpy_dtype  # NumPy by itself knows no bfloat16
        values.append(np.frombuffer(content, dtype, math.prod(shape), end).reshape(shape))
        end += values[-1].nbytes
    return Saved(facts, values)


def expect_kinds(path: str, saved: Saved, variables: Sequence[keras.Variable]) -> None:
    """Raises a ValueError unless the checkpoint is of variables of these shapes and dtypes."""
    expected, received = saved.facts["variables"], [kind_of(variable) for variable in variables]
    if expected != received:
        differing = [f"{now} instead of {was}" for was, now in zip(expected, received, strict=False) if was != now]
        raise ValueError(
            f"Expected the model whose fit {path!r} holds, with {len(expected)} variables. Received: "
            f"{len(received)} variables{', one of ' + differing[0] if differing else ''}"
        )


def kind_of(variable: keras.Variable) -> list[Any]:
    """Shape and dtype, as JSON has them."""
    return [list(variable.shape), keras.backend.standardize_dtype(variable.dtype)]


def local_path(path: Any) -> str:
    """`path` as a string, or a ValueError if it names no local file."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"Expected `path` to be the path of a file, a str or os.PathLike. Received: path={path!r}")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):  # pathlib has made one slash of two
        raise ValueError(f"Expected `path` on a local disk. Received: path={path!r}")
    return text


def usable(path: str, to_write: bool = True) -> Path:
    """The place behind `path`, links followed, or a ValueError; to write, free of what killed processes left."""
    try:
        target = followed(path)
        if target.is_dir() or (target.exists() and not target.is_file()):
            raise ValueError(f"Expected `path` to be a file. Received: path={path!r}, which is none")
        if not target.parent.is_dir():
            raise ValueError(f"Expected an existing folder {target.parent}. Received: path={path!r}")
        if to_write:
            remove_leftovers(target)
            with temporary_sibling(target) as trial:
                trial.touch()
        if target.exists():
            target.open("rb").close()
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"Expected `path` to be a file that can be read and written. Received: path={path!r}: {error}"
        ) from error
    return target
