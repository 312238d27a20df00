"""Plan embedding tables from logged batches, before any chip is rented."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.embed._formulas import (
    packed_table_bytes,
    padded_table_bytes,
    pointers_per_device,
    round8,
    slots_per_device,
)
from tilewright.embed._heap import heap_of
from tilewright.embed._memory import SparseMemory, memory
from tilewright.embed._narrow import NarrowTables, pack_narrow
from tilewright.embed._plan_types import CurvePoint, Plan, StackPlan, TablePlan
from tilewright.embed._skew_types import AS_IT_IS
from tilewright.embed._stacking import Placement, Stack, Stacking, stack
from tilewright.embed._tables import Feature, Limits, count
from tilewright.embed._topology import Topology
from tilewright.errors import UsageError
from tilewright.targets import Target, target

if TYPE_CHECKING:
    from tilewright.embed._observe import Observed
    from tilewright.embed._replay import Replayed

__all__ = ["plan"]

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
CURVE = (1.0, 0.9, 0.75, 0.5, 0.35, 0.25)
"""Fractions of the observed maxima at which the curve is taken."""


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
    ``progress(n)`` is called after each batch.

    Raises :class:`UsageError` for no batches, a quantile outside (0, 1], a headroom below 0, or anything
    ``preprocess`` refuses.

    >>> from tilewright.embed import Table
    >>> table = Table("user", vocab=1000, width=16)
    >>> logs = [{"user": np.arange(64).reshape(64, 1) % 10} for _ in range(3)]
    >>> made = plan(logs, [Feature("user", table)], Topology(chips=1, sparsecores_per_chip=4), target="tpu-v5p")
    >>> made.limits["user"], made.batches, made.fits
    (Limits(max_ids_per_partition=5, max_unique_ids_per_partition=3), 3, True)
    """
    from tilewright.embed._observe import Observed
    from tilewright.embed._replay import replay
    from tilewright.embed._savings import feeding_of, savings_of
    from tilewright.embed._skew import skew_of

    if not 0 < quantile <= 1:
        raise UsageError(f"quantile {quantile}", where="plan", how="give a share above 0 and at most 1")
    if not 0 <= headroom <= 100:
        raise UsageError(f"headroom {headroom}", where="plan", how="give a share of at least 0, such as 0.1")
    prefetched_batches = count(prefetched_batches, "prefetched_batches", "plan", least=0)
    serialized_tables = count(serialized_tables, "serialized_tables", "plan", least=0)
    narrow = pack_narrow(features) if narrow_packing else None
    if narrow is not None:
        features, batches = narrow.features, _narrowed(batches, narrow, bad_ids)
    stacking, batches = _stacking(batches, tuple(features), topology, stacking, table_stacking)
    observed = Observed(stacking, bad_ids)
    for batch in batches:
        with _naming_batch(observed.batches + 1):
            observed.add(batch)
        if progress is not None:
            progress(observed.batches)
    limits = {name: _raised(each, headroom) for name, each in observed.limits(quantile).items()}
    candidates = [_lowered(observed.limits(1.0), fraction) for fraction in CURVE]
    chosen, *lower = replay(observed, [limits, *candidates])
    stacks = tuple(
        _stack_plan(each, observed, limits[each.name], chosen.dropped[each.name], target) for each in stacking.groups
    )
    skew = skew_of(observed)
    today = {r.stack: r.limits for r in skew.remedies if r.change == AS_IT_IS}
    return Plan(
        stacking=stacking,
        target=_name(target),
        quantile=quantile,
        batches=observed.batches,
        samples=observed.batches * _samples(observed.sizes, narrow),
        replayed=len(observed.sample),
        batches_over=observed.batches_over(limits),
        prefetched_batches=prefetched_batches,
        stacks=stacks,
        tables=tuple(_table_plan(placement, narrow) for placement in stacking.placements),
        curve=tuple(_point(*each, observed) for each in zip(CURVE, candidates, lower)),
        heap=heap_of(stacking, stacks, prefetched_batches, target, pipelining, serialized_tables),
        skew=skew,
        savings=savings_of(observed, skew.alone, today),
        feeding=feeding_of(observed, limits, target),
    )


