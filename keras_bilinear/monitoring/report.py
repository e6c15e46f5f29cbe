"""What a fit did and why it ended, to print or to see in a notebook."""

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_bilinear.monitoring.advice import advice
from keras_bilinear.monitoring.fit_facts import Head
from keras_bilinear.monitoring.fit_record import FitRecord
from keras_bilinear.stopping.certificate import Certificate, effective_ranks

WIDTH = 116
RECENT = 5
"""So many sweeps or epochs at the end are shown."""
MOST_BLOCKS, STEEPEST = 12, 8
"""Of more blocks only those with the largest gradients are shown."""
MOST_CLASSES = 32
"""Of more classes, only how many have each effective rank is shown."""
DOTS = 120
"""A curve has so many points at most."""


class BlockReport(NamedTuple):
    """What a block did in a fit.

    Fields:
        name: As in `model.block_names`.
        updates: Line searches or gradient steps it took.
        grad_norm: |gradient| at its last step; NaN for a block that never had a turn.
        was_up: Whether it had a turn.
    """

    name: str
    updates: int
    grad_norm: float
    was_up: bool


@dataclass(frozen=True, eq=False, repr=False)  # arrays are neither equal nor short
class ConvergenceReport:
    """What the last fit of a model did and why it ended. `print` shows it as text, a notebook as a small table.

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

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        paragraphs = [
            [self.model, *self.summary()],
            self.progress_table().lines(),
            self.block_table().lines(),
            [*self.rank_lines(), *self.certificate_lines()],
            [f"Warning: {warning}" for warning in self.warnings],
        ]
        return "\n\n".join("\n".join(map(wrapped, lines)) for lines in paragraphs if lines)

    def _repr_html_(self) -> str:
        row = "display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start;margin:.6em 0"
        warning = "border-left:3px solid #d9822b;padding-left:.6em;margin:.4em 0"
        first, *others = self.summary()
        tables = self.progress_table().html() + self.block_table().html() + self.sparkline()
        return "".join(
            [
                '<div style="color:inherit;font-size:90%;line-height:1.4;max-width:60em">',
                f"<div><b>{html.escape(self.model)}</b></div><div><b>{html.escape(first)}</b></div>",
                *(f"<div>{html.escape(line)}</div>" for line in others),
                f'<div style="{row}">{tables}</div>' if tables else "",
                *(f"<div>{html.escape(line)}</div>" for line in (*self.rank_lines(), *self.certificate_lines())),
                *(f'<div style="{warning}">{html.escape(text)}</div>' for text in self.warnings),
                "</div>",
            ]
        )

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

    def progress_table(self) -> "Table":
        """J and its improvement at the end."""
        rows = [
            (str(step), f"{J:#.6g}", small(improvement))
            for step, J, improvement in zip(self.steps, self.objectives, self.improvements, strict=True)
        ]
        return Table((self.step_name, "J", "improvement"), rows[-RECENT:])

    def block_table(self) -> "Table":
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
        text = f"J = {proof.objective:#.6g} is at most {proof.gap:.1e} ({share:.1e} of it) above the optimum{ratio}"
        return [f"certificate: {text}. {proof.note}"]

    def sparkline(self) -> str:
        """The improvements as an SVD curve on a logarithmic scale; empty if there are less than two above 0."""
        seen = np.flatnonzero(np.isfinite(self.improvements) & (self.improvements > 0))
        if len(seen) < 2:
            return ""
        dots = seen[np.unique(np.linspace(0, len(seen) - 1, DOTS).astype(int))]
        height = np.log10(self.improvements[dots])
        low, high = height.min(), height.max()
        x = 3 + 214 * (dots - dots[0]) / (dots[-1] - dots[0])
        y = 3 + 64 * (high - height) / max(high - low, 1.0)  # a decade at least: noise is no curve
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        caption = (
            f"improvement of J in each {self.step_name}, from {self.improvements[seen].max():.1e} to "
            f"{self.improvements[seen].min():.1e}, log scale"
        )
        return (
            f'<div><svg width="220" height="70" role="img" aria-label="{caption}"><polyline points="{points}" '
            'fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
            f'<div style="font-size:85%;opacity:.75;width:220px">{caption}</div></div>'
        )


class Table(NamedTuple):
    """Columns with a header: the same as text and as HTML."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """A line for each row, the first column to the left where it holds names."""
        if not self.rows:
            return []
        cells = [self.header, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        return ["  ".join(self.aligned(row, widths)).rstrip() for row in cells]

    def aligned(self, row: tuple[str, ...], widths: list[int]) -> list[str]:
        """The cells of a row, padded."""
        first = row[0].ljust(widths[0]) if self.is_named else row[0].rjust(widths[0])
        return [first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]

    @property
    def is_named(self) -> bool:
        """Whether the first column holds names, and no numbers."""
        return not all(row[0].isdigit() for row in self.rows)

    def html(self) -> str:
        """A table element; empty without rows."""
        if not self.rows:
            return ""
        styles = ["text-align:left" if self.is_named else RIGHT, *[RIGHT] * (len(self.header) - 1)]
        head = "".join(cell("th", text, style) for text, style in zip(self.header, styles, strict=True))
        lines = ["".join(cell("td", *pair) for pair in zip(row, styles, strict=True)) for row in self.rows]
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return f'<table style="margin:0"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


RIGHT = "text-align:right"


def cell(tag: str, text: str, style: str) -> str:
    """One cell, in the colours of the page around it."""
    return f'<{tag} style="{style};padding:0 .6em;background:none">{html.escape(text)}</{tag}>'


def report_of(record: FitRecord, model: Any) -> ConvergenceReport:
    """The report of a fit; ranks and filters are those the model has now."""
    filters = model.filters() if model.built else {}
    sigma = {
        name: np.linalg.svd(np.where(np.isfinite(W), W, 0.0).astype("float64"), compute_uv=False)
        for name, W in filters.items()
    }
    fits = [(epoch.sweeps if record.is_by_sweep else epoch.number) for epoch in record.epochs]
    blocks = zip(record.block_names, record.updates, record.grad_norms, record.was_up, strict=True)
    return ConvergenceReport(
        model=f"{type(model).__name__}: {'; '.join([*described(record.heads), record.solver])}",
        is_exact=record.is_exact,
        converged=record.converged,
        reason=record.reason,
        epochs=len(record.epochs),
        sweeps=record.sweeps - record.start.sweeps,
        total_sweeps=record.sweeps,
        seconds=record.seconds,
        objective=record.objective,
        penalty=record.penalty,
        cross_entropy=record.cross_entropy,
        objectives=np.array([epoch.objective for epoch in record.epochs]),
        improvements=np.array([epoch.improvement for epoch in record.epochs]),
        steps=np.array(fits, int),
        step_name="sweep" if record.is_by_sweep else "epoch",
        blocks=tuple(
            BlockReport(name, int(updates), float(norm), bool(was_up)) for name, updates, norm, was_up in blocks
        ),
        ranks={head.name: head.rank or sigma[head.name].shape[1] for head in record.heads if head.name in sigma},
        effective_ranks={name: effective_ranks(values) for name, values in sigma.items()},
        certificate=record.certificate,
        warnings=tuple(advice(record, model, filters)),
    )


def described(heads: list[Head]) -> list[str]:
    """The size of each layer and its penalty; its name, too, if there are several."""
    texts = []
    for head in heads:
        name = f"{head.name} with " if len(heads) > 1 else ""
        rank = "" if head.rank is None else f", L = {head.rank}"
        penalty = "no penalty" if head.penalty == "no" else f"{head.penalty} penalty, alpha = {head.alpha:g}"
        texts.append(f"{name}K = {head.units}{rank}, {penalty}")
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
