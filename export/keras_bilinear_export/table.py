"""Markdown that is aligned, so that it reads as plain text, too."""

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, its first column aligned left and the others right. Columns without entries are left out."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [[line[i] for i in kept] for line in (heads, *rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(kept))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(row(line, widths) for line in (lines[0], rule, *lines[1:]))


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of a table."""
    first, *others = (width if i else -width for i, width in enumerate(widths))
    return "| " + " | ".join([cells[0].ljust(-first), *map(str.rjust, cells[1:], others)]) + " |"


def bullets(lines: Sequence[str]) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)