def _narrowed(batches: Iterable[Mapping[str, Any]], narrow: NarrowTables, bad_ids: str) -> Iterator[Mapping[str, Any]]:
    """Batches of packed tables."""
    for n, batch in enumerate(batches, 1):
        with _naming_batch(n):
            packed = narrow.batch(batch, bad_ids)
        yield packed


def _samples(sizes: Mapping[str, int], narrow: NarrowTables | None) -> int:
    """Samples of a batch, those of packed tables counted as the model counts them."""
    parts = narrow.samples_per_sample() if narrow is not None else {}
    return max(size // parts.get(name, 1) for name, size in sizes.items())


@contextmanager
def _naming_batch(number: int) -> Iterator[None]:
    """What is wrong with a batch says which one it was, from 1."""
    try:
        yield
    except UsageError as error:
        where = f"batch {number}" + (f", {error.where}" if error.where not in ("", "batch") else "")
        raise UsageError(error.what, where=where, how=error.how) from None


def _raised(limits: Limits, headroom: float) -> Limits:
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
    from tilewright.embed._observe import batch_sizes

    with _naming_batch(1):
        sizes = batch_sizes(first, stack(features, topology))
    return stack(features, topology, table_stacking, sizes), chain((first,), rest)


def _stack_plan(
    each: Stack, observed: Observed, limits: Limits, dropped: float, chip: str | Target | None
) -> StackPlan:
    topology = observed.stacking.topology
    per_shard = observed.per_shard[list(observed.stacking.stacks).index(each.name)]
    sparsecores, per_device = topology.sparsecores, topology.sparsecores_per_device

    def verdict(op: str) -> SparseMemory | None:
        return memory(chip, sparsecores, each.padded_width, limits, op) if chip is not None else None

    optimizer = type(each.optimizer).__name__
    return StackPlan(
        name=each.name,
        tables=tuple(table.name for table in each.tables),
        features=len(each.features),
        padded_width=each.padded_width,
        rows_per_shard=each.rows_per_shard,
        optimizer=optimizer,
        observed=observed.limits(1.0)[each.name],
        limits=limits,
        mean_ids=observed.mean_ids(each.name),
        imbalance=float(per_shard.max() / per_shard.mean()) if per_shard.any() else 1.0,
        drop_rate=dropped,
        partitions_over=observed.partitions_over(each.name, limits),
        slots=slots_per_device(limits.max_ids_per_partition, sparsecores, per_device),
        pointers=pointers_per_device(sparsecores, per_device),
        samples_per_sparsecore=each.samples_per_sparsecore(observed.sizes),
        forward=verdict("forward"),
        backward=verdict(optimizer.lower()),
        quantiles=tuple((q, observed.limits(q)[each.name]) for q in QUANTILES),
        per_shard=tuple(per_shard.tolist()),
    )


def _table_plan(placement: Placement, narrow: NarrowTables | None) -> TablePlan:
    """A table as the model has it, where the stacking put it (or its lines)."""
    given = {f.table.name: f.table for f in narrow.given} if narrow is not None else {}
    table = given.get(placement.table.name, placement.table)
    parts = narrow.rows_per_line.get(table.name, 1) if narrow is not None else 1
    shards = placement.shards
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


def _lowered(whole: Mapping[str, Limits], fraction: float) -> dict[str, Limits]:
    def part(count: int) -> int:
        return max(1, int(count * fraction))

    return {n: Limits(part(w.max_ids_per_partition), part(w.max_unique_ids_per_partition)) for n, w in whole.items()}


def _point(fraction: float, limits: Mapping[str, Limits], found: Replayed, observed: Observed) -> CurvePoint:
    from tilewright.embed._savings import buffer_bytes

    weights = dict(zip(observed.stacking.stacks, observed.per_shard.sum(axis=1).tolist()))
    lost = sum(found.dropped[name] * weight for name, weight in weights.items())
    return CurvePoint(
        fraction=fraction,
        limits=limits,
        buffer_bytes=buffer_bytes(observed.stacking, limits),
        batches_over=observed.batches_over(limits),
        minibatches_mean=float(np.mean(found.minibatches)),
        minibatches_max=max(found.minibatches),
        drop_rate=lost / max(1, sum(weights.values())),
    )
