"""Branches, segment handles, setmm, halt, and the DMA of pages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.isa._alu import compare, number, spans, uniform_source
from tilewright.isa._program import Instruction, Label, SegmentName
from tilewright.isa._segments import ABSENT, LOADED, LOADING, Segment
from tilewright.isa._state import MachineState

__all__ = ["HANDLERS", "settle"]


def _step(state: MachineState, instruction: Instruction) -> None:
    state.clock.step("control", instruction.name, spans(state, instruction, instruction.operands), ())


def _jump(state: MachineState, instruction: Instruction) -> None:
    # operands
    label = instruction.operands[-1]
    assert isinstance(label, Label)
    # operation
    state.next_pc = state.labels[label.name]
    # cost
    _step(state, instruction)


def _br(state: MachineState, instruction: Instruction) -> None:
    # operands
    x, y = (uniform_source(state, o) for o in instruction.operands[:2])
    label = instruction.operands[2]
    assert isinstance(label, Label)
    # operation
    if compare(instruction.suffix("cond"), x, y):
        state.next_pc = state.labels[label.name]
    # cost
    _step(state, instruction)


def _setmm(state: MachineState, instruction: Instruction) -> None:
    # operands
    columns, *rows = (uniform_source(state, o) for o in instruction.operands)
    # operation
    wrong = not 1 <= columns <= state.config.threads or any(r < 1 for r in rows)
    if not wrong:
        state.columns, state.rows = columns, rows[0] if rows else None
    # cost
    _step(state, instruction)
    state.record(instruction, [("count_out_of_range", -1, -1)] if wrong else [])


def _segment(state: MachineState, instruction: Instruction) -> None:
    # operands
    name = instruction.operands[1]
    assert isinstance(name, SegmentName)
    # operation, result
    handle = state.names.get(name.name, 0)
    state.uniform[number(instruction.operands[0])] = handle
    # cost
    state.clock.step("control", "segment", (), spans(state, instruction, instruction.operands[:1]))
    state.record(instruction, [] if handle else [("unknown_segment", -1, -1)])


def _halt(state: MachineState, instruction: Instruction) -> None:
    # operation
    state.halted = True
    # cost
    _step(state, instruction)


def settle(state: MachineState, segment: Segment) -> int:
    """Entries that are loading become loaded; returns the cycle at which the last of them is (0: none was)."""
    loading = segment.table.state == LOADING
    if not loading.any():
        return 0
    segment.table.state[loading] = LOADED
    return int(segment.table.ready[loading].max())


def _pages(state: MachineState, instruction: Instruction, place: int) -> tuple[Segment | None, list[int]]:
    """The segment and the page numbers an instruction names; no pages when there is no such segment or page."""
    segment = state.segment(number(instruction.operands[place - 1]))
    if segment is None:
        return None, []
    if len(instruction.operands) <= place:
        return segment, list(range(segment.map.num_pages))
    page = uniform_source(state, instruction.operands[place])
    return segment, [page] if 0 <= page < segment.map.num_pages else []


def _room(state: MachineState, size: int) -> int | None:
    """The first byte of a free stretch of L2 (first fit), or None."""
    at = state.l2_begin
    for begin, taken in sorted(state.l2_pages.items()):
        if begin - at >= size:
            return at
        at = begin + taken
    return at if len(state.store) - at >= size else None


def _forget(state: MachineState, begin: int, size: int) -> None:
    """Lines of L1 that held what was at these bytes are no longer that."""
    from tilewright.isa._traffic_kernels import drop_lines

    line = state.config.line_bytes
    drop_lines(begin // line, (begin + size) // line, state.l1.arrays())


def _dmain(state: MachineState, instruction: Instruction) -> None:
    # operands
    segment, pages = _pages(state, instruction, 1)
    bad = [] if pages else [("unknown_segment" if segment is None else "page_fault", -1, -1)]
    # operation
    for page in pages:
        assert segment is not None
        table, size = segment.table, segment.page_bytes
        if table.in_l2[page]:
            continue
        begin = _room(state, size)
        if begin is None:
            bad.append(("l2_full", page, -1))
            continue
        home = segment.home + page * size
        state.store[begin : begin + size] = state.store[home : home + size]
        # result: the data is there at once for values; for time, when the transfer is done
        state.l2_pages[begin] = size
        _forget(state, begin, size)
        table.phys[page], table.state[page], table.in_l2[page], table.dirty[page] = begin, LOADING, True, False
        # cost
        table.ready[page] = state.clock.dma("dmain", size)
    state.record(instruction, bad)


def _dmaout(state: MachineState, instruction: Instruction) -> None:
    # operands
    segment, pages = _pages(state, instruction, 1)
    bad = [] if pages else [("unknown_segment" if segment is None else "page_fault", -1, -1)]
    # operation
    for page in pages:
        assert segment is not None
        table, size = segment.table, segment.page_bytes
        if table.state[page] == ABSENT:
            continue
        if table.in_l2[page]:
            begin = int(table.phys[page])
            del state.l2_pages[begin]
            if table.dirty[page]:
                home = segment.home + page * size
                state.store[home : home + size] = state.store[begin : begin + size]
                # cost
                state.clock.dma("dmaout", size)
        # result: a page moved out has no entry
        table.phys[page], table.state[page], table.in_l2[page] = -1, ABSENT, False
    state.record(instruction, bad)


def _dmawait(state: MachineState, instruction: Instruction) -> None:
    # operands
    segment = state.segment(number(instruction.operands[0]))
    # operation, cost
    state.clock.wait("dmawait", 0 if segment is None else settle(state, segment))
    state.record(instruction, [("unknown_segment", -1, -1)] if segment is None else [])


def _dmastat(state: MachineState, instruction: Instruction) -> None:
    # operands
    segment, pages = _pages(state, instruction, 2)
    # operation
    value = ABSENT
    if segment is not None and pages:
        value = int(np.min(segment.table.state[pages]))
        if value == LOADING:  # whoever asks again finds it done: what a program sees must not depend on time
            state.clock.wait("dmastat", settle(state, segment))
    # result
    state.uniform[number(instruction.operands[0])] = value
    # cost
    state.clock.step("control", "dmastat", (), spans(state, instruction, instruction.operands[:1]))
    missing = "unknown_segment" if segment is None else "page_fault"
    state.record(instruction, [] if pages else [(missing, -1, -1)])


HANDLERS: dict[str, Callable[[MachineState, Instruction], None]] = {
    "jump": _jump,
    "br": _br,
    "setmm": _setmm,
    "segment": _segment,
    "halt": _halt,
    "dmain": _dmain,
    "dmaout": _dmaout,
    "dmawait": _dmawait,
    "dmastat": _dmastat,
}
