"""A plan on the terminal and on a page: its tables, listed once for both, its curves and its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tilewright.embed.planning.confidence import Confidence
from tilewright.embed.planning.types import QUANTILES, Feeding, Plan, StackPlan
from tilewright.render import (
    Bar,
    Card,
    Field,
    Html,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    percent_text,
    seconds_text,
    table,
)
from tilewright.render.drawing import Curve, column_chart, line_chart
from tilewright.render.formats import Kind, visible
from tilewright.render.markup import join
from tilewright.render.page import Tone, details, note, paragraph
from tilewright.render.tables import cells, print_table

if TYPE_CHECKING:
    from rich.console import Console


# The columns of a plan's tables: what each is called and where its value comes from.


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


def _pair(k: int, stack: StackPlan) -> str:
    limits = stack.quantiles[k][1]
    return f"{limits.max_ids_per_partition:,} / {limits.max_unique_ids_per_partition:,}"


#: Of :class:`StackPlan`: limits that hold a share of its partitions.
HOLDING = (
    Field("stack", "code", of=lambda s: s.label),
    *(
        Field(f"{quantile * 100:g} %" if quantile < 1 else "all", of=partial(_pair, k))
        for k, quantile in enumerate(QUANTILES)
    ),
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

#: Of hot ids, each behind its stack's label.
HOT = (
    Field("stack", "code", of=lambda p: p[0]),
    Field("table", "code", of=lambda p: p[1].table),
    Field("id", "count", of=lambda p: p[1].id),
    Field("shard", "count", "the fullest of its stack", lambda p: p[1].shard),
    Field("entries", "count", "in the batches run again; an id counts once per sample", lambda p: p[1].entries),
    Field("of the shard", "percent", "share of what that shard receives", lambda p: p[1].share),
)

#: Of remedies, each behind its stack's label.
REMEDIES = (
    Field("stack", "code", of=lambda p: p[0]),
    Field("if", of=lambda p: p[1].change),
    Field("max ids", "count", "the fullest partition", lambda p: p[1].limits.max_ids_per_partition),
    Field("max unique", "count", of=lambda p: p[1].limits.max_unique_ids_per_partition),
    Field("imbalance", "ratio", "entries: the fullest shard over the average one", lambda p: p[1].imbalance),
    Field("wait", "ratio", _WAIT, lambda p: p[1].wait),
)

#: Of (what, now, otherwise) of :func:`savings`.
SAVINGS = (
    Field("arrangement", of=lambda s: s[0]),
    Field("without", "bytes", of=lambda s: s[1]),
    Field("with", "bytes", of=lambda s: s[2]),
    Field("saved", "percent", of=lambda s: 1 - s[2] / s[1] if s[1] else 0.0),
)

#: Of (what, its bytes) of :func:`heap_parts`.
HEAP = (Field("what", of=lambda p: p[0]), Field("bytes", "bytes", of=lambda p: p[1]))

#: Of stacks of a pod that are alike.
ALIKE = (
    Field("stack", of=lambda g: g[0].name if len(g[0].name) < 30 else g[0].name[:27] + "..."),
    Field("stacks", "count", of=len),
    Field("tables", "count", of=lambda g: len(g[0].tables)),
    Field("width", "count", of=lambda g: g[0].padded_width),
    Field("max ids", "count", of=lambda g: g[0].limits.max_ids_per_partition),
    Field("distinct", "count", of=lambda g: g[0].limits.max_unique_ids_per_partition),
    Field("mean ids", "number", of=lambda g: "" if g[0].mean_ids is None else sum(s.mean_ids for s in g) / len(g)),
    Field("buffers", "bytes", of=lambda g: g[0].buffer_bytes),
)
_SHOWN = 20
"""Kinds of a pod's stacks that are printed."""


class Rows(NamedTuple):
    """A table of a plan: the terminal's title and the page's caption, its columns, and what its rows are made of."""

    title: str
    fields: Sequence[Field]
    items: Sequence[Any]

    @property
    def html(self) -> Html:
        return table(self.fields, cells(self.fields, self.items), caption=self.title[:1].upper() + self.title[1:])


