"""A run's report: what it found, its JSON, the page that shows it first, and the files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tilewright.embed import Plan, diagnose, plan_html
from tilewright.extras import installed
from tilewright.files import making_folder, write_whole
from tilewright.hlo import Optimized, TimeRow, Verdict, report_html, step_advice, step_lanes
from tilewright.isa import Counts
from tilewright.machine.model import RunData
from tilewright.machine.movement import Movement, Proof
from tilewright.machine.products import LeftOut, MatrixRun
from tilewright.machine.train import Judgement
from tilewright.machine.whole.page import memory_blocks
from tilewright.machine.whole.parts import Memory
from tilewright.render import (
    Bar,
    Card,
    Column,
    Html,
    Page,
    Step,
    badge,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    glance,
    percent_text,
    ratio_text,
    seconds_text,
    steps,
    table,
)
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.formats import place_text
from tilewright.render.markup import element, join
from tilewright.render.page import Tone, code_block, details, note, paragraph, side_by_side
from tilewright.render.tables import glance_table
from tilewright.trace import Recorder, perfetto_bytes


@dataclass(frozen=True)
class RunResults:
    """Everything a run measured.

    ====================  =======================================================================================
    ``plan``              the embeddings on the target: limits, buffers, HBM, padding, imbalance
    ``movement``          the dense step's data movement and the gate's verdicts per target
    ``proof``             how far the rewritten step is from the original
    ``before``, ``after`` loss and AUC on the evaluation rows
    ``losses``            the loss of every training step
    ``matrix``            the dense layers' products on the matrix unit
    ``stages``            stage -> wall seconds
    ``recorder``          the timeline's events
    ``memory``            HBM over the dense step, beside the tables
    ====================  =======================================================================================
    """

    model: str
    target: str
    chips: int
    batch: int
    steps: int
    data: RunData
    plan: Plan
    movement: Movement
    proof: Proof
    before: Judgement
    after: Judgement
    losses: tuple[float, ...]
    matrix: tuple[MatrixRun, ...]
    products_left_out: tuple[LeftOut, ...]
    stages: dict[str, float]
    recorder: Recorder
    peak_rss_bytes: int
    memory: Memory

    @property
    def loss_before(self) -> float:
        """Mean loss on the evaluation rows before training."""
        return self.before.loss

    @property
    def loss_after(self) -> float:
        """Mean loss on the evaluation rows after training."""
        return self.after.loss

    @property
    def auc_before(self) -> float:
        """Area under the ROC curve before training."""
        return self.before.auc

    @property
    def auc_after(self) -> float:
        """Area under the ROC curve after training."""
        return self.after.auc

    @property
    def counts_equal(self) -> bool | None:
        """Whether the matrix unit's counters equal the closed forms for every product; None where there is none."""
        return all(product.counts_equal for product in self.matrix) if self.matrix else None

    @property
    def values_equal(self) -> bool | None:
        """Whether the matrix unit's values equal XLA's within the rounding of float32; None where there is none."""
        return all(product.values_equal for product in self.matrix) if self.matrix else None

    @property
    def failures(self) -> tuple[str, ...]:
        """What the run found to be wrong, in sentences; empty when all agrees."""
        failures = []
        if self.counts_equal is False:
            failures.append("the matrix unit's counts differ from the closed forms")
        if self.values_equal is False:
            failures.append("the matrix unit's values differ from XLA's by more than rounding")
        if not math.isfinite(self.loss_after):
            failures.append(f"training diverged: the loss is {self.loss_after}")
        return tuple(failures)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``; what is not finite (a loss that diverged) becomes None."""
        plain: dict[str, Any] = _finite(self._plain())
        return plain

    def _plain(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "kind": "run",
            **{key: getattr(self, key) for key in ("model", "target", "chips", "batch", "steps")},
            "data": {
                "source": self.data.source,
                "training_rows": len(self.data.train),
                "evaluation_rows": len(self.data.evaluate),
                "held_out": self.data.held_out,
            },
            **{key: getattr(self, key) for key in _FIGURES},
            "losses": list(self.losses),
            "rewrites": {name: [_verdict(v) for v in done.rewrites] for name, done in self.movement.optimized.items()},
            "refusals": {name: [_verdict(v) for v in done.refusals] for name, done in self.movement.optimized.items()},
            "moved": {
                name: {"moved_before": done.moved_before, "moved_after": done.moved_after}
                for name, done in self.movement.optimized.items()
            },
            "modelled_step": {
                "dense_seconds": self.movement.time.seconds,
                "sparse_seconds": self.plan.feeding.step_seconds if self.plan.feeding else None,
                "priced": self.movement.time.priced,
                "notes": list(self.movement.time.notes),
            },
            "max_difference": self.proof.max_difference,
            "proof": asdict(self.proof),
            "counts_equal": self.counts_equal,
            "values_equal": self.values_equal,
            "products": [_product(product) for product in self.matrix],
            "products_left_out": len(self.products_left_out),
            "left_out": [asdict(product) for product in self.products_left_out],
            "plan": self.plan.to_json(),
            "memory": self.memory.to_json(),
            "stages": self.stages,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


_FIGURES = ("loss_before", "loss_after", "auc_before", "auc_after")


def _finite(value: Any) -> Any:
    """The same plain value with None for every number that JSON cannot write."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "region": verdict.region,
        "source": str(verdict.source) if verdict.source else "",
        "moved_before": verdict.moved_before,
        "moved_after": verdict.moved_after,
        "reason": verdict.reason,
    }


