"""A plan as blocks of an HTML page: figures, tables and curves."""

from __future__ import annotations

from tilewright.embed._plan_faces import all_programs, feeding, heap_parts, many, modelled, packed
from tilewright.embed._plan_fields import (
    CURVE,
    HOT,
    MEMORY,
    QUANTILES,
    REMEDIES,
    SAVINGS,
    STACKS,
    hot_rows,
    remedy_rows,
    savings,
    stack_label,
    table_fields,
)
from tilewright.embed._plan_types import Plan
from tilewright.render import (
    Bar,
    Card,
    Curve,
    Html,
    Tone,
    bar_chart,
    bytes_text,
    cards,
    cells,
    details,
    join,
    line_chart,
    note,
    paragraph,
    percent_text,
    table,
)

__all__ = ["plan_html"]

_LONG = 12
_SHARDS_OF = 4


def plan_html(plan: Plan) -> Html:
    """The plan as blocks of a page: figures, tables and drawings. Put it into ``Page.section``."""
    tone: Tone = "plain" if plan.fits is None else "good" if plan.fits else "bad"
    blocks = [note(plan.verdict, tone=tone), _figures(plan), *_limits(plan), *_memory(plan)]
    blocks += [*_lower_limits(plan), *_skew(plan), *_padding(plan), note(feeding(plan))]
    return join(blocks, "\n")


def _figures(plan: Plan) -> Html:
    padded = max(1, sum(t.padded_bytes for t in plan.tables))
    wasted = 1 - sum(t.data_bytes for t in plan.tables) / padded
    worst = max(plan.stacks, key=lambda s: s.imbalance)
    of = f"of {bytes_text(plan.heap.capacity)}" if plan.heap.capacity else "heap only: no target"
    return cards(
        [
            Card("stacks", str(len(plan.stacks)), many(len(plan.tables), "table")),
            Card("HBM a chip", bytes_text(plan.heap.total), of),
            Card("padding", percent_text(wasted), "of the tables' bytes"),
            Card("imbalance", f"{worst.imbalance:.2f}", "fullest shard over the average"),
            Card("batches over", percent_text(plan.batches_over), "would be cut into mini-batches"),
        ]
    )


def _limits(plan: Plan) -> list[Html]:
    title = f"Limits that hold {percent_text(plan.quantile)} of the partitions"
    shares = "Ids / distinct ids that hold a share of the partitions"
    return [
        table(STACKS, cells(STACKS, plan.stacks), caption=title),
        table(QUANTILES, cells(QUANTILES, plan.stacks), caption=shares),
    ]


def _memory(plan: Plan) -> list[Html]:
    bars = [Bar(name, (float(size),)) for name, size in heap_parts(plan)]
    drawn = bar_chart(bars, title="HBM of one chip", kind="bytes")
    if not plan.target:
        return [drawn]
    programs = table(MEMORY, cells(MEMORY, all_programs(plan)), caption="What the compiler says, per SparseCore")
    return [programs, drawn, *(paragraph(line) for line in modelled(plan))]


def _lower_limits(plan: Plan) -> list[Html]:
    points = list(reversed(plan.curve))
    shares = [point.fraction * 100 for point in points]
    x_label = "limits, percent of the observed maxima"
    means, most = [p.minibatches_mean for p in points], [float(p.minibatches_max) for p in points]
    again = many(plan.replayed, "batch", "batches")
    scale, unit = (2**20, "MiB") if plan.curve[0].buffer_bytes >= 2**20 else (2**10, "KiB")
    return [
        line_chart(
            [Curve("mean", shares, means), Curve("most", shares, most)],
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
    ]


def _skew(plan: Plan) -> list[Html]:
    worst = sorted(plan.stacks, key=lambda s: -s.imbalance)[:_SHARDS_OF]
    loads = [
        Curve(
            stack_label(s),
            range(len(s.per_shard)),
            [n * len(s.per_shard) / max(1, sum(s.per_shard)) for n in s.per_shard],
        )
        for s in worst
    ]
    drawn = line_chart(
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
