"""A plan on the terminal and on a page: its tables, its curves and its sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tilewright.embed.planning.confidence import Day
from tilewright.embed.planning.memory import SparseMemory
from tilewright.embed.planning.types import QUANTILES, HotId, Plan, Remedy, StackPlan
from tilewright.render import (
    Bar,
    Card,
    Column,
    Field,
    Html,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    percent_text,
    print_table,
    seconds_text,
    table,
)
from tilewright.render.drawing import Curve, column_chart, line_chart
from tilewright.render.markup import join
from tilewright.render.page import Tone, details, note, paragraph
from tilewright.render.tables import cells

if TYPE_CHECKING:
    from rich.console import Console


# The columns of a plan's tables, for the terminal and the page: what each is called and where its value comes from.


_WAIT = (
    "what a step waits for: bytes of rows fetched and ids combined, the fullest shard over the average one (modelled)"
)

#: Of :class:`StackPlan`.
STACKS = (
    Field("stack", "code", of=lambda s: s.label),
    Field("tables", "count", of=lambda s: len(s.tables)),
    Field("width", "count", "floats per row, padded to 8", lambda s: s.padded_width),
    Field(
        "max ids",
        "count",
        "max_ids_per_partition: entries of one source for one shard",
        lambda s: s.limits.max_ids_per_partition,
    ),
    Field("max unique", "count", "max_unique_ids_per_partition", lambda s: s.limits.max_unique_ids_per_partition),
    Field("observed ids", "count", "the fullest partition of the log", lambda s: s.observed.max_ids_per_partition),
    Field(
        "mean ids", "number", "the average partition", lambda s: round(s.mean_ids) if s.mean_ids >= 1000 else s.mean_ids
    ),
    Field("imbalance", "ratio", "entries: the fullest shard over the average one", lambda s: s.imbalance),
    Field("wait", "ratio", _WAIT, lambda s: s.wait),
    Field("dropped", "percent", "entries lost if ids above the limits are dropped", lambda s: s.drop_rate),
    Field("buffers", "bytes", "one batch on one device", lambda s: s.buffer_bytes),
)

_LARGEST = "the largest max_ids_per_partition of the same proportion that compiles"

#: Of (stack, its program's memory).
MEMORY = (
    Field("stack", "code", of=lambda p: p[0].label),
    Field("program", of=lambda p: p[1].op),
    Field("compiles", of=lambda p: p[1].compiles),
    Field("replicas", "count", "logical_replica_count", lambda p: p[1].logical_replica_count),
    Field("tile", "bytes", "TileSpmem needed per tile", lambda p: p[1].tile_bytes),
    Field("of", "bytes", "TileSpmem of the chip", lambda p: p[1].tile_limit),
    Field("HBM stack, guide", "bytes", "the guide's formula, the compiler's own estimate", lambda p: p[1].guide_bytes),
    Field("HBM stack, taken", "bytes", "per SparseCore, by the measured rule", lambda p: p[1].stack_bytes),
    Field(
        "largest ids",
        "count",
        _LARGEST,
        lambda p: p[1].largest_limits.max_ids_per_partition if p[1].largest_limits else None,
    ),
    Field("basis", of=lambda p: p[1].basis),
)

#: Of a plan's tables.
TABLES = (
    Field("table", "code", of=lambda t: t.name),
    Field("vocabulary", "count", of=lambda t: t.vocab),
    Field("width", "count", of=lambda t: t.width),
    Field("padded rows", "count", of=lambda t: t.padded_vocab),
    Field("padded width", "count", of=lambda t: t.padded_width),
    Field("data", "bytes", of=lambda t: t.data_bytes),
    Field("in HBM", "bytes", "padded, all chips together", lambda t: t.padded_bytes),
    Field("lost to width", "percent", "rows are padded to 8 floats", lambda t: t.wasted_by_width),
    Field("lost to vocabulary", "percent", "rows are padded to 8 on every shard", lambda t: t.wasted_by_vocab),
    Field("packed", "bytes", "if rows of 1 to 4 floats shared 32-byte lines", lambda t: t.packed_bytes),
)

#: Of the points of a plan's curve of lower limits.
CURVE = (
    Field("limits at", "percent", "share of the observed maxima", lambda p: p.fraction),
    Field("buffers", "bytes", "one batch on one device", lambda p: p.buffer_bytes),
    Field("if cut", "bytes", "the same where mini-batches are enabled", lambda p: p.minibatch_buffer_bytes),
    Field("batches over", "percent", "batches in which some partition exceeds a limit", lambda p: p.batches_over),
    Field("mini-batches, mean", "number", "of the batches that can be cut", lambda p: p.minibatches_mean),
    Field("mini-batches, most", "count", of=lambda p: p.minibatches_max),
    Field("cannot be cut", "percent", "batches in which one hash bucket alone exceeds a limit", lambda p: p.uncut),
    Field("dropped instead", "percent", of=lambda p: p.drop_rate),
)


def _pair(at: int) -> Callable[[StackPlan], str]:
    """ids / distinct ids of the quantile."""

    def text(stack: StackPlan) -> str:
        limits = stack.quantiles[at][1]
        return f"{limits.max_ids_per_partition:,} / {limits.max_unique_ids_per_partition:,}"

    return text


#: Of :class:`StackPlan`: limits that hold a share of its partitions.
HOLDING = (
    Field("stack", "code", of=lambda s: s.label),
    *(Field(f"{quantile * 100:g} %" if quantile < 1 else "all", of=_pair(k)) for k, quantile in enumerate(QUANTILES)),
)

#: Of the days of a plan's confidence.
DAYS = (
    Field("day", "code", of=lambda d: d.name),
    Field("batches", "count", of=lambda d: d.batches),
    Field("exceed", "percent", "batches above some limit of the days before", lambda d: d.exceeded / d.batches),
    Field("most exceeded", "code", of=lambda d: f"{d.knob} of {d.stack}" if d.exceeded else ""),
    Field("allowed", "count", "by the days before", lambda d: d.limit if d.exceeded else None),
    Field("observed", "count", of=lambda d: d.observed if d.exceeded else None),
    Field("headroom", "number", "by how much higher limits would have held the day", lambda d: round(d.headroom, 2)),
)

#: Of (stack's label, hot id).
HOT = (
    Field("stack", "code", of=lambda p: p[0]),
    Field("table", "code", of=lambda p: p[1].table),
    Field("id", "count", of=lambda p: p[1].id),
    Field("shard", "count", "the fullest of its stack", lambda p: p[1].shard),
    Field("entries", "count", "in the batches run again; an id counts once per sample", lambda p: p[1].entries),
    Field("of the shard", "percent", "share of what that shard receives", lambda p: p[1].share),
)

#: Of (stack's label, remedy).
REMEDIES = (
    Field("stack", "code", of=lambda p: p[0]),
    Field("if", of=lambda p: p[1].change),
    Field("max ids", "count", "the fullest partition", lambda p: p[1].limits.max_ids_per_partition),
    Field("max unique", "count", of=lambda p: p[1].limits.max_unique_ids_per_partition),
    Field("imbalance", "ratio", "entries: the fullest shard over the average one", lambda p: p[1].imbalance),
    Field("wait", "ratio", _WAIT, lambda p: p[1].wait),
)


def hot_rows(plan: Plan, stacks: Iterable[StackPlan]) -> list[tuple[str, HotId]]:
    """What :data:`HOT` shows, stack by stack."""
    return [(s.label, h) for s in stacks for h in plan.skew.hot if h.stack == s.name]


def remedy_rows(plan: Plan, stacks: Iterable[StackPlan]) -> list[tuple[str, Remedy]]:
    """What :data:`REMEDIES` shows, stack by stack."""
    return [(s.label, r) for s in stacks for r in plan.skew.remedies if r.stack == s.name]


#: Of (what, now, otherwise) of :func:`savings`.
SAVINGS = (
    Field("arrangement", of=lambda s: s[0]),
    Field("without", "bytes", of=lambda s: s[1]),
    Field("with", "bytes", of=lambda s: s[2]),
    Field("saved", "percent", of=lambda s: 1 - s[2] / s[1] if s[1] else 0.0),
)


#: A column more where tables are packed.
_IN_LINES = Field("rows a line", "count", "rows that share a 32-byte line", lambda t: t.rows_per_line)


def table_fields(plan: Plan) -> tuple[Field, ...]:
    """The tables' columns; those of packed rows only where a table is packed, or gains by it."""
    if any(table.rows_per_line > 1 for table in plan.tables):
        return (*TABLES[:-1], _IN_LINES)
    return TABLES if plan.savings.packed_tables else TABLES[:-1]


