"""Sums of many K rounds, added to the product registers at once, with the bits that one round after another gives.

Integers are added modulo 2^32, floats in the documented order, so it does not matter how many rounds come together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.conversions import NAN
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.execute.tensor import Roles, columns_of, factor_of, macs_counter
from tilewright.isa.kernels.records import ACCOUNTS, FILL, MM, REACH, TIMES, Record, address, longs
from tilewright.kernels.threads import in_pieces

Array = np.ndarray[Any, Any]
DEPTH = 1024
"""Elements of k that are added at once."""
_ALONE = 1 << 22
"""Products that one thread makes about as soon as others could come to help."""
_WIDE, _APART = 64, 64
"""Bytes that are multiplied at once, and those behind each row, so that rows do not meet in our own caches."""
_PIECE = 32
"""Rows of A that a thread of ours multiplies at a time."""


@dataclass(eq=False)
class _Side:
    """One factor's bytes as they came; bytes from row to row and from round to round."""

    bytes: Array
    pitch: int
    step: int
    rows: int


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as they came, k of many rounds one behind the other.

    All ``mm`` that add to the same registers in the same way have them together. ``shared``: what their records say
    alike; ``sides``: A's and B's bytes; ``presents``: elements present in each round; ``fill``: how
    far they are filled. ``keep``: the threads that keep sums. ``columns``: part and index of each, and which are on in
    all these rounds; ``known``: of the last such set (:meth:`_on`).
    """

    shared: Record
    sides: tuple[_Side, _Side]
    presents: Array
    fill: Record
    keep: Array
    columns: tuple[Array, Array, Array]
    first: int
    types: tuple[str, str]
    bytes: bool
    chunk: int
    kb: int
    wanted: bool = True
    retaining: bool = True
    known: tuple[Any, list[Array], bool] | None = None

    @classmethod
    def of(cls, pe: Pe, roles: Roles, room: dict[str, Array]) -> Sums:
        """Buffers and numbers for ``mm`` with every column on.

        ``room``: memory of both factors, for all the sums of a program: no two of them wait at a time.
        """
        c = pe.config
        rows, ka, kb, row_stride, a_stride, b_stride, keeper = roles.groups
        n, e, width = roles.columns, roles.segment.element_bytes, kb * roles.chunk
        rounds = max(1, DEPTH // width)
        part, index, order = (table.astype(np.int64) for table in columns_of(c.ka_split, n, ka))
        active, presents = np.ones(n, bool), np.zeros(rounds, np.int64)
        step_cycles = c.step_cycles(e, kb)
        a = _side(room, "A", ka * rows, width * e, rounds)
        b = _side(room, "B", ka * roles.local, width * e, rounds)
        fill = Record(FILL, {"k": 0, "rounds": 0, "columns": -1, "steps": 0})
        values: dict[str, Any] = {"depth": roles.depth, "element_bytes": e, "width": width, "columns": n}
        values |= {"floats": roles.type_a[0] not in "su", "bypasses": c.retention == "bypass"}
        values |= {"chunk": roles.chunk, "first": roles.first, "local": roles.local}
        values |= {"rows": rows, "ka": ka, "kb": kb, "first_thread": c.first_compute}
        values |= {"row_stride": row_stride, "a_stride": a_stride, "b_stride": b_stride, "step_cycles": step_cycles}
        values |= {"a_registers": c.a_registers, "a_reads": c.a_registers_read(e, kb), "bcast_depth": c.bcast_depth}
        values |= {"per_step": c.columns_per_step, "fill": fill}
        values["timing"] = pe.clock.line_times(step_cycles, c.column_cycles(e, kb))
        values |= {"part": part, "index": index, "order": order, "active": active, "on": np.ones(n, bool)}
        values |= {"presents": presents, "rounds": rounds}
        values |= {"reach": np.zeros(n, REACH.dtype), "times": np.zeros(1, TIMES.dtype)}
        values |= longs(sequence=np.zeros(n, np.int64), step_of=np.zeros(n, np.int64), begins=np.zeros(2 * n, np.int64))
        values |= longs(out=np.zeros((n, 3), np.int64), deep=np.zeros(n * roles.depth, np.int64)) | {"deep_count": 0}
        values |= {"macs": ACCOUNTS.places[macs_counter(roles.type_a)]}
        for name, side in (("a", a), ("b", b)):
            values |= {f"{name}_bytes": side.bytes, f"{name}_pitch": side.pitch, f"{name}_step": side.step}
            values[f"{name}_rows"] = side.rows
        keep = np.arange(rows)[:, None] * row_stride + np.arange(ka) * a_stride + keeper * b_stride + c.first_compute
        types = (roles.type_a, roles.type_b)
        return cls(
            Record(MM, dict.fromkeys(MM.names, 0) | values),
            (a, b),
            presents,
            fill,
            keep,
            (part, index, active),
            roles.first,
            types,
            {*types} <= {"s8", "u8"},
            roles.chunk,
            kb,
            wanted=c.values,
            retaining=c.retention != "off",
        )

    @property
    def at(self) -> int:
        """Where the kernel finds ``fill``."""
        return address(self.fill.numbers, np.int64)

    def record(self, segment: Segment, dim: int, store: Array) -> Record:
        """What the kernel is told of an ``mm`` over this segment along this dim; ``store``: the chip's memory."""
        storage, table = segment.storage, segment.table
        retains = dim == 1 and self.retaining
        if retains:
            segment.await_all()
        values: dict[str, Any] = {"dim": dim, "retains": retains, "dims": len(segment.sizes), "store": store}
        values |= longs(sizes=segment.sizes, starts=segment.starts, phys=table.phys)
        values |= longs(pages_of=storage.pages_of, offsets_of=storage.offsets_of)
        values |= {"in_l2": table.in_l2, "page_elements": segment.map.page_elements}
        values |= {"line_shift": (segment.map.line_elements * segment.element_bytes).bit_length() - 1}
        values |= {"selected": segment.selected, "awaited": segment.awaited, "at_first": segment.at_first}
        values |= {"walk": segment.walk, "elements": len(segment.selected), "lines": len(segment.awaited)}
        return Record(MM, values | {"inside": int(segment.sizes.prod())}, like=self.shared)

    def add(self, file: tuple[Any, ...]) -> None:
        """Add what the buffers hold to the registers (``Pe.words``)."""
        if self.wanted and self.fill["rounds"] > 0:
            self._add(file)
        self.begin()

    def begin(self) -> None:
        """Nothing waits to be added."""
        self.fill["k"] = self.fill["rounds"] = 0

    def _add(self, file: tuple[Any, ...]) -> None:
        index, k, rounds = self.columns[1], self.fill["k"], self.fill["rounds"]
        rows, ka = self.keep.shape
        on, runs = self._on()
        if self.bytes and runs:
            self._add_bytes(file, on)
            return
        a, b = (self._values(side, k) for side in (0, 1))
        c = len(b) // ka
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            at = index[mine] + self.first
            some = slice(int(at[0]), int(at[-1]) + 1) if runs else at
            keep = self.keep[:, qa]
            factors = a[qa * rows : (qa + 1) * rows], b[qa * c + index[mine]]
            target = (_slice(keep), some) if runs else (keep[:, None], at)
            registers = file[0]
            registers[target] = self._added(registers[target], *factors, rounds)

    def _on(self) -> tuple[list[Array], bool]:
        """The columns of each part that are on, and whether each part's follow one another."""
        part, index, active = self.columns
        now = active.tobytes()
        if self.known is None or self.known[0] != now:
            on = [np.flatnonzero(active & (part == qa)) for qa in range(self.keep.shape[1])]
            self.known = now, on, all(len(mine) == np.ptp(index[mine]) + 1 for mine in on if len(mine))
        return self.known[1:]

    def _add_bytes(self, file: tuple[Any, ...], on: list[Array]) -> None:
        """Products of bytes, k of many rounds at once, to the registers; ``on``: the columns of each part."""
        from tilewright.isa.kernels.byte_kernels import add_products

        depth = -(-self.fill["rounds"] * self.sides[0].step // _WIDE) * _WIDE
        (rows, ka), (a, b) = self.keep.shape, (self._numbers(side, depth) for side in (0, 1))
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            low, keep = int(self.columns[1][mine[0]]), self.keep[:, qa]
            begin = qa * (len(b) // ka) + low
            left, right = a[qa * rows : (qa + 1) * rows], b[begin : begin + len(mine)]
            place = int(keep[0]), int(keep[1] - keep[0]) if rows > 1 else 1, self.first + low

            shared = rows * len(mine) * depth > _ALONE
            size = _PIECE if shared else rows

            def add(piece: int, size: int = size, left: Array = left, right: Array = right, place: Any = place) -> None:
                piece_of = piece * size, min(piece * size + size, rows)
                add_products(left, right, depth, piece_of, file[3], file[2] >> 2, place)

            in_pieces(add, -(-rows // size), None if shared else 1)
            if self.types != ("s8", "s8"):
                registers = _slice(keep), slice(place[2], place[2] + len(mine))
                file[0][registers] += self._lessened(left[:, :depth], right[:, :depth])

    def _numbers(self, side: int, depth: int) -> Array:
        """[rows, ``depth`` and more] of A (0) or B (1), bytes with a sign: those without are 128 less."""
        factor = self.sides[side]
        raw = factor.bytes.reshape(factor.rows, factor.pitch)
        raw[:, self.fill["rounds"] * factor.step : depth] = 0
        if self.types[side] == "u8":
            raw[:, :depth] ^= 128
        return raw.view(np.int8)

    def _lessened(self, a: Array, b: Array) -> Array:
        """What products of bytes that are 128 less lack: (a + 128) b = a b + 128 b."""
        lacks, depth = np.zeros((len(a), len(b)), np.int32), a.shape[1]
        if self.types[0] == "u8":
            lacks += 128 * b.sum(axis=1, dtype=np.int32)
        if self.types[1] == "u8":
            lacks += 128 * a.sum(axis=1, dtype=np.int32)[:, None]
        return lacks + (16384 * depth if self.types == ("u8", "u8") else 0)

    def _values(self, side: int, k: int) -> Array:
        """[rows, k] of A (0) or B (1) as what is multiplied."""
        factor, dtype = self.sides[side], self.types[side]
        raw = factor.bytes.reshape(factor.rows, factor.pitch)
        return factor_of(raw.view(f"u{numpy_type(dtype).itemsize}")[:, :k], dtype)

    def _added(self, sums: Array, a: Array, b: Array, rounds: int) -> Array:
        from tilewright.isa.kernels.value_kernels import add_rounds, add_words

        sums, a, b = (np.ascontiguousarray(each) for each in (sums, a, b.T))
        if self.types[0][0] in "su":
            add_words(sums, a, b)
            return sums
        values = sums.view(np.float32)
        add_rounds(values, a, b, self.presents[:rounds], self.chunk, self.kb)
        sums[np.isnan(values)] = NAN
        return sums


def _side(room: dict[str, Array], name: str, rows: int, length: int, rounds: int) -> _Side:
    """Room for ``rounds`` times ``rows`` rows of ``length`` bytes."""
    pitch = -(-length * rounds // _WIDE) * _WIDE + _APART
    size = rows * pitch
    if name not in room or len(room[name]) < size:
        room[name] = np.empty(size, np.uint8)
    return _Side(room[name][:size], pitch, length, rows)


def _slice(numbers: Array) -> Any:
    """Equally spaced numbers as a slice."""
    if len(numbers) == 1:
        return slice(int(numbers[0]), int(numbers[0]) + 1)
    step = int(numbers[1] - numbers[0])
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step)
