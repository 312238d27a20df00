"""XLA's layout text: the grammar, read by one cursor.

    shape  := prim '[' dims ']' layout? | '(' shape, ... ')' | 'b(' shape ')'
    dim    := int | '<=' int | '?'
    layout := '{' minor_to_major (':' tail)? '}'
    tail   := D(..)? T(..)(..)*? L(n)? #(type)? *(type)? E(n)? S(n)? SC(d:i,j)(..)? P(shape)? M(n)?   in this order

Source: the behaviour of XLA's HLO parser, with which it agrees on every text that makes sense; a text that makes none
is refused with its column where XLA's parser accepts it, wraps numbers around or ends the process.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from tilewright.errors import ParseError, UsageError
from tilewright.layout.index.types import TYPE_BITS, UNBOUNDED, dtype_name, type_bits

# -- the cursor: a place in a text that a reader moves along; a failed expectation names its column --------------------

LARGEST = 2**63 - 1
"""The largest number a shape may hold, as in XLA."""

_COMBINED = re.compile(r"\*|-(?:1|9223372036854775808)(?![0-9])", re.ASCII)
_BLANKS = re.compile(r"(?:[ \t\r\n]+|/\*.*?\*/|//[^\r\n]*)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_DIGITS = re.compile(r"[0-9]+")


def after_blanks(text: str, at: int) -> int:
    """The offset behind blanks and comments (``/* .. */`` and ``// ..``) at ``at``."""
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


class Cursor:
    """``text`` and the offset ``at`` of the next thing in it, blanks and comments skipped."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, after_blanks(text, at)

    def fail(self, what: str, at: int | None = None, how: str = "") -> ParseError:
        """An error at ``at``, or here."""
        return ParseError(what, text=self.text, column=self.at if at is None else at, how=how)

    def move(self, to: int) -> None:
        """Go on behind ``to`` and the blanks there."""
        self.at = after_blanks(self.text, to)

    def peek(self, token: str) -> bool:
        """Whether ``token`` is next in the text."""
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        """Go past ``token`` if it is next."""
        if not self.peek(token):
            return False
        self.move(self.at + len(token))
        return True

    def expect(self, token: str, context: str) -> None:
        """Go past ``token``, which must be next."""
        if not self.take(token):
            raise self.fail(f"expected {token!r} {context}")

    def key(self, key: str) -> bool:
        """Go past ``KEY (`` if it is next; a letter key ends where its letters end."""
        if not self.peek(key):
            return False
        behind = self.at + len(key)
        word = _NAME.match(self.text, self.at)
        if word and word.end() != behind:
            return False
        opening = after_blanks(self.text, behind)
        if not self.text.startswith("(", opening):
            raise self.fail(f"expected '(' after {key}", opening)
        self.move(opening + 1)
        return True

    def integer(self, context: str, least: int = 0, most: int = LARGEST) -> int:
        """Read a whole number in least..most; ``context`` says in an error what it is for."""
        match = _DIGITS.match(self.text, self.at)
        if not match:
            raise self.fail(f"expected a whole number of at least {least} {context}")
        digits, start = match.group().lstrip("0") or "0", self.at
        value = int(digits) if len(digits) < 20 else most + 1
        if value > most:
            raise self.fail(f"expected a whole number of at most {most} {context}", start)
        if value < least:
            raise self.fail(f"{value} {context}: at least {least} is needed", start)
        self.move(match.end())
        return value

    def name(self, context: str) -> str:
        """Read a name; ``context`` is what an error says was expected."""
        match = _NAME.match(self.text, self.at)
        if not match:
            raise self.fail(f"expected {context}")
        self.move(match.end())
        return match.group()


# -- values: what a shape's text says, and the canonical text of such a value -----------------------------------------


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The order of dims, fastest first, in which elements so far apart lie behind each other; None where none is."""
    row_major = tuple(reversed(range(len(shape))))
    for order in (row_major, tuple(sorted(row_major, key=lambda d: (strides[d], shape[d] != 1)))):
        steps = accumulate((shape[d] for d in order), operator.mul, initial=1)
        if all(shape[d] <= 1 or strides[d] == step for d, step in zip(order, steps, strict=False)):
            return order
    return None


COMBINE = -1
"""A ``*`` in a tile: this dim is merged with the next more minor one."""

XLA_COMBINE = -(2**63)


def combine_mark(part: Any) -> Any:
    """:data:`COMBINE` for ``*`` and for the number that XLA and JAX use for it; anything else comes back as it is."""
    return COMBINE if (isinstance(part, str) and part == "*") or part == XLA_COMBINE else part


@dataclass(frozen=True)
class ArrayText:
    """One array shape as written; ``tiles`` use :data:`COMBINE` for ``*``, ``dims`` :data:`UNBOUNDED` for ``?``.

    ``sparse_levels`` are the parts of ``D(..)`` where some dim is not stored dense. XLA does not print them, nor does
    :func:`format_shape`.
    """

    dtype: str
    dims: tuple[int, ...]
    dynamic: tuple[bool, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    tail_alignment: int = 1
    index_type: str = ""
    pointer_type: str = ""
    element_bits: int = 0
    memory_space: int = 0
    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    metadata_prefix: int = 0
    buffer: bool = False
    sparse_levels: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class TupleText:
    """A tuple of shapes as written."""

    elements: tuple[ShapeText, ...]


ShapeText = ArrayText | TupleText


def tile_text(tile: tuple[int, ...]) -> str:
    """A tile's sizes as XLA writes them between parentheses."""
    return ",".join("*" if t == COMBINE else str(t) for t in tile)


def format_tail(shape: ArrayText) -> str:
    """What stands behind ``:`` in the layout of a shape: ``T(8,128)(2,1)S(1)``."""
    parts = []
    if shape.tiles:
        parts.append("T" + "".join(f"({tile_text(tile)})" for tile in shape.tiles))
    parts += [f"L({shape.tail_alignment})"] if shape.tail_alignment != 1 else []
    parts += [f"#({shape.index_type})"] if shape.index_type else []
    parts += [f"*({shape.pointer_type})"] if shape.pointer_type else []
    parts += [f"E({shape.element_bits})"] if shape.element_bits else []
    parts += [f"S({shape.memory_space})"] if shape.memory_space else []
    if shape.splits:
        parts.append("SC" + "".join(f"({dim}:{','.join(map(str, cuts))})" for dim, cuts in shape.splits))
    parts += [f"M({shape.metadata_prefix})"] if shape.metadata_prefix else []
    return "".join(parts)


def format_shape(shape: ShapeText) -> str:
    """XLA's canonical text; reading it back gives an equal value."""
    if isinstance(shape, TupleText):
        mark = len(shape.elements) > 5
        texts = (
            (f"/*index={i}*/" if mark and i and i % 5 == 0 else "") + format_shape(e)
            for i, e in enumerate(shape.elements)
        )
        return "(" + ", ".join(texts) + ")"
    sizes = zip(shape.dims, shape.dynamic, strict=True)
    dims = ["?" if size == UNBOUNDED else f"<={size}" if dynamic else str(size) for size, dynamic in sizes]
    text, tail = f"{shape.dtype}[{','.join(dims)}]", format_tail(shape)
    if shape.dtype not in ("token", "opaque") and (shape.dims or tail):
        text += "{" + ",".join(map(str, shape.minor_to_major)) + (f":{tail}" if tail else "") + "}"
    return f"b({text})" if shape.buffer else text


LEFT_OVER = "text left over behind the shape"
_ORDER = "the order of the tail is D T L # * E S SC P M"
_MOST_NESTED = 64
_MOST_TILE_DIMS = 10_000
LAST_SPACE = 127
"""The largest memory space: XLA keeps it in a signed byte."""
_BARE = ("token", "opaque")  # types without dims and layouts
_OPENS = re.compile(r"[0-9:]|-[0-9]")
_WIDER_NAME = re.compile(r"b[A-Za-z0-9_.-]")
_PLAIN = re.compile(
    r"([a-z]+[a-z0-9]*)\[([0-9,]*)\](?:\{([0-9,]*)(?::((?:T(?:\([0-9,]+\))+)?)(?:S\(([0-9]{1,9})\))?)?\})?"
)


def _element_type(cursor: Cursor) -> str:
    start = cursor.at
    name = cursor.name("an element type").lower()
    if name not in TYPE_BITS:
        raise cursor.fail(f"no element type called {name!r}", start, how=_other_name(name))
    return name


def _other_name(name: str) -> str:
    """What XLA calls a type that numpy, MLIR or a jaxpr call ``name``; "" where nobody does."""
    try:
        return f"XLA calls it {dtype_name(name)}"
    except UsageError:
        return ""


def _dims(cursor: Cursor) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    dims: list[int] = []
    dynamic: list[bool] = []
    while dims or not cursor.peek("]"):
        bounded = cursor.take("<=")
        unbounded = not bounded and cursor.take("?")
        dims.append(UNBOUNDED if unbounded else cursor.integer("as a dim"))
        dynamic.append(bounded or unbounded)
        if not cursor.take(","):
            break
    cursor.expect("]", "or ',' after a dim")
    return tuple(dims), tuple(dynamic)


def addressable(dtype: str, dims: tuple[int, ...]) -> bool:
    """Whether the data's bytes can be counted in 64 bits, as XLA demands."""
    return math.prod(n for n in dims if n != UNBOUNDED) * (type_bits(dtype) // 8) <= LARGEST


def _array(cursor: Cursor) -> ArrayText:
    dtype = _element_type(cursor)
    cursor.expect("[", f"after the element type {dtype}")
    at = cursor.at
    dims, dynamic = _dims(cursor)
    if dtype in _BARE and dims:
        raise cursor.fail(f"a {dtype} has no dims", at)
    if not addressable(dtype, dims):
        raise cursor.fail("the array has more than 2**63 - 1 bytes", at)
    shape = ArrayText(dtype, dims, dynamic, tuple(reversed(range(len(dims)))))
    inside = after_blanks(cursor.text, cursor.at + 1)
    if not cursor.peek("{") or not _OPENS.match(cursor.text, inside):  # otherwise it begins a computation's body
        return shape
    if dtype in _BARE:
        raise cursor.fail(f"a {dtype} has no layout")
    cursor.take("{")
    return _layout(cursor, shape)


def _tuple(cursor: Cursor, depth: int) -> TupleText:
    elements: list[ShapeText] = []
    while elements or not cursor.peek(")"):
        elements.append(_shape(cursor, depth + 1))
        if not cursor.take(","):
            break
    cursor.expect(")", "or ',' in a tuple")
    return TupleText(tuple(elements))


def _shape(cursor: Cursor, depth: int = 0) -> ShapeText:
    if quick := _fast(cursor.text, cursor.at):
        cursor.at = quick[1]
        return quick[0]
    if depth > _MOST_NESTED:
        raise cursor.fail(f"shapes nested more than {_MOST_NESTED} deep")
    if cursor.take("("):
        return _tuple(cursor, depth)
    plain_name = _WIDER_NAME.match(cursor.text, cursor.at)  # such as bf16, which begins like a buffer
    if cursor.peek("b") and not plain_name and cursor.key("b"):
        at = cursor.at
        inner = _shape(cursor, depth + 1)
        if not isinstance(inner, ArrayText) or inner.buffer or inner.dtype in _BARE:
            raise cursor.fail("a buffer b(..) holds one array", at)
        cursor.expect(")", "after the buffer's shape")
        return replace(inner, buffer=True)
    return _array(cursor)


def _minor_to_major(cursor: Cursor, rank: int) -> tuple[int, ...]:
    start = cursor.at
    order: list[int] = []
    while order or not (cursor.peek(":") or cursor.peek("}")):
        at = cursor.at
        dim = cursor.integer("as a dim of minor_to_major")
        if dim >= rank:
            raise cursor.fail(f"minor_to_major names dim {dim}, but the shape has {rank} dimensions", at)
        if dim in order:
            raise cursor.fail(f"minor_to_major names dim {dim} twice", at)
        order.append(dim)
        if not cursor.take(","):
            break
    if len(order) != rank:
        fields = f"layout minor_to_major field contains {len(order)} elements"
        raise cursor.fail(f"{fields}, but shape has {rank} dimensions", start)
    return tuple(order)


def _level_types(cursor: Cursor) -> tuple[str, ...]:
    """Read ``D(..)``: how each dim is stored."""
    levels: list[str] = []
    if not cursor.key("D") or cursor.take(")"):
        return ()
    while True:
        letter = next((letter for letter in "DCSH" if cursor.take(letter)), "")
        if not letter:
            raise cursor.fail("expected D, C, S or H in D(..)")
        levels.append(letter + "+" * cursor.take("+") + "~" * cursor.take("~"))
        if not cursor.take(","):
            break
    cursor.expect(")", "or ',' in D(..)")
    return tuple(levels)


def _tile(cursor: Cursor) -> tuple[int, ...]:
    """The dims of a tile whose ``(`` was read."""
    dims: list[int] = []
    while True:
        at = cursor.at
        if mark := _COMBINED.match(cursor.text, at):
            dims.append(COMBINE)
            cursor.move(mark.end())
        else:
            try:
                dims.append(cursor.integer("as a tile dim", least=1))
            except ParseError as error:
                reason = "a tile without dims" if cursor.peek(")") and not dims else error.what
                raise cursor.fail(f"layout has invalid tiles: {reason}", at) from None
        if not cursor.take(","):
            break
    if dims[-1] == COMBINE:
        raise cursor.fail("layout has invalid tiles: '*' in the most minor place has nothing to merge with", at)
    cursor.expect(")", "or ',' in a tile")
    return tuple(dims)


def _tiles(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    if not cursor.key("T"):
        return ()
    tiles = [_tile(cursor)]
    count, at = len(tiles[0]), cursor.at
    while cursor.take("("):
        tiles.append(_tile(cursor))
        count += len(tiles[-1])
        if count > _MOST_TILE_DIMS:
            raise cursor.fail(f"tiles of more than {_MOST_TILE_DIMS} dims together", at)
    return tuple(tiles)


def _number(cursor: Cursor, key: str, absent: int, least: int = 0, most: int = LARGEST) -> int:
    """n of ``KEY(n)``, or ``absent`` when the key is not next."""
    if not cursor.key(key):
        return absent
    value = cursor.integer(f"in {key}(..)", least, most)
    cursor.expect(")", f"after {key}(..")
    return value


def _integer_type(cursor: Cursor, key: str) -> str:
    """An integer type in ``KEY(..)``: what a sparse array's indices or pointers are."""
    if not cursor.key(key):
        return ""
    at = cursor.at
    name = _element_type(cursor)
    if name[0] not in "su":
        raise cursor.fail(f"{key}(..) names an integer type, not {name}", at)
    cursor.expect(")", f"after {key}(..")
    return name


def _cuts(cursor: Cursor, size: int) -> tuple[int, ...]:
    cuts: list[int] = []
    while True:
        at = cursor.at
        cuts.append(cursor.integer("as a cut point", least=1))
        if cuts[1:] and cuts[-1] <= cuts[-2]:
            raise cursor.fail("cut points must ascend", at)
        if cuts[-1] >= max(size, 1):
            places = "no bound" if size == UNBOUNDED else f"{size} places"
            raise cursor.fail(f"cut point {cuts[-1]} is outside the dim, which has {places}", at)
        if not cursor.take(","):
            return tuple(cuts)


def _splits(cursor: Cursor, sizes: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """``SC(d:i,j)..``; ``sizes`` are those of the physical dims, major first."""
    if not cursor.key("SC"):
        return ()
    splits: dict[int, tuple[int, ...]] = {}
    while True:
        at = cursor.at
        dim = cursor.integer("as a physical dim of SC(..)")
        if dim >= len(sizes):
            raise cursor.fail(f"SC(..) names physical dim {dim}, but the shape has {len(sizes)} dimensions", at)
        if dim in splits:
            raise cursor.fail(f"SC(..) names physical dim {dim} twice", at)
        cursor.expect(":", "after the dim of SC(..)")
        splits[dim] = _cuts(cursor, sizes[dim])
        cursor.expect(")", "or ',' after a cut point")
        if not cursor.take("("):
            return tuple(splits.items())


def _layout(cursor: Cursor, shape: ArrayText) -> ArrayText:
    """The layout whose ``{`` was read, added to ``shape``."""
    order = _minor_to_major(cursor, len(shape.dims))
    shape = replace(shape, minor_to_major=order)
    if cursor.take(":"):
        shape = _tail(cursor, shape)
    if not cursor.take("}"):
        raise cursor.fail("expected '}' at the end of the layout", how=_ORDER)
    return shape


def _tail(cursor: Cursor, shape: ArrayText) -> ArrayText:
    levels = _level_types(cursor)
    tiles = _tiles(cursor)
    alignment = _number(cursor, "L", absent=1, least=1)
    index_type, pointer_type = _integer_type(cursor, "#"), _integer_type(cursor, "*")
    at = cursor.at
    bits = _number(cursor, "E", absent=0)
    if bits and bits < TYPE_BITS[shape.dtype]:
        raise cursor.fail(f"E({bits}) is narrower than the {TYPE_BITS[shape.dtype]} bits of {shape.dtype}", at)
    space = _number(cursor, "S", absent=0, most=LAST_SPACE)
    splits = _splits(cursor, tuple(shape.dims[d] for d in reversed(shape.minor_to_major)))
    at = cursor.at
    if cursor.key("P"):
        raise cursor.fail("P(..): sparse arrays have no place in a tiled layout", at, how="leave P(..) out")
    prefix = _number(cursor, "M", absent=0)
    values = (alignment, index_type, pointer_type, bits, space, splits, prefix)
    whole = ArrayText(shape.dtype, shape.dims, shape.dynamic, shape.minor_to_major, tiles, *values)
    return replace(whole, sparse_levels=levels) if any(level != "D" for level in levels) else whole


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _fits(numbers: Iterable[int], least: int) -> bool:
    return all(least <= n <= LARGEST for n in numbers)


def _fast(text: str, start: int) -> tuple[ArrayText, int] | None:
    """The common plain case by one regular expression; None sends the text to the cursor (and its errors)."""
    plain = _PLAIN.match(text, start)
    if not plain:
        return None
    dtype, dims_text, order_text, tiles_text, space_text = plain.groups()
    end = after_blanks(text, plain.end())
    braces_open = order_text is None and text.startswith("{", end)
    empty_braces = order_text == "" and text[plain.end(3)] == "}"
    if dtype not in TYPE_BITS or dtype in _BARE or braces_open or empty_braces:
        return None
    try:
        dims = _numbers(dims_text)
        order = tuple(range(len(dims) - 1, -1, -1)) if order_text is None else _numbers(order_text)
        tiles = tuple(map(_numbers, tiles_text[2:-1].split(")("))) if tiles_text else ()
    except ValueError:  # two commas in a row, or more digits than Python takes
        return None
    space = int(space_text or 0)
    sound = sorted(order) == list(range(len(dims))) and space <= LAST_SPACE
    sound = sound and addressable(dtype, dims) and sum(map(len, tiles)) <= _MOST_TILE_DIMS
    if not sound or not _fits(dims, 0) or not all(_fits(tile, 1) for tile in tiles):
        return None
    return ArrayText(dtype, dims, (False,) * len(dims), order, tiles, memory_space=space), end


def read_shape(text: str, start: int = 0) -> tuple[ShapeText, int]:
    """Read one shape beginning at ``start``; returns it and the offset behind it. Raises :class:`ParseError`."""
    cursor = Cursor(text, start)
    return _shape(cursor), cursor.at
