"""Plan embedding tables from logged batches, before any chip is rented."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from tilewright.embed.model.optimizers import name_of
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement, stack
from tilewright.embed.model.tables import Feature, Limits, Topology, count
from tilewright.embed.planning.confidence import confidence_of_all
from tilewright.embed.planning.memory import RULE_VERSION, SparseMemory, live_stacks, memory
from tilewright.embed.planning.skew import (
    Observed,
    buffer_bytes,
    feeding_of,
    savings_of,
    skew_of,
)
from tilewright.embed.planning.types import AS_IT_IS, QUANTILES, CurvePoint, Heap, Plan, StackPlan, TablePlan, Traffic
from tilewright.errors import LimitError, UsageError
from tilewright.targets import Target
from tilewright.targets import target as find_target

# What planned stacks take: buffers and programs by their limits, HBM of a chip, and what a step moves there.

_PROGRAM = {"forward": "lookups", "backward": "updates"}
_LESS = {
    "forward": "16 equal ones on tpu-v5p take 10.4 times one of them",
    "backward": "8 equal ones on tpu-v5p with SGD take 7.5 times one of them",
}
"""Measured of several stacks in one program: less than their sum, by how much depends on what they are."""


def check_headroom(headroom: float) -> None:
    """UsageError unless limits can be raised by this share of themselves."""
    if not 0 <= headroom <= 100:
        raise UsageError(f"headroom {headroom}", where="plan", how="give a share of at least 0, such as 0.1")


def raised(limits: Limits, headroom: float) -> Limits:
    """Both limits raised by a share of themselves, rounded up to 8."""
    if not headroom:
        return limits
    ids, unique = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
    return Limits(round8(math.ceil(ids * (1 + headroom))), round8(math.ceil(unique * (1 + headroom))))


def allowed_by(headroom: float) -> Callable[[Longs], Longs]:
    """Function of fullest partitions int64[stacks, 2] that gives the limits learnt from them, raised, in that form."""

    def allowed(most: Longs) -> Longs:
        limits = (raised(Limits.holding(*counts), headroom) for counts in most.tolist())
        return np.array([list(vars(limit).values()) for limit in limits])

    return allowed


def fields_of_limits(group: Stack, topology: Topology, limits: Limits, chip: str | Target | None) -> dict[str, Any]:
    """The fields of :class:`StackPlan` that follow from a stack's limits: buffers, the compiler's verdicts."""
    sparsecores, per_device = topology.sparsecores, topology.sparsecores_per_device

    def program(op: Any) -> SparseMemory | None:
        return memory(chip, sparsecores, group.padded_width, limits, op) if chip is not None else None

    return {
        "limits": limits,
        "slots": slots_per_device(limits.max_ids_per_partition, sparsecores, per_device),
        "pointers": pointers_per_device(sparsecores, per_device),
        "forward": program("forward"),
        "backward": program(group.optimizer),
    }


def stack_plan(
    group: Stack,
    topology: Topology,
    sizes: Mapping[str, int],
    limits: Limits,
    chip: str | Target | None,
    **observed: Any,
) -> StackPlan:
    """The plan of one stack; ``sizes``: every feature's batch, ``observed``: fields that a log says."""
    return StackPlan(
        name=group.name,
        tables=tuple(table.name for table in group.tables),
        features=len(group.features),
        padded_width=group.padded_width,
        rows_per_shard=group.rows_per_shard,
        optimizer=name_of(group.optimizer),
        samples_per_sparsecore=group.samples_per_sparsecore(sizes),
        **fields_of_limits(group, topology, limits, chip),
        **observed,
    )


