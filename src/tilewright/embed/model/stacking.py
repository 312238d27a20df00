"""Which tables share a stack, and where each of them begins in it: the static plan every other part reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add, le
from types import MappingProxyType
from typing import Any

from tilewright.embed.model.formulas import padded_table_bytes
from tilewright.embed.model.optimizers import by_row, slot_width
from tilewright.embed.model.specs import as_feature, flat_specs, peer_row_offset
from tilewright.embed.model.tables import Feature, Quantization, Table, Topology, count
from tilewright.errors import UnsupportedError, UsageError, check_known
from tilewright.layout import mod_sharded
from tilewright.layout.kinds.paged import ShardedLayout

# Automatic table stacking: which tables may share a stack, first fit under the activation and vocabulary caps.

ACTIVATION_BYTES = 2 << 20
"""Default cap of padded_width * samples per SparseCore * 4 of one stack, in bytes."""

MAX_STACK_VOCAB = 2**31 - 1
"""Stacked column ids are int32; the largest of them marks padding."""


def first_fit(sizes: Iterable[tuple[int, ...]], bounds: tuple[int, ...]) -> list[int]:
    """Which place each of these takes: the first whose sums then stay within ``bounds``, or one more, whatever it is.

    >>> first_fit([(3, 1), (2, 1), (9, 1), (1, 1)], bounds=(4, 2))
    [0, 1, 2, 0]
    """
    filled, chosen = list[tuple[int, ...]](), []
    for size in sizes:
        sums = [tuple(map(add, held, size)) for held in filled]
        at = next((k for k, whole in enumerate(sums) if all(map(le, whole, bounds))), len(filled))
        filled[at : at + 1] = sums[at : at + 1] or [size]
        chosen.append(at)
    return chosen


def padded_vocab(table: Table, shards: int) -> int:
    """The vocabulary rounded up to 8 rows on every shard, as the table's layout has it."""
    return mod_sharded(table.vocab, table.width, shards).rows_per_shard * shards


_KIND = ("padded width", "width", "optimizer", "combiner", "quantisation")


def kind_of(table: Table) -> tuple[Any, ...]:
    """What tables of one stack have in common: padded width, optimizer, combiner, quantisation; and the width itself
    where the optimizer looks at whole rows."""
    width = table.width if by_row(table.optimizer) else 0
    return table.padded_width, width, table.optimizer, table.combiner, table.quantization


# Manual table stacking: the stacks as the user names them, held to what one stack can be.


def manual_stacks(features: tuple[Feature, ...], shards: int, stacks: Iterable[Iterable[str]]) -> list[list[Table]]:
    """The tables of every named stack, in the order given.

    Raises :class:`UsageError` for a name that is no table, a table named twice, an empty stack, and tables that differ
    in padded width, optimizer, combiner or quantisation.
    """
    tables = {f.table.name: f.table for f in features}
    left, groups = dict(tables), []
    for names in stacks:
        if isinstance(names, str):
            raise UsageError(f"stacks holds the text {names!r}", where="stack", how='such as [["user", "item"]]')
        groups.append(group := list[Table]())
        for name in names:
            check_known(name, tables, f"stacks names {name!r}, which is no table", where="stack")
            if name not in left:
                raise UsageError(f"stacks names table {name!r} twice", where="stack")
            group.append(left.pop(name))
        _check_one_kind(group, shards)
    return groups


def _check_one_kind(group: list[Table], shards: int) -> None:
    if not group:
        raise UsageError("stacks holds an empty stack", where="stack")
    first = group[0]
    for table in group[1:]:
        for name, a, b in zip(_KIND, kind_of(first), kind_of(table)):
            if a != b:
                problem = f"tables {first.name!r} and {table.name!r} cannot share a stack: {name} {a} and {b}"
                raise UsageError(problem, where="stack", how="make them alike, or stack them apart")
    rows = sum(padded_vocab(t, shards) for t in group)
    if rows > MAX_STACK_VOCAB:
        problem = f"a stack of {rows} rows does not fit 32-bit column ids"
        raise UnsupportedError(problem, where=f"stack of {first.name!r}", how="stack fewer tables together")


