"""The command `keras-bilinear-export`. Exit codes: 0 all written, 1 all but files that missed a gate, 2 nothing."""

import os
import sys

from keras_bilinear_export.faults import is_foreseeable, one_line
from keras_bilinear_export.options import PROGRAM, parsed
from keras_bilinear_export.quiet import quiet_stderr


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; `arguments` are those of the process by default. Returns the exit code."""
    try:
        options = parsed(arguments)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with quiet_stderr(unless=is_foreseeable):
            # Only now: TensorFlow takes seconds to import, and writes notes when it is.
            from keras_bilinear_export.kit import export_kit

            return export_kit(options)
    except Exception as error:
        if not is_foreseeable(error):
            raise
        print(f"{PROGRAM}: {one_line(error)}", file=sys.stderr)
        return 2
