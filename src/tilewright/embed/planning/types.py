"""The parts of a plan, of a log or a pod, as frozen values; what planned stacks take; the columns of printed parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias

from tilewright.embed.host.arrays import Longs
from tilewright.embed.model.counters import key, plain
from tilewright.embed.model.formulas import BUCKETS, pointers_per_device, slots_per_device
from tilewright.embed.model.optimizers import name_of
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.embed.model.tables import Limits, Topology, count
from tilewright.embed.planning.memory import SparseMemory, live_stacks, memory
from tilewright.errors import UsageError
from tilewright.render import Field
from tilewright.targets import Target
from tilewright.targets import target as find_target

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""Shares of the partitions whose limits a plan names."""
TYPICAL = 0.99
"""The share of the partitions that is called typical: one of the above."""
AS_IT_IS = "as it is"
"""The remedy that changes nothing."""

_OBSERVED = attrgetter("observed.max_ids_per_partition")
_IDS, _UNIQUE = attrgetter("limits.max_ids_per_partition"), attrgetter("limits.max_unique_ids_per_partition")
_WAIT = "what a step waits for, modelled: rows fetched and ids combined, the fullest shard over the average one"
_STACK = Field("stack", "code", of=lambda pair: pair[0].label)
"""Of pairs of a stack and something of it, and of the stacks that are alike."""
_Known: TypeAlias = Mapping[str, Mapping[str, Any]]
_LARGEST = "the largest max_ids_per_partition of the same proportion that compiles"


@dataclass(frozen=True)
class Savings:
    """The replayed batches' buffers, bytes of one batch on one device: every table alone, and in the stacks planned (or
    possible)."""

    separate_buffer_bytes: int = field(metadata=key("separate_buffer_bytes_per_device"), default=0)
    stacked_buffer_bytes: int = field(metadata=key("stacked_buffer_bytes_per_device"), default=0)


@dataclass(frozen=True)
class Feeding:
    """Host against chip: ``host_seconds`` a whole batch took on this host with ``threads`` threads (measured, the
    fastest of the batches run again), and what a step moves through a chip's HBM and takes there (modelled:
    :attr:`Traffic.waited`; 0.0 without a target)."""

    host_seconds: float = field(metadata=key("host_seconds_per_batch"))
    threads: int = field(metadata=key("host_threads"))
    step_bytes: int = field(metadata=key("step_bytes_per_chip"))
    step_seconds: float
    host_basis: str = "measured"
    step_basis: str = "modelled"


@dataclass(frozen=True)
class Traffic:
    """Of one step and one chip; with C chips, W floats a row (padded), s floats of slots:

    ================  ==============================================================================================
    ``rows``          U, rows asked of the chip, once for every source SparseCore that asks: distinct ids / C
    ``hbm_bytes``     4 * (U * (3 W + 2 s) + 4 * W * samples): a row is read for the lookup; row and slots are read and
                      written for the update; activations and their gradients are written and read
    ``link_bytes``    out of the chip: U * (4 + 8 W) * (C - 1) / C: an id, its vector, and its gradient
    ``host_bytes``    the batch's buffers, from the host
    ``launches``      seconds of the SparseCores for starting and ending lookups and updates, two a stack; ``row_work``:
                      for the rows of every stack's fullest shard; ``id_work``: for its entries. All modelled, see
                      :class:`StackWork`; 0.0 without a target
    ``links``         seconds of the links: ``link_bytes`` at their rate, and for each of a stack's three exchanges the
                      way of a message to the next chip
    ``least``         the longer of ``links`` and ``hbm_bytes`` at the peak of HBM: no step is shorter
    ``seconds``       a step, modelled: SparseCores, or ``least``, were all shards equally full
    ``waited``        the same as it is, each stack waiting for its fullest shard, for ``waits`` seconds
    ================  ==============================================================================================
    """

    rows: float
    hbm_bytes: float
    link_bytes: float
    host_bytes: int
    launches: float = field(metadata=key("launch_seconds"), default=0.0)
    row_work: float = field(metadata=key("row_seconds"), default=0.0)
    id_work: float = field(metadata=key("id_seconds"), default=0.0)
    links: float = field(metadata=key("link_seconds"), default=0.0)
    least: float = field(metadata=key("least_seconds"), default=0.0)
    seconds: float = 0.0
    waited: float = 0.0
    waits: Mapping[str, float] = field(metadata=key(""), default_factory=dict, hash=False)

    @property
    def parts(self) -> dict[str, float]:
        """What the SparseCores do one after the other in a step, and its seconds."""
        return {"launches": self.launches, "rows": self.row_work, "ids": self.id_work}

    @property
    def sparse(self) -> float:
        """Seconds of a step on the SparseCores."""
        return sum(self.parts.values())

    def waits_for(self, host_seconds: float = 0.0) -> str:
        """What takes longest in a step: ``launches``, ``rows`` or ``ids`` of the SparseCores, ``links``, or the
        ``host``, which makes a batch in so many seconds; "" where nothing is known."""
        if host_seconds >= max(self.sparse, self.links):
            return "host" if host_seconds else ""
        return max(self.parts, key=lambda part: self.parts[part]) if self.sparse >= self.links else "links"