@dataclass(frozen=True)
class TablePlacement:
    """Where one table stands in its stack.

    Row r lives on shard ``(r % S + rotation) % S`` at local row ``r // S + row_offset``; :meth:`layout` is that map.

    =================  ====================================================================================
    ``stack``          name of the stack
    ``rotation``       shards by which the table is turned
    ``row_offset``     first local row of the table on every shard
    ``padded_vocab``   vocabulary rounded up to 8 * S rows
    ``padded_width``   width rounded up to 8 floats
    =================  ====================================================================================
    """

    table: Table
    stack: str
    rotation: int
    row_offset: int
    padded_vocab: int
    shards: int

    @property
    def padded_width(self) -> int:
        """Floats per row in memory."""
        return self.table.padded_width

    @property
    def rows_per_shard(self) -> int:
        """Local rows the table takes on every shard."""
        return self.padded_vocab // self.shards

    @property
    def col_offset(self) -> int:
        """What the stacked column id of the table's rows begins at: row_offset * S."""
        return self.row_offset * self.shards

    def layout(self) -> ShardedLayout:
        """The table as an index map: (row, column) -> (shard, local row, column)."""
        return mod_sharded(self.table.vocab, self.table.width, self.shards, self.rotation, self.row_offset)


@dataclass(frozen=True)
class Stack:
    """Tables that are one big table to the SparseCores; one set of buffers feeds them all.

    On the chips it is an array ``[S, rows_per_shard, padded_width]``. ``tables`` stand in order of first use,
    ``features`` in the order in which their samples lie in the buffers (:func:`stack` says which).
    """

    name: str
    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    vocab: int
    shards: int

    @property
    def padded_width(self) -> int:
        """Floats per row in memory."""
        return self.tables[0].padded_width

    @property
    def rows_per_shard(self) -> int:
        """Local rows on every shard, all tables together."""
        return self.vocab // self.shards

    @property
    def optimizer(self) -> Any:
        return self.tables[0].optimizer

    @property
    def slot_floats(self) -> int:
        """Floats the optimizer keeps beside a row."""
        return sum(slot_width(self.optimizer, slot, self.padded_width) for slot in self.optimizer.slots)

    @property
    def step_floats(self) -> int:
        """Floats moved through HBM in a step for a distinct row of a partition: read for the lookup, read and written
        with its optimizer slots for the update."""
        return 3 * self.padded_width + 2 * self.slot_floats

    @property
    def quantization(self) -> Quantization | None:
        """What lookups see the rows through."""
        return self.tables[0].quantization

    @property
    def combiner(self) -> str:
        return self.tables[0].combiner

    def samples(self, batch_sizes: Mapping[str, int]) -> dict[str, int]:
        """Samples of every feature in one SparseCore's slice, B_f / S each, given each feature's whole batch."""
        return {feature.name: batch_sizes[feature.name] // self.shards for feature in self.features}

    def sample_offsets(self, batch_sizes: Mapping[str, int]) -> dict[str, int]:
        """First sample id of every feature inside one SparseCore's slice: features lie one behind the other."""
        counts = self.samples(batch_sizes)
        return dict(zip(counts, accumulate(counts.values(), initial=0)))

    def samples_per_sparsecore(self, batch_sizes: Mapping[str, int]) -> int:
        """Rows of the stack's activations on one SparseCore: the sum of B_f / S over its features."""
        return sum(self.samples(batch_sizes).values())


@dataclass(frozen=True)
class Stacking:
    """The plan: features, topology, the placement of every table and the stacks in order of first use.

    Hashable, so that it can be a static argument of a jitted function.
    """

    features: tuple[Feature, ...]
    topology: Topology
    placements: tuple[TablePlacement, ...]
    groups: tuple[Stack, ...]

    @cached_property
    def tables(self) -> Mapping[str, TablePlacement]:
        """Table name -> its placement."""
        return MappingProxyType({p.table.name: p for p in self.placements})

    @cached_property
    def stacks(self) -> Mapping[str, Stack]:
        """Stack name -> stack, in order of first use."""
        return MappingProxyType({s.name: s for s in self.groups})

    @property
    def rotations(self) -> dict[str, int]:
        """Stack of several tables -> the shards by which each next one is turned, as :func:`stack` takes it."""
        return {s.name: self.tables[s.tables[1].name].rotation for s in self.groups if len(s.tables) > 1}

    @property
    def chip_bytes(self) -> int:
        """Bytes of float32 rows that every chip holds, padding included: all chips hold the same."""
        shards = self.topology.sparsecores
        whole = sum(padded_table_bytes(p.table.vocab, p.table.width, shards) for p in self.placements)
        return whole // self.topology.chips

    @cached_property
    def _hash(self) -> int:
        return hash((self.features, self.topology, self.placements))

    def __hash__(self) -> int:
        """Computed once: a jitted call hashes its static arguments every time."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields travel: the views are made again, hashes of text differ between processes."""
        return {k: self.__dict__[k] for k in ("features", "topology", "placements", "groups")}


def stack_name(names: Iterable[str]) -> str:
    """The names joined by ``_``; longer than 50 characters: the first 50, ``...`` and 12 digits of the SHA-256.

    >>> stack_name(["user", "item"])
    'user_item'
    """
    name = "_".join(names)
    if len(name) <= 50:
        return name
    return f"{name[:50]}...{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def stack(
    features: Iterable[Any],
    topology: Topology,
    table_stacking: bool = True,
    batch_size: int | Mapping[str, int] | None = None,
    *,
    rotation: int | Mapping[str, int] | None = None,
    activation_bytes: int = ACTIVATION_BYTES,
    stacks: Iterable[Iterable[str]] = (),
) -> Stacking:
    """Group the features' tables into stacks and give every table its place.

    Tables of equal padded width, optimizer and combiner share a stack, in the order in which the features first use
    them. With ``batch_size`` (one number, or one per feature) a stack also holds no more tables than keep
    ``padded_width * samples_per_SparseCore * 4 <= activation_bytes``; a table goes into the first stack it fits.
    Table k of a stack is turned by ``k * rotation % S`` shards (default: the SparseCores of a device), so that the
    hot low rows of many tables do not all meet on shard 0. ``rotation`` is of all stacks, or stack -> its own.

    ``stacks`` names tables to stack by hand, such as ``[["user", "item"]]``, in that order and whatever activations
    they need; the tables it leaves out are stacked as above. ``features`` may be FeatureSpecs of jax-tpu-embedding,
    nested as it takes them.

    Inside a stack samples lie as jax-tpu-embedding lays them: feature after feature in the order given; in the order
    of their names in a table that is in no stack (``table_stacking=False``, not named in ``stacks``); by the
    ``row_offset`` of their ``id_transformation`` where the features are the FeatureSpecs of one of its stacks.

    Raises :class:`UsageError` for repeated names, two different tables of one name, a rotation of no stack, or a batch
    that S does not divide.

    >>> t = Table("user", 100, 8), Table("item", 40, 8)
    >>> s = stack([Feature("u", t[0]), Feature("i", t[1])], Topology(chips=2, sparsecores_per_chip=4))
    >>> s.tables["item"].stack, s.tables["item"].rotation, s.tables["item"].row_offset
    ('user_item', 4, 16)
    """
    specs = flat_specs(features)
    features = tuple(as_feature(spec) for spec in specs)
    _check_names(features)
    offsets = {spec.name: offset for spec in specs if (offset := peer_row_offset(spec)) is not None}
    by_hand = manual_stacks(features, topology.sparsecores, stacks)
    step_of = _steps(rotation, topology.sparsecores_per_device)
    sizes = batch_sizes_of(features, topology, batch_size)
    placements: dict[str, TablePlacement] = {}
    by_name: dict[str, Stack] = {}
    for tables in _groups(features, topology.sparsecores, table_stacking, sizes, activation_bytes, by_hand):
        users = _in_buffers(features, tables, table_stacking or tables in by_hand, offsets)
        group, placed = _place(tables, users, topology.sparsecores, step_of)
        if group.name in by_name:
            raise UsageError(f"two stacks would be called {group.name!r}", where="stack", how="rename a table")
        by_name[group.name] = group
        placements.update({placement.table.name: placement for placement in placed})
    for name in rotation if isinstance(rotation, Mapping) else ():
        check_known(name, by_name, f"a rotation of {name!r}, which is no stack", where="stack")
    ordered = tuple(placements[name] for name in dict.fromkeys(f.table.name for f in features))
    return Stacking(features, topology, ordered, tuple(by_name.values()))


