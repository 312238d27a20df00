"""Shapes in whatever people paste: a line of a dump or a log, an allocator's message, a type of JAX or MLIR.

A text that is a shape is read by the grammar alone (``notation.py``). Only where that fails is it searched here, and a
shape is found where an element type and a bracket stand, a type of MLIR, or a layout that is called one. Of one line
that is an instruction the result counts, its operands do not; of a message about memory the lines ``Shape:`` do. A text
that holds no shape, or a whole program, is refused with the command that reads it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from tilewright.errors import ParseError
from tilewright.layout.index.types import TYPE_BITS
from tilewright.layout.text.neighbours import (
    APART,
    ARRAY,
    BARE,
    MLIR,
    NAMES,
    Bare,
    read_apart,
    read_bare,
    read_mlir,
    read_neighbour,
    read_proto,
    unsized,
    with_layout,
)
from tilewright.layout.text.notation import LEFT_OVER, ArrayText, ShapeText, TupleText, after_blanks, read_shape


@dataclass(frozen=True)
class FoundText:
    """A shape in a text: where it stands, what its line calls it, whether it is a layout without sizes and type."""

    shape: ShapeText
    start: int
    end: int
    name: str = ""
    bare: bool = False


_Elsewhere = tuple[str, str, str]
"""A kind of text that another command reads: its pattern, what it is, and how to read it."""

_REPORT = "`tilewright report FILE` reads whole programs; give it the file, or - for stdin"
_CUTE = "`tilewright layout cute` reads it"
_PROGRAMS = (
    (r"(?m)^[ \t]*HloModule\b", "this is the text of a whole program (HloModule)", _REPORT),
    (r"(?m)^[ \t]*ENTRY\b.*\{[ \t]*$", "this is a whole computation (ENTRY)", _REPORT),
    (
        r"(?m)^[ \t]*(?:\"?builtin\.module\"?|module)\b[^\n]*\{[ \t]*$|^[ \t]*func\.func\b[^\n]*\{[ \t]*\n",
        "this is a whole program of MLIR",
        _REPORT,
    ),
    (
        r"^\s*\{ *lambda\b",
        "this is a jaxpr, a whole function",
        "`tilewright report FILE.py:FUNCTION` reads a function of JAX",
    ),
)
_TREE = r"\(?[_(]*[0-9][_0-9(), ]*"
_LAYOUTS_ELSEWHERE = (
    (rf"\bSw?<\s*-?[0-9]|\bsmem_ptr\[|\bgmem_ptr\[|^\s*\(?{_TREE}:\s*{_TREE}\s*$", "this is a layout of CuTe", _CUTE),
    (r"\b(?:linalg|tensor)\.(?:un)?pack\b", "this is linalg.pack", "`tilewright layout linalg` reads it"),
)
_ELSEWHERE = (
    (
        r"Ran out of memory|RESOURCE_EXHAUSTED|Resource exhausted|Attempting to (?:allocate|reserve)|Hbm usage",
        "this message names no shape",
        "`tilewright explain-error` says what it means",
    ),
    (
        r"logical replica|max_ids_per_partition|SparseCore",
        "this is about SparseCores and names no shape",
        "`tilewright explain-error` says what it means",
    ),
    (r"#tpu\.vpad|vector layout", "this is a layout of vector registers, not of memory", "paste the memref beside it"),
    (
        r"#ttcore|#ttnn|\bttnn\.",
        "this is a layout of Tenstorrent's compiler",
        "`tilewright layout preset tenstorrent TYPE[DIMS]` shows that of its tiles",
    ),
    (
        r"#ttg?\.|#triton_gpu|#blocked|BlockedLayout",
        "this is a layout of Triton, of registers over threads",
        "the same layout as CuTe's shape:stride can be read by `tilewright layout cute`",
    ),
    (
        r"\bArray\(|\btensor\(\[|\barray\(\[",
        "these are an array's values",
        "`tilewright.layout.from_jax(x)` or `from_strides(x.shape, x.strides, x.dtype)` tell its layout",
    ),
    (
        r"torch\.Size|\.stride\(\)|\bstrides?\s*[=:]",
        "this names no element type",
        "`tilewright.layout.from_strides(shape, strides, dtype)` takes strides in bytes",
    ),
    (
        r"^\s*(?:[a-l]{2,12}|[nN][cC]?[dhwDHW]+[a-z0-9]*|[a-lA-L]+(?:[0-9]+[a-l])+)\s*$",
        "this may be a tag of oneDNN",
        "`tilewright layout onednn TAG SHAPE` reads it",
    ),
)
_NOTHING = (
    "no shape was found in this text",
    "a shape looks like f32[8,128]{1,0:T(8,128)}; programs go to `tilewright report`, messages about memory to "
    "`tilewright explain-error`, CuTe's layouts to `tilewright layout cute`",
)


def _first_of(table: Sequence[_Elsewhere], text: str) -> ParseError | None:
    for pattern, what, how in table:
        if found := re.search(pattern, text):
            return ParseError(what, text=text, column=found.start(), how=how)
    return None


_NAMED_LAYOUT = r"(?:layout(?:_mode)?|minor_to_major)\W{0,4}\(?(?=\{)"
_PLACE = re.compile(
    rf"(?P<array>(?<![\w.$@#/-])(?:\(\s*)*(?:b\(\s*)?{ARRAY})"
    rf"|(?P<mlir>\b(?:tensor|memref|vector)<)"
    rf"|(?P<jax>\b(?:DeviceLocal)?Layout\(\s*major_to_minor=)"
    rf"|(?P<bare>\b{_NAMED_LAYOUT})"
    rf"|(?P<tiled>(?<![\w\]>])\{{[0-9,\s]*:T\()"
    rf"|(?P<proto>\belement_type:\s*[A-Z])"
    rf"|(?P<apart>{APART.pattern})"
)
_DOTS = ("...", "\u2026")
_SHAPE_FIRST = re.compile(rf"\s*(?:\(\s*)*(?:b\s*\(\s*)?{ARRAY}")
_BEHIND = re.compile(r"\s*(?:(?<=\s)[a-z][\w-]+\(|%[\w.-]+\s*,?\s*$|%[\w.-]+\s+[a-z][\w-]*\(|->)")
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_EVIDENCE = re.compile(  # that it is more than a shape: a sign or a word that no shape has
    r"[%\"'`|>\u2502]|\b(?!\w*(?:fn|nu|uz|pre|red|tok|oke|ken|opa|paq|aqu|que|nde|inx))[A-Za-z_]{4,}|[A-Za-z]_[A-Za-z]"
)
_BARE_OR_NAMED = re.compile(
    r"\s*(?:\{\s*[0-9:]|:?T\([0-9*]|(?:ROOT\s+)?(?!b\s*=|b:\s*\()[A-Za-z_][\w.-]*\s*[=:]\s*(?:[a-z]+[0-9]|\(|$))"
)
_CUT = re.compile(r"\s*(?:\.\.\.|\u2026|$)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_INVISIBLE = {0xA0: " ", 0x200B: " ", 0x202F: " ", 0xFEFF: " "}


def cleaned(text: str) -> str:
    """The text without a terminal's colours, a web page's escapes and a JSON string's, and odd blanks."""
    text = _COLOURS.sub("", text).translate(_INVISIBLE)
    if "&" in text:
        text = html.unescape(text)
    return text.replace('\\"', '"').replace("\\n", "\n") if "\\" in text else text


