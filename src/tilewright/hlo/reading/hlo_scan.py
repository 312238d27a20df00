"""HLO text: its words, and a scanner whose position moves forward only, so that reading takes linear time."""

from __future__ import annotations

import re
from functools import lru_cache

from tilewright.errors import ParseError
from tilewright.layout.index.types import xla_dtype

# The words of HLO text as regular expressions; every one is linear in the text it meets.

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_COMMENT = r"/\*(?:[^*]++|\*(?!/))*+\*/"
_SHAPE = r"[A-Za-z]\w*+\[[^\[\]{}()\"\n]*+\](?:\{(?=[\d:}])[^{}\n]*+\})?"
_IN_LINE = r'[^()"\n]++'
_ROUND = rf"\({_IN_LINE}\)"
for _ in range(3):  # a tuple of tuples of arrays whose layouts have tiles
    _ROUND = rf"\((?:{_IN_LINE}|{_ROUND})*+\)"
_HEAD = r"(ENTRY\s+)?%?([\w.\-]+)[ \t]*(\([^\n>]*+(?<=-)>[^\n]*)?\{[ \t\r]*\n"

#: Blanks and comments.
BLANK = re.compile(rf"(?:\s++|//[^\n]*+|{_COMMENT})*+")
#: ``HloModule NAME``.
HEADER = re.compile(rf"HloModule\s+({_STRING}|[^\s,]+)")
#: ``ENTRY`` before a computation.
ENTRY = re.compile(r"ENTRY\s+")
#: A computation's name; names in an attribute that calls computations.
NAME = re.compile(rf"%?([\w.\-]+|{_STRING})")
#: A computation's first line as XLA prints it: ENTRY, name, parameters with the result.
HEAD = re.compile(_HEAD)
#: What a text without a header begins with: a computation, or an instruction.
FRAGMENT = re.compile(rf"{_HEAD}|(?:ROOT\s+)?%?[\w.\-]+\s*=\s*\(*[a-z]\w*\[")
#: ``ROOT %name =``.
ASSIGN = re.compile(rf"(ROOT\s+)?%?([\w.\-]+|{_STRING})\s*=\s*")
#: An opcode, before its operands.
OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*(?=\()")
#: ``, key=`` before a value.
ATTRIBUTE = re.compile(r",\s*([\w.\-]+)\s*=\s*")
#: One operand: the name at the end, whether or not a type stands before it; ``%x#1#0`` is a tuple's element's element.
OPERAND = re.compile(rf"(?:(.*)\s)?%?([\w.\-]+|{_STRING})((?:#\d{{1,9}})*)\Z", re.S)
#: A line after one that is not understood: the next instruction, or the computation's end.
NEXT = re.compile(rf"\n[ \t]*+(?=(?:ROOT[ \t]+)?%?(?:[\w.\-]+|{_STRING})[ \t]*=[ \t]|\}})")
#: A computation's first line, after text that is not understood.
COMPUTATION = re.compile(rf"^{_HEAD}", re.M)
#: What may stand behind a computation's name, parameters and result on its first line.
TO_BRACE = re.compile(r"[^\n]*?\{[ \t\r]*(?=\n)")
#: What is left of an instruction where neither another one, a bracket nor a comment begins, up to its next attribute.
LEFT = re.compile(rf"[ \t]*+(?=[^\s}}/])(?!{ASSIGN.pattern})[^\n][^\n]*?(?=,[ \t]+[\w.\-]+=|\n|\Z)")
#: A shape, or a tuple of them.
WHOLE_SHAPE = re.compile(rf"{_SHAPE}|{_ROUND}")
#: ``f32[2,3]{1,0:T(8,128)}``.
SHAPE = re.compile(_SHAPE)
#: A quoted string.
STRING = re.compile(_STRING, re.S)
#: A piece of a value outside brackets and strings.
BARE = re.compile(r'[^\s,{}()\[\]"]+')
#: Operands as XLA prints them with types, each name behind a ``%``; tuples are not among them.
_TYPED = rf"{_SHAPE} %[\w.\-]+"
TYPED_OPERANDS = re.compile(rf"{_TYPED}(?:, {_TYPED})*+")
#: What XLA writes before every fifth of several operands.
INDEX = re.compile(r"/\*index=\d+\*/")
#: A name behind a ``%``.
PERCENT = re.compile(r"%([\w.\-]+)")
#: A whole instruction on one line, as XLA prints nearly all: ROOT, name, shape, opcode, arguments, and the rest.
LINE = re.compile(
    rf"[ \t]*+(ROOT )?%?([\w.\-]+) = ({_SHAPE}|{_ROUND}) ([a-z][\w\-]*)"
    rf"\(((?:{_IN_LINE}|{_ROUND})*+)\)([^\n]*+)\n"
)

_FLAT = rf'[^{{}}()\[\]"/]++|{_STRING}|{_COMMENT}|/(?!\*)'
_INNERMOST = rf"\{{(?:{_FLAT})*+\}}|\[(?:{_FLAT})*+\]|\((?:{_FLAT})*+\)"
#: The next bracket but for those with none inside; or a string or a comment that never ends, in the group.
_MARK = re.compile(rf'(?:{_FLAT}|{_INNERMOST})*+(?:[{{}}()\[\]]|("|/\*))', re.S)
#: A bracket or a comma outside strings and comments; of one that never ends, all of it.
_COMMA = re.compile(rf'{_STRING}|{_COMMENT}|(?:"|/\*).*+|[{{}}()\[\],]', re.S)
_CLOSE = {"{": "}", "(": ")", "[": "]"}
_OPENS = tuple(_CLOSE)
_DEEPEST = 200


class Scanner:
    """A text and the position reached in it. Every method raises ParseError where the text does not fit."""

    def __init__(self, text: str, where: str = "") -> None:
        self.text, self.where, self.at = text, where, 0
        self._line, self._counted = 1, 0

    def fail(self, reason: str, at: int | None = None, how: str = "") -> ParseError:
        """The error for the place ``at`` (default: here)."""
        place = self.at if at is None else at
        return ParseError(reason, text=self.text, column=place, where=self.where, how=how)

    def line(self) -> int:
        """The line of the position, from 1; cheap because positions only grow."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def first_of(self, line: int) -> int:
        """The place of a line's first word."""
        start = 0
        for _ in range(line - 1):
            start = self.text.find("\n", start) + 1
        return start + len(self.text[start:]) - len(self.text[start:].lstrip(" \t"))

    def blank(self) -> None:
        match = BLANK.match(self.text, self.at)
        if match:
            self.at = match.end()

    def ended(self) -> bool:
        """Step over blanks; is that the end of the text?"""
        self.blank()
        return self.at >= len(self.text)

    def peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self, word: str) -> bool:
        """Step over blanks and then ``word`` if it stands there."""
        self.blank()
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def expect(self, word: str, after: str) -> None:
        if not self.take(word):
            raise self.fail(f"expected '{word}' after {after}")

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.fail(f"expected {expected}")
        self.at = match.end()
        return match

    def shape(self) -> str:
        """Step over a shape: ``f32[2,3]{1,0:T(8,128)}`` or a tuple ``(a, /*index=5*/b)``; returns its text."""
        start = self.at
        if self.peek("(") or self.peek("b("):
            self.at += self.peek("b(")
            self.balanced()
            return self.text[start : self.at]
        self.match(SHAPE, "a shape such as f32[8,128]{1,0}")
        if self.peek("{") and self.text[self.at - 1] == "]":  # a layout with a shape in braces inside
            self.balanced()
        return self.text[start : self.at]

    def balanced(self) -> str:
        """Step over a bracketed text with all it holds (strings and comments too); returns it with its brackets."""
        text, start, at = self.text, self.at, self.at + 1
        closers = [_CLOSE[text[start]]]
        while closers:
            mark = _MARK.match(text, at)
            if mark is None:
                raise self.fail(f"'{text[start]}' is never closed", start)
            at = mark.end()
            found = text[at - 1]
            if mark[1]:
                what = "comment" if mark[1] == "/*" else "string"
                raise self.fail(f"the {what} is never closed", mark.start(1))
            if found in _CLOSE:
                closers.append(_CLOSE[found])
                if len(closers) > _DEEPEST:
                    raise self.fail(f"brackets nested deeper than {_DEEPEST}", at - 1)
            elif closers.pop() != found:
                raise self.fail(f"unexpected '{found}'", at - 1)
        self.at = at
        return text[start:at]

    def location(self) -> str:
        """Step over MLIR's ``loc(...)`` where it stands here; what is in its brackets."""
        if not self.take("loc("):
            return ""
        self.at -= 1
        return self.balanced()[1:-1]

    def value(self) -> str:
        """Step over an attribute's value: a string, bare words and brackets up to a comma or blank outside them.

        A bracket behind a blank still belongs to it: ``mesh['a'=4] {'a'}``.
        """
        text, start = self.text, self.at
        while self.at < len(text):
            char = text[self.at]
            if string := STRING.match(text, self.at):
                self.at = string.end()
            elif char == '"':
                raise self.fail("the string is never closed")
            elif char in _CLOSE:
                self.balanced()
            elif char == " " and self.at > start and text[self.at + 1 : self.at + 2] in _OPENS:
                self.at += 1
            elif bare := BARE.match(text, self.at):
                self.at = bare.end()
            else:
                break
        if self.at == start:
            raise self.fail("expected a value")
        return text[start : self.at]

    def attributes(self) -> dict[str, str]:
        """``, key=value`` as often as it stands here."""
        found: dict[str, str] = {}
        while True:
            self.blank()
            head = ATTRIBUTE.match(self.text, self.at)
            if head is None:
                return found
            start = self.at = head.end()
            found[head[1]] = self.value()
            if head[1] == "literal":  # a shape, a blank and the elements
                self.blank()
                if self.at < len(self.text) and self.text[self.at] not in ",}\n":
                    self.value()
                    found[head[1]] = self.text[start : self.at]