def savings(plan: Plan) -> list[tuple[str, int, int]]:
    """What stacking saves in buffers, and what narrow rows that share lines (would) save in tables."""
    saved = plan.savings
    rows = [("stacking: buffers of one batch on a device", saved.separate_buffer_bytes, saved.stacked_buffer_bytes)]
    if narrow := [t for t in plan.tables if t.name in saved.packed_tables or t.rows_per_line > 1]:
        name = f"narrow rows sharing lines: {len(narrow)} table{'s' if len(narrow) > 1 else ''}"
        rows.append((name, sum(t.unpacked_bytes for t in narrow), sum(t.packed_bytes for t in narrow)))
    return rows


def all_programs(plan: Plan) -> list[tuple[StackPlan, SparseMemory]]:
    """(stack, program) of every stack."""
    return [(stack, program) for stack in plan.stacks for program in stack.programs]


def judged(plan: Plan) -> tuple[Day, ...]:
    """The days that judge the limits of those before; none where days are not known."""
    return plan.confidence.days if plan.confidence else ()


def heap_parts(plan: Plan) -> list[tuple[str, int]]:
    """What lies in the HBM of one chip."""
    heap = plan.heap
    parts = [("tables", heap.tables), ("optimizer slots", heap.slots), ("inputs fetched ahead", heap.inputs)]
    parts += [("activations and gradients", heap.exchange)]
    if heap.pipelined:
        parts += [("held for pipelining", heap.pipelined)]
    if plan.target:
        parts += [("stack of the lookup", heap.forward_stack), ("stack of the update", heap.backward_stack)]
    return parts


