"""A plan as counters: what a log asks, before any step has been run."""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.embed.diagnosis.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.host.check import Check
from tilewright.embed.host.narrow import NarrowTables
from tilewright.embed.logs.config import EmbedConfig
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.faces import stack_label
from tilewright.embed.planning.memory import OPERATIONS, memory
from tilewright.embed.planning.plan import plan
from tilewright.embed.planning.types import Plan, StackPlan, TablePlan
from tilewright.errors import UsageError
from tilewright.targets import target

_TYPICAL = 0.99


def plan_counters(plan: Plan, sparsecore: SparseCoreConfig | None = None) -> Counters:
    """A plan's counts, with the guide's knobs in use where they are given.

    Steps are the log's batches; ``seconds.host`` is this host's preprocessing time, ``hbm.moved`` the least traffic of
    a step. Times of a chip are not in a plan: put them on top with :meth:`Counters.merged`.
    """
    topology, heap = plan.stacking.topology, plan.heap
    return Counters(
        target=plan.target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=plan.batches,
        steps_over=plan.batches_over,
        buffer_bytes=sum(each.buffer_bytes for each in plan.stacks) * topology.devices // topology.chips,
        seconds=Seconds(host=plan.feeding.host_seconds),
        hbm=HbmCounters(
            tables=heap.tables,
            slots=heap.slots,
            inputs=heap.inputs,
            exchange=heap.exchange + heap.pipelined,
            forward_stack=heap.forward_stack if plan.target else None,
            backward_stack=heap.backward_stack if plan.target else None,
            capacity=heap.capacity or None,
            moved=plan.feeding.step_bytes,
            moved_modelled=True,
        ),
        stacks={each.name: _stack(plan, each) for each in plan.stacks},
        tables={each.name: _table(each) for each in plan.tables},
        sparsecore=sparsecore,
    )


