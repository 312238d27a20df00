"""Energy by event, as a model beside cycles: published figures times what was counted."""

from __future__ import annotations

from math import log2

from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Moved, Traffic

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
    per_thread = 4 * config.registers
    l1 = sizes["l1"] - bypassing - moved.l1_c + moved.l2_b + (moved.l2_a if config.loads_through_l1 else 0)
    return {
        "math": sum(getattr(moved, f"macs_{kind}") * (MULTIPLY[kind] + ADD[kind]) for kind in MULTIPLY),
        "vector": (traffic.vector_ops - traffic.special_ops) * ADD["f32"]
        + traffic.special_ops * SPECIAL * (MULTIPLY["f32"] + ADD["f32"]),
        "registers": words * sram_pj(per_thread) / 2,
        "l1": l1 / 8 * sram_pj(config.l1_bytes),
        "l2": (sizes["l2"] + moved.dram_a + moved.dram_b + moved.dram_c)
        / 8
        * sram_pj(config.l2_bytes)
        * (config.l2_bytes > 0),
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