def read_paste(text: str, failure: ParseError | None = None) -> tuple[FoundText, ...]:
    """The shapes that a pasted text is about, in its order; never none.

    ``failure`` is what the grammar said of the whole text. Raises :class:`ParseError` for a text without a shape.
    """
    first = _SHAPE_FIRST.match(text) if failure is not None else None
    if first and failure is not None and first["type"].lower() in NAMES and not text.rstrip().endswith(_DOTS):
        return (_shape_first(text, failure, first),)
    if failure is not None and not _EVIDENCE.search(_COMMENTS.sub("", text)) and not _BARE_OR_NAMED.match(text):
        if ":(" in text or "[" not in text:
            raise _first_of(_LAYOUTS_ELSEWHERE, text) or _with_hint(failure)
        raise failure  # nothing but the signs of shapes: a slip of the pen in one of them
    plain = cleaned(text)
    if error := _first_of(_PROGRAMS, plain):
        raise error
    if len(quoted := plain.strip().strip("'\"`,;")) > 1 and (alone := _alone(quoted)):
        return (alone,)
    if error := _first_of(_LAYOUTS_ELSEWHERE, plain):
        raise error
    return _searched(plain, failure)


def _with_hint(failure: ParseError) -> ParseError:
    """The error, with what a shape looks like and who reads other texts."""
    return ParseError(failure.what, text=failure.text, column=failure.column, how=failure.how or _NOTHING[1])


