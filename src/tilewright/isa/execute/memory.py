"""Addresses, and the per-thread loads and stores that use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.chip.storage import ABSENT
from tilewright.isa.execute.operands import Handler, count_of, number, spans, threads_on
from tilewright.isa.kernels.blocks import T_ELEMENTS, T_LINES, Block, address, longs
from tilewright.isa.language.program import Address, Instruction

Array = np.ndarray[Any, Any]
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def offset_registers(pe: Pe, segment: Segment) -> int:
    """Registers an address takes from rfO: one per dim, or one (``offset_mode='linear'``)."""
    return 1 if pe.config.offset_mode == "linear" else len(segment.sizes)


def coordinates(pe: Pe, segment: Segment, address: Address, n: int) -> Array:
    """int64[n, D], d1 first: what the first ``n`` threads' offset registers and the immediate say."""
    if pe.config.offset_mode == "linear":
        # One number in the mixed radix of the sizes; the last dim takes what is left, so too large stays too large.
        rest = pe.registers[:n, address.offset].astype(np.int64) + address.immediate
        at = np.empty((n, len(segment.sizes)), np.int64)
        for d, size in enumerate(segment.sizes[:-1]):
            rest, at[:, d] = np.divmod(rest, size)
        at[:, -1] = rest
        return at
    at = pe.registers[:n, address.offset : address.offset + len(segment.sizes)].astype(np.int64)
    at[:, 0] += address.immediate
    return at


@dataclass
class Walk:
    """Elements that threads (or loaders) reach, [n, most] each.

    ``ids``: place in the segment's pages, -1 for absent elements, -2 on an absent page. ``places``: place in the store,
    in elements (0 for absent ones). ``found``: per walk, elements there, of these before the first absent one, and
    elements on absent pages.
    """

    ids: Array
    places: Array
    found: Array

    @property
    def there(self) -> Array:
        """bool[n, most]: the elements that are there."""
        return self.ids >= 0

    @property
    def present(self) -> Array:
        """int64[n]: how many are there."""
        return self.found[:, 0]

    def faults(self) -> list[tuple[str, int, int]]:
        """One record for every walk that met an absent page."""
        return [("page_fault", j, -1) for j in np.flatnonzero(self.found[:, 2]).tolist()]


def walk_elements(segment: Segment, at: Array, counts: Array, most: int, dim: int, stride: int = 1) -> Walk:
    """From coordinates ``at`` (int64[n, D], d1 first), ``counts[j]`` elements ``stride`` apart along ``dim``."""
    from tilewright.isa.kernels.traffic_kernels import walk

    ids, places = np.empty((len(at), most), np.int64), np.empty((len(at), most), np.int64)
    found = np.empty((len(at), 3), np.int64)
    shape, tables = (segment.sizes, segment.starts), (segment.storage.pages_of, segment.storage.offsets_of)
    pages = (segment.map.page_elements, segment.element_bytes, segment.table.phys)
    walk(at, counts, shape, tables, pages, dim, stride, ids, places, found)
    return Walk(ids, places, found)


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

    def walk(self) -> Walk:
        """Every element of it."""
        return walk_elements(self.segment, self.at, self.counts, self.most, self.dim, self.stride)


def _access(pe: Pe, instruction: Instruction) -> _Access | str:
    """What a load or store asks for, or the kind of error."""
    register, address = instruction.operands[:2]
    assert isinstance(address, Address)
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
    on = threads_on(pe, instruction)
    per_word = 4 // segment.element_bytes
    counts = np.where(on, count, 0) * per_word
    limit = int(instruction.suffix("n") or 0)
    if limit:
        counts = np.minimum(counts, limit)
    at = coordinates(pe, segment, address, pe.config.threads)
    stride = int(instruction.suffix("s") or 1)
    return _Access(segment, at, counts, most * per_word, dim, stride, most)


def at_hand(segment: Segment) -> bool:
    """Whether every page has its entry, and none is on its way."""
    table = segment.table
    return not table.loading and bool((table.state != ABSENT).all())


def transfer_block(
    pe: Pe, segment: Segment, instruction: Instruction, at: Array, wanted: Array, storing: bool = False
) -> Block:
    """What the kernel of loads and stores is given: ``wanted[t]`` elements from ``at[t]``, int64 both."""
    storage, table, e = segment.storage, segment.table, segment.element_bytes
    shift = (segment.map.line_elements * e).bit_length() - 1
    dim, stride = int(instruction.suffix("t") or 0), int(instruction.suffix("s") or 1)
    tables = longs(segment.sizes, segment.starts, storage.pages_of, storage.offsets_of, table.phys)
    first = address(pe.file, np.int32) + 4 * number(instruction.operands[0])
    where = dim, stride, e, shift, first, pe.file.strides[0], address(pe.chip.store, np.uint8)
    return Block(*at.shape, *longs(at, wanted), *tables, table.dirty, *where, storing, 0, 0)


