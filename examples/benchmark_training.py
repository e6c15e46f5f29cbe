"""How fast a fit is: ours against the paper's algorithm, autodiff, Adam, SciPy and scikit-learn, in one run.

Every solver minimises the same J on the same images from the same start, alone on the machine; compilation is timed
apart. A solver's time to 1.01 J* (or 1.001 J*) is when J first gets there, with J* the least J known; the linear
model of scikit-learn has its own objective, so its whole fit is what the bilinear times are compared with.

    python examples/benchmark_training.py                                   # MNIST, T = 5,120, L = 3
    python examples/benchmark_training.py --rank 1 2 3 4 --budget 20
    python examples/benchmark_training.py --samples 60000 --rank 4 --penalty sum --alpha 1e-4
    python examples/benchmark_training.py --dataset digits
    python examples/benchmark_training.py --growth                          # time against T, M N, K and L
    python examples/benchmark_training.py --path                            # 10 alphas x 4 ranks against one fit
    python examples/benchmark_training.py --table examples/training.md      # both problems of its table, anew
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmark_inner import mnist
from benchmark_peers import Problem, Record, Run, adam, linear, naive, ours, scipy_lbfgs
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from training_table import NAMES, Column, table, write

import keras_bilinear as kb
from keras_bilinear.maths.penalties import PENALTIES

LEAST_KNOWN_J = {
    (5120, 3, "product", 1e-3): 0.30791,
    (5120, 4, "sum", 1e-3): 0.28266,
    (60_000, 4, "sum", 1e-4): 0.2715,
}
YARDSTICK = "scikit-learn LSR, lbfgs"


def data(name: str, samples: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test images in [0, 1], each with their classes."""
    if name == "mnist":
        return mnist(f"train[:{samples}]"), mnist("test")
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 8, 8)
    return (x[:1300], y[:1300]), (x[1300:], y[1300:])


def solvers(problem: Problem, budget: float, goal: float) -> dict[str, Callable[[], Run]]:
    """What is compared, by name."""
    return {
        "ours": lambda: ours(problem, budget, goal),
        "ours, compiled with XLA": lambda: ours(problem, budget, goal, jit=True),
        "the paper's (ours, factor by factor)": lambda: ours(
            problem, budget, goal, blocks="factor", inner="gradient_descent"
        ),
        "the paper's, naive autodiff": lambda: naive(problem, budget, goal),
        "Keras Adam, all factors": lambda: adam(problem, budget, goal),
        "SciPy L-BFGS-B, all factors": lambda: scipy_lbfgs(problem, budget, goal),
        YARDSTICK: lambda: linear(problem, "lbfgs"),
        "scikit-learn LSR, newton-cg": lambda: linear(problem, "newton-cg"),
    }


def compare(problem: Problem, test: tuple[np.ndarray, np.ndarray], budget: float, out: Path) -> None:
    """Runs all solvers one after the other, prints the table and draws J against time."""
    known = LEAST_KNOWN_J.get((len(problem.x), *problem[2:]))
    goal = known or 0.0
    runs = {name: solve() for name, solve in solvers(problem, budget, goal).items()}
    least = min(min(run.J) for name, run in runs.items() if "LSR" not in name)
    star = min(known or least, least)
    print(
        f"\n{len(problem.x):,} images, L = {problem.rank}, {problem.penalty} penalty, alpha = {problem.alpha:g}; "
        f"J* = {star:.5f}"
    )
    print_table(runs, star, test)
    print(f"- not within {budget:g} s")
    slow, fast = runs["the paper's, naive autodiff"], runs["ours"]
    ratio = slow.seconds[-1] / fast.time_to(slow.J[-1])
    print(f"J = {slow.J[-1]:.5f}, where naive autodiff is after {slow.seconds[-1]:.1f} s, took {ratio:.0f} x ours.")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / f"training-{len(problem.x)}-{problem.rank}-{problem.penalty}.png"
    drawn(runs, star).savefig(picture, dpi=150, bbox_inches="tight")
    print(f"Written: {picture}")


