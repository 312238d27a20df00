"""XLA's layout text: the grammar, read by one cursor, and the canonical printer.

    shape  := prim '[' dims ']' layout? | '(' shape, ... ')' | 'b(' shape ')'
    dim    := int | '<=' int | '?'
    layout := '{' minor_to_major (':' tail)? '}'
    tail   := D(..)? T(..)(..)*? L(n)? #(type)? *(type)? E(n)? S(n)? SC(d:i,j)(..)? P(shape)? M(n)?   in this order

Source: the behaviour of XLA's HLO parser; unlike it, a text that makes no sense is refused with its column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilewright.errors import ParseError
from tilewright.layout._types import TYPE_BITS

__all__ = ["COMBINE", "UNBOUNDED", "ArrayText", "ShapeText", "TupleText", "format_shape", "read_shape"]

COMBINE = -1
"""A ``*`` in a tile: this dim is merged with the next more minor one."""
UNBOUNDED = -1
"""The size of a ``?`` dim."""

_OPENS = re.compile(r"\{\s*[\d:]")
_BLANK = re.compile(r"(?:\s|/\*.*?\*/)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_INT = re.compile(r"\d{1,18}(?!\d)")
_PLAIN = re.compile(
    r"([a-z]+[a-z0-9]*)\[([0-9,]*)\](?:\{([0-9,]*)(?::((?:T(?:\([0-9,]+\))+)?)(?:S\((\d{1,9})\))?)?\})?"
)
_LEVEL_TYPES = re.compile(r"D\(\s*[A-Z][+~]*(?:\s*,\s*[A-Z][+~]*)*\s*\)")


@dataclass(frozen=True)
class ArrayText:
    """One array shape as written; ``tiles`` use :data:`COMBINE` for ``*``, ``dims`` :data:`UNBOUNDED` for ``?``."""

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


@dataclass(frozen=True)
class TupleText:
    """A tuple of shapes."""

    elements: tuple[ShapeText, ...]


ShapeText = ArrayText | TupleText


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


class _Cursor:
    """A place in a text; every ``expect`` that fails names the column."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at
        self.blanks()

    def blanks(self) -> None:
        self.at = _after_blanks(self.text, self.at)

    def fail(self, what: str, at: int | None = None, how: str = "") -> ParseError:
        return ParseError(what, text=self.text, column=self.at if at is None else at, how=how)

    def peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token)
        self.blanks()
        return True

    def expect(self, token: str, context: str) -> None:
        if not self.take(token):
            raise self.fail(f"expected {token!r} {context}")

    def integer(self, context: str, least: int = 0) -> int:
        found = _INT.match(self.text, self.at)
        if not found:
            raise self.fail(f"expected a whole number of at least {least} {context}")
        value, start = int(found.group()), self.at
        if value < least:
            raise self.fail(f"{value} {context}: at least {least} is needed", start)
        self.at = found.end()
        self.blanks()
        return value

    def name(self, context: str) -> str:
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.fail(f"expected {context}")
        self.at = found.end()
        self.blanks()
        return found.group()


def _element_type(cursor: _Cursor) -> str:
    start = cursor.at
    name = cursor.name("an element type").lower()
    if name not in TYPE_BITS:
        raise cursor.fail(f"no element type called {name!r}", start)
    return name


def _dims(cursor: _Cursor) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    dims: list[int] = []
    dynamic: list[bool] = []
    while not cursor.take("]"):
        if dims:
            cursor.expect(",", "or ']' after a dim")
        bounded = cursor.take("<=")
        if not bounded and cursor.take("?"):
            dims.append(UNBOUNDED)
            dynamic.append(True)
            continue
        dims.append(cursor.integer("as a dim"))
        dynamic.append(bounded)
    return tuple(dims), tuple(dynamic)


