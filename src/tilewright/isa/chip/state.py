"""The machine's whole state, as plain dataclasses: the chip, and one processing element."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.clock import Clock, MemoryPort
from tilewright.isa.chip.segments import (
    ABSENT,
    LOADED,
    LOADING,
    PageTable,
    Segment,
    Storage,
    make_storage,
    whole_segment,
)
from tilewright.isa.kernels.records import CACHE, WINDOWS
from tilewright.isa.language.config import DRAMS, MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.errors import Array, ErrorRecord, Faults, MatrixUnitError
from tilewright.isa.language.program import Instruction
from tilewright.render.formats import first_rows

# Caches of lines as arrays which the traffic kernels walk: LRU sets, with lines that a ``t1`` walk retains.

_AT, _HEAD = CACHE.places, len(CACHE.names)
LARGE = 1 << 20
"""Cells from which a cache is touched here and there only, and clearing all of it would cost more."""
SPARE = 1 << 13
"""Cells behind a new cache, for memory that is added; they cost nothing until then."""


@dataclass(eq=False)
class Cache:
    """One level; a touch costs about the same however many lines there are.

    Every slot has a stamp: the later, the more recent, from 1; a bit above all others says that its line is retained.
    The victim in a set is the smallest stamp. One set of all lines would be long to search, so victims queue: all slots
    in the order of their stamps, once; the next victim is the next that was not touched since, and a queue that has
    ended is made anew.

    ``cells`` has it all, in this order: the record CACHE; per slot its line + 1, or 0; per slot its stamp, or
    0; one set: two queues (one is sorted into the other), then slots that were given up; per line of the memory its
    slot + 1, or 0. ``capacity``: lines and ways it was asked to have; no more are made than the memory has lines.
    ``room``: the cells with zeros behind them, for lines to come.
    """

    cells: Array
    capacity: tuple[int, int]
    room: Array = field(compare=False, repr=False)

    @classmethod
    def of(cls, lines: int, capacity: int, ways: int, more: int = 0) -> Cache:
        """An empty cache of ``capacity`` lines for a memory of ``lines``; ``ways`` 0: fully associative.

        ``more``: lines that are about to be added.
        """
        ways = ways if capacity else 0
        sets = max(1, min(capacity // ways, lines)) if ways else 1
        own_ways = min(ways or capacity, max(1, lines))
        slots, mask = sets * own_ways, sets - 1 if sets & (sets - 1) == 0 else -1
        tables = np.cumsum([_HEAD, slots, slots, 3 * own_ways if sets == 1 else 0]).tolist()
        count = tables[-1] + lines + more + SPARE
        room = np.zeros(count, np.int64)
        cells = room[: tables[-1] + lines]
        cells[:8] = [sets, mask, own_ways, *tables, 1]
        return cls(cells, (capacity, ways), room)

    def grow(self, lines: int) -> None:
        """The memory has ``lines`` now; what is cached stays."""
        more = lines - (len(self.cells) - int(self.cells[_AT["slots"]]))
        if more <= 0:
            return
        if self.cells[_AT["sets"]] * self.cells[_AT["ways"]] == self.capacity[0]:
            if len(self.cells) + more > len(self.room):
                self.room = np.concatenate((self.cells, np.zeros(more + SPARE, np.int64)))
            self.cells = self.room[: len(self.cells) + more]
        else:
            self._rebuild(lines)

    def _rebuild(self, lines: int) -> None:
        """Sets that had been made smaller than asked for: touch what they held, in order, in larger ones."""
        from tilewright.isa.kernels.cache_kernels import lru_list, lru_touch

        old, new = self.lines(), Cache.of(lines, *self.capacity)
        for retained, line in old:
            lru_touch(new.cells, line, True)
            lru_list(new.cells, line, retained)
        self.cells, self.room = new.cells, new.room

    def lines(self) -> list[tuple[int, int]]:
        """What is here, set by set, least recent first: (1 if retained, line)."""
        ways = int(self.cells[_AT["ways"]])
        slots = int(self.cells[_AT["sets"]]) * ways
        line_of, stamps = self.cells[_HEAD : _HEAD + 2 * slots].reshape(2, slots)
        order = np.lexsort((stamps, np.arange(slots) // ways))
        return [(int(stamps[s] >> 62), int(line_of[s]) - 1) for s in order if line_of[s] > 0]


# The DMA controller and the page table's side of it: pages between device memory and L2, shared by all PEs.


@dataclass(frozen=True)
class Transfer:
    """One page on its way: ``direction`` is in (device memory to L2) or out; cycles are the model's.

    >>> print(Transfer("B", 2, "in", 4096, 0, 528))
    B page 2 in: 4096 bytes, cycles 0 to 528
    """

    storage: str
    page: int
    direction: str
    bytes: int
    start: int
    end: int

    def __str__(self) -> str:
        size = f"{self.storage} page {self.page} {self.direction}: {self.bytes} bytes"
        return f"{size}, cycles {self.start} to {self.end}"


@dataclass
class Dma:
    """The controller: transfers one behind the other, in the order they were asked for."""

    free: int = 0
    transfers: list[Transfer] = field(default_factory=list)

    def move(self, port: MemoryPort, storage: Storage, page: int, direction: str, now: int) -> int:
        """Start a transfer when the controller is free; the cycle at which it is done. ``port``: whose it is."""
        start, size = max(now, self.free), storage.page_bytes
        self.free = port.transfer(now, start, size)
        self.transfers.append(Transfer(storage.name, page, direction, size, start, self.free))
        return self.free

    def bytes(self, direction: str) -> int:
        """Bytes moved so far, in or out: whole pages."""
        return sum(t.bytes for t in self.transfers if t.direction == direction)


def move_in(pe: Pe, storage: Storage, page: int, now: int, begin: int | None = None) -> bool:
    """Bring a page to L2 (to ``begin``) and make its entry; False where L2 has no room. Values are there at once."""
    chip = pe.chip
    table, size = storage.table, storage.page_bytes
    if table.in_l2[page]:
        return True
    begin = chip.free_l2(size) if begin is None else begin
    if begin is None:
        return False
    home = storage.home_of(page)
    chip.store[begin : begin + size] = chip.store[home : home + size]
    chip.forget(home, size)
    chip.forget_translation(int(table.phys[page]))
    chip.reserve(begin, size)
    table.create(page, begin, LOADING, in_l2=True, ready=chip.dma.move(pe.clock.port, storage, page, "in", now))
    chip.restart_walks(begin)
    return True


def make_page(chip: Chip, storage: Storage, page: int, begin: int) -> None:
    """Give a page that is about to be written its place in L2; nothing is moved, and it counts as stored to."""
    size = storage.page_bytes
    unmap_page(chip, storage, page)
    chip.store[begin : begin + size] = 0
    chip.reserve(begin, size)
    storage.table.create(page, begin, LOADED, in_l2=True)
    storage.table.dirty[page] = True
    chip.restart_walks(begin)


def move_out(pe: Pe, storage: Storage, page: int, now: int) -> int:
    """Delete a page's entry, after writing it back if it was stored to; the cycle at which that is done."""
    chip = pe.chip
    table, size, done = storage.table, storage.page_bytes, now
    if table.in_l2[page] and table.dirty[page]:
        home, begin = storage.home_of(page), int(table.phys[page])
        chip.store[home : home + size] = chip.store[begin : begin + size]
        done = chip.dma.move(pe.clock.port, storage, page, "out", max(now, int(table.ready[page])))
    unmap_page(chip, storage, page)
    return done


