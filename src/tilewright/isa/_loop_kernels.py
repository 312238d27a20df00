"""numba kernel: a loop of a program, run by one call until it ends.

The instructions come as rows of numbers (:mod:`tilewright.isa._loops` writes them), state as the arrays it lives in.
What ``mm`` adds is left in buffers, K round behind K round, and added by whoever called; everything else is done here
as the one function of each instruction does it: a test holds the two against each other. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._loop_codes import ALU, BARE, BR, BUDGET, CMP, DONE, JUMP, LD, LOGIC, LOOP
from tilewright.isa._loop_load_kernels import load
from tilewright.isa._loop_memory_kernels import later, multiply, ready, until, wrap
from tilewright.kernels import njit

__all__ = ["run_loop"]


@njit(cache=True, nogil=True)
def _alu(op: int, x: Any, y: Any) -> Any:
    if op == 0:
        return x
    if op == 1:
        return x + y
    if op == 2:
        return x - y
    if op == 3:
        return x * y
    if op == 4:
        return min(x, y)
    if op == 5:
        return max(x, y)
    if op == 6:
        return x & y
    if op == 7:
        return x | y
    if op == 8:
        return x ^ y
    if op == 9:
        return ~x
    if op == 10:
        return x << (y & 31)
    if op == 11:
        return x >> (y & 31)
    return (x & 0xFFFFFFFF) >> (y & 31)


@njit(cache=True, nogil=True)
def _compare(condition: int, x: Any, y: Any) -> bool:
    if condition >= 6:
        x, y = x & 0xFFFFFFFF, y & 0xFFFFFFFF
        condition -= 4
    if condition == 0:
        return bool(x == y)
    if condition == 1:
        return bool(x != y)
    if condition == 2:
        return bool(x < y)
    if condition == 3:
        return bool(x <= y)
    if condition == 4:
        return bool(x > y)
    return bool(x >= y)


@njit(cache=True, nogil=True)
def _step(row: Any, clock: Any, queue: Any, scoreboard: Any, latency: int) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    tokens, causes, foreign = scoreboard
    latest = -1
    for i in range(10, 15):
        if row[i] >= 0:
            latest = later(tokens, row[i], row[i] + 1, latest)
    ready(clock, queue, tokens, causes, latest)
    start = clock[0]
    queue[0] += 1
    clock[0] = start + 1
    if row[14] >= 0:
        tokens[row[14]] = foreign[row[14]] = start + latency
        causes[row[14]] = 0
    clock[1] = max(clock[1], start + max(1, latency))


@njit(cache=True, nogil=True)
def _scalar(row: Any, registers: Any, predicates: Any, uniform: Any, traffic: Any) -> None:
    """mov to shru, comparisons and logic, on threads or uniform registers."""
    op, number = row[0], row[2]
    x, y = row[4], row[6]
    if row[3] == 1:
        x = uniform[row[4]]
    if row[5] == 1:
        y = uniform[row[6]]
    if row[1] == 1:
        uniform[number] = wrap(_alu(row[9], x, y))
        return
    threads, on = registers.shape[0], 0
    traffic[0] += row[15] * threads
    guarded, guard, negated = row[7] >= 0, np.uint64(max(0, row[7])), row[8] == 1
    into, first, second = np.uint64(number), np.uint64(row[4]), np.uint64(row[6])
    per_thread_x, per_thread_y, what = row[3] == 2, row[5] == 2, row[9]
    for t in range(np.uint64(threads)):
        if guarded and predicates[t, guard] == negated:
            continue
        on += 1
        if op == LOGIC:
            p, q = predicates[t, first], predicates[t, second]
            value = p and q if what == 0 else p or q if what == 1 else p != q if what == 2 else not p
            predicates[t, into] = value
            continue
        if per_thread_x:
            x = np.int64(registers[t, first])
        if per_thread_y:
            y = np.int64(registers[t, second])
        if op == CMP:
            predicates[t, into] = _compare(what, x, y)
        else:
            registers[t, into] = np.int32(wrap(_alu(what, x, y)))
    if op == ALU:
        traffic[1] += on


@njit(cache=True, nogil=True)
def run_loop(
    code: Any, span: Any, state: Any, ld: Any, mm: Any, clock: Any, queue: Any, math: Any, scoreboard: Any, place: Any
) -> int:
    """From instruction ``place[0]`` until it leaves ``span``, or until someone else has to do something (the result).

    ``place``: (pc, instructions executed, most of them); ``span``: (first, last) instruction of the loop, ALU latency,
    latency of a load, L1 ports.
    """
    first, last, latency, load_latency, ports = span
    file, predicates, uniform, store, counts, traffic, _, _, _ = state
    tokens, causes, foreign = scoreboard
    while first <= place[0] <= last:
        if place[1] >= place[2]:
            return BUDGET
        row = code[place[0]]
        op = row[0]
        target = place[0] + 1
        if op <= LOGIC:
            _scalar(row, file[0], predicates, uniform, traffic)
            _step(row, clock, queue, scoreboard, latency)
        elif op == LOOP:
            uniform[row[2]] = wrap(uniform[row[2]] - 1)
            if uniform[row[2]] != 0:
                target = row[9]
            _step(row, clock, queue, scoreboard, latency)
        elif op == BR:
            x = uniform[row[4]] if row[3] == 1 else row[4]
            y = uniform[row[6]] if row[5] == 1 else row[6]
            if _compare(row[9], x, y):
                target = row[2]
            _step(row, clock, queue, scoreboard, 1)
        elif op == JUMP:
            target = row[9]
            _step(row, clock, queue, scoreboard, 1)
        elif op == BARE:
            _step(row, clock, queue, scoreboard, 1)
        elif op == LD:
            lines = load(row, file, predicates, store, ld, counts, traffic)
            latest = later(tokens, row[10], row[10] + 1, -1)
            latest = later(tokens, row[4], row[16], latest)
            if row[13] >= 0:
                latest = later(tokens, row[13], row[13] + 1, latest)
            ready(clock, queue, tokens, causes, later(tokens, row[2], row[2] + row[6], latest))
            until(clock, queue, clock[2], 5)
            start = clock[0]
            queue[0] += 1
            clock[0] = start + 1
            clock[2] = start + max(1, -(-lines // ports))
            done = clock[2] + load_latency
            for other in range(row[2], row[2] + row[6]):
                tokens[other] = foreign[other] = done
                causes[other] = 1
            clock[1] = max(clock[1], done)
        else:
            why = multiply(row, mm, state, clock, queue, math, scoreboard)
            if why:
                return why
        place[0] = target
        place[1] += 1
    return DONE