def _product(product: MatrixRun) -> dict[str, Any]:
    return {
        "name": product.name,
        "counts": asdict(product.counts),
        "closed_forms": asdict(product.expected),
        "counts_equal": product.counts_equal,
        "above_minimum": list(product.above_minimum),
        "cycles": product.cycles,
        "error": product.error,
    }


_VERDICTS = (
    Column("target", "code"),
    Column("verdict"),
    Column("region"),
    Column("source", "code"),
    Column("moved before", "bytes"),
    Column("after", "bytes"),
    Column("why"),
)
_PRODUCTS = (
    Column("product", "code"),
    Column("instructions", "count", "mm instructions, each a round of K over all its columns"),
    Column("multiply-adds", "count"),
    Column("B on the bus", "count", "elements of B broadcast to all threads"),
    Column("lines touched", "count", "L1 line touches of B"),
    Column("cycles", "count", "by the issue model"),
    Column("counts"),
    Column("values"),
)
_COUNTS = (Column("counter", "code"), Column("the machine", "count"), Column("closed form", "count"), Column(""))


def page(run: RunResults) -> Page:
    """The whole report as a self-contained page."""
    chips = f"{run.chips} chip{'s' if run.chips > 1 else ''} of {run.target}"
    facts = [
        ("target", chips),
        ("steps", f"{run.steps} of {count_text(run.batch)} samples"),
        ("data", run.data.source),
        ("took", seconds_text(sum(run.stages.values()))),
    ]
    document = Page(f"{run.model} on {run.target}", "planned, rewritten, proved, trained and counted", facts=facts)
    document.section("findings", "What to do", *_lead(run))
    document.section("summary", "Summary", *_summary(run))
    document.section("step", f"A modelled step on {run.target}", *_modelled_step(run))
    document.section("plan", "Embedding plan", plan_html(run.plan))
    document.section("memory", f"{run.memory.where} over time", *memory_blocks(run.memory, seconds_text))
    document.section("movement", f"Data movement on {run.target}", *_movement(run))
    document.section("rewrites", f"Rewrites and refusals on {' and '.join(run.movement.optimized)}", *_rewrites(run))
    document.section("training", "Training", *_data(run), *_training(run))
    document.section("matrix-unit", "Matrix unit", *_matrix(run))
    document.section("timings", "Timings", *_timings(run))
    document.data("report", run.to_json())
    return document


_MOST_FINDINGS = 2  # of each kind; the sections below have all


