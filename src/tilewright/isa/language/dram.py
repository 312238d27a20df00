"""Timings of device memories, as published: rows, banks, and what it takes to open a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dram:
    """One kind of device memory; times in nanoseconds, which are cycles at 1 GHz.

    ``row_bytes``: what a bank holds open; ``banks`` of all ``channels`` together. ``rcd``: from a row's opening to its
    first column, ``rp``: closing a row, ``ras``: least time a row is open. ``bytes_per_ns``: the published peak.
    """

    banks: int
    channels: int
    row_bytes: int
    rcd: float
    rp: float
    ras: float
    bytes_per_ns: float
    source: str

    def cycles(self, name: str) -> int:
        """A time in whole cycles, rounded up."""
        return -int(-getattr(self, name) // 1)


DRAMS = {
    "ddr4_3200": Dram(
        banks=16,
        channels=1,
        row_bytes=8192,
        rcd=13.75,
        rp=13.75,
        ras=32.5,
        bytes_per_ns=25.6,
        source="JEDEC JESD79-4 speed bin 3200AA (22-22-22, tRAS 52 at 0.625 ns), as in DRAMsim3 DDR4_8Gb_x8_3200.ini",
    ),
    "hbm2": Dram(
        banks=128,
        channels=8,
        row_bytes=1024,
        rcd=14,
        rp=14,
        ras=34,
        bytes_per_ns=256,
        source="JEDEC JESD235 at 2 Gb/s a pin (14-14, tRAS 34 at 1 ns), as in DRAMsim3 HBM2_8Gb_x128.ini",
    ),
}
"""By the name that ``MatrixUnitConfig.dram`` gives; ``flat`` has no rows and no banks."""
