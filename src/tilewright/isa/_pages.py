"""Page-table entries and DMA, as instructions of a program."""

from __future__ import annotations

from tilewright.isa._dma import map_page, move_in, move_out, unmap_page
from tilewright.isa._operands import Handler, number, spans, uniform_source
from tilewright.isa._program import Instruction
from tilewright.isa._segments import Segment
from tilewright.isa._state import Pe
from tilewright.isa._storage import ABSENT, LOADING

__all__ = ["PAGE_HANDLERS"]

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