def _lead(run: RunResults) -> list[Html]:
    """What failed; what a step takes and what bounds it; what the run found, as things to do; commands."""
    dense, sparse = run.movement.time, _sparse_seconds(run)
    side = "the SparseCores" if sparse > dense.seconds else "the TensorCore"
    parts = {"the call itself": dense.call_seconds, **dense.by_bound()}
    most = max(parts, key=lambda name: parts[name])
    why = f"; of the TensorCore's {seconds_text(dense.seconds)} most, {seconds_text(parts[most])}, is {most}"
    said = (
        f"A pipelined step takes {seconds_text(max(sparse, dense.seconds))} on {run.target} (modelled, not measured), "
        f"bound by {side}{why}."
    )
    failures = [note(failure, tone="bad") for failure in run.failures]
    commands = details("Commands that lead on", steps(_next_steps(run)), open_=True)
    fits = note(run.memory.sentence, tone="plain" if run.memory.fits else "warn")
    return [*failures, note(said), fits, steps(_findings(run)), commands]


def _findings(run: RunResults) -> list[Step]:
    """The plan's findings, the dense step's slowest lines, the movement's changes that pay."""
    tones: dict[str, Tone] = {"severe": "bad", "warning": "warn"}
    found = [
        Step(
            f"{finding.bottleneck}: {finding.advice[0]}",
            why=finding.cause,
            worth=finding.severity,
            tone=tones[finding.severity],
        )
        for finding in diagnose(run.plan).findings
        if finding.severity in tones
    ]
    changes = [
        Step(
            f"{change.what or change.op}{f', {place_text(change.source)}' if change.source else ''}: {change.how}",
            worth=seconds_text(change.saved_us / 1e6) if change.saved_us else bytes_text(change.saved_bytes),
            tone="good",
        )
        for change in run.movement.report.suggestions[:_MOST_FINDINGS]
    ]
    lines = (line.partition(": ") for line in step_advice(run.movement.time, _MOST_FINDINGS))
    slowest = [Step(words or head, worth=head if words else "") for head, _, words in lines]
    return [*found[:_MOST_FINDINGS], *changes, *slowest]


def _next_steps(run: RunResults) -> list[Step]:
    """What to ask next, as commands."""
    again = f"tilewright run MODEL.py --target {run.target} --chips {run.chips} --batch {run.batch} --out other"
    plan = f"tilewright embed plan LOG --target {run.target} --chips {run.chips} --batch {run.batch} -o limits.json"
    return [
        Step("Change the model, a chip or the batch, run again, and see what that did.",
             f"{again}\ntilewright diff out/report.json other/report.json -o diff.html"),
        Step("Write the limits of the tables for a whole log.", plan),
        Step("Look at every stage and training step on a timeline: open trace.pftrace at ui.perfetto.dev."),
    ]  # fmt: skip


def _sparse_seconds(run: RunResults) -> float:
    return run.plan.feeding.step_seconds if run.plan.feeding else 0.0


def _figures(run: RunResults) -> list[Card]:
    """What a run comes to, figure by figure."""
    moved = run.movement.optimized[run.target]
    equal = bool(run.counts_equal and run.values_equal)
    unit = "equal" if equal else "differs" if run.matrix else "not used"
    dense, sparse = run.movement.time.seconds, _sparse_seconds(run)
    bound = f"bound by the {'SparseCores' if sparse > dense else 'TensorCore'}; modelled"
    return [
        Card("a step", seconds_text(max(dense, sparse)), bound),
        Card(
            "AUC",
            f"{run.auc_after:.4f}",
            f"{run.auc_before:.4f} before training",
            _tone(run.auc_after > run.auc_before),
        ),
        Card("loss", f"{run.loss_after:.4f}", f"{run.loss_before:.4f} before", _tone(run.loss_after < run.loss_before)),
        Card("HBM a chip", bytes_text(run.plan.heap.total), f"of {bytes_text(run.plan.heap.capacity)}"),
        Card("moved for layout", bytes_text(moved.moved_after), f"by reshapes and transposes, on {run.target}"),
        Card("difference", f"{run.proof.max_difference:.1e}", "rewritten against original, largest"),
        Card("matrix unit", unit, _products_note(run), _tone(equal) if run.matrix else "plain"),
    ]


