"""Sums of many K rounds, added to the product registers at once, with the bits that one round after another gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa._loop_codes import KINDS
from tilewright.isa._program import Instruction
from tilewright.isa._roles import Roles, columns_of
from tilewright.isa._state import Pe

__all__ = ["Sums"]

Array = np.ndarray[Any, Any]
DEPTH = 1024
"""Elements of k that are added at once."""
_APART = 16
"""Words behind each row, so that rows do not meet in our own caches."""
EXACT = 1 << 24
"""Integers up to this are float32 numbers, and so are their sums as long as those are."""


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as words, k of many rounds one behind the other.

    ``arguments``: the kernel's; ``buffers``: A, B, elements present in each round, (k, rounds) filled so far.
    ``active``: columns that are on in all of these rounds.
    """

    arguments: tuple[Any, ...]
    buffers: tuple[Array, Array, Array, Array]
    keep: Array
    part: Array
    index: Array
    active: Array
    first: int
    kind: str
    exact: bool
    chunk: int
    kb: int

    @classmethod
    def none(cls) -> Sums:
        """For a loop without an ``mm``."""
        one, grid = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
        flags = np.zeros(1, bool)
        walked = (grid, grid.copy(), np.zeros((1, 3), np.int64), flags.copy())
        addresses = ((one, one), (one, one), (1, 1, one), flags, 0, (1, 1, 1, 1, 1, 1, 1))
        scratch = (grid, one, np.zeros((1, 3), np.int64), one, one, one, one)
        retention = (np.zeros(0, np.uint8), np.zeros(0, np.int32))
        columns = (one, one, one, flags)
        arguments = (np.zeros(24, np.int64), columns, walked, addresses, retention, scratch)
        words = np.zeros((1, 1), np.int32)
        buffers = (words, words, one.copy(), np.zeros(2, np.int64))
        return cls(arguments, buffers, grid, one, one, flags, 0, "integer", True, 1, 1)

    @classmethod
    def of(cls, pe: Pe, roles: Roles, mm: Instruction) -> Sums:
        """Buffers and numbers for one ``mm``, every column of it on."""
        c, clock, segment = pe.config, pe.clock, roles.segment
        rows, ka, kb, rs, as_, bs, keeper = roles.groups
        n, width, e = roles.columns, kb * roles.chunk, segment.element_bytes
        floats = roles.type_a[0] not in "su"
        largest = [2 ** (8 * e) if kind[0] == "u" else 2 ** (8 * e - 1) for kind in (roles.type_a, roles.type_b)]
        exact_depth = EXACT // (largest[0] * largest[1])
        exact = floats or exact_depth >= width
        depth = DEPTH if floats or not exact or e > 1 else min(DEPTH, exact_depth)
        rounds = max(1, depth // width)
        walks = mm.suffix("t") == "1"
        if walks:
            segment.await_all()
        numbers = (
            *(roles.first, roles.a, roles.depth, roles.chunk, KINDS.index(roles.type_a), KINDS.index(roles.type_b), e),
            *(floats, rows, ka, kb, rs, as_, bs, c.first_compute),
            *(int(walks), c.columns_per_step, c.a_registers, c.a_registers_read(e, kb), c.bcast_depth),
            *(c.step_cycles(e, kb), roles.local, walks, c.retention == "bypass"),
        )
        part, index, order = columns_of(c.ka_split, n, ka)
        active = np.ones(n, bool)
        grid = np.zeros((n, width), np.int64)
        walked = (grid, grid.copy(), np.zeros((n, 3), np.int64), np.ones(n, bool))
        line = c.line_bytes * clock.share
        buses = (-(-line // c.l2_bytes_per_cycle), -(-line // c.dram_bytes_per_cycle))
        step = c.step_cycles(e, kb)
        times = (c.l1_ports, c.l1_latency, c.l2_latency, c.dram_latency, *buses, step)
        storage = segment.storage
        pages = (segment.map.page_elements, e, segment.table.phys)
        shift = segment.map.line_elements.bit_length() - 1
        tables = (storage.pages_of, storage.offsets_of)
        addresses = ((segment.sizes, segment.starts), tables, pages, segment.table.in_l2, shift, times)
        rows_of, numbers_of = np.zeros((n, 3), np.int64), [np.zeros(n, np.int64) for _ in range(3)]
        scratch = (np.zeros((n, len(segment.sizes)), np.int64), numbers_of[0], rows_of, *numbers_of[1:])
        times_and_totals = (np.zeros(3, np.int64), np.zeros(4, np.int64))
        columns = (part.astype(np.int64), index.astype(np.int64), order.astype(np.int64), active)
        retention = (segment.selected, segment.awaited)
        arguments = (
            np.array(numbers, np.int64),
            columns,
            walked,
            addresses,
            retention,
            (*scratch, *times_and_totals),
        )
        buffers = (
            np.zeros((ka * rows, rounds * width + _APART), np.int32),
            np.zeros((ka * roles.local, rounds * width + _APART), np.int32),
            np.zeros(rounds, np.int64),
            np.zeros(2, np.int64),
        )
        threads = np.arange(rows)[:, None] * rs + np.arange(ka) * as_ + keeper * bs + c.first_compute
        kind = "float" if floats else "word" if e == 4 else "integer"
        return cls(
            arguments, buffers, threads, part, index, active, roles.first, kind, exact and e == 1, roles.chunk, kb
        )

    def add(self, registers: Array) -> bool:
        """Add what the buffers hold; False if that was nothing."""
        a, b, presents, fill = self.buffers
        k, rounds = fill.tolist()
        if rounds == 0:
            return False
        (rows, ka), c = self.keep.shape, len(b) // self.keep.shape[1]
        for qa in range(ka):
            mine = np.flatnonzero(self.active & (self.part == qa))
            if not len(mine):
                continue
            at = self.index[mine] + self.first
            low, high = int(at.min()), int(at.max()) + 1
            some = slice(low, high) if high - low == len(mine) else at
            keep = self.keep[:, qa]
            target = (keep[:, None], at) if not isinstance(some, slice) else (keep, some)
            columns = b[qa * c + self.index[mine], :k] if len(mine) < c else b[qa * c : qa * c + c, :k]
            factors = a[qa * rows : (qa + 1) * rows, :k]
            registers[target] = self._added(registers[target], factors, columns, presents[:rounds])
        fill[:] = 0
        return True

    def _added(self, sums: Array, a: Array, b: Array, presents: Array) -> Array:
        if self.kind == "integer":
            dtype = np.float32 if self.exact else np.float64
            products: Array = np.matmul(a.astype(dtype), b.astype(dtype).T).astype(np.int64).astype(np.int32)
            return sums + products
        from tilewright.isa._value_kernels import add_rounds, add_words

        sums, b = np.ascontiguousarray(sums), np.ascontiguousarray(b.T)
        if self.kind == "word":
            add_words(sums, a, b)
            return sums
        add_rounds(sums.view(np.float32), a.view(np.float32), b.view(np.float32), presents, self.chunk, self.kb)
        return sums
