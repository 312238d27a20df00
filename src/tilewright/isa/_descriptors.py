"""Segment descriptors: handles by the host's names, and windows the program makes itself."""

from __future__ import annotations

import numpy as np

from tilewright.isa._operands import Handler, number, spans, uniform_source
from tilewright.isa._program import Immediate, Instruction, Register, SegmentName
from tilewright.isa._segments import Segment
from tilewright.isa._state import Pe

__all__ = ["DESCRIPTOR_HANDLERS", "SEGMENT_TABLE"]

SEGMENT_TABLE = 1024
"""Descriptors a processing element has room for."""


def _cost(pe: Pe, instruction: Instruction) -> None:
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    result = instruction.spec.operands[0].access == "write"
    writes = [pe.clock.span("ur", destination.number)] if result else []
    pe.clock.step("control", instruction.name, spans(pe, instruction, instruction.operands), writes)


def _segment(pe: Pe, instruction: Instruction) -> None:
    # operands
    name = instruction.operands[1]
    assert isinstance(name, SegmentName)
    # operation, result
    handle = pe.names.get(name.name, 0)
    pe.uniform[number(instruction.operands[0])] = handle
    # cost
    _cost(pe, instruction)
    pe.record(instruction, [] if handle else [("unknown_segment", -1, -1)])


def _segdef(pe: Pe, instruction: Instruction) -> None:
    # operands
    of = pe.segment(number(instruction.operands[1]))
    bad = "unknown_segment" if of is None else "segment_table_full" if len(pe.segments) >= SEGMENT_TABLE else ""
    # operation, result
    if of is not None and not bad:
        new = Segment("", 0, of.storage, of.base, of.sizes)
        pe.uniform[number(instruction.operands[0])] = pe.add_segment(new)
    # cost
    _cost(pe, instruction)
    pe.record(instruction, [(bad, -1, -1)] if bad else [])


def _window(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment = pe.segment(number(instruction.operands[0]))
    dim, value = instruction.operands[1], uniform_source(pe, instruction.operands[2])
    assert isinstance(dim, Immediate)
    # operation
    bad = "unknown_segment"
    if segment is not None:
        bad = "segment_out_of_range"
        base, sizes = segment.base.copy(), segment.sizes.copy()
        if 1 <= dim.value <= len(sizes):
            room = segment.storage.sizes[dim.value - 1]
            if instruction.name == "segbase":
                # The window slides as far as it can and is cut where the storage ends.
                base[dim.value - 1] = value
                sizes[dim.value - 1] = min(int(sizes[dim.value - 1]), int(room) - value)
            else:
                sizes[dim.value - 1] = value
            new = segment.window(base, sizes)
            # result
            if new is not None:
                pe.segments[segment.handle], bad = new, ""
    # cost
    _cost(pe, instruction)
    pe.record(instruction, [(bad, -1, -1)] if bad else [])


def _segget(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, dim = pe.segment(number(instruction.operands[1])), instruction.operands[2]
    assert isinstance(dim, Immediate)
    # operation
    value, bad = 0, "unknown_segment"
    if segment is not None:
        table = segment.base if instruction.suffix("what") == "base" else segment.sizes
        inside = 1 <= dim.value <= len(table)
        value, bad = (int(np.asarray(table)[dim.value - 1]), "") if inside else (0, "segment_out_of_range")
    # result
    pe.uniform[number(instruction.operands[0])] = value
    # cost
    _cost(pe, instruction)
    pe.record(instruction, [(bad, -1, -1)] if bad else [])


DESCRIPTOR_HANDLERS: dict[str, Handler] = {
    "segment": _segment,
    "segdef": _segdef,
    "segbase": _window,
    "segsize": _window,
    "segget": _segget,
}