def _shape_first(text: str, failure: ParseError, first: re.Match[str]) -> FoundText:
    """A text that begins with a shape: nothing but an instruction's opcode, or a name, may stand behind it."""
    start = len(text) - len(text.lstrip())
    shape: ShapeText
    alone = start == first.start("type") or text.startswith("torch.", start)
    foreign = first["type"].lower() not in TYPE_BITS or first["space"] or _FOREIGN.match(text, first.end())
    if alone and foreign and (found := read_neighbour(text, start)):
        shape, end = found
    elif failure.what == LEFT_OVER:
        shape, end = read_shape(text, start)
    else:
        raise failure
    if _BEHIND.match(text, end) or (foreign and _ATTRIBUTES.match(text, end)):
        return FoundText(shape, start, end)
    raise ParseError(LEFT_OVER, text=text, column=end, how=failure.how)


_FOREIGN = re.compile(
    r"[^\]]*@|\s*[A-Za-z_]\w*\s*[,\]]|[^\]]*,\s*[A-Za-z_]\w*\s*[,\]]|[^\]]*\]\[|[^\]]*\]\{weak"
)  # a dim with a name, strides, weak_type
_ATTRIBUTES = re.compile(
    r"\s*(?:\{weak[^{}]*\}|(?:cuda|cpu|xla|tpu|mps|meta|xpu|hpu)(?::[0-9]+)?)?\s*$"
)  # what may follow: also a device


_TILES_ALONE = re.compile(r":?\s*(T(?:\([-*0-9,\s]+\))+)\s*")


def _alone(text: str) -> FoundText | None:
    """A text that is one layout, one type of MLIR or one shape in quotes."""
    if tiles := _TILES_ALONE.fullmatch(text):
        rank = tiles[1].split(")")[0].count(",") + 1
        bare = Bare("{" + ",".join(map(str, reversed(range(rank)))) + f":{tiles[1]}}}", rank)
        return FoundText(unsized(bare, text, 0), 0, len(text), bare=True)
    if BARE.fullmatch(text):
        found = read_bare(text, 0)
        assert found is not None
        return FoundText(unsized(found[0], text, 0), 0, len(text), bare=True)
    for read in (read_shape, read_neighbour, read_mlir):
        try:
            whole = read(text, 0)
        except ParseError:
            continue
        if whole is not None and whole[1] == len(text):
            return FoundText(whole[0], 0, len(text))
    return None


class _Line(NamedTuple):
    """What was found in a line: its shapes, layouts without one, and the first thing that could not be read."""

    shapes: list[FoundText]
    bare: list[tuple[Bare, int, int]]
    error: ParseError | None


_Reader = Callable[[str, int], "tuple[ShapeText, int] | None"]


def _array(text: str, start: int) -> tuple[ShapeText, int] | None:
    """The shape whose opening parentheses, or element type, begin at ``start``."""
    try:
        shape, end = read_shape(text, start)
    except ParseError as error:
        first = _PARENTHESES.match(text, start)
        if first is None or first.end() == start:
            found = read_neighbour(text, start)
            if found is None or (_CUT.match(text, error.column) and error.column >= found[1]):
                raise
            return found
        return _cut_tuple(text, first.end(), error)
    if text.startswith("[", end) and (apart := read_neighbour_or_none(text, start)):  # PyTorch's strides
        return apart
    alone = (
        isinstance(shape, TupleText) and len(shape.elements) == 1 and _IN_PROSE.search(text[max(0, start - 9) : start])
    )
    return (shape.elements[0] if alone and isinstance(shape, TupleText) else shape), end