def rows_of(plan: Plan, explained: Sequence[StackPlan]) -> dict[str, Rows]:
    """All tables of a log's plan; hot ids and remedies are those of the stacks ``explained``."""
    again = f"{counted(plan.replayed, 'batch', 'batches')} run again"
    labels = {stack.name: stack.label for stack in explained}
    hot = [(labels[hot.stack], hot) for hot in plan.skew.hot if hot.stack in labels]
    remedies = [(labels[remedy.stack], remedy) for remedy in plan.skew.remedies if remedy.stack in labels]
    days = plan.confidence.days if plan.confidence else ()
    holding = f"limits holding {percent_text(plan.quantile)} of the partitions"
    fields = TABLES if plan.savings.packed_tables else TABLES[:-1]  # packed rows: where a table gains by it, or is so
    if any(table.rows_per_line > 1 for table in plan.tables):
        fields = (
            *TABLES[:-1],
            Field("rows a line", "count", "rows that share a 32-byte line", lambda t: t.rows_per_line),
        )
    return {
        "limits": Rows(holding, STACKS, plan.stacks),
        "holding": Rows("ids / distinct ids that hold a share of the partitions", HOLDING, plan.stacks),
        "days": Rows("later days against the limits of the days before", DAYS, days),
        "programs": Rows(
            "compiler, per SparseCore", MEMORY, [(stack, m) for stack in plan.stacks for m in stack.programs]
        ),
        "heap": Rows("HBM of one chip", HEAP, heap_parts(plan)),
        "tables": Rows("tables", fields, plan.tables),
        "savings": Rows("arrangements", SAVINGS, savings(plan)),
        "curve": Rows(f"lower limits ({again})", CURVE, plan.curve),
        "remedies": Rows(f"what would even shards out ({again})", REMEDIES, remedies),
        "hot": Rows("hottest ids of its fullest shard", HOT, hot),
    }


def savings(plan: Plan) -> list[tuple[str, int, int]]:
    """What stacking saves in buffers, and what narrow rows that share lines (would) save in tables."""
    saved = plan.savings
    rows = [("stacking: buffers of one batch on a device", saved.separate_buffer_bytes, saved.stacked_buffer_bytes)]
    if narrow := [t for t in plan.tables if t.name in saved.packed_tables or t.rows_per_line > 1]:
        name = f"narrow rows sharing lines: {len(narrow)} table{'s' if len(narrow) > 1 else ''}"
        rows.append((name, sum(t.unpacked_bytes for t in narrow), sum(t.packed_bytes for t in narrow)))
    return rows


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


def counted(n: int, one: str, several: str = "") -> str:
    """A number and its noun."""
    return f"{count_text(n)} {one if n == 1 else several or one + 's'}"


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """The plan on the terminal: of several stacks only the most uneven is explained, the page and the JSON have all.

    Of a pod stacks that are alike stand in one row.
    """
    from rich.console import Console

    console = console or Console()

    def say(*lines: str) -> None:
        for line in lines:
            console.print(visible(line), highlight=False, markup=False, emoji=False, soft_wrap=True)

    if plan.feeding is None:
        say(*_pod_head(plan))
        kinds = sorted(plan.alike(), key=lambda alike: -alike[0].limits.max_ids_per_partition)
        print_table(ALIKE, cells(ALIKE, kinds[:_SHOWN]), console=console)
        say(*_pod_tail(plan, len(kinds)))
        return
    topology = plan.stacking.topology
    log = f"{counted(plan.batches, 'batch', 'batches')}, {counted(plan.samples, 'sample')}"
    tables = f"{counted(len(plan.tables), 'table')} in {counted(len(plan.stacks), 'stack')}"
    chips = f"{counted(topology.sparsecores, 'SparseCore')} ({counted(topology.chips, 'chip')})"
    say(f"{log}, {tables} on {chips}", plan.verdict)
    if plan.confidence is not None:
        say(f"confidence: {plan.confidence.sentence}")
    for title, fields, items in rows_of(plan, [max(plan.stacks, key=lambda s: s.wait)]).values():
        if items:
            console.print()
            print_table(fields, cells(fields, items), title=title, console=console)
    console.print()
    say(*uncut(plan), *packed(plan), *modelled(plan), layout(plan), feeding_text(plan.feeding))


