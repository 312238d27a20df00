"""What instructions have in common: reading operands, writing results, and their place on the scoreboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import ABSENT, Segment
from tilewright.isa.chip.state import Pe, wrap
from tilewright.isa.language.errors import Array, Faults
from tilewright.isa.language.program import Address, Float, Immediate, Instruction, Operand, Register
from tilewright.layout import paged

Handler = Callable[[Pe, Instruction], Faults | None]
"""One instruction: it changes the processing element, and returns what it has to report."""


@cache
def numpy_type(dtype: str) -> Any:
    """The numpy type of an element type of the machine."""
    return paged((1,), dtype).numpy_dtype


def number(operand: Operand) -> int:
    """The number of a register operand (the assembler saw to it that it is one)."""
    assert isinstance(operand, Register)
    return operand.number


def source(pe: Pe, operand: Operand) -> Any:
    """The value of r, ur, imm or float: int64[threads], or one Python integer."""
    if isinstance(operand, Register) and operand.kind == "r":
        return pe.registers[:, operand.number].astype(np.int64)
    return uniform_source(pe, operand)


def uniform_source(pe: Pe, operand: Operand) -> int:
    """The value of ur, imm or float as a signed 32-bit integer."""
    if isinstance(operand, Immediate):
        return wrap(operand.value)
    if isinstance(operand, Float):
        return wrap(operand.bits)
    return pe.uniform[number(operand)]


def count_of(pe: Pe, instruction: Instruction, place: int, default: int = 1) -> Any:
    """An optional count operand: an integer, or int64[threads], 0 in threads the guard keeps out."""
    if len(instruction.operands) <= place:
        return default
    count = source(pe, instruction.operands[place])
    return np.where(threads_on(pe, instruction), count, 0) if np.ndim(count) else count


def threads_on(pe: Pe, instruction: Instruction) -> Array:
    """bool[threads]: the guard's predicate, all true without a guard."""
    if instruction.guard is None:
        return np.ones(pe.config.threads, bool)
    return pe.predicates[:, instruction.guard.predicate] ^ instruction.guard.negated


def spans(pe: Pe, instruction: Instruction, operands: tuple[Operand, ...], guard: bool = True) -> list[slice]:
    """The scoreboard's places of register operands and, for what is read, of the guard."""
    places = [pe.clock.span(o.kind, o.number) for o in operands if isinstance(o, Register)]
    if guard and instruction.guard is not None:
        places.append(pe.clock.span("p", instruction.guard.predicate))
    return places


def write(pe: Pe, instruction: Instruction, value: Any) -> None:
    """Put a value (integers modulo 2^32, or booleans for a predicate) in the first operand, where the guard is true."""
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    if destination.kind == "ur":
        pe.uniform[destination.number] = wrap(value)
        return
    on = True if instruction.guard is None else threads_on(pe, instruction)
    if destination.kind == "p":
        np.copyto(pe.predicates[:, destination.number], value, where=on)
        return
    words = np.asarray(value, np.int64).astype(np.uint32).view(np.int32)
    np.copyto(pe.registers[:, destination.number], words, where=on)
    pe.mark_written(destination.number, 1, on)
    pe.traffic.register_writes += pe.config.threads if on is True else int(np.count_nonzero(on))


def control_cost(pe: Pe, instruction: Instruction, latency: int = 1) -> None:
    """One issue of the control unit: every operand is read; a first one that the table writes is ready afterwards."""
    operands, table = instruction.operands, instruction.spec.operands
    written = operands[:1] if table and table[0].access == "write" else ()
    writes = spans(pe, instruction, written, guard=False)
    pe.clock.step("control", instruction.name, spans(pe, instruction, operands), writes, latency)


def controlling(operation: Handler) -> Handler:
    """The instruction that does ``operation`` (operands, operation, result); cost: one issue of the control unit."""

    def execute(pe: Pe, instruction: Instruction) -> Faults | None:
        faults = operation(pe, instruction)
        control_cost(pe, instruction)
        return faults

    return execute


