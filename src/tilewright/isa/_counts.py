"""What a matrix multiplication costs, as plain numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Counts"]


@dataclass
class Counts:
    """Work and traffic of the ``mm`` instructions of one run.

    =========================  ===========================================================================
    ``instructions``           ``mm`` instructions issued
    ``macs``                   multiplications of one element of A by one of B
    ``column_loads``           columns fetched by loaders
    ``broadcast_elements``     elements of B on the broadcast bus
    ``steps``                  math issues: one for every local column index with a column on
    ``a_register_reads``       registers of A read (once per instruction and thread)
    ``a_bytes_loaded``         bytes which ``ld`` fetched into registers
    ``accumulator_reads``      product registers read
    ``accumulator_writes``     product registers written
    ``kb_transfers``           partial dots sent to the accumulating thread, 4 bytes each
    ``l1_touches``             cache lines touched by the columns of B (distinct per column and instruction)
    ``l1_misses``              of these, not in L1
    ``l2_misses``              of these, not in L2 either
    ``dram_bytes``             bytes brought from device memory for them
    =========================  ===========================================================================

    >>> Counts(macs=3).to_dict()["macs"]
    3
    """

    instructions: int = 0
    macs: int = 0
    column_loads: int = 0
    broadcast_elements: int = 0
    steps: int = 0
    a_register_reads: int = 0
    a_bytes_loaded: int = 0
    accumulator_reads: int = 0
    accumulator_writes: int = 0
    kb_transfers: int = 0
    l1_touches: int = 0
    l1_misses: int = 0
    l2_misses: int = 0
    dram_bytes: int = 0

    def to_dict(self) -> dict[str, int]:
        """The counters by name, in the order of the table above."""
        return asdict(self)
