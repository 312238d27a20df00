"""Pack an array into its layout and back.

    digits --nest--> boxes --plan--> primitives and places --move_kernels--> data

A map without a digit form (a `*` that its tile does not divide), or with one that falls into too many boxes, is
enumerated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import TYPE_BITS, Array, array_of, require_room
from tilewright.layout.move import LINE
from tilewright.layout.move.calls import address_of, run_plan
from tilewright.layout.move.plan import aligned_empty, pack_plan, run_filled, unpack_plan, zero_of


def narrow(slots: Array, bits: int, length: int, xp: Any = np) -> Array:
    """uint8[length]: the low ``bits`` bits of every slot (uint8), end to end. ``xp``: numpy, or jax.numpy for bits that
    divide a byte.

    >>> narrow(np.array([1, 2, 15, 4], np.uint8), 4, 2).tolist()
    [33, 79]
    """
    if 8 % bits:
        unpacked = (slots[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
        return np.packbits(unpacked.reshape(-1), bitorder="little")[:length]
    per_byte = 8 // bits
    mask = np.uint8((1 << bits) - 1)
    whole: Array = xp.pad(slots, (0, -len(slots) % per_byte)) if len(slots) % per_byte else slots
    columns = whole.reshape(length, per_byte)
    packed = columns[:, 0] & mask
    for k in range(1, per_byte):
        packed |= (columns[:, k] & mask) << np.uint8(bits * k)
    return packed


def widen(packed: Array, bits: int, count: int) -> Array:
    """uint8[count]: the inverse of :func:`narrow`, one value per byte."""
    if 8 % bits:
        raw = np.unpackbits(packed, bitorder="little", count=count * bits).reshape(count, bits)
        values: Array = (raw * (1 << np.arange(bits)).astype(np.uint8)).sum(axis=1, dtype=np.uint8)
        return values
    per_byte = 8 // bits
    mask = np.uint8((1 << bits) - 1)
    columns = np.empty((len(packed), per_byte), np.uint8)
    for k in range(per_byte):
        columns[:, k] = (packed >> np.uint8(bits * k)) & mask
    return columns.reshape(-1)[:count]


def to_type(wide: Array, dtype: str, bits: int, numpy_type: np.dtype[Any]) -> Array:
    """Bytes whose low ``bits`` bits are values of ``dtype``, as its numpy type (signed ones sign-extended)."""
    if dtype.startswith("s"):
        up = np.uint8(8 - bits)
        signed: Array = (wide << up).view(np.int8) >> up.astype(np.int8)
        return signed.astype(numpy_type)
    return wide.astype(numpy_type) if dtype[0] == "u" or dtype == "pred" else wide.view(numpy_type)


_CHUNK = 1 << 20
_KINDS = {"f": "biuf", "b": "biuf", "c": "biufc"}  # numpy's kinds that a fill of this type may have


def _check_array(layout: AddressMap, array: Any) -> Array:
    values = np.asarray(array)
    if values.shape != layout.shape:
        what = f"an array of shape {values.shape} for the layout {layout}"
        raise UsageError(what, how=f"reshape it to {layout.shape}")
    if values.dtype != layout.numpy_dtype:
        whose = ", a type of ml_dtypes" if layout.numpy_dtype.isbuiltin == 2 else ""
        what = f"an array of {values.dtype} for the layout {layout}"
        raise UsageError(what, how=f"convert it to {layout.numpy_dtype}{whose}")
    return values


def buffer_spec(layout: AddressMap) -> tuple[int, np.dtype[Any]]:
    """Length and type of a packed buffer."""
    if layout.element_bits < 8:
        return layout.size_bytes, np.dtype(np.uint8)
    return layout.num_slots, layout.numpy_dtype


def check_buffer(layout: AddressMap, buffer: Any, name: str, write: bool = False) -> Array:
    """The buffer, or a :class:`UsageError` that says what it should be."""
    length, dtype = buffer_spec(layout)
    if not isinstance(buffer, np.ndarray) or buffer.shape != (length,) or buffer.dtype != dtype:
        got = f"{buffer.dtype}{list(buffer.shape)}" if isinstance(buffer, np.ndarray) else type(buffer).__name__
        raise UsageError(f"{name} must be {dtype}[{length}] for the layout {layout}, got {got}")
    return _writable(buffer, name) if write else buffer


def _writable(array: Array, name: str) -> Array:
    if not array.flags.writeable:
        raise UsageError(f"{name} is read-only", how="pass a writable array")
    return array


def _fill_value(layout: AddressMap, fill: Any) -> Any:
    """``fill`` as a value of the layout's type; where several elements share a byte, the bits of that value.

    The number 0 stands for zero bytes, also of a type that has no 0.
    """
    if type(fill) is int and not fill:
        return 0 if layout.element_bits < 8 else zero_of(layout.numpy_dtype)
    dtype, number = layout.numpy_dtype, array_of(fill, "fill")
    if number.ndim:
        raise UsageError(f"fill is one value, not an array of shape {number.shape}", where=str(layout))
    bits, name = TYPE_BITS[layout.dtype], layout.dtype
    if name[0] in "su" or name == "pred":
        low = -(1 << (bits - 1)) if name[0] == "s" else 0
        if (number.dtype.kind not in "biu" and number.dtype != dtype) or not low <= int(number) < low + (1 << bits):
            raise UsageError(f"fill={fill!r} is not a value of {name}", how=f"{low} to {low + (1 << bits) - 1}")
    elif number.dtype != dtype and number.dtype.kind not in _KINDS[name[0]]:
        raise UsageError(f"fill={fill!r} is not a value of {name}")
    with np.errstate(all="ignore"):  # a number beyond the type is its infinity
        value = number.astype(dtype)
    return int(value.reshape(1).view(np.uint8)[0]) if layout.element_bits < 8 else value[()]


def pack(layout: AddressMap, array: Any, out: Any = None, fill: Any = 0) -> Array:
    """The array as it lies in memory.

    ``array`` has the layout's shape and numpy type (any strides). The result is 1-D, one slot of the element type per
    physical element, several axes row-major (npu by npu, page by page); with E(n) below 8 it is uint8, low bits first.
    Padding holds ``fill``. ``out`` takes the result where it is given. Raises :class:`UsageError` on a wrong shape or
    type, a read-only ``out``, or where the map is not injective.

    >>> from tilewright.layout import parse
    >>> parse("s32[2,3]{1,0:T(2,2)}").pack(np.arange(6, dtype=np.int32).reshape(2, 3)).tolist()
    [0, 1, 3, 4, 2, 0, 5, 0]
    """
    values, value = array_of(array, "an array"), _fill_value(layout, fill)
    if out is None or layout.element_bits < 8:  # elements that share a byte are laid out one to a byte before
        require_room(layout.num_slots if layout.element_bits < 8 else layout.size_bytes, f"{layout} with its padding")
    layout.require_injective()
    values = _check_array(layout, values)
    target = aligned_empty(*buffer_spec(layout)) if out is None else check_buffer(layout, out, "out", write=True)
    if out is not None and np.may_share_memory(values, target):
        values = values.copy()
    if layout.element_bits < 8:
        slots = aligned_empty(layout.num_slots, np.dtype(np.uint8))
        _pack_slots(layout, values.view(np.uint8) if values.ndim else values.reshape(1).view(np.uint8), slots, value)
        target[:] = narrow(slots, layout.element_bits, len(target))
    elif target.flags.c_contiguous:
        _pack_slots(layout, values, target, value)
    else:
        target[:] = pack(layout, values, fill=fill)
    return target


def _pack_slots(layout: AddressMap, values: Array, slots: Array, fill: Any) -> None:
    """Values into contiguous slots, one slot of the values' type per place."""
    size = values.itemsize
    if not layout.num_elements:
        slots[:] = fill
        return
    filled_plan = pack_plan(layout, values.strides if layout.rank else (), size, address_of(slots) % LINE == 0)
    if filled_plan is None:
        if layout.num_elements < layout.num_slots:
            slots[:] = fill
        _scatter(layout, values, slots)
        return
    run_filled(filled_plan, slots, values, fill)