def _table(each: TablePlan) -> TableCounters:
    """A packed table as the lines it lives in."""
    lines = -(-each.vocab // each.rows_per_line)
    return TableCounters(lines, each.width * each.rows_per_line)


def _stack(plan: Plan, each: StackPlan) -> StackCounters:
    typical = next((limits for q, limits in each.quantiles if q == _TYPICAL), Limits(1, 1))
    hot = next((h for h in plan.skew.hot if h.stack == each.name), None)
    return StackCounters(
        tables=len(each.tables),
        width=each.padded_width,
        label=stack_label(each),
        optimizer=each.optimizer,
        combiner=plan.stacking.stacks[each.name].combiner,
        samples_per_sparsecore=each.samples_per_sparsecore,
        max_ids_per_partition=each.limits.max_ids_per_partition,
        max_unique_ids_per_partition=each.limits.max_unique_ids_per_partition,
        observed_ids=each.observed.max_ids_per_partition,
        observed_unique_ids=each.observed.max_unique_ids_per_partition,
        typical_ids=typical.max_ids_per_partition,
        typical_unique_ids=typical.max_unique_ids_per_partition,
        mean_ids=each.mean_ids,
        imbalance=each.imbalance,
        dropped_share=each.drop_rate,
        hot=(hot.table, hot.id, hot.share) if hot else (),
        remedies={
            r.change: (r.limits.max_ids_per_partition, r.limits.max_unique_ids_per_partition, r.imbalance)
            for r in plan.skew.remedies
            if r.stack == each.name
        },
    )


# A check of batches against limits as counters: are the limits too low, too high, too large for a tile?

_SEEN = {"max_ids_per_partition": "observed_ids", "max_unique_ids_per_partition": "observed_unique_ids"}


def check_counters(check: Check, stacking: Stacking, target: str = "") -> Counters:
    """Every stack's limits beside the most that was asked of it."""
    stacks = {
        name: StackCounters(
            tables=len(stack.tables),
            width=stack.padded_width,
            optimizer=type(stack.optimizer).__name__,
            combiner=stack.combiner,
        )
        for name, stack in stacking.stacks.items()
    }
    for each in check.limits:
        if each.what in stacks and each.knob in _SEEN:
            found = {each.knob: each.limit, _SEEN[each.knob]: each.observed}
            stacks[each.what] = replace(stacks[each.what], **found)  # type: ignore[arg-type]
    topology = stacking.topology
    return Counters(
        target=target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=check.batches,
        steps_over=check.batches_over / check.batches,
        stacks={name: each for name, each in stacks.items() if each.limits is not None},
    )


# Preprocessed batches as counters: what a run was fed, batch by batch.


def batch_counters(
    batches: Iterable[HostBatch],
    limits: Mapping[str, Limits] | None = None,
    target: str = "",
) -> Counters:
    """Counters of the batches a run was fed, read once and not kept; ``limits`` are those it was compiled with.

    Every new shape of the buffers is counted as a program compiled: that is what jit does.

    Raises :class:`UsageError` for no batches, or batches of several models.

    >>> from tilewright.embed import Feature, Table, Topology, preprocess, stack
    >>> model = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> made = batch_counters(preprocess({"f": ids}, model) for ids in ([[0, 2], [4]], [[1], [1]]))
    >>> made.steps, made.stacks["t"].observed_ids, made.stacks["t"].shard_ids
    (2, 2, (3, 2))
    """
    seen: _Seen | None = None
    for batch in batches:
        seen = seen or _Seen(batch)
        seen.add(batch)
    if seen is None:
        raise UsageError("no batches", where="batch_counters", how="give at least one preprocessed batch")
    return seen.counters(limits or {}, target)


class _Seen:
    """Sums and maxima so far."""

    def __init__(self, first: HostBatch) -> None:
        self.stacking, self.sizes, self.sources = first.stacking, first.batch_sizes, len(first.sources)
        shards = first.stacking.topology.sparsecores
        self.per_shard = {name: np.zeros(shards, np.int64) for name in first.stats}
        self.dropped = dict.fromkeys(first.stats, 0)
        self.most = dict.fromkeys(first.stats, (0, 0))
        self.histograms = {name: np.zeros(1, np.int64) for name in first.stats}
        self.steps = self.minibatches = self.over = self.bytes = 0
        self.layout = first.minibatch_layout
        self.shapes: set[tuple[int, ...]] = set()

    def add(self, batch: HostBatch) -> None:
        """One more batch."""
        if batch.stacking != self.stacking:
            raise UsageError("batches of several stackings", where="batch_counters", how="count each model by itself")
        self.steps += 1
        self.minibatches += batch.num_minibatches
        self.over += batch.num_minibatches > 1 or any(s.dropped_ids.any() for s in batch.stats.values())
        for name, stats in batch.stats.items():
            found = partition_counts(batch, name)
            self.per_shard[name] += found.sum(axis=0) + stats.dropped_ids
            self.dropped[name] += int(stats.dropped_ids.sum())
            both = int(stats.max_ids_per_partition.max()), int(stats.max_unique_ids_per_partition.max())
            self.most[name] = max(self.most[name][0], both[0]), max(self.most[name][1], both[1])
            more = np.bincount(found.reshape(-1), minlength=len(self.histograms[name]))
            more[: len(self.histograms[name])] += self.histograms[name]
            self.histograms[name] = more
        arrays = [a for kind in (batch.row_pointers, batch.embedding_ids) for a in kind.values()]
        self.shapes.add(tuple(a.shape[1] for a in arrays))
        size = sum(a.nbytes for a in arrays) + 2 * sum(a.nbytes for a in batch.embedding_ids.values())
        self.bytes = max(self.bytes, size * self.stacking.topology.sparsecores_per_chip // self.sources)

    def counters(self, limits: Mapping[str, Limits], target: str) -> Counters:
        """All of it."""
        topology = self.stacking.topology
        return Counters(
            target=target,
            chips=topology.chips,
            sparsecores=topology.sparsecores,
            steps=self.steps,
            minibatches=self.minibatches,
            steps_over=self.over / self.steps,
            compilations=len(self.shapes),
            minibatch_layout=self.layout,
            buffer_bytes=self.bytes,
            stacks={name: self._stack(name, limits.get(name)) for name in self.most},
            tables={p.table.name: TableCounters(p.table.vocab, p.table.width) for p in self.stacking.placements},
        )

    def _stack(self, name: str, limits: Limits | None) -> StackCounters:
        stack, shards = self.stacking.stacks[name], self.per_shard[name]
        partitions = self.steps * self.sources * len(shards)
        below = np.cumsum(self.histograms[name])
        dropped = self.dropped[name]
        return StackCounters(
            tables=len(stack.tables),
            width=stack.padded_width,
            optimizer=type(stack.optimizer).__name__,
            combiner=stack.combiner,
            samples_per_sparsecore=stack.samples_per_sparsecore(self.sizes),
            max_ids_per_partition=limits.max_ids_per_partition if limits else None,
            max_unique_ids_per_partition=limits.max_unique_ids_per_partition if limits else None,
            observed_ids=self.most[name][0],
            observed_unique_ids=self.most[name][1],
            typical_ids=None if dropped else int(np.searchsorted(below, 0.99 * below[-1])),
            mean_ids=float(shards.sum() / partitions),
            shard_ids=tuple(shards.tolist()),
            ids=int(shards.sum()),
            dropped_ids=dropped,
        )


def partition_counts(batch: HostBatch, stack: str) -> Longs:
    """int64[sources, S]: entries kept of every partition, all mini-batches together, from the row pointers."""
    shards = batch.stacking.topology.sparsecores
    per_device = batch.stacking.topology.sparsecores_per_device
    segments = per_device * (batch.num_minibatches if batch.minibatch_layout else 1)
    ends = batch.row_pointers[stack].astype(np.int64)[:, : segments * max(shards, 8)]
    if not batch.minibatch_layout:  # every source counts from the start of its own slice
        ends = ends.reshape(-1, max(shards, 8))
    starts = np.zeros_like(ends)
    starts[:, 1:] = (ends[:, :-1] + 7) // 8 * 8
    counts = (ends - starts).reshape(len(batch.sources), -1, max(shards, 8))[:, :, :shards]
    found: Longs = counts.sum(axis=1)
    return found


# A log against a model's limits as counters: what a run would be fed, before it is run.

Batch = Mapping[str, Any]


def log_counters(
    batches: Iterable[Batch],
    model: EmbedConfig,
    limits: Mapping[str, Limits] | None = None,
    *,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
) -> Counters:
    """Counters of a log's batches under ``limits`` (the model's own where None; without any, the log's maxima).

    One pass over the batches: what each asks, into how many mini-batches it is cut, what would be dropped where
    ``allow_id_dropping`` is set, and, scaled to these limits, the stack of the programs.

    Raises :class:`UsageError` for whatever ``plan`` refuses.
    """
    knobs, narrow = model.sparsecore, model.narrow
    sizes, together = narrow.batch_sizes(model.batch), not knobs.disable_table_stacking
    stacking = stack(narrow.features, model.topology, together, sizes, stacks=model.stacks)
    limits = model.limits if limits is None else limits
    under = _Under(stacking, limits or {}, bad_ids, narrow, drop=knobs.allow_id_dropping)
    made = plan(
        under.watch(batches),
        model.features,
        model.topology,
        target=model.target,
        stacking=stacking,
        narrow_packing=model.narrow_packing,
        prefetched_batches=knobs.maximum_parallel_iterations,
        pipelining=not knobs.disable_full_embedding_pipelining,
        serialized_tables=knobs.num_serialized_tables_to_optimize_hbm,
        bad_ids=bad_ids,
        progress=progress,
    )
    counters = plan_counters(made, knobs)
    return _under_limits(counters, under) if limits else counters


class _Under:
    """Mini-batches and drops of the batches that pass through."""

    def __init__(
        self, stacking: Stacking, limits: Mapping[str, Limits], bad_ids: str, narrow: NarrowTables, *, drop: bool
    ) -> None:
        self.narrow = narrow
        self.stacking, self.limits, self.bad_ids, self.drop = stacking, limits, bad_ids, drop
        self.minibatches = self.over = self.steps = 0
        self.dropped = dict.fromkeys(stacking.stacks, 0)
        self.ids = dict.fromkeys(stacking.stacks, 0)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, counted on their way."""
        for batch in batches:
            if self.limits:
                self._add(batch)
            yield batch

    def _add(self, batch: Batch) -> None:
        from tilewright.embed.host.observe import count_batch, splits
        from tilewright.embed.host.overflow import limit_table
        from tilewright.embed.host.preprocess import preprocess

        batch = self.narrow.batch(batch, self.bad_ids)
        table = limit_table(self.limits, self.stacking)
        made, counts, _ = count_batch(batch, self.stacking, self.bad_ids)
        over = any((found.max(axis=(1, 2)) > most).any() for found, most in zip(counts, table))
        self.steps += 1
        self.over += over
        self.minibatches += splits(self.stacking, made, table) if over and not self.drop else 1
        for name, found in zip(self.ids, counts):
            self.ids[name] += int(found[0].sum())
        if over and self.drop:
            host = preprocess(batch, self.stacking, self.limits, overflow="drop", bad_ids=self.bad_ids)
            for name, stats in host.stats.items():
                self.dropped[name] += int(stats.dropped_ids.sum())


def _under_limits(counters: Counters, under: _Under) -> Counters:
    """The counters with the limits of ``under`` in place of those the log would need."""
    stacks = {}
    for name, each in counters.stacks.items():
        limits = under.limits.get(name)
        stacks[name] = replace(
            each,
            max_ids_per_partition=limits.max_ids_per_partition if limits else None,
            max_unique_ids_per_partition=limits.max_unique_ids_per_partition if limits else None,
            ids=under.ids[name],
            dropped_ids=under.dropped[name] if under.drop else None,
            dropped_share=None,
        )
    now, then = (_program_bytes(counters, each) for each in (counters.stacks, stacks))
    hbm = counters.hbm
    if now[0]:
        hbm = replace(hbm, forward_stack=round((hbm.forward_stack or 0) * then[0] / now[0]))
    if now[1]:
        hbm = replace(hbm, backward_stack=round((hbm.backward_stack or 0) * then[1] / now[1]))
    return replace(
        counters,
        stacks=stacks,
        minibatches=under.minibatches,
        steps_over=under.over / under.steps,
        hbm=hbm,
    )


def _program_bytes(counters: Counters, stacks: Mapping[str, StackCounters]) -> tuple[int, int]:
    """HBM stack of the lookups and of the updates, each alone."""
    sums = [0, 0]
    for each in stacks.values():
        if each.limits is not None and counters.target:
            for i, op in enumerate(("forward", each.optimizer.lower())):
                if op in OPERATIONS:
                    found = memory(counters.target, counters.shards, each.width, each.limits, op)
                    sums[i] += found.stack_bytes
    return sums[0], sums[1]


# Counters of a run as a TOML or JSON file, written by hand from a profile or by a training loop.

T = TypeVar("T")

TEMPLATE = """\
# Counters of a run, for `tilewright embed diagnose`. Keep what you know and delete the rest.
target = "tpu-v5p"
chips = 4
steps = 1000                    # counted below
minibatches = 1000              # of all steps together
compilations = 1

[seconds]                       # of one step, from the loop's clock or XProf's step-time page
step = 0.012
host = 0.009                    # read, preprocess and hand over one batch
wait = 0.0                      # chip idle for want of input
sparsecore = 0.008              # SparseCore lanes busy
tensorcore = 0.011
compile = 40.0                  # of all steps together

[hbm]                           # bytes of one chip: XProf's memory viewer
tables = 20_000_000_000
slots = 20_000_000_000
dense = 1_000_000_000
inputs = 100_000_000
forward_stack = 400_000_000
backward_stack = 600_000_000
# moved = 900_000_000           # HBM traffic of a step

[stack.user_item]               # one for each stack
tables = 2
width = 32
optimizer = "adagrad"
max_ids_per_partition = 512     # the limits compiled with
max_unique_ids_per_partition = 256
observed_ids = 498              # the fullest partition seen
observed_unique_ids = 233
ids = 40_000_000                # entries of all steps
dropped_ids = 0
# shard_ids = [1_000_000, ...]  # entries each shard received

[table.user]
vocab = 1_000_000
width = 32

[sparsecore]                    # the guide's knobs, where they are not its defaults
maximum_parallel_iterations = 2
"""


def read_counters(path: str | Path) -> Counters:
    """Counters from a ``.toml`` or ``.json`` file (:data:`TEMPLATE` shows every section).

    JSON may also be what ``embed plan --json``, ``embed diagnose --json`` or ``run`` (``report.json``) wrote: their
    counters are taken.

    Raises :class:`UsageError` that names the file and the entry: no such file, not TOML or JSON, an unknown key (with
    the nearest one), a value of a wrong type or below 0, an unknown target.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text", where=str(path)) from None
    try:
        value = json.loads(text) if str(path).endswith(".json") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        kind = "JSON" if str(path).endswith(".json") else "TOML"
        raise UsageError(f"not {kind}: {error}", where=str(path)) from None
    return parse_counters(value, str(path))


def parse_counters(value: Any, where: str = "counters") -> Counters:
    """The same from values already parsed.

    >>> parse_counters({"target": "tpu-v6e", "chips": 2, "seconds": {"step": 0.02}}).shards
    4
    """
    if not isinstance(value, Mapping):
        raise UsageError("not a table of counters", where=where)
    if isinstance(value.get("table"), list) or isinstance(value.get("feature"), list):
        how = "`tilewright embed diagnose LOG --config MODEL` judges a model; --template prints counters to fill in"
        raise UsageError("a model, not counters", where=where, how=how)
    if value.get("kind") == "run":
        value = value.get("plan") or {}
    if value.get("kind") in ("embedding_plan", "embedding_diagnosis"):
        if "counters" not in value:
            raise UsageError("holds no counters", where=where, how="write it again with this version")
        value = value["counters"]
    if value.get("kind", "embedding_counters") != "embedding_counters":
        what = f"a file of kind {value['kind']!r} holds no counters"
        raise UsageError(what, where=where, how="`tilewright embed diagnose --template` prints one to fill in")
    try:
        return _counters({k: v for k, v in value.items() if k not in ("kind", "schema_version")}, where)
    except UsageError as error:
        inside = error.where if error.where.startswith(where) else ": ".join(filter(None, (where, error.where)))
        raise UsageError(error.what, where=inside, how=error.how) from None


_PARTS: dict[str, type[Any]] = {"seconds": Seconds, "hbm": HbmCounters, "sparsecore": SparseCoreConfig}
_NAMED: dict[str, tuple[str, type[Any]]] = {
    **dict.fromkeys(("stack", "stacks"), ("stacks", StackCounters)),
    **dict.fromkeys(("table", "tables"), ("tables", TableCounters)),
}


def _counters(value: Mapping[str, Any], where: str) -> Counters:
    plain: dict[str, Any] = {}
    for key, entry in value.items():
        if key in _PARTS:
            plain[key] = _build(_PARTS[key], entry, f"{where}: {key}")
        elif key in _NAMED:
            name, kind = _NAMED[key]
            entry = _mapping(entry, f"{where}: {key}", f"write [{key}.NAME] for each")
            plain[name] = {str(n): _build(kind, each, f"{where}: {key} {n!r}") for n, each in entry.items()}
        else:
            plain[key] = entry
    found = _build(Counters, plain, where)
    return _with_capacity(found) if found.target else found


def _with_capacity(found: Counters) -> Counters:
    """HBM figures are of the target's HBM."""
    chip = target(found.target)
    if chip.sparse is None:
        raise UsageError(f"{chip.name} has no SparseCores", where="target", how="take one that has, such as tpu-v5p")
    hbm = chip.memory("hbm")
    if hbm is None or found.hbm == HbmCounters() or found.hbm.capacity is not None:
        return found
    return found.merged(Counters(hbm=HbmCounters(capacity=hbm.bytes)))


def _build(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from plain values, each checked against the type of its field."""
    if isinstance(value, kind):
        return value
    value = _mapping(value, where)
    hints = typing.get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            near = get_close_matches(key, list(known), n=1) or [", ".join(known)]
            raise UsageError(f"unknown key {key!r}", where=where, how=f"did you mean {near[0]}?")
    if missing := [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in value]:
        raise UsageError(f"{' and '.join(missing)} missing", where=where)
    return kind(**{key: _checked(entry, hints[key], key, where) for key, entry in value.items()})


def _mapping(value: Any, where: str, how: str = "") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        raise UsageError(f"{shown} is not a table of values", where=where, how=how)
    return value


def _checked(value: Any, hint: Any, key: str, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(each for each in kinds if each is not type(None))
    origin = typing.get_origin(kind) or kind
    if origin is float or origin is int:
        wanted = (int, float) if origin is float else (int,)
        if isinstance(value, bool) or not isinstance(value, wanted) or not 0 <= value < float("inf"):
            what = "a number" if origin is float else "a whole number"
            raise UsageError(f"{key} = {value!r} is not {what} of at least 0", where=where)
        if key in ("chips", "width", "vocab") and value < 1:
            raise UsageError(f"{key} = {value!r} is below 1", where=where)
        return value
    if key == "hot":
        return _listed(value, key, where, (str, int, float))
    if origin is tuple:
        return _listed(value, key, where, (int,) * len(value) if isinstance(value, list) else ())
    if origin in (str, bool) and not isinstance(value, origin):
        raise UsageError(f"{key} = {value!r} is not {'a text' if origin is str else 'true or false'}", where=where)
    if key == "remedies":
        return {str(k): _listed(v, f"remedies {k!r}", where, (float,) * 3) for k, v in _mapping(value, where).items()}
    return value


def _listed(value: Any, key: str, where: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """A list with one value of each kind, in order."""
    if not isinstance(value, list) or len(value) != len(kinds):
        raise UsageError(f"{key} = {value!r} is not a list of {len(kinds) or 'whole numbers'}", where=where)
    for each, kind in zip(value, kinds):
        if kind is str:
            fine = isinstance(each, str)
        else:
            fine = type(each) is int or (kind is float and isinstance(each, float))
            fine = fine and 0 <= each < float("inf")
        if not fine:
            raise UsageError(f"{each!r} in {key} is not what stands there ({kind.__name__})", where=where)
    return tuple(value)
