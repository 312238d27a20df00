"""The machine's whole state, as plain dataclasses."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._caches import Cache
from tilewright.isa._clock import Clock
from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._counts import Counts
from tilewright.isa._errors import ErrorRecord, MatrixUnitError
from tilewright.isa._program import Instruction
from tilewright.isa._segments import Memory, Segment, make_segment

__all__ = ["MachineState", "start_state", "wrap"]

Array = np.ndarray[Any, Any]


def wrap(value: int) -> int:
    """A Python integer as a signed 32-bit one."""
    return (int(value) + 2**31) % 2**32 - 2**31


@dataclass
class MachineState:
    """One processing element and its memories.

    ==================  ================================================================================
    ``registers``       int32[threads, registers]: per-thread, raw 32-bit words
    ``predicates``      bool[threads, predicates]
    ``uniform``         uniform registers, signed 32-bit Python integers
    ``columns``         columns of an mm; ``rows``: active rows, None for as many as fit (``setmm``)
    ``store``           device memory followed by the part of L2 that holds pages, bytes
    ``segments``        descriptors by handle; ``names``: handles by the host's names
    ``l2_begin``        first byte of the part of ``store`` that is L2; ``l2_pages``: bytes taken there, by first byte
    ``next_pc``         where the running instruction sends the program
    ==================  ================================================================================
    """

    config: MatrixUnitConfig
    registers: Array
    predicates: Array
    uniform: list[int]
    columns: int
    store: Array
    segments: dict[int, Segment]
    names: dict[str, int]
    l2_begin: int
    l2_pages: dict[int, int]
    l1: Cache
    l2: Cache
    clock: Clock
    rows: int | None = None
    pc: int = 0
    next_pc: int = 0
    halted: bool = False
    executed: int = 0
    pin_evictions: int = 0
    counts: Counts = field(default_factory=Counts)
    errors: list[ErrorRecord] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def segment(self, register: int) -> Segment | None:
        """The segment whose handle a uniform register holds."""
        return self.segments.get(self.uniform[register])

    def view(self, dtype: Any) -> Array:
        """The store as elements of another type."""
        return self.store.view(dtype)

    def record(self, instruction: Instruction, found: list[tuple[str, int, int]]) -> None:
        """Add (kind, column, register) records; ``on_error`` decides what else happens, after the work in range."""
        if not found:
            return
        text = str(instruction)
        records = [ErrorRecord(self.pc, text, kind, column, register) for kind, column, register in found]
        self.errors += records
        first, more = records[0], f" (and {len(records) - 1} more)" if len(records) > 1 else ""
        if self.config.on_error == "raise":
            raise MatrixUnitError(f"{first}{more}", records=tuple(records), how="on_error='record' keeps going")
        if self.config.on_error == "warn":
            warnings.warn(f"{first}{more}", RuntimeWarning, stacklevel=2)


def start_state(config: MatrixUnitConfig, memory: Memory, tracing: bool = False) -> MachineState:
    """A machine at rest: registers, predicates and uniform registers 0, the tensors in device memory, caches empty."""
    segments: dict[int, Segment] = {}
    home = 0
    for handle, place in enumerate(memory, start=1):
        segment = make_segment(place, handle, home, config.line_bytes)
        segments[handle] = segment
        home += segment.total_bytes
    l2_lines = config.l2_bytes // config.line_bytes
    try:
        store = np.zeros(home + l2_lines * config.line_bytes, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than an address can count
        what = f"no room for {home} bytes of device memory and {config.l2_bytes} of L2"
        raise UsageError(what, how="give smaller tensors, or a smaller l2_bytes") from None
    for segment, place in zip(segments.values(), memory, strict=True):
        packed = segment.map.pack(place.array).view(np.uint8)
        store[segment.home : segment.home + segment.total_bytes] = packed
    lines = len(store) // config.line_bytes
    return MachineState(
        config=config,
        registers=np.zeros((config.threads, config.registers), np.int32),
        predicates=np.zeros((config.threads, config.predicates), bool),
        uniform=[0] * config.uniform_registers,
        columns=config.default_columns,
        store=store,
        segments=segments,
        names={segment.name: handle for handle, segment in segments.items()},
        l2_begin=home,
        l2_pages={},
        l1=Cache.of(lines, config.l1_bytes // config.line_bytes, config.l1_ways),
        l2=Cache.of(lines, l2_lines, config.l2_ways),
        clock=Clock(config, tracing),
    )