def heap_of(
    stacking: Stacking,
    stacks: Sequence[StackPlan],
    prefetched: int,
    chip: str | Target | None,
    pipelining: bool = True,
    serialized: int = 0,
) -> Heap:
    """Bytes of HBM on one chip; all chips hold the same. ``serialized``: stacks processed one after the other.

    With pipelining the SparseCores run lookup i and update i - 2 while the TensorCore runs step i - 1: two sets of
    activations and of gradients are on their way instead of one, and the inputs of two more batches wait for their
    gradients.
    """
    topology = stacking.topology
    chips, per_chip = topology.chips, topology.sparsecores_per_chip
    batch = sum(stack.buffer_bytes for stack in stacks) * topology.devices // chips
    exchange = 2 * per_chip * sum(4 * s.padded_width * s.samples_per_sparsecore for s in stacks)
    hbm = find_target(chip).memory("hbm") if chip is not None else None
    forward, how_forward = _live_bytes("forward", [s.forward for s in stacks if s.forward], serialized)
    backward, how_backward = _live_bytes("backward", [s.backward for s in stacks if s.backward], serialized)
    how = [how for how in (how_forward, how_backward) if how]
    return Heap(
        tables=sum(group.vocab * group.padded_width * 4 for group in stacking.stacks.values()) // chips,
        slots=sum(group.vocab * group.slot_floats * 4 for group in stacking.groups) // chips,
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


def _live_bytes(kind: str, programs: list[SparseMemory], serialized: int) -> tuple[int, str]:
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


def traffic_of(
    stacking: Stacking,
    samples: Mapping[str, int],
    distinct: Mapping[str, float],
    buffer_bytes: int,
    chip: str | Target | None,
) -> Traffic:
    """What a step moves. Of every stack, ``samples``: rows of activations on one SparseCore, ``distinct``: distinct ids
    of a batch, summed over the sources."""
    topology = stacking.topology
    chips, per_chip = topology.chips, topology.sparsecores_per_chip
    rows = hbm = links = 0.0
    for group in stacking.groups:
        here, width = distinct[group.name] / chips, group.padded_width
        rows += here
        hbm += 4 * (here * group.step_floats + 4 * width * samples[group.name] * per_chip)
        links += here * (4 + 8 * width) * (chips - 1) / chips
    host, seconds = buffer_bytes * topology.devices // chips, 0.0
    if chip is not None:
        memory, between = find_target(chip).memory("hbm"), find_target(chip).links
        rates = [(hbm, memory.bytes_per_second if memory else 0), (links, between.bytes_per_second if between else 0)]
        if all(rate for _, rate in rates):
            seconds = max(amount / rate for amount, rate in rates)
    return Traffic(rows, hbm, links, host, seconds)


# A plan from a log.

CURVE = (1.0, 0.9, 0.75, 0.5, 0.35, 0.25)
"""Fractions of the observed maxima at which the curve of lower limits is taken."""


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
    check_headroom(headroom)
    prefetched_batches = count(prefetched_batches, "prefetched_batches", "plan", least=0)
    serialized_tables = count(serialized_tables, "serialized_tables", "plan", least=0)
    narrow = pack_narrow(features, narrow_packing)
    batches = _packed_batches(batches, narrow, bad_ids)
    stacking, batches = _stacking(batches, narrow.features, topology, stacking, table_stacking)
    observed = Observed(stacking, bad_ids)
    for batch in batches:
        with naming_batch(observed.batches + 1):
            observed.add(batch)
        if progress is not None:
            progress(observed.batches)
    limits = {name: raised(limit, headroom) for name, limit in observed.limits(quantile).items()}
    candidates = [_lowered(observed.limits(1.0), fraction) for fraction in CURVE]
    replay = Replay(stacking, [limits, *candidates], bad_ids)
    for batch in observed.sample:
        replay.add(batch)
    dropped = replay.drop_rates(0)
    stacks = tuple(
        _stack_plan(group, observed, limits[group.name], dropped[group.name], target) for group in stacking.groups
    )
    skew = skew_of(observed)
    today = {remedy.stack: remedy.limits for remedy in skew.remedies if remedy.change == AS_IT_IS}
    confidence, parts = None, narrow.samples_per_sample()
    if quantile == 1:
        if days and len(days) != observed.batches:
            raise UsageError(f"{len(days)} days for {observed.batches} batches", where="plan", how="name each one's")
        confidence = confidence_of_all(np.array(observed.peaks), allowed_by(headroom), days, list(stacking.stacks))
    traffic = traffic_of(
        stacking,
        {one.name: one.samples_per_sparsecore for one in stacks},
        {name: loads.means()[1] * topology.sparsecores**2 for name, loads in observed.loads.items()},
        sum(one.buffer_bytes for one in stacks),
        target,
    )
    return Plan(
        stacking=stacking,
        target=find_target(target).name if target is not None else "",
        quantile=quantile,
        batches=observed.batches,
        batch=max(size // parts[name] for name, size in observed.sizes.items()),
        replayed=len(observed.sample),
        batches_over=observed.batches_over(limits),
        uncut=len(replay.refused[0]) / replay.steps,
        uncut_because=next(iter(replay.refused[0]), ""),
        prefetched_batches=prefetched_batches,
        stacks=stacks,
        tables=tuple(_table_plan(placement, narrow) for placement in stacking.placements),
        curve=tuple(_curve_point(k, observed, replay) for k in range(len(CURVE))),
        heap=heap_of(stacking, stacks, prefetched_batches, target, pipelining, serialized_tables),
        skew=skew,
        savings=savings_of(observed, skew.alone, today),
        traffic=traffic,
        feeding=feeding_of(observed, limits, target, traffic),
        confidence=confidence,
    )


def _packed_batches(
    batches: Iterable[Mapping[str, Any]], narrow: NarrowTables, bad_ids: str
) -> Iterator[Mapping[str, Any]]:
    for n, batch in enumerate(batches, 1):
        with naming_batch(n):
            packed = narrow.batch(batch, bad_ids)
        yield packed


@contextmanager
def naming_batch(number: int) -> Iterator[None]:
    """UsageErrors raised inside name the batch, counted from 1."""
    try:
        yield
    except UsageError as error:
        where = f"batch {number}" + (f", {error.where}" if error.where not in ("", "batch") else "")
        raise UsageError(error.what, where=where, how=error.how) from None


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
    with naming_batch(1):
        whole = stack(features, topology)
        inputs = ragged_inputs(first, whole, source_slices(whole))
    sizes = {name: ragged.batch_size for name, ragged in inputs.items()}
    return stack(features, topology, table_stacking, sizes), chain((first,), rest)


def _stack_plan(
    group: Stack, observed: Observed, limits: Limits, dropped: float, chip: str | Target | None
) -> StackPlan:
    loads = observed.loads[group.name]
    return stack_plan(
        *(group, observed.stacking.topology, observed.sizes, limits, chip),
        observed=loads.limits(1.0),
        mean_ids=loads.means()[0],
        imbalance=loads.imbalance,
        **loads.waits,
        per_shard=tuple(loads.received[0].tolist()),
        quantiles=tuple((quantile, loads.limits(quantile)) for quantile in QUANTILES),
        drop_rate=dropped,
        partitions_over=loads.share_over(limits),
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
    groups = plan.stacking.stacks
    stacks = tuple(
        replace(part, **fields_of_limits(groups[part.name], topology, limits.get(part.name, part.limits), chip))
        for part in plan.stacks
    )
    pipelining = plan.heap.pipelined > 0
    return replace(plan, stacks=stacks, heap=heap_of(plan.stacking, stacks, plan.prefetched_batches, chip, pipelining))


def _lowered(limits: Mapping[str, Limits], fraction: float) -> dict[str, Limits]:
    return {
        name: Limits.holding(
            int(limit.max_ids_per_partition * fraction), int(limit.max_unique_ids_per_partition * fraction)
        )
        for name, limit in limits.items()
    }


def _curve_point(k: int, observed: Observed, replay: Replay) -> CurvePoint:
    """Point ``k`` of the curve, which is candidate k + 1 of the replay."""
    limits, cuts, refused = replay.candidates[k + 1], replay.minibatches[k + 1], replay.refused[k + 1]
    weights = {name: int(loads.received[0].sum()) for name, loads in observed.loads.items()}
    lost = sum(rate * weights[name] for name, rate in replay.drop_rates(k + 1).items())
    return CurvePoint(
        fraction=CURVE[k],
        limits=limits,
        buffer_bytes=buffer_bytes(observed.stacking, limits),
        batches_over=observed.batches_over(limits),
        minibatches_mean=float(np.mean(cuts)) if cuts else None,
        minibatches_max=max(cuts, default=None),
        drop_rate=lost / max(1, sum(weights.values())),
        uncut=len(refused) / replay.steps,
        uncut_because=next(iter(refused), ""),
    )


# Batches run again under candidate limits: their drops and mini-batches, counted, not estimated.


class Replay:
    """What batches would become under each of several limits; only what overflows is cut and dropped.

    =================  =============================================================================================
    ``steps``          batches counted; ``over``: [candidate] those that exceed some limit
    ``entries``        int64[stacks]: of all batches; ``dropped``: int64[candidates, stacks], where ids above the limits
                       are dropped
    ``minibatches``    [candidate][batch]: into how many it is cut, of those that can be
    ``refused``        [candidate]: what ``preprocess`` says of the batches that cannot be cut
    =================  =============================================================================================

    With ``allow_id_dropping`` a batch is cut first, and only what no cut helps is dropped.
    """

    def __init__(
        self,
        stacking: Stacking,
        candidates: Sequence[Mapping[str, Limits]],
        bad_ids: str,
        *,
        drop: bool = True,
        allow_id_dropping: bool = False,
    ) -> None:
        self.stacking, self.candidates, self.bad_ids, self.drop = stacking, candidates, bad_ids, drop
        self.allow_id_dropping = allow_id_dropping
        self.tables = [limit_table(limits, stacking) for limits in candidates]
        self.steps, self.over = 0, [0] * len(candidates)
        self.entries = np.zeros(len(stacking.stacks), np.int64)
        self.dropped = np.zeros((len(candidates), len(stacking.stacks)), np.int64)
        self.minibatches: list[list[int]] = [[] for _ in candidates]
        self.refused: list[list[str]] = [[] for _ in candidates]

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count one more batch, once for all candidates."""
        counted = tally(batch, self.stacking, self.bad_ids)
        self.steps += 1
        self.entries += counted.per_stack[:, 0].sum(axis=(1, 2))
        held = [Overflow(self.stacking, counted, table) for table in self.tables]
        for k, overflow in enumerate(held):
            try:
                self.minibatches[k].append(overflow.minibatches(self.allow_id_dropping))
            except LimitError as error:
                self.refused[k].append(str(error))
        how: dict[str, Any] = {"overflow": "drop"}
        if self.allow_id_dropping:
            how = {"allow_id_dropping": True, "minibatch_layout": "needed"}
        for k in [k for k, overflow in enumerate(held) if overflow.over.any()]:
            self.over[k] += 1
            if self.drop:
                host = preprocess(batch, self.stacking, self.candidates[k], bad_ids=self.bad_ids, **how)
                self.dropped[k] += [host.stats[name].dropped_ids.sum() for name in self.stacking.stacks]

    def drop_rates(self, k: int) -> dict[str, float]:
        """Stack -> the share of its entries dropped under candidate ``k``."""
        return dict(zip(self.stacking.stacks, (self.dropped[k] / np.maximum(self.entries, 1)).tolist()))
