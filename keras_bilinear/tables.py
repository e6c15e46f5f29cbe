"""Reports as people read them: text where they are printed, tables in a notebook."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Rows of words and numbers, already written out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Columns of numbers stand right."""
        sides = ["---:" if all(map(is_number, column)) else "---" for column in zip(*self.rows, strict=True)]
        lines = [self.header, *self.rows]
        head, *rows = ("| " + " | ".join(map(escaped, line)) + " |" for line in lines)
        return "\n".join([head, f"|{'|'.join(sides)}|", *rows])


class Report:
    """What `print` shows as text and a notebook as tables: subclasses have `__str__` and `_parts`."""

    def _parts(self) -> Iterator[Table | str]:
        """Tables and paragraphs, in order."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        parts = (part.markdown() if isinstance(part, Table) else escaped(part) for part in self._parts())
        return "\n\n".join(parts)


def percent(fraction: float) -> str:
    """A part of something in two digits, as one says it: "0.54 %"."""
    return f"{100 * fraction:.2g} %"


def is_number(cell: str) -> bool:
    """Whether a cell starts as a number does; an empty one stands where the others do."""
    return re.match(r"[-+]?\.?\d|$|nan$", cell) is not None


def escaped(text: str) -> str:
    """Text in which Markdown finds nothing to format."""
    return re.sub(r"([\\`*_|<$])", r"\\\1", text)
