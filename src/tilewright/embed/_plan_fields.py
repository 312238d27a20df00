"""The columns of a plan's tables, for the terminal and the page: what each is called and where its value comes from."""

from __future__ import annotations

from tilewright.embed._plan_types import StackPlan
from tilewright.render import Field

__all__ = ["CURVE", "MEMORY", "STACKS", "TABLES", "stack_label"]


def stack_label(stack: StackPlan) -> str:
    """A stack's name, or its first and last table where the name is long."""
    return stack.name if len(stack.name) <= 28 else f"{stack.tables[0]} … {stack.tables[-1]}"


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
    Field("mean ids", "number", "the average partition", lambda s: s.mean_ids),
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
    Field("lost to width", "percent", of=lambda t: t.wasted_by_width),
    Field("lost to vocabulary", "percent", of=lambda t: t.wasted_by_vocab),
)

#: Of the points of a plan's curve of lower limits.
CURVE = (
    Field("limits at", "percent", "share of the observed maxima", lambda p: p.fraction),
    Field("batches over", "percent", "batches in which some partition exceeds a limit", lambda p: p.batches_over),
    Field("mini-batches, mean", "number", of=lambda p: p.minibatches_mean),
    Field("mini-batches, most", "count", of=lambda p: p.minibatches_max),
    Field("dropped instead", "percent", of=lambda p: p.drop_rate),
)
