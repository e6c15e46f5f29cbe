"""What `benchmark_training.py` times: our solver, and named peers that minimise the same J from the same start."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import keras
import numpy as np
from benchmark_inner import Autodiff, as_written
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import keras_bilinear as kb
from keras_bilinear.maths.penalties import PENALTIES


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
    """What a solver did: seconds and J along the way, compile seconds, W (K, M, N) or None.

    `searches` are the line searches made by then; other solvers than ours leave it empty.
    """

    seconds: list[float]
    J: list[float]
    compile: float
    W: np.ndarray | None
    searches: tuple[int, ...] = ()

    def time_to(self, J: float) -> float:
        return self.first_of(self.seconds, J)

    def searches_to(self, J: float) -> float:
        return self.first_of(self.searches, J)

    def first_of(self, course: Sequence[float], J: float) -> float:
        """What stood in `course` where J was reached."""
        reached = [value for value, objective in zip(course, self.J, strict=True) if objective <= J]
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
        self.searches: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run.seconds.append(time.perf_counter() - self.begin)
        self.run.J.append(logs["objective"])
        self.searches.append(int(logs["inner_iterations"]))
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
    searches = tuple(accumulate(record.searches))
    return record.run._replace(
        seconds=seconds, compile=compile_seconds, W=model.weight_matrices(), searches=searches
    )


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
    layer = kb.BilinearDense(10, problem.rank, factor_penalty=PENALTIES[problem.penalty](problem.alpha))
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
