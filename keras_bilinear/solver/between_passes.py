"""The step between two readings of the images, found on a sketch, a part of them that is kept in memory.

A reading leaves V and its gradient at the steps that were tried. The best of them is taken. From there the sketch
tells the way without a further reading: its curvature turns the exact gradient into a Newton step, conjugate
gradients join that to the steps before, and a line search on J of the sketch, tilted to the exact gradient, tells
about how far. The next reading tries some steps around that.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from keras import ops

from keras_bilinear.maths import bilinear as bm
from keras_bilinear.maths.bilinear import Samples, Tensor
from keras_bilinear.solver.descent import FIRST_DAMPING, Path, Point, Problem, Sketch, Step, adapted, line_search
from keras_bilinear.solver.directions import conjugate_gradient
from keras_bilinear.solver.linear_cg import inner

TRIALS = (0.5, 0.8, 1.1)
"""The steps that a reading tries, in terms of the one that the sketch proposes."""
BEGINNING = (1.0, 0.5, 0.0)
"""The same of the first reading."""
MOST_CG, TARGET = 60, 1e-4
"""Linear conjugate gradient products for a Newton step: more than where an iteration costs no reading."""
SHRINK = 1 / 8
"""Where no step that was tried lowers J, the next are so much shorter."""


class Line(NamedTuple):
    """What the next reading looks at, U + eta d, and what the next step must know of this one.

    Fields:
        d: The direction, shaped like U.
        steps: The eta that are tried, (n - 1,).
        g: The gradient at U.
        gh: g^T h there, h being the Newton step on the sketch; 0 where nothing is known of it.
        damping: Of the sketch.
    """

    d: Tensor
    steps: Tensor
    g: Tensor
    gh: Tensor
    damping: Tensor


class Streamable(Problem, Protocol):
    """A problem on a sketch, whose gradient can be that of all images."""

    def gradient_of_sums(self, U: Tensor, G: Tensor, shares: Tensor) -> Tensor:
        """dJ/dU given dV/dW = G (K, M, N) and dV/dbias = shares (K,) of all images."""


class Tilted(NamedTuple):
    """J of the sketch and <tilt, U>: at one U it has the gradient of J of all images.

    Fields:
        problem: On the sketch.
        tilt: Shaped like U.
    """

    problem: Problem
    tilt: Tensor

    def path(self, U: Tensor, d: Tensor) -> Path:
        """The way from U along d; the tilt counts with the penalty."""
        path, slope = self.problem.path(U, d), inner(self.tilt, d)

        def penalty(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, rise, bend = path.penalty(eta)
            return value + eta * slope, rise + slope, bend

        return path._replace(penalty=penalty)


def next_line(
    problem: Streamable,
    samples: Samples,
    damping: Tensor,
    U: Tensor,
    G: Tensor,
    shares: Tensor,
    last: Line,
    bent: Callable[[Tensor], Tensor] = ops.zeros_like,
) -> Line:
    """Where to look next, given the sums of a reading at U.

    Args:
        problem: J on the sketch.
        samples: Of the sketch, with the weight of all images.
        damping: Of its curvature for a trust of 1, shaped like U.
        U: Where the descent stands.
        G: dV/dW there, of all images, (K, M, N).
        shares: dV/dbias there, (K,).
        last: What the reading looked at.
        bent: What the curvature of Gauss and Newton lacks, as `Sketch.newton_step` takes it.
    """
    z = problem.logits(U)
    p = bm.probabilities(z)
    g = problem.gradient_of_sums(U, G, shares)
    h = Sketch(problem, samples, damping).newton_step(U, g, last.damping, MOST_CG, TARGET, bent)
    J = bm.cross_entropy(z, *samples) + problem.penalty(U)
    point = Point(U, z, J, p, g)
    d = conjugate_gradient(problem, samples, point, h, Step(last.g, last.gh, last.d))
    d = ops.reshape(d, ops.shape(U))  # of the last line a graph knows no shape, but K = 1 must be known
    model = Tilted(problem, g - problem.gradient(U, samples.residual(p)))
    eta, _ = line_search(model.path(U, d), samples, z, J, inner(g, d))
    eta = ops.where(eta > 0, eta, ops.ones_like(eta))  # the sketch finds nothing: what all images say is open
    return Line(d, eta * ops.convert_to_tensor(TRIALS, U.dtype), g, inner(g, h), last.damping)


def after(line: Line, chosen: int) -> Line:
    """The line once step number `chosen` has been taken, with the damping that it asks for."""
    return line._replace(damping=adapted(line.damping, line.steps[chosen]))


def doubted(line: Line) -> Line:
    """The line once none of its steps has lowered J: with more damping, and the next owes nothing to it."""
    return forgotten(line)._replace(damping=adapted(line.damping, ops.zeros_like(line.damping)))


def forgotten(line: Line) -> Line:
    """The line to which the next direction owes nothing."""
    return line._replace(gh=ops.zeros_like(line.gh))


def shortened(line: Line, failures: int) -> Line:
    """The next line after so many readings that found nothing."""
    return line._replace(steps=SHRINK**failures * line.steps)


def first_line(d: Tensor) -> Line:
    """The line towards what was found on the sketch alone; its last step is none, whose gradient is wanted too."""
    zero = ops.zeros((), d.dtype)
    return Line(d, ops.convert_to_tensor(BEGINNING, d.dtype), ops.zeros_like(d), zero, zero + FIRST_DAMPING)