def _steps(rotation: int | Mapping[str, int] | None, default: int) -> Callable[[str], int]:
    """The shards by which each next table of a stack is turned, by the stack's name."""
    if isinstance(rotation, Mapping):
        steps = {name: count(step, f"rotation of {name!r}", "stack", least=0) for name, step in rotation.items()}
        return lambda name: steps.get(name, default)
    step = default if rotation is None else count(rotation, "rotation", "stack", least=0)
    return lambda name: step


def _groups(
    features: tuple[Feature, ...],
    shards: int,
    table_stacking: bool,
    sizes: Mapping[str, int] | None,
    activation_bytes: int,
    by_hand: list[list[Table]],
) -> list[list[Table]]:
    """The tables of every stack, first fit but for those named by hand; stacks and tables in order of first use."""
    tables = {feature.table.name: feature.table for feature in features}
    samples = dict.fromkeys(tables, 0)
    for feature in features:
        samples[feature.table.name] += sizes[feature.name] // shards if sizes else 0
    named = {table.name for group in by_hand for table in group}
    kinds: dict[Any, list[tuple[Table, tuple[int, int]]]] = {}
    for table in (table for name, table in tables.items() if name not in named):
        vocab, activations = padded_vocab(table, shards), 4 * table.padded_width * samples[table.name]
        if vocab > MAX_STACK_VOCAB:
            problem = f"a padded vocabulary of {vocab} rows does not fit a 32-bit column id"
            raise UnsupportedError(problem, where=f"table {table.name!r}", how="hash the ids into fewer rows")
        kinds.setdefault(kind_of(table) if table_stacking else table.name, []).append((table, (vocab, activations)))
    stacks: dict[Any, list[Table]] = {}
    for kind, alike in kinds.items():
        for (table, _), at in zip(alike, first_fit((size for _, size in alike), (MAX_STACK_VOCAB, activation_bytes))):
            stacks.setdefault((kind, at), []).append(table)
    use = {name: k for k, name in enumerate(tables)}
    return sorted([*by_hand, *stacks.values()], key=lambda group: min(use[t.name] for t in group))