def unmap_page(chip: Chip, storage: Storage, page: int) -> None:
    """Delete a page's entry, if it has one; what stands in L2 is given up."""
    table = storage.table
    if table.state[page] == ABSENT:
        return
    chip.forget_translation(int(table.phys[page]))
    if table.in_l2[page]:
        chip.release(int(table.phys[page]))
    table.delete(page)


# State that prints on a screen and compares field by field.

_NOT_COMPARED = frozenset({"chip", "events", "lanes"})
"""Fields that say nothing of their own: the way back to the chip, and the timeline."""


def same_state(one: Any, other: Any) -> bool:
    """Whether two values of the machine's state are equal, arrays and nested dataclasses included.

    >>> same_state({"a": np.arange(3)}, {"a": np.arange(3)})
    True
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        # Two NaNs are as good as one another where their bits agree.
        return bool((one == other).all()) or (one.dtype.kind not in "iub" and one.tobytes() == other.tobytes())
    if is_dataclass(one) and not isinstance(one, type):
        names = [f.name for f in fields(one) if f.compare and f.name not in _NOT_COMPARED]
        return all(same_state(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return bool(one == other)


def show_pe(pe: Pe) -> str:
    """A processing element on a screen: where it is, what its registers hold, what it counted."""
    state = "halted" if pe.halted else f"at barrier {pe.barrier[0]}" if pe.barrier is not None else "running"
    lines = [f"PE {pe.number}: {state}, pc {pe.pc}, {pe.executed} instructions, {pe.clock.cycles} cycles"]
    rows = "as many as fit" if pe.rows is None else pe.rows
    lines.append(f"  mm: {pe.columns} columns, rows: {rows}")
    lines += _rows("uniform", [(f"ur{n}", value) for n, value in enumerate(pe.uniform) if value])
    used = np.flatnonzero(pe.registers.any(axis=0)).tolist()
    lines += _rows("registers", [(f"r{n}", _first(pe.registers[:, n], 8, " ")) for n in used[:16]])
    if len(used) > 16:
        lines.append(f"    ... and {len(used) - 16} more registers that are not 0")
    some = np.flatnonzero(pe.predicates.any(axis=0)).tolist()
    lines += _rows("predicates", [(f"p{n}", _first(pe.predicates[:, n].astype(int), 64, "")) for n in some])
    waiting = [n for n in range(pe.config.registers) if pe.clock.tokens[n] > pe.clock.issue]
    if waiting:
        pending = ", ".join(f"r{a}" if a == b else f"r{a}..r{b}" for a, b in runs_of(waiting))
        lines.append(f"  tokens pending: {pending}")
    lines += _rows("segments", [(f"{s.handle}", str(s)) for s in pe.segments.values()])
    lines += [f"  error {record}" for record in pe.errors[:5]]
    return "\n".join(lines)


def show_chip(chip: Chip) -> str:
    """The chip on a screen: memories, page tables, transfers, processing elements."""
    used = sum(chip.l2_pages.values())
    device = len(chip.store) - chip.l2_end
    now = max(pe.clock.issue for pe in chip.pes)
    lines = [f"device memory: {device} bytes; L2 pages: {used} of {chip.l2_end} bytes"]
    for storage in chip.storages.values():
        states, kind = storage.table.entries(now), f"{storage.dtype}{list(storage.map.shape)}"
        lines.append(f"{storage.name}: {kind}, {len(states)} pages of {storage.page_bytes}")
        lines += first_rows(states, 8, "  ")
    lines += [f"dma: {transfer}" for transfer in chip.dma.transfers[-8:]]
    return "\n".join([*lines, *(str(pe) for pe in chip.pes)])


def show_run(result: Any) -> str:
    """What a run or a kernel left, on a screen: its size, time and where it went, counts, errors; values are apart."""
    value = getattr(result, "value", None)
    lines = [] if value is None else [f"value: {value.dtype}{list(value.shape)}"]
    executed = f"{result.executed} instructions, " if hasattr(result, "executed") else ""
    math = f", {result.math_cycles} of them math" if hasattr(result, "math_cycles") else ""
    lines.append(f"{executed}{result.cycles} cycles{math}")
    accounts = {name: getattr(result, name, {}) for name in ("stalls", "queue")}
    accounts["counts"] = result.counts.to_dict()
    if hasattr(result, "state") and result.state.config.slow:
        lines.append(result.state.config.slow)
    for title, numbers in accounts.items():
        shown = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
        lines += [f"{title}: {shown}"] if shown else []
    errors = [f"error {record}" for record in result.errors]
    return "\n".join([*lines, *first_rows(errors, 5, noun=" errors")])


def show_run_html(result: Any) -> str:
    """What a notebook shows of a run or a kernel: the same, its counts as a table."""
    from tilewright.render import Column
    from tilewright.render.tables import glance, glance_table

    head, *rest = show_run(result).split("\n")
    lines = [line for line in rest if not line.startswith("counts: ")]
    counts = [(name.replace("_", " "), count) for name, count in result.counts.to_dict().items() if count]
    return glance(head, *lines, glance_table((Column("counted"), Column("number", "count")), counts))


class Shown:
    """A run's or a kernel's result: it prints, compares field by field, and has its bytes by level and operand."""

    moved: Moved

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __repr__ = __str__ = show_run
    _repr_html_ = show_run_html

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Bytes through each level ("l1", "l2", "dram"), by operand: "a" (``ld``), "b" (``mm``), "c" (``st``), "dma".

        Pages that the host moved count for the first processing element.
        """
        return self.moved.bytes