def column(problem: Problem, budget: float, repeats: int) -> Column:
    """Every solver on a problem whose J* is known, ours and scikit-learn's in turns, until 1.001 J*."""
    star = LEAST_KNOWN_J[(len(problem.x), *problem[2:])]
    chosen = {name: solve for name, solve in solvers(problem, budget, 1.001 * star).items() if name in NAMES}
    runs = {name: [solve()] for name, solve in chosen.items()}
    for _ in range(repeats - 1):
        for name in ("ours", YARDSTICK, "scikit-learn LSR, newton-cg"):
            runs[name].append(chosen[name]())
    return Column(problem, runs, star, budget)


def print_table(runs: dict[str, Run], star: float, test: tuple[np.ndarray, np.ndarray]) -> None:
    """A line for each solver."""
    x, y = test
    yardstick = runs[YARDSTICK].seconds[-1]
    print("seconds (as a fraction of scikit-learn lbfgs)".rjust(76))
    print(f"{'':38}{'compile':>9}{'to 1.01 J*':>17}{'to 1.001 J*':>17}{'end J':>10}{'accuracy':>10}")
    for name, run in runs.items():
        goals = (run.seconds[-1],) * 2 if "LSR" in name else (run.time_to(1.01 * star), run.time_to(1.001 * star))
        cells = "".join(
            f"{second:9.2f} ({second / yardstick:5.2f})" if np.isfinite(second) else f"{'-':>17}"
            for second in goals
        )
        right = None if run.W is None else np.argmax(np.tensordot(x, run.W, ((1, 2), (1, 2))), 1) == y
        accuracy = "" if right is None else f"{np.mean(right):10.4f}"
        print(f"{name:38}{run.compile:9.2f}{cells}{run.J[-1]:10.5f}{accuracy}", flush=True)


def drawn(runs: dict[str, Run], star: float) -> Figure:
    """J against time."""
    figure = Figure(figsize=(6.4, 4.8))
    panel = figure.add_subplot()
    for name, run in runs.items():
        if "LSR" not in name:
            panel.plot(run.seconds, np.array(run.J) / star - 1, label=name)
    panel.axvline(runs[YARDSTICK].seconds[-1], color="grey", linestyle=":", label=f"{YARDSTICK}: whole fit")
    panel.loglog()
    panel.set(ylim=(1e-5, 10), xlabel="seconds, without compilation", ylabel="$(J - J^*) / J^*$")
    panel.legend(fontsize=7)
    return figure


def path_against_fit(problem: Problem, test: tuple[np.ndarray, np.ndarray], out: Path) -> None:
    """Prints what 10 alphas with ranks 1..4 cost as a path, against cold fits of rank 4 to the same tolerances.

    Either is all that a user waits for: the path's files and accuracies, the fit's own Keras step. Draws the path.
    """
    alphas, ranks, rtol = np.logspace(-1, -4, 10).tolist(), (1, 2, 3, 4), 1e-3

    def cold(alpha: float) -> tuple[float, float]:
        model = problem._replace(rank=4, alpha=alpha).model()
        solver = kb.BlockLineSearch()
        solver.tolerance = rtol / solver.max_inner
        model.compile(solver)
        begin = time.perf_counter()
        stop = kb.callbacks.BlockConvergence(rtol)
        history = model.fit(problem.x, problem.y, epochs=1000, verbose=0, callbacks=[stop])
        return time.perf_counter() - begin, history.history["objective"][-1]

    cold(1e-2)  # traces the solver
    begin = time.perf_counter()
    path = kb.regularization_path(problem.model(), problem.x, problem.y, alphas, ranks, test, rtol=rtol, verbose=0)
    seconds = time.perf_counter() - begin
    print(f"{path}\n{len(path.points)} fits as a path: {seconds:.2f} s")
    for alpha in (1e-2, 1e-3, 1e-4):
        alone, J = cold(alpha)
        (along,) = (p.objective for p in path.points if p.rank == 4 and np.isclose(p.alpha, alpha))
        print(
            f"  one cold fit, L = 4, alpha = {alpha:g}: {alone:.2f} s to J = {J:.5f} ({along:.5f} on the path); "
            f"the path is {seconds / alone:.1f} of them"
        )
    out.mkdir(parents=True, exist_ok=True)
    kb.plots.plot_path(path, out / "path.png")
    print(f"Written: {out / 'path.png'}")


