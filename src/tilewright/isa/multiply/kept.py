"""Products asked for again: what one costs is known by then, and its values alone are made.

Nothing a product costs depends on what stands in A and B: its program branches on uniform registers and finds its
elements by the threads' numbers. So the machine runs a product twice; where both runs were without errors and cost the
same, and the values made here are theirs bit for bit, what it cost is kept with its plan, and the next one of that plan
is multiplied by the kernels alone, in the order the machine adds in.

The machines of the newest plans are kept, too, and put to rest for the next run of the same plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from tilewright.isa.chip.state import Pe, same_state
from tilewright.isa.execute.scalar import NAN
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.kernels.memory import fresh_zeros
from tilewright.kernels.threads import in_pieces

Array = np.ndarray[Any, Any]
Result = TypeVar("Result")

MOST = 64
"""Plans whose costs are kept, the newest. 0: none, every product is run instruction by instruction."""
_SMALL, _SHARED = 1 << 18, 1 << 22
"""Products up to which none of our own kernels is asked, and from which several threads share the work."""
_ROWS, _COLUMNS, _DEPTH, _WIDE = 64, 256, 1024, 64
"""Sums that a thread of ours makes at a time, and elements of k it adds to them; those it adds at once."""
_MACHINES, _MACHINE = 4, 1 << 25
"""Machines that are kept, the newest, and most bytes of memory and caches each."""
_FLOAT, _DOUBLE = 1 << 24, 1 << 53
"""Up to here float32 and float64 have every whole number."""

_costs: dict[Hashable, tuple[Any, int]] = {}
_machines: dict[Hashable, Pe] = {}
_lock = threading.Lock()


def cost_of(plan: Hashable) -> Any:
    """What a product of this plan costs, without a value; None where two runs have not shown it."""
    cost, runs = _costs.get(plan, (None, 0))
    return _twin(cost) if runs > 1 and cost is not None else None


def note(plan: Hashable, result: Any, value: Callable[[], Array | None]) -> None:
    """A run of the machine: kept as what this plan costs the first time, held against that the second.

    ``value`` makes the same product without the machine, or None where that cannot be done.
    """
    with _lock:
        before, runs = _costs.pop(plan, (result, 0))
        if before is not None and (result.errors or (runs == 1 and not _same(before, result, value()))):
            before = None  # for good
        if before is not None and runs == 0:
            before = _twin(replace(result, value=np.zeros(0)))
        _costs[plan] = before, runs + 1
        while len(_costs) > MOST:
            del _costs[next(iter(_costs))]


def forget() -> None:
    """As if no product had been run."""
    with _lock:
        _costs.clear()
        _machines.clear()


def machine_of(plan: Hashable, tensors: Mapping[str, Array]) -> Pe | None:
    """The machine that ran this plan before, at rest, with these tensors; it is the caller's alone until kept again."""
    with _lock:
        pe = _machines.pop(plan, None)
    if pe is not None:
        pe.chip.rest(tensors)
    return pe


def keep_machine(plan: Hashable, pe: Pe) -> None:
    """A machine that has run a product: to make one takes several times as long as to put it to rest.

    Kept are small ones whose pages and segments are as they were at first, without lines retained or errors.
    """
    chip = pe.chip
    as_made = len(pe.segments) == len(chip.storages) and not (chip.l2_pages or chip.dma.transfers or pe.errors)
    retained = any(segment.selected.size for segment in pe.segments.values())
    small = chip.store.nbytes + chip.l2.cells.nbytes + pe.l1.cells.nbytes <= _MACHINE
    gone = [] if as_made and small and not retained else [pe]
    with _lock:
        if not gone:
            gone += [_machines.pop(plan)] if plan in _machines else []
            _machines[plan] = pe
        while len(_machines) > _MACHINES:
            gone.append(_machines.pop(next(iter(_machines))))
    for each in gone:
        each.chip.pes.clear()  # they know their chip: a circle would keep its memory until garbage is collected


def _twin(result: Result) -> Result:
    """The same with counters of its own."""
    twin = object.__new__(type(result))
    twin.__dict__.update(result.__dict__)
    for name, value in result.__dict__.items():
        if isinstance(value, dict):
            twin.__dict__[name] = dict(value)
        elif name in ("counts", "traffic", "moved"):
            twin.__dict__[name] = counted = object.__new__(type(value))
            counted.__dict__.update(value.__dict__)
    return twin


