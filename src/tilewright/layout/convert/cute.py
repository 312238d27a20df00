"""CuTe's shape:stride text, both ways, its swizzles, and bank conflicts (source: CUTLASS's documentation of CuTe).

    ((2,2),(4,2)):((4,16),(1,8))        every top-level mode is a dim; inside a mode the first part counts fastest
    Sw<B,M,S>: B bits of the offset, S above bit M, are xored onto the B bits from bit M on

CuTe knows sizes and strides and nothing else: a tiling is expressible where its tiles divide the array, or on the
padded array; a `*` only where its tile divides. Rows that begin a power of two apart lie in the same banks of shared
memory; a swizzle moves each row on by its number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout.convert.strided import ConvertedLayout, converted, split_dims
from tilewright.layout.index.address_map import Axis
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Digit, Line
from tilewright.layout.index.types import TYPE_BITS, dtype_name, require_layout, text_of
from tilewright.layout.kinds.tiled import TensorLayout, from_text
from tilewright.layout.text.notation import COMBINE, Cursor

Mode = list[tuple[int, int]]  # (size, stride) of the parts, fastest first
Tree = int | list["Tree"]


def _mode(layout: IndexMap, dim: int, digits: Sequence[Digit]) -> Mode:
    size, parts, reach = layout.shape[dim], Mode(), 1
    for digit in sorted((d for d in digits if d.dim == dim), key=lambda d: d.div):
        if digit.shift:
            raise UnsupportedError(f"{layout}: dim {dim} begins inside a tile, which CuTe cannot express")
        if digit.div % reach or digit.div < reach:
            raise UnsupportedError(f"{layout}: the tiles of dim {dim} do not divide each other")
        if digit.div > reach:
            parts.append((digit.div // reach, 0))
        count = digit.mod or -(-size // digit.div)
        parts.append((count, digit.weight))
        reach = digit.div * count
    if reach < size or not parts:
        parts.append((-(-size // reach), 0))
        reach *= parts[-1][0]
    if reach != size:
        how = "padded=True gives the layout of the padded array"
        raise UnsupportedError(f"{layout}: tiles do not divide the {size} of dim {dim}; CuTe has no padding", how=how)
    return _coalesced([part for part in parts if part[0] > 1]) or [(size, parts[0][1])]


def _coalesced(parts: Mode) -> Mode:
    """Parts that count on where the one before stops, joined with it."""
    joined = Mode()
    for size, stride in parts:
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _padded(layout: IndexMap) -> IndexMap:
    """The layout of the array padded to whole tiles; elements keep their offsets."""
    if not isinstance(layout, TensorLayout) or not layout.tiles:
        raise UnsupportedError(f"{layout} has no tiles to pad to")
    text = layout.text
    tile = text.tiles[0]
    if COMBINE in tile or len(tile) > layout.rank:
        raise UnsupportedError(f"{layout}: its first tile merges or adds dims, so there is no padded array")
    dims = list(text.dims)
    for t, d in zip(reversed(tile), text.minor_to_major, strict=False):
        dims[d] = -(-dims[d] // t) * t
    return from_text(replace(text, dims=tuple(dims)))


def _tree_text(parts: Sequence[int]) -> str:
    return str(parts[0]) if len(parts) == 1 else "(" + ",".join(map(str, parts)) + ")"


def to_cute(layout: IndexMap, padded: bool = False) -> str:
    """The layout as CuTe's ``shape:stride``, one mode per dim; offsets count elements.

    Raises :class:`UnsupportedError` with the reason where CuTe cannot express it: several axes, padding
    (``padded=True`` gives the layout of the padded array instead), a rotation, a `*` that its tile does not divide.

    >>> from tilewright.layout import parse
    >>> to_cute(parse("f32[4,8]{1,0:T(2,4)(2,1)}"))
    '((2,2),8):((1,16),2)'
    """
    require_layout(layout)
    if len(layout.axis_terms) != 1:
        raise UnsupportedError(f"{layout} has the axes {', '.join(layout.axes)}; CuTe's offsets are one number")
    if layout.digits is None:
        raise UnsupportedError(f"{layout} merges dims by a `*` that its tile does not divide; CuTe cannot express that")
    line = layout.digits[layout.axes[0]]
    if line.base:
        raise UnsupportedError(f"{layout} begins at offset {line.base}; CuTe layouts begin at 0")
    if padded and layout.num_elements != layout.num_slots:
        whole = _padded(layout)
        if whole.num_elements != whole.num_slots:
            raise UnsupportedError(f"{layout} pads inside its tiles; no padded array has this layout")
        return to_cute(whole)
    modes = [_mode(layout, d, line.digits) for d in range(layout.rank)]
    reach = 1 + sum((n - 1) * s for mode in modes for n, s in mode) if layout.num_elements else 0
    if reach != layout.num_slots:
        how = "padded=True gives the layout of the padded array"
        tail = layout.num_slots - reach
        raise UnsupportedError(f"{layout} has {tail} slots of padding at its end; CuTe has no padding", how=how)
    sizes = [_tree_text([n for n, _ in mode]) for mode in modes]
    strides = [_tree_text([s for _, s in mode]) for mode in modes]
    if layout.rank == 1 and len(modes[0]) == 1:
        return f"{sizes[0]}:{strides[0]}"
    return f"({','.join(sizes)}):({','.join(strides)})"


def _read_tree(cursor: Cursor, name: str, depth: int = 0) -> Tree:
    if depth > 64:
        raise cursor.fail("modes nested more than 64 deep")
    if not cursor.take("("):
        cursor.take("_")  # C++ prints static integers as _8
        return cursor.integer(f"as a {name}")
    parts: list[Tree] = []
    while parts or not cursor.peek(")"):
        parts.append(_read_tree(cursor, name, depth + 1))
        if not cursor.take(","):
            break
    cursor.expect(")", f"or ',' in the {name}s")
    return parts


def _pair(cursor: Cursor, sizes: Tree, strides: Tree, at: int) -> Mode:
    """The parts of one mode, nested ones in order."""
    if isinstance(sizes, int) and isinstance(strides, int):
        return [(sizes, strides)]
    if isinstance(sizes, int) or isinstance(strides, int) or len(sizes) != len(strides):
        raise cursor.fail("shape and stride have different forms", at)
    return [part for pair in zip(sizes, strides, strict=True) for part in _pair(cursor, *pair, at)]


_PREFIX = re.compile(
    r"\s*(?P<tensor>tensor<\s*)?(?:(?P<before>[sgr]mem_ptr\[(?P<bits>[0-9]{1,3})b\](?:\([^()]*\))?)\s*o\s*"
    r"|ptr<\s*(?P<type>\w+)[^<>]*(?:<[^<>]*>[^<>]*?)*?(?:,\s*S<(?P<own>[-0-9,\s]+)>)?\s*>\s*o\s*)?"
    r"(?:Sw?<\s*(?P<swizzle>[-0-9,\s]+)>\s*o\s*)?"
    r"(?:(?P<behind>[sgr]mem_ptr\[(?P<width>[0-9]{1,3})b\](?:\([^()]*\))?)\s*o\s*|_?(?P<first>[0-9]{1,18})\s*o\s*)?"
)
_OF_BITS = {4: "u4", 8: "u8", 16: "f16", 32: "f32", 64: "f64"}


def _prefix(text: str, dtype: Any) -> tuple[int, str, tuple[int, int, int] | None, int, bool]:
    """(where shape:stride begins, element type, swizzle of elements or None, first offset, whether `>` closes it)."""
    found = _PREFIX.match(text)
    assert found is not None  # every part may be missing
    bits = int(found["bits"] or found["width"] or 0)
    name = dtype_name(dtype or found["type"] or _OF_BITS.get(bits, "f32"))
    if bits and TYPE_BITS[name] != bits:
        raise UsageError(f"the pointer has {bits} bits to an element, {name} has {TYPE_BITS[name]}", where=text)
    numbers = [int(n) for n in re.findall(r"-?[0-9]{1,3}", found["swizzle"] or found["own"] or "")]
    if not numbers:
        return found.end(), name, None, int(found["first"] or 0), bool(found["tensor"])
    if len(numbers) != 3 or min(numbers[:2]) < 0 or abs(numbers[2]) < numbers[0] or max(numbers) > 40:
        raise ParseError("a swizzle is Sw<B,M,S> with B at most S", text=text, column=found.start("swizzle"))
    b, m, s = numbers
    if found["behind"] or found["own"]:  # before the pointer's type is known it counts bytes
        m += 3 - (TYPE_BITS[name].bit_length() - 1)
    if m < 0:
        raise UnsupportedError(f"{text.strip()} swizzles parts of an element")
    return found.end(), name, (b, m, s), int(found["first"] or 0), bool(found["tensor"])


def from_cute(text: str, dtype: Any = None) -> ConvertedLayout:
    """The layout that CuTe writes ``shape:stride``: every top-level mode is a dim, as large as its parts together.

    Swizzled ones, ``Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)``, and layouts of (threads, values) are read, too.
    The element type is the pointer's width where there is one, f32 otherwise. Raises :class:`ParseError` with the
    column.

    >>> layout = from_cute("((2,2),(4,2)):((1,16),(2,8))", "f32")
    >>> layout.shape, layout.offset(3, 5)
    ((4, 8), 27)
    """
    start, name, swizzle, first, closed = _prefix(text_of(text, "a CuTe layout"), dtype)
    cursor = Cursor(text, start)
    sizes = _read_tree(cursor, "size")
    cursor.expect(":", "between shape and stride")
    at = cursor.at
    strides = _read_tree(cursor, "stride")
    if (closed and not cursor.take(">")) or cursor.at != len(text):
        raise cursor.fail("text left over behind the layout")
    if isinstance(sizes, int) or isinstance(strides, int):
        modes = [_pair(cursor, sizes, strides, at)]
    elif len(sizes) == len(strides):
        modes = [_pair(cursor, *pair, at) for pair in zip(sizes, strides, strict=True)]
    else:
        raise cursor.fail("shape and stride have different forms", at)
    layout = _from_modes(modes, name, text.strip())
    if swizzle is None and not first:
        return layout
    b, m, s = swizzle or (0, 0, 0)
    axis = layout.axis_terms[0]
    extent, whole = axis.extent + first if axis.extent else 0, 1 << (m + b + max(0, -s))
    extent = -(-extent // whole) * whole if b else extent  # slots that swizzled offsets reach at most
    own = (layout.slot_bits, layout.source, b, m, s, first)
    return SwizzledLayout(name, layout.shape, layout.steps, (replace(axis, extent=extent),), (), *own)


def _from_modes(modes: Sequence[Mode], dtype: str, text: str) -> ConvertedLayout:
    modes = [mode or [(1, 0)] for mode in modes]
    shape = tuple(math.prod(n for n, _ in mode) for mode in modes)
    whole = [[(max(n, 1), s) for n, s in mode] for mode in modes]  # an empty dim keeps its program
    steps, places = split_dims([[n for n, _ in mode[:-1]] for mode in whole])
    terms = tuple(
        (p, s) for mode, at in zip(whole, places, strict=True) for p, (_, s) in zip(reversed(at), mode, strict=True)
    )
    reach = 1 + sum((n - 1) * s for mode in whole for n, s in mode) if all(shape) else 0
    return converted(dtype, shape, steps, Axis("offset", terms, reach), text)


# Swizzles, and what shared memory's banks make of a layout.

_WIDEST = 16  # bytes that one thread reads at once


@dataclass(frozen=True, repr=False)
class SwizzledLayout(ConvertedLayout):
    """A layout of CuTe whose offsets are swizzled: ``bits``, ``base`` and ``shift`` of elements, from ``first`` on."""

    bits: int = 0
    base: int = 0
    shift: int = 0
    first: int = 0

    @property
    def scrambles(self) -> bool:
        """That its offsets are no sum over the dims."""
        return True

    @cached_property
    def digits(self) -> dict[str, Line] | None:
        """None: an exclusive or has no digit form."""
        self.require_static()
        return None

    def _swizzled(self, value: Any) -> Any:
        low, high = (self.base, self.base + self.shift) if self.shift > 0 else (self.base - self.shift, self.base)
        return value ^ (((value >> high) & ((1 << self.bits) - 1)) << low)

    def scrambled(self, value: Any) -> Any:
        """The offset of a place in the layout without the swizzle."""
        return self._swizzled(value + self.first)

    def unscrambled(self, value: Any) -> Any:
        """The inverse: the swizzle undoes itself, for the bits it reads are not those it changes."""
        return self._swizzled(value) - self.first


@dataclass(frozen=True)
class BankConflicts:
    """What reading elements from shared memory takes."""

    width: int  # bytes that a thread reads at once
    wavefronts: int  # passes over the banks that the reads take
    least: int  # passes that so many bytes need
    ways: int  # the most different words of one bank that one pass is asked for

    @property
    def conflicts(self) -> int:
        """Passes beyond the least."""
        return self.wavefronts - self.least


def bank_conflicts(layout: IndexMap, threads: IndexMap, *, banks: int = 32, bank_bytes: int = 4) -> BankConflicts:
    """Bank conflicts of a warp that reads a layout's elements, as a thread-value layout hands them out.

    ``threads`` has two dims, thread and value; its offsets number the elements of ``layout``, the first dim fastest, as
    CuTe counts. Values of a thread that lie behind each other are read 16, 8 or 4 bytes at once, by as many threads at
    a time as fill all banks.

    >>> from tilewright.layout import from_cute
    >>> rows = from_cute("(8,8):(1,8)", "f16")  # thread t reads the first 16 bytes of row t
    >>> plain, swizzled = (from_cute(text, "f16") for text in ("(8,64):(64,1)", "Sw<3,3,3> o _0 o (8,64):(64,1)"))
    >>> bank_conflicts(plain, rows).ways, bank_conflicts(swizzled, rows).ways
    (8, 1)
    """
    if threads.rank != 2 or len(layout.axis_terms) != 1 or layout.element_bits % 8:
        raise UsageError("bank conflicts need a layout of whole bytes and a layout of (threads, values)")
    numbers = threads.offsets(np.indices(threads.shape).transpose(1, 2, 0))
    if numbers.size and numbers.max() >= layout.num_elements:
        raise UsageError(f"{threads} names element {numbers.max()} of {layout}, which has {layout.num_elements}")
    dims = layout.indices_of(numbers, range(layout.rank)[::-1])
    size = layout.element_bits // 8
    places = layout.offsets(dims) * size
    width = _width(places, size)
    starts, passes, least, ways = places[:, :: max(1, width // size)], 0, 0, 0
    at_a_time = max(1, banks * bank_bytes // max(width, bank_bytes))
    for column in starts.T:
        for begin in range(0, len(column), at_a_time):
            first = (column[begin : begin + at_a_time] // bank_bytes).tolist()
            words = {at + k for at in first for k in range(-(-width // bank_bytes))}
            most = max(np.bincount([word % banks for word in words]).max(), 1)
            passes, ways = passes + int(most), max(ways, int(most))
            least += -(-len(words) // banks)
    return BankConflicts(width, passes, least, ways)


def _width(places: np.ndarray[Any, Any], size: int) -> int:
    """Bytes that every thread can read at once."""
    for width in (_WIDEST, 8, 4, 2):
        count = width // size
        if count < 2 or places.shape[1] % count:
            continue
        groups = places.reshape(len(places), -1, count)
        aligned = (groups[..., 0] % width == 0).all()
        if aligned and (groups == groups[..., :1] + np.arange(count) * size).all():
            return width
    return size