_COMMA = re.compile(r"\s*,\s*(?:/\*.*?\*/\s*)?")
_IN_PROSE = re.compile(r"[\w.%]\s+$")  # a word and a blank before a parenthesis: no tuple of one array


def _cut_tuple(text: str, first: int, error: ParseError) -> tuple[ShapeText, int] | None:
    """The whole arrays of a tuple that is cut off, or of a list of parameters; None where there is none."""
    elements: list[ShapeText] = []
    at = first
    while True:
        try:
            found = read_shape(text, at) if elements or first else None
        except ParseError:
            found = read_neighbour_or_none(text, at)
        if found is None:
            break
        elements.append(found[0])
        comma = _COMMA.match(text, found[1])
        end = found[1]
        if not comma:
            break
        at = comma.end()
    if not elements:
        if _CUT.match(text, error.column):
            return None
        raise error
    return (elements[0] if len(elements) == 1 else TupleText(tuple(elements))), end


def read_neighbour_or_none(text: str, at: int) -> tuple[ArrayText, int] | None:
    """What :func:`read_neighbour` reads, None also where it refuses."""
    try:
        return read_neighbour(text, at)
    except ParseError:
        return None


_PARENTHESES = re.compile(r"(?:\(\s*)*(?:b\(\s*)?")
_READERS: dict[str, _Reader] = {"array": _array, "mlir": read_mlir, "proto": read_proto, "apart": read_apart}


def _opens_call(text: str, at: int) -> bool:
    """Whether the parenthesis at ``at`` holds the operands of an opcode."""
    return text[at] == "(" and at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_-.")


def _searched(text: str, failure: ParseError | None) -> tuple[FoundText, ...]:
    lines: dict[int, _Line] = {}
    behind = 0
    for found in _PLACE.finditer(text):
        kind = str(found.lastgroup)  # the outermost group that matched
        at = found.end() if kind == "bare" else found.start()
        if at < behind or (kind == "array" and found["type"].lower() not in NAMES):
            continue
        number = text.count("\n", 0, at)
        line = lines.setdefault(number, _Line([], [], None))
        try:
            behind = max(behind, _read_found(text, kind, at, line))
        except ParseError as error:
            if line.error is None and not line.shapes:
                lines[number] = line._replace(error=error)
    return _chosen(text, lines, failure)


def _read_found(text: str, kind: str, at: int, line: _Line) -> int:
    """Read what stands at ``at`` into its line; the offset behind it."""
    if kind in ("jax", "bare", "tiled"):
        bare = read_bare(text, at)
        if bare is None:
            return at
        line.bare.append((bare[0], at, bare[1]))
        return bare[1]
    if kind == "array" and _opens_call(text, at):
        at = after_blanks(text, at + 1)
        if text[at] == "(" and _opens_call(text, at):
            return at
    found = _READERS[kind](text, at)
    if found is None:
        return at
    line.shapes.append(FoundText(found[0], at, found[1], _name(text, at)))
    return found[1]


_LABEL = re.compile(r"(?:^|[\s,(;|{\"])%?([A-Za-z_][\w.-]{0,80})\s*[=:]\s*['\"(]*$")
_ALLOCATION = re.compile(r"^\s*(?:[^\n]*?\s)?([0-9]{1,4})\\?\.\s{1,4}Size:", re.M)


def _name(text: str, at: int) -> str:
    """What the line calls the shape: ``%copy.5 = ``, ``Shape: ``."""
    begin = max(text.rfind("\n", 0, at) + 1, at - 120)
    found = _LABEL.search(text[begin:at])
    if not found:
        return ""
    if found[1] == "Shape":
        numbers = _ALLOCATION.findall(text[max(0, at - 4000) : at])
        return f"allocation {numbers[-1]}" if numbers else "allocation"
    return found[1]


