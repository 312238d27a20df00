"""Plan embedding tables from logged batches, before any chip is rented."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import ragged_inputs, source_slices
from tilewright.embed.host.preprocess import Replay
from tilewright.embed.host.tables import NarrowTables, pack_narrow, without_hot
from tilewright.embed.model.stacking import Stack, Stacking, stack
from tilewright.embed.model.tables import Feature, Limits, Topology
from tilewright.embed.planning.confidence import confidence_of_all
from tilewright.embed.planning.result import Plan
from tilewright.embed.planning.skew import Observed, buffer_bytes, feeding_of, savings_of, skew_of
from tilewright.embed.planning.types import (
    AS_IT_IS,
    QUANTILES,
    CurvePoint,
    StackPlan,
    allowed_by,
    given_fields,
    stack_plan,
)
from tilewright.errors import UsageError
from tilewright.targets import Target

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
    apart: Mapping[str, Longs] | None = None,
    dense_bytes: int = 0,
) -> Plan:
    """Limits, buffers, memory, padding and imbalance for ``features`` on ``topology``, learnt from ``batches``.

    ``batches`` is any iterable of what ``preprocess`` takes; it is read once, one batch at a time (and up to eight
    sampled batches are kept, to be run again under the limits found). Every batch must divide by the SparseCores.

    ``quantile``: the share of partitions (source x shard x batch, per stack) that the limits must hold; 1.0 takes the
    maxima. ``headroom`` raises them by a share of themselves: 0.1 for days that ask a tenth more than the log does.
    Limits are rounded up to 8, which costs nothing: buffers and scratchpads are laid out in eights. ``target`` adds the
    compiler's verdicts, the chip's HBM and a step's time. ``stacking`` is the one to plan for, by default
    ``stack(features, topology, table_stacking, batch_size=the first batch's)``. ``narrow_packing`` plans for
    :func:`pack_narrow` of the features (``stacking``, where given, is of those), from batches of them as they are.
    ``prefetched_batches`` is the guide's maximum_parallel_iterations, ``serialized_tables`` its
    num_serialized_tables_to_optimize_hbm, and ``pipelining`` is off where it sets disable_full_embedding_pipelining.
    ``progress(n)`` is called after each batch. ``days``: the day of every batch, read when all batches have been: the
    limits of the days before are then held against each later day. ``apart``: table -> ids, rising, that every device
    holds (:func:`hot_rows`); they are not counted. ``dense_bytes``: the dense weights, their optimizer's slots and the
    constants of one chip.

    Raises :class:`UsageError` for no batches, other than one day for each, a quantile outside (0, 1], a headroom below
    0, or anything ``preprocess`` refuses.

    >>> from tilewright.embed import Table
    >>> table = Table("user", vocab=1000, width=16)
    >>> logs = [{"user": np.arange(64).reshape(64, 1) % 10} for _ in range(3)]
    >>> learnt = plan(logs, [Feature("user", table)], Topology(chips=1, sparsecores_per_chip=4), target="tpu-v5p")
    >>> learnt.limits["user"], learnt.batches, learnt.fits
    (Limits(max_ids_per_partition=8, max_unique_ids_per_partition=8), 3, True)
    """
    if not 0 < quantile <= 1:
        raise UsageError(f"quantile {quantile}", where="plan", how="give a share above 0 and at most 1")
    counts = {"serialized_tables": serialized_tables, "dense_bytes": dense_bytes}
    given = given_fields(headroom, target, pipelining, apart, prefetched_batches=prefetched_batches, **counts)
    narrow = pack_narrow(features, narrow_packing)
    batches = _packed_batches(batches, narrow, bad_ids, apart or {})
    stacking, batches = _stacking(batches, narrow.features, topology, stacking, table_stacking)
    observed = Observed(stacking, bad_ids, target)
    for batch in batches:
        with naming_batch(observed.batches + 1):
            observed.add(batch)
        if progress is not None:
            progress(observed.batches)
    limits = {name: limit.with_headroom(headroom) for name, limit in observed.limits(quantile).items()}
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
        seen = np.array(observed.peaks), observed.fillings
        confidence = confidence_of_all(*seen, allowed_by(headroom), days, list(stacking.stacks))
    made = Plan(
        stacking=stacking,
        stacks=stacks,
        distinct={name: loads.means()[1] * topology.sparsecores**2 for name, loads in observed.loads.items()},
        narrow=narrow,
        **given,
        batch=max(size // parts[name] for name, size in observed.sizes.items()),
        batches=observed.batches,
        confidence=confidence,
        quantile=quantile,
        replayed=len(observed.sample),
        batches_over=observed.batches_over(limits),
        uncut=len(replay.refused[0]) / replay.steps,
        uncut_because=next(iter(replay.refused[0]), ""),
        curve=tuple(_curve_point(k, observed, replay) for k in range(len(CURVE))),
        skew=skew,
        savings=savings_of(observed, skew.alone, today),
    )
    return replace(made, feeding=feeding_of(observed, limits, made.traffic))


def _packed_batches(
    batches: Iterable[Mapping[str, Any]], narrow: NarrowTables, bad_ids: str, apart: Mapping[str, Longs]
) -> Iterator[Mapping[str, Any]]:
    for n, batch in enumerate(batches, 1):
        with naming_batch(n):
            packed = narrow.batch(without_hot(batch, narrow.original, apart) if apart else batch, bad_ids)
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


def _lowered(limits: Mapping[str, Limits], fraction: float) -> dict[str, Limits]:
    return {
        name: Limits.holding(*(int(most * fraction) for most in vars(limit).values())) for name, limit in limits.items()
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
