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
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from benchmark_inner import Autodiff, as_written, mnist
from matplotlib.figure import Figure
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import keras_bilinear as kb
from keras_bilinear.maths.penalties import PENALTIES, get

LEAST_KNOWN_J = {
    (5120, 3, "product", 1e-3): 0.30791,
    (5120, 4, "sum", 1e-3): 0.28266,
    (60_000, 4, "sum", 1e-4): 0.2715,
}


def data(name: str, samples: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test images in [0, 1], each with their classes."""
    if name == "mnist":
        return mnist(f"train[:{samples}]"), mnist("test")
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 8, 8)
    return (x[:1300], y[:1300]), (x[1300:], y[1300:])


class Problem(NamedTuple):
    """Images and labels, and the model that is fitted to them."""

    x: np.ndarray
    y: np.ndarray
    rank: int
    penalty: str
    alpha: float

    def model(self) -> kb.BilinearSoftmaxRegression:
        return kb.BilinearSoftmaxRegression(
            10, self.rank, self.alpha, self.penalty, input_shape=self.x.shape[1:], seed=0
        )


class Run(NamedTuple):
    """What a solver did: seconds and J along the way, compile seconds, W (K, M, N) or None."""

    seconds: list[float]
    J: list[float]
    compile: float
    W: np.ndarray | None

    def time_to(self, J: float) -> float:
        reached = [second for second, value in zip(self.seconds, self.J, strict=True) if value <= J]
        return reached[0] if reached else float("inf")


def follow(steps: Iterator[float], budget: float, goal: float, compile_seconds: float) -> Run:
    """Runs the steps, each of which gives J, until they end, J reaches the goal or the budget is spent."""
    run, begin = Run([], [], compile_seconds, None), time.perf_counter()
    for J in steps:
        run.seconds.append(time.perf_counter() - begin)
        run.J.append(J)
        if goal >= J or run.seconds[-1] > budget:
            break
    return run


class Record(keras.callbacks.Callback):
    """Notes time and J after every sweep, and stops at the goal or when the budget is spent."""

    def __init__(self, budget: float, goal: float):
        super().__init__()
        self.run, self.budget, self.goal = Run([], [], 0.0, None), budget, goal

    def on_train_begin(self, logs: Any = None) -> None:
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run.seconds.append(time.perf_counter() - self.begin)
        self.run.J.append(logs["objective"])
        if self.run.seconds[-1] > self.budget or self.run.J[-1] <= self.goal:
            self.model.stop_training = True


def ours(problem: Problem, budget: float, goal: float, jit: bool | str = "auto", **solver: Any) -> Run:
    """`fit` with BlockLineSearch; a first short fit compiles and is timed apart."""
    model = problem.model()
    model.compile(kb.BlockLineSearch(**solver), jit_compile=jit)
    start, begin = model.factors(), time.perf_counter()
    model.fit(problem.x, problem.y, epochs=1, verbose=0)
    compile_seconds = time.perf_counter() - begin
    model.head.assign_factors(*start)
    record = Record(budget, goal)
    begin = time.perf_counter()
    model.fit(problem.x, problem.y, epochs=100_000, verbose=0, callbacks=[record])
    # From the call of fit on: checking and handing over the data is part of it.
    lead = time.perf_counter() - begin - record.run.seconds[-1]
    seconds = [second + lead for second in record.run.seconds]
    return record.run._replace(seconds=seconds, compile=compile_seconds, W=model.weight_matrices())


def naive(problem: Problem, budget: float, goal: float, sweeps: int = 3) -> Run:
    """The paper's algorithm by autodiff of the formula as written: each block descends until it stalls, in turn.

    A block has as many iterations, and stalls by the same rule, as in `BlockLineSearch(blocks="factor")`.
    """
    solver = kb.BlockLineSearch(blocks="factor")
    descent = Autodiff(as_written, problem.model().factors(), problem.x, problem.y, problem.penalty, problem.alpha)
    before = [variable.numpy() for variable in descent.blocks]
    begin = time.perf_counter()
    for block in range(len(descent.blocks)):
        descent.step((block,))
    compile_seconds = time.perf_counter() - begin
    for variable, value in zip(descent.blocks, before, strict=True):
        variable.assign(value)

    def steps() -> Iterator[float]:
        for _ in range(sweeps):
            for block in range(len(descent.blocks)):
                last = np.inf
                for _ in range(solver.max_inner):
                    J = float(descent.step((block,)))
                    yield J
                    if last - J <= solver.tolerance * J:
                        break
                    last = J

    return follow(steps(), budget, goal, compile_seconds)


def adam(problem: Problem, budget: float, goal: float) -> Run:
    """Plain Keras: Adam on mini-batches of 128, all factors at once; J is taken after every epoch, not timed."""
    layer = kb.BilinearDense(10, problem.rank, factor_penalty=get(problem.penalty, problem.alpha))
    network = keras.Sequential([keras.Input(problem.x.shape[1:]), layer, keras.layers.Softmax()])
    network.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", jit_compile=False)
    model = problem.model()
    layer.assign_factors(*model.factors())
    begin = time.perf_counter()
    network.fit(problem.x[:128], problem.y[:128], verbose=0)
    run, seconds = Run([], [], time.perf_counter() - begin, None), 0.0
    while seconds < budget and (not run.J or run.J[-1] > goal):
        begin = time.perf_counter()
        network.fit(problem.x, problem.y, batch_size=128, verbose=0)
        seconds += time.perf_counter() - begin
        model.head.assign_factors(layer.A, layer.B)
        run.seconds.append(seconds)
        run.J.append(model.objective(problem.x, problem.y))
    return run._replace(W=model.weight_matrices())


def scipy_lbfgs(problem: Problem, budget: float, goal: float) -> Run:
    """SciPy's L-BFGS-B on all factors, with NumPy gradients and W merged."""
    A0, B0 = problem.model().factors()
    (L, M, K), N, T = A0.shape, B0.shape[1], len(problem.x)
    X, C = problem.x.reshape(T, -1), np.eye(10, dtype="float32")[problem.y]
    penalty, trace = PENALTIES[problem.penalty], Run([], [], 0.0, None)

    def split(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = u.astype("float32")
        return u[: L * M * K].reshape(L, M, K), u[L * M * K :].reshape(L, N, K)

    def J_and_gradient(u: np.ndarray) -> tuple[float, np.ndarray]:
        A, B = split(u)
        z = X @ np.einsum("lmk,lnk->mnk", A, B).reshape(-1, K)
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        total = p.sum(axis=1, keepdims=True)
        G = (X.T @ ((p / total - C) / T)).reshape(M, N, K)
        rA, rB = (np.asarray(part) for part in penalty.gradient(A, B))
        gA = np.einsum("mnk,lnk->lmk", G, B) + problem.alpha * rA
        gB = np.einsum("mnk,lmk->lnk", G, A) + problem.alpha * rB
        J = np.mean(np.log(total[:, 0]) - (C * z).sum(axis=1)) + problem.alpha * float(penalty.value(A, B))
        trace.seconds.append(time.perf_counter() - begin)
        trace.J.append(float(J))
        return float(J), np.concatenate([gA.ravel(), gB.ravel()]).astype("float64")

    def stop(u: np.ndarray) -> None:
        if trace.seconds[-1] > budget or trace.J[-1] <= goal:
            raise StopIteration

    begin = time.perf_counter()
    start = np.concatenate([A0.ravel(), B0.ravel()]).astype("float64")
    end = minimize(J_and_gradient, start, jac=True, method="L-BFGS-B", callback=stop, options={"maxiter": 10_000})
    return trace._replace(W=np.einsum("lmk,lnk->kmn", *split(end.x)))


def linear(problem: Problem, solver: str) -> Run:
    """scikit-learn's linear soft-max regression on the pixels, without intercept, to its own tolerance."""
    X, T = problem.x.reshape(len(problem.x), -1), len(problem.x)
    model = LogisticRegression(C=1 / (problem.alpha * T), solver=solver, fit_intercept=False, max_iter=1000)
    begin = time.perf_counter()
    model.fit(X, problem.y)
    return Run([time.perf_counter() - begin], [float("nan")], 0.0, model.coef_.reshape(10, *problem.x.shape[1:]))


def compare(problem: Problem, test: tuple[np.ndarray, np.ndarray], budget: float, out: Path) -> None:
    """Runs all solvers one after the other, prints the table and draws J against time."""
    known = LEAST_KNOWN_J.get((len(problem.x), *problem[2:]))
    goal = known or 0.0
    runs = {
        "ours": ours(problem, budget, goal),
        "ours, compiled with XLA": ours(problem, budget, goal, jit=True),
        "the paper's (ours, factor by factor)": ours(
            problem, budget, goal, blocks="factor", inner="gradient_descent"
        ),
        "the paper's, naive autodiff": naive(problem, budget, goal),
        "Keras Adam, all factors": adam(problem, budget, goal),
        "SciPy L-BFGS-B, all factors": scipy_lbfgs(problem, budget, goal),
        "scikit-learn LSR, lbfgs": linear(problem, "lbfgs"),
        "scikit-learn LSR, newton-cg": linear(problem, "newton-cg"),
    }
    least = min(min(run.J) for name, run in runs.items() if "LSR" not in name)
    star = min(known or least, least)
    yardstick = runs["scikit-learn LSR, lbfgs"].seconds[-1]
    print(
        f"\n{len(problem.x):,} images, L = {problem.rank}, {problem.penalty} penalty, alpha = {problem.alpha:g}; "
        f"J* = {star:.5f}"
    )
    figure = Figure(figsize=(6.4, 4.8))
    panel = figure.add_subplot()
    print("seconds (as a fraction of scikit-learn lbfgs)".rjust(76))
    print(f"{'':38}{'compile':>9}{'to 1.01 J*':>17}{'to 1.001 J*':>17}{'end J':>10}{'accuracy':>10}")
    for name, run in runs.items():
        goals = (run.seconds[-1],) * 2 if "LSR" in name else (run.time_to(1.01 * star), run.time_to(1.001 * star))
        cells = "".join(
            f"{second:9.2f} ({second / yardstick:5.2f})" if np.isfinite(second) else f"{'-':>17}"
            for second in goals
        )
        right = (
            ""
            if run.W is None
            else f"{np.mean(np.argmax(np.tensordot(test[0], run.W, ((1, 2), (1, 2))), 1) == test[1]):10.4f}"
        )
        print(f"{name:38}{run.compile:9.2f}{cells}{run.J[-1]:10.5f}{right}", flush=True)
        if "LSR" not in name:
            panel.plot(run.seconds, np.array(run.J) / star - 1, label=name)
    print(f"- not within {budget:g} s")
    slow, fast = runs["the paper's, naive autodiff"], runs["ours"]
    ratio = slow.seconds[-1] / fast.time_to(slow.J[-1])
    print(f"J = {slow.J[-1]:.5f}, where naive autodiff is after {slow.seconds[-1]:.1f} s, took {ratio:.0f} x ours.")
    panel.axvline(yardstick, color="grey", linestyle=":", label="scikit-learn LSR, lbfgs: whole fit")
    panel.loglog()
    panel.set(ylim=(1e-5, 10), xlabel="seconds, without compilation", ylabel="$(J - J^*) / J^*$")
    panel.legend(fontsize=7)
    out.mkdir(parents=True, exist_ok=True)
    picture = out / f"training-{len(problem.x)}-{problem.rank}-{problem.penalty}.png"
    figure.savefig(picture, dpi=150, bbox_inches="tight")
    print(f"Written: {picture}")


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
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    if options.growth:
        growth()
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