def _pod_head(plan: Plan) -> Iterator[str]:
    tables, topology = [place.table for place in plan.stacking.placements], plan.stacking.topology
    parameters = count_text(sum(table.vocab * table.width for table in tables))
    yield (
        f"{count_text(len(tables))} tables, {parameters} parameters, in "
        f"{counted(len(plan.stacks), 'stack')} on {counted(topology.sparsecores, 'SparseCore')} "
        f"({count_text(topology.chips)} chips), batch {count_text(plan.batch)}"
    )
    yield plan.verdict
    if plan.confidence is not None:
        yield f"limits hold all {count_text(plan.confidence.batches)} batches; {plan.confidence.sentence}"
    else:
        yield "limits are those of uniform ids: a log says more"


def _pod_tail(plan: Plan, kinds: int) -> Iterator[str]:
    heap, step = plan.heap, plan.traffic
    if kinds > _SHOWN:
        yield f"... and {kinds - _SHOWN} more kinds of stacks: --json has all"
    for name, ids in plan.hot.items():
        few = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
        yield f"held on every device: {count_text(len(ids))} rows of {name}: {few}"
    parts = {name: getattr(heap, name) for name in ("tables", "slots", "inputs", "exchange", "pipelined")}
    parts["stack"] = max(heap.forward_stack, heap.backward_stack)
    yield "HBM of one chip: " + ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items())
    if step is not None:
        yield (
            f"a step of one chip, modelled: {bytes_text(round(step.hbm_bytes))} of HBM traffic, "
            f"{bytes_text(round(step.link_bytes))} over its links, {bytes_text(step.host_bytes)} from the host; "
            f"{seconds_text(step.seconds)} at least"
        )
    if heap.stack_basis == "modelled":
        yield f"the stack is modelled: {heap.stack_note}"


def modelled(plan: Plan) -> list[str]:
    """What of the memory is modelled, and how; nothing where all of it follows measured rules."""
    notes = [program.note for stack in plan.stacks for program in stack.programs if program.basis == "modelled"]
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


def feeding_text(fed: Feeding) -> str:
    """Host against chip, in a sentence that says what is measured and what modelled."""
    made_in, threads = seconds_text(fed.host_seconds), counted(fed.threads, "thread")
    host = f"feeding: this host makes a batch of all chips in {made_in} (measured, {threads})"
    moved = f"a step moves {bytes_text(fed.step_bytes)} through each chip's HBM"
    if not fed.step_seconds:
        return f"{host}; {moved}"
    fast = fed.host_seconds <= fed.step_seconds
    keeps = "it keeps up with any step" if fast else f"a step shorter than {made_in} waits"
    return f"{host}; {moved}, at least {seconds_text(fed.step_seconds)} (modelled): {keeps}"


# A plan as blocks of an HTML page: figures, tables and curves.

_LONG = 24
"""Rows above which a table opens on a click."""
MOSTLY_HELD = 0.5
"""Limits that a fresh batch may exceed with a greater chance are warned of."""
_SHARDS_OF = 4


def plan_html(plan: Plan, part: Literal["all", "head", "body"] = "all") -> Html:
    """The plan of a log as blocks of a page: figures, tables and drawings. Put it into ``Page.section``.

    The head is the verdict and how sure it is, the body all else: a page may show them apart.
    """
    tone: Tone = "plain" if plan.fits is None else "good" if plan.fits else "bad"
    sure = [_how_sure(plan.confidence)] if plan.confidence else []
    head = join([note(plan.verdict, tone=tone), *sure], "\n")
    if part == "head":
        return head
    rows = rows_of(plan, plan.stacks)
    blocks = [head, _figures(plan)] if part == "all" else [_figures(plan)]
    blocks += [rows["limits"].html, rows["holding"].html, *([rows["days"].html] if rows["days"].items else [])]
    bars = [Bar(name, (float(size),)) for name, size in rows["heap"].items]
    drawn = bar_chart(bars, title=rows["heap"].title, kind="bytes")
    if plan.target:
        blocks += [rows["programs"].html, drawn, *map(paragraph, (*modelled(plan), layout(plan)))]
    else:
        blocks.append(drawn)
    blocks += [*_lower_limits(plan), rows["curve"].html, *map(paragraph, uncut(plan)), _shares(plan)]
    blocks += [_folded(rows["hot"], "hottest ids"), _folded(rows["remedies"], "changes")]
    blocks += [rows["savings"].html, rows["tables"].html, *map(paragraph, packed(plan))]
    if plan.feeding is not None:
        blocks.append(note(feeding_text(plan.feeding)))
    return join(blocks, "\n")


