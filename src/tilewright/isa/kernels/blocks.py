"""Cells of the blocks that kernels take (:class:`tilewright.isa.kernels.blocks.Block`), by number."""

from __future__ import annotations

from typing import Any

import numpy as np

(
    T_THREADS,
    T_DIMS,
    T_AT,
    T_WANTED,
    T_SIZES,
    T_STARTS,
    T_PAGES_OF,
    T_OFFSETS_OF,
    T_PHYS,
    T_DIRTY,
    T_DIM,
    T_STRIDE,
    T_SIZE,
    T_SHIFT,
    T_REGISTERS,
    T_PITCH,
    T_STORE,
    T_STORING,
    T_ELEMENTS,
    T_LINES,
) = range(20)
"""A load or store (``transfer``).

Threads, dims, coordinates [threads, dims], elements wanted of each; tables of the segment; dim walked along, stride,
bytes of an element, log2 of the bytes of a line; the first register of thread 0 and the bytes of a thread's; the store;
whether it stores. It leaves how many elements were there, and lines.
"""
(
    L_CODE,
    L_FIRST,
    L_LAST,
    L_ALU_LATENCY,
    L_LOAD_LATENCY,
    L_PORTS,
    L_PC,
    L_EXECUTED,
    L_MOST,
    L_FILE,
    L_PITCH,
    L_THREADS,
    L_PREDICATES,
    L_PER_THREAD,
    L_UNIFORM,
    L_COUNTS,
    L_TRAFFIC,
    L_CLOCK,
    L_QUEUE,
    L_MATH,
    L_TOKENS,
    L_CAUSES,
    L_FOREIGN,
    L_TRANSFER,
    L_LIMIT,
    L_PRODUCT,
    L_L1,
    L_L2,
) = range(28)
"""A loop.

Rows of its code, first and last instruction, latencies, ports; where it is (pc, instructions executed, most of them);
registers and bytes of a thread's, threads, predicates and bytes of a thread's, uniform registers; counts, traffic;
clock, queue, math, scoreboard; the block of its load, and the most elements of it; the block of its mm; caches.
"""
(
    M_DEPTH,
    M_SIZE,
    M_FLOATS,
    M_DIM,
    M_PAGE_ELEMENTS,
    M_WIDTH,
    M_SHIFT,
    M_WALKS,
    M_BYPASSES,
    M_A,
    M_CHUNK,
    M_ROWS,
    M_KA,
    M_KB,
    M_RS,
    M_AS,
    M_BS,
    M_BASE,
    M_FIRST,
    M_LOCAL,
    M_PER_STEP,
    M_A_REGISTERS,
    M_A_READ,
    M_BCAST,
    M_STEP,
    M_COLUMNS,
    M_PART,
    M_INDEX,
    M_ORDER,
    M_ACTIVE,
    M_SIZES,
    M_STARTS,
    M_PAGES_OF,
    M_OFFSETS_OF,
    M_PHYS,
    M_IN_L2,
    M_DIMS,
    M_STORE,
    M_SELECTED,
    M_AWAITED,
    M_REACH,
    M_ON,
    M_OUT,
    M_SEQUENCE,
    M_STEP_OF,
    M_TIMES,
    M_TOTALS,
    M_BEGINS,
    M_TIMING,
    M_A_BYTES,
    M_A_PITCH,
    M_A_STEP,
    M_A_ROWS,
    M_B_BYTES,
    M_B_PITCH,
    M_B_STEP,
    M_B_ROWS,
    M_PRESENTS,
    M_ROUNDS,
    M_FILL,
) = range(60)
"""An mm.

Depth, bytes of an element, floats?, dim, elements of a page, elements of a K round, log2 of the bytes of a line, a walk
that retains lines?, bypass?; registers of A, elements of a chunk, rows, ka, kb, thread strides, first thread; first
product register, local columns, columns a step, registers of A and reads of them, bcast_depth, cycles of a step.

Columns: how many, part, index, order, active; tables of the segment, its dims; the store; retention; what a walk found,
columns that are on, lines per column, sequence, steps, times, totals, where runs begin; what the issue model takes.

A's and B's bytes: where, from row to row, from round to round, rows; elements present per round, most rounds, and how
far they are filled.
"""


# Blocks of numbers by which kernels are told what to work on: plain numbers, and addresses of arrays.

Array = np.ndarray[Any, Any]


def address(array: Array, dtype: Any) -> int:
    """Where a C-contiguous array of this type begins."""
    assert array.dtype == dtype, (array.dtype, dtype)
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])


class Block:
    """Cells for a kernel: ``cells`` int64[n], and the arrays whose addresses they hold, kept alive."""

    def __init__(self, *parts: Any) -> None:
        """From numbers, arrays (their addresses) and other blocks, in the order of the block's names."""
        self.kept = [part for part in parts if isinstance(part, np.ndarray | Block)]
        self.cells = np.array([_number(part) for part in parts], np.int64)

    @property
    def at(self) -> int:
        """The block's own address."""
        return address(self.cells, np.int64)


def longs(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, all of which are int64."""
    assert all(array.dtype == np.int64 for array in arrays), [array.dtype for array in arrays]
    return arrays


def _number(part: Any) -> int:
    if isinstance(part, Block):
        return part.at
    return address(part, part.dtype) if isinstance(part, np.ndarray) else int(part)


# Numbers by which a loop's instructions, and its reasons to stop, go to the kernel.

ALU, CMP, LOGIC, LOOP, BR, JUMP, BARE, LD, MM = range(9)
"""What an instruction is.

Its row: what it is; destination kind (1 uniform, 2 per thread, 3 predicate) and number; kinds (0 integer) and values
of X and Y; guard (-1: none) and whether it is negated; operation, condition or target; 10 to 13: places on the
scoreboard it reads (the guard's last), 14: the one it writes; 15: per-thread operands; 16: end of its offset registers.
An ``ld`` has its offset register and immediate for X, and the registers it writes for the value of Y.
"""
DONE, FULL, IRREGULAR, BUDGET = range(4)
"""The loop was left; sums must be added first; an mm for the general function; the instruction budget is spent."""
OPERATIONS = ("mov", "add", "sub", "mul", "min", "max", "and", "or", "xor", "not", "shl", "shr", "shru")
CONDITIONS = ("eq", "ne", "lt", "le", "gt", "ge", "ltu", "leu", "gtu", "geu")
LOGICS = ("pand", "por", "pxor", "pnot")
KINDS = ("s8", "u8", "s16", "u16", "s32", "f16", "bf16", "u32", "f32")
"""Element types; from s32 on but for the 16-bit floats a word is a word."""
ROW = 18
"""Numbers of an instruction."""

# The first cells of a cache: see :class:`tilewright.isa.chip.caches.Cache`.

SETS, MASK, WAYS, LINE_OF, STAMPS, QUEUE, SLOT_OF = range(7)
"""Cells: sets, mask of the set number (-1: no power of two), ways, and where the tables begin."""
TIME, USED, GIVEN_UP, KEPT, FIRST, END, LIST, BUILT, TABLES = range(7, 16)
"""Cells: touches so far; slots used, given up, retained; the queue's first, end, list and time; the first table."""

LINE_ACCESSES = ("touches", "misses", "l2_misses", "loads", "stores")
"""What a profile counts of every line: the columns of its tables."""
