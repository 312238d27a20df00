"""The pieces of which a run's page is made: what to do first, the step, memory over time, movement, checks, timings.

Each takes the values that it shows and gives the blocks of one section; `report.py` puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace

from tilewright.embed import Plan
from tilewright.hlo import MovementReport, Optimized, StepTime, TimeRow
from tilewright.isa import Counts
from tilewright.machine.model import RunData
from tilewright.machine.results import Change, Check, Memory, Studied
from tilewright.machine.stages import Judgement, LeftOut, MatrixRun, Proof
from tilewright.render import (
    Bar,
    Html,
    Step,
    badge,
    bar_chart,
    bytes_text,
    count_text,
    percent_text,
    seconds_text,
    steps,
    table,
)
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.formats import place_text, ratio_text
from tilewright.render.markup import element
from tilewright.render.page import code_block, details, note, paragraph
from tilewright.render.tables import Heading

_MOST_ROWS = 60
_LARGEST: Sequence[Heading] = ("tensor", "code"), ("bytes", "bytes"), "from step", "to", "where"
_MISFITS: Sequence[Heading] = ("what", "code"), ("bytes", "bytes"), ("room", "bytes"), "what becomes of it"


def lead(
    failures: Sequence[str], headline: str, memory: Memory, todo: Sequence[Step], commands: Sequence[Step]
) -> Iterator[Html]:
    """What failed, the step's time and bottleneck, what does not fit and the cheapest change, what to do, commands."""
    for failure in failures:
        yield note(failure, tone="bad")
    yield note(headline)
    yield _memory_note(memory)
    yield steps(todo)
    yield details("Commands that lead on", steps(commands), open_=True)


def _memory_note(memory: Memory) -> Html:
    return note(memory.sentence, tone="plain" if memory.fits else "warn")


def memory_blocks(memory: Memory, time_text: Callable[[float], str] = seconds_text) -> Iterator[Html]:
    """Bytes over the steps, what has no room, what would need less, the largest tensors."""
    yield _memory_note(memory)
    numbers = list(range(len(memory.live)))
    curves = [Curve("asked for", numbers, list(memory.live))]
    if memory.standing:
        curves.append(Curve("has its place there", numbers, list(memory.standing)))
    if memory.capacity <= 4 * max(memory.need, 1):
        curves.append(Curve("room", numbers, [memory.capacity] * len(numbers)))
    yield line_chart(curves, title=f"{memory.where}, step by step", x_label="step", kind="bytes")
    if memory.changes:
        yield element("h3", "What would need less")
        yield _changes(memory, time_text)
    if memory.misfits:
        yield element("h3", "What does not fit")
        rows = [(each.name, each.bytes, each.room, each.why) for each in memory.misfits]
        yield table(_MISFITS, rows[:_MOST_ROWS])
    if memory.largest:
        yield element("h3", f"The largest while {memory.at} runs")
        names = memory.steps
        yield table(_LARGEST, [(h.name, h.bytes, names[h.first], names[h.last], h.place) for h in memory.largest])


def _changes(memory: Memory, time_text: Callable[[float], str]) -> Html:
    named = any(each.name for each in memory.changes)
    columns: list[Heading] = [("layer", "code")] if named else []
    columns += ["change", (memory.counts, "bytes"), ("then", "bytes"), "fits", "time of the same work"]

    def row(change: Change) -> tuple[object, ...]:
        took = "" if change.seconds is None else time_text(change.seconds)
        took = took if change.moved is None else f"{bytes_text(change.moved)} moved"
        mark = badge("fits", "good") if change.fits else badge("does not", "warn")
        return *([change.name] if named else []), change.what, change.before, change.after, mark, took

    return table(columns, [row(change) for change in memory.changes[:_MOST_ROWS]])


def timings(
    stages: Mapping[str, float], peak_bytes: int, left_out: Mapping[str, str] | None = None, more: str = ""
) -> Iterator[Html]:
    """Wall time of the stages, those that were left out, and the process's peak memory."""
    yield bar_chart(_bars(stages), title="Wall time of the stages", kind="seconds")
    for stage, why in (left_out or {}).items():
        yield note(f"{stage}: left out, {why}")
    yield paragraph(f"Peak memory {bytes_text(peak_bytes)}.{more}")


