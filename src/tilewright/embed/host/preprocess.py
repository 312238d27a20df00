"""A batch of ids -> the buffers the SparseCores read."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import Agree, Agreement, HostBatch, StackStats, check_host_batch, minibatch_starts
from tilewright.embed.host.inputs import Ragged, normalise
from tilewright.embed.host.schedule import Slices
from tilewright.embed.host.tally import BAD_IDS, tally
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, check_batch_divides
from tilewright.embed.model.tables import Limits, count
from tilewright.errors import LimitError, UsageError
from tilewright.threads import thread_count

OVERFLOW = ("minibatch", "drop", "error")
DROP_ORDERS = ("scattered", "lowest")
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
        above a limit: ``minibatch`` cuts the vocabulary by hash buckets (the buffers are then always in the mini-batch
        layout), ``drop`` drops entries and counts them, ``error`` raises.
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
    check_choices(overflow=(overflow, OVERFLOW), bad_ids=(bad_ids, BAD_IDS), drop_order=(drop_order, DROP_ORDERS))
    from tilewright.embed.host.buffers import GUARD, Buffers, check_canaries, set_canaries
    from tilewright.embed.host.overflow import Overflow, limit_table

    _check_kinds(batch, limits, agree, sparsecore)
    threads = thread_count()
    limit = limit_table(limits, stacking)
    slices = source_slices(stacking, sources, local_batch)
    inputs = ragged_inputs(batch, stacking, slices)
    sizes = {name: ragged.batch_size * slices.shards // slices.given for name, ragged in inputs.items()}
    offsets = {name: at for s in stacking.groups for name, at in s.sample_offsets(sizes).items()}
    knobs = sparsecore or _NO_KNOBS
    allow_id_dropping = allow_id_dropping or knobs.allow_id_dropping
    if sparsecore is not None:
        _check_bounds(batch, stacking, sparsecore, bad_ids, sources)
    made = tally(stacking, inputs, offsets, slices, bad_ids, threads)
    most, required = made.totals()
    exceeded = bool((most > limit[:, :, None]).any())
    over = Overflow(stacking, made, limit, slices.sources.start)
    if exceeded and overflow == "error":
        raise over.error()
    bits = over.split_bits(allow_id_dropping, threads) if exceeded and overflow == "minibatch" else 0
    agreed = Agreement(bits, _capacity(limit, most))
    if agree is not None:
        joined: object = agree(agreed)
        if not isinstance(joined, Agreement):
            what = f"agree returned {type(joined).__name__}"
            raise UsageError(what, where="preprocess", how="return the Agreement.join of all processes")
        agreed = joined
    starts = minibatch_starts(agreed.split_bits)
    minibatch_layout = limits is not None and overflow == "minibatch"
    room = np.array(agreed.max_ids, np.int64)
    guard = GUARD if knobs.buffer_contents_sanitizer_config else 0
    bounded = knobs.assert_level == "bounds"
    buffers = Buffers.allocate(stacking, len(slices.sources), room, minibatch_layout, bounded, guard)
    if guard:
        set_canaries(buffers)
    if exceeded or len(starts) > 1:
        dropped = over.write(buffers, starts, drop_order == "lowest", threads)
    else:
        dropped = np.zeros((len(most), slices.shards), np.int64)
        buffers.write(made, required, threads)
    if guard:
        check_canaries(buffers)
    stats = {
        name: StackStats(ids, unique, slots, gone)
        for name, (ids, unique), slots, gone in zip(stacking.stacks, most, required, dropped)
    }
    cut = (len(starts), minibatch_layout, agreed.split_bits)
    pointers, rows, samples, gains = buffers.views()
    host = HostBatch(stacking, sizes, slices.sources, *cut, pointers, rows, samples, gains, stats)
    if knobs.enable_id_bound_check or knobs.detect_nan:
        check_host_batch(host, id_bounds=knobs.enable_id_bound_check, nan=knobs.detect_nan)
    return host


def _check_kinds(batch: object, limits: object, agree: object, knobs: object) -> None:
    """Arguments of another type are told by name."""
    for name, given, fits, wanted in (
        ("batch", batch, isinstance(batch, Mapping), "a dict: feature -> input"),
        ("limits", limits, limits is None or isinstance(limits, Mapping), "a dict: stack -> Limits"),
        ("agree", agree, agree is None or callable(agree), "a function: Agreement -> Agreement"),
        ("sparsecore", knobs, knobs is None or isinstance(knobs, SparseCoreConfig), "a SparseCoreConfig"),
    ):
        if not fits:
            raise UsageError(f"{name} is of type {type(given).__name__}", where="preprocess", how=f"give {wanted}")


def _check_bounds(
    batch: Mapping[str, Any], stacking: Stacking, knobs: SparseCoreConfig, bad_ids: str, sources: range | None
) -> None:
    """The guide's bounds of whole tables and of one sample on one chip."""
    from tilewright.embed.host.check import check_batches

    if sources is not None:
        return  # bounds of whole batches: a process with a part of one cannot tell
    for each in check_batches([batch], stacking, {}, knobs, bad_ids).limits:
        if each.over:
            what = f"{each.observed} ids, {each.knob} is {each.limit}"
            raise LimitError(
                what,
                table=each.what,
                shard=-1,
                observed=each.observed,
                limit=each.limit,
                where=f"{each.what}: {each.place}",
                how=f"set {each.knob} to at least {each.observed}",
            )