def many(n: int, one: str, many: str = "") -> str:
    """A number and its noun."""
    return f"{count_text(n)} {one if n == 1 else many or one + 's'}"


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """The plan as terminal tables."""
    from rich.console import Console

    console = console or Console()
    topology = plan.stacking.topology
    log = f"{many(plan.batches, 'batch', 'batches')}, {many(plan.samples, 'sample')}"
    tables = f"{many(len(plan.tables), 'table')} in {many(len(plan.stacks), 'stack')}"
    chips = f"{many(topology.sparsecores, 'SparseCore')} ({many(topology.chips, 'chip')})"
    console.print(f"{log}, {tables} on {chips}", highlight=False, soft_wrap=True)
    console.print(plan.verdict, highlight=False, soft_wrap=True)
    if plan.confidence is not None:
        console.print(f"confidence: {plan.confidence.sentence}", highlight=False, soft_wrap=True)
    for title, columns, rows in _tables(plan):
        if rows:
            console.print()
            print_table(columns, rows, title=title, console=console)
    console.print()
    for line in (*uncut(plan), *packed(plan), *modelled(plan), layout(plan), feeding(plan)):
        console.print(line, highlight=False, soft_wrap=True)


def _tables(plan: Plan) -> list[tuple[str, Sequence[Column], Sequence[Sequence[object]]]]:
    """The terminal's: of several stacks only the most uneven one is explained, the page and the JSON have all."""
    worst = max(plan.stacks, key=lambda s: s.wait)
    again = f"{many(plan.replayed, 'batch', 'batches')} run again"
    limits = f"limits holding {percent_text(plan.quantile)} of the partitions"
    columns = table_fields(plan)
    return [
        (limits, STACKS, cells(STACKS, plan.stacks)),
        ("ids / distinct ids that hold a share of the partitions", HOLDING, cells(HOLDING, plan.stacks)),
        ("later days against the limits of the days before", DAYS, cells(DAYS, judged(plan))),
        ("compiler, per SparseCore", MEMORY, cells(MEMORY, all_programs(plan))),
        ("HBM of one chip", (Column("what"), Column("bytes", "bytes")), heap_parts(plan)),
        ("tables", columns, cells(columns, plan.tables)),
        ("arrangements", SAVINGS, cells(SAVINGS, savings(plan))),
        (f"lower limits ({again})", CURVE, cells(CURVE, plan.curve)),
        (f"what would even shards out ({again})", REMEDIES, cells(REMEDIES, remedy_rows(plan, [worst]))),
        ("hottest ids of its fullest shard", HOT, cells(HOT, hot_rows(plan, [worst]))),
    ]