def scalar_cost(pe: Pe, instruction: Instruction) -> None:
    """One issue; the first operand is ready after the table's latency, the others are read."""
    spec, operands = instruction.spec, instruction.operands
    reads, writes = spans(pe, instruction, operands[1:]), spans(pe, instruction, operands[:1], guard=False)
    per_thread = sum(isinstance(o, Register) and o.kind == "r" for o in operands[1:])
    pe.traffic.register_reads += per_thread * pe.config.threads
    latency = getattr(pe.config, spec.latency) if spec.latency else 1
    pe.clock.step(spec.unit, instruction.name, reads, writes, latency)


# Which elements threads and loaders reach, where they stand, and the lines of them through the caches.


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
class Reach:
    """Elements that threads (or loaders) reach, [n, most] each.

    ``ids``: place in the segment's pages, -1 for absent elements, -2 on an absent page. ``places``: place in the store,
    in elements (0 for absent ones). ``present``: int64[n], how many are there; ``faulted``: bool[n], on an absent page.
    """

    ids: Array
    places: Array
    present: Array
    faulted: Array

    @property
    def there(self) -> Array:
        """bool[n, most]: the elements that are there."""
        return self.ids >= 0

    def faults(self) -> Faults:
        """One for every thread that met an absent page."""
        return [("page_fault", j, -1) for j in np.flatnonzero(self.faulted).tolist()]