def split_top(text: str) -> list[str]:
    """Split at the commas outside brackets and strings; comments vanish, blank parts too.

    >>> split_top("(f32[2], s32[]) %a, /*index=1*/b")
    ['(f32[2], s32[]) %a', 'b']
    """
    parts, depth, start = [], 0, 0
    for mark in _COMMA.finditer(text):
        found = mark[0]
        if found == "," and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
        depth += (found in _CLOSE) - (found in ("}", ")", "]"))
    clean = (re.sub(r"/\*.*?\*/", "", part, flags=re.S) if "/*" in part else part for part in [*parts, text[start:]])
    return [part for piece in clean if (part := piece.strip())]


@lru_cache(maxsize=4096)
def array_shapes(shape: str) -> tuple[str, ...]:
    """The arrays in a shape's text, nested tuples flattened; tokens and opaque values left out.

    >>> array_shapes("((f32[4,2]{1,0}), f32[2]{0:S(1)}, token[])")
    ('f32[4,2]{1,0}', 'f32[2]{0:S(1)}')
    """
    if not shape.startswith("("):
        return () if shape.startswith(("token", "opaque")) else (shape,)
    return tuple(array for element in split_top(shape[1:-1]) for array in array_shapes(element))


def unquote(text: str) -> str:
    """A quoted string's content with its escapes resolved; other text unchanged.

    >>> unquote(r'"a\\"b"')
    'a"b'
    """
    if not text.startswith('"'):
        return text
    body = text[1:-1]
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), body) if "\\" in body else body


