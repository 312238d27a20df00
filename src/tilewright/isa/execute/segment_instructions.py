"""Instructions that take a segment: descriptors and their windows, page-table entries, DMA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe, map_page, move_in, move_out, unmap_page
from tilewright.isa.chip.storage import ABSENT, LOADING, Storage
from tilewright.isa.execute.operands import Handler, control_cost, number, spans, uniform_source
from tilewright.isa.language.errors import Faults
from tilewright.isa.language.program import Immediate, Instruction, SegmentName

SEGMENT_TABLE = 1024
"""Descriptors a processing element has room for."""


def _pages(pe: Pe, instruction: Instruction, place: int) -> tuple[Segment | None, list[int], Faults]:
    """The segment and the page numbers an instruction names; no pages, and a fault, where there are none such."""
    segment = pe.segment(number(instruction.operands[place - 1]))
    if segment is None:
        return None, [], [("unknown_segment", -1, -1)]
    if len(instruction.operands) <= place:
        return segment, list(range(segment.map.num_pages)), []
    page = uniform_source(pe, instruction.operands[place])
    inside = 0 <= page < segment.map.num_pages
    return segment, [page] if inside else [], [] if inside else [("page_fault", -1, -1)]


def _for_pages(operation: Callable[[Pe, Storage, int], str | None]) -> Handler:
    """The instruction that does something to each page it names; ``operation`` returns the kind of error, if any."""

    def execute(pe: Pe, instruction: Instruction) -> Faults:
        # operands
        segment, pages, faults = _pages(pe, instruction, 1)
        # cost: one issue, then the controller has it
        control_cost(pe, instruction)
        # operation, result
        for page in pages:
            assert segment is not None
            kind = operation(pe, segment.storage, page)
            faults += [(kind, page, -1)] if kind else []
        return faults

    return execute


def _bring_in(pe: Pe, storage: Storage, page: int) -> str | None:
    return None if move_in(pe.chip, storage, page, pe.clock.issue) else "l2_full"


def _write_back(pe: Pe, storage: Storage, page: int) -> None:
    """The run is over no sooner than the last page is out."""
    pe.clock.end = max(pe.clock.end, move_out(pe.chip, storage, page, pe.clock.issue))


def _delete(pe: Pe, storage: Storage, page: int) -> None:
    if storage.table.state[page] != ABSENT:
        unmap_page(pe.chip, storage, page)


def _dmawait(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    segment = pe.segment(number(instruction.operands[0]))
    # operation, cost
    pe.clock.wait("dmawait", 0 if segment is None else segment.table.settle())
    return [("unknown_segment", -1, -1)] if segment is None else []


def _dmastat(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    segment, pages, faults = _pages(pe, instruction, 2)
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
    return faults


def _segment(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    name = instruction.operands[1]
    assert isinstance(name, SegmentName)
    # operation, result
    handle = pe.names.get(name.name, 0)
    pe.uniform[number(instruction.operands[0])] = handle
    # cost
    control_cost(pe, instruction)
    return [] if handle else [("unknown_segment", -1, -1)]


def _segdef(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    of = pe.segment(number(instruction.operands[1]))
    fault = "unknown_segment" if of is None else "segment_table_full" if len(pe.segments) >= SEGMENT_TABLE else ""
    # operation, result
    if of is not None and not fault:
        new = Segment("", 0, of.storage, of.base, of.sizes)
        pe.uniform[number(instruction.operands[0])] = pe.add_segment(new)
    # cost
    control_cost(pe, instruction)
    return [(fault, -1, -1)] if fault else []


def _set_window(pe: Pe, instruction: Instruction) -> Faults:
    """``segbase`` and ``segsize``."""
    # operands
    segment = pe.segment(number(instruction.operands[0]))
    dim, value = instruction.operands[1], uniform_source(pe, instruction.operands[2])
    assert isinstance(dim, Immediate)
    # operation
    fault = "unknown_segment"
    if segment is not None:
        fault = "segment_out_of_range"
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
                pe.segments[segment.handle], fault = new, ""
    # cost
    control_cost(pe, instruction)
    return [(fault, -1, -1)] if fault else []


def _segget(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    segment, dim = pe.segment(number(instruction.operands[1])), instruction.operands[2]
    assert isinstance(dim, Immediate)
    # operation
    value, fault = 0, "unknown_segment"
    if segment is not None:
        table = segment.base if instruction.suffix("what") == "base" else segment.sizes
        inside = 1 <= dim.value <= len(table)
        value, fault = (int(np.asarray(table)[dim.value - 1]), "") if inside else (0, "segment_out_of_range")
    # result
    pe.uniform[number(instruction.operands[0])] = value
    # cost
    control_cost(pe, instruction)
    return [(fault, -1, -1)] if fault else []


SEGMENT_HANDLERS: dict[str, Handler] = {
    "segment": _segment,
    "segdef": _segdef,
    "segbase": _set_window,
    "segsize": _set_window,
    "segget": _segget,
    "ptmap": _for_pages(lambda pe, storage, page: map_page(pe.chip, storage, page)),
    "ptdel": _for_pages(_delete),
    "dmain": _for_pages(_bring_in),
    "dmaout": _for_pages(_write_back),
    "dmawait": _dmawait,
    "dmastat": _dmastat,
}