def unpack(layout: AddressMap, buffer: Any, out: Any = None) -> Array:
    """The logical array (C order, or into ``out``) out of a buffer that :func:`pack` made.

    >>> from tilewright.layout import parse
    >>> layout = parse("s32[2,3]{1,0:T(2,2)}")
    >>> layout.unpack(np.array([0, 1, 3, 4, 2, 0, 5, 0], np.int32)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    if out is None:
        require_room(layout.num_elements * layout.numpy_dtype.itemsize, f"{layout} without its padding")
    source = check_buffer(layout, buffer, "buffer")
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise UsageError(f"out must be an array, got {type(out).__name__}")
        _writable(_check_array(layout, out), "out")
    if layout.element_bits < 8:
        wide = aligned_empty(layout.num_elements, np.dtype(np.uint8)).reshape(layout.shape)
        _unpack_slots(layout, widen(source, layout.element_bits, layout.num_slots), wide)
        result = to_type(wide, layout.dtype, layout.element_bits, layout.numpy_dtype)
    elif out is not None and not np.may_share_memory(out, source):
        _unpack_slots(layout, source, out)
        result = out
    else:
        result = aligned_empty(layout.num_elements, layout.numpy_dtype).reshape(layout.shape)
        _unpack_slots(layout, source, result)
    if out is None or out is result:
        return result
    out[...] = result
    return out  # type: ignore[no-any-return]


def _unpack_slots(layout: AddressMap, slots: Array, result: Array) -> None:
    """Slots into an array of any strides that shares no memory with them."""
    if not layout.num_elements:
        return
    slots = np.ascontiguousarray(slots)
    aligned = address_of(result) % LINE == 0
    strides = result.strides if layout.rank else ()
    plan = unpack_plan(layout, strides, result.itemsize, aligned)
    if plan is None:
        _gather(layout, slots, result)
    else:
        run_plan(plan, result, slots)


# -- without boxes: the places of all elements, in pieces that fit into memory -----------------------------------------


def _scatter(layout: AddressMap, values: Array, slots: Array) -> None:
    flat = np.ascontiguousarray(values).reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        stop = min(start + _CHUNK, len(flat))
        slots[layout.slots_of(np.arange(start, stop))] = flat[start:stop]


def _gather(layout: AddressMap, slots: Array, out: Array) -> None:
    result = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    flat = result.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        stop = min(start + _CHUNK, len(flat))
        flat[start:stop] = slots[layout.slots_of(np.arange(start, stop))]
    if result is not out:
        out[...] = result
