"""What a plan says about padding, stacking and the host."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Feeding", "Savings"]


@dataclass(frozen=True)
class Savings:
    """Bytes now and in another arrangement; tables count all chips, buffers one batch on one device.

    ==================================  ============================================================================
    ``table_bytes``                     tables as they are padded today
    ``packed_table_bytes``              with rows of 1 to 4 floats sharing 32-byte lines, 8 // width to a line
    ``packed_tables``                   the tables that gain by it
    ``separate_buffer_bytes``           the replayed batches' buffers, every table alone
    ``stacked_buffer_bytes``            the same in the stacks planned (or possible)
    ==================================  ============================================================================
    """

    table_bytes: int
    packed_table_bytes: int
    packed_tables: tuple[str, ...]
    separate_buffer_bytes: int
    stacked_buffer_bytes: int


@dataclass(frozen=True)
class Feeding:
    """Host against chip: ``host_seconds`` a whole batch took on this host with ``threads`` threads (measured, the
    fastest of the batches run again), and what a step takes on the chip at least (modelled: ``step_bytes`` of one chip
    at the rate of its HBM; 0.0 without a target)."""

    host_seconds: float
    threads: int
    step_bytes: int
    step_seconds: float