def _summary(run: RunResults) -> list[Html]:
    drawings = side_by_side(_bounds_chart(run), _loss_chart(run, width=460, height=190))
    return [cards(_figures(run)), drawings]


def _bounds_chart(run: RunResults) -> Html:
    step = run.movement.time
    waits = {"the call itself": step.call_seconds, **step.by_bound()}
    bars = [Bar(name, (seconds,)) for name, seconds in waits.items() if seconds]
    title = f"What the TensorCore of {run.target} waits for in a step, modelled"
    return bar_chart(bars, title=title, kind="seconds", width=460)


def _left_out(left: Sequence[LeftOut], taken: int) -> list[Html]:
    """The products that other units are left, with their share."""
    if not left:
        return [paragraph("No product is left to other units.")]
    macs = sum(product.macs for product in left)
    share = percent_text(macs / max(1, macs + taken))
    columns = [Column("product", "code"), Column("why", "text"), Column("multiply-adds", "count")]
    rows = [(product.name, product.why, product.macs) for product in left]
    return [
        paragraph(f"{len(left)} others, {share} of all multiply-adds, are left to other units:"),
        table(columns, rows),
    ]


def _products_note(run: RunResults) -> str:
    above = sum(bool(product.above_minimum) for product in run.matrix)
    return f"{len(run.matrix)} products" + (f"; cache misses of {above} above the minimum" if above else ", all counts")


def _tone(good: bool) -> Tone:
    return "good" if good else "bad"


def _data(run: RunResults) -> list[Html]:
    rows = run.data
    how = "rows held back from training" if rows.held_out else "the training rows themselves: too few to hold any back"
    rate = float(rows.train.labels.mean())
    return [
        paragraph(
            f"{count_text(len(rows.train))} rows to learn from ({rows.source}), {percent_text(rate)} of them clicked; "
            f"judged on {count_text(len(rows.evaluate))} {how}."
        )
    ]


def _modelled_step(run: RunResults) -> list[Html]:
    """One step on the chip, SparseCores and TensorCore in turn and pipelined, and the dense side's lanes."""
    step, sparse = run.movement.time, _sparse_seconds(run)
    bars = [
        Bar("one after the other", (sparse, step.seconds)),
        Bar("pipelined, SparseCores", (sparse, 0.0)),
        Bar("pipelined, TensorCore", (0.0, step.seconds)),
    ]
    longer = "the SparseCores" if sparse > step.seconds else "the TensorCore"
    text = (
        f"Modelled, not measured: the TensorCore takes {seconds_text(step.seconds)} for the whole batch, the lookups "
        f"and updates of a chip's SparseCores at least {seconds_text(sparse)} (their bytes at the rate of HBM). One "
        f"after the other that is {seconds_text(sparse + step.seconds)}; pipelined, a step takes as long as {longer}: "
        f"{seconds_text(max(sparse, step.seconds))}."
    )
    chart = bar_chart(bars, title="Time of a step", kind="seconds", parts=("SparseCores", "TensorCore"))
    lookups = TimeRow("lookups and updates", "sparsecore", sparse, "sparsecore", 0, 0, "", lane="sparsecore")
    later = [replace(row, start=row.start + sparse, begun=row.begun + sparse) for row in step.rows]
    in_turn = replace(step, rows=(lookups, *later))
    pipelined = replace(step, rows=(replace(lookups, name="lookups of the next step"), *step.rows))
    end = sparse + step.seconds
    lanes = [
        *(element("h3", "One after the other"), step_lanes(in_turn, end)),
        *(element("h3", "Pipelined: the SparseCores work on the next step"), step_lanes(pipelined, end)),
    ]
    return [paragraph(text), chart, *lanes, *(note(remark) for remark in step.notes)]