def _minor_to_major(cursor: _Cursor, rank: int) -> tuple[int, ...]:
    start = cursor.at
    order: list[int] = []
    while not (cursor.peek(":") or cursor.peek("}")):
        if order:
            cursor.expect(",", "between dims of minor_to_major")
        at = cursor.at
        dim = cursor.integer("as a dim of minor_to_major")
        if dim >= rank:
            raise cursor.fail(f"minor_to_major names dim {dim}, but the shape has {rank} dimensions", at)
        if dim in order:
            raise cursor.fail(f"minor_to_major names dim {dim} twice", at)
        order.append(dim)
    if len(order) != rank:
        what = f"layout minor_to_major field contains {len(order)} elements, but shape has {rank} dimensions"
        raise cursor.fail(what, start)
    return tuple(order)


def _tile(cursor: _Cursor) -> tuple[int, ...]:
    dims: list[int] = []
    while not cursor.take(")"):
        if dims:
            cursor.expect(",", "or ')' in a tile")
        at = cursor.at
        if cursor.take("*"):
            dims.append(COMBINE)
            if cursor.peek(")"):
                raise cursor.fail("layout has invalid tiles: '*' in the most minor place has nothing to merge with", at)
        else:
            try:
                dims.append(cursor.integer("as a tile dim", least=1))
            except ParseError as error:
                raise cursor.fail(f"layout has invalid tiles: {error.what}", at) from None
    if not dims:
        raise cursor.fail("layout has invalid tiles: a tile without dims", cursor.at - 1)
    return tuple(dims)


def _number(cursor: _Cursor, key: str, least: int = 0) -> int | None:
    """``KEY(n)``, or None when the key is not next."""
    if not cursor.take(key + "("):
        return None
    value = cursor.integer(f"in {key}(..)", least)
    cursor.expect(")", f"after {key}(..")
    return value


def _typed(cursor: _Cursor, key: str) -> str:
    if not cursor.take(key + "("):
        return ""
    name = _element_type(cursor)
    cursor.expect(")", f"after {key}(..")
    return name