def seconds_an_iteration(T: int, side: int, K: int, L: int) -> float:
    """Least time of an iteration of the joint solver, its share of a sweep counted in, on random images."""
    rng = np.random.default_rng(0)
    x, y = rng.random((T, side, side), dtype="float32"), rng.integers(0, K, T)
    model = kb.BilinearSoftmaxRegression(K, L, alpha=1e-3, seed=0)
    model.compile(kb.BlockLineSearch(tolerance=0.0))
    record = Record(np.inf, -np.inf)
    model.fit(x, y, epochs=6, verbose=0, callbacks=[record])
    iterations = np.array(model.history.history["inner_iterations"][1:])
    sweeps = np.diff(record.run.seconds)
    full = iterations == iterations.max()  # a sweep that stops early has more than its share of fixed cost
    return float(np.min(sweeps[full] / iterations[full]))


def growth() -> None:
    """Prints how the time of an iteration grows, with the exponent fitted on a log-log scale."""
    base = {"T": 5120, "side": 28, "K": 10, "L": 3}
    ranges = {"T": (5120, 15_000, 60_000), "side": (14, 28, 56), "K": (5, 10, 20), "L": (1, 2, 4)}
    print("milliseconds of an iteration, from " + ", ".join(f"{k} = {v:,}" for k, v in base.items()))
    for name, values in ranges.items():
        times = [seconds_an_iteration(**{**base, name: value}) for value in values]
        sizes = [value**2 if name == "side" else value for value in values]
        exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        row = ", ".join(f"{size:,}: {1e3 * second:.2f}" for size, second in zip(sizes, times, strict=True))
        print(f"  {'M N' if name == 'side' else name:4} {row:45} exponent {exponent:.2f}", flush=True)


def main() -> None:
    """Compares the solvers on one problem, or measures the growth."""
    parser = argparse.ArgumentParser(description="Time to train, against named peers.")
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--samples", type=int, default=5120, help="training images of MNIST")
    parser.add_argument("--rank", type=int, nargs="+", default=[3])
    parser.add_argument("--penalty", choices=sorted(PENALTIES), default="product")
    parser.add_argument("--alpha", type=float, default=1e-3)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a solver may take")
    parser.add_argument("--growth", action="store_true", help="measure time against T, M N, K and L instead")
    parser.add_argument("--path", action="store_true", help="measure a regularisation path instead")
    parser.add_argument("--table", type=Path, help="measure the problems of this page, and write its table anew")
    parser.add_argument("--repeats", type=int, default=3, help="runs of ours and of scikit-learn's for --table")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    if options.growth:
        growth()
        return
    if options.table:
        (x, y), test = data("mnist", 60_000)
        small, large = Problem(x[:5120], y[:5120], 3, "product", 1e-3), Problem(x, y, 4, "sum", 1e-4)
        columns = [
            column(small, options.budget / 3, options.repeats),
            column(large, options.budget, options.repeats),
        ]
        written = table(columns, test, options.repeats)
        print(written)
        write(options.table, written)
        return
    (x, y), test = data(options.dataset, options.samples)
    problems = [Problem(x, y, rank, options.penalty, options.alpha) for rank in options.rank]
    if options.path:
        path_against_fit(problems[0], test, options.out)
        return
    for problem in problems:
        compare(problem, test, options.budget, options.out)


if __name__ == "__main__":
    main()
