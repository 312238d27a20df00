"""Shapes as XLA's neighbours write them, read into XLA's terms: JAX, MLIR, PyTorch, protocol buffers.

    float32[8,128]   i8[3]   f32<host>[8]   f32[8, 128][128, 1]cuda:0        JAX and PyTorch
    tensor<8x128xf32>   memref<16x256xbf16, #tpu.tiled<(8,128)(2,1),[2,1]>, #tpu.memory_space<vmem>>        MLIR
    Layout(major_to_minor=(0, 1), tiling=((8, 128),))        JAX's layouts
    element_type: F32 dimensions: 8 layout { minor_to_major: 0 }        XLA's own, as protocol buffers print them

A reader takes the whole text and where to begin; it answers a shape and the offset behind it, None where it is not its
business, or raises :class:`~tilewright.errors.ParseError`. What has no place in XLA's terms is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tilewright.errors import ParseError, TilewrightError
from tilewright.layout.index.types import TYPE_BITS, UNBOUNDED, dtype_name, type_bits, xla_dtype
from tilewright.layout.text import notation

_OTHER_NAMES = (
    *(f"{kind}int{bits}" for kind in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
    *(f"i{bits}" for bits in (4, 8, 16, 32, 64)),
    *("float16", "float32", "float64", "bfloat16", "bool", "complex64", "complex128"),
    *(f"float{name[1:].replace('e', '_e', 1)}" for name in TYPE_BITS if name[0] == "f" and "e" in name),
)
NAMES = frozenset((*TYPE_BITS, *_OTHER_NAMES))
"""Every name of an element type that may stand before ``[``, in small letters."""

ARRAY = r"(?:torch\.)?(?P<type>[A-Za-z][A-Za-z0-9_]{0,20})(?P<space><[a-z_]{1,20}>)?\s*\["
"""The beginning of an array; whether its type is one, :data:`NAMES` tell."""

_HEAD = re.compile(ARRAY + r"(?P<dims>[^\][]{0,2000})\]")
_DIM = re.compile(r"\s*(<=)?\s*([0-9]{1,19}|\?)(?:@[\w.(), ]*)?\s*")
_STRIDES = re.compile(r"\[\s*([0-9]{1,19}(?:\s*,\s*[0-9]{1,19})*)?\s*\](?=(?:cuda|cpu|xla|tpu|mps|meta|xpu|hpu)\b)")
SPACES = {"vmem": 1, "host": 5, "pinned_host": 5, "unpinned_host": 5}
"""What JAX and Mosaic call memories of a TPU, as n of XLA's S(n); any other name is the default memory."""


def read_neighbour(text: str, at: int) -> tuple[notation.ArrayText, int] | None:
    """An array as JAX or PyTorch writes it: ``float32[8,128]``, ``f32<host>[8]``, ``f32[8, 128][128, 1]cuda:0``."""
    head = _HEAD.match(text, at)
    if not head or head["type"].lower() not in NAMES:
        return None
    dims = ",".join(_sizes(text, head))
    short = f"{dtype_name(head['type'].lower())}[{dims}]"
    strides = _STRIDES.match(text, head.end())
    try:
        shape, end = notation.read_shape(short + ("" if strides else text[head.end() : head.end() + 4000]))
    except ParseError as error:
        behind = error.column - len(short)
        column = at if behind < 0 else head.end() + behind
        raise ParseError(error.what, text=text, column=column, how=error.how) from None
    assert isinstance(shape, notation.ArrayText)  # a type and a bracket begin nothing else
    if head["space"] and not shape.memory_space:
        shape = replace(shape, memory_space=SPACES.get(head["space"][1:-1], 0))
    if strides:
        return strided(shape, _integers(strides[1] or ""), text, at), strides.end()
    return shape, head.end() + end - len(short)


def _sizes(text: str, head: re.Match[str]) -> Iterator[str]:
    if not head["dims"].strip():
        return
    place = head.start("dims")
    for part in head["dims"].split(","):
        found = _DIM.fullmatch(part)
        if not found and re.fullmatch(r"\s*[A-Za-z_]\w*.*", part):
            how = "write its size in its place"
            raise ParseError(f"the dim {part.strip()[:40]!r} has no size", text=text, column=place, how=how)
        if not found and head["type"].lower() not in TYPE_BITS:
            raise ParseError("expected a whole number of at least 0 as a dim", text=text, column=place)
        yield f"{found[1] or ''}{found[2]}" if found else part
        place += len(part) + 1


def strided(shape: notation.ArrayText, strides: Sequence[int], text: str, at: int) -> notation.ArrayText:
    """The shape with the order of dims that dense strides have; refused where they are not dense."""
    if len(strides) != len(shape.dims):
        raise ParseError(f"{len(strides)} strides for {len(shape.dims)} dims", text=text, column=at)
    if (order := notation.dense_order(shape.dims, strides)) is not None:
        return replace(shape, minor_to_major=order)
    how = "`tilewright.layout.from_strides(shape, strides, dtype)` takes them, in bytes"
    raise ParseError(f"the strides {tuple(strides)} leave gaps or overlap", text=text, column=at, how=how)


MLIR = re.compile(r"\b(?:tensor|memref|vector|ranked_tensor)<")
_ELEMENT = re.compile(r"(?:complex<f(?:32|64)>|[A-Za-z][A-Za-z0-9_]*)")
_TILED = re.compile(r"#tpu\.tiled<\s*((?:\(\s*[-*0-9][-*0-9,\s]*\)\s*)*),?\s*(?:\[([0-9,\s]*)\])?\s*>")
_STRIDED = re.compile(r"strided<\s*\[([0-9?,\s]*)\]\s*(?:,\s*offset\s*:\s*(?:[0-9]+|\?))?\s*>")
_AFFINE = re.compile(r"affine_map<\s*\(([d0-9,\s]*)\)\s*->\s*\(([d0-9,\s]*)\)\s*>")
_BOUNDS = re.compile(r"#(?:stablehlo|mhlo)\.(?:type_extensions<\s*bounds\s*=\s*\[|bounds<)([0-9?,\s]*)[\]>]+")
_SPACE = re.compile(r"#tpu\.memory_space<\s*(\w+)\s*>|#gpu\.address_space<\s*\w+\s*>|[0-9]+(?:\s*:\s*i(?:32|64))?")
_MODE = re.compile(r'\s*\{[^{}]{0,400}?layout_mode\s*=\s*"(\{[^"{}]{0,400}\})"')


def read_mlir(text: str, at: int) -> tuple[notation.ArrayText, int] | None:
    """``tensor<..>``, ``memref<..>`` or ``vector<..>``; None where its elements are no data (``index``)."""
    opening = MLIR.match(text, at)
    if not opening:
        return None
    parts, end = _arguments(text, opening.end(), at)
    sizes, name = mlir_dims(parts[0])
    if name == "index" or name.startswith("!"):
        if name.startswith("!ttcore"):
            how = "`tilewright layout preset tenstorrent TYPE[DIMS]` shows the layout of its tiles"
            raise ParseError("tiles as elements are not read", text=text, column=at, how=how)
        return None
    if not _ELEMENT.fullmatch(name):
        inside = " ".join(parts[0][:40].split())
        raise ParseError(f"{opening.group()}{inside}> has no sizes and type to read", text=text, column=at)
    dtype = xla_dtype(name)
    if dtype not in TYPE_BITS:
        raise ParseError(f"no element type called {name!r}", text=text, column=at)
    order = tuple(range(len(sizes) - 1, -1, -1))
    shape = notation.ArrayText(dtype, tuple(sizes), tuple(n == UNBOUNDED for n in sizes), order)
    for part in parts[1:]:
        shape = _with_attribute(shape, part.strip(), text, at)
    if mode := _MODE.match(text, end):
        shape = with_layout(shape, mode[1], text, mode.start(1))
        end = mode.end()
    return _checked(shape, text, at), end


def _arguments(text: str, start: int, at: int) -> tuple[list[str], int]:
    """What stands between the brackets that opened before ``start``, cut at its commas, and the offset behind."""
    depth, parts, begin = 0, list[str](), start
    for place in range(start, min(len(text), start + 4000)):
        sign = text[place]
        if sign in "<([{":
            depth += 1
        elif sign in ")]}" or (sign == ">" and text[place - 1] != "-"):
            if sign == ">" and depth == 0:
                return [*parts, text[begin:place]], place + 1
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    raise ParseError("the type's '>' is missing", text=text, column=at)


def mlir_dims(text: str) -> tuple[list[int], str]:
    """(sizes, what stands behind them) of ``8x?xf32``."""
    rest, sizes = text.strip(), list[int]()
    while found := re.match(r"([0-9]{1,19}|\?)\s*x\s*", rest):
        sizes.append(UNBOUNDED if found[1] == "?" else int(found[1]))
        rest = rest[found.end() :]
    return sizes, rest if rest.startswith("!") else re.sub(r"\s", "", rest)


def _with_attribute(shape: notation.ArrayText, part: str, text: str, at: int) -> notation.ArrayText:
    rank = len(shape.dims)
    if space := _SPACE.fullmatch(part):
        return replace(shape, memory_space=SPACES.get(space[1] or "", 0))
    if tiled := _TILED.fullmatch(part):
        tiles = tuple(_tile(tile) for tile in re.findall(r"\(([^()]*)\)", tiled[1]))
        _check_tile_strides(shape, tiles, tiled[2], text, at)
        return replace(shape, tiles=tiles)
    if found := _STRIDED.fullmatch(part):
        if "?" in found[1]:
            raise ParseError("strides without a size say nothing of a layout", text=text, column=at)
        return strided(shape, _integers(found[1]), text, at)
    if found := _AFFINE.fullmatch(part):
        before, after = (re.findall(r"d([0-9]{1,4})", side) for side in found.groups())
        if sorted(before) == sorted(after) and [int(d) for d in before] == list(range(rank)):
            return replace(shape, minor_to_major=tuple(int(d) for d in reversed(after)))
    if bounds := _BOUNDS.fullmatch(part):
        sizes = [b.strip() for b in bounds[1].split(",") if b.strip()]
        if len(sizes) == rank and all(re.fullmatch(r"\?|[0-9]{1,19}", b) for b in sizes):
            dims = [n if b == "?" else int(b) for n, b in zip(shape.dims, sizes, strict=True)]
            return replace(shape, dims=tuple(dims))
    what = "a sparse array, whose places depend on its data" if "sparse" in part.lower() else "no layout that is known"
    raise ParseError(f"the attribute {' '.join(part[:60].split())} is {what}", text=text, column=at)


def _tile(text: str) -> tuple[int, ...]:
    """The sizes of a tile; 0, which no tile has, for what is neither a number nor ``*``."""
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) if re.fullmatch(r"-?[0-9]{1,19}", part) else 0 for part in parts]
    return tuple(notation.combine_mark("*" if part == "*" else n) for part, n in zip(parts, numbers, strict=True))