def closed(text: str) -> bool:
    """Is there a closing bracket of its kind for every opening one?"""
    count = text.count
    return count("{") == count("}") and count("(") == count(")") and count("[") == count("]")


@lru_cache(maxsize=16384)
def whole_shape(text: str) -> str:
    """A shape's text, the same object wherever it stands; "" for one with a bracket too many."""
    return text if closed(text) else ""


def configuration(written: str) -> str:
    """What stands between the quotes of a custom call's configuration, its own quotes as they are meant.

    >>> configuration('{\\\\22body\\\\22: 1}')
    '{"body": 1}'
    """
    return written.replace("\\22", '"').replace('\\"', '"')


# MLIR types as XLA shape text, so that StableHLO and HLO programs speak one notation.

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,]*)(.*)>$", re.S)
_BOUNDS = re.compile(r"bounds<([^<>]*)>")
_ELEMENT = re.compile(r"(?:[su]?i\d+|b?f\d\w*|complex<\w+>)$")
_OPAQUE = re.compile(r"\s*(?:[!*]|index\s*$)")
_NO_TYPE = re.compile(r"[^\w<>]")  # in the name of an element type that there is not; who needs its size says so


@lru_cache(maxsize=16384)
def xla_shape(text: str) -> str:
    """XLA text of an MLIR type; types that hold no array become ``opaque[]``.

    >>> [xla_shape(t) for t in ("tensor<48x350xf32>", "tensor<i1>", "!stablehlo.token", "tensor<?x4xi8>")]
    ['f32[48,350]', 'pred[]', 'token[]', 's8[?,4]']
    """
    if text == "!stablehlo.token":
        return "token[]"
    if _ELEMENT.match(text):
        return f"{xla_dtype(text)}[]"
    match = _TENSOR.match(text)
    if match is None or _OPAQUE.match(match[2]):
        return "opaque[]"
    dims = match[1].split("x")[:-1]
    if bounds := _BOUNDS.search(match[3]):
        limits = [word.strip() for word in bounds[1].split(",")]
        dims = [dim if limit == "?" else f"<={limit}" for dim, limit in zip(dims, limits)]
    return f"{xla_dtype(_NO_TYPE.sub('_', match[2].strip()))}[{','.join(dims)}]"


def xla_tuple(shapes: tuple[str, ...]) -> str:
    """One shape as it is, several as a tuple, none as the empty tuple."""
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
