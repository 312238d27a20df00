"""Tilings as MLIR's linalg.pack and oneDNN's tags, both ways (sources: MLIR's linalg dialect, oneDNN's formats).

    linalg.pack %source padding_value(%zero : f32) outer_dims_perm = [0, 1] inner_dims_pos = [0, 1]
        inner_tiles = [8, 128] into %packed : tensor<9x129xf32> -> tensor<2x2x8x128xf32>
    nChw16c, aBcd16b        outer dims from the slowest to the fastest, then the blocks, the innermost last

Every tile level is one linalg.pack: it cuts the dims ``inner_dims_pos`` into ``inner_tiles``, permutes the outer dims
and puts the tiles behind them. The packed tensor is row-major. In a tag a capital letter is a dim that blocks cut;
``16c`` is a block of 16 along c. Letters a, b, c, ... are the dims in order; n c d h w are those of activations,
g o i d h w those of weights, t n c those of recurrent cells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.layout.convert.strided import ConvertedLayout, converted, natural_sizes, split_dims
from tilewright.layout.index.address_map import row_major_axis
from tilewright.layout.index.bitcast import is_bitcast
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Permute, Split, Step, sizes_behind
from tilewright.layout.index.types import TYPE_BITS, dtype_name, mlir_type, require_layout, text_of, to_ints, xla_dtype
from tilewright.layout.kinds.tiled import TensorLayout
from tilewright.layout.text.neighbours import mlir_dims
from tilewright.layout.text.notation import COMBINE


@dataclass(frozen=True)
class LinalgPack:
    """One linalg.pack with its attributes; ``str()`` is the operation as MLIR writes it."""

    dtype: str
    source_shape: tuple[int, ...]
    inner_dims_pos: tuple[int, ...]
    inner_tiles: tuple[int, ...]
    outer_dims_perm: tuple[int, ...]

    @property
    def needs_padding(self) -> bool:
        """Whether a tile does not divide its dim, so that the operation wants a ``padding_value``."""
        return any(self.source_shape[d] % t for d, t in zip(self.inner_dims_pos, self.inner_tiles, strict=True))

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """The permuted outer dims and the tiles."""
        outer = list(self.source_shape)
        for d, t in zip(self.inner_dims_pos, self.inner_tiles, strict=True):
            outer[d] = -(-outer[d] // t)
        return (*(outer[d] for d in self.outer_dims_perm), *self.inner_tiles)

    @property
    def attributes(self) -> str:
        """The three lists as MLIR writes them, ``outer_dims_perm = [0, 1] ...``."""
        names = ("outer_dims_perm", "inner_dims_pos", "inner_tiles")
        return " ".join(f"{name} = [{', '.join(map(str, getattr(self, name)))}]" for name in names)

    def __str__(self) -> str:
        element = mlir_type(self.dtype)
        source, packed = (
            f"tensor<{''.join(f'{n}x' for n in shape)}{element}>" for shape in (self.source_shape, self.packed_shape)
        )
        padding = f" padding_value(%pad : {element})" if self.needs_padding else ""
        return f"linalg.pack %source{padding} {self.attributes} into %packed : {source} -> {packed}"


def to_linalg_pack(layout: IndexMap) -> tuple[LinalgPack, ...]:
    """The tile levels of an XLA layout as linalg.pack operations, the first level first.

    A layout without tiles that reorders dims is one operation that cuts nothing. Raises :class:`UnsupportedError` for a
    tile that merges dims (`*`) or has more dims than there are, for L(n), and for layouts that are no XLA layouts.

    >>> from tilewright.layout import parse
    >>> for operation in to_linalg_pack(parse("bf16[9,128]{1,0:T(8,128)(2,1)}")):
    ...     print(operation.inner_dims_pos, operation.inner_tiles, operation.needs_padding, operation.packed_shape)
    (0, 1) (8, 128) True (2, 1, 8, 128)
    (2, 3) (2, 1) False (2, 1, 4, 128, 2, 1)
    """
    require_layout(layout)
    if not isinstance(layout, TensorLayout):
        raise UnsupportedError(f"{layout} does not tile its dims in order; linalg.pack writes tiles")
    layout.require_static()
    if layout.text.tail_alignment != 1:
        raise UnsupportedError(f"{layout} pads its end to L({layout.text.tail_alignment}); linalg.pack pads tiles only")
    order = tuple(reversed(layout.minor_to_major))
    shape, packs = layout.shape, list[LinalgPack]()
    for tile in layout.tiles or ((),):
        if COMBINE in tile:
            raise UnsupportedError(f"{layout} merges dims by `*`; collapse the dims before linalg.pack")
        if len(tile) > len(shape):
            raise UnsupportedError(f"{layout} has a tile of {len(tile)} dims over {len(shape)}; expand the array first")
        cut = order[len(order) - len(tile) :]
        packs.append(LinalgPack(layout.dtype, shape, cut, tile, order))
        shape = packs[-1].packed_shape
        order = tuple(range(len(shape)))
    return tuple(packs)


def check_pack(pack: LinalgPack, rank: int) -> None:
    """Raises :class:`UsageError` where an operation's attributes do not match a tensor of ``rank`` dims."""
    if sorted(pack.outer_dims_perm) != list(range(rank)):
        raise UsageError(f"outer_dims_perm {list(pack.outer_dims_perm)} is not a permutation of {rank} dims")
    if len(pack.inner_dims_pos) != len(pack.inner_tiles) or any(t < 1 for t in pack.inner_tiles):
        tiles, dims = list(pack.inner_tiles), list(pack.inner_dims_pos)
        raise UsageError(f"inner_tiles {tiles} do not match inner_dims_pos {dims}")
    if len(set(pack.inner_dims_pos)) != len(pack.inner_dims_pos) or not set(pack.inner_dims_pos) <= set(range(rank)):
        raise UsageError(f"inner_dims_pos {list(pack.inner_dims_pos)} names a dim twice, or one that does not exist")