def _rows(title: str, rows: list[tuple[str, Any]]) -> list[str]:
    return [f"  {title}:", *(f"    {name:6} {value}" for name, value in rows)] if rows else []


def _first(values: np.ndarray[Any, Any], most: int, between: str) -> str:
    return between.join([*map(str, values[:most].tolist()), *["..."] * (len(values) > most)])


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for n in numbers:
        first = runs.pop()[0] if runs and runs[-1][1] == n - 1 else n
        runs.append((first, n))
    return runs


POISON = 0x7FC0DEAD
"""What registers hold at first with ``uninitialized='poison'``: a NaN, and a number no one computes."""

_SPARE_WORDS = 16


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
    ``l2``              the second-level cache: lines of device memory, where pages have left room; ``dirty``: those
                        stored to since they came
    ``banks``           of device memory: the row each has open + 1, when it is free, when that row was opened
    ``windows``         of the buses of L2 and device memory: cycles given out, where several elements share them
    ``dma``             the controller, and every transfer so far
    ==================  ================================================================================
    """

    config: MatrixUnitConfig
    store: Array
    l2: Cache
    dma: Dma
    dirty: Array
    banks: Array
    windows: Array
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
        added: list[Storage] = []
        end, relative = len(self.store), self.config.page_addresses == "relative"
        try:
            for name, array, how in tensors:
                added.append(make_storage(name, array, end, self.config.line_bytes, **how, relative=relative))
                end += added[-1].total_bytes
            store = np.zeros(end, np.uint8)
            for storage, (_, array, _) in zip(added, tensors, strict=True):
                if any(array.strides) or any(array.flat[:1].tobytes()):  # else new memory holds it: one zero, broadcast
                    storage.fill(store, array)
        except (MemoryError, ValueError):  # ValueError: more than an address can count
            size = max(end - self.l2_end, sum(array.nbytes for _, array, _ in tensors))
            lack = f"no room for {size} bytes of device memory"
            raise UsageError(lack, how="give smaller tensors or pages") from None
        for begin, size in self.l2_pages.items():  # what no page stands in is not touched: zeros cost nothing
            store[begin : begin + size] = self.store[begin : begin + size]
        store[self.l2_end : len(self.store)] = self.store[self.l2_end :]
        self.store = store
        for storage in added:
            self.add_storage(storage)
        return added

    def add_storage(self, storage: Storage) -> None:
        """A storage becomes one of the chip's, and a segment of every processing element."""
        self.storages[storage.name] = storage
        lines = len(self.store) // self.config.line_bytes
        for cache in (self.l2, *(pe.l1 for pe in self.pes)):
            cache.grow(lines)
        self.dirty = np.concatenate((self.dirty, np.zeros(lines - len(self.dirty), np.uint8)))
        for pe in self.pes:
            pe.clock.port.relink()
            pe.names[storage.name] = pe.add_segment(whole_segment(storage, 0, storage.name))

    def free_l2(self, size: int) -> int | None:
        """The first of so many free bytes of L2 (first fit), or None."""
        at = 0
        for begin, taken in sorted(self.l2_pages.items()):
            if begin - at >= size:
                return at
            at = begin + taken
        return at if self.l2_end - at >= size else None

    def reserve(self, begin: int, size: int) -> None:
        """A page stands at these bytes of L2, which has so much less room for lines of device memory."""
        from tilewright.isa.kernels.cache_kernels import hold_lines

        line = self.config.line_bytes
        self.forget(begin, size)
        self.l2_pages[begin] = size
        hold_lines(begin // line, (begin + size) // line, self.l2.cells)

    def release(self, begin: int) -> None:
        """Free the bytes of the L2 page that begins at this byte, for lines of device memory."""
        from tilewright.isa.kernels.cache_kernels import drop_lines

        size, line = self.l2_pages.pop(begin), self.config.line_bytes
        self.forget(begin, size)
        drop_lines(begin // line, (begin + size) // line, self.l2.cells)

    def settle(self, now: int) -> None:
        """Mark pages whose transfer ends by cycle ``now`` as loaded."""
        for storage in self.storages.values():
            storage.table.settle_until(now)

    def forget_translation(self, begin: int) -> None:
        """Drop the page that begins at this byte from every element's list of translated pages."""
        for pe in self.pes:
            pe.translated.pop(begin, None)

    def restart_walks(self, begin: int) -> None:
        """Begin t1 walks anew over the page that was brought to this byte."""
        for segment in (s for pe in self.pes for s in pe.segments.values() if s.selected.size):
            for page in np.flatnonzero(segment.table.phys == begin).tolist():
                segment.restart_walk(page)

    def forget(self, begin: int, size: int) -> None:
        """Drop the lines of these bytes of the store from every L1."""
        from tilewright.isa.kernels.cache_kernels import drop_lines

        line = self.config.line_bytes
        for pe in self.pes:
            pe.clock.port.last[:] = -1
            drop_lines(begin // line, (begin + size) // line, pe.l1.cells)


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
    ``translated``      pages by first byte, those translated last at the end
    ``product``         number of the product at work: ``clr`` and ``setmm`` begin one
    ``walked``          the segment that the last ``mm`` walked (its handle), and for which product
    ``next_pc``         where the running instruction sends the program
    ``barrier``         the barrier it waits at (its number, and the pc), or None
    ``heat``            of a profile: accesses to every line of every storage, by name; else None
    ``costs``           what instructions of the program read, write and take
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
    product: int = 0
    walked: tuple[int, int] = (0, 0)
    translated: dict[int, None] = field(default_factory=dict)
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
    costs: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    __eq__ = same_state
    __hash__ = None  # type: ignore[assignment]
    __str__ = show_pe

    @classmethod
    def of(cls, number: int, chip: Chip, tracing: bool, more: int = 0) -> Pe:
        """A new processing element: all registers 0 (or poisoned), L1 empty, the chip's storages as segments."""
        c = chip.config
        poison = c.uninitialized == "poison"
        file = np.zeros(c.threads * (c.registers + _SPARE_WORDS), np.int32).reshape(c.threads, -1)
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
            l1=Cache.of(lines, c.l1_bytes // c.line_bytes, c.l1_ways, more),
            clock=Clock(c, MemoryPort(c, chip, several=c.pes > 1), tracing, f"PE {number}"),
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

    def translate(self, table: PageTable, pages: Array) -> None:
        """The load-store unit translates each of these pages, and those their entries count from, if that costs."""
        c, cycles = self.config, 0
        if not (c.page_hit_cycles or c.page_miss_cycles):
            return
        for begin in table.phys[np.union1d(pages, table.bases[pages])].tolist():
            cycles += c.page_hit_cycles if begin in self.translated else c.page_miss_cycles
            self.translated.pop(begin, None)
            self.translated[begin] = None
            if c.page_entries and len(self.translated) > c.page_entries:
                del self.translated[next(iter(self.translated))]
        self.clock.free[0] = max(self.clock.free[0], self.clock.issue) + cycles

    def release_retained(self) -> None:
        """Lines that L1 retains may go from now on."""
        from tilewright.isa.kernels.cache_kernels import lru_release

        if self.l1.cells[_AT["kept"]]:
            self.traffic.released_lines += lru_release(self.l1.cells)

    def start(self) -> None:
        """A program starts: every walk over a segment begins anew."""
        self.release_retained()
        self.product += 1
        for segment in self.segments.values():
            if segment.selected.size:
                segment.restart_walk()

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

    def record(self, instruction: Instruction, faults: Faults) -> None:
        """Keep a record of each; ``on_error`` decides what else happens, after the work in range."""
        if not faults:
            return
        text = str(instruction)
        records = [ErrorRecord(self.pc, text, kind, column, register, self.number) for kind, column, register in faults]
        self.errors += records
        first, more = records[0], f" (and {len(records) - 1} more)" if len(records) > 1 else ""
        if self.config.on_error == "raise":
            raise MatrixUnitError(f"{first}{more}", records=tuple(records), how="on_error='record' keeps going")
        if self.config.on_error == "warn":
            warnings.warn(f"{first}{more}", RuntimeWarning, stacklevel=2)


def new_chip(config: MatrixUnitConfig, tracing: bool = False, soon: int = 0) -> Chip:
    """A new chip, with its processing elements and nothing in device memory; ``soon``: bytes to come there."""
    c = config
    lines, more = c.l2_bytes // c.line_bytes, min(soon // c.line_bytes, LARGE)
    try:
        store = np.zeros(lines * c.line_bytes, np.uint8)
        l2 = Cache.of(lines, lines, c.l2_ways, more)
    except (MemoryError, ValueError):
        raise UsageError(f"no room for {c.l2_bytes} bytes of L2", how="give a smaller l2_bytes") from None
    dram = DRAMS.get(c.dram)
    banks = np.zeros((3, dram.banks if dram else 1), np.int64)
    windows = np.zeros((2, 2 * WINDOWS * (c.pes > 1)), np.int64)
    chip = Chip(c, store, l2, Dma(), np.zeros(lines, np.uint8), banks, windows)
    chip.pes = [Pe.of(number, chip, tracing, more) for number in range(c.pes)]
    return chip
