"""Keeps stderr for what concerns the user: TensorFlow and LiteRT write dozens of lines of notes to it."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def quiet_stderr(unless: Callable[[Exception], bool]) -> Iterator[None]:
    """Drops what this process writes to stderr, but shows it if an error ends it, `unless` the error says enough.

    The file descriptor itself is turned away, for native libraries know nothing of `sys.stderr`.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        shown = False
        try:
            yield
        except Exception as error:
            shown = not unless(error)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            if shown:
                notes.seek(0)
                sys.stderr.write(notes.read().decode(errors="replace"))