def _movement(run: RunResults) -> list[Html]:
    relaid = run.movement.optimized[run.target].moved_before
    return [
        paragraph(
            f"One forward and backward step under {run.target}'s layouts. As it is written, every operation by itself, "
            f"its reshapes and transposes move {bytes_text(relaid)}; below, what the compiler does by itself is done."
        ),
        report_html(run.movement.report),
    ]


def _verdict_rows(name: str, optimized: Optimized) -> list[tuple[object, ...]]:
    """One row per region the gate judged: target, verdict, region, source, bytes before and after, why."""

    def row(v: Verdict) -> tuple[object, ...]:
        mark = badge("rewritten", "good") if v.accepted else badge("left alone")
        return name, mark, v.region, place_text(str(v.source or "")) or None, v.moved_before, v.moved_after, v.reason

    return [row(v) for v in (*optimized.rewrites, *optimized.refusals)]


def _against(proof: Proof) -> str:
    if proof.error_before is None or proof.error_after is None:
        return f" Reference: {proof.reference}."
    return f" Against {proof.reference} it misses by {proof.error_after:.1e}, the original by {proof.error_before:.1e}."


def _moved_chart(run: RunResults, width: float) -> Html:
    bars = []
    for name, done in run.movement.optimized.items():
        bars += [Bar(f"{name}, as written", (done.moved_before, 0)), Bar(f"{name}, rewritten", (0, done.moved_after))]
    return bar_chart(bars, title="Bytes that reshapes and transposes of one step move", kind="bytes", width=width)


def _rewrites(run: RunResults) -> list[Html]:
    rows = [row for name, done in run.movement.optimized.items() for row in _verdict_rows(name, done)]
    proof = run.proof
    acted = sum(len(done.rewrites) for done in run.movement.optimized.values())
    blocks = [
        *(
            note(f"{name}: {_verdict_sentence(done)}", tone="good" if done.rewrites else "plain")
            for name, done in run.movement.optimized.items()
        ),
        _moved_chart(run, width=720),
        details(f"Every region: {acted} rewritten, {len(rows) - acted} left alone", table(_VERDICTS, rows)),
        note(
            f"The program rewritten for vector8x128 was run beside the original on {proof.inputs} inputs: "
            f"{proof.outputs} outputs, largest difference {proof.max_difference:.2e}, at most "
            f"{proof.worst_share:.1e} of an output's size ({proof.allowed:.0e} allowed: sums taken in another order)."
            f"{_against(proof)}",
            tone="good",
        ),
    ]
    if run.target.startswith("tpu"):
        blocks.append(
            note("XLA:TPU performs these two rewrites by itself; on a TPU a gain is claimed only beyond what it does.")
        )
    for name, done in run.movement.optimized.items():
        if done.rewrites:
            blocks.append(details(f"What changed for {name} (StableHLO)", code_block(done.diff(context=1))))
    return blocks


def _verdict_sentence(done: Optimized) -> str:
    """What was rewritten, or why the region that moves most was not."""
    if done.rewrites:
        best = max(done.rewrites, key=lambda verdict: verdict.moved_before - verdict.moved_after)
        return f"{len(done.rewrites)} rewritten; where that gains most, {best.reason}."
    if not done.refusals:
        return "no region to judge."
    first = max(done.refusals, key=lambda verdict: verdict.moved_before)
    return f"nothing rewritten; {first.reason}."


def _loss_chart(run: RunResults, width: float, height: float) -> Html:
    steps = list(range(1, len(run.losses) + 1))
    curve = Curve("training loss", steps, list(run.losses))
    title, x, y = "Loss of every step", "step", "binary cross-entropy"
    return line_chart([curve], title=title, x_label=x, y_label=y, width=width, height=height)


