"""Smartwatch exercises of people who were never seen: which sensor axis, and which frequency, tells them apart.

    pip install --no-deps seglearn                    # brings the data, 18 MB; its code is not run
    python examples/sensors.py                        # five splits, about a quarter of an hour on two cores
    python examples/sensors.py --windows 6            # the same with 7 seconds of every recording
    python examples/sensors.py --quick                # one split of a part, to see that all of it runs

A sample is a matrix by nature: six axes of a watch (acceleration and rotation) by 51 frequencies, the logarithm of
the spectrum of two seconds. Every method chooses its alpha, or C, on people of the training part; no person is on
two sides of any split. Scales of axes and frequencies are folded into the factors, so the file takes plain spectra.

The data are D. Burns' recordings of seven shoulder exercises (arXiv:1802.01489), distributed with seglearn under
the BSD licence (3 clauses, (c) 2018 David M. Burns). The file is a pickle, of which arrays and lists are read and
nothing else: a name that is not NumPy's is refused.

Needs: pip install -e .[examples]
"""

import argparse
import importlib.util
import os
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import keras_bilinear as kb

RATE, WINDOW, STEP = 50, 100, 50
"""Samples a second, in a window, and from one window to the next."""
FLOOR = 1e-3
"""Added to the spectrum before its logarithm: sensors are no finer."""
ALPHAS = [3e-3, 1e-2, 3e-2]
COSTS = [1e-3, 1e-2, 1e-1]
AXES = ["x", "y", "z", "turn x", "turn y", "turn z"]
HARMLESS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class Windows(NamedTuple):
    """Log-spectra X (T, 6, 51), the exercise of each and who made it, and the names of the exercises."""

    X: np.ndarray
    y: np.ndarray
    people: np.ndarray
    names: list[str]


class ArraysOnly(pickle.Unpickler):
    """Reads arrays, and nothing that could do anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that an array needs."""
        if (module, name) in HARMLESS:
            return super().find_class(module, name)
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.empty(0).__reduce__()[0]  # by this NumPy's own name of it
        raise pickle.UnpicklingError(f"Expected arrays only. Received: {module}.{name}")


def recordings() -> dict[str, Any]:
    """What seglearn ships, without a line of its code."""
    found = importlib.util.find_spec("seglearn")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The data are those of the package seglearn: pip install --no-deps seglearn")
    path = Path(found.submodule_search_locations[0]) / "data" / "watch_dataset.npy"
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return ArraysOnly(file).load().item()


def log_spectra(series: np.ndarray) -> np.ndarray:
    """(T, 6, 51) of a recording (samples, 6), in windows of two seconds that overlap by one."""
    starts = range(0, len(series) - WINDOW + 1, STEP)
    windows = np.stack([series[start : start + WINDOW].T for start in starts])
    return np.log(np.abs(np.fft.rfft(windows, axis=2)) / WINDOW + FLOOR).astype("float32")


def windows(data: dict[str, Any], most: int | None = None) -> Windows:
    """All windows of all recordings, or the first few of each."""
    parts = [log_spectra(np.asarray(series, float))[:most] for series in data["X"]]
    y, people = (np.repeat(data[key], [len(part) for part in parts]) for key in ("y", "subject"))
    return Windows(
        np.concatenate(parts), y.astype(int), people.astype(int), [str(name) for name in data["y_labels"]]
    )


def searches(folds: int) -> dict[str, GridSearchCV]:
    """The methods, each with what it may choose on people that it has not been fitted to."""
    inner = GroupKFold(folds)
    rows: dict[str, tuple[Any, dict[str, list[Any]]]] = {
        "linear": (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, tol=1e-3)),
            {"logisticregression__C": COSTS},
        ),
        **{f"rank {rank}": (bilinear(rank=rank), {"alpha": ALPHAS}) for rank in (1, 2, 3)},
        "auto": (bilinear(rank="auto", penalty="sum", tol=1e-2), {"alpha": [1e-2, 2e-2]}),
        "SVM": (make_pipeline(StandardScaler(), SVC()), {"svc__C": [1.0, 10.0]}),
    }
    return {name: GridSearchCV(method, grid, cv=inner) for name, (method, grid) in rows.items()}


