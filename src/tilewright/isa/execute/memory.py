"""Per-thread loads and stores, and the instructions that take a segment: descriptors, page-table entries, DMA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import ABSENT, LOADING, Segment, Storage
from tilewright.isa.chip.state import Pe, move_in, move_out, unmap_page
from tilewright.isa.execute.operands import (
    Handler,
    Reach,
    all_loaded,
    control_cost,
    controlling,
    coordinates,
    count_of,
    number,
    offset_registers,
    pages_ready,
    reach_elements,
    spans,
    threads_on,
    translate,
    uniform_source,
)
from tilewright.isa.kernels import records
from tilewright.isa.kernels.records import Record, address, int64_tables
from tilewright.isa.language.errors import Array, Faults
from tilewright.isa.language.program import Instruction

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass
class _Access:
    """What a load or store asks for: ``counts[t]`` elements (at most ``most``) from ``at[t]``; registers ``words``."""

    segment: Segment
    at: Array
    counts: Array
    most: int
    dim: int
    stride: int
    words: int

    def reach(self) -> Reach:
        return reach_elements(self.segment, self.at, self.counts, self.most, self.dim, self.stride)


def _access(pe: Pe, instruction: Instruction) -> _Access | str:
    """What a load or store asks for, or the kind of error."""
    register, address = instruction.operands[0], instruction.address
    segment = pe.segment(address.segment)
    if segment is None:
        return "unknown_segment"
    count = count_of(pe, instruction, 2)
    most = max(0, int(np.max(count)))
    limit = pe.config.registers
    if number(register) + most > limit or address.offset + offset_registers(pe, segment) > limit:
        return "operand_out_of_range"
    dim = int(instruction.suffix("t") or 0)
    if dim >= len(segment.sizes):
        return "type_mismatch"
    per_word = 4 // segment.element_bytes
    if instruction.guard is None and np.ndim(count) == 0:
        counts = np.full(pe.config.threads, count * per_word)
    else:
        counts = np.where(threads_on(pe, instruction), count, 0) * per_word
    limit = int(instruction.suffix("n") or 0)
    if limit:
        counts = np.minimum(counts, limit)
    at = coordinates(pe, segment, address, pe.config.threads)
    stride = int(instruction.suffix("s") or 1)
    return _Access(segment, at, counts, most * per_word, dim, stride, most)


def transfer_record(
    pe: Pe, segment: Segment, instruction: Instruction, coordinates: Array, counts: Array, storing: bool = False
) -> Record:
    """What the kernel of loads and stores is given: ``counts[t]`` elements from ``coordinates[t]``, int64 both."""
    storage, table, e = segment.storage, segment.table, segment.element_bytes
    dim, stride = int(instruction.suffix("t") or 0), int(instruction.suffix("s") or 1)
    first = address(pe.file, np.int32) + 4 * number(instruction.operands[0])
    values: dict[str, Any] = {"threads": len(coordinates), "dims": coordinates.shape[1], "storing": storing}
    values |= int64_tables(coordinates=coordinates, counts=counts, sizes=segment.sizes, starts=segment.starts)
    values |= int64_tables(pages_of=storage.pages_of, offsets_of=storage.offsets_of, phys=table.phys)
    values |= {"dim": dim, "stride": stride, "element_bytes": e, "dirty": table.dirty}
    values |= {"line_shift": (segment.map.line_elements * e).bit_length() - 1, "registers": first}
    values |= {"pitch": pe.file.strides[0], "store": pe.chip.store}
    values |= {"in_l2": table.in_l2, "memory": pe.clock.port.links, "page_bytes": storage.page_bytes}
    return Record(records.TRANSFER, values)


def _cost(
    pe: Pe, instruction: Instruction, access: _Access, elements: int, requests: int, fetched: int | None = None
) -> None:
    """``requests``: lines asked for; ``fetched``: those that L1 fetched, where it was asked."""
    register, address = instruction.operands[0], instruction.address
    load, present = instruction.name != "st", elements * access.segment.element_bytes
    size = present if fetched is None else fetched * pe.config.line_bytes
    if load:
        pe.clock.port.count(l1_a=present, l2_a=size)
        pe.counts.a_bytes_loaded += present
        pe.traffic.load_lines += requests
        pe.traffic.load_bytes += present
        pe.traffic.register_writes += -(-present // 4)
    else:
        pe.clock.port.count(l1_c=present, l2_c=size)
        pe.traffic.store_lines += requests
        pe.traffic.store_bytes += present
        pe.traffic.register_reads += -(-present // 4)
    clock, data = pe.clock, pe.clock.span("r", number(register), access.words)
    reads = [clock.span("ur", address.segment), clock.span("r", address.offset, offset_registers(pe, access.segment))]
    reads += spans(pe, instruction, instruction.operands[2:])
    written = [data] if load and access.words else []
    clock.transfer(instruction.name, reads if load else [*reads, data], written, requests, size, not load)


def _move(pe: Pe, instruction: Instruction) -> Faults:
    """``ld``, ``st``, and ``ldb``, with which what the first thread that is on asks for goes to all that are."""
    from tilewright.isa.kernels.memory_kernels import transfer

    # operands
    access, name = _access(pe, instruction), instruction.name
    if isinstance(access, str):
        pe.clock.step("control", name)
        return [(access, -1, -1)]
    c, segment, storing, faults = pe.config, access.segment, name == "st", list[tuple[str, int, int]]()
    on = threads_on(pe, instruction) if name == "ldb" else None
    first = 0 if on is None else int(on.argmax())
    if on is not None:
        access.at, access.counts = access.at[first : first + 1], access.counts[first : first + 1]
    pe.clock.port.begin()
    words = pe.registers[:, number(instruction.operands[0]) :][:, : access.words]
    there: Any = None
    if on is not None or pe.written is not None or c.page_hit_cycles or c.page_miss_cycles or not all_loaded(segment):
        reach = access.reach()
        pe.clock.until(pages_ready(segment, reach), "page")
        translate(pe, segment, reach)
        faults, there = reach.faults(), reach.there if on is None else on[:, None] & reach.there
    # operation, result
    record = transfer_record(pe, segment, instruction, access.at, access.counts, storing)
    record["registers"] += first * pe.file.strides[0]
    if pe.heat is not None:
        kind = records.LINE_ACCESSES.index("stores" if storing else "loads")
        record["seen"] = address(pe.heat[segment.storage.name], np.int64) + 8 * kind
    if c.loads_through_l1 and not storing:
        record["l1"], record["bypass"] = address(pe.l1.cells, np.int64), c.retention == "bypass"
    transfer(record.numbers)
    if on is not None:
        window = np.ascontiguousarray(words)
        elements = window.view(_WORDS[segment.element_bytes])
        np.copyto(elements, elements[first].copy(), where=there)
        words[:] = window
    if pe.written is not None and not storing and access.words:
        register = number(instruction.operands[0])
        pe.written[:, register : register + access.words] |= there.reshape(*words.shape, -1).any(axis=2)
    # cost
    _cost(pe, instruction, access, record["elements"], record["lines"], record["fetched"] if record["l1"] else None)
    if on is not None:
        others = max(0, int(np.count_nonzero(on)) - 1)
        pe.traffic.register_writes += others * -(-record["elements"] * segment.element_bytes // 4)
    return faults


MEMORY_HANDLERS: dict[str, Handler] = {"ld": _move, "st": _move, "ldb": _move}


# Instructions that take a segment: descriptors and their windows, page-table entries, DMA.

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


def _write_back(pe: Pe, storage: Storage, page: int) -> None:
    """Move a page to device memory; the run ends no sooner than it is there."""
    pe.clock.end = max(pe.clock.end, move_out(pe, storage, page, pe.clock.issue))


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
    name = str(instruction.operands[1]).removeprefix("$")
    # operation, result
    handle = pe.names.get(name, 0)
    pe.uniform[number(instruction.operands[0])] = handle
    return [] if handle else [("unknown_segment", -1, -1)]


def _segdef(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    of = pe.segment(number(instruction.operands[1]))
    fault = "unknown_segment" if of is None else "segment_table_full" if len(pe.segments) >= SEGMENT_TABLE else ""
    # operation, result
    if of is not None and not fault:
        new = Segment("", 0, of.storage, of.base, of.sizes)
        pe.uniform[number(instruction.operands[0])] = pe.add_segment(new)
    return [(fault, -1, -1)] if fault else []


def _set_window(pe: Pe, instruction: Instruction) -> Faults:
    """``segbase`` and ``segsize``."""
    # operands
    segment = pe.segment(number(instruction.operands[0]))
    dim, value = (uniform_source(pe, o) for o in instruction.operands[1:])
    # operation
    fault = "unknown_segment"
    if segment is not None:
        fault = "segment_out_of_range"
        base, sizes = segment.base.copy(), segment.sizes.copy()
        if 1 <= dim <= len(sizes):
            room = segment.storage.sizes[dim - 1]
            if instruction.name == "segbase":
                # The window slides as far as it can and is cut where the storage ends.
                base[dim - 1] = value
                sizes[dim - 1] = min(int(sizes[dim - 1]), int(room) - value)
            else:
                sizes[dim - 1] = value
            new = segment.window(base, sizes)
            # result
            if new is not None:
                if pe.walked[0] == segment.handle:  # its walk is over
                    pe.release_retained()
                pe.segments[segment.handle], fault = new, ""
    return [(fault, -1, -1)] if fault else []


def _segget(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    segment, dim = pe.segment(number(instruction.operands[1])), uniform_source(pe, instruction.operands[2])
    # operation
    value, fault = 0, "unknown_segment"
    if segment is not None:
        table = segment.base if instruction.suffix("what") == "base" else segment.sizes
        inside = 1 <= dim <= len(table)
        value, fault = (int(np.asarray(table)[dim - 1]), "") if inside else (0, "segment_out_of_range")
    # result
    pe.uniform[number(instruction.operands[0])] = value
    return [(fault, -1, -1)] if fault else []


SEGMENT_HANDLERS: dict[str, Handler] = {
    "segment": controlling(_segment),
    "segdef": controlling(_segdef),
    "segbase": controlling(_set_window),
    "segsize": controlling(_set_window),
    "segget": controlling(_segget),
    "ptmap": _for_pages(lambda _, storage, page: storage.map_pages([page])),
    "ptdel": _for_pages(lambda pe, storage, page: unmap_page(pe.chip, storage, page)),
    "dmain": _for_pages(lambda pe, s, page: None if move_in(pe, s, page, pe.clock.issue) else "l2_full"),
    "dmaout": _for_pages(_write_back),
    "dmawait": _dmawait,
    "dmastat": _dmastat,
}
