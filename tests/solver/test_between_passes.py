import numpy as np
import pytest
from keras import ops

from keras_bilinear.maths import penalties
from keras_bilinear.maths.bilinear import Factors, Samples
from keras_bilinear.solver.between_passes import TRIALS, Tilted, after, doubted, first_line, shortened
from keras_bilinear.solver.blocks import flatten, pose_linear
from keras_bilinear.solver.descent import DAMPINGS
from keras_bilinear.solver.images import Images
from keras_bilinear.solver.joint import pose, shifted
from keras_bilinear.solver.joint_curvature import curvature_of
from keras_bilinear.solver.linear_cg import inner
from keras_bilinear.solver.streamed import FactorsOnSketch, KernelOnSketch
from tests import reference
from tests.problems import one_hot, planted, random_factors

ALPHA = 0.05
tensor = ops.convert_to_tensor


class Case:
    """A model in float64, bilinear or linear, on 60 images of which the first 40 are the sketch."""

    def __init__(self, linear, bias, K=3, penalty=penalties.Product):
        self.problem, rng, self.penalty = planted(T=60, K=K), np.random.default_rng(0), penalty
        self.C, self.s = one_hot(self.problem.y, K), rng.random(60) + 0.5
        beta = tensor(rng.normal(size=K)) if bias else None
        if linear:
            self.at = tensor(0.3 * rng.normal(size=(30, K))), beta
        else:
            self.at = Factors(*map(tensor, random_factors(2, 6, 5, K)), beta)
        X, samples = Images(tensor(self.problem.X[:40])), Samples(tensor(self.C[:40]), tensor(self.s[:40] / 40))
        alpha = tensor(ALPHA, dtype="float64")
        if linear:
            self.sketch = KernelOnSketch(X, samples, alpha, False)
        else:
            self.sketch = FactorsOnSketch(X, samples, alpha, penalty, False)

    def objective(self, d):
        """J of all images at U + d, in loops."""
        W, bias = map(np.asarray, self.sketch.filters(self.sketch.moved(self.at, tensor(d))))
        z = np.einsum("kmn,tmn->tk", W, self.problem.X) + bias
        return reference.cross_entropy(z, self.C, self.s) + float(
            self.sketch.penalty(self.sketch.moved(self.at, tensor(d)))
        )

    def sums(self):
        """G and the shares of all images, in loops."""
        W, bias = map(np.asarray, self.sketch.filters(self.at))
        z = np.einsum("kmn,tmn->tk", W, self.problem.X) + bias
        residual = self.s[:, None] * (reference.probabilities(z) - self.C) / 60
        return tensor(np.einsum("tk,tmn->kmn", residual, self.problem.X)), tensor(residual.sum(axis=0))


cases = pytest.mark.parametrize(
    ("linear", "bias", "K"), [(False, False, 3), (False, True, 1), (True, False, 1), (True, True, 3)]
)


@cases
def test_the_next_line_falls_by_the_gradient_of_all_images(linear, bias, K):
    case = Case(linear, bias, K)
    zero = np.zeros(case.sketch.flat(case.at).shape)
    line = case.sketch.next_line(case.at, *case.sums(), first_line(tensor(zero)))
    np.testing.assert_allclose(line.g, reference.finite_difference(case.objective, zero), atol=1e-6)
    slope = float(inner(line.g, line.d))
    assert slope == pytest.approx(-float(line.gh))
    assert slope < 0
    steps = np.array(line.steps)
    np.testing.assert_allclose(steps / steps[0], np.array(TRIALS) / TRIALS[0])
    assert min(case.objective(step * np.array(line.d)) for step in steps) < case.objective(zero)


@cases
def test_passes_over_all_images_reach_a_stationary_point(linear, bias, K):
    """The whole descent, with nothing of the sketch in its objective."""
    case = Case(linear, bias, K)
    zero = np.zeros(case.sketch.flat(case.at).shape)
    line, J = case.sketch.next_line(case.at, *case.sums(), first_line(tensor(zero))), [case.objective(zero)]
    start, failures = float(ops.norm(line.g)), 0
    for _ in range(60):
        tried = [case.objective(step * np.array(line.d)) for step in np.array(line.steps)]
        best = int(np.argmin(tried))
        falls = tried[best] < J[-1]
        failures = 0 if falls else failures + 1
        if falls:
            case.at = case.sketch.moved(case.at, line.steps[best] * line.d)
            J.append(tried[best])
        line = case.sketch.next_line(case.at, *case.sums(), after(line, best) if falls else doubted(line))
        line = shortened(line, failures)
    assert float(ops.norm(line.g)) < 1e-3 * start
    assert np.all(np.diff(J) < 0)


@pytest.mark.parametrize("bias", [False, True])
def test_what_bends_is_cut_where_it_would_outweigh_the_penalty(bias):
    """alpha on either side of G_k: with singular values of alpha at most, no curvature is negative."""
    case = Case(False, bias, penalty=penalties.Sum)
    G, shares = case.sums()
    bend = np.array(case.sketch.bend(case.at, G, shares))
    about = np.array(G) - (np.array(shares)[:, None, None] * np.array(case.sketch.X.mean()) if bias else 0)
    for cut, whole in zip(bend, about, strict=True):
        sigma = np.linalg.svd(whole, compute_uv=False)
        np.testing.assert_allclose(np.linalg.svd(cut, compute_uv=False), np.minimum(sigma, ALPHA), atol=1e-12)
        assert sigma[0] > ALPHA  # or nothing would be cut
    np.testing.assert_allclose(case.sketch.bend(case.at, 1e-3 * G, 1e-3 * shares), 1e-3 * about, atol=1e-12)
    assert Case(False, bias).sketch.bend(case.at, G, shares) is None  # of the product penalty


@pytest.mark.parametrize("linear", [False, True])
def test_the_tilt_counts_along_a_path(linear):
    case = Case(linear, bias=True)
    X, samples = case.sketch.X, case.sketch.samples
    alpha = tensor(ALPHA, dtype="float64")
    if linear:
        problem, U = pose_linear(X, samples, *case.at, alpha), flatten(case.at[0][None], case.at[1])
    else:
        inverse = curvature_of(X, samples, case.at, alpha, case.penalty).inverted()
        problem = pose(X, case.at, alpha, case.penalty, inverse)
        U = problem.layout.join(*shifted(case.at, problem.mean, 1))
    rng = np.random.default_rng(1)
    d, tilt = (tensor(rng.normal(size=U.shape)) for _ in range(2))
    plain, tilted = problem.path(U, d).penalty, Tilted(problem, tilt).path(U, d).penalty
    for eta in (0.0, 0.3):
        value, slope, bend = (np.array(b) - np.array(a) for a, b in zip(plain(eta), tilted(eta), strict=True))
        assert value == pytest.approx(eta * float(inner(tilt, d)))
        assert slope == pytest.approx(float(inner(tilt, d)))
        assert bend == pytest.approx(0, abs=1e-12)


def test_doubt_shortens_and_forgets():
    line = first_line(ops.ones((2, 2)))._replace(gh=tensor(2.0), steps=tensor([0.1, 0.5]))
    worse = doubted(line)
    assert float(worse.gh) == 0
    assert float(worse.damping) == pytest.approx(min(3 * float(line.damping), DAMPINGS[1]))
    np.testing.assert_allclose(shortened(line, 2).steps, np.array(line.steps) / 64)
    assert float(after(line, 0).damping) > float(line.damping)
    assert float(after(line, 1).damping) == float(line.damping)