_NAMED = re.compile(r"\s*(?:ROOT\s+)?%?[A-Za-z_][\w.-]*\s*[=:]\s*(?=[A-Za-z][\w.]*\[|$)")
_SHAPE_LINE = re.compile(r"\bShape:\s*$")
_OPCODE = re.compile(r"\s*[a-z][\w-]*\(")
_INSTRUCTION = re.compile(r"=\s*$")


def _chosen(text: str, lines: dict[int, _Line], failure: ParseError | None) -> tuple[FoundText, ...]:
    """The shapes the text is about: ``Shape:`` lines where there are any, else those of every line."""
    stated = [
        found
        for _, line in sorted(lines.items())
        for found in line.shapes
        if _SHAPE_LINE.search(text[max(0, found.start - 20) : found.start])
    ]
    if stated:
        return tuple(stated)
    every = [found for _, line in sorted(lines.items()) for found in _joined(text, line)]
    if every:
        first = next((line for _, line in sorted(lines.items()) if line.shapes or line.error or line.bare), None)
        if len(lines) == 1 and first is not None and first.error is not None and first.error.column < every[0].start:
            raise first.error
        return tuple(every)
    errors = [line.error for _, line in sorted(lines.items()) if line.error is not None]
    if errors:
        raise errors[0]
    if error := _first_of(_ELSEWHERE, text):
        raise error
    if failure is not None and (named := _NAMED.match(text)):
        read_shape(text, named.end())  # which raises what is wrong with it
    if failure is not None and (failure.column or ("\n" not in text.strip() and len(text) < 40)):
        raise _with_hint(failure)
    raise ParseError(_NOTHING[0], text=text, column=0, how=_NOTHING[1])


def _joined(text: str, line: _Line) -> list[FoundText]:
    """What the line is about: its result, or all its shapes; layouts without a shape are put to one of their rank."""
    shapes = _result_or_all(text, line.shapes)
    for bare, start, end in line.bare:
        fitting = [k for k, found in enumerate(shapes) if _plain(found, bare.rank)]
        sized = None
        if fitting:
            with suppress(ParseError):
                found = shapes[fitting[0]]
                sized = replace(found, shape=with_layout(cast(ArrayText, found.shape), bare.text, text, start))
        if sized is None:
            shapes = [*shapes, FoundText(unsized(bare, text, start), start, end, _name(text, start), bare=True)]
        elif len(line.bare) == 1:
            shapes[fitting[0]] = sized
        else:
            shapes = [*shapes, replace(sized, start=start, end=end)]
    if len(line.bare) > 1 and any(not found.bare for found in shapes):
        shapes = [found for found in shapes if not _plain(found)] or shapes
    return [found for found in shapes if not found.bare] or shapes


def _plain(found: FoundText, rank: int | None = None) -> bool:
    """Whether it is one array (of ``rank`` dims) that names no layout: rows behind each other, no tiles."""
    shape = found.shape
    if not isinstance(shape, ArrayText) or rank not in (None, len(shape.dims)):
        return False
    descending = shape.minor_to_major == tuple(range(len(shape.dims) - 1, -1, -1))
    return descending and not shape.tiles and not shape.memory_space


def _result_or_all(text: str, shapes: list[FoundText]) -> list[FoundText]:
    """The result of an instruction or an operation; all shapes of any other line."""
    if len(shapes) < 2:
        return shapes
    if told := [found for found in shapes if found.name == "xla_shape"]:
        return told
    for found in shapes:  # name = shape opcode(operands)
        if _INSTRUCTION.search(text[max(0, found.start - 4) : found.start]) or _OPCODE.match(text, found.end):
            return [found]
    arrow = text.rfind("->", shapes[0].start, shapes[-1].start)
    if MLIR.match(text, shapes[0].start):
        behind = [found for found in shapes if found.start > arrow >= 0]
        return [behind[0] if behind else shapes[0]]
    return shapes
