"""numba kernel: a stretch of a program, run by one call.

The instructions come as records (:mod:`tilewright.isa.execute.stretch` writes them), state by the addresses it lives
at. What ``mm`` adds is left in buffers, K round behind K round, and added by whoever called; everything else is done
here as the one function of each instruction does it: a test holds the two against each other. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import cell, instruction_at, mm_at, put, stretch_at
from tilewright.isa.kernels.records import (
    BR,
    BUDGET,
    CLR,
    FULL,
    INSTRUCTION,
    JUMP,
    LD,
    LDB,
    LEFT,
    LOGIC,
    LOOP_BACK,
    MULTIPLY,
    NOP,
    OTHER,
    SEGMENT,
    SETMM,
    ST,
    TID,
    WANTED,
)
from tilewright.isa.kernels.stretch_mm_kernels import multiply
from tilewright.isa.kernels.stretch_move_kernels import broadcast, clear, load, store
from tilewright.isa.kernels.stretch_scalar_kernels import branches, number_threads, scalar, shape, step
from tilewright.kernels import inner, njit

_ROW = INSTRUCTION.bytes


@inner(inline="always")
def _wanted(run: Any, row: Any) -> Any:
    """Whether an ``ld`` or ``mm`` has no record for the segment that its uniform register names now, or the shape."""
    other = row.op == MULTIPLY and (row.mm_columns != run.columns or row.mm_rows != run.rows)
    return other or row.record == 0 or cell(run.uniform, row.segment) != row.handle


@njit(cache=True, nogil=True)
def run_stretch(numbers: Any) -> int:
    """From instruction ``pc`` until someone else has to do something: what that is.

    ``numbers``: a record STRETCH.
    """
    run = stretch_at(np.int64(numbers.ctypes.data))
    latency, bare = run.alu_latency, np.int64(1)
    pc = run.pc
    while pc < run.count:
        if run.executed >= run.most:
            return BUDGET
        row = instruction_at(run.code + pc * _ROW)
        op = row.op
        if op == OTHER:
            return LEFT
        if op >= LD and _wanted(run, row):
            return WANTED
        if row.low < run.high and row.high > run.low:
            return FULL
        target = pc + 1
        if op <= LOGIC:
            if not scalar(run, row):
                return LEFT
            step(run, row, latency)
        elif op in (LOOP_BACK, BR):
            if branches(run.uniform, row):
                target = row.target
            step(run, row, latency if op == LOOP_BACK else bare)
        elif op == JUMP:
            target = row.target
            step(run, row, bare)
        elif op == NOP:
            step(run, row, bare)
        elif op == TID:
            number_threads(run, row)
            step(run, row, latency)
        elif op == SEGMENT:
            put(run.uniform, row.number, row.x)
            step(run, row, bare)
        elif op == SETMM:
            if not shape(run, row):
                return LEFT
            step(run, row, bare)
        elif op == CLR:
            if not clear(run, row):
                return LEFT
        elif op == ST:
            if not store(run, row):
                return LEFT
        elif op == LD:
            if not load(run, row):
                return LEFT
        elif op == LDB:
            if not broadcast(run, row):
                return LEFT
        else:
            why = multiply(run, mm_at(row.record), row)
            if why:
                return int(why)
        pc = target
        run.pc = pc
        run.executed += 1
    return LEFT
