"""Which of the files to take, in words."""

from collections.abc import Sequence

from keras_bilinear_export.facts import FileFacts

AIMS = ("smallest", "fastest", "closest to Keras")


def choices(files: Sequence[FileFacts], keras_accuracy: float | None) -> list[str]:
    """The best file for each aim that was measured, and those that no other beats in all of them; a line each."""
    if not files:
        return []
    timed = files[0].microseconds is not None
    lines = [
        f"{aim}: {described(best(files, i), keras_accuracy)}"
        for i, aim in enumerate(AIMS)
        if timed or aim != "fastest"
    ]
    front = [str(file) for file in files if not any(beats(other, file) for other in files)]
    return [*lines, f"best trade-offs: {', '.join(front)}"]


def merits(file: FileFacts) -> tuple[float, float, float]:
    """What each aim makes small: bytes, time, and the mean |difference| under the worse kernels."""
    error = max(file.default.mean_difference, file.reference.mean_difference)
    return file.bytes, file.microseconds or 0.0, error


def best(files: Sequence[FileFacts], aim: int) -> FileFacts:
    """The best file for an aim; of several, the one that is better for the others."""
    return min(files, key=lambda file: (merits(file)[aim], merits(file)))


def beats(one: FileFacts, other: FileFacts) -> bool:
    """Whether the one is nowhere worse and somewhere better."""
    pairs = list(zip(merits(one), merits(other), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def described(file: FileFacts, keras_accuracy: float | None) -> str:
    """A file and the figures to choose it by."""
    figures = [f"{file.bytes:,} bytes"]
    if file.bytes_to_dense is not None:
        figures[0] += f" ({file.bytes_to_dense:.2f} of Flatten + Dense)"
    if file.microseconds is not None:
        figures.append(f"{file.microseconds:.1f} µs")
    if keras_accuracy is not None:
        figures.append(f"accuracy {file.default.accuracy:.4f} (Keras {keras_accuracy:.4f})")
    return f"{file}, {', '.join(figures)}, mean difference {merits(file)[2]:.1e}"