def _bars(values: Mapping[str, float]) -> list[Bar]:
    return [Bar(name, (value,)) for name, value in values.items()]


def waits_chart(step: StepTime, title: str, clocked: bool = True, width: float = 720) -> Html:
    """A step's time by what bounds it, as bars; in cycles where the target's step is not in seconds."""
    values = {
        name: seconds if clocked else round(seconds * 1e9) for name, seconds in step.by_bound().items() if seconds
    }
    return bar_chart(_bars(values), title=title, kind="seconds" if clocked else "count", width=width)


def checks_table(checks: Sequence[Check]) -> Html:
    """What was held against what, and how that came out."""
    marks = {True: badge("agrees", "good"), False: badge("differs", "bad")}
    return table(("what", "verdict", "outcome"), [(check.what, marks[check.ok], check.said) for check in checks])


def step_blocks(studied: Studied) -> Iterator[Html]:
    """The modelled step: its lanes, and what bounds it."""
    assert studied.step is not None
    for text in studied.step.notes:
        yield note(text)
    yield studied.step.lanes()
    title = "Time by what bounds it" if studied.clocked else "Cycles by what bounds the layers"
    yield waits_chart(studied.step, title, studied.clocked)


def moved_blocks(studied: Studied) -> Iterator[Html]:
    """Data movement before and after, and what the target has to say of it."""
    moved = studied.moved
    yield paragraph(f"{bytes_text(moved.before)} {moved.what} before, {bytes_text(moved.after)} after: {moved.how}.")
    bars = [Bar("before", (moved.before,)), Bar("after", (moved.after,))]
    yield bar_chart(bars, title=f"Bytes moved {moved.what}", kind="bytes")
    yield from studied.movement
    if studied.report is not None:
        yield studied.report.to_block()


def layer_blocks(studied: Studied) -> Iterator[Html]:
    """Layer by layer as the target has them, else the step's slowest operations."""
    if studied.layers:
        yield from studied.layers
    elif studied.step is not None:
        slowest = studied.step.slowest_table(_MOST_ROWS)
        yield table(slowest.columns, slowest.rows)


# A recommender: its dense step beside the SparseCores', what was rewritten, how it learnt, its products.

_VERDICTS: Sequence[Heading] = (
    *(("target", "code"), "verdict", "region", ("source", "code")),
    *(("moved before", "bytes"), ("after", "bytes"), "why"),
)
_PRODUCTS: Sequence[Heading] = (
    ("product", "code"),
    ("instructions", "count", "mm instructions, each a round of K over all its columns"),
    ("multiply-adds", "count"),
    ("B on the bus", "count", "elements of B broadcast to all threads"),
    ("lines touched", "count", "L1 line touches of B"),
    ("cycles", "count", "by the issue model"),
    "counts",
    "values",
)