def bilinear(**settings: Any) -> kb.BilinearClassifier:
    """Axes and frequencies in units of their own."""
    return kb.BilinearClassifier(standardize=True, random_state=0, **settings)


def numbers_of(fitted: Any) -> int:
    """How many a fitted method keeps."""
    model = getattr(fitted, "model_", None)
    if model is not None:
        return int(model.ranks().sum() * sum(model.image_size) + model.units)
    last = fitted[-1]
    return int(last.coef_.size + last.intercept_.size if hasattr(last, "coef_") else last.support_vectors_.size)


def main() -> None:
    """Fits every method to every split, and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one split of a part of the windows")
    parser.add_argument("--windows", type=int, help="so many of each recording, its first, as of a short session")
    parser.add_argument("--splits", type=int, default=5, help="of the people, each of whom is held out once")
    parser.add_argument("--out", type=Path, default=Path("sensors"), help="folder for the picture and the file")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    # In the grid are alphas with which a fit takes longer than it gets, and the table tells what these are worth.
    warnings.simplefilter("ignore", kb.callbacks.ConvergenceWarning)
    data = windows(recordings(), most=6 if args.quick else args.windows)
    splits = list(GroupKFold(args.splits).split(data.X, data.y, data.people))
    table(data, splits[:1] if args.quick else splits, 2 if args.quick else 3, args.out)


def table(data: Windows, splits: list[Any], folds: int, out: Path) -> None:
    """Measures, prints as it goes, and ends with the means."""
    found: dict[str, list[tuple[float, int]]] = {}
    print(f"{len(data.X):,} windows of {len(set(data.people))} people, {len(data.names)} exercises")
    for number, (train, test) in enumerate(splits):
        for name, search in searches(folds).items():
            flat = name in ("linear", "SVM")
            X = data.X.reshape(len(data.X), -1) if flat else data.X
            search.fit(X[train], data.y[train], groups=data.people[train])
            found.setdefault(name, []).append(
                (search.score(X[test], data.y[test]), numbers_of(search.best_estimator_))
            )
            print(f"split {number}, {name}: {found[name][-1]}, {search.best_params_}", flush=True)
            if name == "rank 2" and number == 0:
                deliver(search.best_estimator_, data, train, test, out)
    linear = np.mean([score for score, _ in found["linear"]])
    print(f"\n{'':8}{'accuracy':>10}{'over splits':>16}{'- linear':>10}{'numbers':>10}")
    for name, rows in found.items():
        scores, numbers = np.array(rows).T
        ends = f"{scores.min():.1%} to {scores.max():.1%}"
        print(f"{name:8}{scores.mean():>10.1%}{ends:>16}{scores.mean() - linear:>+10.1%}{numbers.mean():>10,.0f}")


def deliver(fitted: Any, data: Windows, train: np.ndarray, test: np.ndarray, out: Path) -> None:
    """A picture that tells which axis and which frequency; an int8 file, verified on people it has not seen."""
    path = out / "exercises.tflite"
    X, y = data.X[test][:500], data.y[test][:500]
    options = {"quantize": "int8", "representative_data": data.X[train][:500], "labels": data.names}
    print(kb.export_tflite(fitted.model_, path, **options, validation_data=(X, y)))
    kb.plots.plot_filters(
        in_spreads(fitted.model_, data.X[train]),
        out / "filters.png",
        class_names=data.names,
        row_names=AXES,
        column_values=np.fft.rfftfreq(WINDOW, 1 / RATE).tolist(),
        xlabel="frequency in Hz",
        ylabel="axis",
    )


def in_spreads(model: Any, X: np.ndarray) -> Any:
    """The model for spectra in units of their spread: what weighs much there is what changes scores."""
    spread = X.std(axis=0)
    rows, columns = np.sqrt((spread**2).mean(axis=1)), np.sqrt((spread**2).mean(axis=0) / (spread**2).mean())
    copy = type(model).from_config(model.get_config())
    A, B = model.factors()
    copy.head.assign_factors(A * rows[:, None], B * columns[:, None])
    return copy


if __name__ == "__main__":
    main()
