"""What a fit did and why it ended, to print or to see in a notebook."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bilinear.monitoring.advice import advice
from keras_bilinear.monitoring.fit_facts import Head
from keras_bilinear.monitoring.fit_record import BlockReport, FitRecord
from keras_bilinear.parts.model_protocol import BlockModel
from keras_bilinear.stopping.certificate import Certificate, effective_ranks
from keras_bilinear.tables import Report, Table, percent

WIDTH = 116
RECENT = 5
"""So many sweeps or epochs at the end are shown."""
MOST_BLOCKS, STEEPEST = 12, 8
"""Of more blocks only those with the largest gradients are shown."""
MOST_CLASSES = 32
"""Of more classes, only how many have each effective rank is shown."""


@dataclass(frozen=True, eq=False, repr=False)  # arrays are neither equal nor short
class ConvergenceReport(Report):
    """What the last fit of a model did and why it ended. `print` shows it as text, a notebook as tables.

    Attributes:
        model: Class, K, L, penalty and alpha of what was fitted, and the optimizer.
        is_exact: Whether blocks were solved on all images, instead of gradient steps on mini-batches.
        converged: What `BlockConvergence` or `AutomaticRank` says; None without one of these callbacks.
        reason: Why the fit ended, in words.
        epochs: Whole epochs of this fit.
        sweeps: Sweeps that were finished in this fit.
        total_sweeps: Sweeps since the model was made, those before this fit included.
        seconds: How long the fit took, tracing included.
        objective: J at the end; on mini-batches its mean over the last epoch, with whatever other layers add to
            the loss.
        penalty: alpha R at the end.
        cross_entropy: V = J - alpha R; NaN where a fit was broken off within an epoch.
        objectives: J at the end of each epoch, or its mean over it, (epochs,).
        improvements: How much each epoch lowered J, relative to J, (epochs,); in the exact regime from where its
            solver started, as `BlockConvergence` sees it; NaN where that is not known.
        steps: What the epochs are called: the number of the sweep that each ended, or on mini-batches its own.
        step_name: "sweep" or "epoch".
        blocks: One `BlockReport` for each block, in the order of their turns.
        ranks: L of each bilinear layer by its name; of a linear one min(M, N).
        effective_ranks: How many singular values of each W_k count, (K,), by the name of the layer; see
            `keras_bilinear.stopping.certificate`.
        certificate: The last that a callback took in this fit, or None.
        warnings: What to know, and what to do about it, in sentences.
    """

    model: str
    is_exact: bool
    converged: bool | None
    reason: str
    epochs: int
    sweeps: int
    total_sweeps: int
    seconds: float
    objective: float
    penalty: float
    cross_entropy: float
    objectives: np.ndarray
    improvements: np.ndarray
    steps: np.ndarray
    step_name: str
    blocks: tuple[BlockReport, ...]
    ranks: dict[str, int]
    effective_ranks: dict[str, np.ndarray]
    certificate: Certificate | None
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        paragraphs = (aligned(part) if isinstance(part, Table) else part for part in self.paragraphs())
        return "\n\n".join("\n".join(map(wrapped, lines)) for lines in paragraphs)

    def _parts(self) -> Iterator[Table | str]:
        for part in self.paragraphs():
            yield from [part] if isinstance(part, Table) else part

    def paragraphs(self) -> list[Table | list[str]]:
        """Tables and lines that belong together, none of them empty."""
        tables = [table for table in (self.progress_table(), self.block_table()) if table.rows]
        ranks, warnings = [*self.rank_lines(), *self.certificate_lines()], [f"Warning: {w}" for w in self.warnings]
        return [[self.model, *self.summary()], *tables, *filter(None, (ranks, warnings))]

    def summary(self) -> list[str]:
        """How it ended, what it took, and where J is."""
        ending = f"not converged: {self.reason}" if self.converged is False else self.reason
        done = f"{counted(self.sweeps, 'sweep')} in {counted(self.epochs, 'epoch')}, {self.seconds:.1f} s"
        if self.total_sweeps != self.sweeps:
            done += f"; {counted(self.total_sweeps, 'sweep')} in all"
        mean = "" if self.is_exact else " (mean over the last epoch)"
        parts = f" = V + alpha R = {self.cross_entropy:#.6g} + {self.penalty:#.6g}"
        if math.isnan(self.cross_entropy):
            parts = f"; alpha R = {self.penalty:#.6g}"
        J = (
            f"J = {self.objective:#.6g}{mean}{parts}"
            if self.epochs
            else f"no whole epoch; alpha R = {self.penalty:#.6g}"
        )
        return [ending[0].upper() + ending[1:], done, J]

    def progress_table(self) -> Table:
        """J and its improvement at the end."""
        rows = [
            (str(step), f"{J:#.6g}", small(improvement))
            for step, J, improvement in zip(self.steps, self.objectives, self.improvements, strict=True)
        ]
        return Table((self.step_name, "J", "improvement"), rows[-RECENT:])

    def block_table(self) -> Table:
        """What each block did; of many, those that are the farthest from their optimum."""
        blocks, others = list(self.blocks), []
        if len(blocks) > MOST_BLOCKS:
            blocks.sort(key=lambda block: -block.grad_norm if block.grad_norm > 0 else 0.0)
            blocks, others = blocks[:STEEPEST], blocks[STEEPEST:]
        rows = [
            (block.name, f"{block.updates:,}", (small(block.grad_norm) or "nan") if block.was_up else "no turn")
            for block in blocks
        ]
        if others:
            updates = [block.updates for block in others]
            norms = [block.grad_norm for block in others if not math.isnan(block.grad_norm)]
            gradients = span(small(min(norms)), small(max(norms))) if norms else "no turn"
            rows.append((f"{len(others)} others", span(f"{min(updates):,}", f"{max(updates):,}"), gradients))
        return Table(("block", "line searches" if self.is_exact else "updates", "|gradient|"), rows)

    def rank_lines(self) -> list[str]:
        """The effective rank of every class, a line for each layer."""
        lines = []
        for name, ranks in self.effective_ranks.items():
            if len(ranks) > MOST_CLASSES:
                found, classes = np.unique(ranks, return_counts=True)
                text = ", ".join(f"{rank} for {count}" for rank, count in zip(found, classes, strict=True))
                text = f"{text} of {len(ranks)} classes"
            else:
                text = ", ".join(map(str, ranks))
            layer = f" of {name}" if len(self.effective_ranks) > 1 else ""
            lines.append(f"effective ranks{layer}, at most {self.ranks[name]}: {text}")
        return lines

    def certificate_lines(self) -> list[str]:
        """How far J is from the optimum, if that is known."""
        proof = self.certificate
        if proof is None:
            return []
        share = proof.gap / proof.objective if proof.objective else 0.0
        ratio = "" if proof.ratios is None else f", ratio {proof.ratio:.4f}"
        text = f"J = {proof.objective:#.6g} is at most {proof.gap:.1e} ({percent(share)}) above the optimum{ratio}"
        return [f"certificate: {text}. {proof.note}"]


def aligned(table: Table) -> list[str]:
    """Columns with a header, a line for each row. Names stand left in theirs, numbers right."""
    is_named = not all(row[0].isdigit() for row in table.rows)
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for first, *others in (table.header, *table.rows):
        start = first.ljust(widths[0]) if is_named else first.rjust(widths[0])
        lines.append("  ".join([start, *(map(str.rjust, others, widths[1:]))]).rstrip())
    return lines


def report_of(record: FitRecord, model: BlockModel) -> ConvergenceReport:
    """The report of a fit; ranks and filters are those the model has now."""
    filters = model.filters() if model.built else {}
    sigma = {
        name: np.linalg.svd(np.where(np.isfinite(W), W, 0.0).astype("float64"), compute_uv=False)
        for name, W in filters.items()
    }
    judgement = record.judgement
    return ConvergenceReport(
        model=f"{type(model).__name__}: {'; '.join([*described(record.heads), record.solver])}",
        is_exact=record.is_exact,
        converged=judgement.converged if judgement else None,
        reason=record.reason,
        epochs=len(record.epochs),
        sweeps=record.sweeps - record.sweeps_before,
        total_sweeps=record.sweeps,
        seconds=record.seconds,
        objective=record.objective,
        penalty=record.penalty,
        cross_entropy=record.cross_entropy,
        objectives=np.array([epoch.objective for epoch in record.epochs]),
        improvements=np.array([epoch.improvement for epoch in record.epochs]),
        steps=np.array([epoch.sweeps if record.is_by_sweep else epoch.number for epoch in record.epochs], int),
        step_name="sweep" if record.is_by_sweep else "epoch",
        blocks=record.blocks,
        ranks={head.name: head.rank or sigma[head.name].shape[1] for head in record.heads if head.name in sigma},
        effective_ranks={name: effective_ranks(values) for name, values in sigma.items()},
        certificate=judgement.certificate if judgement else None,
        warnings=tuple(advice(record, model, filters)),
    )


def described(heads: Sequence[Head]) -> list[str]:
    """The size of each layer and its penalty; its name, too, if there are several."""
    texts = []
    for head in heads:
        name = f"{head.name} with " if len(heads) > 1 else ""
        penalty = "no penalty" if head.penalty is None else f"{head.penalty} penalty, alpha = {head.alpha:g}"
        texts.append(f"{name}{head.size}, {penalty}")
    return texts


def small(number: float) -> str:
    """A number of any size in two digits; empty for NaN."""
    return "" if math.isnan(number) else "0" if number == 0 else f"{number:.1e}"


def counted(number: int, noun: str) -> str:
    """ "1 sweep" or "2 sweeps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(low: str, high: str) -> str:
    """ "3" or "3 to 5"."""
    return low if low == high else f"{low} to {high}"


def wrapped(line: str) -> str:
    """Cut into lines that fit, the later ones set in."""
    return line if len(line) <= WIDTH else textwrap.fill(line, WIDTH, subsequent_indent="    ")
