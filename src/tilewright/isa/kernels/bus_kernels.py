"""numba kernels: the buses of L2 and device memory, and the rows of its banks, in time.

A bus serves its requests one behind the other. Of several processing elements every one keeps the order of its own
requests, and all share windows of cycles, each of which is given out once: who comes first in the turns takes first,
and whoever is behind in time finds what the others left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import accounts_at, cell, memory_at, put, put_byte
from tilewright.isa.kernels.records import L2_BUS, L2_WINDOWS, WINDOW_SHIFT, WINDOWS
from tilewright.kernels import inner, njit

_SIZE = 1 << WINDOW_SHIFT


@inner()
def place(ring: Any, t: Any, cycles: Any) -> Any:
    """Take ``cycles`` of a bus from cycle ``t`` on; the cycle at which the last is over.

    ``ring``: (window, cycles given out) of the windows last used. One that has been overwritten since counts as full.
    """
    window, left, end = t >> WINDOW_SHIFT, cycles, t + cycles
    while left > 0:
        at = ring + 16 * (window & (WINDOWS - 1))
        known = cell(at, 0)
        if known <= window:
            used = cell(at, 1) if known == window else np.int64(0)
            taken = min(_SIZE - used, left)
            if taken > 0:
                put(at, 0, window)
                put(at, 1, used + taken)
                left -= taken
                end = max(end, (window << WINDOW_SHIFT) + used + taken)
        window += 1
    return end


@inner()
def over_l2(m: Any, t: Any, cycles: Any) -> Any:
    """Take the bus of L2 for ``cycles`` from ``t`` on; the cycle at which that is over."""
    acc = accounts_at(m.accounts)
    acc.l2_work = max(acc.l2_work, t) + cycles
    end = max(acc.l2_free, t)
    end = end + cycles if m.l2_windows == 0 else place(m.l2_windows, end, cycles)
    acc.l2_free = end
    return end


@inner()
def _opened(m: Any, t: Any, line: Any) -> Any:
    """The cycle from which a line's row can be read, which is open then; its bank's number."""
    acc, row = accounts_at(m.accounts), line >> m.row_shift
    bank, row = row % m.banks, row // m.banks + 1
    free = cell(m.bank_free, bank)
    if m.dram_windows:  # elements whose clocks differ: no longer than a row's own cycle
        free = min(free, t + m.ras + m.rp)
    t = max(t, free)
    if cell(m.rows, bank) == row:
        acc.rows_open += 1
        return t, bank
    if cell(m.rows, bank) > 0:
        t = max(t, cell(m.activated, bank) + m.ras) + m.rp if not m.dram_windows else t + m.rp
    put(m.rows, bank, row)
    put(m.activated, bank, t)
    acc.rows_opened += 1
    return t + m.rcd, bank


@inner()
def from_dram(m: Any, t: Any, line: Any) -> Any:
    """Bring a line from device memory, asked for at ``t`` (0: ahead of time); the cycle at which it is over the bus."""
    acc, cycles, bank, begin = accounts_at(m.accounts), m.dram_line, np.int64(-1), t
    put_byte(m.dirty, line, 0)
    if m.banks > 0:
        begin, bank = _opened(m, t, line)
    acc.work = max(acc.work, t) + cycles
    acc.urgent = max(acc.urgent, t) + cycles
    end = max(acc.read, begin)
    end = end + cycles if m.dram_windows == 0 else place(m.dram_windows, end, cycles)
    acc.read = end
    if bank >= 0:
        put(m.bank_free, bank, end)
    return end


@njit(cache=True, nogil=True)
def take_bus(numbers: Any, which: int, t: int, cycles: int) -> int:
    """Take cycles of L2_BUS, L2_WINDOWS or DRAM_WINDOWS; when that is over. ``numbers``: a record MEMORY."""
    m = memory_at(np.int64(numbers.ctypes.data))
    if which == L2_BUS:
        return int(over_l2(m, t, cycles))
    return int(place(m.l2_windows if which == L2_WINDOWS else m.dram_windows, t, cycles))
