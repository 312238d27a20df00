"""The columns of a plan's tables, listed once for terminal and page: what each is called, whence its values come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from tilewright.embed.planning.types import QUANTILES, StackPlan
from tilewright.render import Field

_OBSERVED = attrgetter("observed.max_ids_per_partition")
_IDS, _UNIQUE = attrgetter("limits.max_ids_per_partition"), attrgetter("limits.max_unique_ids_per_partition")
_WAIT = (
    "what a step waits for: bytes of rows fetched and ids combined, the fullest shard over the average one (modelled)"
)


def _mean(alike: Sequence[StackPlan]) -> float | None:
    if alike[0].mean_ids is None:
        return None
    mean = sum(stack.mean_ids or 0.0 for stack in alike) / len(alike)
    return mean if mean < 1000 else round(mean)


def _counted(name: str) -> Callable[[Sequence[StackPlan]], Any]:
    return lambda alike: getattr(alike[0], name) if alike[0].counted else None


#: Of stacks that are alike (see :meth:`Plan.alike`); the column of their number stands only where partitions were not
#: counted, those of counts only where they were.
STACKS = (
    Field("stack", "code", of=lambda g: g[0].label),
    Field("stacks", "count", of=lambda g: None if g[0].counted else len(g)),
    Field("tables", "count", of=lambda g: len(g[0].tables)),
    Field("width", "count", "floats per row, padded to 8", lambda g: g[0].padded_width),
    Field("max ids", "count", "max_ids_per_partition: entries of one source for one shard", lambda g: _IDS(g[0])),
    Field("max unique", "count", "max_unique_ids_per_partition", lambda g: _UNIQUE(g[0])),
    Field("observed ids", "count", "the fullest partition of the log", lambda g: g[0].observed and _OBSERVED(g[0])),
    Field("mean ids", "number", "the average partition", _mean),
    Field("imbalance", "ratio", "entries: the fullest shard over the average one", _counted("imbalance")),
    Field("wait", "ratio", _WAIT, _counted("wait")),
    Field("dropped", "percent", "entries lost if ids above the limits are dropped", _counted("drop_rate")),
    Field("buffers", "bytes", "one batch on one device", lambda g: g[0].buffer_bytes),
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
        "largest ids", "count", _LARGEST, lambda p: (largest := p[1].largest_limits) and largest.max_ids_per_partition
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

#: In place of the last of :data:`TABLES` where some table is packed.
LINES = Field("rows a line", "count", "rows that share a 32-byte line", lambda t: t.rows_per_line)

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
    *(Field(f"{share * 100:g} %" if share < 1 else "all", of=partial(_pair, k)) for k, share in enumerate(QUANTILES)),
)

#: Of the days of a plan's confidence.
DAYS = (
    Field("day", "code", of=lambda d: d.name),
    Field("batches", "count", of=lambda d: d.batches),
    Field("exceed", "percent", "batches above some limit of the days before", lambda d: d.exceeded / d.batches),
    Field("most exceeded", "code", of=lambda d: f"{d.knob} of {d.stack}" if d.exceeded else ""),
    Field("allowed", "count", "by the days before", lambda d: d.limit if d.exceeded else None),
    Field("observed", "count", of=lambda d: d.observed if d.exceeded else None),
    Field("grown", "code", "features that fill its fullest partition more than the days before", lambda d: d.drift),
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
    Field("max ids", "count", "the fullest partition", lambda p: _IDS(p[1])),
    Field("max unique", "count", of=lambda p: _UNIQUE(p[1])),
    Field("imbalance", "ratio", "entries: the fullest shard over the average one", lambda p: p[1].imbalance),
    Field("wait", "ratio", _WAIT, lambda p: p[1].wait),
)

#: Of (what, now, otherwise) of :meth:`Plan.arrangements`.
SAVINGS = (
    Field("arrangement", of=lambda s: s[0]),
    Field("without", "bytes", of=lambda s: s[1]),
    Field("with", "bytes", of=lambda s: s[2]),
    Field("saved", "percent", of=lambda s: 1 - s[2] / s[1] if s[1] else 0.0),
)

#: Of (what, its bytes) of what lies in the HBM of one chip.
HEAP = (Field("what", of=lambda p: p[0]), Field("bytes", "bytes", of=lambda p: p[1]))
