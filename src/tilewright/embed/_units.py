"""Which tables kernel 1 sorts together: one table, or neighbours of a stack where a table alone has too few ids.

Tables of a stack occupy ranges of rows that do not overlap, so each can be sorted alone, in fewer digits. Yet every
(table, source, shard) costs a few counters and three short copies, which many SparseCores make dearer than the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.embed._stacking import Placement, Stack, Stacking
from tilewright.embed._tables import COMBINERS, Feature
from tilewright.embed._types import Longs

__all__ = ["Unit", "units_of"]

_FEW = 36
"""Ids per table, source and shard below which tables are sorted together."""


@dataclass(frozen=True, eq=False)
class Unit:
    """``placements`` of neighbouring tables of one stack and their ``features``, table by table.

    ``numbers``: kernel 1's ``unit`` argument but for the bad-id mode (S, rows per shard, the two numbers of the
    division by S, combiner, first row in the stack, bits of a position); ``tables``: int64[features, 3] vocab,
    rotation and first row in the unit of each feature's table.
    """

    stack: str
    features: tuple[Feature, ...]
    numbers: tuple[int, ...]
    tables: Longs
    positions: int


def _division(shards: int) -> tuple[int, int]:
    """``id // S == (id * magic) >> shift`` for 0 <= id < 2**31: with 2**k >= S and magic = 2**(31 + k) // S + 1 the
    error of the product stays below one part in 2**31."""
    shift = 31 + (shards - 1).bit_length()
    return (1 << shift) // shards + 1, shift


def _unit(stack: Stack, placements: list[Placement]) -> Unit:
    users = [(f, p) for p in placements for f in stack.features if f.table.name == p.table.name]
    first, shards = placements[0], placements[0].shards
    rows = sum(p.rows_per_shard for p in placements)
    combiner = COMBINERS.index(first.table.combiner)
    numbers = (shards, rows, *_division(shards), combiner, first.row_offset, (rows * shards - 1).bit_length())
    tables = [(p.table.vocab, p.rotation, p.row_offset - first.row_offset) for _, p in users]
    return Unit(stack.name, tuple(f for f, _ in users), numbers, np.array(tables, np.int64), rows * shards)


def _tables_together(ids: int, tables: int, partitions: int) -> int:
    """How many tables of a stack of ``tables`` make a unit, for ``ids`` in so many (source, shard) ``partitions``."""
    return min(tables, max(1, _FEW * tables * partitions // max(1, ids)))


def units_of(stacking: Stacking, ids: Mapping[str, int], sources: int) -> tuple[tuple[Unit, ...], Longs]:
    """The units of all stacks, stack by stack, and int64[stacks + 1]: the first of every stack.

    ``ids``: of every feature in this batch. What was decided is kept with the plan.
    """
    sizes = []
    for stack in stacking.groups:
        given = sum(ids[f.name] for f in stack.features)
        sizes.append(_tables_together(given, len(stack.tables), sources * stacking.topology.sparsecores))
    held: dict[tuple[int, ...], Any] = stacking.__dict__.setdefault("_units", {})
    key = tuple(sizes)
    if key not in held:
        held[key] = _make(stacking, sizes)
    made: tuple[tuple[Unit, ...], Longs] = held[key]
    return made


def _make(stacking: Stacking, sizes: list[int]) -> tuple[tuple[Unit, ...], Longs]:
    units, first = [], [0]
    for stack, size in zip(stacking.groups, sizes):
        placements = [stacking.tables[t.name] for t in stack.tables]
        cuts = [*range(0, len(placements), size), len(placements)]
        units += [_unit(stack, placements[a:b]) for a, b in pairwise(cuts)]
        first.append(len(units))
    return tuple(units), np.array(first, np.int64)