def reach_elements(segment: Segment, at: Array, counts: Array, most: int, dim: int, stride: int = 1) -> Reach:
    """From coordinates ``at`` (int64[n, D], d1 first), ``counts[j]`` elements ``stride`` apart along ``dim``."""
    storage, sizes, starts = segment.storage, segment.sizes, segment.starts
    x = at[:, dim, None] + np.arange(most) * stride
    inside = (np.arange(most) < counts[:, None]) & (x >= 0) & (x < sizes[dim])
    page, offset = np.zeros((2, len(at), 1), np.int64)
    for d in (d for d in range(at.shape[1]) if d != dim):
        along = (at[:, d] >= 0) & (at[:, d] < sizes[d])
        where = starts[d] + np.where(along, at[:, d], 0)[:, None]
        inside &= along[:, None]
        page, offset = page + storage.pages_of[where], offset + storage.offsets_of[where]
    where = starts[dim] + np.where(inside, x, 0)
    page, offset = page + storage.pages_of[where], offset + storage.offsets_of[where]
    phys = segment.table.phys[page]
    there = inside & (phys >= 0)
    ids = np.where(there, page * segment.map.page_elements + offset, np.where(inside, -2, -1))
    places = np.where(there, phys // segment.element_bytes + offset, 0)
    return Reach(ids, places, there.sum(axis=1), (inside & ~there).any(axis=1))


def grid_index(threads: Array, registers: Array) -> Any:
    """What selects these registers of these threads: slices, which are faster, where the numbers are equally spaced."""
    slices = []
    for numbers in (threads, registers):
        step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
        if step < 1 or (np.diff(numbers) != step).any():
            return threads[:, None], registers
        slices.append(slice(int(numbers[0]), int(numbers[-1]) + 1, step))
    return tuple(slices)


def all_loaded(segment: Segment) -> bool:
    """Whether every page has its entry, and none is on its way."""
    table = segment.table
    return not table.loading and bool((table.state != ABSENT).all())


def pages_ready(segment: Segment, reach: Reach) -> int:
    """The cycle at which all pages that are reached have arrived, 0 where none was on its way; marks them as loaded."""
    if not segment.table.loading:
        return 0
    return segment.table.settle(np.unique(reach.ids[reach.there] // segment.map.page_elements))


def translate(pe: Pe, segment: Segment, reach: Reach) -> None:
    """Count the address translations of the pages that were reached, where the configuration prices them."""
    if pe.config.page_hit_cycles or pe.config.page_miss_cycles:
        pe.translate(segment.table, np.unique(reach.ids[reach.there] // segment.map.page_elements))


# Element types: packed in the registers of a thread, low bytes first, and converted to one another with one rounding,
# the same on every machine.


NAN = 0x7FC00000
"""The NaN that comes out of every float instruction."""
_HOLDS: dict[str, Any] = {"s4": np.int8, "u4": np.uint8}


def unify_nans(out: Array) -> None:
    """Give every NaN of a float32 array the bits :data:`NAN`, in place."""
    nan = np.isnan(out)
    if nan.any():
        out.view(np.int32)[nan] = np.int32(NAN)


def unpack(words: Array, dtype: str, count: int) -> Array:
    """[threads, count] elements out of [threads, words of them]; 4-bit integers, one in a byte, as int8 or uint8."""
    raw: Array = np.ascontiguousarray(words).view(_HOLDS.get(dtype) or numpy_type(dtype))[:, :count]
    return _narrow(raw, dtype)


def pack(values: Array, old: Array) -> Array:
    """The words of ``old`` with these elements in their place, from the first on."""
    words: Array = np.ascontiguousarray(old)
    words.view(values.dtype)[:, : values.shape[1]] = values
    return words


def registers_of(dtype: str, count: int) -> int:
    """Registers that ``count`` packed elements take."""
    return -(-count * int(numpy_type(dtype).itemsize) // 4)


def ends_of(dtype: str) -> tuple[int, int]:
    """Least and greatest integer of a type.

    >>> ends_of("s4")
    (-8, 7)
    """
    bits = int(dtype[1:])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _narrow(values: Array, dtype: str) -> Array:
    """Integers modulo 16, where the type has 4 bits."""
    if dtype not in _HOLDS:
        return values
    return np.asarray(((values & 15) ^ 8) - 8 if dtype == "s4" else values & 15)


def to_integers(value: Array, dtype: str) -> Array:
    """Float64 numbers without fractions to a type that ends where it ends; a NaN is 0."""
    held = np.clip(value, *ends_of(dtype))
    nan = np.isnan(held)
    if nan.any():
        held[nan] = 0
    return np.asarray(held.astype(np.int64).astype(_HOLDS.get(dtype) or numpy_type(dtype)))


def convert(values: Array, source: str, target: str, nearest: bool = True, wrap: bool = False) -> Array:
    """Elements of type ``source`` as type ``target``, rounded once.

    ``nearest``: floats to integers by the nearest one (ties to even), else towards zero. ``wrap``: integers modulo the
    target's width, else clipped to its ends; floats beyond them are clipped always.
    """
    if source[0] in "su" and target[0] in "su":
        if not wrap:
            (low, high), (least, most) = ends_of(source), ends_of(target)
            values = np.clip(values, max(low, least), min(high, most))
        return _narrow(values.astype(_HOLDS.get(target) or numpy_type(target)), target)
    if target[0] in "su":
        wide = values.astype(np.float64)
        return to_integers(np.rint(wide) if nearest else np.trunc(wide), target)
    return _to_float(values, source, target)


def _to_float(values: Array, source: str, target: str) -> Array:
    kind = numpy_type(target)
    if source[0] in "su":
        # Through float64, which holds all of them; then to odd in float32, so that one rounding is left.
        wide = values.astype(np.float64)
        if target == "f32":
            return wide.astype(np.float32)
        values = _to_odd(wide)
    else:
        values = values.astype(np.float32)
    out = values.astype(kind)
    if kind != np.float32:
        nan = np.isnan(values)
        if nan.any():
            out[nan] = kind.type(np.nan)
            out.view(f"u{kind.itemsize}")[nan] &= (1 << (8 * kind.itemsize - 1)) - 1
    else:
        unify_nans(out)
    return out


def _to_odd(value: Array) -> Array:
    """Float64 to float32, towards zero but to the odd neighbour where that is not exact."""
    single = value.astype(np.float32)
    words = single.view(np.int32)
    over = np.abs(single.astype(np.float64)) > np.abs(value)
    words -= over
    words |= single.astype(np.float64) != value
    return single
