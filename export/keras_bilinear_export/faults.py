"""What can go wrong through no fault of this program, and how it is said in one line."""

import sys


def is_foreseeable(error: Exception) -> bool:
    """Whether the error says what the user can change: a wrong input, a full disk, a package that is missing."""
    tensorflow = sys.modules.get("tensorflow")
    # Under TensorFlow's own errors a SavedModel or the converter report a disk that is full.
    native = () if tensorflow is None else (tensorflow.errors.OpError,)
    return isinstance(error, (ValueError, OSError, ImportError, *native))


def one_line(error: BaseException) -> str:
    """The message without line breaks; of the operating system's errors, the reason and the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__
