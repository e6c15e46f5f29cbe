"""How far the scores of a file may be from those of Keras."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from keras_bilinear.export.errors import VerificationError
from keras_bilinear.tables import Report, Table

TIE = 1e-6
"""Scores closer than this are a tie, which rounding may break either way: counted as Keras breaks it."""


SPARED = 500
"""In whole numbers one image in so many may differ by more: where it lies on a border, and the logits are steep."""


class Gates(NamedTuple):
    """How weights are stored, and what a file may differ from Keras: |differences| of probabilities, and fractions.

    The mean is that of ten classes or so; where no small probabilities are averaged in, for K = 1, it is five times
    as much. A metric of the user's may change by a fraction of itself.
    """

    weights: tuple[str, ...]
    max_difference: float
    mean_difference: float
    agreement: float
    accuracy_drop: float
    metric_change: float
    spares_images: bool = False


GATES = {
    None: Gates(("FLOAT32",), 5e-5, 5e-6, 0.999, 0.0005, 1e-3),
    "float16": Gates(("FLOAT16",), 1e-2, 2e-4, 0.995, 0.0005, 1e-2),
    # The converter keeps small tensors in float32.
    "dynamic": Gates(("FLOAT32", "INT8"), 0.4, 5e-3, 0.97, 0.003, 0.05, True),
    "int8": Gates(("INT8",), 0.4, 1e-2, 0.95, 0.003, 0.1, True),
    "int16x8": Gates(("INT8",), 0.4, 5e-3, 0.97, 0.003, 0.05, True),
}
"""Some times what healthy files show, on MNIST and digits with alpha from 0 to 0.1; faults are off by far more."""


@dataclass(frozen=True, repr=False)
class KernelReport(Report):
    """One set of kernels against Keras: |differences| of the outputs, and fractions of the images, 0 to 1.

    `accuracy` is a metric of the user's where `figure` says so. `spared_difference` is the largest difference when
    one image in `SPARED` is left out, those that differ most.
    """

    kernels: str
    max_difference: float
    mean_difference: float
    agreement: float
    accuracy: float | None
    figure: str = "accuracy"
    spared_difference: float | None = None

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", {self.figure} {self.accuracy:.4f}"
        agreement = f", agreement {self.agreement:.4f}" if self.figure == "accuracy" else ""
        return (
            f"{self.kernels} kernels: max difference {self.max_difference:.1e}, mean {self.mean_difference:.1e}"
            f"{agreement}{accuracy}"
        )

    def _parts(self) -> Iterator[Table]:
        yield kernel_table([self])


def kernel_table(reports: Sequence[KernelReport]) -> Table:
    """A row for each set of kernels."""
    names = ("max difference", "mean difference", "same class", reports[0].figure)
    rows = [
        (
            each.kernels,
            f"{each.max_difference:.1e}",
            f"{each.mean_difference:.1e}",
            f"{each.agreement:.4f}" if each.figure == "accuracy" else "",
            "" if each.accuracy is None else f"{each.accuracy:.4f}",
        )
        for each in reports
    ]
    return Table(("kernels", *names), rows)


def compared(
    kernels: str, scores: np.ndarray, expected: np.ndarray, output: str, labels: np.ndarray | None
) -> KernelReport:
    """The figures of one run. scores, expected (T, K); labels (T,) or None."""
    by_class = class_scores(expected, output)
    predicted, by_keras = class_scores(scores, output).argmax(axis=1), by_class.argmax(axis=1)
    lost = by_class.max(axis=1) - by_class[np.arange(len(scores)), predicted]
    agrees = lost <= TIE * largest(expected)
    difference = np.abs(scores - expected)
    return KernelReport(
        kernels,
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        agreement=float(agrees.mean()),
        accuracy=None if labels is None else float(np.mean(np.where(agrees, by_keras, predicted) == labels)),
        spared_difference=spared(difference),
    )


def spared(difference: np.ndarray) -> float:
    """The largest of the |differences| (T, K) of all images but one in `SPARED`; of all where they are fewer."""
    largest = np.sort(difference.max(axis=1))  # NaN, which misses every gate, last
    return float(largest[-1] if np.isnan(largest[-1]) else largest[-1 - len(largest) // SPARED])


def check_gates(report: KernelReport, gates: Gates, expected: np.ndarray, keras_accuracy: float | None) -> None:
    """Raises a VerificationError for the first gate missed. `expected`: Keras' outputs (T, K)."""
    T, K = expected.shape
    size = largest(expected)
    drop = 0.0 if report.accuracy is None or keras_accuracy is None else keras_accuracy - report.accuracy
    # Images that change class do so at random, for better or worse: up to twice the deviation of their sum, and one
    # image in any case, is no evidence. The small number is for the rounding of the fractions.
    chance = max(2 * np.sqrt((1 - report.agreement) * T), 1.0) / T + 1e-9
    worst = report.max_difference
    if gates.spares_images and report.spared_difference is not None:
        worst = report.spared_difference
    limits = [
        ("max |difference|", worst, "<=", gates.max_difference * size),
        ("mean |difference|", report.mean_difference, "<=", gates.mean_difference * size * (5 if K == 1 else 1)),
        ("class agreement", report.agreement, ">=", gates.agreement),
        ("accuracy drop", drop, "<=", gates.accuracy_drop + chance),
    ]
    for name, figure, relation, limit in limits:
        # Written so that NaN misses the gate.
        if not (figure <= limit if relation == "<=" else figure >= limit):
            raise VerificationError(
                f"Expected {name} {relation} {limit:.3g} against Keras under the {report.kernels} kernels. "
                f"Received: {figure:.3g}"
            )


def class_scores(scores: np.ndarray, output: str) -> np.ndarray:
    """Scores (T, K), where the threshold of a binary model stands for its class 0: (T, 2) for K = 1."""
    if scores.shape[1] > 1:
        return scores
    return np.hstack([np.full_like(scores, 0.0 if output == "logits" else 0.5), scores])


def largest(scores: np.ndarray) -> float:
    """The unit of rounding errors: the size of the largest score, 1 at least (always 1 for probabilities)."""
    return max(1.0, float(np.abs(scores).max()))
