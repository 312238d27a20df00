"""Layouts of strided arrays of any library, and numpy views of packed buffers; what the other converters share."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.layout.index.address_map import AddressMap, Axis, row_major_axis
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Split, Step
from tilewright.layout.index.types import UNBOUNDED, dtype_name, require_layout, row_major_strides, to_ints, type_bits
from tilewright.layout.kinds.tiled import TensorLayout, from_text, parse, tiled
from tilewright.layout.move.pack import check_buffer
from tilewright.layout.text.neighbours import SPACES
from tilewright.layout.text.notation import LARGEST, ArrayText, combine_mark, dense_order, format_shape, read_shape

_ENUMERATED = 1 << 20


@dataclass(frozen=True, repr=False)
class ConvertedLayout(IndexMap):
    """A layout that was described in another notation; ``source`` is that description."""

    source: str = ""

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """Sizes of the parts in memory, major first, where they fill it in order; otherwise the slots as one dim."""
        axis = self.axis_terms[0]
        filled = row_major_axis("offset", [c for c, _ in axis.terms], self.step_sizes[-1])
        dense = filled == axis and [c for c, _ in axis.terms] == list(range(len(self.step_sizes[-1])))
        return self.step_sizes[-1] if dense else (self.num_slots,)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] as {self.source}"


def natural_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes as Python integers; a :class:`UsageError` where one is negative or beyond 64 bits."""
    dims = to_ints(shape, "a size")
    if any(n < 0 for n in dims):
        raise UsageError(f"the shape {dims} has a negative size")
    if any(n > LARGEST for n in dims):
        raise UsageError("a size of the shape is above 2**63 - 1")
    return dims


def split_dims(inner: Sequence[Sequence[int]]) -> tuple[tuple[Step, ...], list[list[int]]]:
    """Steps that cut dim d into parts of the sizes ``inner[d]`` (fastest first) and an outermost part.

    Also where the parts of every dim come to lie among the coordinates, outermost first.
    """
    steps: list[Step] = []
    for d in reversed(range(len(inner))):
        steps += [Split(d, size) for size in inner[d]]
    places, first = [], 0
    for sizes in inner:
        places.append(list(range(first, first + len(sizes) + 1)))
        first += len(sizes) + 1
    return tuple(steps), places


def converted(dtype: str, shape: tuple[int, ...], steps: tuple[Step, ...], axis: Axis, source: str) -> ConvertedLayout:
    """A layout with the one axis ``offset``."""
    return ConvertedLayout(dtype, shape, steps, (axis,), (), type_bits(dtype), source)


