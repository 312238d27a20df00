"""The words of MLIR text as regular expressions; every one is linear in the text it meets."""

from __future__ import annotations

import re

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_INNER = rf'(?:[^<>"]|{_STRING})'
_ANGLED = rf"<(?:{_INNER}|<(?:{_INNER}|<{_INNER}*+>)*+>)*+>"
_VALUE = r"%[\w$.\-]+"
_PLAIN_TENSOR = r'tensor<[^<>\n(){}"]*+>'

#: Blanks and comments.
BLANK = re.compile(r"(?:\s++|//[^\n]*+)*+")
#: ``%0, %1:2 =`` before an operation.
RESULTS = re.compile(rf"({_VALUE}(?::\d{{1,4}})?(?:\s*,\s*{_VALUE}(?::\d{{1,4}})?)*)\s*=\s*")
#: ``"stablehlo.add"`` in the generic form, ``stablehlo.add`` in the printed one.
OPCODE = re.compile(r'"([\w$.\-]+)"|([A-Za-z_][\w$.\-]*)')
#: What the first line of an operation (or of an alias or a block) begins with.
STARTS = re.compile(
    rf'{_VALUE}(?::\d+)?\s*[,=]|"[\w$.\-]+"\s*[(<]|(?:func|module|return|call)\b|[a-z_]\w*\.[\w.]+|[#!][\w.$]+\s*=|\^'
)
#: A brace that opens a dictionary of attributes rather than a region.
ATTRIBUTES = re.compile(r"\{(?:[ \t]*\}|\s*(?!return\b)[\w.$\"]+\s*[=,}])")
#: ``#loc3 = loc(...)``, to the end of its line.
ALIAS = re.compile(r"[#!][\w.$]+\s*=[^\n]*")
#: ``tensor<2x3xf32>``, ``!stablehlo.token``, ``i32``.
TYPE = re.compile(rf"[!\w][\w.$]*+(?:{_ANGLED})?")
#: Anything else inside an operation.
TOKEN = re.compile(
    rf"(?P<value>{_VALUE})(?:#(?P<index>\d{{1,6}}))?|(?P<arrow>->)|(?P<location>loc(?=\())|(?P<symbol>@[\w$.\-]+)"
    rf'|(?P<word>[\w#!.$]++(?:{_ANGLED})?)|(?P<string>{_STRING})|(?P<mark>[^\s"])'
)
#: ``: tensor<f32>`` behind an argument's name.
ARGUMENT = re.compile(rf"\s*:\s*({TYPE.pattern})")
#: ``^bb0`` before its arguments.
BLOCK = re.compile(r"\^[\w$.\-]+\s*(?=[(:])")
#: ``= %init`` behind a loop argument's name.
BINDING = re.compile(rf"\s*=\s*({_VALUE})(?:#(\d{{1,6}}))?")
#: The module's name.
MODULE = re.compile(r"module(?:\s+@([\w$.\-]+|\"[^\"]*\"))?")
#: The name of a function, or of the one that is called, in the generic form.
SYMBOL = re.compile(r'\b(?:sym_name\s*=\s*"([^"]*)"|callee\s*=\s*@([\w$.\-]+))')
#: One operand.
USE = re.compile(rf"({_VALUE})(?:#(\d{{1,6}}))?")
#: A whole operation on one line: one result, operands, attributes without values in them, tensors, a named location.
#: Nine of ten operations are such; reading them at once is three times as fast as token by token.
SIMPLE = re.compile(
    rf"(?P<name>{_VALUE}) = (?:stablehlo|chlo|mhlo)\.(?P<opcode>[a-z_0-9]+) (?:[A-Z]+, )?"
    rf"(?P<operands>{_VALUE}(?:#\d{{1,6}})?(?:, {_VALUE}(?:#\d{{1,6}})?)*+|dense<[^<>\"\n]*+>)"
    rf"(?:, [^:\n(){{}}\"%<>]*[^:\n(){{}}\"%<> ])? : (?:(?:\([^()\n{{}}\"]*+\)|{_PLAIN_TENSOR}) -> |{_PLAIN_TENSOR}, )?"
    rf"(?P<type>{_PLAIN_TENSOR})(?: loc\((?P<location>#\w+)\))?[ \t]*+(?=\n)"
)
