"""The memory system as one processing element sees it: buses and what they still have to do, rows, lines stored to.

Accounts are cycles. Reads come first: ``read`` is the end of those asked for. DMA comes second (``urgent``: reads and
DMA), lines that were stored to last (``work``: everything). So no bus is idle while it has something to do, none
carries more than it can, and a run ends when all of it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tilewright.isa.kernels.records import (
    ACCOUNTS,
    DRAM_WINDOWS,
    L2_BUS,
    L2_WINDOWS,
    MEMORY,
    WINDOW_SHIFT,
    WINDOWS,
    Record,
)
from tilewright.isa.language.config import DRAMS, MatrixUnitConfig
from tilewright.isa.language.counts import Moved

Array = np.ndarray[Any, Any]
_AT, _COUNTERS = ACCOUNTS.places, [f.name for f in fields(Moved)]


@dataclass(eq=False)
class MemoryPort:
    """What one processing element has asked of L2 and device memory.

    ==================  ================================================================================
    ``chip``            what all ports have together: L2, its dirty lines, banks, and windows of the buses
    ``numbers``         the record ACCOUNTS
    ``last``            the line that each thread loaded last
    ``several``         whether there are other elements, so that windows of the buses are shared
    ``waiting``         with several: (cycle, cycles) of stores whose lines have yet to go back
    ``transferred``     when the last of its DMA transfers is done
    ==================  ================================================================================
    """

    config: MatrixUnitConfig
    chip: Any = field(repr=False)
    numbers: Array = field(default_factory=lambda: np.zeros(len(ACCOUNTS.names), np.int64))
    last: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    several: bool = False
    waiting: list[tuple[int, int]] = field(default_factory=list)
    transferred: int = 0

    def __post_init__(self) -> None:
        self.last = np.full(self.config.threads, -1, np.int64)
        self._links: Record | None = None

    def cycles(self, size: int, rate: int) -> int:
        """Of ``size`` bytes on a bus of ``rate`` bytes a cycle."""
        return -(-size * self.config.slots // rate)

    @property
    def links(self) -> Record:
        """What kernels are given: the record MEMORY."""
        if self._links is None:
            chip, c = self.chip, self.config
            dram, line = DRAMS.get(c.dram), c.line_bytes
            values: dict[str, Any] = dict.fromkeys(MEMORY.names, 0) | {"line_bytes": line}
            values |= {"accounts": self.numbers, "last": self.last, "l2": chip.l2.cells, "dirty": chip.dirty}
            values |= {"l2_line": self.cycles(line, c.l2_bytes_per_cycle)}
            values |= {"dram_line": self.cycles(line, c.dram_bytes_per_cycle)}
            values |= dict(zip(("rows", "bank_free", "activated"), chip.banks, strict=True))
            if self.several and c.slots == 1:
                values |= dict(zip(("l2_windows", "dram_windows"), chip.windows, strict=True))
            if dram is not None:
                values |= {"banks": dram.banks, "row_shift": max(0, (dram.row_bytes // line).bit_length() - 1)}
                values |= {name: dram.cycles(name) for name in ("rcd", "rp", "ras")}
            self._links = Record(MEMORY, values)
        return self._links

    def relink(self) -> None:
        """Forget the kernels' record of the chip's arrays, which were replaced by larger ones."""
        self._links = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has tables of its own."""
        return self.__dict__ | {"_links": None}

    def _account(self, name: str) -> int:
        return int(self.numbers[_AT[name]])

    def count(self, **more: int) -> None:
        """Add to the counters of :class:`Moved` and ACCOUNTS, by name."""
        for name, number in more.items():
            self.numbers[_AT[name]] += number

    def begin(self) -> None:
        """A load or store begins: nothing has arrived, and no line was written."""
        self.numbers[_AT["arrived"]] = self.numbers[_AT["written"]] = 0

    def idle_until(self, cycle: int) -> None:
        """Let every bus be busy until ``cycle``, when a program starts: nothing it reads comes sooner."""
        for name in ("read", "urgent", "work", "l2_free", "l2_work"):
            self.numbers[_AT[name]] = max(self._account(name), cycle)
        if self.several:
            window, gone = cycle >> WINDOW_SHIFT, cycle & ((1 << WINDOW_SHIFT) - 1)
            for ring in self.chip.windows:
                own = ring[2 * (window & (WINDOWS - 1)) :][:2]
                if own[0] <= window:
                    own[:] = window, max(int(own[1]) if own[0] == window else 0, gone)

    @property
    def arrived(self) -> int:
        """When what the last load asked of device memory is there (0: it asked for nothing)."""
        arrived = self._account("arrived")
        return arrived + self.config.dram_latency if arrived else 0

    def over_l2(self, start: int, size: int) -> int:
        """Move bytes between L2 and the registers; the cycle at which they are over the bus."""
        return self._take_bus(L2_BUS, start, self.cycles(size, self.config.l2_bytes_per_cycle))

    def _take_bus(self, which: int, start: int, cycles: int) -> int:
        from tilewright.isa.kernels.memory_kernels import take_bus

        return int(take_bus(self.links.numbers, which, start, cycles))

    def write_back(self, start: int) -> None:
        """The lines of a store go back to device memory when that has nothing else to do."""
        written = self._account("written")
        size = written * self.config.line_bytes
        cycles = written * self.cycles(self.config.line_bytes, self.config.dram_bytes_per_cycle)
        self.count(dram_c=size)
        if self.several and self.config.slots == 1:
            self.waiting += [(start, cycles)] if cycles else []
        else:
            self.numbers[_AT["work"]] = max(self._account("work"), start) + cycles

    def transfer(self, now: int, start: int, size: int) -> int:
        """A page that DMA moves, asked for at ``now``, its turn at ``start``; when it is done."""
        c = self.config
        dram, l2 = (self.cycles(size, rate) for rate in (c.dram_bytes_per_cycle, c.l2_bytes_per_cycle))
        done = start + c.dma_latency + max(dram, l2)
        self.count(l2_dma=size, dram_dma=size)
        if self.several and self.config.slots == 1:
            for which, cycles in ((L2_WINDOWS, l2), (DRAM_WINDOWS, dram)):
                done = max(done, self._take_bus(which, start + c.dma_latency, cycles))
        else:
            for name, cycles in (("urgent", dram), ("work", dram), ("l2_work", l2)):
                self.numbers[_AT[name]] = max(self._account(name), now) + cycles
            done = max(done, self._account("urgent") + c.dma_latency, self._account("l2_work"))
        self.transferred = max(self.transferred, done)
        return done

    def settled(self) -> int:
        """The cycle at which everything asked for so far is done, and stored lines are in device memory."""
        done = max(self._account("read"), self._account("l2_free"), self.transferred)
        if not self.several or self.config.slots > 1:
            return max(done, self._account("work"), self._account("l2_work"))
        for start, cycles in self.waiting:
            done = max(done, self._take_bus(DRAM_WINDOWS, start, cycles))
        self.waiting.clear()
        return done

    @property
    def moved(self) -> Moved:
        return Moved(**{name: self._account(name) for name in _COUNTERS})