@dataclass(frozen=True)
class HotId:
    """An id of a stack's fullest shard: ``share`` of that shard's entries, ``entries`` in the replayed batches."""

    stack: str
    table: str
    id: int
    shard: int
    entries: int
    share: float

    #: Of (stack, hot id).
    COLUMNS: ClassVar = (
        _STACK,
        Field("table", "code", of=lambda p: p[1].table),
        Field("id", "count", of=lambda p: p[1].id),
        Field("shard", "count", "the fullest of its stack", lambda p: p[1].shard),
        Field("entries", "count", "in the batches run again; an id counts once per sample", lambda p: p[1].entries),
        Field("of the shard", "percent", "share of what that shard receives", lambda p: p[1].share),
    )


@dataclass(frozen=True)
class Remedy:
    """A stack's fullest partitions, imbalance and ``wait`` in the replayed batches, if ``change`` were made."""

    stack: str
    change: str
    limits: Limits = field(metadata=key(""))
    imbalance: float = 1.0
    wait: float = 1.0

    DERIVED: ClassVar = {knob.name: f"limits.{knob.name}" for knob in fields(Limits)}
    #: Of (stack, remedy).
    COLUMNS: ClassVar = (
        _STACK,
        Field("if", of=lambda p: p[1].change),
        Field("max ids", "count", "the fullest partition", lambda p: _IDS(p[1])),
        Field("max unique", "count", of=lambda p: _UNIQUE(p[1])),
        Field("imbalance", "ratio", "entries: the fullest shard over the average one", lambda p: p[1].imbalance),
        Field("wait", "ratio", _WAIT, lambda p: p[1].wait),
    )


@dataclass(frozen=True)
class Skew:
    """``hot``: the ids that fill the fullest shards; ``remedies``: what changes would give, "as it is" first;
    ``alone``: limits of every table, were it not stacked; ``used``: of every table how many ids differ, and what
    divides all their differences."""

    hot: tuple[HotId, ...] = field(metadata=key("hot_ids"), default=())
    remedies: tuple[Remedy, ...] = field(metadata=key("changes"), default=())
    alone: Mapping[str, Limits] = field(metadata=key("tables_alone"), default_factory=dict)
    used: Mapping[str, tuple[int, int]] = field(metadata=key("ids_used"), default_factory=dict)


@dataclass(frozen=True)
class TablePlan:
    """One table in HBM. Bytes count all chips; ``wasted`` shares are of ``padded_bytes``; ``packed_bytes``: were rows
    of 1 to 4 floats to share 32-byte lines, 8 // width to a line; ``unpacked_bytes``: had every row lines of its own.
    One of the two is ``padded_bytes``, as ``rows_per_line`` says: 1, or those of a packed table."""

    name: str
    stack: str
    vocab: int
    width: int
    padded_vocab: int
    padded_width: int
    data_bytes: int
    padded_bytes: int
    packed_bytes: int
    unpacked_bytes: int
    rows_per_line: int = 1

    @property
    def gains(self) -> bool:
        """Whether it would be smaller were its rows to share lines."""
        return self.packed_bytes < self.padded_bytes

    @property
    def wasted_by_width(self) -> float:
        """The share of the padded bytes that is padding of rows to 8 floats: 7/8 for a width of 1."""
        return 1 - self.width / self.padded_width

    @property
    def wasted_by_vocab(self) -> float:
        """The share that is whole rows of padding (to 8 rows on every shard)."""
        return (1 - self.vocab / self.padded_vocab) * self.width / self.padded_width

    DERIVED: ClassVar = {"wasted_by_width": "wasted_by_width", "wasted_by_vocab": "wasted_by_vocab"}
    COLUMNS: ClassVar = (
        Field("table", "code", of=lambda t: t.name),
        Field("vocabulary", "count", of=lambda t: t.vocab),
        Field("width", "count", of=lambda t: t.width),
        Field("padded rows", "count", of=lambda t: t.padded_vocab),
        Field("padded width", "count", of=lambda t: t.padded_width),
        Field("data", "bytes", of=lambda t: t.data_bytes),
        Field("in HBM", "bytes", "padded, all chips together", lambda t: t.padded_bytes),
        Field("lost to width", "percent", "rows are padded to 8 floats", lambda t: t.wasted_by_width),
        Field("lost to vocabulary", "percent", "rows are padded to 8 on every shard", lambda t: t.wasted_by_vocab),
        Field("packed", "bytes", "if its rows shared 32-byte lines", lambda t: t.packed_bytes if t.gains else None),
        Field("rows a line", "count", "of 32 bytes", lambda t: t.rows_per_line if t.rows_per_line > 1 else None),
    )