def pipelined_step_blocks(step: StepTime, plan: Plan) -> Iterator[Html]:
    """One step on the chip, SparseCores and TensorCore in turn and pipelined, with lanes."""
    dense, traffic = step.device_seconds, plan.traffic
    sparse = traffic.waited
    parts = ", ".join(f"{part} {seconds_text(took)}" for part, took in traffic.parts.items())
    parts += f"; exchanges between chips {seconds_text(traffic.links)}" if traffic.links else ""
    longer, end = "the SparseCores" if sparse > dense else "the TensorCore", sparse + dense
    yield paragraph(
        f"Modelled, not measured: the TensorCore takes {seconds_text(dense)} for the whole batch, the lookups "
        f"and updates of a chip's SparseCores {seconds_text(sparse)} ({parts}: they wait for {traffic.waits_for()}). "
        f"One after the other that is {seconds_text(end)}; pipelined, a step takes as long as {longer}: "
        f"{seconds_text(max(sparse, dense))}."
    )
    bars = [
        Bar("one after the other", (sparse, dense)),
        Bar("pipelined, SparseCores", (sparse, 0.0)),
        Bar("pipelined, TensorCore", (0.0, dense)),
    ]
    yield bar_chart(bars, title="Time of a step", kind="seconds", parts=("SparseCores", "TensorCore"))
    exchanges = TimeRow("exchanges", "link", traffic.links, "link", 0, 0, "", lane="link")
    lookups, begin = [exchanges] if traffic.links else [], 0.0
    for part, took in traffic.parts.items():
        name = f"{part} of lookups and updates"
        lookups.append(TimeRow(name, "sparsecore", took, "sparsecore", 0, 0, "", start=begin, lane="sparsecore"))
        begin += took
    later = [replace(row, start=row.start + sparse, begun=row.begun + sparse) for row in step.rows]
    yield element("h3", "One after the other")
    yield replace(step, rows=(*lookups, *later)).lanes(end)
    yield element("h3", "Pipelined: the SparseCores work on the next step")
    yield replace(step, rows=(*lookups, *step.rows)).lanes(end)
    yield from (note(remark) for remark in step.notes)


def dense_movement_blocks(movement: MovementReport, optimized: Optimized) -> Iterator[Html]:
    """What the dense step moves under its target's layouts."""
    yield paragraph(
        f"One forward and backward step under {optimized.target.name}'s layouts. As it is written, every operation by "
        f"itself, its reshapes and transposes move {bytes_text(optimized.moved_before)}; below, what the compiler does "
        "by itself is done."
    )
    yield movement.to_block()


def rewrite_blocks(optimized: Mapping[str, Optimized], proof: Proof, target: str) -> Iterator[Html]:
    """The gates' verdicts by target, what they save, and the proof of what was rewritten."""
    rows: list[tuple[object, ...]] = []
    bars: list[Bar] = []
    for name, done in optimized.items():
        yield note(f"{name}: {_verdict_sentence(done)}", tone="good" if done.rewrites else "plain")
        for verdict in (*done.rewrites, *done.refusals):
            mark = badge("rewritten", "good") if verdict.accepted else badge("left alone")
            place = place_text(str(verdict.source or "")) or None
            moved = verdict.moved_before, verdict.moved_after
            rows.append((name, mark, verdict.region, place, *moved, verdict.reason))
        bars += [Bar(f"{name}, as written", (done.moved_before, 0)), Bar(f"{name}, rewritten", (0, done.moved_after))]
    yield bar_chart(bars, title="Bytes that reshapes and transposes of one step move", kind="bytes", width=720)
    acted = sum(len(done.rewrites) for done in optimized.values())
    yield details(f"Every region: {acted} rewritten, {len(rows) - acted} left alone", table(_VERDICTS, rows))
    yield note(
        f"The program rewritten for vector8x128 was run beside the original on {proof.inputs} inputs: "
        f"{proof.outputs} outputs, largest difference {proof.max_difference:.2e}, at most "
        f"{proof.worst_share:.1e} of an output's size ({proof.allowed:.0e} allowed: sums taken in another order)."
        f"{_against(proof)}",
        tone="good",
    )
    if target.startswith("tpu"):
        beyond = "on a TPU a gain is claimed only beyond what it does"
        yield note(f"XLA:TPU performs these two rewrites by itself; {beyond}.")
    for name, done in optimized.items():
        if done.rewrites:
            yield details(f"What changed for {name} (StableHLO)", code_block(done.diff(context=1)))


def _verdict_sentence(done: Optimized) -> str:
    """What was rewritten, or why the region that moves most was not."""
    if done.rewrites:
        best = max(done.rewrites, key=lambda verdict: verdict.moved_before - verdict.moved_after)
        return f"{len(done.rewrites)} rewritten; where that gains most, {best.reason}."
    if not done.refusals:
        return "no region to judge."
    first = max(done.refusals, key=lambda verdict: verdict.moved_before)
    return f"nothing rewritten; {first.reason}."


def _against(proof: Proof) -> str:
    if proof.error_before is None or proof.error_after is None:
        return f" Reference: {proof.reference}."
    return f" Against {proof.reference} it misses by {proof.error_after:.1e}, the original by {proof.error_before:.1e}."