def _in_buffers(
    features: tuple[Feature, ...], tables: list[Table], stacked: bool, offsets: Mapping[str, tuple[str, int]]
) -> tuple[Feature, ...]:
    """The features of a stack in the order in which their samples lie; ``offsets``: (the peer's stack, row offset)."""
    names = {table.name for table in tables}
    users = tuple(feature for feature in features if feature.table.name in names)
    theirs = {offsets[feature.name][0] if feature.name in offsets else None for feature in users}
    if len(theirs) == 1 and None not in theirs:
        return tuple(sorted(users, key=lambda feature: offsets[feature.name][1]))
    return users if stacked else tuple(sorted(users, key=lambda feature: feature.name))


def batch_sizes_of(
    features: tuple[Feature, ...], topology: Topology, batch_size: int | Mapping[str, int] | None
) -> dict[str, int] | None:
    """Every feature's whole batch, checked: at least one sample per SparseCore, divisible by their number."""
    if batch_size is None:
        return None
    sizes = {}
    for feature in features:
        own = batch_size.get(feature.name) if isinstance(batch_size, Mapping) else batch_size
        where = f"feature {feature.name!r}"
        sizes[feature.name] = size = count(own, "batch size", where)
        topology.check_batch(size, where)
    return sizes


def _place(
    tables: list[Table], users: tuple[Feature, ...], shards: int, step_of: Callable[[str], int]
) -> tuple[Stack, list[TablePlacement]]:
    name = stack_name(t.name for t in tables)
    step = step_of(name)
    placements = []
    at = 0
    for k, table in enumerate(tables):
        padded = padded_vocab(table, shards)
        placements.append(TablePlacement(table, name, k * step % shards, at // shards, padded, shards))
        at += padded
    return Stack(name, tuple(tables), users, at, shards), placements


def _check_names(features: tuple[Feature, ...]) -> None:
    if not features:
        raise UsageError("no features", where="stack", how="give at least one Feature")
    tables: dict[str, Table] = {}
    seen: set[str] = set()
    for feature in features:
        if feature.name in seen:
            raise UsageError(f"two features are called {feature.name!r}", where="stack", how="rename one")
        seen.add(feature.name)
        if tables.setdefault(feature.table.name, feature.table) != feature.table:
            raise UsageError(f"two different tables are called {feature.table.name!r}", where="stack", how="rename one")
