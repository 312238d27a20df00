"""HLO text: its words, and a scanner whose position moves forward only, so that reading takes linear time."""

from __future__ import annotations

import re
from functools import lru_cache

from tilewright.errors import ParseError

# The words of HLO text as regular expressions; every one is linear in the text it meets.

_LEVELS = 8
_NAME = r"%?[\w.\-]+"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_COMMENT = r"/\*(?:[^*]++|\*(?!/))*+\*/"
_LEAF = rf'[^"{{}}()\[\],/]++|{_STRING}|{_COMMENT}|/(?!\*)'


def _nested(levels: int) -> str:
    """Brackets with ``levels`` more inside; which kind closes which is for the reader to check."""
    return rf"[{{(\[](?:{_LEAF}|,{'|' + _nested(levels - 1) if levels else ''})*+[}})\]]"


_NESTED = _nested(_LEVELS)
_INSIDE = rf"(?:{_LEAF}|,|{_NESTED})*+"
_SHAPE = r"[A-Za-z]\w*+\[[^\[\]{}()\"]*+\](?:\{(?=[\d:}])[^{}]*+\})?"
_VALUE = rf'(?:[^\s,{{}}()\[\]"]++|{_STRING}| ?{_NESTED})++'

#: Blanks and comments.
BLANK = re.compile(r"(?:\s++|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
#: ``HloModule NAME``.
HEADER = re.compile(rf"HloModule\s+({_STRING}|[^\s,]+)")
#: ``ENTRY`` before a computation.
ENTRY = re.compile(r"ENTRY\s+")
#: A computation's name.
NAME = re.compile(rf"%?([\w.\-]+|{_STRING})")
#: What a text without a header begins with: a computation, or an instruction.
FRAGMENT = re.compile(
    r"(?:ENTRY\s+)?%?[\w.\-]+[ \t]*(?:\([^\n]*\)[ \t]*->[^\n]*)?\{[ \t\r]*\n"
    r"|(?:ROOT\s+)?%?[\w.\-]+\s*=\s*\(*[a-z]\w*\["
)
#: ``ROOT %name =``.
ASSIGN = re.compile(rf"(ROOT\s+)?%?([\w.\-]+|{_STRING})\s*=\s*")
#: An opcode, before its operands.
OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*(?=\()")
#: ``, key=`` before a value.
ATTRIBUTE = re.compile(r",\s*([\w.\-]+)\s*=\s*")
#: One operand: the name at the end, whether or not a type stands before it; ``%x#1#0`` is a tuple's element's element.
OPERAND = re.compile(rf"(?:(.*)\s)?%?([\w.\-]+|{_STRING})((?:#\d{{1,9}})*)\Z", re.S)
#: Names in an attribute that calls computations.
CALLEE = re.compile(rf"%?([\w.\-]+|{_STRING})")
#: A line after one that is not understood: the next instruction, or the computation's end.
NEXT = re.compile(rf"\n[ \t]*+(?=(?:ROOT[ \t]+)?%?(?:[\w.\-]+|{_STRING})[ \t]*=[ \t]|\}})")
#: A computation's first line, after text that is not understood.
COMPUTATION = re.compile(r"^(?:ENTRY\s+)?%?[\w.\-]+[ \t]*(?:\([^\n]*\)[ \t]*->[^\n]*)?\{[ \t\r]*$", re.M)
#: What may stand behind a computation's name, parameters and result on its first line.
TO_BRACE = re.compile(r"[^\n]*?\{[ \t\r]*(?=\n)")
#: What is left of an instruction where neither another one, a bracket nor a comment begins, up to its next attribute.
LEFT = re.compile(rf"[ \t]*+(?=[^\s}}/])(?!{ASSIGN.pattern})[^\n][^\n]*?(?=,[ \t]+[\w.\-]+=|\n|\Z)")
#: A shape, or a tuple of them.
WHOLE_SHAPE = re.compile(rf"{_SHAPE}|\({_INSIDE}\)")
#: ``f32[2,3]{1,0:T(8,128)}``.
SHAPE = re.compile(_SHAPE)
#: A quoted string.
STRING = re.compile(_STRING, re.S)
#: A piece of a value outside brackets and strings.
BARE = re.compile(r'[^\s,{}()\[\]"]+')
#: A text up to the next comma outside brackets, with that comma or the end.
PART = re.compile(rf"((?:{_LEAF}|{_NESTED})*+)(?:,|\Z)", re.S)
#: Operands without types.
_USED = rf"{_NAME}(?:#\d+)*+"
PLAIN_OPERANDS = re.compile(rf"{_USED}(?:, {_USED})*+")
#: Operands as XLA prints them with types, each name behind a ``%``; tuples are not among them.
_TYPED = rf"(?:/\*[^*]*+\*/)?{_SHAPE} %[\w.\-]+"
TYPED_OPERANDS = re.compile(rf"{_TYPED}(?:, {_TYPED})*+")
#: A name behind a ``%``.
PERCENT = re.compile(r"%([\w.\-]+)")
#: ``, key=value`` as XLA prints it.
PAIR = re.compile(rf", ([\w.\-]+)=({_VALUE})", re.S)
#: A whole instruction on one line as XLA prints it, which nine of ten are: ROOT, name, shape, opcode, arguments,
#: attributes. Reading them at once is twice as fast as token by token.
SIMPLE = re.compile(
    rf"(ROOT )?%?([\w.\-]+) = ({_SHAPE}|\({_INSIDE}\)) ([a-z][\w\-]*)"
    rf"\(({_INSIDE})\)((?:, [\w.\-]+={_VALUE})*+)[ \t\r]*+(?=\n)",
    re.S,
)

_SKIP = re.compile(r'[^"{}()\[\]/]*+')
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
        text, start = self.text, self.at
        closers: list[str] = []
        at = start
        while True:
            skipped = _SKIP.match(text, at)
            at = skipped.end() if skipped else at
            if at >= len(text):
                raise self.fail(f"'{text[start]}' is never closed", start)
            at = self._bracket(text[at], at, closers)
            if not closers:
                self.at = at
                return text[start:at]

    def _bracket(self, char: str, at: int, closers: list[str]) -> int:
        """One bracket, string or slash inside a bracketed text; returns the position after it."""
        if char == '"':
            return self._string_end(at)
        if char == "/":
            return self._comment_end(at) if self.text.startswith("/*", at) else at + 1
        if char in _CLOSE:
            closers.append(_CLOSE[char])
            if len(closers) > _DEEPEST:
                raise self.fail(f"brackets nested deeper than {_DEEPEST}", at)
        elif closers.pop() != char:
            raise self.fail(f"unexpected '{char}'", at)
        return at + 1

    def _string_end(self, at: int) -> int:
        match = STRING.match(self.text, at)
        if match is None:
            raise self.fail("the string is never closed", at)
        return match.end()

    def _comment_end(self, at: int) -> int:
        end = self.text.find("*/", at + 2)
        if end < 0:
            raise self.fail("the comment is never closed", at)
        return end + 2

    def value(self) -> str:
        """Step over an attribute's value: a string, bare words and brackets up to a comma or blank outside them.

        A bracket behind a blank still belongs to it: ``mesh['a'=4] {'a'}``.
        """
        text, start = self.text, self.at
        while self.at < len(text):
            char = text[self.at]
            if char == '"':
                self.at = self._string_end(self.at)
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


def split_top(text: str) -> list[str]:
    """Split at the commas outside brackets and strings; comments vanish, blank parts too.

    >>> split_top("(f32[2], s32[]) %a, /*index=1*/b")
    ['(f32[2], s32[]) %a', 'b']
    """
    if not any(char in text for char in '{(["/'):
        return [part for piece in text.split(",") if (part := piece.strip())]
    parts = PART.findall(text)
    if sum(map(len, parts)) + len(parts) not in (len(text) + 1, len(text) + 2):  # nested deeper than the pattern
        parts = _split_slowly(text)
    clean = (re.sub(r"/\*.*?\*/", "", part, flags=re.S) if "/*" in part else part for part in parts)
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


def _split_slowly(text: str) -> list[str]:
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == '"' and (string := STRING.match(text, at)):
            at = string.end()
            continue
        if char == "/" and text.startswith("/*", at) and (end := text.find("*/", at + 2)) >= 0:
            at = end + 2
            continue
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        depth += (char in "{([") - (char in "})]")
        at += 1
    return [*parts, text[start:]]


def unquote(text: str) -> str:
    """A quoted string's content with its escapes resolved; other text unchanged.

    >>> unquote(r'"a\\"b"')
    'a"b'
    """
    if not text.startswith('"'):
        return text
    body = text[1:-1]
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), body) if "\\" in body else body


def configuration(written: str) -> str:
    """What stands between the quotes of a custom call's configuration, its own quotes as they are meant.

    >>> configuration('{\\\\22body\\\\22: 1}')
    '{"body": 1}'
    """
    return written.replace("\\22", '"').replace('\\"', '"')