def check_choices(**choices: tuple[str, tuple[str, ...]]) -> None:
    """Every named choice is one of those allowed."""
    for name, (given, allowed) in choices.items():
        if given not in allowed:
            raise UsageError(f"{name} = {given!r}", where="preprocess", how=f"one of {', '.join(allowed)}")


def source_slices(stacking: Stacking, sources: range | None, local_batch: bool) -> Slices:
    """Which slices, checked: consecutive SparseCores of whole devices."""
    topology = stacking.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    if sources is None:
        return Slices(range(shards), shards, 0, shards)
    if not isinstance(sources, range) or sources.step != 1 or not sources or sources[0] < 0 or sources[-1] >= shards:
        what = f"sources = {sources!r} is not a range of the {shards} SparseCores"
        raise UsageError(what, where="preprocess", how=f"such as range(0, {shards})")
    if sources.start % per_device or len(sources) % per_device:
        what = f"sources = {sources!r} cuts a device of {per_device} SparseCores"
        raise UsageError(what, where="preprocess", how=f"begin and end at a multiple of {per_device}")
    if local_batch:
        return Slices(sources, shards, 0, len(sources))
    return Slices(sources, shards, sources.start, shards)


def ragged_inputs(batch: Mapping[str, Any], stacking: Stacking, slices: Slices) -> dict[str, Ragged]:
    """Every feature's input in one form, checked."""
    names = [f.name for f in stacking.features]
    for name in batch:
        if name not in names:
            near = get_close_matches(str(name), names, n=3, cutoff=0.4) or names
            raise UsageError(f"no feature called {name!r}", where="batch", how=f"did you mean {' or '.join(near)}?")
    inputs = {}
    for name in names:
        if name not in batch:
            raise UsageError(f"no input for feature {name!r}", where="batch", how="give every feature of the stacking")
        inputs[name] = normalise(batch[name], name)
        if inputs[name].batch_size % slices.given:
            check_batch_divides(inputs[name].batch_size, slices.given, f"feature {name!r}")
    return inputs


def _capacity(limits: Longs, most: Longs) -> tuple[int, ...]:
    """Entries a partition's slots must hold: the limit, or the batch's own maximum rounded up to a power of two."""
    from tilewright.embed.host.overflow import NO_LIMIT

    rounded = [max(8, 1 << (n - 1).bit_length()) if n else 8 for n in most[:, 0].max(axis=1).tolist()]
    return tuple(r if limit == NO_LIMIT else limit for r, limit in zip(rounded, limits[:, 0].tolist()))


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
    inputs = ragged_inputs(batch, stacking, source_slices(stacking, None, False))
    shards = stacking.topology.sparsecores
    slices = int(np.gcd.reduce([ragged.batch_size // shards for ragged in inputs.values()]))
    if parts is not None and slices % count(parts, "parts", "preprocess"):
        what = f"parts = {parts} does not divide slices of {slices} samples"
        raise UsageError(what, where="preprocess", how=f"take a divisor of {slices}")
    tries = [n for n in range(1, slices + 1) if slices % n == 0] if parts is None else [parts]
    for n in tries:
        try:
            return [_part(inputs, k, n, shards, stacking, limits, bad_ids) for k in range(n)]
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


def _part(
    inputs: Mapping[str, Ragged],
    k: int,
    parts: int,
    shards: int,
    stacking: Stacking,
    limits: Mapping[str, Limits],
    bad_ids: str,
) -> HostBatch:
    chosen = {}
    for name, ragged in inputs.items():
        order = sample_order(ragged.batch_size, parts, shards).reshape(parts, -1)[k]
        chosen[name] = _take(ragged, order)
    return preprocess(chosen, stacking, limits, "error", bad_ids)


def _take(ragged: Ragged, samples: Longs) -> tuple[Any, ...]:
    """(values, offsets) or (values, offsets, weights) of the given samples."""
    begin, end = ragged.bounds(samples), ragged.bounds(samples + 1)
    offsets = np.concatenate([[0], np.cumsum(end - begin)])
    places = np.repeat(begin - offsets[:-1], end - begin) + np.arange(offsets[-1])
    flat = ragged.values[places], offsets
    return flat if ragged.weights is None else (*flat, ragged.weights[places])
