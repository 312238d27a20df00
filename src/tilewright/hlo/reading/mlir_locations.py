"""MLIR locations (``loc(...)``) to lines of the user's program.

JAX writes ``loc("jit(f)/reshape"(callsite("f"("model.py":3:8 to :33) at ...)))``: the framework's name for the
operation around a stack of named file positions, most of them through aliases (``#loc72``) defined once in the module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from tilewright.hlo.program import Source
from tilewright.hlo.reading.hlo_scan import split_top, unquote
from tilewright.hlo.reading.sources import is_library

_DEFINITION = re.compile(r"^(#[\w.$]+)[ \t]*=[ \t]*loc\((.*)\)[ \t]*$", re.M)
_FILE = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"):(\d{1,9}):(\d{1,9})(?: to .*)?$', re.S)
_NAMED = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(?:\((.*)\))?$', re.S)
_CALL = re.compile(r"callsite\((.*)\)$", re.S)
_FUSED = re.compile(r"fused(?:<.*?>)?\[(.*)\]$", re.S)
_DEEPEST = 200

_Place = tuple[str, tuple[Source, ...]]
_UNKNOWN: _Place = ("", ())


@dataclass
class Locations:
    """The aliases of a module, and what each stands for, remembered."""

    aliases: dict[str, str]
    _known: dict[str, _Place] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Locations:
        """The aliases a module defines."""
        return cls(dict(_DEFINITION.findall(text)))

    def resolve(self, text: str) -> tuple[str, Source | None]:
        """The inside of a ``loc(...)`` -> the framework's name of the operation, and the user's line (or None)."""
        name, stack = self._place(text.strip(), 0)
        user = next((source for source in stack if not is_library(source.file)), stack[0] if stack else None)
        return name.removesuffix(":"), user

    def _place(self, text: str, depth: int) -> _Place:
        if text not in self._known:
            self._known[text] = _UNKNOWN  # an alias that leads back to itself stays unknown
            self._known[text] = self._read(text, depth + 1) if depth < _DEEPEST else _UNKNOWN
        return self._known[text]

    def _read(self, text: str, depth: int) -> _Place:
        if text.startswith("#"):
            return self._place(self.aliases[text].strip(), depth) if text in self.aliases else _UNKNOWN
        if found := _FILE.match(text):
            return "", (Source(unquote(found[1]), int(found[2]), int(found[3])),)
        if found := _NAMED.match(text):
            return self._named(unquote(found[1]), (found[2] or "").strip(), depth)
        if found := _CALL.match(text):
            callee, _, caller = _split_at(found[1])
            name, stack = self._place(callee.strip(), depth)
            return name, (*stack, *self._place(caller.strip(), depth)[1])
        if found := _FUSED.match(text):
            parts = [self._place(part, depth) for part in split_top(found[1])]
            return next((name for name, _ in parts if name), ""), tuple(s for _, stack in parts for s in stack)
        return _UNKNOWN

    def _named(self, name: str, child: str, depth: int) -> _Place:
        """A name around a bare file position is the function it is in; around a stack, the operation's own name."""
        _, stack = self._place(child, depth) if child else _UNKNOWN
        if len(stack) == 1 and not stack[0].function:
            stack = (replace(stack[0], function=name),)
        return name, stack


def _split_at(text: str) -> tuple[str, str, str]:
    """``CALLEE at CALLER`` split at the `` at `` outside brackets and strings."""
    depth, quoted, at = 0, False, 0
    while at < len(text):
        char = text[at]
        if char == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in "([") - (char in ")]")
            if depth == 0 and text.startswith(" at ", at):
                return text[:at], " at ", text[at + 4 :]
        at += 1
    return text, "", ""