def from_linalg_pack(
    shape: Sequence[int],
    dtype: Any,
    inner_dims_pos: Sequence[int],
    inner_tiles: Sequence[int],
    outer_dims_perm: Sequence[int] | None = None,
    *more: LinalgPack,
) -> ConvertedLayout:
    """Where linalg.pack puts the elements of an array; ``more`` operations follow on the packed tensor.

    >>> layout = from_linalg_pack((128, 256), "f32", inner_dims_pos=[1, 0], inner_tiles=[16, 8])
    >>> layout.physical_shape, layout.offset(9, 17)
    ((16, 16, 16, 8), 2185)
    """
    dims, name = natural_sizes(shape), dtype_name(dtype)
    perm = tuple(range(len(dims))) if outer_dims_perm is None else to_ints(outer_dims_perm, "a dim")
    first = LinalgPack(name, dims, to_ints(inner_dims_pos, "a dim"), to_ints(inner_tiles, "a tile size"), perm)
    steps, sizes = list[Step](), dims
    for pack in (first, *more):
        if pack.source_shape != sizes:
            raise UsageError(f"linalg.pack of {pack.source_shape} behind a tensor of {sizes}")
        check_pack(pack, len(sizes))
        cut = dict(zip(pack.inner_dims_pos, pack.inner_tiles, strict=True))
        steps += [Split(d, cut[d]) for d in sorted(cut, reverse=True)]  # last first: the others keep their places
        outer = [d + sum(k < d for k in cut) for d in range(len(sizes))]
        order = (*(outer[d] for d in pack.outer_dims_perm), *(outer[d] + 1 for d in pack.inner_dims_pos))
        steps.append(Permute(order))
        sizes = pack.packed_shape
    axis = row_major_axis("offset", range(len(sizes)), sizes)
    source = f"linalg.pack inner_dims_pos = {list(inner_dims_pos)} inner_tiles = {list(inner_tiles)}"
    return converted(name, dims, tuple(steps), axis, source)


# MLIR's text of linalg.pack (tensor.pack in older dumps), read.

_HEAD = re.compile(r"\b(?:linalg|tensor)\.pack\b")
_NUMBERS = r"\s*=\s*\[([^\[\]]*)\]"
_TENSOR = r"(?:tensor|memref)<([^<>]*(?:<[^<>]*>)?)>"
_TYPES = re.compile(rf":\s*{_TENSOR}\s*->\s*{_TENSOR}")


