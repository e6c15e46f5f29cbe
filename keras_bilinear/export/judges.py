"""By what a file is judged: by the classes that it tells apart, or by its scores as they are."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_bilinear.export.errors import VerificationError
from keras_bilinear.export.gates import Gates, KernelReport, check_gates, class_scores, compared, spared

SCORES = "scores"
"""What the one output of a file is called that is neither probabilities nor logits."""
Metric = Callable[[Any, Any], Any]
"""(y, predictions as the model gives them, or a dict of several) -> a number."""
Outputs = Mapping[str, tuple[int, ...]]
"""The name and the shape, for an image, of all that a network gives."""


class ByClass(NamedTuple):
    """Probabilities or logits, and class numbers (T,), or None."""

    output: str
    labels: np.ndarray | None

    def figure(self, scores: np.ndarray) -> float | None:
        if self.labels is None:
            return None
        return float(np.mean(class_scores(scores, self.output).argmax(axis=1) == self.labels))

    def report(self, kernels: str, scores: np.ndarray, expected: np.ndarray) -> KernelReport:
        """What one run shows. scores, expected (T, K)."""
        return compared(kernels, scores, expected, self.output, self.labels)

    def check(self, report: KernelReport, gates: Gates, expected: np.ndarray) -> None:
        """Raises a VerificationError for the first gate missed."""
        check_gates(report, gates, expected, self.figure(expected))


class AsTheyAre(NamedTuple):
    """Scores of any kind, side by side, each output in units of its largest; and a metric of the user's."""

    outputs: Outputs
    y: Any = None
    metric: Metric | None = None

    def figure(self, scores: np.ndarray) -> float | None:
        return None if self.metric is None else float(self.metric(self.y, apart(scores, self.outputs)))

    def report(self, kernels: str, scores: np.ndarray, expected: np.ndarray) -> KernelReport:
        difference = np.abs(scores - expected) / sizes(expected, self.outputs)
        largest, mean = float(difference.max()), float(difference.mean())
        return KernelReport(kernels, largest, mean, 1.0, self.figure(scores), "metric", spared(difference))

    def check(self, report: KernelReport, gates: Gates, expected: np.ndarray) -> None:
        check_gates(report, gates, np.zeros((len(expected), 1)), None)  # no small numbers are averaged in
        figure, received = self.figure(expected), report.accuracy
        if figure is None or received is None:
            return
        limit = gates.metric_change * abs(figure) + 1e-6
        if not abs(received - figure) <= limit:
            raise VerificationError(
                f"Expected the metric within {limit:.3g} of {figure:.4g}, that of Keras, under the "
                f"{report.kernels} kernels. Received: {received:.4g}"
            )


def apart(scores: np.ndarray, outputs: Outputs) -> Any:
    """The one output (T, ...), or each of several by its name, from all of them side by side (T, K)."""
    parts = zip(outputs.items(), columns_of(scores, outputs), strict=True)
    named = {name: part.reshape(len(scores), *shape) for (name, shape), part in parts}
    return named if len(named) > 1 else next(iter(named.values()))


def sizes(scores: np.ndarray, outputs: Outputs) -> np.ndarray:
    """The largest absolute score of each output, 1 where all are 0, for every column (K,)."""
    largest = [np.full(part.shape[1], np.abs(part).max() or 1.0) for part in columns_of(scores, outputs)]
    return np.concatenate(largest)


def columns_of(scores: np.ndarray, outputs: Outputs) -> list[np.ndarray]:
    """The columns of each output, (T, numbers of it)."""
    return np.split(scores, np.cumsum([math.prod(shape) for shape in outputs.values()])[:-1], axis=1)