def _training(run: RunResults) -> list[Html]:
    figures = [
        ("before", run.loss_before, run.auc_before),
        ("after", run.loss_after, run.auc_after),
    ]
    columns = (Column("evaluation rows"), Column("loss", "number"), Column("AUC", "number"))
    return [
        paragraph(
            "Lookups and updates of the tables run on the sparse side, the program rewritten for vector8x128 on the "
            "dense side; the host prepares the next batch meanwhile."
        ),
        _loss_chart(run, width=720, height=260),
        table(columns, figures),
    ]


def _mark(good: bool, yes: str = "equal", no: str = "differs") -> Html:
    return badge(yes, "good") if good else badge(no, "bad")


def _counts_mark(product: MatrixRun) -> Html:
    return (
        badge("equal; more misses") if product.counts_equal and product.above_minimum else _mark(product.counts_equal)
    )


def _matrix(run: RunResults) -> list[Html]:
    rows = [
        (
            *(p.name, p.counts.instructions, p.counts.macs, p.counts.broadcast_elements, p.counts.l1_touches, p.cycles),
            *(_counts_mark(p), _mark(p.values_equal)),
        )
        for p in run.matrix
    ]
    total = sum(p.counts.macs for p in run.matrix)
    saved = total / max(1, sum(p.counts.broadcast_elements for p in run.matrix))
    largest = max(run.matrix, key=lambda p: p.counts.macs, default=None)
    above = sum(bool(p.above_minimum) for p in run.matrix)
    blocks = [
        paragraph(
            f"The {len(run.matrix)} products of one step, {count_text(total)} multiply-adds, run instruction by "
            f"instruction; of a batch the first few, for all are of one shape. One element of B on the bus serves "
            f"{ratio_text(saved)} multiply-adds."
        ),
        table(_PRODUCTS, rows),
        *_left_out(run.products_left_out, total),
        note(
            "Values are XLA's within the rounding of a float32 dot product of that depth. Every counter equals its "
            "closed form but for cache misses, whose form is that of caches that never evict, a minimum: "
            f"{above} product{' lies' if above == 1 else 's lie'} above it, because B outgrows L1."
        ),
    ]
    if largest:
        blocks.append(details(f"Every counter of {largest.name}", _counters(largest)))
    return blocks


def _counters(product: MatrixRun) -> Html:
    rows = []
    for field in fields(Counts):
        counted, formula = getattr(product.counts, field.name), getattr(product.expected, field.name)
        mark = badge("equal", "good") if counted == formula else badge("above the bound")
        rows.append((field.name, counted, formula, mark))
    return table(_COUNTS, rows)


def _timings(run: RunResults) -> list[Html]:
    bars = [Bar(name, (seconds,)) for name, seconds in run.stages.items()]
    text = paragraph(
        f"Peak memory {bytes_text(run.peak_rss_bytes)}. The timeline of every stage and training step is in "
        "trace.pftrace: open it at ui.perfetto.dev (one cycle of the matrix unit is drawn as one nanosecond)."
    )
    return [bar_chart(bars, title="Wall time of the stages", kind="seconds"), join([text])]


@dataclass(frozen=True)
class RunReport(RunResults):
    """Everything a run measured (see :class:`RunResults`), as a page and as files."""

    def to_page(self) -> Page:
        """One self-contained page; ``.html()`` is its text."""
        return page(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures of the page's summary; ``to_page()`` is the whole page."""
        title = f"{self.model} on {self.chips} x {self.target}: {self.steps} steps of {count_text(self.batch)} samples"
        columns = (Column("what"), Column("result"), Column("beside"))
        rows = [(card.label, card.value, card.note) for card in _figures(self)]
        return glance(title, *self.failures, glance_table(columns, rows))

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, report.json and trace.pftrace into ``folder`` (made if need be); returns their paths.

        The trace is left out where the package that writes it (the extra ``trace``) is not installed.
        """
        files: dict[str, str | bytes] = {
            "report.html": self.to_page().html(),
            "report.json": json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n",
        }
        if installed("perfetto"):
            files["trace.pftrace"] = perfetto_bytes(self.recorder)
        with making_folder(folder) as out:
            for name, data in files.items():
                write_whole(out / name, data)
        return tuple(out / name for name in files)
