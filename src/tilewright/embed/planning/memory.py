"""What a TPU compiler decides about one stack of tables: does it compile, with how many replicas, taking how much HBM.

The rules were measured ahead of time against libtpu 0.0.50.1 on v5p, v6e and 7x; see the docs page on plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.model.counters import key
from tilewright.embed.model.formulas import backward_stack_bytes, forward_stack_bytes, round8
from tilewright.embed.model.optimizers import OPTIMIZERS, RowOptimizer, short_name
from tilewright.embed.model.tables import Limits, count
from tilewright.errors import UsageError
from tilewright.targets import Target, target_names
from tilewright.targets import target as find_target

RULE_VERSION = "libtpu 0.0.50.1"
OPERATIONS = ("forward", *OPTIMIZERS)
REPLICATIONS = (8, 16, 32, 64)
SPARE = 97
_STACK_ROW = {"forward": (2, 1), "sgd": (3, 5), "adagrad": (4, 4), "adam": (6, 4)}
_BY_SLOTS = ("sgd", "adagrad", "adam")
"""The measured update with so many slots, which stands in for others."""
_FORWARD_EXTRA, _BACKWARD_EXTRA = 42_000, 48_000  # measured as "about 42 KB" and "about 48 KB"


@dataclass(frozen=True)
class SparseMemory:
    """The compiler's verdict on one stack.

    =========================  ===================================================================================
    ``compiles``               whether a program exists that fits the tiles' scratchpads (TileSpmem)
    ``reason``                 why, with the figures; for a refusal also the compiler's error
    ``logical_replica_count``  S * f, f the replication the compiler settles on (the last one tried, if none fits)
    ``unique_rows``            U', the rows a replica holds: min(U8, max_ids / f rounded up to 8)
    ``guide_bytes``            HBM stack by the guide's formula, which is the compiler's own estimate
    ``stack_bytes``            HBM stack really taken, per SparseCore
    ``tile_bytes``             TileSpmem needed per tile, of ``tile_limit``
    ``basis``                  ``measured``, or ``modelled`` where no measurement covers the case; ``note`` says how
    ``largest_limits``         the largest limits, in the proportion asked for and in steps of 8 unique ids, that
                               compile; None if none do
    ``rule``                   the TileSpmem rule of the chip, operation and width, for ``limits``
    =========================  ===================================================================================
    """

    op: str
    limits: Limits = field(metadata=key(""))
    compiles: bool
    reason: str
    logical_replica_count: int
    unique_rows: int = field(metadata=key(""))
    guide_bytes: int
    stack_bytes: int
    tile_bytes: int
    tile_limit: int
    basis: str
    note: str
    rule: TileRule = field(metadata=key(""))

    @cached_property
    def largest_limits(self) -> Limits | None:
        """The largest limits of the proportion asked for that compile, None if none do; searched on first use."""
        return self.rule.largest(self.limits)

    DERIVED: ClassVar = {"largest_limits": "largest_limits"}


@dataclass(frozen=True)
class TileRule:
    """The TileSpmem rule of one chip, operation and width; ``unique`` and ``ids`` may be arrays of candidates."""

    tile_limit: int
    fixed: int
    op: str
    sparsecores: int
    width: int

    @property
    def first(self) -> int:
        """f0, the replication tried first."""
        return 1 if self.sparsecores >= 16 else 8

    def unique_rows(self, unique: NDArray[np.int64], ids: NDArray[np.int64], f: int) -> NDArray[np.int64]:
        """U' = min(U8, round8(m8 / f))."""
        return np.minimum(unique, -(-ids // (8 * f)) * 8)

    def tile_bytes(self, unique: NDArray[np.int64], ids: NDArray[np.int64], f: int) -> NDArray[np.int64]:
        """Bytes a tile needs at replication ``f``, without the spare."""
        padded = round8(self.width)
        if self.op == "forward":
            fixed = 32 * unique + self.fixed
        elif padded == self.width:
            fixed = 36 * unique + self.fixed
        else:  # the backward does not split vectors of such a width
            fixed = 4 * (padded + 1) * unique + 124 * padded + self.fixed - 1024
        return fixed + 12 * (-(-ids // (8 * f)) * 8)

    def small_tile_bytes(self, unique: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes a tile needs in the second forward program."""
        return 36 * self.unique_rows(unique, ids, self.first) + 52

    def replication(self, unique: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """f for every candidate: 0 where nothing compiles, -f0 where the second forward program is taken."""
        tried = (self.first, *(f for f in REPLICATIONS if f != self.first))
        chosen = np.zeros_like(unique)
        if self.width == 1:  # aborts the compiler
            return chosen
        for f in reversed(tried):
            chosen = np.where(self.tile_bytes(unique, ids, f) + SPARE <= self.tile_limit, f, chosen)
        if self.op != "forward":
            return chosen
        second = np.where(self.small_tile_bytes(unique, ids) <= self.tile_limit, -self.first, 0)
        padded = round8(self.width)
        wide = (padded != self.width) & (4 * (padded + 1) * unique > self.tile_limit)
        few = (self.sparsecores < 16) & (chosen != self.first)
        return np.where(wide | few, second, chosen)

    def fits(self, unique: int, ids: int) -> bool:
        """Whether limits of ``ids`` and ``unique`` compile."""
        rounded = np.asarray([round8(ids)], np.int64)
        return bool(self.replication(np.minimum(round8(unique), rounded), rounded)[0])

    def largest(self, limits: Limits) -> Limits | None:
        """The largest limits in the proportion of ``limits``, in steps of 8 unique ids, that compile; None if none do.

        No program holds more than 8 * tile_limit / 36 unique rows."""
        unique = np.arange(8, 8 * (self.tile_limit // 36) + 16, 8, dtype=np.int64)
        ids = unique * limits.max_ids_per_partition // limits.max_unique_ids_per_partition
        ids = np.maximum(unique, ids // 8 * 8)
        fitting = np.flatnonzero(self.replication(unique, ids))
        return Limits(int(ids[fitting[-1]]), int(unique[fitting[-1]])) if len(fitting) else None


def memory(
    target: str | Target, sparsecores: int, width: int, limits: Limits, op: str | RowOptimizer = "forward"
) -> SparseMemory:
    """Whether one stack of ``width`` floats compiles on ``sparsecores`` SparseCores in all, and what it takes.

    ``op`` is ``forward`` or the optimizer of the update, itself or by its short name. Measured are ``sgd``, ``adagrad``
    and ``adam``; for any other the one with as many slots stands in, and on a chip whose TileSpmem has not been
    measured (v4) the smallest measured one: the answer says so.

    Raises :class:`UsageError` for a target without SparseCores, an unknown ``op``, or a count below 1.

    >>> m = memory("tpu-v5p", 16, 16, Limits(16128, 16128))
    >>> m.compiles, m.logical_replica_count, m.largest_limits
    (True, 512, Limits(max_ids_per_partition=16240, max_unique_ids_per_partition=16240))
    >>> memory("tpu-v5p", 16, 16, Limits(16376, 16376)).compiles
    False
    """
    chip = find_target(target)
    sparsecores, width = count(sparsecores, "sparsecores", "memory"), count(width, "width", "memory")
    name, row, stands_in = _measured_program(op)
    tile_limit, fixed, note = _scratchpad(chip)
    note = "; ".join(filter(None, (stands_in, note)))
    rule = TileRule(tile_limit, fixed, name, sparsecores, width)
    ids = np.asarray(round8(limits.max_ids_per_partition), np.int64)
    unique = np.minimum(round8(limits.max_unique_ids_per_partition), ids, dtype=np.int64)
    chosen = int(rule.replication(unique, ids))
    f = abs(chosen) or REPLICATIONS[-1]
    rows = int(rule.unique_rows(unique, ids, f))
    replicas = sparsecores * f
    needed = int(rule.small_tile_bytes(unique, ids) if chosen < 0 else rule.tile_bytes(unique, ids, f))
    forward = name == "forward"
    guide = forward_stack_bytes if forward else backward_stack_bytes
    factor, more = (2, 8) if chosen < 0 else row  # of the second forward program, of the first or the update
    taken = 4 * (factor * round8(width) + more) * rows * replicas
    taken += 4 * int(ids) * sparsecores * forward  # one SparseCore's share of a COO buffer, four bytes each
    return SparseMemory(
        op=name,
        limits=limits,
        compiles=chosen != 0,
        reason=_reason(rule, chosen, needed, replicas, int(unique), int(ids)),
        logical_replica_count=replicas,
        unique_rows=rows,
        guide_bytes=guide(width, rows, replicas),
        stack_bytes=taken + (_FORWARD_EXTRA if forward and chosen >= 0 else _BACKWARD_EXTRA),
        tile_bytes=needed,
        tile_limit=tile_limit,
        basis="modelled" if note else "measured",
        note=note or f"rules measured ahead of time against {RULE_VERSION}",
        rule=rule,
    )


def _scratchpad(chip: Target) -> tuple[int, int, str]:
    """TileSpmem, the rule's constant, and a note where they are another chip's."""
    if chip.sparse is None:
        raise UsageError(f"{chip.name} has no SparseCores", where="memory", how="take one that has, such as tpu-v5p")
    if chip.sparse.tile_spmem_bytes:
        return chip.sparse.tile_spmem_bytes, chip.sparse.fixed_tile_bytes, ""
    units = [(t.sparse, t.name) for t in map(find_target, target_names()) if t.sparse and t.sparse.tile_spmem_bytes]
    least, name = min(units, key=lambda unit: unit[0].tile_spmem_bytes)
    note = f"TileSpmem of {chip.name} has not been measured: {name}'s {least.tile_spmem_bytes} bytes stand in"
    return least.tile_spmem_bytes, least.fixed_tile_bytes, note


def _measured_program(op: str | RowOptimizer) -> tuple[str, tuple[int, int], str]:
    """Name of an operation, the floats of its stack per row (factor of the width, and more), what stands in for it."""
    if isinstance(op, str) and op not in OPERATIONS:
        raise UsageError(f"unknown operation {op!r}", where="memory", how=f"one of {', '.join(OPERATIONS)}")
    name = op if isinstance(op, str) else short_name(op)
    if name in _STACK_ROW:
        return name, _STACK_ROW[name], ""
    slots = len((OPTIMIZERS[op]() if isinstance(op, str) else op).slots)
    like, beyond = _BY_SLOTS[min(slots, 2)], max(0, slots - 2)
    factor, more = _STACK_ROW[like]
    what = f"{like}'s with {2 * beyond} more floats" if beyond else f"{like}'s, which keeps as many slots,"
    note = f"the stack of an update with {name} has not been measured: {what} stands in"
    return name, (factor + 2 * beyond, more), note


def _reason(rule: TileRule, chosen: int, needed: int, replicas: int, unique: int, ids: int) -> str:
    if rule.width == 1:
        return "a width of 1 aborts the compiler; use 2 or more floats"
    if chosen < 0:
        return f"fits in the second forward program: {needed} of {rule.tile_limit} bytes a tile, {replicas} replicas"
    figures = f"{needed} + {SPARE} bytes a tile"
    if chosen:
        return f"fits: {figures} of {rule.tile_limit} at {replicas} replicas"
    if rule.op == "forward":
        row = 4 * (rule.width + 1) * unique
        error = f"Can't fit a single row. TileSpmem bytes: {rule.tile_limit}; Row bytes: {row}"
    else:
        fixed = int(rule.tile_bytes(np.asarray(unique), np.asarray(0), 1))
        error = (
            "E3001: CompileTimeSparseCoreInvalidReplicaCount: No viable logical replica count; "
            f"fixed_size_allocation_bytes = {fixed}, row_dependent_size_allocation_bytes = {12 * ids}, "
            f"total_spmem_size_bytes = {rule.tile_limit}"
        )
    return f"does not fit: {figures} of {rule.tile_limit} at {replicas} replicas, the most there are ({error})"


def live_stacks(stacks: int, serialized: int) -> int:
    """How many of a program's stacks are live at a time where ``serialized`` of them are processed in turn; with 0 all
    are, and with 1, which has its turn with the rest.

    >>> live_stacks(8, 0), live_stacks(8, 1), live_stacks(8, 3), live_stacks(8, 99)
    (8, 8, 6, 1)
    """
    return max(1, stacks - max(0, serialized - 1))
