"""oneDNN's format tags, both ways (source: oneDNN's guide to memory formats).

    nChw16c, aBcd16b        outer dims from the slowest to the fastest, then the blocks, the innermost last

A capital letter is a dim that blocks cut; ``16c`` is a block of 16 along c. Letters a, b, c, ... are the dims in order;
n c d h w are those of activations, g o i d h w those of weights, t n c those of recurrent cells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout.convert.strided import ConvertedLayout, converted, natural_sizes, split_dims
from tilewright.layout.index.address_map import row_major_axis
from tilewright.layout.index.bitcast import is_bitcast
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Permute, sizes_behind
from tilewright.layout.index.types import dtype_name, require_layout, text_of

_PART = re.compile(r"([0-9]*)([A-Za-z])")
_MOST_DIGITS = 18
_PLAIN = "abcdefghijkl"
_NAMED = ("tnc", "ncdhw", "goidhw")
Block = tuple[int, int]  # (dim, size)


def _letters(tag: str, used: set[str]) -> str:
    """The letters of the dims, in the order of the array's dims."""
    if used == set(_PLAIN[: len(used)]):
        return _PLAIN[: len(used)]
    for names in _NAMED:
        if used <= set(names) and used & set(names[:3]):
            return "".join(letter for letter in names if letter in used)
    raise ParseError("the letters name no known set of dims", text=tag, column=0, how="use a, b, c, .. in order")


def _read(tag: str) -> tuple[list[int], list[Block]]:
    """The outer dims in order and the blocks in order."""
    parts, at = [], 0
    while at < len(tag):
        part = _PART.match(tag, at)
        if not part:
            raise ParseError("expected a letter, or a block such as 16c", text=tag, column=at)
        if len(part[1]) > _MOST_DIGITS:
            raise ParseError(f"a block of {len(part[1])} digits", text=tag, column=at, how="blocks are below 10**18")
        parts.append((part[1], part[2], at))
        at = part.end()
    outer = [part for part in parts if not part[0]]
    letters = _letters(tag, {letter.lower() for _, letter, _ in parts})
    blocked = {letter.lower() for size, letter, _ in parts if size}
    for k, (size, letter, at) in enumerate(parts):
        if size and (letter.isupper() or int(size) < 1 or k < len(outer)):
            raise ParseError("a block is a size and a small letter, behind the outer dims", text=tag, column=at)
        if not size and letter.isupper() != (letter.lower() in blocked):
            raise ParseError(f"{letter!r} is a capital exactly where a block cuts its dim", text=tag, column=at)
    order = [letters.index(letter.lower()) for _, letter, _ in outer]
    if sorted(order) != list(range(len(letters))):
        raise ParseError("each dim must stand once among the outer dims", text=tag, column=0)
    return order, [(letters.index(letter), int(size)) for size, letter, _ in parts if size]


def from_onednn_tag(tag: str, shape: Sequence[int], dtype: Any) -> ConvertedLayout:
    """The layout that a oneDNN tag gives an array of ``shape`` (dims in oneDNN's logical order, n c h w).

    Raises :class:`ParseError` on a malformed tag and :class:`UsageError` where its dims do not match the shape.

    >>> layout = from_onednn_tag("nChw16c", (2, 40, 3, 5), "f32")
    >>> layout.physical_shape, layout.offset(1, 17, 2, 4)
    ((2, 3, 3, 5, 16), 1185)
    """
    dims, name = natural_sizes(shape), dtype_name(dtype)
    order, blocks = _read(text_of(tag, "a tag"))
    if len(order) != len(dims):
        raise UsageError(f"the tag {tag} has {len(order)} dims, the shape {dims} has {len(dims)}")
    inner = [[size for dim, size in reversed(blocks) if dim == d] for d in range(len(dims))]
    cut, places = split_dims(inner)
    left = [list(at[1:]) for at in places]
    in_memory = (*(places[d][0] for d in order), *(left[dim].pop(0) for dim, _ in blocks))
    steps = (*cut, Permute(in_memory))
    sizes = sizes_behind(steps, dims)
    return converted(name, dims, steps, row_major_axis("offset", range(len(sizes)), sizes), tag)


def _name(order: Sequence[int], blocks: Sequence[Block]) -> str:
    cut = {dim for dim, _ in blocks}
    outer = "".join(_PLAIN[d].upper() if d in cut else _PLAIN[d] for d in order)
    return outer + "".join(f"{size}{_PLAIN[dim]}" for dim, size in blocks)


def to_onednn_tag(layout: IndexMap) -> str:
    """The oneDNN tag of a layout, with the letters a, b, c, ... Raises :class:`UnsupportedError` where there is none.

    >>> from tilewright.layout import preset
    >>> to_onednn_tag(preset("nchw16c", (2, 40, 3, 5), "f32"))
    'aBcd16b'
    """
    require_layout(layout)
    reason = f"no oneDNN tag describes {layout}"
    if len(layout.axis_terms) != 1 or layout.digits is None or not 0 < layout.rank <= len(_PLAIN):
        raise UnsupportedError(reason)
    digits = sorted(layout.digits[layout.axes[0]].digits, key=lambda d: -d.weight)
    tops = {d.dim: d.div for d in sorted(digits, key=lambda d: d.div)}
    # Dims of size 1 may stand anywhere; they go where row-major order has them.
    order = [d.dim for d in digits if d.div == tops[d.dim]]
    for dim in range(layout.rank):
        if dim not in order:
            order.insert(next((k for k, other in enumerate(order) if other > dim), len(order)), dim)
    blocks = [(d.dim, d.mod) for d in digits if d.div != tops[d.dim] and d.mod]
    tag = _name(order, blocks)
    if not digits and math.prod(layout.shape) > 1:
        raise UnsupportedError(reason)
    if not is_bitcast(layout, from_onednn_tag(tag, layout.shape, layout.dtype)):
        raise UnsupportedError(reason, how=f"the nearest tag is {tag}")
    return tag
