"""A batch of ids -> the buffers the SparseCores read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import Agree, Agreement, HostBatch, StackStats, check_host_batch, minibatch_starts
from tilewright.embed.host.buffers import Buffers
from tilewright.embed.host.inputs import check_choice, ragged_inputs, source_slices
from tilewright.embed.host.overflow import NO_LIMIT, Overflow, limit_table
from tilewright.embed.host.tables import NarrowTables, pack_narrow
from tilewright.embed.host.tally import Tally, tally
from tilewright.embed.model.counters import plain
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Limits, count
from tilewright.errors import LimitError, UsageError

OVERFLOW = ("minibatch", "drop", "error")
DROP_ORDERS = ("scattered", "lowest")
MINIBATCH_LAYOUTS = ("always", "needed")
_NO_KNOBS = SparseCoreConfig()


def preprocess(
    batch: Mapping[str, Any],
    stacking: Stacking,
    limits: Mapping[str, Limits] | None = None,
    overflow: str = "minibatch",
    bad_ids: str = "error",
    sources: range | None = None,
    agree: Agree | None = None,
    *,
    allow_id_dropping: bool = False,
    drop_order: str = "scattered",
    local_batch: bool = False,
    sparsecore: SparseCoreConfig | None = None,
    minibatch_layout: str = "always",
) -> HostBatch:
    """Merge, combine, sort by shard and pad one batch for the SparseCores.

    ``batch``
        per feature: ``(values, offsets)`` or ``(values, offsets, weights)`` with one offset more than there are
        samples, a 2-D array [batch, ids], a list of lists, or a :class:`COO`. Source SparseCore s takes the samples
        ``s * B / S`` to ``(s + 1) * B / S`` of every feature, so S divides B.
    ``limits``
        stack -> :class:`Limits`; stacks may be left out. None: nothing overflows, and the buffers hold the batch,
        rounded up to a power of two so that their shapes rarely change.
    ``overflow``
        above a limit: ``minibatch`` cuts the vocabulary by hash buckets, ``drop`` drops entries and counts them,
        ``error`` raises.
    ``bad_ids``
        negative or at least the vocabulary: ``error``, ``clip`` into the range, or ``drop`` before combining.
    ``sources``, ``local_batch``
        the SparseCores this process feeds, whole devices; the batch holds the samples of all of them or, with
        ``local_batch``, of these only.
    ``agree``
        joins an :class:`Agreement` over the processes; without it this process decides alone.
    ``allow_id_dropping``
        with ``minibatch``: drop from a bucket that alone exceeds a limit instead of raising.
    ``drop_order``
        ``scattered`` drops without bias to low ids, ``lowest`` keeps the lowest local rows, as jax-tpu-embedding does.
    ``minibatch_layout``
        with limits and ``overflow="minibatch"``: ``always`` lays every batch out for mini-batches, 64 times as long, as
        jax-tpu-embedding does, so that shapes never change; ``needed`` only a batch that is cut (on any process).
    ``sparsecore``
        the guide's knobs: ``allow_id_dropping``; bounds of tables and of samples on chips (:class:`LimitError`);
        and the checks, off by default, that raise :class:`CheckFailed`: ``enable_id_bound_check`` and ``detect_nan``
        of the finished buffers, ``assert_level="bounds"`` of every store, ``buffer_contents_sanitizer_config`` (any
        text) of canaries between the stacks' buffers.

    Raises :class:`UsageError` for input that cannot be read, naming feature, sample and id, and :class:`LimitError`.

    >>> from tilewright.embed import Feature, Table, Topology, stack
    >>> plan = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> host = preprocess({"f": [[0, 0, 0, 2, 4, 1], [1, 1, 3]]}, plan)
    >>> [part.tolist() for part in host.partition("t", source=0, shard=0)]
    [[0, 1, 2], [0, 0, 0], [3.0, 1.0, 1.0]]
    """
    check_choice("overflow", overflow, OVERFLOW)
    check_choice("drop_order", drop_order, DROP_ORDERS)
    check_choice("minibatch_layout", minibatch_layout, MINIBATCH_LAYOUTS)
    _check_types(batch, limits, agree, sparsecore)
    knobs = sparsecore or _NO_KNOBS
    limit = limit_table(limits, stacking)
    slices = source_slices(stacking, sources, local_batch)
    if sparsecore is not None and sources is None:  # a process with a part of the batch cannot tell
        _check_bounds(batch, stacking, sparsecore, bad_ids)
    counted = tally(batch, stacking, bad_ids, slices)
    most, required = counted.totals()
    exceeded = bool((most > limit[:, :, None]).any())
    over = Overflow(stacking, counted, limit, slices.sources.start)
    if exceeded and overflow == "error":
        raise over.error()
    cut = exceeded and overflow == "minibatch"
    bits = over.split_bits(allow_id_dropping or knobs.allow_id_dropping) if cut else 0
    # Entries a partition's slots must hold: the limit, or the batch's own maximum rounded up to a power of two.
    rounded = [max(8, 1 << (n - 1).bit_length()) if n else 8 for n in most[:, 0].max(axis=1).tolist()]
    capacity = tuple(r if n == NO_LIMIT else n for r, n in zip(rounded, limit[:, 0].tolist()))
    agreed = _agreed(Agreement(bits, capacity), agree)
    starts = minibatch_starts(agreed.split_bits)
    layout = limits is not None and overflow == "minibatch" and (minibatch_layout == "always" or len(starts) > 1)
    guard, bounded = bool(knobs.buffer_contents_sanitizer_config), knobs.assert_level == "bounds"
    buffers = Buffers(stacking, len(slices.sources), agreed.max_ids, layout, bounded, guard)
    if exceeded or len(starts) > 1 or bounded:
        arrays, dropped = over.write(buffers, starts, drop_order == "lowest")
    else:
        arrays, dropped = buffers.write(counted, required)
    counts = zip(stacking.stacks, most[:, 0], most[:, 1], required, dropped)
    stats = {name: StackStats(*of_stack) for name, *of_stack in counts}
    host = HostBatch(stacking, counted.sizes, slices.sources, len(starts), layout, agreed.split_bits, *arrays, stats)
    if knobs.enable_id_bound_check or knobs.detect_nan:
        check_host_batch(host, id_bounds=knobs.enable_id_bound_check, nan=knobs.detect_nan)
    return host


def _check_types(batch: object, limits: object, agree: object, knobs: object) -> None:
    """:class:`UsageError` for an argument of the wrong type, by its name."""
    for name, value, fits, expected in (
        ("batch", batch, isinstance(batch, Mapping), "a dict: feature -> input"),
        ("limits", limits, limits is None or isinstance(limits, Mapping), "a dict: stack -> Limits"),
        ("agree", agree, agree is None or callable(agree), "a function: Agreement -> Agreement"),
        ("sparsecore", knobs, knobs is None or isinstance(knobs, SparseCoreConfig), "a SparseCoreConfig"),
    ):
        if not fits:
            raise UsageError(f"{name} is of type {type(value).__name__}", where="preprocess", how=f"give {expected}")


def _check_bounds(batch: Mapping[str, Any], stacking: Stacking, knobs: SparseCoreConfig, bad_ids: str) -> None:
    """:class:`LimitError` where the guide's bounds of a whole table, or of one sample on one chip, do not hold."""
    for excess in _of_bounds(0, batch, stacking, knobs, bad_ids, pack_narrow(stacking.features, pack=False)):
        if excess.over:
            raise LimitError(
                f"{excess.observed} ids, {excess.knob} is {excess.limit}",
                table=excess.what,
                shard=-1,
                observed=excess.observed,
                limit=excess.limit,
                where=f"{excess.what}: {excess.place}",
                how=f"set {excess.knob} to at least {excess.observed}",
            )