def _moved(pe: Pe, instruction: Instruction, access: _Access) -> tuple[int, int] | None:
    """Do it in one call where no one could tell: (elements there, lines), or None."""
    from tilewright.isa.kernels.transfer_kernels import transfer

    segment, storing = access.segment, instruction.name == "st"
    if pe.written is not None or pe.config.loads_through_l1 or not at_hand(segment):
        return None
    block = transfer_block(pe, segment, instruction, access.at, access.counts, storing)
    transfer(block.cells)
    return int(block.cells[T_ELEMENTS]), int(block.cells[T_LINES])


def pages_ready(segment: Segment, walk: Walk) -> int:
    """The cycle at which the pages a walk touches are there; from now on they are loaded (0: they were)."""
    if not segment.table.loading:
        return 0
    return segment.table.settle(np.unique(walk.ids[walk.there] // segment.map.page_elements))


def _cost(pe: Pe, instruction: Instruction, access: _Access, elements: int, requests: int) -> None:
    register, address = instruction.operands[:2]
    assert isinstance(address, Address)
    load, present = instruction.name == "ld", elements * access.segment.element_bytes
    if load:
        pe.counts.a_bytes_loaded += present
        pe.traffic.load_lines += requests
        pe.traffic.load_bytes += present
        pe.traffic.register_writes += -(-present // 4)
    else:
        pe.traffic.store_lines += requests
        pe.traffic.store_bytes += present
        pe.traffic.register_reads += -(-present // 4)
    clock, data = pe.clock, pe.clock.span("r", number(register), access.words)
    reads = [clock.span("ur", address.segment), clock.span("r", address.offset, offset_registers(pe, access.segment))]
    reads += spans(pe, instruction, instruction.operands[2:])
    written = [data] if load and access.words else []
    clock.transfer(instruction.name, reads if load else [*reads, data], written, requests)


def _loaded(pe: Pe, first: int, words: int, segment: Segment, reach: Walk) -> None:
    values = pe.chip.view(_WORDS[segment.element_bytes])[reach.places]
    window = np.ascontiguousarray(pe.registers[:, first : first + words])
    np.copyto(window.view(_WORDS[segment.element_bytes]), values, where=reach.there)
    pe.registers[:, first : first + words] = window
    if pe.written is not None and words:
        pe.written[:, first : first + words] |= reach.there.reshape(len(window), words, -1).any(axis=2)


def _stored(pe: Pe, first: int, words: int, segment: Segment, reach: Walk) -> None:
    word, there = _WORDS[segment.element_bytes], reach.there
    values = np.ascontiguousarray(pe.registers[:, first : first + words]).view(word)
    pe.chip.view(word)[reach.places[there]] = values[there]
    segment.table.dirty[np.unique(reach.ids[there] // segment.map.page_elements)] = True


def _through_l1(pe: Pe, segment: Segment, reach: Walk) -> None:
    from tilewright.isa.kernels.traffic_kernels import touch_lines

    lines = np.where(reach.there, reach.places // segment.map.line_elements, -1).reshape(-1)
    touch_lines(lines, pe.config.retention == "bypass", pe.l1.arrays(), pe.chip.l2.arrays())


def _seen(pe: Pe, access: _Access, load: bool) -> None:
    """A profile wants to know which lines are asked for."""
    from tilewright.isa.study.heat import KINDS
    from tilewright.isa.kernels.heat_kernels import see_lines

    assert pe.heat is not None
    segment, reach, kind = access.segment, access.walk(), KINDS.index("loads" if load else "stores")
    see_lines(reach.ids, reach.places, segment.map.line_elements, kind, pe.heat[segment.storage.name])


def _move(pe: Pe, instruction: Instruction) -> None:
    """``ld`` and ``st``."""
    from tilewright.isa.kernels.traffic_kernels import count_lines

    # operands
    access, load = _access(pe, instruction), instruction.name == "ld"
    if isinstance(access, str):
        pe.clock.step("control", instruction.name)
        pe.record(instruction, [(access, -1, -1)])
        return
    if pe.heat is not None:
        _seen(pe, access, load)
    # operation, result and cost, where every page is at hand
    done = _moved(pe, instruction, access)
    if done is not None:
        _cost(pe, instruction, access, *done)
        return
    # operation
    segment, first, reach = access.segment, number(instruction.operands[0]), access.walk()
    pe.clock.until(pages_ready(segment, reach), "page")
    # result
    (_loaded if load else _stored)(pe, first, access.words, segment, reach)
    # cost
    if load and pe.config.loads_through_l1:
        _through_l1(pe, segment, reach)
    lines = count_lines(reach.ids, reach.places, segment.map.line_elements)
    _cost(pe, instruction, access, int(reach.present.sum()), lines)
    pe.record(instruction, reach.faults())


MEMORY_HANDLERS: dict[str, Handler] = {"ld": _move, "st": _move}
