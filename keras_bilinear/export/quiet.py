"""Keeps the notes of TensorFlow's converter and of LiteRT, dozens of lines a file, from the terminal."""

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

NOTES = re.compile(
    rb"WARNING: All log messages before absl|[IW]\d{4} \d\d:\d\d:|fully_quantize: |INFO: (Created|Initialized) "
    rb"|E\d{4} .*(failed call to cuInit|oneDNN supports)"  # no graphics card; an older processor
)
"""How lines begin that concern nobody but who works on these libraries."""
TURNING = threading.RLock()
"""Held while stderr is turned away: it belongs to the whole process."""


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Leaves out what TensorFlow logs for information, in notebooks only: of folders that are gone by then."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """Leaves notes out of what this process writes to stderr meanwhile; the rest is written as the block ends.

    The file descriptor itself is turned away, for native libraries know nothing of `sys.stderr`. Where there is
    none, nothing is done.
    """
    with TURNING:
        try:
            terminal = os.dup(2)
        except OSError:
            yield
            return
        with tempfile.TemporaryFile() as written:
            os.dup2(written.fileno(), 2)
            try:
                yield
            finally:
                with contextlib.suppress(ValueError, OSError, AttributeError):
                    sys.stderr.flush()
                os.dup2(terminal, 2)
                os.close(terminal)
                written.seek(0)
                for line in written:
                    if not NOTES.match(line):
                        os.write(2, line)
