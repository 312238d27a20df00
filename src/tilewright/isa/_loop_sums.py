"""Sums of many K rounds, added to the product registers at once, with the bits that one round after another gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.isa._addresses import Block, longs
from tilewright.isa._floats import NAN
from tilewright.isa._program import Instruction
from tilewright.isa._roles import Roles, columns_of
from tilewright.isa._scratch import scratch
from tilewright.isa._state import Pe

__all__ = ["Sums"]

Array = np.ndarray[Any, Any]
DEPTH = 1024
"""Elements of k that are added at once."""
_APART = 64
"""Bytes behind each row, so that rows do not meet in our own caches."""
EXACT = 1 << 24
"""Integers up to this are float32 numbers, and so are their sums as long as those are."""


_VALUES = {"f16": np.float16, "f32": np.float32}


@dataclass(eq=False)
class _Side:
    """One factor's bytes as they came, the same as words, and bytes from row to row and round to round, and rows."""

    bytes: Array
    words: Array
    shape: tuple[int, int, int]


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as they came, k of many rounds one behind the other.

    ``block``: what the kernel is told of the ``mm``; ``sides``: A's and B's bytes; ``presents``: elements present in
    each round; ``fill``: (k, rounds) filled so far and (columns, steps) of a round. ``columns``: part, index and order
    of each, and which are on in all these rounds.
    """

    block: Block
    sides: tuple[_Side, _Side]
    presents: Array
    fill: Array
    keep: Array
    columns: tuple[Array, Array, Array, Array]
    first: int
    types: tuple[str, str]
    exact: bool
    chunk: int
    kb: int
    values: bool = True

    @classmethod
    def of(cls, pe: Pe, roles: Roles, mm: Instruction) -> Sums:
        """Buffers and numbers for one ``mm``, every column of it on."""
        c, segment = pe.config, roles.segment
        rows, ka, kb, rs, as_, bs, keeper = roles.groups
        n, e, width, dim = roles.columns, segment.element_bytes, kb * roles.chunk, int(mm.suffix("t") or 0)
        exact, rounds = _rounds(roles, width)
        walks = mm.suffix("t") == "1"
        if walks:
            segment.await_all()
        shift, bypass = (segment.map.line_elements * e).bit_length() - 1, c.retention == "bypass"
        walk = (roles.depth, e, roles.type_a[0] not in "su", dim, segment.map.page_elements, width, shift)
        gather = (roles.a, roles.chunk, rows, ka, kb, rs, as_, bs, c.first_compute)
        timing = (roles.first, roles.local, c.columns_per_step, c.a_registers, c.a_registers_read(e, kb))
        part, index, order = (each.astype(np.int64) for each in columns_of(c.ka_split, n, ka))
        active, on = np.ones(n, bool), np.ones(n, bool)
        storage, table = segment.storage, segment.table
        tables = longs(segment.sizes, segment.starts, storage.pages_of, storage.offsets_of, table.phys)
        retention = segment.selected, segment.awaited
        found = (np.zeros((n, 7), np.int64), on, np.zeros((n, 3), np.int64), *np.zeros((2, n), np.int64))
        found += np.zeros(3, np.int64), np.zeros(4, np.int64), np.zeros((n, 2), np.int64)
        sides = _side("A", ka * rows, width * e, rounds), _side("B", ka * roles.local, width * e, rounds)
        presents, fill = np.zeros(rounds, np.int64), np.array([0, 0, -1, 0])
        block = Block(
            *(*walk, walks, bypass, *gather, *timing, c.bcast_depth, c.step_cycles(e, kb)),
            *(n, part, index, order, active, *tables, table.in_l2, len(segment.sizes)),
            *(pe.chip.store, *retention, *found, _times(pe, c.step_cycles(e, kb))),
            *(part_ for side in sides for part_ in (side.bytes, *side.shape)),
            *(presents, rounds, *longs(fill)),
        )
        keep = np.arange(rows)[:, None] * rs + np.arange(ka) * as_ + keeper * bs + c.first_compute
        columns, types = (part, index, order, active), (roles.type_a, roles.type_b)
        return cls(
            *(block, sides, presents, fill, keep, columns, roles.first, types, exact, roles.chunk, kb), values=c.values
        )

    def add(self, file: tuple[Any, ...]) -> bool:
        """Add what the buffers hold to the registers (``Pe.words``); False if that was nothing."""
        part, index, _, active = self.columns
        k, rounds = self.fill[:2].tolist()
        if rounds == 0:
            return False
        if not self.values:
            self.fill[:2] = 0
            return True
        rows, ka = self.keep.shape
        a, b = (self._values(side, k) for side in (0, 1))
        c = len(b) // ka
        for qa in range(ka):
            mine = np.flatnonzero(active & (part == qa))
            if not len(mine):
                continue
            at = index[mine] + self.first
            low, high = int(at.min()), int(at.max()) + 1
            some = slice(low, high) if high - low == len(mine) else at
            keep = self.keep[:, qa]
            columns = b[qa * c + index[mine]] if len(mine) < c else b[qa * c : qa * c + c]
            factors = a[qa * rows : (qa + 1) * rows], columns
            if self.exact and isinstance(some, slice):
                self._add_exact(file, keep, low, *factors)
                continue
            target = (keep[:, None], at) if not isinstance(some, slice) else (_slice(keep), some)
            registers = file[0]
            registers[target] = self._added(registers[target], *factors, rounds)
        self.fill[:2] = 0
        return True

    @property
    def words(self) -> bool:
        """32-bit integers."""
        return self.types[0][0] in "su" and self.types[0][1:] == "32"

    def _rows(self, side: int) -> Array:
        """Bytes [rows, k and more] of A (0) or B (1)."""
        raw, (pitch, step, rows) = self.sides[side].bytes, self.sides[side].shape
        if step < pitch:
            return cast(Array, raw.reshape(rows, pitch))
        words = raw[: int(self.fill[1]) * step].view(np.int64).reshape(-1, rows, pitch // 8)
        return np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(rows, -1).view(np.uint8)

    def _spread(self, side: int, k: int) -> Array:
        """[rows, k] of bytes, as float32 in the order [k, rows]."""
        from tilewright.isa._value_kernels import spread_bytes

        words, (_, step, rows) = self.sides[side].words, self.sides[side].shape
        out = scratch(f"values {side}", k * rows, np.float32).reshape(k, rows)
        rounds = int(self.fill[1])
        spread_bytes(words[: rounds * step // 4].reshape(rounds, rows, -1), self.types[side][0] == "s", out)
        return out.T

    def _values(self, side: int, k: int) -> Array:
        """[rows, k] of A (0) or B (1) as what is multiplied."""
        if self.exact and self.sides[0].shape[0] < self.sides[0].shape[1]:
            return self._spread(side, k)
        raw, dtype = self._rows(side), self.types[side]
        if self.words:
            found: Array = raw.view(np.int32)[:, :k]
        elif dtype == "bf16":
            found = (raw.view(np.uint16)[:, :k].astype(np.uint32) << 16).view(np.float32)
        elif dtype in _VALUES:
            found = raw.view(_VALUES[dtype])[:, :k].astype(np.float32, copy=False)
        else:
            words = raw.view(f"{'i' if dtype[0] == 's' else 'u'}{int(dtype[1:]) // 8}")
            found = words[:, :k].astype(np.float32 if self.exact else np.float64)
        return found

    def _add_exact(self, file: tuple[Any, ...], keep: Array, first: int, a: Array, b: Array) -> None:
        """Add a float32 product that has no error to the registers from ``first`` of the threads ``keep``."""
        from tilewright.isa._value_kernels import add_product

        products = scratch("products", len(a) * len(b), np.float32).reshape(len(a), len(b))
        np.matmul(a, b.T, out=products)
        step = int(keep[1] - keep[0]) if len(keep) > 1 else 1
        add_product(products, file[3], file[2] >> 2, int(keep[0]), step, first)

    def _added(self, sums: Array, a: Array, b: Array, rounds: int) -> Array:
        if self.types[0][0] in "su" and not self.words:
            products: Array = np.matmul(a, b.T)
            return sums + (products if self.exact else products.astype(np.int64)).astype(np.int32)
        from tilewright.isa._value_kernels import add_rounds, add_words

        sums, b = np.ascontiguousarray(sums), np.ascontiguousarray(b.T)
        if self.words:
            add_words(sums, a, b)
        else:
            values = sums.view(np.float32)
            add_rounds(values, a, b, self.presents[:rounds], self.chunk, self.kb)
            sums[np.isnan(values)] = NAN
        return sums


def _rounds(roles: Roles, width: int) -> tuple[bool, int]:
    """Whether a float32 product of integers is exact, and how many rounds of ``width`` are added together."""
    if roles.type_a not in ("s8", "u8"):
        return False, max(1, DEPTH // width)
    largest = [255 if kind[0] == "u" else 128 for kind in (roles.type_a, roles.type_b)]
    depth = EXACT // (largest[0] * largest[1])
    exact = depth >= width
    return exact, max(1, (min(DEPTH, depth) if exact else DEPTH) // width)


def _side(name: str, rows: int, length: int, rounds: int) -> _Side:
    """Room for ``rounds`` times ``rows`` rows of ``length`` bytes."""
    # Round behind round, where they are made of words of 8 bytes; else row behind row.
    behind = length % 8 == 0
    shape = (length, length * rows, rows) if behind else (-(-length * rounds // 4) * 4 + _APART, length, rows)
    raw = scratch(f"bytes of {name}", rounds * shape[1] if behind else rows * shape[0], np.uint8)
    return _Side(raw, raw.view(np.int32), shape)


def _times(pe: Pe, step: int) -> Array:
    """What the issue model takes, int64[7]."""
    c, line = pe.config, pe.config.line_bytes * pe.clock.share
    buses = (-(-line // c.l2_bytes_per_cycle), -(-line // c.dram_bytes_per_cycle))
    return np.array([c.l1_ports, c.l1_latency, c.l2_latency, c.dram_latency, *buses, step], np.int64)


def _slice(numbers: Array) -> Any:
    """Equally spaced numbers as a slice."""
    if len(numbers) == 1:
        return slice(int(numbers[0]), int(numbers[0]) + 1)
    step = int(numbers[1] - numbers[0])
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step)