def from_strides(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> IndexMap:
    """The layout of an array with numpy's strides, in bytes; offset 0 is its first element.

    Dense arrays in any order of dims come out as XLA layouts. Raises :class:`UnsupportedError` on negative strides and
    on strides between elements.

    >>> str(from_strides((3, 5), (4, 12), "f32"))
    'f32[3,5]{0,1}'
    >>> every_other = np.zeros((3, 10), np.float32)[:, ::2]
    >>> from_strides(every_other.shape, every_other.strides, every_other.dtype).offset(1, 1)
    12
    """
    dims, name = natural_sizes(shape), dtype_name(dtype)
    size = type_bits(name) // 8
    numbers = to_ints(strides, "a stride")
    if len(numbers) != len(dims):
        raise UsageError(f"{len(numbers)} strides for {len(dims)} dims")
    if any(s < 0 for s, n in zip(numbers, dims, strict=True) if n > 1):
        raise UnsupportedError(f"negative strides {numbers}", how="reverse the dim first; offsets count from 0 up")
    if any(s % size for s in numbers):
        raise UnsupportedError(f"strides {numbers} are not multiples of the {size} bytes of {name}")
    elements = tuple(s // size for s in numbers)
    if (order := dense_order(dims, elements)) is not None:
        return tiled(dims, name, order)
    reach = 1 + sum((n - 1) * s for n, s in zip(dims, elements, strict=True)) if all(dims) else 0
    axis = Axis("offset", tuple(enumerate(elements)), reach)
    return converted(name, dims, (), axis, f"strides ({','.join(map(str, elements))})")


def to_numpy_view(layout: IndexMap, buffer: Any) -> np.ndarray[Any, Any]:
    """The logical array as a view of a packed buffer, without copying; writing to it writes to the buffer.

    ``buffer`` is what :meth:`IndexMap.pack` makes. Raises :class:`UnsupportedError` with the reason where no strides
    describe the array: a dim that a tile cuts, or values narrower than a byte. ``unpack`` copies instead.

    >>> from tilewright.layout import parse
    >>> layout = parse("s32[2,3]{0,1:T(4,2)}")
    >>> to_numpy_view(layout, layout.pack(np.arange(6, dtype=np.int32).reshape(2, 3))).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    require_layout(layout)
    slots = check_buffer(layout, buffer, "buffer")
    how = "unpack() copies"
    if layout.element_bits < 8:
        raise UnsupportedError(f"{layout} packs {layout.element_bits}-bit values, which numpy cannot point at", how=how)
    if not layout.num_elements:
        return slots[:0].reshape(layout.shape)
    start, steps = _straight(layout, how)
    # Over plain bytes: as_strided asks numpy for a type by its code, and some of ml_dtypes have none.
    plain = slots[start:].view(np.dtype((np.void, slots.itemsize)))
    strides = [step * slots.strides[0] for step in steps]
    view: np.ndarray[Any, Any] = np.lib.stride_tricks.as_strided(plain, layout.shape, strides).view(slots.dtype)
    return view


def _straight(layout: IndexMap, how: str) -> tuple[int, list[int]]:
    """(first slot, slots from one index to the next of every dim), looked at along each of them."""
    known = AddressMap.strides.func(layout)  # type: ignore[attr-defined]  # lanes call other numbers their strides
    if known is not None:
        return layout.offset(*layout.first_index), list(known)
    whole = layout.digits is None  # a `*` whose tile does not divide: no dim can be looked at alone
    if whole and layout.num_elements > _ENUMERATED:
        raise UnsupportedError(f"{layout} has no digit form and is too large to look at every element", how=how)
    after = np.cumprod([1, *reversed(layout.shape)])[:-1][::-1].tolist()  # numbers from one index to the next
    steps = list[int]()
    for d, (size, apart) in enumerate(zip(layout.shape, after, strict=True)):
        along = np.diff(layout.slots_of(np.arange(size) * apart))
        steps.append(int(along[0]) if size > 1 else 0)
        if not whole and (along != steps[-1]).any():
            raise UnsupportedError(f"{layout}: dim {d} is cut, so no one stride leads along it", how=how)
    numbers = np.arange(layout.num_elements if whole else 1)
    inside, flat = layout.indices_of(numbers) - np.array(layout.first_index), layout.slots_of(numbers)
    if not np.array_equal(flat, flat[0] + inside @ np.array(steps, np.int64)):
        raise UnsupportedError(f"{layout} is not a sum over its dims (a `*` that its tile does not divide)", how=how)
    return int(flat[0]), steps


# Arrays of any library that says where their elements are: numpy, torch, cupy, anything with DLPack.


def from_array(x: Any) -> IndexMap:
    """The layout of an array by its strides: numpy's, torch's, cupy's, or whatever an object tells through DLPack.

    No element is read and no library imported, so arrays in any device's memory will do. Dense arrays come out as XLA
    layouts, in whatever order of dims; others as :func:`from_strides` has them. JAX's arrays: :func:`from_jax`.

    >>> import numpy as np
    >>> str(from_array(np.zeros((3, 5), np.float32).T)), from_array(np.zeros((4, 6), np.int8)[:, ::2]).strides
    ('f32[5,3]{0,1}', (6, 2))
    """
    if hasattr(x, "format") and hasattr(x, "aval"):
        return from_jax(x)
    if callable(getattr(x, "stride", None)) and hasattr(x, "shape"):  # torch counts elements
        dtype = _dtype(x)
        return from_strides(tuple(x.shape), _in_bytes(x.stride(), dtype), dtype)
    strides = getattr(x, "strides", None)
    if isinstance(strides, tuple) and hasattr(x, "shape"):  # numpy, cupy: bytes
        return from_strides(tuple(x.shape), strides, _dtype(x))
    for name in ("__array_interface__", "__cuda_array_interface__"):
        if isinstance(told := getattr(x, name, None), dict):
            return _of_interface(told)
    if callable(getattr(x, "__dlpack__", None)):
        return _of_dlpack(x.__dlpack__())
    what = f"a {type(x).__name__} tells no strides"
    raise UsageError(what, how="from_strides(shape, strides, dtype) takes them, in bytes")


def _dtype(x: Any) -> str:
    """XLA's name of an array's type: numpy's, JAX's or torch's, which print as ``torch.float32``; "": none."""
    dtype = getattr(x, "dtype", None)
    dtype = getattr(getattr(x, "aval", None), "dtype", None) if dtype is None else dtype
    name = str(dtype)
    if name.startswith("key<"):
        raise UnsupportedError(f"{dtype} is a random key", how="jax.random.key_data(x) gives its numbers")
    return "" if dtype is None else dtype_name(name.removeprefix("torch.") if name.startswith("torch.") else dtype)


def _in_bytes(strides: Sequence[int], dtype: str) -> tuple[int, ...]:
    return tuple(int(stride) * type_bits(dtype) // 8 for stride in strides)


def _of_interface(told: dict[str, Any]) -> IndexMap:
    """numpy's array interface, version 3; without strides the array is row-major."""
    try:
        shape, dtype = tuple(told["shape"]), dtype_name(np.dtype(told["typestr"]))
    except (KeyError, TypeError) as error:
        raise UsageError(f"the array interface lacks a part: {error}") from None
    strides = told.get("strides")
    return from_strides(shape, row_major_strides(shape, type_bits(dtype) // 8) if strides is None else strides, dtype)


# DLPack: a capsule around a struct that says device, sizes, type and strides (in elements, none for row-major).


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_KINDS = {0: "s", 1: "u", 2: "f", 4: "bf", 5: "c"}


def _of_dlpack(capsule: Any) -> IndexMap:
    """The layout that a capsule tells; the capsule is not taken, so it frees what it holds."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    except (ValueError, TypeError):
        raise UsageError("__dlpack__ gave no capsule of DLPack") from None
    kind = "pred" if tensor.code == 6 else f"{_KINDS.get(tensor.code, '?')}{tensor.bits}"
    try:
        dtype = dtype_name(kind)
    except TilewrightError:
        raise UsageError(f"DLPack's type {tensor.code} of {tensor.bits} bits has no name in XLA") from None
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    strides = _in_bytes([tensor.strides[k] for k in range(tensor.ndim)], dtype) if tensor.strides else None
    return from_strides(shape, row_major_strides(shape, type_bits(dtype) // 8) if strides is None else strides, dtype)


# What JAX says of an array's memory; by what the objects have, without jax.


def from_jax(
    x: Any, shape: Sequence[int] | None = None, dtype: Any = None, *, per_device: bool = False
) -> TensorLayout:
    """The layout of a JAX array, of its ``.format``, or of a ``ShapeDtypeStruct``, aval or ``Layout``.

    A format and a layout know no sizes: give ``shape`` and ``dtype``, or they are unknown (``?``, and a type of the
    width that the tiles pack). ``per_device``: of a sharded array the part that one device holds, whose edges its
    tiles pad. Where JAX says no layout (an aval, ``Layout.AUTO``) it is the default one, rows behind each other
    without tiles. jax is not imported.

    >>> class Layout:  # what jax.experimental.layout.Layout has
    ...     major_to_minor, tiling, sub_byte_element_size_in_bits = (0, 1), ((8, 128), (2, 1)), 0
    >>> str(from_jax(Layout(), (9, 300), "bf16"))
    'bf16[9,300]{1,0:T(8,128)(2,1)}'
    """
    if isinstance(x, str | TensorLayout):
        read = parse(x) if isinstance(x, str) else x
        if not isinstance(read, TensorLayout):
            raise UsageError(f"{read} is a tuple", how="from_jax reads one array")
        return read
    layout, sharding = _parts(x)
    sizes = _shape(x) if shape is None else to_ints(shape, "a size")
    if layout is None and sizes is None:
        how = "from_array reads arrays of other libraries"
        raise UsageError(f"a {type(x).__name__} says neither a shape nor a layout of JAX", how=how)
    if per_device and sizes is not None and callable(getattr(sharding, "shard_shape", None)):
        sizes = tuple(sharding.shard_shape(tuple(sizes)))
    name = _dtype(x) if dtype is None else dtype_name(dtype)
    return _layout_of(layout, sizes, name, _space(x, sharding))


def _parts(x: Any) -> tuple[Any, Any]:
    """(layout, sharding) of whatever it is, None where it says none."""
    format_ = x if hasattr(x, "layout") and hasattr(x, "sharding") and not hasattr(x, "shape") else None
    if format_ is None:
        try:
            format_ = getattr(x, "format", None)
        except Exception:  # a deleted array, a traced value: JAX has errors of its own for each
            format_ = None
    layout = x if hasattr(x, "major_to_minor") else getattr(format_, "layout", None)
    sharding = getattr(format_, "sharding", None)
    if sharding is None and format_ is not x:
        sharding = getattr(x, "sharding", None)
    return (layout if hasattr(layout, "major_to_minor") else None), sharding


def _shape(x: Any) -> tuple[int, ...] | None:
    sizes = getattr(x, "shape", None)
    if not isinstance(sizes, tuple | list):
        sizes = getattr(getattr(x, "aval", None), "shape", None)
    if not isinstance(sizes, tuple | list):
        return None
    return tuple(size if isinstance(size, int) else _size(size) for size in sizes)


def _size(size: Any) -> int:
    """A size that is no Python integer: one of numpy's, or a symbol, which has no value."""
    try:
        return int(size.__index__())
    except Exception:  # JAX's symbols raise errors of their own
        return UNBOUNDED


def _space(x: Any, sharding: Any) -> int:
    kind = getattr(sharding, "memory_kind", None)
    if not kind:
        try:
            kind = getattr(getattr(x, "aval", x), "memory_space", None)
        except Exception:  # newer JAX says it of a traced value's type alone, by an error of its own
            kind = None
    kind = str(kind or "")
    return SPACES.get(kind.rpartition(".")[2].lower(), 0) if "host" in kind.lower() else 0


def _layout_of(layout: Any, sizes: tuple[int, ...] | None, name: str, space: int) -> TensorLayout:
    tiles: tuple[tuple[int, ...], ...] = ()
    if layout is None:
        order, bits = tuple(range(len(sizes or ()))), 0
    else:
        order = to_ints(layout.major_to_minor, "a dim")
        tiles = tuple(to_ints(map(combine_mark, tile), "a tile dim") for tile in getattr(layout, "tiling", None) or ())
        bits = int(getattr(layout, "sub_byte_element_size_in_bits", 0) or 0)
    dims = (UNBOUNDED,) * len(order) if sizes is None else sizes
    if sorted(order) != list(range(len(dims))):
        raise UsageError(f"a layout of {len(order)} dims, {order}, for the shape {dims}")
    packed = [tile[0] for tile in tiles if len(tile) == 2 and tile[1] == 1 and tile[0] in (2, 4, 8)]
    name = name or {2: "bf16", 4: "s8", 8: "s4"}.get(packed[-1] if packed else 1, "f32")
    tiles, minor_first = tuple(tile for tile in tiles if tile), tuple(reversed(order))
    fixed = (False,) * len(dims)
    shape = ArrayText(name, dims, fixed, minor_first, tiles, element_bits=bits, memory_space=space)
    read, _ = read_shape(format_shape(shape))  # which checks it
    assert isinstance(read, ArrayText)  # a type and a bracket begin nothing else
    return from_text(read)