def modelled(plan: Plan) -> list[str]:
    """What of the memory is modelled, and how; nothing where all of it follows measured rules."""
    notes = [program.note for _, program in all_programs(plan) if program.basis == "modelled"]
    if plan.target and plan.heap.stack_basis == "modelled":
        notes.append(plan.heap.stack_note)
    return [f"modelled: {line}" for line in dict.fromkeys(line for text in notes for line in text.split("; "))]


def layout(plan: Plan) -> str:
    """Which layout the plan is of, and what the other takes."""
    heap = plan.heap
    fits = " and does not fit" if heap.total <= heap.capacity < heap.total + heap.if_cut else ""
    return (
        'layout: buffers, HBM and feeding are of plain batches, which overflow="drop" or "error" and '
        f'minibatch_layout="needed" make; laid out for mini-batches the inputs take {bytes_text(heap.if_cut)} more a '
        f"chip{fits}"
    )


def uncut(plan: Plan) -> list[str]:
    """Why batches cannot be cut: under the plan's limits, else under the highest of the lower ones where one cannot."""
    points = [("under these limits", plan.uncut, plan.uncut_because)]
    points += [(f"limits at {percent_text(p.fraction)}", p.uncut, p.uncut_because) for p in plan.curve]
    for under, share, because in points:
        if share:
            return [f"{under}: {percent_text(share)} of the batches cannot be cut, preprocess refuses them: {because}"]
    return []


def packed(plan: Plan) -> list[str]:
    """What a line stands for, where tables are packed."""
    lines = [f"{t.rows_per_line} rows of {t.name}" for t in plan.tables if t.rows_per_line > 1]
    ids = "ids shown of these tables are lines: id // rows of the model's"
    return [f"packed: {', '.join(lines)} share a line; {ids}"] if lines else []


def feeding(plan: Plan) -> str:
    """Host against chip, in a sentence that says what is measured and what modelled."""
    fed = plan.feeding
    made_in, threads = seconds_text(fed.host_seconds), many(fed.threads, "thread")
    host = f"feeding: this host makes a batch of all chips in {made_in} (measured, {threads})"
    moved = f"a step moves {bytes_text(fed.step_bytes)} through each chip's HBM"
    if not fed.step_seconds:
        return f"{host}; {moved}"
    fast = fed.host_seconds <= fed.step_seconds
    keeps = "it keeps up with any step" if fast else f"a step shorter than {made_in} waits"
    return f"{host}; {moved}, at least {seconds_text(fed.step_seconds)} (modelled): {keeps}"


# A plan as blocks of an HTML page: figures, tables and curves.

_LONG = 12
_SHARDS_OF = 4


def plan_html(plan: Plan, *, head: bool = True) -> Html:
    """The plan as blocks of a page: figures, tables and drawings. Put it into ``Page.section``.

    Without ``head`` the verdict is left out: :func:`plan_head_html` puts it elsewhere.
    """
    blocks = [plan_head_html(plan), _figures(plan)] if head else [_figures(plan)]
    blocks += [*_limits(plan), *_memory(plan), *_lower_limits(plan), *_skew(plan), *_padding(plan), note(feeding(plan))]
    return join(blocks, "\n")


def plan_head_html(plan: Plan) -> Html:
    """The verdict, and how sure it is."""
    tone: Tone = "plain" if plan.fits is None else "good" if plan.fits else "bad"
    sure = [paragraph(f"Confidence: {plan.confidence.sentence}.")] if plan.confidence else []
    return join([note(plan.verdict, tone=tone), *sure], "\n")


def _figures(plan: Plan) -> Html:
    padded = max(1, sum(t.padded_bytes for t in plan.tables))
    wasted = 1 - sum(t.data_bytes for t in plan.tables) / padded
    worst = max(plan.stacks, key=lambda s: s.wait)
    of = f"of {bytes_text(plan.heap.capacity)}" if plan.heap.capacity else "heap only: no target"
    return cards(
        [
            Card("stacks", str(len(plan.stacks)), many(len(plan.tables), "table")),
            Card("HBM a chip", bytes_text(plan.heap.total), of),
            Card("padding", percent_text(wasted), "of the tables' bytes"),
            Card("wait", f"{worst.wait:.2f}", "fullest shard over the average, of a step's work"),
            Card("batches over", percent_text(plan.batches_over), "exceed a limit"),
        ]
    )