def _numbers(text: str, name: str, start: int, end: int) -> tuple[int, ...] | None:
    """The list behind ``name =`` between two places of the text; None where it is not there."""
    attribute = re.compile(rf"\b{name}{_NUMBERS}").search(text, start, end)
    if attribute is None:
        return None
    parts = attribute[1].split(",") if attribute[1].strip() else []
    if not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", part) for part in parts):
        raise ParseError(f"{name} is not a list of whole numbers", text=text, column=attribute.start(1))
    return tuple(map(int, parts))


def _tensor(text: str, inside: str, at: int) -> tuple[tuple[int, ...], str]:
    """Sizes and element type within ``tensor<...>``, which begins at ``at``."""
    if "," in inside:
        raise UnsupportedError(f"<{inside}> has a memory layout of its own", how="linalg.pack packs plain tensors")
    sizes, kind = mlir_dims(inside)
    dtype = xla_dtype(kind)
    if dtype not in TYPE_BITS:
        raise ParseError(f"no element type called {kind!r}", text=text, column=at)
    if any(size < 0 for size in sizes):
        raise UnsupportedError(f"tensor<{inside}> has dims without a size", how="give the sizes of the run")
    if max(sizes, default=0) >= 10**18:
        raise ParseError("a dim of more than 18 digits", text=text, column=at)
    return tuple(sizes), dtype


def _operation(text: str, start: int, end: int) -> LinalgPack:
    """The operation whose name ends at ``start``, before the next one at ``end``."""
    types = _TYPES.search(text, start, end)
    if types is None:
        how = "it ends with : tensor<..> -> tensor<..>"
        raise ParseError("expected the types of linalg.pack", text=text, column=start, how=how)
    shape, dtype = _tensor(text, types[1], types.start(1))
    packed, _ = _tensor(text, types[2], types.start(2))
    positions, tiles, perm = (
        _numbers(text, name, start, types.start()) for name in ("inner_dims_pos", "inner_tiles", "outer_dims_perm")
    )
    if positions is None or tiles is None:
        raise ParseError("expected inner_dims_pos = [..] and inner_tiles = [..]", text=text, column=start)
    pack = LinalgPack(dtype, shape, positions, tiles, tuple(range(len(shape))) if perm is None else perm)
    check_pack(pack, len(shape))
    if pack.packed_shape != packed:
        sizes = "x".join(map(str, pack.packed_shape))
        raise ParseError(f"the packed tensor has the sizes {sizes}", text=text, column=types.start(2))
    return pack


def parse_linalg_pack(text: str) -> tuple[LinalgPack, ...]:
    """The linalg.pack operations of a text, in order.

    Raises :class:`ParseError` where there is none or one is not as MLIR has it, and :class:`UnsupportedError` for dims
    or tiles whose sizes the text does not tell.

    >>> (pack,) = parse_linalg_pack(
    ...     "%1 = linalg.pack %0 inner_dims_pos = [1, 0] inner_tiles = [16, 8] into %e "
    ...     ": tensor<128x256xf32> -> tensor<16x16x16x8xf32>")
    >>> pack.source_shape, pack.inner_dims_pos, pack.inner_tiles, pack.outer_dims_perm
    ((128, 256), (1, 0), (16, 8), (0, 1))
    """
    heads = list(_HEAD.finditer(text_of(text, "MLIR")))
    if not heads:
        raise ParseError("expected linalg.pack", text=text, column=0)
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(_operation(text, head.end(), end) for head, end in zip(heads, ends, strict=True))


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
    cut = {dim for dim, _ in blocks}
    tag = "".join(_PLAIN[d].upper() if d in cut else _PLAIN[d] for d in order)
    tag += "".join(f"{size}{_PLAIN[dim]}" for dim, size in blocks)
    if not digits and math.prod(layout.shape) > 1:
        raise UnsupportedError(reason)
    if not is_bitcast(layout, from_onednn_tag(tag, layout.shape, layout.dtype)):
        raise UnsupportedError(reason, how=f"the nearest tag is {tag}")
    return tag