def _same(before: Any, result: Any, value: Array | None) -> bool:
    names = [each.name for each in fields(result) if each.name not in ("value", "program", "programs")]
    alike = all(same_state(getattr(before, name), getattr(result, name)) for name in names)
    return alike and value is not None and np.array_equal(value.view(np.int32), result.value.view(np.int32))


# The values, with the machine's bits.


def product_in_order(a: Array, b: Array, whole: bool, config: MatrixUnitConfig, kb: int) -> Array | None:
    """a @ b as the machine adds it up, int32 (``whole``) modulo 2^32 or float32; None where it is not made here."""
    if not config.values or (config.overflow != "wrap" if whole else config.float_order != "chunk"):
        return None
    if whole and a.itemsize < 4:
        return _whole_product(a, b)
    if a.size * b.shape[1] <= _SMALL:  # not worth a kernel
        return None
    return _word_product(a, b) if whole else _float_product(a, b, config, kb)


def _float_product(a: Array, b: Array, config: MatrixUnitConfig, kb: int) -> Array:
    from tilewright.isa.kernels.value_kernels import add_rounds

    (rows, k), columns = a.shape, b.shape[1]
    chunk, depth = config.chunk(a.itemsize, kb), config.depth(a.itemsize, kb)
    presents = np.minimum(depth, k - np.arange(0, k, depth))
    left, right = (np.ascontiguousarray(each, np.float32) for each in (a, b))
    sums = np.zeros((rows, columns), np.float32)

    def piece(number: int) -> None:
        some = slice(number * _ROWS, (number + 1) * _ROWS)
        add_rounds(sums[some], left[some], right, presents, chunk, kb)

    in_pieces(piece, -(-rows // _ROWS), rows * columns * k > _SHARED)
    sums.view(np.int32)[np.isnan(sums)] = NAN
    return sums


def _word_product(a: Array, b: Array) -> Array:
    from tilewright.isa.kernels.value_kernels import add_words

    sums = np.zeros((len(a), b.shape[1]), np.int32)
    add_words(sums, np.ascontiguousarray(a).view(np.int32), np.ascontiguousarray(b).view(np.int32))
    return sums


def _whole_product(a: Array, b: Array) -> Array | None:
    """Of integers of up to 16 bits: modulo 2^32 their sums have no order, and as floats none that shows below a gap."""
    (rows, k), columns = a.shape, b.shape[1]
    if a.dtype.kind in "iu" and a.itemsize == 1 and rows * k * columns > _SMALL:
        return _byte_product(a, b)
    most = k * _most(a.dtype) * _most(b.dtype)
    if most > _DOUBLE:
        return None
    dtype = np.float32 if most <= _FLOAT else np.float64
    sums: Array = np.matmul(a.astype(dtype), b.astype(dtype)).astype(np.int64)
    return sums.astype(np.int32)


def _most(dtype: Any) -> int:
    """The largest absolute value."""
    bits = 8 * dtype.itemsize
    return 16 if dtype.kind not in "iu" else 1 << bits - (dtype.kind == "i")


def _byte_product(a: Array, b: Array) -> Array:
    from tilewright.isa.kernels.byte_kernels import add_products

    (rows, k), columns = a.shape, b.shape[1]
    sums = fresh_zeros(rows * columns, np.int32, filled=True)
    dtype, down = np.int8 if a.dtype == b.dtype == np.int8 else np.int16, -(-rows // _ROWS)
    for begin in range(0, k, _DEPTH):
        left, right = (_deep(each[:, begin : begin + _DEPTH], dtype) for each in (a, b.T))
        strips = [right[first : first + _COLUMNS] for first in range(0, columns, _COLUMNS)]

        def piece(number: int, left: Array = left, strips: list[Array] = strips) -> None:
            across, first = number // down, number % down * _ROWS
            place = 0, 1, across * _COLUMNS
            part = first, min(first + _ROWS, rows)
            add_products(left, strips[across], left.shape[1], part, sums, columns, place)

        in_pieces(piece, down * len(strips), rows * columns * left.shape[1] > _SHARED)
    return sums.reshape(rows, columns)


def _deep(factor: Array, dtype: Any) -> Array:
    """Row behind row, of whole processor registers, zeros behind each."""
    rows, k = factor.shape
    if k % _WIDE == 0:
        return np.require(factor, dtype, ("C", "A", "W"))
    wide = np.zeros((rows, -(-k // _WIDE) * _WIDE), dtype)
    wide[:, :k] = factor
    return wide