def _agreed(proposal: Agreement, agree: Agree | None) -> Agreement:
    """What all processes of the step agree on; without ``agree`` this process decides alone."""
    if agree is None:
        return proposal
    joined: object = agree(proposal)
    if not isinstance(joined, Agreement):
        problem = f"agree returned {type(joined).__name__}"
        raise UsageError(problem, where="preprocess", how="return the Agreement.join of all processes")
    return joined


# Mini-batches over the samples: a batch fed as several smaller ones, where the vocabulary cannot be cut any finer.


def preprocess_samples(
    batch: Mapping[str, Any],
    stacking: Stacking,
    limits: Mapping[str, Limits],
    parts: int | None = None,
    bad_ids: str = "error",
) -> list[HostBatch]:
    """The batch in ``parts`` cut along the samples, each a whole batch for the SparseCores, in the plain layout.

    Part k holds the k-th of ``parts`` equal runs of every source's slice, so each sample stays on its SparseCore; the
    activations of the parts, one behind the other, are those of the batch in the order of :func:`sample_order`.
    ``parts`` None: the smallest number that divides every slice and keeps the limits. Unlike mini-batches over the
    vocabulary the buffers are those of the limits, not 64 times as large, and no sum crosses parts.

    Raises :class:`LimitError` where even one sample a slice exceeds a limit, :class:`UsageError` for ``parts`` that do
    not divide the slices.

    >>> from tilewright.embed import Feature, Table, Topology, stack
    >>> stacking = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> len(preprocess_samples({"f": [[0, 2], [4], [1], [3]]}, stacking, {"t": Limits(2, 2)}))
    2
    """
    inputs = ragged_inputs(batch, stacking, source_slices(stacking))
    shards = stacking.topology.sparsecores
    slice_samples = int(np.gcd.reduce([ragged.batch_size // shards for ragged in inputs.values()]))
    if parts is not None and slice_samples % count(parts, "parts", "preprocess"):
        problem = f"parts = {parts} does not divide slices of {slice_samples} samples"
        raise UsageError(problem, where="preprocess", how=f"take a divisor of {slice_samples}")
    tries = [n for n in range(1, slice_samples + 1) if slice_samples % n == 0] if parts is None else [parts]

    def part(k: int, parts: int) -> HostBatch:
        orders = {name: sample_order(r.batch_size, parts, shards).reshape(parts, -1)[k] for name, r in inputs.items()}
        chosen = {name: ragged.take(orders[name]) for name, ragged in inputs.items()}
        return preprocess(chosen, stacking, limits, "error", bad_ids)

    for n in tries:
        try:
            return [part(k, n) for k in range(n)]
        except LimitError:
            if n == tries[-1]:
                raise
    raise AssertionError("no divisor")  # pragma: no cover


def sample_order(batch_size: int, parts: int, shards: int) -> Longs:
    """Which sample of the batch each row of the parts' activations is, the parts one behind the other.

    >>> sample_order(8, parts=2, shards=2).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    return np.arange(batch_size).reshape(shards, parts, -1).transpose(1, 0, 2).reshape(-1)


# Batches held against limits without a buffer written: what overflows, where, and what it would cost.


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

    def add(self, batch: Mapping[str, Any]) -> Tally:
        """Count one more batch, once for all candidates; its counts."""
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
        return counted

    def drop_rates(self, k: int) -> dict[str, float]:
        """Stack -> the share of its entries dropped under candidate ``k``."""
        return dict(zip(self.stacking.stacks, (self.dropped[k] / np.maximum(self.entries, 1)).tolist()))


@dataclass(frozen=True)
class Excess:
    """One limit and the most any batch asked of it.

    ``what`` is a stack, table or ``all tables``; ``place`` says where the most was seen: batch (from 0), source and
    shard, or batch, sample and chip.
    """

    what: str
    knob: str
    limit: int
    observed: int
    place: str

    DERIVED: ClassVar = {"over": "over"}

    @property
    def over(self) -> bool:
        """Whether more was observed than the limit allows."""
        return self.observed > self.limit

    @property
    def of_partition(self) -> bool:
        """Whether it bounds partitions, which mini-batches can cut."""
        return self.knob in (knob.name for knob in fields(Limits))


@dataclass(frozen=True)
class Check:
    """What was asked of the limits.

    ===================  ==========================================================================================
    ``batches``          how many; ``batches_over``: those that exceed anything
    ``minibatches``      the most that ``preprocess`` cuts a batch into
    ``limits``           every limit with the most asked of it
    ``partitions_over``  batches with a partition above its limit: what mini-batches are for
    ``uncut``            those of them that it refuses, for one hash bucket alone exceeds a limit; ``uncut_because``:
                         what it says of the first
    ===================  ==========================================================================================
    """

    batches: int
    batches_over: int
    minibatches: int
    limits: tuple[Excess, ...]
    partitions_over: int = 0
    uncut: int = 0
    uncut_because: str = ""

    @property
    def passed(self) -> bool:
        """Whether no limit is exceeded."""
        return not any(excess.over for excess in self.limits)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``."""
        return {"schema_version": 1, "kind": "embedding_check", "passed": self.passed, **plain(self)}


def check_batches(
    batches: Iterable[Mapping[str, Any]],
    stacking: Stacking,
    limits: Mapping[str, Limits],
    sparsecore: SparseCoreConfig | None = None,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
    narrow: NarrowTables | None = None,
) -> Check:
    """Count every batch and compare: partitions with ``limits``, and with the bounds of ``sparsecore`` (per table, per
    sample and chip) where one is given. ``narrow``: ``stacking`` is of its packed features, batches are of the model's.

    Raises :class:`UsageError` for what ``preprocess`` refuses, limits of something that is no stack, limits of more
    distinct ids than ids, no batches.

    >>> from tilewright.embed import Feature, Table, Topology, stack
    >>> stacking = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> check = check_batches([{"f": [[0, 2, 4], [1]]}], stacking, {"t": Limits(2, 2)})
    >>> check.passed, check.limits[0].observed, check.limits[0].place
    (False, 3, 'batch 0, source 0, shard 0')
    """
    narrow = narrow or pack_narrow(stacking.features, pack=False)
    dropping = sparsecore is not None and sparsecore.allow_id_dropping
    replay = Replay(stacking, [limits], bad_ids, drop=False, allow_id_dropping=dropping)
    limits = {name: limit.consistent(f"limits of {name!r}") for name, limit in limits.items()}
    most, over = dict[tuple[str, str], Excess](), 0
    for n, batch in enumerate(batches):
        batch = narrow.batch(batch, bad_ids)
        asked = [*_of_partitions(n, replay.add(batch).per_stack, stacking, limits)]
        asked += _of_bounds(n, batch, stacking, sparsecore, bad_ids, narrow) if sparsecore is not None else []
        for excess in asked:
            key = excess.what, excess.knob
            most[key] = max(most.get(key, excess), excess, key=attrgetter("observed"))
        over += any(excess.over for excess in asked)
        if progress is not None:
            progress(n + 1)
    if not replay.steps:
        raise UsageError("no batches", where="check", how="give at least one batch")
    cut, refused, found = replay.minibatches[0], replay.refused[0], tuple(most.values())
    return Check(replay.steps, over, max(cut, default=1), found, replay.over[0], len(refused), next(iter(refused), ""))


def _of_partitions(n: int, counts: Longs, stacking: Stacking, limits: Mapping[str, Limits]) -> Iterator[Excess]:
    """What the fullest partitions of batch ``n`` ask of the limits; ``counts`` as :attr:`Tally.per_stack`."""
    for name, stack_counts in zip(stacking.stacks, counts):
        if name in limits:
            for (knob, limit), per_partition in zip(vars(limits[name]).items(), stack_counts):
                source, shard = (int(i) for i in np.unravel_index(per_partition.argmax(), per_partition.shape))
                place = f"batch {n}, source {source}, shard {shard}"
                yield Excess(name, knob, limit, int(per_partition[source, shard]), place)


def _of_bounds(
    n: int, batch: Mapping[str, Any], stacking: Stacking, knobs: SparseCoreConfig, bad_ids: str, narrow: NarrowTables
) -> Iterator[Excess]:
    """What batch ``n`` asks of the guide's bounds: of every table that has one, and of one sample on one chip."""
    bounds = [knobs.max_ids_per_table or {}, knobs.max_unique_ids_per_table or {}]
    for name in {name for bound in bounds for name in bound} - set(stacking.tables):
        raise UsageError(f"a bound for {name!r}, which is no table", where="sparsecore")
    if any(bounds):
        alone = stack(stacking.features, stacking.topology, table_stacking=False)
        sums = zip(alone.stacks, tally(batch, alone, bad_ids).per_stack.sum(axis=(2, 3)).tolist())
        for name, totals in sums:
            for knob, bound, total in zip(("max_ids_per_table", "max_unique_ids_per_table"), bounds, totals):
                if name in bound:
                    yield Excess(name, knob, bound[name], total, f"batch {n}")
    counts = ids_per_chip_and_sample(batch, stacking, narrow.samples_per_sample())
    sample, chip = (int(i) for i in np.unravel_index(counts.argmax(), counts.shape))
    limit, place = knobs.max_ids_per_chip_per_sample, f"batch {n}, sample {sample}, chip {chip}"
    yield Excess("all tables", "max_ids_per_chip_per_sample", limit, int(counts[sample, chip]), place)


def ids_per_chip_and_sample(batch: Mapping[str, Any], stacking: Stacking, parts: Mapping[str, int]) -> Longs:
    """int64[samples, chips]: merged ids of sample i, over all features, that live on the shards of each chip.

    Features of other batch sizes share sample numbers as far as they go. Ids outside a vocabulary are not counted.
    ``parts``: feature -> how many of its samples are one, for packed tables.
    """
    topology = stacking.topology
    inputs = ragged_inputs(batch, stacking, source_slices(stacking))
    most = max(ragged.batch_size // parts[name] for name, ragged in inputs.items())
    counts = np.zeros((most, topology.chips), np.int64)
    for feature in stacking.features:
        ragged, place = inputs[feature.name], stacking.tables[feature.table.name]
        samples = ragged.samples
        ids = ragged.values.astype(np.int64)
        good = (ids >= 0) & (ids < feature.table.vocab)
        merged = np.unique(samples[good] * feature.table.vocab + ids[good])
        samples, ids = merged // feature.table.vocab // parts[feature.name], merged % feature.table.vocab
        shard = (ids + place.rotation) % topology.sparsecores
        np.add.at(counts, (samples, shard // topology.sparsecores_per_chip), 1)
    return counts
