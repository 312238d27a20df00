"""CuTe's shape:stride text, both ways (source: CUTLASS's documentation of CuTe layouts).

    ((2,2),(4,2)):((4,16),(1,8))        every top-level mode is a dim; inside a mode the first part counts fastest

CuTe knows sizes and strides and nothing else: a tiling is expressible where its tiles divide the array, or on the
padded array; a `*` only where its tile divides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout.convert.strided import ConvertedLayout, converted, split_dims
from tilewright.layout.convert.swizzle import SwizzledLayout, swizzled_extent
from tilewright.layout.index.address_map import Axis
from tilewright.layout.index.digits import Digit
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import TYPE_BITS, dtype_name, require_layout, text_of
from tilewright.layout.kinds.tiled import TensorLayout, from_text
from tilewright.layout.text.notation import COMBINE, Cursor

Mode = list[tuple[int, int]]  # (size, stride) of the parts, fastest first
Tree = int | list["Tree"]


# -- to CuTe -----------------------------------------------------------------------------------------------------------


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


# -- from CuTe ---------------------------------------------------------------------------------------------------------


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
    extent = swizzled_extent(axis.extent + first, b, m, s) if axis.extent else 0
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
