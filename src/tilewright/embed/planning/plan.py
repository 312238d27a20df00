"""Plan embedding tables from logged batches, before any chip is rented."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import ragged_inputs, source_slices
from tilewright.embed.host.overflow import Overflow, limit_table
from tilewright.embed.host.preprocess import preprocess
from tilewright.embed.host.tables import NarrowTables, pack_narrow
from tilewright.embed.host.tally import tally
from tilewright.embed.model.formulas import (
    BUCKETS,
    packed_table_bytes,
    padded_table_bytes,
    pointers_per_device,
    round8,
    slots_per_device,
)
from tilewright.embed.model.optimizers import RowOptimizer, name_of
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement, stack
from tilewright.embed.model.tables import Feature, Limits, Topology, count
from tilewright.embed.planning.confidence import Confidence, confidence_of_all
from tilewright.embed.planning.memory import RULE_VERSION, SparseMemory, live_stacks, memory
from tilewright.embed.planning.skew import Observed, buffer_bytes, feeding_of, imbalance, savings_of, skew_of
from tilewright.embed.planning.types import AS_IT_IS, QUANTILES, Buffered, CurvePoint, Heap, Plan, StackPlan, TablePlan
from tilewright.errors import LimitError, UsageError
from tilewright.targets import Target, target

CURVE = (1.0, 0.9, 0.75, 0.5, 0.35, 0.25)
"""Fractions of the observed maxima at which the curve of lower limits is taken."""


# HBM of one chip: what stays there, and the stack of all tables together.

_PROGRAM = {"forward": "lookups", "backward": "updates"}
_LESS = {
    "forward": "16 equal ones on tpu-v5p take 10.4 times one of them",
    "backward": "8 equal ones on tpu-v5p with SGD take 7.5 times one of them",
}
"""Measured of several stacks in one program: less than their sum, by how much depends on what they are."""


def heap_of(
    stacking: Stacking,
    stacks: Sequence[Buffered],
    prefetched: int,
    chip: str | Target | None,
    pipelining: bool = True,
    serialized: int = 0,
) -> Heap:
    """Bytes on one chip; all chips hold the same.

    With pipelining the SparseCores run lookup i and update i - 2 while the TensorCore runs step i - 1: two sets of
    activations and of gradients are on their way instead of one, and the inputs of two more batches wait for their
    gradients.
    """
    topology = stacking.topology
    table_bytes = {group.name: group.vocab * group.padded_width * 4 for group in stacking.groups}
    slot_bytes = sum(group.vocab * group.slot_floats * 4 for group in stacking.groups)
    batch = sum(stack.buffer_bytes for stack in stacks) * topology.devices // topology.chips
    exchange = 2 * topology.sparsecores_per_chip * sum(4 * s.padded_width * s.samples_per_sparsecore for s in stacks)
    per_chip, hbm = topology.sparsecores_per_chip, target(chip).memory("hbm") if chip is not None else None
    forward, how_forward = _together("forward", [s.forward for s in stacks if s.forward], serialized)
    backward, how_backward = _together("backward", [s.backward for s in stacks if s.backward], serialized)
    how = [how for how in (how_forward, how_backward) if how]
    return Heap(
        tables=sum(table_bytes.values()) // topology.chips,
        slots=slot_bytes // topology.chips,
        inputs=prefetched * batch,
        exchange=exchange,
        pipelined=exchange + 2 * batch if pipelining else 0,
        forward_stack=forward * per_chip,
        backward_stack=backward * per_chip,
        capacity=hbm.bytes if hbm else 0,
        if_cut=(prefetched + (2 if pipelining else 0)) * batch * (BUCKETS - 1),
        stack_basis="modelled" if how else "measured",
        stack_note="; ".join(how) or f"rules measured ahead of time against {RULE_VERSION}",
    )


def _together(kind: str, programs: list[SparseMemory], serialized: int) -> tuple[int, str]:
    """Stack bytes per SparseCore of all stacks in one program at most; where that is modelled, how ("": measured).

    Those that are live at a time are added. Of ``serialized`` stacks one is; which ones they are is not known, so the
    largest are taken to be live: more in turn never take more.
    """
    live = sorted(programs, key=lambda m: -m.stack_bytes)[: live_stacks(len(programs), serialized)]
    notes = [m.note for m in programs if m.basis != "measured"][:1]
    if len(live) > 1:
        notes.append(f"{_PROGRAM[kind]} of {len(live)} stacks are added, the most they can take ({_LESS[kind]})")
    if len(live) < len(programs):
        of = f"{len(live)} of {len(programs)}"
        notes.append(f"the largest {of} stacks are live at a time, as {serialized} are processed in turn")
    return sum(m.stack_bytes for m in live), "; ".join(notes)


def plan(
    batches: Iterable[Mapping[str, Any]],
    features: Iterable[Feature],
    topology: Topology,
    quantile: float = 1.0,
    *,
    headroom: float = 0.0,
    target: str | Target | None = None,
    stacking: Stacking | None = None,
    table_stacking: bool = True,
    narrow_packing: bool = False,
    prefetched_batches: int = 2,
    pipelining: bool = True,
    serialized_tables: int = 0,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
    days: Sequence[str] = (),
) -> Plan:
    """Limits, buffers, memory, padding and imbalance for ``features`` on ``topology``, learnt from ``batches``.

    ``batches`` is any iterable of what ``preprocess`` takes; it is read once, one batch at a time (and up to eight
    sampled batches are kept, to be run again under the limits found). Every batch must divide by the SparseCores.

    ``quantile``: the share of partitions (source x shard x batch, per stack) that the limits must hold; 1.0 takes the
    maxima. ``headroom`` raises them by a share of themselves, rounded up to 8: 0.1 for days that ask a tenth more than
    the log does. ``target`` adds the compiler's verdicts and the chip's HBM. ``stacking`` is the one to plan for, by
    default ``stack(features, topology, table_stacking, batch_size=the first batch's)``. ``narrow_packing`` plans
    for :func:`pack_narrow` of the features (``stacking``, where given, is of those), from batches of the features as
    they are. ``prefetched_batches`` is the guide's maximum_parallel_iterations, ``serialized_tables`` its
    num_serialized_tables_to_optimize_hbm, and ``pipelining`` is off where it sets disable_full_embedding_pipelining.
    ``progress(n)`` is called after each batch. ``days``: the day of every batch, read when all batches have been: the
    limits of the days before are then held against each later day.

    Raises :class:`UsageError` for no batches, other than one day for each, a quantile outside (0, 1], a headroom below
    0, or anything ``preprocess`` refuses.

    >>> from tilewright.embed import Table
    >>> table = Table("user", vocab=1000, width=16)
    >>> logs = [{"user": np.arange(64).reshape(64, 1) % 10} for _ in range(3)]
    >>> learnt = plan(logs, [Feature("user", table)], Topology(chips=1, sparsecores_per_chip=4), target="tpu-v5p")
    >>> learnt.limits["user"], learnt.batches, learnt.fits
    (Limits(max_ids_per_partition=5, max_unique_ids_per_partition=3), 3, True)
    """
    if not 0 < quantile <= 1:
        raise UsageError(f"quantile {quantile}", where="plan", how="give a share above 0 and at most 1")
    if not 0 <= headroom <= 100:
        raise UsageError(f"headroom {headroom}", where="plan", how="give a share of at least 0, such as 0.1")
    prefetched_batches = count(prefetched_batches, "prefetched_batches", "plan", least=0)
    serialized_tables = count(serialized_tables, "serialized_tables", "plan", least=0)
    narrow = pack_narrow(features, narrow_packing)
    batches = _narrowed(batches, narrow, bad_ids)
    stacking, batches = _stacking(batches, narrow.features, topology, stacking, table_stacking)
    observed = Observed(stacking, bad_ids)
    for batch in batches:
        with _naming_batch(observed.batches + 1):
            observed.add(batch)
        if progress is not None:
            progress(observed.batches)
    limits = {name: raised(limit, headroom) for name, limit in observed.limits(quantile).items()}
    candidates = [_lowered(observed.limits(1.0), fraction) for fraction in CURVE]
    chosen, *lower = replay(observed, [limits, *candidates])
    stacks = tuple(
        _stack_plan(group, observed, limits[group.name], chosen.dropped[group.name], target)
        for group in stacking.groups
    )
    skew = skew_of(observed)
    today = {remedy.stack: remedy.limits for remedy in skew.remedies if remedy.change == AS_IT_IS}
    return Plan(
        stacking=stacking,
        target=_name(target),
        quantile=quantile,
        batches=observed.batches,
        samples=observed.batches * _samples(observed.sizes, narrow),
        replayed=len(observed.sample),
        batches_over=observed.batches_over(limits),
        uncut=chosen.uncut / len(observed.sample),
        uncut_because=chosen.uncut_because,
        prefetched_batches=prefetched_batches,
        stacks=stacks,
        tables=tuple(_table_plan(placement, narrow) for placement in stacking.placements),
        curve=tuple(_point(*point, observed) for point in zip(CURVE, candidates, lower)),
        heap=heap_of(stacking, stacks, prefetched_batches, target, pipelining, serialized_tables),
        skew=skew,
        savings=savings_of(observed, skew.alone, today),
        feeding=feeding_of(observed, limits, target),
        confidence=_confidence(observed, headroom, days) if quantile == 1 else None,
    )


def _narrowed(batches: Iterable[Mapping[str, Any]], narrow: NarrowTables, bad_ids: str) -> Iterator[Mapping[str, Any]]:
    """The batches, as packed tables take them."""
    for n, batch in enumerate(batches, 1):
        with _naming_batch(n):
            packed = narrow.batch(batch, bad_ids)
        yield packed


def _samples(sizes: Mapping[str, int], narrow: NarrowTables) -> int:
    """Samples of a batch, those of packed tables counted as the model counts them."""
    parts = narrow.samples_per_sample()
    return max(size // parts[name] for name, size in sizes.items())


@contextmanager
def _naming_batch(number: int) -> Iterator[None]:
    """What is wrong with a batch says which one it was, from 1."""
    try:
        yield
    except UsageError as error:
        where = f"batch {number}" + (f", {error.where}" if error.where not in ("", "batch") else "")
        raise UsageError(error.what, where=where, how=error.how) from None


def _confidence(observed: Observed, headroom: float, days: Sequence[str]) -> Confidence:
    if days and len(days) != observed.batches:
        raise UsageError(f"{len(days)} days for {observed.batches} batches", where="plan", how="name each one's")

    def allowed(most: Longs) -> Longs:
        limits = (raised(Limits.holding(*counts), headroom) for counts in most.tolist())
        return np.array([(limit.max_ids_per_partition, limit.max_unique_ids_per_partition) for limit in limits])

    return confidence_of_all(np.array(observed.peaks), allowed, days, list(observed.stacking.stacks))


def raised(limits: Limits, headroom: float) -> Limits:
    """Both limits higher by a share of themselves, in whole buffers of 8."""
    if not headroom:
        return limits
    ids, unique = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
    return Limits(round8(math.ceil(ids * (1 + headroom))), round8(math.ceil(unique * (1 + headroom))))


def _name(chip: str | Target | None) -> str:
    return "" if chip is None else target(chip).name


def _stacking(
    batches: Iterable[Mapping[str, Any]],
    features: tuple[Feature, ...],
    topology: Topology,
    stacking: Stacking | None,
    table_stacking: bool,
) -> tuple[Stacking, Iterable[Mapping[str, Any]]]:
    """The stacking to plan for; by default made for the first batch's sizes, which are read ahead."""
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise UsageError("no batches", where="plan", how="give at least one batch")
    if stacking is not None:
        if stacking.features != features or stacking.topology != topology:
            raise UsageError("the stacking is of other features or another topology", where="plan")
        return stacking, chain((first,), rest)
    with _naming_batch(1):
        whole = stack(features, topology)
        inputs = ragged_inputs(first, whole, source_slices(whole))
    sizes = {name: ragged.batch_size for name, ragged in inputs.items()}
    return stack(features, topology, table_stacking, sizes), chain((first,), rest)


def _stack_plan(
    group: Stack, observed: Observed, limits: Limits, dropped: float, chip: str | Target | None
) -> StackPlan:
    topology = observed.stacking.topology
    per_shard = observed.per_shard[group.name]
    wait, wait_rows, wait_ids = observed.work[group.name].ratios
    sparsecores, per_device = topology.sparsecores, topology.sparsecores_per_device

    def program(op: str | RowOptimizer) -> SparseMemory | None:
        return memory(chip, sparsecores, group.padded_width, limits, op) if chip is not None else None

    return StackPlan(
        name=group.name,
        tables=tuple(table.name for table in group.tables),
        features=len(group.features),
        padded_width=group.padded_width,
        rows_per_shard=group.rows_per_shard,
        optimizer=name_of(group.optimizer),
        observed=observed.limits(1.0)[group.name],
        limits=limits,
        mean_ids=observed.means(group.name)[0],
        imbalance=imbalance(per_shard),
        drop_rate=dropped,
        partitions_over=observed.partitions_over(group.name, limits),
        slots=slots_per_device(limits.max_ids_per_partition, sparsecores, per_device),
        pointers=pointers_per_device(sparsecores, per_device),
        samples_per_sparsecore=group.samples_per_sparsecore(observed.sizes),
        forward=program("forward"),
        backward=program(group.optimizer),
        quantiles=tuple((quantile, observed.limits(quantile)[group.name]) for quantile in QUANTILES),
        per_shard=tuple(per_shard.tolist()),
        wait=wait,
        wait_rows=wait_rows,
        wait_ids=wait_ids,
    )


def _table_plan(placement: TablePlacement, narrow: NarrowTables) -> TablePlan:
    """A table as the model has it, where the stacking put it (or its lines)."""
    table = next(f.table for f in narrow.original if f.table.name == placement.table.name)
    parts, shards = narrow.rows_per_line.get(table.name, 1), placement.shards
    return TablePlan(
        name=table.name,
        stack=placement.stack,
        vocab=table.vocab,
        width=table.width,
        padded_vocab=placement.padded_vocab * parts,
        padded_width=placement.padded_width // parts,
        data_bytes=table.vocab * table.width * 4,
        padded_bytes=padded_table_bytes(placement.table.vocab, placement.table.width, shards),
        packed_bytes=packed_table_bytes(table.vocab, table.width, shards),
        unpacked_bytes=padded_table_bytes(table.vocab, table.width, shards),
        rows_per_line=parts,
    )


def under_limits(plan: Plan, limits: Mapping[str, Limits]) -> Plan:
    """The plan with other limits (stack -> limits; the others stay): buffers, compilers' verdicts and HBM follow.

    What was observed stays, and so do the drops and mini-batches that were counted for the plan's own limits: those of
    others are counted by :func:`preprocess`. All stacks are taken to be live at once.

    >>> from tilewright.embed import Feature, Limits, Table, Topology
    >>> features, topology = [Feature("f", Table("t", vocab=64, width=8))], Topology(chips=1, sparsecores_per_chip=2)
    >>> made = plan([{"f": [[0], [2], [4], [1]]}], features, topology, target="tpu-v5p")
    >>> made.stacks[0].slots, under_limits(made, {"t": Limits(1024, 1024)}).stacks[0].slots
    (32, 4096)
    """
    topology, chip = plan.stacking.topology, plan.target or None
    sparsecores, per_device = topology.sparsecores, topology.sparsecores_per_device
    rules = {group.name: group.optimizer for group in plan.stacking.groups}

    def program(part: StackPlan, limit: Limits, op: str | RowOptimizer) -> SparseMemory | None:
        return memory(chip, sparsecores, part.padded_width, limit, op) if chip is not None else None

    def changed(part: StackPlan) -> StackPlan:
        limit = limits.get(part.name, part.limits)
        return replace(
            part,
            limits=limit,
            slots=slots_per_device(limit.max_ids_per_partition, sparsecores, per_device),
            forward=program(part, limit, "forward"),
            backward=program(part, limit, rules[part.name]),
        )

    stacks = tuple(map(changed, plan.stacks))
    pipelining = plan.heap.pipelined > 0
    return replace(plan, stacks=stacks, heap=heap_of(plan.stacking, stacks, plan.prefetched_batches, chip, pipelining))


def _lowered(limits: Mapping[str, Limits], fraction: float) -> dict[str, Limits]:
    return {
        name: Limits.holding(
            int(limit.max_ids_per_partition * fraction), int(limit.max_unique_ids_per_partition * fraction)
        )
        for name, limit in limits.items()
    }


def _point(fraction: float, limits: Mapping[str, Limits], replayed: Replayed, observed: Observed) -> CurvePoint:
    weights = {name: int(per_shard.sum()) for name, per_shard in observed.per_shard.items()}
    lost = sum(replayed.dropped[name] * weight for name, weight in weights.items())
    return CurvePoint(
        fraction=fraction,
        limits=limits,
        buffer_bytes=buffer_bytes(observed.stacking, limits),
        batches_over=observed.batches_over(limits),
        minibatches_mean=float(np.mean(replayed.minibatches)) if replayed.minibatches else None,
        minibatches_max=max(replayed.minibatches, default=None),
        drop_rate=lost / max(1, sum(weights.values())),
        uncut=replayed.uncut / len(observed.sample),
        uncut_because=replayed.uncut_because,
    )


# Sampled batches run again under candidate limits: their drops and mini-batches, counted, not estimated.


@dataclass(frozen=True)
class Replayed:
    """Under one choice of limits.

    ``dropped``: per stack the share of entries dropped where ids are dropped above them. ``minibatches``: into how many
    each batch is cut that can be; ``uncut`` cannot, and ``uncut_because`` is what ``preprocess`` says of the first.
    """

    dropped: dict[str, float]
    minibatches: list[int]
    uncut: int
    uncut_because: str


def replay(observed: Observed, candidates: Sequence[Mapping[str, Limits]]) -> list[Replayed]:
    """Every batch is counted once for all candidates; only what overflows is cut and dropped."""
    names = list(observed.stacking.stacks)
    tables = [limit_table(limits, observed.stacking) for limits in candidates]
    entries = np.zeros(len(names), np.int64)
    dropped = np.zeros((len(candidates), len(names)), np.int64)
    cuts: list[list[int]] = [[] for _ in candidates]
    refused: list[list[str]] = [[] for _ in candidates]
    for batch in observed.sample:
        counted = tally(batch, observed.stacking, observed.bad_ids)
        entries += counted.per_stack[:, 0].sum(axis=(1, 2))
        held = [Overflow(observed.stacking, counted, table) for table in tables]
        for cut, refusals, overflow in zip(cuts, refused, held):
            try:
                cut.append(overflow.minibatches())
            except LimitError as error:
                refusals.append(str(error))
        for k in [k for k, overflow in enumerate(held) if overflow.over.any()]:
            dropped[k] += _dropped(observed, batch, candidates[k])
    shares = dropped / np.maximum(entries, 1)
    return [
        Replayed(dict(zip(names, row.tolist())), cut, len(refusals), next(iter(refusals), ""))
        for row, cut, refusals in zip(shares, cuts, refused)
    ]


def _dropped(observed: Observed, batch: Mapping[str, Any], limits: Mapping[str, Limits]) -> Longs:
    """Entries of every stack."""
    host = preprocess(batch, observed.stacking, limits, overflow="drop", bad_ids=observed.bad_ids)
    return np.array([host.stats[name].dropped_ids.sum() for name in observed.stacking.stacks], np.int64)