def _limits(plan: Plan) -> list[Html]:
    title = f"Limits that hold {percent_text(plan.quantile)} of the partitions"
    shares = "Ids / distinct ids that hold a share of the partitions"
    days = judged(plan)
    return [
        table(STACKS, cells(STACKS, plan.stacks), caption=title),
        table(HOLDING, cells(HOLDING, plan.stacks), caption=shares),
        *([table(DAYS, cells(DAYS, days), caption="Later days against the limits of the days before")] if days else []),
    ]


def _memory(plan: Plan) -> list[Html]:
    bars = [Bar(name, (float(size),)) for name, size in heap_parts(plan)]
    drawn = bar_chart(bars, title="HBM of one chip", kind="bytes")
    if not plan.target:
        return [drawn]
    programs = table(MEMORY, cells(MEMORY, all_programs(plan)), caption="What the compiler says, per SparseCore")
    return [programs, drawn, *(paragraph(line) for line in (*modelled(plan), layout(plan)))]


def _lower_limits(plan: Plan) -> list[Html]:
    points = list(reversed(plan.curve))
    shares = [point.fraction * 100 for point in points]
    x_label = "limits, percent of the observed maxima"
    cut = [(p.fraction * 100, p.minibatches_mean, float(p.minibatches_max or 0)) for p in points if p.minibatches_mean]
    at, means, most = [[point[k] for point in cut] for k in range(3)]
    again = many(plan.replayed, "batch", "batches")
    scale, unit = (2**20, "MiB") if plan.curve[0].buffer_bytes >= 2**20 else (2**10, "KiB")
    return [
        line_chart(
            [Curve("mean", at, means), Curve("most", at, most)],
            title=f"Mini-batches per step under lower limits ({again} run again)",
            x_label=x_label,
            y_label="mini-batches",
        ),
        line_chart(
            [Curve("dropped", shares, [p.drop_rate for p in points])],
            title="Ids lost, where they are dropped instead",
            x_label=x_label,
            y_label="share of all entries",
            kind="percent",
        ),
        line_chart(
            [Curve("buffers", shares, [p.buffer_bytes / scale for p in points])],
            title="Input buffers of one batch on one device",
            x_label=x_label,
            y_label=unit,
        ),
        table(CURVE, cells(CURVE, plan.curve), caption="The same in numbers"),
        *(paragraph(line) for line in uncut(plan)),
    ]


def _skew(plan: Plan) -> list[Html]:
    worst = sorted(plan.stacks, key=lambda s: -s.wait)[:_SHARDS_OF]
    loads = [
        Curve(
            s.label,
            range(len(s.per_shard)),
            [n * len(s.per_shard) / max(1, sum(s.per_shard)) for n in s.per_shard],
        )
        for s in worst
    ]
    drawn = column_chart(
        loads, title="What every shard receives, over the average", x_label="shard", y_label="times the average"
    )
    again = many(plan.replayed, "batch", "batches")
    hot = table(HOT, cells(HOT, hot_rows(plan, plan.stacks)), caption="The hottest ids of every stack's fullest shard")
    changes = f"What would even it out ({again} run again)"
    remedies = table(REMEDIES, cells(REMEDIES, remedy_rows(plan, plan.stacks)), caption=changes)
    return [
        drawn,
        _folded("hottest ids", hot, len(plan.skew.hot)),
        _folded("changes", remedies, len(plan.skew.remedies)),
    ]


def _folded(name: str, content: Html, rows: int) -> Html:
    """Long tables open on a click."""
    return content if rows <= 2 * _LONG else details(f"{name} of every stack ({rows} rows)", content)


def _padding(plan: Plan) -> list[Html]:
    columns = table_fields(plan)
    tables = table(columns, cells(columns, plan.tables), caption="Tables in HBM, all chips together")
    arranged = table(SAVINGS, cells(SAVINGS, savings(plan)), caption="What arrangements save")
    return [arranged, tables, *(paragraph(line) for line in packed(plan))]
