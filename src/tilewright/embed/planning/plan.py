"""Plan embedding tables from logged batches, before any chip is rented.

What a log asks of the partitions is gathered in one pass; a few batches are replayed to see what evens them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from timeit import timeit
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import Ragged, offsets_of, ragged_inputs, source_slices
from tilewright.embed.host.overflow import limit_table
from tilewright.embed.host.preprocess import Replay, preprocess
from tilewright.embed.host.tables import pack_narrow, without_hot
from tilewright.embed.host.tally import tally
from tilewright.embed.model.formulas import pointers_per_device, slots_per_device
from tilewright.embed.model.lookup_time import StackWork
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement, stack
from tilewright.embed.model.tables import Feature, Limits, Topology
from tilewright.embed.planning import types
from tilewright.embed.planning.confidence import confidence_of_all
from tilewright.embed.planning.result import Plan
from tilewright.errors import UsageError
from tilewright.kernels.threads import thread_count
from tilewright.targets import Target

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
    given = types.given_fields(headroom, target, pipelining, apart, prefetched_batches=prefetched_batches, **counts)
    narrow = pack_narrow(features, narrow_packing)

    def packed(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return narrow.batch(without_hot(batch, narrow.original, apart) if apart else batch, bad_ids)

    rest = iter(batches)
    if (first := next(rest, None)) is None:
        raise UsageError("no batches", where="plan", how="give at least one batch")
    if stacking is None:
        with naming_batch(1):
            inputs = unweighted(packed(first), stack(narrow.features, topology))
        sizes = {name: ragged.batch_size for name, ragged in inputs.items()}
        stacking = stack(narrow.features, topology, table_stacking, sizes)
    if stacking.features != narrow.features or stacking.topology != topology:
        raise UsageError("the stacking is of other features or another topology", where="plan")
    observed = Observed(stacking, bad_ids, target)
    for batch in chain((first,), rest):
        with naming_batch(observed.batches + 1):
            observed.add(packed(batch))
        if progress is not None:
            progress(observed.batches)
    loads = observed.loads
    limits = {name: of.limits(quantile).with_headroom(headroom) for name, of in loads.items()}
    lower = [{name: Limits.holding(*(of.most * share)) for name, of in loads.items()} for share in CURVE]
    replay = Replay(stacking, [limits, *lower], bad_ids)
    for batch in observed.sample:
        replay.add(batch)
    dropped = replay.drop_rates(0)
    known = {name: {"drop_rate": dropped[name], **of.known(limits[name])} for name, of in loads.items()}
    skew = skew_of(observed)
    today = {remedy.stack: remedy.limits for remedy in skew.remedies if remedy.change == types.AS_IT_IS}
    confidence, parts = None, narrow.samples_per_sample()
    if quantile == 1:
        if days and len(days) != observed.batches:
            raise UsageError(f"{len(days)} days for {observed.batches} batches", where="plan", how="name each one's")
        peaks, names = np.array(observed.peaks), list(stacking.stacks)
        confidence = confidence_of_all(peaks, observed.fillings, headroom, days, names)
    made = Plan(
        stacking=stacking,
        stacks=types.stack_plans(stacking, observed.sizes, limits, target, known),
        distinct={name: of.means()[1] * topology.sparsecores**2 for name, of in loads.items()},
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
    once = partial(preprocess, stacking=stacking, limits=limits, overflow="drop", bad_ids=bad_ids)
    host = min(timeit(partial(once, batch), number=1) for batch in observed.sample[:4] * 2)
    return replace(
        made, feeding=types.Feeding(host, thread_count(), round(made.traffic.hbm_bytes), made.traffic.waited)
    )


@contextmanager
def naming_batch(number: int) -> Iterator[None]:
    """UsageErrors raised inside name the batch, counted from 1."""
    try:
        yield
    except UsageError as error:
        where = f"batch {number}" + (f", {error.where}" if error.where not in ("", "batch") else "")
        raise UsageError(error.what, where=where, how=error.how) from None


def _curve_point(k: int, observed: Observed, replay: Replay) -> types.CurvePoint:
    """Point ``k`` of the curve, which is candidate k + 1 of the replay."""
    limits, cuts, refused = replay.candidates[k + 1], replay.minibatches[k + 1], replay.refused[k + 1]
    weights = {name: int(loads.received[0].sum()) for name, loads in observed.loads.items()}
    lost = sum(rate * weights[name] for name, rate in replay.drop_rates(k + 1).items())
    return types.CurvePoint(
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


# What logged batches ask of the partitions, gathered in one pass and in bounded memory.

REPLAYED = 8
"""Batches kept to be run again under candidate limits, at most; large ones are fewer, but two."""
_IDS, _PARTITIONS = 1 << 23, 1 << 22
"""About how many ids and partitions are run again."""
_HOTTEST = 3
"""Ids that are named of a stack's fullest shard."""