def _splits(cursor: _Cursor, dims: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    if not cursor.take("SC("):
        return ()
    found = []
    while True:
        at = cursor.at
        dim = cursor.integer("as a physical dim of SC(..)")
        if dim >= len(dims):
            raise cursor.fail(f"SC(..) names physical dim {dim}, but the shape has {len(dims)} dimensions", at)
        cursor.expect(":", "after the dim of SC(..)")
        cuts = [cursor.integer("as a cut point", least=1)]
        while cursor.take(","):
            at = cursor.at
            cuts.append(cursor.integer("as a cut point", least=1))
            if cuts[-1] <= cuts[-2]:
                raise cursor.fail("cut points must ascend", at)
        found.append((dim, tuple(cuts)))
        cursor.expect(")", "after the cut points")
        if not cursor.take("("):
            return tuple(found)


def _layout(cursor: _Cursor, shape: ArrayText) -> ArrayText:
    order = _minor_to_major(cursor, len(shape.dims))
    tiles: list[tuple[int, ...]] = []
    alignment, bits, space, prefix = 1, 0, 0, 0
    index_type = pointer_type = ""
    splits: tuple[tuple[int, tuple[int, ...]], ...] = ()
    if cursor.take(":"):
        if levels := _LEVEL_TYPES.match(cursor.text, cursor.at):
            cursor.at = levels.end()
            cursor.blanks()
        if cursor.take("T("):
            tiles.append(_tile(cursor))
            while cursor.take("("):
                tiles.append(_tile(cursor))
        alignment = _number(cursor, "L", least=1) or 1
        index_type, pointer_type = _typed(cursor, "#"), _typed(cursor, "*")
        at = cursor.at
        bits = _number(cursor, "E") or 0
        if bits and bits < TYPE_BITS[shape.dtype]:
            raise cursor.fail(f"E({bits}) is narrower than the {TYPE_BITS[shape.dtype]} bits of {shape.dtype}", at)
        space = _number(cursor, "S") or 0
        splits = _splits(cursor, shape.dims)
        if cursor.peek("P("):
            raise cursor.fail("P(..): sparse arrays have no place in a tiled layout", how="leave P(..) out")
        prefix = _number(cursor, "M") or 0
    if not cursor.take("}"):
        how = "the order of the tail is D T L # * E S SC P M"
        raise cursor.fail("expected '}' at the end of the layout", how=how)
    sizes = (shape.dtype, shape.dims, shape.dynamic, order, tuple(tiles))
    return ArrayText(*sizes, alignment, index_type, pointer_type, bits, space, splits, prefix)


def _array(cursor: _Cursor) -> ArrayText:
    dtype = _element_type(cursor)
    cursor.expect("[", f"after the element type {dtype}")
    dims, dynamic = _dims(cursor)
    if dtype in ("token", "opaque") and dims:
        raise cursor.fail(f"a {dtype} has no dims")
    shape = ArrayText(dtype, dims, dynamic, tuple(reversed(range(len(dims)))))
    # `{` opens a layout only before a number or a colon; otherwise it begins a computation's body.
    if not _OPENS.match(cursor.text, cursor.at):
        return shape
    cursor.take("{")
    return _layout(cursor, shape)


def _shape(cursor: _Cursor, depth: int = 0) -> ShapeText:
    if depth > 64:
        raise cursor.fail("tuples nested more than 64 deep")
    if cursor.take("("):
        elements: list[ShapeText] = []
        while not cursor.take(")"):
            if elements:
                cursor.expect(",", "or ')' in a tuple")
            elements.append(_shape(cursor, depth + 1))
        return TupleText(tuple(elements))
    if cursor.take("b("):
        at = cursor.at
        inner = _shape(cursor, depth + 1)
        if not isinstance(inner, ArrayText) or inner.buffer:
            raise cursor.fail("a buffer b(..) holds one array", at)
        cursor.expect(")", "after the buffer's shape")
        return replace(inner, buffer=True)
    return _array(cursor)


def _fast(text: str, start: int) -> tuple[ArrayText, int] | None:
    """The common plain case by one regular expression; None sends the text to the cursor (and its errors)."""
    found = _PLAIN.match(text, start)
    if not found or text.startswith("{", found.end()):
        return None
    dtype, dims_text, order_text, tiles_text, space = found.groups()
    try:
        dims = tuple(map(int, dims_text.split(","))) if dims_text else ()
        rank = len(dims)
        default = tuple(range(rank - 1, -1, -1))
        order = default if not order_text else tuple(map(int, order_text.split(",")))
        tiles = tuple(tuple(map(int, t.split(","))) for t in tiles_text[2:-1].split(")(")) if tiles_text else ()
    except ValueError:
        return None
    sound = dtype in TYPE_BITS and dtype not in ("token", "opaque") and sorted(order) == list(reversed(default))
    if (
        not sound
        or (order_text == "" and rank)
        or any(t < 1 for tile in tiles for t in tile)
        or max(dims, default=0) >= 10**18
    ):
        return None
    return ArrayText(dtype, dims, (False,) * rank, order, tiles, memory_space=int(space or 0)), _after_blanks(
        text, found.end()
    )


def read_shape(text: str, start: int = 0) -> tuple[ShapeText, int]:
    """Read one shape beginning at ``start``; returns it and the offset behind it. Raises :class:`ParseError`."""
    if quick := _fast(text, start):
        return quick
    cursor = _Cursor(text, start)
    return _shape(cursor), cursor.at


def _format_dims(shape: ArrayText) -> str:
    def one(size: int, dynamic: bool) -> str:
        return "?" if size == UNBOUNDED else f"<={size}" if dynamic else str(size)

    return ",".join(one(*pair) for pair in zip(shape.dims, shape.dynamic, strict=True))


def _format_tail(shape: ArrayText) -> str:
    parts = []
    if shape.tiles:
        tiles = ("(" + ",".join("*" if t == COMBINE else str(t) for t in tile) + ")" for tile in shape.tiles)
        parts.append("T" + "".join(tiles))
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
    text = f"{shape.dtype}[{_format_dims(shape)}]"
    tail = _format_tail(shape)
    if shape.dtype not in ("token", "opaque") and (shape.dims or tail):
        text += "{" + ",".join(map(str, shape.minor_to_major)) + (f":{tail}" if tail else "") + "}"
    return f"b({text})" if shape.buffer else text
