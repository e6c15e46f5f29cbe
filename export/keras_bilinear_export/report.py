"""The report on the files of a model, as JSON for programs and as Markdown for people."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from keras_bilinear.export import KernelReport
from keras_bilinear_export.choice import choices
from keras_bilinear_export.exporting import Missed
from keras_bilinear_export.facts import FileFacts, ModelFacts

PACKAGES = ("tensorflow", "keras", "ai-edge-litert")
OF_DENSE = "Of Dense: bytes over those of Flatten + Dense with the same weights in float32."
ARENA = (
    "Arena: bytes of memory a file works in on TensorFlow Lite Micro, with its reference kernels on this machine."
)


@dataclass(frozen=True)
class Report:
    """All that was found out.

    Attributes:
        model_file: Name of the `.keras` file.
        source: Where the images are from.
        calibration_images, verification_images: How many of them.
        input_scale: Factor from the pixels of the files to those of the model, if there is one.
        keras_accuracy: Fraction of the images that verify; None without labels, or if no file was written.
        machine: Where times were measured.
        files, missed: What was written, and what was not.
    """

    model_file: str
    model: ModelFacts
    source: str
    calibration_images: int
    verification_images: int
    input_scale: float | None
    keras_accuracy: float | None
    machine: dict[str, str | int | None]
    files: tuple[FileFacts, ...]
    missed: tuple[Missed, ...]

    @property
    def choices(self) -> list[str]:
        """The files to take, a line for each aim."""
        return choices(self.files, self.keras_accuracy)

    def json(self) -> str:
        return json.dumps({**asdict(self), "choices": self.choices}, indent=2, allow_nan=False) + "\n"

    def markdown(self) -> str:
        """Choices first, then the tables."""
        parts = [f"# {self.model_file}, exported", self.about(), bullets(self.choices)]
        if self.missed:
            reasons = [f"{file.variant} {file.layout}: {file.reason}" for file in self.missed]
            parts += ["## Not written", bullets(reasons)]
        if self.files:
            parts += ["## Files", self.files_table(), OF_DENSE if self.files[0].bytes_to_dense else ""]
            parts += [ARENA if any(file.arena for file in self.files) else ""]
            parts += ["## Against Keras", self.differences_table()]
            parts += ["## Operators", bullets([f"{file}: {', '.join(file.operators)}" for file in self.files])]
        return "\n\n".join(part for part in parts if part) + "\n"

    def about(self) -> str:
        model, size = self.model, " x ".join(map(str, self.model.image))
        rank = "" if model.rank is None else f", rank {model.rank}"
        sizes = [
            f"{name} {', '.join(f'{count:,} {layout}' for layout, count in by_layout.items())}"
            for name, by_layout in (("parameters", model.parameters), ("multiply-adds", model.multiply_adds))
            if by_layout
        ]
        machine = self.machine
        packages = ", ".join(f"{name} {machine[name]}" for name in ("python", *PACKAGES))
        accuracy = "" if self.keras_accuracy is None else f"; accuracy in Keras {self.keras_accuracy:.4f}"
        return (
            f"{model.kind}, images of {size}, {model.outputs} outputs{rank}; {'; '.join(sizes)}.\n"
            f"Images from {self.source}: {self.calibration_images:,} calibrated the files, "
            f"{self.verification_images:,} others verified them{accuracy}.\n"
            f"Measured on {machine['processor']} with {machine['cores']} cores, {machine['system']}; {packages}."
        )

    def files_table(self) -> str:
        heads = ["file", "bytes", "of Dense", "weights", "arena", "µs"]
        return table(
            heads,
            [
                [
                    str(file),
                    f"{file.bytes:,}",
                    number(file.bytes_to_dense),
                    " ".join(file.weights).lower(),
                    "" if file.arena is None else f"{file.arena:,}",
                    number(file.microseconds),
                ]
                for file in self.files
            ],
        )

    def differences_table(self) -> str:
        """Largest and mean |difference|, agreement and accuracy under the default / the reference kernels."""
        heads = ["default / reference kernels", "max difference", "mean difference", "agreement", "accuracy"]
        return table(heads, [[str(file), *differences(file.default, file.reference)] for file in self.files])


def differences(default: KernelReport, reference: KernelReport) -> list[str]:
    """The figures of two sets of kernels in pairs."""
    pairs = [
        (default.max_difference, reference.max_difference, ".1e"),
        (default.mean_difference, reference.mean_difference, ".1e"),
        (default.agreement, reference.agreement, ".4f"),
        (default.accuracy, reference.accuracy, ".4f"),
    ]
    return ["" if a is None else f"{a:{form}} / {b:{form}}" for a, b, form in pairs]


def number(value: float | None) -> str:
    """Two decimals; nothing for what is not known."""
    return "" if value is None else f"{value:.2f}"


def this_machine() -> dict[str, str | int | None]:
    """Processor, system and the packages that wrote and ran the files."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that is aligned, so that it reads as plain text, too: the first column left and the others right.

    Columns without entries are left out.
    """
    columns = [column for column in zip(heads, *rows, strict=True) if any(column[1:])]
    widths = [max(3, *map(len, column)) for column in columns]
    sides = "<" + ">" * len(columns[1:])
    places = zip(columns, sides, widths, strict=True)
    head, *lines = zip(*([f"{cell:{side}{n}}" for cell in column] for column, side, n in places), strict=True)
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def bullets(lines: Sequence[str]) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)
