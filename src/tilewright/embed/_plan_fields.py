"""The columns of a plan's tables, for the terminal and the page: what each is called and where its value comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.embed._plan_types import Plan, StackPlan
from tilewright.embed._skew_types import HotId, Remedy
from tilewright.render import Field

__all__ = [
    "CURVE",
    "HOT",
    "MEMORY",
    "QUANTILES",
    "REMEDIES",
    "SAVINGS",
    "STACKS",
    "TABLES",
    "hot_rows",
    "remedy_rows",
    "savings",
    "stack_label",
    "table_fields",
]


def stack_label(stack: StackPlan) -> str:
    """A stack's name, or its first and last table where the name is long."""
    return stack.name if len(stack.name) <= 28 else f"{stack.tables[0]} … {stack.tables[-1]}"


def _rounded(value: float) -> float:
    """A mean; whole where four digits are not enough."""
    return round(value) if value >= 1000 else value


#: Of :class:`StackPlan`.
STACKS = (
    Field("stack", "code", of=stack_label),
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
    Field("mean ids", "number", "the average partition", lambda s: _rounded(s.mean_ids)),
    Field("imbalance", "ratio", "the fullest shard over the average one", lambda s: s.imbalance),
    Field("dropped", "percent", "entries lost if ids above the limits are dropped", lambda s: s.drop_rate),
    Field("buffers", "bytes", "one batch on one device", lambda s: s.buffer_bytes),
)

_LARGEST = "the largest max_ids_per_partition of the same proportion that compiles"

#: Of (stack, its program's memory).
MEMORY = (
    Field("stack", "code", of=lambda p: stack_label(p[0])),
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
    Field("mini-batches, mean", "number", of=lambda p: p.minibatches_mean),
    Field("mini-batches, most", "count", of=lambda p: p.minibatches_max),
    Field("dropped instead", "percent", of=lambda p: p.drop_rate),
)


def _share(quantile: float) -> str:
    return f"{quantile * 100:g} %" if quantile < 1 else "all"


def _pair(at: int) -> Callable[[StackPlan], str]:
    """ids / distinct ids of the quantile."""

    def text(stack: StackPlan) -> str:
        limits = stack.quantiles[at][1]
        return f"{limits.max_ids_per_partition:,} / {limits.max_unique_ids_per_partition:,}"

    return text


#: Of :class:`StackPlan`: limits that hold a share of its partitions.
QUANTILES = (
    Field("stack", "code", of=stack_label),
    *(Field(_share(q), of=_pair(k)) for k, q in enumerate((0.5, 0.9, 0.99, 0.999, 1.0))),
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
    Field("imbalance", "ratio", "the fullest shard over the average one", lambda p: p[1].imbalance),
)


def hot_rows(plan: Plan, stacks: Iterable[StackPlan]) -> list[tuple[str, HotId]]:
    """What :data:`HOT` shows, stack by stack."""
    return [(stack_label(s), h) for s in stacks for h in plan.skew.hot if h.stack == s.name]


def remedy_rows(plan: Plan, stacks: Iterable[StackPlan]) -> list[tuple[str, Remedy]]:
    """What :data:`REMEDIES` shows, stack by stack."""
    return [(stack_label(s), r) for s in stacks for r in plan.skew.remedies if r.stack == s.name]


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
        what = f"narrow rows sharing lines: {len(narrow)} table{'s' if len(narrow) > 1 else ''}"
        rows.append((what, sum(t.unpacked_bytes for t in narrow), sum(t.packed_bytes for t in narrow)))
    return rows
