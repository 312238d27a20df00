"""What is counted of a run, and its energy by event: published figures times what was counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from math import log2
from typing import Self

from tilewright.isa.language.config import MatrixUnitConfig


@dataclass
class _Counters:
    @classmethod
    def together(cls, several: Iterable[Self]) -> Self:
        """The sums of several.

        >>> Counts.together([Counts(macs=3), Counts(macs=4)]).macs
        7
        """
        counted = list(several)
        return cls(**{f.name: sum(getattr(one, f.name) for one in counted) for f in fields(cls)})

    def __sub__(self, before: Self) -> Self:
        """What was counted since ``before``."""
        return type(self)(**{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)})

    def to_dict(self) -> dict[str, int]:
        """The counters by name, in the order of the class's table."""
        return asdict(self)


@dataclass
class Counts(_Counters):
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
    ``dram_bytes``             bytes of B brought from device memory for these misses (not those of ``ld`` and DMA)
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


@dataclass
class Traffic(_Counters):
    """What moved besides: L1 seen from the side of retention, per-thread accesses, registers.

    =========================  ===========================================================================
    ``l1_hits``                line touches of B's columns that L1 served
    ``retained_lines``         lines that a ``t1`` walk has brought under retention
    ``released_lines``         of these, every element of which has been selected since
    ``pin_evictions``          retained lines that were evicted all the same (``retention='evict'``)
    ``bypasses``               misses served without a place in L1 (``retention='bypass'``)
    ``load_lines``             lines that ``ld`` asked for; ``load_bytes`` of elements
    ``store_lines``            likewise ``st``; ``store_bytes``
    ``register_reads``         per-thread registers read, over all threads and instructions
    ``register_writes``        likewise written
    ``vector_ops``             registers that vector instructions worked on, over all threads
    ``special_ops``            of these, functions and divisions
    =========================  ===========================================================================
    """

    l1_hits: int = 0
    retained_lines: int = 0
    released_lines: int = 0
    pin_evictions: int = 0
    bypasses: int = 0
    load_lines: int = 0
    load_bytes: int = 0
    store_lines: int = 0
    store_bytes: int = 0
    register_reads: int = 0
    register_writes: int = 0
    vector_ops: int = 0
    special_ops: int = 0


LEVELS, OPERANDS = ("l1", "l2", "dram"), ("a", "b", "c", "dma")
"""Levels of the memory system, and whose bytes pass them."""


@dataclass
class Moved(_Counters):
    """Every byte that passed a level of the memory system, by operand, and what was multiplied, by type.

    =========================  ===========================================================================
    ``l1_a``, ``_b``, ``_c``   bytes through the load-store unit: of ``ld``, of the columns of ``mm``, of ``st``
    ``l2_a``, ``_b``, ``_c``   bytes over L2's bus: what ``ld`` and ``st`` ask for, whole lines that L1 fetches
    ``l2_dma``                 bytes of pages that DMA moved
    ``dram_a``, ``_b``         bytes of lines that L2 fetched from device memory
    ``dram_c``                 bytes of lines that were stored to and go back to device memory
    ``dram_dma``               as ``l2_dma``
    ``rows_open``              lines found in a row that was open (only where ``dram`` has rows)
    ``rows_opened``            rows opened for the others
    ``macs_int8`` ...          multiplications, by the type of their factors (4 bits: as 8)
    =========================  ===========================================================================
    """

    l1_a: int = 0
    l1_b: int = 0
    l1_c: int = 0
    l2_a: int = 0
    l2_b: int = 0
    l2_c: int = 0
    l2_dma: int = 0
    dram_a: int = 0
    dram_b: int = 0
    dram_c: int = 0
    dram_dma: int = 0
    rows_open: int = 0
    rows_opened: int = 0
    macs_int8: int = 0
    macs_int16: int = 0
    macs_int32: int = 0
    macs_f8: int = 0
    macs_f16: int = 0
    macs_f32: int = 0

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Level by level, bytes by operand.

        >>> Moved(l2_a=64).bytes["l2"]
        {'a': 64, 'b': 0, 'c': 0, 'dma': 0}
        """
        return {level: {one: getattr(self, f"{level}_{one}", 0) for one in OPERANDS} for level in LEVELS}


# Energy: a model beside cycles.

SOURCE = (
    "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, figure 1.1.9: 45 nm, 0.9 V; "
    "SRAM between and beyond its sizes by the slope of the nearest two, products of 16-bit integers and "
    "8-bit floats by the square of bits"
)
MULTIPLY = {"int8": 0.2, "int16": 0.8, "int32": 3.1, "f8": 0.2, "f16": 1.1, "f32": 3.7}
ADD = {"int8": 0.1, "int16": 0.1, "int32": 0.1, "f8": 0.9, "f16": 0.9, "f32": 0.9}
"""pJ of a product by its factors' type, and of adding it in 32 bits."""
SRAM = ((8 << 10, 10.0), (32 << 10, 20.0), (1 << 20, 100.0))
"""pJ of 8 bytes from a cache of so many bytes."""
SPECIAL = 8
"""A function or division of the vector unit, as so many multiplications and additions of float32."""
DRAM = 1950.0
"""pJ of 8 bytes from device memory: the middle of 1.3 to 2.6 nJ."""