def _mean(alike: Sequence[StackPlan]) -> float | None:
    if alike[0].mean_ids is None:
        return None
    mean = sum(stack.mean_ids or 0.0 for stack in alike) / len(alike)
    return mean if mean < 1000 else round(mean)


def _counted(name: str) -> Callable[[Sequence[StackPlan]], Any]:
    return lambda alike: getattr(alike[0], name) if alike[0].counted else None


def _pair(k: int, stack: StackPlan) -> str:
    return "{:,} / {:,}".format(*vars(stack.quantiles[k][1]).values())


@dataclass(frozen=True)
class StackPlan:
    """One stack: what the log asks of it, the limits chosen, the buffers and the compiler's verdicts.

    ============================  ==================================================================================
    ``limits``                    the chosen quantile of the counts of all partitions (source x shard x batch)
    ``observed``                  the largest of those counts; None without a log
    ``mean_ids``                  entries of the average partition; None without a log
    ``slots``, ``pointers``       of one device's buffers, in the plain layout; ``buffer_bytes`` of both
    ``samples_per_sparsecore``    rows of the stack's activations on one SparseCore
    ``forward``, ``backward``     verdicts on lookup and update, None without a target
    ``counted``                   whether every partition was counted: only then, not on a pod, what follows is known
    ``imbalance``                 entries of the fullest shard over those of the average shard, all batches together
    ``wait``                      what a step waits for, modelled: the shard that moves most bytes, of rows and of ids,
                                  over the average one; ``wait_rows``, ``wait_ids``: the same of either alone
    ``per_shard``                 entries every shard received, all batches together
    ``quantiles``                 (quantile, limits that hold it) of the partitions, ascending
    ``drop_rate``                 share of entries lost if ids above ``limits`` are dropped (replayed batches)
    ``partitions_over``           share of partitions above ``limits``
    ============================  ==================================================================================
    """

    name: str
    tables: tuple[str, ...]
    features: int
    padded_width: int
    rows_per_shard: int
    optimizer: str
    samples_per_sparsecore: int
    limits: Limits
    observed: Limits | None
    mean_ids: float | None
    slots: int = field(metadata=key("slots_per_device"))
    pointers: int = field(metadata=key("row_pointers_per_device"))
    forward: SparseMemory | None = field(metadata=key(""))
    backward: SparseMemory | None = field(metadata=key(""))
    imbalance: float = 1.0
    wait: float = 1.0
    wait_rows: float = 1.0
    wait_ids: float = 1.0
    per_shard: tuple[int, ...] = field(metadata=key("ids_per_shard"), default=())
    quantiles: tuple[tuple[float, Limits], ...] = field(metadata=key(""), default=())
    drop_rate: float = 0.0
    partitions_over: float = 0.0

    DERIVED: ClassVar = {"buffer_bytes_per_device": "buffer_bytes", "programs": "programs"}
    #: Of stacks that are alike (see :meth:`Plan.alike`); the column of their number stands only where partitions were
    #: not counted, those of counts only where they were.
    COLUMNS: ClassVar = (
        _STACK,
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
    #: Of (stack, its program's memory).
    PROGRAMS: ClassVar = (
        _STACK,
        Field("program", of=lambda p: p[1].op),
        Field("compiles", of=lambda p: p[1].compiles),
        Field("replicas", "count", "logical_replica_count", lambda p: p[1].logical_replica_count),
        Field("tile", "bytes", "TileSpmem needed per tile", lambda p: p[1].tile_bytes),
        Field("of", "bytes", "TileSpmem of the chip", lambda p: p[1].tile_limit),
        Field("HBM stack, guide", "bytes", "the guide's formula, the compiler's estimate", lambda p: p[1].guide_bytes),
        Field("HBM stack, taken", "bytes", "per SparseCore, by the measured rule", lambda p: p[1].stack_bytes),
        Field("largest ids", "count", _LARGEST, lambda p: (most := p[1].largest_limits) and most.max_ids_per_partition),
        Field("basis", of=lambda p: p[1].basis),
    )
    #: Limits that hold a share of the partitions.
    HOLDING: ClassVar = (
        Field("stack", "code", of=lambda s: s.label),
        *(Field(f"{q * 100:g} %" if q < 1 else "all", of=partial(_pair, k)) for k, q in enumerate(QUANTILES)),
    )

    @property
    def label(self) -> str:
        """The name, or the first and last table where it is long."""
        return self.name if len(self.name) <= 28 else f"{self.tables[0]} … {self.tables[-1]}"

    @property
    def counted(self) -> bool:
        """Whether every partition was counted."""
        return bool(self.quantiles)

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Lookup and update; none without a target."""
        return tuple(program for program in (self.forward, self.backward) if program)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one batch on one device: three words per slot, one per pointer."""
        return 12 * self.slots + 4 * self.pointers

    def to_json(self) -> dict[str, Any]:
        """Plain values, quantiles one by one; without what was not counted."""
        value: dict[str, Any] = plain(self)
        if self.counted:
            return value | {"quantiles": [{"quantile": share, **vars(limits)} for share, limits in self.quantiles]}
        unknown = [part.metadata.get("key", part.name) for part in fields(self) if part.default is not MISSING]
        return {name: inside for name, inside in value.items() if name not in unknown}


@dataclass(frozen=True)
class CurvePoint:
    """What limits at ``fraction`` of the observed maxima would mean: ``buffer_bytes`` of one batch on one device in the
    plain layout, ``minibatch_buffer_bytes`` in that of mini-batches; mini-batches and drops over the replayed batches.

    ``minibatches_mean``, ``minibatches_max`` are of the batches that can be cut (None: not one can); ``uncut`` is the
    share that cannot, because the ids of one hash bucket alone exceed a limit: ``preprocess`` refuses those, and
    ``uncut_because`` is what it says of the first.
    """

    fraction: float
    limits: Mapping[str, Limits]
    buffer_bytes: int = field(metadata=key("buffer_bytes_per_device"))
    batches_over: float = 0.0
    minibatches_mean: float | None = None
    minibatches_max: int | None = None
    drop_rate: float = 0.0
    uncut: float = 0.0
    uncut_because: str = ""

    @property
    def minibatch_buffer_bytes(self) -> int:
        """Every buffer is as many times as large as there are hash buckets."""
        return self.buffer_bytes * BUCKETS

    DERIVED: ClassVar = {"minibatch_buffer_bytes_per_device": "minibatch_buffer_bytes"}
    COLUMNS: ClassVar = (
        Field("limits at", "percent", "share of the observed maxima", lambda p: p.fraction),
        Field("buffers", "bytes", "one batch on one device", lambda p: p.buffer_bytes),
        Field("if cut", "bytes", "the same where mini-batches are enabled", lambda p: p.minibatch_buffer_bytes),
        Field("batches over", "percent", "batches in which some partition exceeds a limit", lambda p: p.batches_over),
        Field("mini-batches, mean", "number", "of the batches that can be cut", lambda p: p.minibatches_mean),
        Field("mini-batches, most", "count", of=lambda p: p.minibatches_max),
        Field("cannot be cut", "percent", "batches in which one hash bucket alone exceeds a limit", lambda p: p.uncut),
        Field("dropped instead", "percent", of=lambda p: p.drop_rate),
    )


@dataclass(frozen=True)
class Heap:
    """HBM of one chip, in bytes: what stays (tables, optimizer slots, inputs fetched ahead, activations and their
    gradients on the way between SparseCores and TensorCore, what pipelining holds on top, the dense weights as they
    were given) and the stack in use, ``measured`` or ``modelled`` as ``stack_note`` says; ``capacity``: of its bytes
    those that a program can have; 0 without a target.

    Inputs are in the plain layout; ``if_cut``: what they take on top where each is laid out for mini-batches."""

    tables: int = field(metadata=key("tables_bytes"))
    slots: int = field(metadata=key("slots_bytes"))
    inputs: int = field(metadata=key("inputs_bytes"))
    exchange: int = field(metadata=key("exchange_bytes"))
    pipelined: int = field(metadata=key("pipelined_bytes"))
    forward_stack: int = field(metadata=key("forward_stack_bytes"))
    backward_stack: int = field(metadata=key("backward_stack_bytes"))
    capacity: int = field(metadata=key(""))
    stack_basis: str
    stack_note: str
    if_cut: int = field(metadata=key("minibatch_layout_bytes_more"), default=0)
    dense: int = field(metadata=key("dense_bytes"), default=0)
    layout: str = "plain"

    @property
    def total(self) -> int:
        """Heap and the larger of the two stacks."""
        kept = self.tables + self.slots + self.inputs + self.exchange + self.pipelined + self.dense
        return kept + max(self.forward_stack, self.backward_stack)

    DERIVED: ClassVar = {"total_bytes": "total"}


# What planned stacks take: buffers and programs by their limits, and stacks of HBM.

_LESS = {
    "forward": ("lookups", "16 equal ones on tpu-v5p take 10.4 times one of them"),
    "backward": ("updates", "8 equal ones on tpu-v5p with SGD take 7.5 times one of them"),
}
"""Measured of several stacks in one program: less than their sum, by how much depends on what they are."""


def given_fields(
    headroom: float, target: str | Target | None, pipelining: bool, apart: Mapping[str, Longs] | None, **counts: int
) -> dict[str, Any]:
    """The fields of :class:`Plan` that are given and not counted; UsageError for counts and a headroom below 0."""
    if not 0 <= headroom <= 100:
        raise UsageError(f"headroom {headroom}", where="plan", how="give a share of at least 0, such as 0.1")
    checked = {name: count(value, name, "plan", least=0) for name, value in counts.items()}
    chip = find_target(target).name if target is not None else ""
    return {**checked, "target": chip, "pipelining": pipelining, "hot": apart or {}}


def fields_of_limits(group: Stack, topology: Topology, limits: Limits, chip: str | Target | None) -> dict[str, Any]:
    """The fields of :class:`StackPlan` that follow from a stack's limits: buffers, the compiler's verdicts."""
    sparsecores, per_device = topology.sparsecores, topology.sparsecores_per_device
    sizes, operations = (sparsecores, group.padded_width, limits), {"forward": "forward", "backward": group.optimizer}
    return {
        "limits": limits,
        "slots": slots_per_device(limits.max_ids_per_partition, sparsecores, per_device),
        "pointers": pointers_per_device(sparsecores, per_device),
        **{kind: memory(chip, *sizes, op) if chip is not None else None for kind, op in operations.items()},
    }


def stack_plans(
    placed: Stacking, sizes: Mapping[str, int], limits: Mapping[str, Limits], chip: str | Target | None, known: _Known
) -> tuple[StackPlan, ...]:
    """The plans of the stacks; ``sizes``: every feature's batch, ``known``: of a stack the fields that a log says."""
    return tuple(
        StackPlan(
            name=group.name,
            tables=tuple(table.name for table in group.tables),
            features=len(group.features),
            padded_width=group.padded_width,
            rows_per_shard=group.rows_per_shard,
            optimizer=name_of(group.optimizer),
            samples_per_sparsecore=group.samples_per_sparsecore(sizes),
            **fields_of_limits(group, placed.topology, limits[group.name], chip),
            **known[group.name],
        )
        for group in placed.groups
    )


def live_bytes(kind: str, programs: list[SparseMemory], serialized: int) -> tuple[int, str]:
    """Stack bytes per SparseCore of all stacks in one program at most; where that is modelled, how ("": measured).

    Those that are live at a time are added. Of ``serialized`` stacks one is; which ones they are is not known, so the
    largest are taken to be live: more in turn never take more.
    """
    live = sorted(programs, key=lambda m: -m.stack_bytes)[: live_stacks(len(programs), serialized)]
    notes = list(dict.fromkeys(m.note for m in programs if m.basis != "measured"))
    if len(live) > 1:
        programs_of, less = _LESS[kind]
        notes.append(f"{programs_of} of {len(live)} stacks are added, the most they can take ({less})")
    if len(live) < len(programs):
        of = f"{len(live)} of {len(programs)}"
        notes.append(f"the largest {of} stacks are live at a time, as {serialized} are processed in turn")
    return sum(m.stack_bytes for m in live), "; ".join(notes)
