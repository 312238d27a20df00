"""Page-table entries and DMA, as instructions of a program."""

from __future__ import annotations

import numpy as np

from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe, map_page, move_in, move_out, unmap_page
from tilewright.isa.chip.storage import ABSENT, LOADING
from tilewright.isa.execute.operands import Handler, number, spans, uniform_source
from tilewright.isa.language.program import Immediate, Instruction, Register, SegmentName

Records = list[tuple[str, int, int]]


def _pages(pe: Pe, instruction: Instruction, place: int) -> tuple[Segment | None, list[int], Records]:
    """The segment and the page numbers an instruction names; no pages, and a record, where there are none such."""
    segment = pe.segment(number(instruction.operands[place - 1]))
    if segment is None:
        return None, [], [("unknown_segment", -1, -1)]
    if len(instruction.operands) <= place:
        return segment, list(range(segment.map.num_pages)), []
    page = uniform_source(pe, instruction.operands[place])
    inside = 0 <= page < segment.map.num_pages
    return segment, [page] if inside else [], [] if inside else [("page_fault", -1, -1)]


def _step(pe: Pe, instruction: Instruction) -> None:
    pe.clock.step("control", instruction.name, spans(pe, instruction, instruction.operands))


def _dmain(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, pages, bad = _pages(pe, instruction, 1)
    # cost: one issue, then the controller has it
    _step(pe, instruction)
    # operation, result
    for page in pages:
        assert segment is not None
        if not move_in(pe.chip, segment.storage, page, pe.clock.issue):
            bad.append(("l2_full", page, -1))
    pe.record(instruction, bad)


def _dmaout(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, pages, bad = _pages(pe, instruction, 1)
    # cost
    _step(pe, instruction)
    # operation, result: the run is over when the last page is out
    for page in pages:
        assert segment is not None
        done = move_out(pe.chip, segment.storage, page, pe.clock.issue)
        pe.clock.end = max(pe.clock.end, done)
    pe.record(instruction, bad)


def _ptmap(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, pages, bad = _pages(pe, instruction, 1)
    # operation, result
    for page in pages:
        assert segment is not None
        map_page(pe.chip, segment.storage, page)
    # cost
    _step(pe, instruction)
    pe.record(instruction, bad)


def _ptdel(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, pages, bad = _pages(pe, instruction, 1)
    # operation, result
    for page in pages:
        assert segment is not None
        if segment.table.state[page] != ABSENT:
            unmap_page(pe.chip, segment.storage, page)
    # cost
    _step(pe, instruction)
    pe.record(instruction, bad)


def _dmawait(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment = pe.segment(number(instruction.operands[0]))
    # operation, cost
    pe.clock.wait("dmawait", 0 if segment is None else segment.table.settle())
    pe.record(instruction, [("unknown_segment", -1, -1)] if segment is None else [])


def _dmastat(pe: Pe, instruction: Instruction) -> None:
    # operands
    segment, pages, bad = _pages(pe, instruction, 2)
    # operation
    value = ABSENT
    if segment is not None and pages:
        value = int(segment.table.state[pages].min())
        if value == LOADING:  # whoever asks again finds it done: what a program sees must not depend on time
            pe.clock.wait("dmastat", segment.table.settle())
    # result
    pe.uniform[number(instruction.operands[0])] = value
    # cost
    pe.clock.step("control", "dmastat", (), spans(pe, instruction, instruction.operands[:1]))
    pe.record(instruction, bad)


PAGE_HANDLERS: dict[str, Handler] = {
    "ptmap": _ptmap,
    "ptdel": _ptdel,
    "dmain": _dmain,
    "dmaout": _dmaout,
    "dmawait": _dmawait,
    "dmastat": _dmastat,
}


# Segment descriptors: handles by the host's names, and windows the program makes itself.

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
