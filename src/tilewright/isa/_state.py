"""The machine's whole state, as plain dataclasses: the chip, and one processing element."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._caches import Cache
from tilewright.isa._clock import Clock
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._dma import Dma
from tilewright.isa._errors import ErrorRecord, MatrixUnitError
from tilewright.isa._fresh import fresh_zeros
from tilewright.isa._program import Instruction
from tilewright.isa._segments import Segment, whole_segment
from tilewright.isa._show import same_state, show_chip, show_pe
from tilewright.isa._storage import Storage, make_storage

__all__ = ["POISON", "Chip", "Pe", "new_chip", "wrap"]

Array = np.ndarray[Any, Any]
POISON = 0x7FC0DEAD
"""What registers hold at first with ``uninitialized='poison'``: a NaN, and a number no one computes."""

_APART = 16


def _zeros(array: Array) -> bool:
    """Whether it is one zero, broadcast: what new memory holds anyway."""
    return not any(array.strides) and not any(array.flat[:1].tobytes())


def wrap(value: int) -> int:
    """A Python integer as a signed 32-bit one."""
    return (int(value) + 2**31) % 2**32 - 2**31


@dataclass(eq=False)
class Chip:
    """What the processing elements share.

    ==================  ================================================================================
    ``store``           bytes: L2's pages (up to ``l2_end``), then device memory
    ``storages``        what stands in device memory, by name; each has its page table
    ``l2_pages``        bytes taken in L2, by first byte
    ``l2``              the second-level cache of lines in device memory
    ``dma``             the controller, and every transfer so far
    ==================  ================================================================================
    """

    config: MatrixUnitConfig
    store: Array
    l2: Cache
    dma: Dma
    storages: dict[str, Storage] = field(default_factory=dict)
    l2_pages: dict[int, int] = field(default_factory=dict)
    pes: list[Pe] = field(default_factory=list)

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __str__ = show_chip

    @property
    def l2_end(self) -> int:
        """The first byte of device memory in ``store``."""
        return self.config.l2_bytes // self.config.line_bytes * self.config.line_bytes

    def view(self, dtype: Any) -> Array:
        """The store as elements of another type."""
        return self.store.view(dtype)

    @property
    def words(self) -> tuple[Array, Array]:
        """The store as int32 words and as bytes."""
        return self.store.view(np.int32), self.store

    def add(self, name: str, array: Array, **how: Any) -> Storage:
        """Reserve device memory for a tensor's pages and fill it; no page has an entry yet."""
        return self.add_all([(name, array, how)])[0]

    def add_all(self, tensors: list[tuple[str, Array, dict[str, Any]]]) -> list[Storage]:
        """:meth:`add` for several at once (name, array, options of :func:`make_storage`)."""
        added, end = [], len(self.store)
        for name, array, how in tensors:
            added.append(make_storage(name, array, end, self.config.line_bytes, **how))
            end += added[-1].total_bytes
        try:
            store = fresh_zeros(end, np.uint8, filled=True)
            for storage, (_, array, _) in zip(added, tensors, strict=True):
                if not _zeros(array):
                    into = store[storage.home : storage.home + storage.total_bytes]
                    storage.map.pack(array, out=into.view(storage.map.numpy_dtype))
        except (MemoryError, ValueError):  # ValueError: more than an address can count
            what = f"no room for {end - self.l2_end} bytes of device memory"
            raise UsageError(what, how="give smaller tensors or pages") from None
        for begin, size in self.l2_pages.items():  # what no page stands in is not touched: zeros cost nothing
            store[begin : begin + size] = self.store[begin : begin + size]
        store[self.l2_end : len(self.store)] = self.store[self.l2_end :]
        self.store = store
        for storage in added:
            self._enter(storage)
        return added

    def _enter(self, storage: Storage) -> None:
        """A storage becomes one of the chip's, and a segment of every processing element."""
        self.storages[storage.name] = storage
        lines = len(self.store) // self.config.line_bytes
        for cache in (self.l2, *(pe.l1 for pe in self.pes)):
            cache.grow(lines)
        for pe in self.pes:
            pe.names[storage.name] = pe.add_segment(whole_segment(storage, 0, storage.name))

    def room(self, size: int) -> int | None:
        """The first byte of a free stretch of L2 (first fit), or None."""
        at = 0
        for begin, taken in sorted(self.l2_pages.items()):
            if begin - at >= size:
                return at
            at = begin + taken
        return at if self.l2_end - at >= size else None

    def forget(self, begin: int, size: int) -> None:
        """Lines of the caches that held what was at these bytes are no longer that."""
        from tilewright.isa._traffic_kernels import drop_lines

        line = self.config.line_bytes
        for pe in self.pes:
            drop_lines(begin // line, (begin + size) // line, pe.l1.arrays())


@dataclass(eq=False)
class Pe:
    """One processing element.

    ==================  ================================================================================
    ``registers``       int32[threads, registers]: per-thread, raw 32-bit words
    ``file``            the same with a few words behind every thread's, so that threads do not meet in our own caches
    ``predicates``      bool[threads, predicates]
    ``uniform``         uniform registers, signed 32-bit Python integers
    ``columns``         columns of an mm; ``rows``: active rows, None for as many as fit (``setmm``)
    ``segments``        descriptors by handle; ``names``: handles by the host's names
    ``written``         bool[threads, registers] with ``uninitialized='poison'``: registers something was put in
    ``l1``              the first-level cache; ``clock``: tokens and time
    ``next_pc``         where the running instruction sends the program
    ``barrier``         the barrier it waits at (its number, and the pc), or None
    ``heat``            of a profile: accesses to every line of every storage, by name; else None
    ``known``           what instructions executed before read, write and take
    ==================  ================================================================================
    """

    number: int
    chip: Chip
    config: MatrixUnitConfig
    file: Array
    predicates: Array
    uniform: list[int]
    columns: int
    l1: Cache
    clock: Clock
    segments: dict[int, Segment] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    rows: int | None = None
    written: Array | None = None
    pc: int = 0
    next_pc: int = 0
    halted: bool = True
    barrier: tuple[int, int] | None = None
    executed: int = 0
    counts: Counts = field(default_factory=Counts)
    traffic: Traffic = field(default_factory=Traffic)
    errors: list[ErrorRecord] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    heat: dict[str, Array] | None = field(default=None, compare=False)
    known: dict[int, tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __str__ = show_pe

    @classmethod
    def of(cls, number: int, chip: Chip, tracing: bool) -> Pe:
        """A processing element at rest: all registers 0 (or poisoned), L1 empty, the chip's storages as segments."""
        c = chip.config
        poison = c.uninitialized == "poison"
        file = fresh_zeros(c.threads * (c.registers + _APART), np.int32, filled=True).reshape(c.threads, -1)
        if poison:
            file[:] = POISON
        lines = len(chip.store) // c.line_bytes
        pe = cls(
            number=number,
            chip=chip,
            config=c,
            file=file,
            predicates=np.zeros((c.threads, c.predicates), bool),
            uniform=[0] * c.uniform_registers,
            columns=c.default_columns,
            l1=Cache.of(lines, c.l1_bytes // c.line_bytes, c.l1_ways),
            clock=Clock(c, tracing, f"PE {number}"),
            written=np.zeros((c.threads, c.registers), bool) if poison else None,
        )
        for storage in chip.storages.values():
            pe.names[storage.name] = pe.add_segment(whole_segment(storage, 0, storage.name))
        return pe

    @property
    def registers(self) -> Array:
        """int32[threads, registers]."""
        return self.file[:, : self.config.registers]

    @property
    def words(self) -> tuple[Array, Array, int, Array]:
        """All registers as int32[threads, words] and as bytes, the bytes of a thread's, and the words flat."""
        return self.file, self.file.view(np.uint8).reshape(-1), self.file.strides[0], self.file.reshape(-1)

    def add_segment(self, segment: Segment) -> int:
        """Give a descriptor the next free handle."""
        segment.handle = max(self.segments, default=0) + 1
        self.segments[segment.handle] = segment
        return segment.handle

    def segment(self, register: int) -> Segment | None:
        """The segment whose handle a uniform register holds."""
        return self.segments.get(self.uniform[register])

    def mark_written(self, first: int, count: int, on: Any) -> None:
        """Something was put in these registers (of the threads ``on``)."""
        if self.written is not None:
            self.written[on, first : first + count] = True

    def record(self, instruction: Instruction, found: list[tuple[str, int, int]]) -> None:
        """Add (kind, column, register) records; ``on_error`` decides what else happens, after the work in range."""
        if not found:
            return
        text = str(instruction)
        records = [ErrorRecord(self.pc, text, kind, column, register, self.number) for kind, column, register in found]
        self.errors += records
        first, more = records[0], f" (and {len(records) - 1} more)" if len(records) > 1 else ""
        if self.config.on_error == "raise":
            raise MatrixUnitError(f"{first}{more}", records=tuple(records), how="on_error='record' keeps going")
        if self.config.on_error == "warn":
            warnings.warn(f"{first}{more}", RuntimeWarning, stacklevel=2)


def new_chip(config: MatrixUnitConfig, tracing: bool = False) -> Chip:
    """A chip at rest, with its processing elements and nothing in device memory."""
    c = config
    lines = c.l2_bytes // c.line_bytes
    try:
        store = fresh_zeros(lines * c.line_bytes, np.uint8)
    except (MemoryError, ValueError):
        raise UsageError(f"no room for {c.l2_bytes} bytes of L2", how="give a smaller l2_bytes") from None
    chip = Chip(c, store, Cache.of(lines, lines, c.l2_ways), Dma(c))
    chip.pes = [Pe.of(number, chip, tracing) for number in range(c.pes)]
    return chip
