"""Pack an array into its layout and back: gather and scatter along the map's tables, one row at a time.

A map with a digit form is a sum over dims, so the places of a row are one base plus one table of the last dim; no
per-element address array is ever made. Maps without one are enumerated in chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.layout._index_map import IndexMap

__all__ = ["pack", "unpack"]

_CHUNK = 1 << 20
Array = np.ndarray[Any, Any]


def _is_subbyte(layout: IndexMap) -> bool:
    return layout.element_bits < 8


def _row_tables(layout: IndexMap) -> tuple[Array, Array] | None:
    """(base of every row, table of the last dim) in slots of the flat buffer; None without a digit form."""
    tables = layout._tables
    if tables is None or layout.digits is None or not layout.rank:
        return None
    weights = np.cumprod([1, *(axis.extent for axis in reversed(layout.axis_terms))])[:-1][::-1]
    bases = sum(int(w) * line.base for w, line in zip(weights, layout.digits.values(), strict=True))
    flat = [_weighted(weights, [axis[d] for axis in tables]) for d in range(layout.rank)]
    rows = np.array([bases], np.int64)
    for table in flat[:-1]:
        rows = (rows[:, None] + table[None, :]).reshape(-1)
    return np.ascontiguousarray(rows), np.ascontiguousarray(flat[-1])


def _weighted(weights: Array, tables: list[Array]) -> Array:
    return sum((int(w) * table for w, table in zip(weights, tables, strict=True)), start=np.zeros_like(tables[0]))


def _all_slots(layout: IndexMap, start: int, stop: int) -> Array:
    """Flat slots of the elements start..stop-1 in C order."""
    e = np.arange(start, stop)
    ix = np.stack(np.unravel_index(e, layout.shape), -1) if layout.rank else np.zeros((len(e), 0), np.int64)
    if layout.origin:
        ix = ix + np.array(layout.origin)
    places = layout.addresses(ix)
    flat: Array = np.ravel_multi_index(tuple(places.T), tuple(axis.extent for axis in layout.axis_terms))
    return flat


def _bits_view(array: Array) -> Array:
    """The array as unsigned integers of its width, so that one kernel serves every element type."""
    if array.dtype.kind == "c":
        return array.view(np.dtype(f"V{array.itemsize}")) if array.itemsize == 16 else array.view(np.uint64)
    return array.view(np.dtype(f"u{array.itemsize}"))


def _check_array(layout: IndexMap, array: Any) -> Array:
    values = np.asarray(array)
    if values.shape != layout.shape:
        raise UsageError(
            f"an array of shape {values.shape} for the layout {layout}", how=f"reshape it to {layout.shape}"
        )
    if values.dtype != layout.numpy_dtype:
        raise UsageError(
            f"an array of {values.dtype} for the layout {layout}", how=f"convert it to {layout.numpy_dtype}"
        )
    return values


def _buffer_spec(layout: IndexMap) -> tuple[int, np.dtype[Any]]:
    if _is_subbyte(layout):
        return layout.size_bytes, np.dtype(np.uint8)
    return layout.num_slots, layout.numpy_dtype


def _check_buffer(layout: IndexMap, buffer: Any, name: str) -> Array:
    length, dtype = _buffer_spec(layout)
    if not isinstance(buffer, np.ndarray) or buffer.shape != (length,) or buffer.dtype != dtype:
        got = f"{buffer.dtype}{list(buffer.shape)}" if isinstance(buffer, np.ndarray) else type(buffer).__name__
        raise UsageError(f"{name} must be {dtype}[{length}] for the layout {layout}, got {got}")
    return buffer


def pack(layout: IndexMap, array: Any, out: Any = None, fill: Any = 0) -> Array:
    """The array as it lies in memory.

    ``array`` has the layout's shape and numpy type (any strides). The result is 1-D, one slot of the element type per
    physical element, several axes row-major (npu by npu, page by page); with E(n) below 8 it is uint8, low bits first.
    Padding holds ``fill``. ``out`` takes the result where it is given. Raises :class:`UsageError` on a wrong shape or
    type, or where the map is not injective.

    >>> from tilewright.layout import parse
    >>> parse("s32[2,3]{1,0:T(2,2)}").pack(np.arange(6, dtype=np.int32).reshape(2, 3)).tolist()
    [0, 1, 3, 4, 2, 0, 5, 0]
    """
    layout._require_injective()
    values = _check_array(layout, array)
    length, dtype = _buffer_spec(layout)
    target = np.empty(length, dtype) if out is None else _check_buffer(layout, out, "out")
    if _is_subbyte(layout):
        slots = np.full(layout.num_slots, int(fill), np.uint8)
        _scatter(layout, values.view(np.uint8) if values.ndim else values.reshape(1).view(np.uint8), slots)
        target[:] = _narrow(slots, layout.element_bits, length)
        return target
    if layout.num_elements < layout.num_slots:
        target[:] = fill
    _scatter(layout, values, target)
    return target


def _scatter(layout: IndexMap, values: Array, slots: Array) -> None:
    tables = _row_tables(layout)
    if tables is not None and values.itemsize <= 8:
        from tilewright.layout._kernels import scatter_rows

        rows = _bits_view(np.ascontiguousarray(values)).reshape(len(tables[0]), -1)
        scatter_rows(rows, *tables, _bits_view(slots))
        return
    flat = np.ascontiguousarray(values).reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        stop = min(start + _CHUNK, len(flat))
        slots[_all_slots(layout, start, stop)] = flat[start:stop]


def unpack(layout: IndexMap, buffer: Any, out: Any = None) -> Array:
    """The logical array (C order, or into ``out``) out of a buffer that :func:`pack` made.

    >>> from tilewright.layout import parse
    >>> layout = parse("s32[2,3]{1,0:T(2,2)}")
    >>> layout.unpack(np.array([0, 1, 3, 4, 2, 0, 5, 0], np.int32)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    source = _check_buffer(layout, buffer, "buffer")
    if out is not None:
        _check_array(layout, out)
    if _is_subbyte(layout):
        wide = np.empty(layout.shape, np.uint8)
        _gather(layout, _widen(source, layout.element_bits, layout.num_slots), wide)
        result = _from_bits(wide, layout)
    else:
        result = np.empty(layout.shape, layout.numpy_dtype)
        _gather(layout, source, result)
    if out is None:
        return result
    out[...] = result
    return out  # type: ignore[no-any-return]


def _gather(layout: IndexMap, slots: Array, result: Array) -> None:
    tables = _row_tables(layout)
    if tables is not None and result.itemsize <= 8:
        from tilewright.layout._kernels import gather_rows

        gather_rows(_bits_view(np.ascontiguousarray(slots)), *tables, _bits_view(result).reshape(len(tables[0]), -1))
        return
    flat = result.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        stop = min(start + _CHUNK, len(flat))
        flat[start:stop] = slots[_all_slots(layout, start, stop)]


def _narrow(slots: Array, bits: int, length: int) -> Array:
    """Values of ``bits`` bits, one per byte, packed low bits first."""
    unpacked = (slots[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(unpacked.reshape(-1), bitorder="little")[:length]


def _widen(packed: Array, bits: int, count: int) -> Array:
    """The inverse of :func:`_narrow`."""
    raw = np.unpackbits(packed, bitorder="little", count=count * bits).reshape(count, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    values: Array = (raw * weights).sum(axis=1, dtype=np.uint8)
    return values


def _from_bits(wide: Array, layout: IndexMap) -> Array:
    """Bytes that hold the low bits of a narrow type, as that type (ml_dtypes sign-extends signed ones)."""
    if layout.dtype.startswith("s"):
        shift = 8 - layout.element_bits
        signed = (wide << shift).astype(np.uint8).view(np.int8) >> shift
        return signed.astype(layout.numpy_dtype)
    if layout.dtype.startswith("u"):
        return wide.astype(layout.numpy_dtype)
    return wide.view(layout.numpy_dtype)
