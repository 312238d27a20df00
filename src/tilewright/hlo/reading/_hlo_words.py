"""The words of HLO text as regular expressions; every one is linear in the text it meets.

Brackets are matched a few levels deep, which is what nine of ten real texts need; what is nested deeper is read by
`_hlo_scan.Scanner` bracket by bracket.
"""

from __future__ import annotations

import re

__all__ = [
    "ASSIGN",
    "ATTRIBUTE",
    "BALANCED",
    "BARE",
    "BLANK",
    "CALLEE",
    "ENTRY",
    "FRAGMENT",
    "HEADER",
    "NAME",
    "OPCODE",
    "OPERAND",
    "PAIR",
    "PART",
    "PERCENT",
    "PLAIN_OPERANDS",
    "SHAPE",
    "SIMPLE",
    "STRING",
    "TYPED_OPERANDS",
]

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
_VALUE = rf'(?:[^\s,{{}}()\[\]"]++|{_STRING}|{_NESTED})++'

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
#: One operand: the name at the end, whether or not a type stands before it.
OPERAND = re.compile(rf"(?:(.*)\s)?%?([\w.\-]+|{_STRING})\Z", re.S)
#: Names in an attribute that calls computations.
CALLEE = re.compile(rf"%?([\w.\-]+|{_STRING})")
#: ``f32[2,3]{1,0:T(8,128)}``.
SHAPE = re.compile(_SHAPE)
#: A quoted string.
STRING = re.compile(_STRING, re.S)
#: A piece of a value outside brackets and strings.
BARE = re.compile(r'[^\s,{}()\[\]"]+')
#: A bracketed text.
BALANCED = re.compile(_NESTED, re.S)
#: A text up to the next comma outside brackets, with that comma or the end.
PART = re.compile(rf"((?:{_LEAF}|{_NESTED})*+)(?:,|\Z)", re.S)
#: Operands without types.
PLAIN_OPERANDS = re.compile(rf"{_NAME}(?:, {_NAME})*+")
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