def loss_chart(losses: Sequence[float], width: float, height: float) -> Html:
    curve = Curve("training loss", list(range(1, len(losses) + 1)), list(losses))
    title, y_label = "Loss of every step", "binary cross-entropy"
    return line_chart([curve], title=title, x_label="step", y_label=y_label, width=width, height=height)


def training_blocks(data: RunData, before: Judgement, after: Judgement, losses: Sequence[float]) -> Iterator[Html]:
    """The rows, the loss of every step, and the model judged before and after."""
    how = "rows held back from training" if data.held_out else "the training rows themselves: too few to hold any back"
    rate = float(data.train.labels.mean())
    yield paragraph(
        f"{count_text(len(data.train))} rows to learn from ({data.source}), {percent_text(rate)} of them clicked; "
        f"judged on {count_text(len(data.evaluate))} {how}."
    )
    yield paragraph(
        "Lookups and updates of the tables run on the sparse side, the program rewritten for vector8x128 on the "
        "dense side; the host prepares the next batch meanwhile."
    )
    yield loss_chart(losses, width=720, height=260)
    columns: Sequence[Heading] = "evaluation rows", ("loss", "number"), ("AUC", "number")
    yield table(columns, [("before", before.loss, before.auc), ("after", after.loss, after.auc)])


def matrix_blocks(products: Sequence[MatrixRun], left: Sequence[LeftOut]) -> Iterator[Html]:
    """The products of one step on the matrix unit, and those that other units are left."""
    counts = [product.counts for product in products]
    total = sum(each.macs for each in counts)
    saved = total / max(1, sum(each.broadcast_elements for each in counts))
    above = sum(bool(product.above_minimum) for product in products)
    yield paragraph(
        f"The {len(products)} products of one step, {count_text(total)} multiply-adds, run instruction by "
        f"instruction; of a batch the first few, for all are of one shape. One element of B on the bus serves "
        f"{ratio_text(saved)} multiply-adds."
    )
    rows = [
        (
            *(p.name, p.counts.instructions, p.counts.macs, p.counts.broadcast_elements, p.counts.l1_touches, p.cycles),
            badge("equal; more misses") if p.counts_equal and p.above_minimum else _equal_mark(p.counts_equal),
            _equal_mark(p.values_equal),
        )
        for p in products
    ]
    yield table(_PRODUCTS, rows)
    yield from _left_blocks(left, total)
    yield note(
        "Values are XLA's within the rounding of a float32 dot product of that depth. Every counter equals its "
        "closed form but for cache misses, whose form is that of caches that never evict, a minimum: "
        f"{above} product{' lies' if above == 1 else 's lie'} above it, because B outgrows L1."
    )
    if products:
        largest = max(products, key=lambda product: product.counts.macs)
        yield details(f"Every counter of {largest.name}", _counters(largest))


def _left_blocks(left: Sequence[LeftOut], taken: int) -> Iterator[Html]:
    """The products that other units are left, with their share of the multiply-adds; ``taken``: of the others."""
    if not left:
        yield paragraph("No product is left to other units.")
        return
    macs = sum(product.macs for product in left)
    share = percent_text(macs / max(1, macs + taken))
    yield paragraph(f"{len(left)} others, {share} of all multiply-adds, are left to other units:")
    columns: Sequence[Heading] = ("product", "code"), "why", ("multiply-adds", "count")
    yield table(columns, [(product.name, product.why, product.macs) for product in left])


def _equal_mark(equal: bool) -> Html:
    return badge("equal", "good") if equal else badge("differs", "bad")


def _counters(product: MatrixRun) -> Html:
    rows = []
    for field in fields(Counts):
        counted, formula = getattr(product.counts, field.name), getattr(product.expected, field.name)
        mark = badge("equal", "good") if counted == formula else badge("above the bound")
        rows.append((field.name, counted, formula, mark))
    return table((("counter", "code"), ("the machine", "count"), ("closed form", "count"), ""), rows)