def sram_pj(size: int) -> float:
    """Energy in pJ of 8 bytes from an SRAM of ``size`` bytes.

    >>> sram_pj(8192), round(sram_pj(65536), 1)
    (10.0, 27.6)
    """
    (low, low_pj), (high, high_pj) = SRAM[:2] if size < SRAM[1][0] else SRAM[1:]
    slope = log2(high_pj / low_pj) / log2(high / low)
    return float(low_pj * (max(size, 1) / low) ** slope)


def energy(moved: Moved, traffic: Traffic, config: MatrixUnitConfig) -> dict[str, float]:
    """Energy in pJ of a run by where it went: ``math``, ``vector``, ``registers``, ``l1``, ``l2``, ``dram``.

    Every byte is counted once at each level it is read from or written to: a line that a miss brings in is read below
    and written above. Leakage, clocks and instructions are not in it.
    """
    sizes = {level: sum(each.values()) for level, each in moved.bytes.items()}
    bypassing = 0 if config.loads_through_l1 else moved.l1_a
    words = traffic.register_reads + traffic.register_writes
    l1 = sizes["l1"] - bypassing - moved.l1_c + moved.l2_b + (moved.l2_a if config.loads_through_l1 else 0)
    float_mac = MULTIPLY["f32"] + ADD["f32"]
    lines = sizes["l2"] + moved.dram_a + moved.dram_b + moved.dram_c
    return {
        "math": sum(getattr(moved, f"macs_{kind}") * (MULTIPLY[kind] + ADD[kind]) for kind in MULTIPLY),
        "vector": (traffic.vector_ops - traffic.special_ops) * ADD["f32"] + traffic.special_ops * SPECIAL * float_mac,
        "registers": words * sram_pj(4 * config.registers) / 2,
        "l1": l1 / 8 * sram_pj(config.l1_bytes),
        "l2": lines / 8 * sram_pj(config.l2_bytes) * (config.l2_bytes > 0),
        "dram": sizes["dram"] / 8 * DRAM,
    }


def math_cycles_at_least(moved: Moved, config: MatrixUnitConfig) -> float:
    """Cycles in which one processing element's threads could make these products, each as fast as it can."""
    total = 0.0
    for kind, size in (("int8", 1), ("int16", 2), ("int32", 4), ("f8", 1), ("f16", 2), ("f32", 4)):
        chunk = config.a_bytes // size
        rate = min(chunk, config.macs_per_thread_cycle or chunk) * config.columns_per_step * config.compute_threads
        total += getattr(moved, f"macs_{kind}") / rate
    return total