def _how_sure(confidence: Confidence) -> Html:
    """Limits that every other batch may exceed are no ground for a green box alone."""
    text = f"Confidence: {confidence.sentence}."
    if confidence.batches > 1 and confidence.at_most <= MOSTLY_HELD:
        return paragraph(text)
    return note(f"{text} Plan with more batches, or raise the limits with --headroom.", tone="warn")


def _figures(plan: Plan) -> Html:
    padded = max(1, sum(t.padded_bytes for t in plan.tables))
    wasted = 1 - sum(t.data_bytes for t in plan.tables) / padded
    worst = max(plan.stacks, key=lambda s: s.wait)
    of = f"of {bytes_text(plan.heap.capacity)}" if plan.heap.capacity else "heap only: no target"
    return cards(
        [
            Card("stacks", str(len(plan.stacks)), counted(len(plan.tables), "table")),
            Card("HBM a chip", bytes_text(plan.heap.total), of),
            Card("padding", percent_text(wasted), "of the tables' bytes"),
            Card("wait", f"{worst.wait:.2f}", "fullest shard over the average, of a step's work"),
            Card("batches over", percent_text(plan.batches_over), "exceed a limit"),
        ]
    )


def _lower_limits(plan: Plan) -> list[Html]:
    points = list(reversed(plan.curve))
    shares = [point.fraction * 100 for point in points]
    cut = [(p.fraction * 100, p.minibatches_mean, float(p.minibatches_max or 0)) for p in points if p.minibatches_mean]
    at, means, most = [[point[k] for point in cut] for k in range(3)]
    again = counted(plan.replayed, "batch", "batches")
    scale, unit = (2**20, "MiB") if plan.curve[0].buffer_bytes >= 2**20 else (2**10, "KiB")
    buffers, dropped = [p.buffer_bytes / scale for p in points], [p.drop_rate for p in points]
    minibatches = f"Mini-batches per step under lower limits ({again} run again)"
    lost, inputs = "Ids lost, where they are dropped instead", "Input buffers of one batch on one device"
    drawn: list[tuple[list[Curve], str, str, Kind]] = [
        ([Curve("mean", at, means), Curve("most", at, most)], minibatches, "mini-batches", "number"),
        ([Curve("dropped", shares, dropped)], lost, "share of all entries", "percent"),
        ([Curve("buffers", shares, buffers)], inputs, unit, "number"),
    ]
    x_label = "limits, percent of the observed maxima"
    return [
        line_chart(curves, title=title, x_label=x_label, y_label=y_label, kind=kind)
        for curves, title, y_label, kind in drawn
    ]


def _shares(plan: Plan) -> Html:
    """What every shard receives, of the stacks that wait most."""
    worst = sorted(plan.stacks, key=lambda s: -s.wait)[:_SHARDS_OF]
    loads = [
        Curve(
            s.label,
            range(len(s.per_shard)),
            [n * len(s.per_shard) / max(1, sum(s.per_shard)) for n in s.per_shard],
        )
        for s in worst
    ]
    title = "What every shard receives, over the average"
    return column_chart(loads, title=title, x_label="shard", y_label="times the average")


def _folded(rows: Rows, name: str) -> Html:
    number = len(rows.items)
    return rows.html if number <= _LONG else details(f"{name} of every stack ({number} rows)", rows.html)