def _integers(text: str) -> list[int]:
    """The whole numbers in a list; what is too long for one is cut."""
    return [int(digits) for digits in re.findall(r"[0-9]{1,19}", text)]


def _check_tile_strides(
    shape: notation.ArrayText, tiles: tuple[tuple[int, ...], ...], text_of_strides: str | None, text: str, at: int
) -> None:
    """The tiles must lie behind each other row by row, as XLA has them."""
    if not text_of_strides or not text_of_strides.strip() or not tiles or UNBOUNDED in shape.dims:
        return
    strides = _integers(text_of_strides)
    first = tiles[0]
    if len(strides) != len(shape.dims) or len(first) > len(shape.dims) or min(first) < 1:
        return
    edge = len(shape.dims) - len(first)
    counts = [n if d < edge else -(-n // first[d - edge]) for d, n in enumerate(shape.dims)]
    step = 1
    for count, stride in zip(reversed(counts), reversed(strides), strict=True):
        if count > 1 and stride != step:
            raise ParseError(f"its tiles lie {strides} tiles apart, not row by row", text=text, column=at)
        step *= count


BARE = re.compile(r"\{(?:[0-9]{1,3}(?:\s*,\s*[0-9]{1,3})*)?\s*(?::\s*[A-Z*#][^{}\n]{0,400})?\}")
"""A layout as XLA prints it without a shape; ``{}`` and lists of numbers fit it as well."""

JAX_LAYOUT = re.compile(
    r"\b(?:DeviceLocal)?Layout\(\s*major_to_minor=\(([0-9,\s]*)\)((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
)
_TILING = re.compile(r"_?tiling=\(((?:\s*\([-0-9,\s]*\)\s*,?)*)\)")
_SUB_BYTE = re.compile(r"_?sub_byte_element_size_in_bits=([0-9]{1,3})")


def with_layout(shape: notation.ArrayText, layout: str, text: str, at: int) -> notation.ArrayText:
    """The shape with a layout's text, ``{1,0:T(8,128)}``; its faults are reported at ``at``."""
    plain = notation.format_shape(replace(shape, minor_to_major=(), tiles=(), memory_space=0)).partition("{")[0]
    if not shape.dims and layout == "{}":
        return shape
    try:
        read, end = notation.read_shape(plain + layout)
    except ParseError as error:
        raise ParseError(error.what, text=text, column=at, how=error.how) from None
    if not isinstance(read, notation.ArrayText) or end != len(plain + layout):
        raise ParseError("expected a layout such as {1,0:T(8,128)}", text=text, column=at)
    return read


class Bare(NamedTuple):
    """A layout without a shape: what is known of it."""

    text: str
    rank: int


def read_bare(text: str, at: int) -> tuple[Bare, int] | None:
    """A layout alone, XLA's or JAX's."""
    if found := JAX_LAYOUT.match(text, at):
        order = re.findall(r"[0-9]{1,3}", found[1])
        tiling, bits = _TILING.search(found[2]), _SUB_BYTE.search(found[2])
        tiles = tuple(_tile(tile.rstrip(", ")) for tile in re.findall(r"\(([^()]*)\)", tiling[1] if tiling else ""))
        tail = notation.format_tail(
            notation.ArrayText("f32", (), (), (), tiles, element_bits=int(bits[1]) if bits else 0)
        )
        return Bare("{" + ",".join(reversed(order)) + (f":{tail}" if tail else "") + "}", len(order)), found.end()
    if found := BARE.match(text, at):
        numbers = found.group()[1:-1].partition(":")[0]
        return Bare(found.group(), len(re.findall(r"[0-9]+", numbers))), found.end()
    return None


def unsized(bare: Bare, text: str, at: int) -> notation.ArrayText:
    """The layout with dims of unknown size; the element type is one of the width that its last tile packs."""
    packed = re.findall(r"\(([248]),1\)", re.sub(r"\s", "", bare.text))
    bits = re.search(r"E\(([0-9]{1,3})\)", bare.text)
    width = int(bits[1]) if bits else 32 // int(packed[-1]) if packed else 32
    dtype = {4: "s4", 8: "s8", 16: "bf16", 2: "s2", 1: "s1", 64: "f64"}.get(width, "f32")
    rank = bare.rank
    shape = notation.ArrayText(dtype, (UNBOUNDED,) * rank, (True,) * rank, tuple(range(rank - 1, -1, -1)))
    return with_layout(shape, bare.text, text, at)


STRUCT = re.compile(
    r"\b(?:size|shape)\s*[=:]\s*(?:torch\.Size\()?[\[(]([0-9,\s]*)[\])]\)?"
    r"(?:[^\n]{0,120}?\bstrides?\s*[=:]\s*[\[(]([0-9,\s]*)[\])])?"
    r"(?:[^\n]{0,120}?\bdtype\s*[=:]\s*(?:<class ')?(?:jax\.numpy\.|jnp\.|np\.|numpy\.|torch\.|dtype\('?)*([a-z]\w*))?"
)
_EMPTY = re.compile(
    r"\bempty_strided\w*\(\s*\(([0-9,\s]*)\)\s*,\s*\(([0-9,\s]*)\)\s*,\s*(?:dtype=)?(?:torch\.)?([a-z]\w*)"
)
_FIXED = re.compile(r"\bFixedLayout\([^,\n]{0,60},\s*torch\.(\w+),\s*size=\[([0-9,\s]*)\],\s*stride=\[([0-9,\s]*)\]")
APART = re.compile(r"\bempty_strided|\bFixedLayout\(|\b(?:size|shape)\s*[=:]\s*(?:torch\.Size\()?[\[(]")


def read_apart(text: str, at: int) -> tuple[notation.ArrayText, int] | None:
    """``shape=(8, 128), dtype=float32``, with ``stride=(128, 1)`` or not; None where no type is said."""
    if found := _EMPTY.match(text, at):
        sizes, strides, name = found.groups()
    elif found := _FIXED.match(text, at):
        name, sizes, strides = found.groups()
    elif found := STRUCT.match(text, at):
        sizes, strides, name = found.groups()
    if not found or not name:
        return None
    try:
        dtype = dtype_name(name.lower())
    except TilewrightError:
        return None
    dims = _integers(sizes)
    shape = notation.ArrayText(dtype, tuple(dims), (False,) * len(dims), tuple(range(len(dims) - 1, -1, -1)))
    if strides:
        shape = strided(shape, _integers(strides), text, at)
    return _checked(shape, text, at), found.end()


def _checked(shape: notation.ArrayText, text: str, at: int) -> notation.ArrayText:
    """The shape, if XLA could hold it: read again from its own text."""
    if any(n > notation.LARGEST for n in shape.dims) or len(shape.dims) * type_bits(shape.dtype) > 1 << 20:
        raise ParseError("the array has more than 2**63 - 1 bytes", text=text, column=at)
    try:
        again, _ = notation.read_shape(notation.format_shape(shape))
    except ParseError as error:
        raise ParseError(error.what, text=text, column=at, how=error.how) from None
    assert isinstance(again, notation.ArrayText)
    return again


PROTO = re.compile(r"\belement_type:\s*([A-Z][A-Z0-9_]*)")
_FIELD = re.compile(r"\s*(?:([a-z_]+)\s*:?\s*(\{)|([a-z_]+)\s*:\s*(-?[0-9]{1,19}|true|false|[A-Z_0-9]+)|(\}))\s*,?")


def read_proto(text: str, at: int) -> tuple[notation.ArrayText, int] | None:
    """``element_type: F32 dimensions: 8 layout { minor_to_major: 0 tiles { dimensions: 128 } memory_space: 1 }``."""
    head = PROTO.match(text, at)
    if not head or head[1].lower() not in TYPE_BITS or head[1] in ("TOKEN", "OPAQUE_TYPE"):
        return None
    dims, dynamic, order, tiles = list[int](), list[bool](), list[int](), list[list[int]]()
    values = {"memory_space": 0, "element_size_in_bits": 0, "tail_padding_alignment_in_elements": 1}
    inside, end = list[str](), head.end()
    while field := _FIELD.match(text, end):
        block, name, value = field[1], field[3], field[4]
        other = (block and block not in ("layout", "tiles")) or name == "element_type"
        counted = name in ("dimensions", "minor_to_major", *values)
        if other or (field[5] and not inside) or (counted and not re.fullmatch(r"-?[0-9]+", value)):
            break
        end = field.end()
        if field[5]:
            inside.pop()
        elif block:
            inside.append(block)
            tiles += [[]] if block == "tiles" else []
        elif name == "dimensions" and inside and tiles:
            tiles[-1].append(notation.combine_mark(int(value)))
        elif name == "dimensions":
            dims.append(int(value))
        elif name == "is_dynamic_dimension":
            dynamic.append(value == "true")
        elif name == "minor_to_major":
            order.append(int(value))
        elif name in values:
            values[name] = int(value)
    dynamic += [False] * (len(dims) - len(dynamic))
    shape = notation.ArrayText(
        head[1].lower(),
        tuple(dims),
        tuple(dynamic[: len(dims)]),
        tuple(order) if order else tuple(range(len(dims) - 1, -1, -1)),
        tuple(tuple(tile) for tile in tiles if tile),
        tail_alignment=values["tail_padding_alignment_in_elements"],
        element_bits=values["element_size_in_bits"],
        memory_space=values["memory_space"],
    )
    return _checked(shape, text, at), end
