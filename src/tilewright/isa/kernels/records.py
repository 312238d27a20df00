"""What kernels are told by address: records of 64-bit numbers, some of them addresses of tables and of other records.

Nothing here loads numba; :mod:`tilewright.isa.kernels.pointers` reads these records in kernels.
"""

from __future__ import annotations

import ctypes
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.errors import Array


class Layout:
    """The fields of a record, 64 bits each: ``names``, their ``places``, ``dtype``, and ``bytes`` of all of it."""

    def __init__(self, names: str) -> None:
        self.names = tuple(names.split())
        self.places = {name: place for place, name in enumerate(self.names)}
        self.dtype = np.dtype([(name, np.int64) for name in self.names], align=True)
        self.bytes = self.dtype.itemsize


TRANSFER = Layout(
    "threads dims coordinates counts sizes starts pages_of offsets_of phys dirty dim stride element_bytes line_shift "
    "registers pitch store storing elements lines in_l2 memory page_bytes seen l1 bypass fetched"
)
"""A load or store.

``coordinates`` [threads, dims] of each thread's first element, and ``counts``: how many it wants; tables of the
segment; the dim walked along; log2 of the bytes of a line; the first register of thread 0 and the bytes of a thread's;
the pages that are in L2; the record MEMORY. ``seen``: of a profile, accesses to every line of the segment's pages (0:
none); ``l1``: that loads pass through (0: they do not), with ``bypass`` where all of it may be retained.
It leaves how many ``elements`` were there, ``lines``, and those that L1 ``fetched``.
"""
BLOCK = Layout(
    "code count alu_latency load_latency ports pc executed most file pitch threads registers predicates "
    "predicate_pitch uniform counts traffic clock queue math tokens causes foreign l1 l2 memory "
    "slots l2_rate dram_latency pending low high loaders columns rows product walked walked_in fetch"
)
"""A processing element and its program, as the kernel of compiled blocks takes them.

``code``: ``count`` instructions; ``executed`` and ``most``: instructions so far, and when to stop; ``file``:
``registers`` of every thread, ``pitch`` bytes a thread; ``tokens``, ``causes``, ``foreign``: the scoreboard; the
caches. ``pending``: the record FILL of the sums that wait to be added (0: none do), to registers ``low`` to ``high``.
``columns`` and ``rows`` of the ``mm`` that follow (rows -1: as many as fit); ``loaders``: the most columns.
``product``: number of the product at work; ``walked``: handle of the segment that the last ``mm`` walked, in product
``walked_in``. ``fetch``: cycles for which the queue stands still after an issue.
"""
MM = Layout(
    "depth element_bytes floats dim page_elements width line_shift retains bypasses "
    "chunk rows ka kb row_stride a_stride b_stride first_thread first local per_step a_registers a_reads "
    "bcast_depth step_cycles columns part index order active sizes starts pages_of offsets_of phys in_l2 dims store "
    "selected awaited at_first walk elements lines inside reach on out sequence step_of times timing seen page_ready "
    "a_bytes a_pitch a_step a_rows b_bytes b_pitch b_step b_rows presents rounds fill macs deep deep_count"
)
"""An mm.

``width``: elements of a K round; ``retains``: a walk that retains lines; ``first``: register of the first product;
``local``: columns of a part; strides in threads. ``part``, ``index``, ``order``: tables of the columns; ``on`` now,
``active`` in the rounds that wait. What a walk leaves: ``reach`` of every column, lines of each
column (``out``). A's and B's bytes: from row to row (``pitch``), from round to round (``step``). ``presents``:
elements present in each round; ``rounds``: the most that wait. t1 retention: ``selected`` of ``elements``, ``awaited``
of ``lines`` (``at_first``: when a walk begins), the record WALK, ``inside``: elements of the segment. ``macs``: place
of the counter of this type in ACCOUNTS; ``deep``: lines that L2 had not, and how many (``deep_count``); ``seen``: of a
profile, accesses to every line of the segment's pages (0: none); ``page_ready``: when pages on their way are there.
"""
WALK = Layout("product left column before")
"""How far B's segment was walked: for which product last, elements that no t1 ``mm`` has selected (-1: none retains).

``column``: the one that is on, where only one is, and the one ``before``; -1: none yet.
"""
FILL = Layout("k rounds columns steps")
"""How far the buffers of an mm are filled, and columns that are on and their steps (columns < 0: not known yet)."""
REACH = Layout("begin page offset x low count")
"""A column: byte in the store (-1: no run), page, offset, coordinate, first element that is there, how many are."""
TIMING = Layout("ports l1_latency l2_latency dram_latency step_cycles column_cycles")
"""What the issue of an mm takes: see :meth:`tilewright.isa.chip.clock.Clock.line_times`."""
FREE = Layout("lsu math bus")
"""Cycles at which the units of an mm are free."""
TIMES = Layout("first for_columns for_a")
"""What the issue of an mm leaves: cycle of the first math issue (-1: none), cycles waited for columns and for A."""
CLOCK = Layout("issue end lsu math bus math_busy in_flight")
"""The clock; behind it the cycles at which each mm in flight is done."""
MATH = Layout("columns a no_mm after")
"""Why the math unit waited: :data:`tilewright.isa.chip.clock.MATH_STALLS`."""
COUNTS, TRAFFIC = (Layout(" ".join(field.name for field in fields(kind))) for kind in (Counts, Traffic))
WINDOW_SHIFT, WINDOWS = 6, 1 << 13
"""Log2 of the cycles of a window of a shared bus, and how many windows are known at a time."""
ACCOUNTS = Layout(
    " ".join(["l2_free l2_work read urgent work arrived written", *(field.name for field in fields(Moved))])
)
"""A processing element's side of the memory system, in cycles.

When L2's bus is free, and all of its work done; when device memory has ``read`` what was asked for, done reads and DMA
(``urgent``), and all ``work``. Of one load or store: the cycle at which what L2 had not ``arrived`` (0: nothing), lines
``written`` that were not yet. Then the counters of Moved.
"""
MEMORY = Layout(
    "accounts l2_line dram_line line_bytes l2_windows dram_windows banks row_shift rcd rp ras rows bank_free activated "
    "l2 dirty last"
)
"""The memory system as kernels take it.

Cycles of a line on each bus; windows of shared buses (0: not shared); ``banks`` (0: none), log2 of the lines of a row,
its times, the row every bank has open + 1, when it is free and was opened; L2; whether a line in it was stored to, per
line; the line every thread loaded last.
"""
CACHE = Layout("sets mask ways lines stamps queue slots time used given_up kept first end list built")
"""The first numbers of a cache; see :class:`tilewright.isa.chip.state.Cache`.

``mask`` of the set number (-1: no power of two); where the tables ``lines``, ``stamps``, ``queue``, ``slots`` begin;
``time``: touches so far; slots ``used``, ``given_up``, ``kept`` (retained); the queue's ``first`` and ``end``, its
``list`` (0 evictable, 1 retained) and the time it was ``built``.
"""
INSTRUCTION = Layout(
    "op kind number x_kind x y_kind y guard negated operation target immediate "
    "x_place y_place guard_place written per_thread offsets_end low high segment handle record limit "
    "mm_columns mm_rows"
)
"""An instruction of a program.

``kind`` of the destination and of X and Y: 0 integer, 1 uniform, 2 per thread, 3 predicate; ``guard``: -1 for none;
``operation``: its number or condition; ``target`` of a branch. An ``ld``, ``st`` or ``mm`` has its first offset
register in ``x``; in ``y`` an ``mm`` has its first register of A, the others and ``clr`` how many words. ``x_place``
to ``guard_place``: what it reads on the scoreboard (of an address the segment), ``written``: what it writes, -1 for
none; ``per_thread``: operands that are. ``low`` to ``high`` has every register per thread that it looks
at or writes, but for an mm's products. An ``ld``, ``st`` or ``mm`` has the number of its ``segment``'s uniform
register, the ``handle`` this held when the ``record`` was made (0: not yet), and ``limit``, the most elements a thread
moves. ``mm_columns``, ``mm_rows``: of an ``mm``, the shape for which its record was made; ``setmm`` says in
``operation`` whether it has rows.
"""
ALU, CMP, LOGIC, LOOP_BACK, BR, JUMP, NOP, SETMM, CLR, LD, ST, LDB, MULTIPLY, OTHER = range(14)
"""What an instruction is (``op``); OTHER: an instruction that no block has."""
LEFT, FULL, IRREGULAR, BUDGET, WANTED = range(5)
"""Why a block ended.

An instruction for a function of its own, or the program's end; sums must be added first; an mm for the general
function; the instruction budget is spent; an ``ld``, ``st`` or ``mm`` wants its record.
"""
OPERATIONS = ("mov", "add", "sub", "mul", "min", "max", "and", "or", "xor", "not", "shl", "shr", "shru", "div", "rem")
CONDITIONS = ("eq", "ne", "lt", "le", "gt", "ge", "ltu", "leu", "gtu", "geu")
LOGICS = ("pand", "por", "pxor", "pnot")
ISSUED, CAUSED, PORT, DEPTH, OPERANDS, PAGE, FETCH = 0, 2, 5, 6, 7, 8, 12
"""Places in :data:`tilewright.isa.chip.clock.QUEUE`; at CAUSED its first unit."""
L2_BUS, L2_WINDOWS, DRAM_WINDOWS = range(3)
"""What cycles are taken of: L2's bus, or the windows of a bus that several processing elements share."""
LINE_ACCESSES = ("touches", "misses", "l2_misses", "loads", "stores")
"""What a profile counts of every line: the columns of its tables."""