class Observed:
    """Counts over all batches seen so far.

    =====================  =======================================================================================
    ``work``               of every stack: what its rows and entries take on ``chip``
    ``batches``            how many
    ``sizes``              the first batch's size of every feature
    ``loads``              of every stack: how full its partitions are, how evenly its shards work
    ``peaks``              per batch int64[stacks, 2]: the fullest partition; ``fillings``: of those fuller than all
                           before, (batch, stack, kind) -> feature -> its part of the entries or distinct ids
    ``sample``             copies of up to ``keep`` batches, every one with the same chance
    =====================  =======================================================================================
    """

    def __init__(self, stacking: Stacking, bad_ids: str = "error", chip: str | Target | None = None) -> None:
        self.stacking, self.bad_ids = stacking, bad_ids
        self.work = {name: StackWork.of(group, chip) for name, group in stacking.stacks.items()}
        self.batches = 0
        self.sizes: dict[str, int] = {}
        self.loads = {name: Loads(work, stacking.topology, histograms=True) for name, work in self.work.items()}
        self.peaks: list[Longs] = []
        self.fillings: dict[tuple[int, int, int], dict[str, int]] = {}
        self.sample: list[Mapping[str, Any]] = []
        self.keep = REPLAYED
        self._draw = np.random.Generator(np.random.PCG64(0))

    def add(self, batch: Mapping[str, Any]) -> None:
        counted = tally(batch, self.stacking, self.bad_ids)
        counts = counted.per_stack
        if not self.sizes:
            self.sizes = counted.sizes
            room = min(_IDS // max(1, int(counts[:, 0].sum())), _PARTITIONS // counts[:, 0].size)
            self.keep = max(2, min(REPLAYED, room))
        # which features fill the partitions of this batch that are fuller than all before
        peaks, before = counts.max(axis=(2, 3)), np.array([loads.most for loads in self.loads.values()])
        fuller = np.argwhere(peaks > before).tolist()
        inputs = unweighted(batch, self.stacking) if fuller else {}
        for k, kind in fuller:
            source, shard = divmod(int(counts[k, kind].argmax()), counts.shape[-1])
            group = self.stacking.groups[k]
            self.fillings[self.batches, k, kind] = _filling(group, self.stacking, inputs, source, shard, bool(kind))
        for loads, of_stack in zip(self.loads.values(), counts):
            loads.add(of_stack)
        self.peaks.append(peaks)
        self.batches += 1
        if len(self.sample) < self.keep:
            self.sample.append(deepcopy(dict(batch)))
        elif (at := int(self._draw.integers(self.batches))) < self.keep:
            self.sample[at] = deepcopy(dict(batch))

    def batches_over(self, limits: Mapping[str, Limits]) -> float:
        """The share of batches in which some partition of some stack exceeds ``limits``."""
        allowed = limit_table(limits, self.stacking)
        return float((np.array(self.peaks) > allowed).any(axis=(1, 2)).mean())


class Loads:
    """How full the partitions of one stack are, and how evenly its shards work, over the batches added.

    ===============  ==============================================================================================
    ``most``         int64[2]: entries and distinct ids of the fullest partitions
    ``received``     int64[2, S]: entries and distinct rows (of every source) that each shard received
    ``partitions``   how many were counted
    ``histograms``   where they are asked for, of entries and of distinct ids: how many partitions hold n
    ===============  ==============================================================================================

    A shard's work is modelled (:class:`StackWork`): its distinct rows, and its entries. Duplicates weigh what combining
    them takes; no row is fetched twice.
    """

    def __init__(self, work: StackWork, topology: Topology, *, histograms: bool = False) -> None:
        self.most, self.received = np.zeros(2, np.int64), np.zeros((2, topology.sparsecores), np.int64)
        self.partitions = 0
        self.histograms = [np.zeros(8, np.int64)] * 2 if histograms else []
        self._work = work
        self._fullest, self._average = np.zeros(3), np.zeros(3)

    def add(self, counts: Longs) -> None:
        """One more batch, which is one step: int64[2, sources, S], entries and distinct ids of every partition."""
        np.maximum(self.most, counts.max(axis=(1, 2)), out=self.most)
        ids, rows = of_shard = counts.sum(axis=1)
        self.received += of_shard
        self.partitions += counts[0].size
        for k, before in enumerate(self.histograms):
            self.histograms[k] = np.bincount(counts[k].reshape(-1), minlength=len(before))
            self.histograms[k][: len(before)] += before
        for k, work in enumerate((rows * self._work.row + ids * self._work.id, rows, ids)):
            self._fullest[k] += work.max()
            self._average[k] += work.mean()

    @property
    def waits(self) -> dict[str, Any]:
        """What a step waits for: the fullest shard over the average one, of work, of rows fetched, of ids combined."""
        pairs = zip(("wait", "wait_rows", "wait_ids"), self._fullest.tolist(), self._average.tolist())
        return {name: fullest / average if average else 1.0 for name, fullest, average in pairs}

    @property
    def imbalance(self) -> float:
        """Entries of the fullest shard over the average one's, all batches together; 1.0 where all are empty."""
        ids = self.received[0]
        return float(ids.max() / ids.mean()) if ids.any() else 1.0

    def means(self) -> tuple[float, float]:
        """Entries and distinct ids of the average partition."""
        ids, unique = self.received.sum(axis=1).tolist()
        return ids / self.partitions, unique / self.partitions

    def limits(self, quantile: float) -> Limits:
        """The smallest limits that at least the share ``quantile`` of the partitions keep."""
        return Limits.holding(*(quantile_of(histogram, quantile) for histogram in self.histograms))

    def known(self, limits: Limits) -> dict[str, Any]:
        """What a stack's plan says of these counts under ``limits``."""
        bounds = zip(self.histograms, vars(limits).values())
        return {
            "observed": Limits.holding(*self.most),
            "mean_ids": self.means()[0],
            "imbalance": self.imbalance,
            **self.waits,
            "per_shard": tuple(self.received[0].tolist()),
            "quantiles": tuple((quantile, self.limits(quantile)) for quantile in types.QUANTILES),
            "partitions_over": max(float(counts[bound + 1 :].sum() / counts.sum()) for counts, bound in bounds),
        }

    def remedy(self, name: str, change: str) -> types.Remedy:
        """The stack's figures if ``change`` is what was counted."""
        return types.Remedy(name, change, Limits.holding(*self.most), self.imbalance, self.waits["wait"])


def quantile_of(histogram: Longs, quantile: float) -> int:
    """The smallest n such that at least ``quantile`` of the partitions hold n or fewer."""
    return int(np.quantile(np.arange(len(histogram)), quantile, weights=histogram, method="inverted_cdf"))


# A log's batches changed: ids hashed, samples shuffled, the hottest ids left out. Only what is counted is kept.

Inputs: TypeAlias = Mapping[str, Ragged]

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


def unweighted(batch: Mapping[str, Any], stacking: Stacking) -> dict[str, Ragged]:
    """A batch's ids without weights: they change no count."""
    inputs = ragged_inputs(batch, stacking, source_slices(stacking))
    return {name: replace(ragged, weights=None) for name, ragged in inputs.items()}


def permuted(ids: Longs, vocab: int) -> Longs:
    """Ids in 0 .. vocab - 1 mixed one to one: odd factors and shifts on the bits of the next power of two, again for
    what lands beyond the vocabulary (each id ends inside, for it began there).

    >>> np.sort(permuted(np.arange(10), 10)).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    bits = max(1, (vocab - 1).bit_length())
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(max(1, bits // 2))
    mixed = ids.astype(np.uint64)
    todo = np.arange(len(mixed))
    while todo.size:
        part = mixed[todo]
        for factor in _ODD:
            part = (part * np.uint64(factor)) & mask
            part ^= part >> shift
        mixed[todo] = part
        todo = todo[part >= vocab]
    return mixed.astype(np.int64)


def hashed(batch: Inputs, stacking: Stacking) -> dict[str, Ragged]:
    """Every table's ids permuted: what hashing does to neighbours and regular strides, without collisions."""
    changed = {}
    for feature in stacking.features:
        ids, vocab = batch[feature.name], feature.table.vocab
        values = ids.values.astype(np.int64)
        good = (values >= 0) & (values < vocab)
        values[good] = permuted(values[good], vocab)
        narrow = ids.values.dtype == np.int32  # as they came: one kernel counts all
        changed[feature.name] = replace(ids, values=values.astype(np.int32) if narrow else values)
    return changed


def shuffled(batches: Sequence[Inputs]) -> list[dict[str, Ragged]]:
    """All samples of the batches in one random order, cut into batches of the same sizes; features stay together."""
    mixed: list[dict[str, Ragged]] = [{} for _ in batches]
    for name in batches[0]:
        parts = [batch[name] for batch in batches]
        sizes = [part.batch_size for part in parts]
        values = np.concatenate([part.values for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        whole = Ragged(values, len(lengths), offsets=offsets_of(lengths))
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(lengths))  # the same for every feature
        for k, samples in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
            mixed[k][name] = whole.take(samples)
    return mixed


# What other rotations of a stack's tables would do: table k's counts are turned by k times as many shards and added, no
# id is counted again.

_STEPS = 64
_ENTRIES = 1 << 22
"""Counts among which the best rotation is looked for; the chosen one is counted on everything."""


def rotations_to_try(entries: Longs, now: int) -> list[int]:
    """The rotations worth a look beside ``now``, in shards from each table to the next: none, and the one whose fullest
    partition is smallest on some sources of one batch; ``entries`` int64[tables, sources, S]."""
    tables, sources, shards = entries.shape
    if tables < 2 or shards < 2:
        return []
    few = entries[:, :: -(-sources // max(1, _ENTRIES // (shards * tables)))]
    steps = [now, *(step for step in range(1, shards) if step != now)]

    def peaks(step: int) -> tuple[int, int]:
        whole = _turned(few, step)
        return int(whole.max()), int(whole.sum(axis=0).max())

    best = min(steps[: max(4, min(_STEPS, _ENTRIES * 32 // few.size))], key=peaks)
    return [step for step in sorted({0, best}) if step != now]


def _turned(counts: Longs, step: int) -> Longs:
    """The sum over tables of counts [tables, .., S], table k's turned by k * step shards."""
    turned: Longs = np.sum([np.roll(of_table, k * step, axis=-1) for k, of_table in enumerate(counts)], axis=0)
    return turned


def skew_of(observed: Observed) -> types.Skew:
    """Replay the sampled batches as they are, rotated otherwise, with hashed ids, shuffled, without the hottest ids."""
    stacking = observed.stacking
    batches = [unweighted(batch, stacking) for batch in observed.sample]
    now = _loads(observed, batches)
    fullest = [(group, int(now[group.name].received[0].argmax())) for group in stacking.groups]
    hot = [hot_id for group, shard in fullest for hot_id in _hottest_ids(group, stacking, batches, shard)]
    hottest = {hot_id.stack: hot_id for hot_id in reversed(hot)}.values()  # of each stack the first
    gone: dict[str, Longs] = {hot_id.table: np.array([hot_id.id]) for hot_id in hottest}
    others: dict[str, Iterable[Mapping[str, Any]]] = {
        "ids hashed": (hashed(batch, stacking) for batch in batches),
        "log shuffled": shuffled(batches),
        "hottest id held apart": (without_hot(batch, stacking.features, gone) for batch in batches),
    }
    changed = {change: _loads(observed, inputs) for change, inputs in others.items()}
    remedies, alone = list[types.Remedy](), dict[str, Limits]()
    for name, group in stacking.stacks.items():
        rotations, of_tables = _rotations(group, observed, batches)
        remedies += [now[name].remedy(name, types.AS_IT_IS), *rotations]
        remedies += [loads[name].remedy(name, change) for change, loads in changed.items()]
        alone |= of_tables
    return types.Skew(tuple(hot), tuple(remedies), alone, _used(stacking, batches))


def _used(stacking: Stacking, batches: Sequence[Inputs]) -> dict[str, tuple[int, int]]:
    """Of every table: how many ids differ, and the greatest common divisor of their differences (0: there are none)."""
    used = {}
    for place in stacking.placements:
        mine = [f.name for f in stacking.features if f.table.name == place.table.name]
        ids = np.unique(np.concatenate([batch[name].values for batch in batches for name in mine]))
        used[place.table.name] = len(ids), int(np.gcd.reduce(np.diff(ids), initial=0))
    return used


def _loads(observed: Observed, batches: Iterable[Mapping[str, Any]]) -> dict[str, Loads]:
    loads = {name: Loads(work, observed.stacking.topology) for name, work in observed.work.items()}
    for batch in batches:
        for of_stack, counts in zip(loads.values(), tally(batch, observed.stacking, observed.bad_ids).per_stack):
            of_stack.add(counts)
    return loads


def _rotations(
    group: Stack, observed: Observed, batches: Sequence[Inputs]
) -> tuple[list[types.Remedy], dict[str, Limits]]:
    """What no rotation and the best one would give, and every table's limits were it not stacked."""
    topology = observed.stacking.topology
    alone = stack(group.features, topology, table_stacking=False)
    order = [list(alone.stacks).index(alone.tables[table.name].stack) for table in group.tables]
    now, work = observed.stacking.rotations.get(group.name, 0), observed.work[group.name]
    most, loads = np.zeros((len(order), 2), np.int64), dict[int, Loads]()
    for n, batch in enumerate(batches):
        own = {feature.name: batch[feature.name] for feature in group.features}
        counts = tally(own, alone, observed.bad_ids).per_stack[order]
        np.maximum(most, counts.max(axis=(2, 3)), out=most)
        if n == 0:
            loads = {step: Loads(work, topology) for step in rotations_to_try(counts[:, 0], now)}
        for step, of_step in loads.items():
            of_step.add(_turned(counts, step))
    remedies = [of.remedy(group.name, f"rotation by {step}" if step else "no rotation") for step, of in loads.items()]
    return remedies, {table.name: Limits.holding(*counts) for table, counts in zip(group.tables, most)}


def _hottest_ids(group: Stack, stacking: Stacking, batches: Sequence[Inputs], shard: int) -> list[types.HotId]:
    """The ids with the most entries on the fullest shard (an id counts once per sample)."""
    hottest, total = list[tuple[int, str, int]](), 0
    for table in group.tables:
        mine = [feature.name for feature in group.features if feature.table.name == table.name]
        parts = [_on_shard(batch[name], stacking.tables[table.name], shard) for name in mine for batch in batches]
        ids, entries = np.unique(np.concatenate(parts), return_counts=True)
        total += int(entries.sum())
        hottest += [(int(entries[k]), table.name, int(ids[k])) for k in np.argsort(-entries, kind="stable")[:_HOTTEST]]
    hottest = sorted(hottest, key=lambda hot: -hot[0])[:_HOTTEST]
    return [types.HotId(group.name, table, i, shard, n, n / max(1, total)) for n, table, i in hottest]


def _filling(
    group: Stack, stacking: Stacking, inputs: Inputs, source: int, shard: int, distinct: bool
) -> dict[str, int]:
    """What every feature brings into one partition: entries, or distinct ids that no feature before it has."""
    brought, seen = {}, dict[str, Longs]()
    for feature in group.features:
        whole, table = inputs[feature.name], feature.table.name
        size = whole.batch_size // group.shards
        ids = whole.take(np.arange(source * size, (source + 1) * size))
        here = _on_shard(ids, stacking.tables[table], shard)
        if distinct:
            here = np.setdiff1d(here, seen.get(table, here[:0]))
            seen[table] = np.union1d(here, seen.get(table, here[:0]))
        brought[feature.name] = len(here)
    return brought


def _on_shard(ids: Ragged, place: TablePlacement, shard: int) -> Longs:
    """Merged ids that live on the shard, one for every sample that has them."""
    values, vocab = ids.values.astype(np.int64), place.table.vocab
    here = ((values + place.rotation) % place.shards == shard) & (values >= 0) & (values < vocab)
    merged = values[here] + ids.samples[here] * vocab
    if ids.hot != 1:
        merged = np.unique(merged)
    return np.asarray(merged % vocab, np.int64)


# Padding, and what other arrangements would save: stacking, narrow rows that share a line, host rate against steps.


def savings_of(observed: Observed, alone: Mapping[str, Limits], today: Mapping[str, Limits]) -> types.Savings:
    """From the limits the replayed batches need, table by table (``alone``) and stack by stack (``today``; where no
    tables are stacked, in the stacks that automatic stacking would form)."""
    stacking, stacked = observed.stacking, today
    other = stack(stacking.features, stacking.topology, batch_size=observed.sizes)
    if len(other.groups) < len(today) == len(alone):
        fullest = [tally(b, other, observed.bad_ids).per_stack.max(axis=(2, 3)) for b in observed.sample]
        stacked = {name: Limits.holding(*most) for name, most in zip(other.stacks, np.max(fullest, axis=0))}
    return types.Savings(buffer_bytes(stacking, alone), buffer_bytes(stacking, stacked))


def buffer_bytes(stacking: Stacking, limits: Mapping[str, Limits]) -> int:
    """Bytes of one batch on one device in the plain layout, one set of buffers for each of ``limits``."""
    shards, per_device = stacking.topology.sparsecores, stacking.topology.sparsecores_per_device
    slots = sum(slots_per_device(limit.max_ids_per_partition, shards, per_device) for limit in limits.values())
    return 12 * slots + 4 * len(limits) * pointers_per_device(shards, per_device)
