"""The accuracies that the paper prints over the bars of its Figures 2 to 4, in per cent."""

from typing import NamedTuple


class Figure(NamedTuple):
    """One experiment of the paper.

    Fields:
        classes: The digits to tell apart.
        sizes: T, numbers of training images.
        held_out: Images for validation, and as many for the test.
        accuracy: The model's name -> one figure for each size. "linear" is LLR or LSR, "rank L" is BLR or BSR.
    """

    classes: tuple[int, ...]
    sizes: tuple[int, ...]
    held_out: int
    accuracy: dict[str, tuple[float, ...]]


PAIR_SIZES = (32, 128, 512, 1024, 4096, 8192)

FIGURES = {
    2: Figure(
        (8, 9),
        PAIR_SIZES,
        2000,
        {
            "linear": (93.70, 96.95, 97.36, 97.86, 98.17, 98.52),
            "rank 1": (90.00, 94.56, 94.77, 95.73, 95.78, 95.68),
            "rank 2": (91.77, 95.88, 96.29, 97.05, 97.61, 97.36),
            "rank 3": (92.69, 96.70, 97.51, 97.96, 98.37, 98.52),
            "rank 4": (91.77, 96.29, 97.46, 97.91, 98.68, 98.57),
        },
    ),
    3: Figure(
        (5, 8),
        PAIR_SIZES,
        2000,
        {
            "linear": (85.04, 90.31, 93.15, 93.57, 94.26, 94.20),
            "rank 1": (72.72, 84.78, 86.30, 86.88, 87.73, 87.94),
            "rank 2": (86.67, 89.83, 92.62, 93.20, 93.47, 93.47),
            "rank 3": (86.04, 90.41, 92.62, 94.10, 94.31, 94.41),
            "rank 4": (86.72, 90.62, 92.99, 93.94, 94.26, 94.41),
        },
    ),
    4: Figure(
        tuple(range(10)),
        (160, 640, 2560, 5120),
        10_000,
        {
            "linear": (78.14, 85.23, 88.88, 90.30),
            "rank 1": (74.28, 81.76, 84.53, 85.34),
            "rank 2": (78.20, 85.63, 88.73, 89.21),
            "rank 3": (79.09, 85.64, 89.19, 89.94),
            # The text claims rank 4 to be like LSR; the figure has no bars for it.
            "rank 4": (),
        },
    ),
}