def address(array: Array, dtype: Any) -> int:
    """Where a C-contiguous array of this type begins."""
    assert array.dtype == dtype, (array.dtype, dtype)
    assert array.flags.c_contiguous
    if array.size and array.flags.writeable:  # four times as fast as what follows
        memory: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return array.ctypes.data


class Record:
    """One record: ``numbers``, int64, as a kernel takes them, and the arrays whose addresses they are, kept alive."""

    def __init__(self, layout: Layout, values: dict[str, Any], like: Record | None = None) -> None:
        """From numbers, arrays (their addresses) and other records (theirs), by name; others are ``like``'s, or 0."""
        assert values.keys() <= layout.places.keys(), values.keys()
        self.places = layout.places
        self.kept: list[Any] = [] if like is None else [*like.kept]
        numbers: list[int] = [0] * len(layout.names) if like is None else like.numbers.tolist()
        for name, value in values.items():
            number = value
            if isinstance(value, np.ndarray):
                self.kept.append(value)
                number = address(value, value.dtype)
            elif isinstance(value, Record):
                self.kept.append(value)
                number = address(value.numbers, np.int64)
            numbers[self.places[name]] = number
        self.numbers: Array = np.array(numbers, np.int64)

    def __getitem__(self, name: str) -> int:
        """A number the kernel left."""
        return int(self.numbers[self.places[name]])

    def __setitem__(self, name: str, number: int) -> None:
        """What is another in the next call."""
        self.numbers[self.places[name]] = number


def int64_tables(**tables: Array) -> dict[str, Array]:
    """The arrays by name, each checked to be int64 as kernels read it."""
    assert all(array.dtype == np.int64 for array in tables.values()), tables
    return tables
