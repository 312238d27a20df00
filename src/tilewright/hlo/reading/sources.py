"""From what an operation says about its origin to a line of the user's program.

Recent HLO text keeps positions in four tables at the head of the module (FileNames, FunctionNames, FileLocations,
StackFrames) and only a ``stack_frame_id`` in the metadata; older text has ``source_file`` and ``source_line`` inline.

MLIR has locations: JAX writes ``loc("jit(f)/reshape"(callsite("f"("model.py":3:8 to :33) at ...)))``, the framework's
name for the operation around a stack of named file positions, most of them through aliases (``#loc72``) that the module
defines once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tilewright.errors import UsageError
from tilewright.hlo.program import Source, reached
from tilewright.hlo.reading.hlo_scan import STRING, Scanner, split_top, unquote

_TABLE = re.compile(r"(FileNames|FunctionNames|FileLocations|StackFrames)\b")
_ENTRY = re.compile(r'[ \t]*(\d+)[ \t]+("[^"\\\n]*(?:\\.[^"\\\n]*)*"|\{[^{}\n]*\})[ \t]*(?:\n|$)')
_PAIR = re.compile(r'(\w+)=("[^"\\]*(?:\\.[^"\\]*)*"|\{[^{}]*\}|[^\s{},"]+)')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages)/|/jax/_src/|^<frozen ")
_OURS = f"{Path(__file__).parents[2]}/"
_TOOLS = re.compile(
    r"/(?:site|dist)-packages/(?:jax(?!/experimental/pallas/ops/)|jaxlib|jaxtyping|flax|haiku|equinox|optax|chex|einops"
    r"|beartype|absl|numpy|scipy|ml_dtypes)/|/jax/_src/|^<frozen |/lib/python3\.\d+/(?!(?:site|dist)-packages/)"
)
"""Files of what models are written with: JAX and libraries like it, Python's own. Pallas' kernels are none of them."""


def is_library(file: str) -> bool:
    """Is this file part of an installed library, or of this one, rather than the user's program?"""
    return _LIBRARY.search(file) is not None or file.startswith(_OURS)


def users_line(stack: Sequence[Source], frames: str = "") -> Source | None:
    """The innermost frame whose file matches ``frames``; else the innermost of a program; never one of ours.

    A program is the user's own, or a library that is one (MaxText, vLLM), and nothing that programs are written with
    (JAX, Flax, Optax, NumPy, Python's own files): a frame of those is taken where there is no other.

    >>> stack = [Source("/v/site-packages/flax/nnx/nn/linear.py", 9), Source("/v/site-packages/maxtext/llama.py", 3)]
    >>> users_line([*stack, Source("train.py", 1)]).file, users_line([*stack, Source("train.py", 1)], "train").file
    ('/v/site-packages/maxtext/llama.py', 'train.py')
    """
    others = [source for source in stack if not source.file.startswith(_OURS)]
    chosen = (source for source in others if frames and re.search(frames, source.file))
    program = (source for source in others if not _TOOLS.search(source.file))
    return next(chosen, next(program, next(iter(others), None)))


def checked_frames(frames: str) -> str:
    """A pattern for files of a program. Raises UsageError for what is none."""
    try:
        re.compile(frames)
    except re.error as error:
        raise UsageError(
            f"'{frames}' is no pattern: {error}", where="--frames", how="write part of a file's path, such as maxtext/"
        ) from None
    return frames


def metadata_fields(text: str) -> dict[str, str]:
    """``{op_name="jit(f)/add" stack_frame_id=3}`` -> its fields, strings unquoted."""
    return {key: unquote(value) for key, value in _PAIR.findall(text)}


@dataclass
class SourceTables:
    """The four tables, and the answer for each stack frame, remembered."""

    rows: dict[str, dict[int, str]] = field(default_factory=dict)
    frames: str = ""
    _resolved: dict[int, Source | None] = field(default_factory=dict)

    def read(self, scanner: Scanner) -> None:
        while True:
            scanner.blank()
            head = _TABLE.match(scanner.text, scanner.at)
            if head is None:
                return
            scanner.at = head.end()
            scanner.blank()
            rows = self.rows.setdefault(head[1], {})
            while entry := _ENTRY.match(scanner.text, scanner.at):
                rows[_integer(entry[1])] = entry[2]
                scanner.at = entry.end()

    def source(self, fields: Mapping[str, str]) -> Source | None:
        """The line that an instruction's metadata names, in either form."""
        if "stack_frame_id" in fields:
            identity = _integer(fields["stack_frame_id"])
            if identity not in self._resolved:
                self._resolved[identity] = users_line(self._stack(identity), self.frames)
            return self._resolved[identity]
        if file := fields.get("source_file"):
            return Source(file, _integer(fields.get("source_line", "0")), _integer(fields.get("source_column", "0")))
        return None

    def _stack(self, identity: int) -> list[Source]:
        around = lambda frame: [self._frames[frame][1]] if frame in self._frames else []  # noqa: E731
        sources = (self._frames[frame][0] for frame in reached([identity], around) if frame in self._frames)
        return [source for source in sources if source]

    @cached_property
    def _frames(self) -> dict[int, tuple[Source | None, int]]:
        """Each frame's place, and the frame around it.

        Some compilers print parent ids one too high, so that the outermost frame names itself.
        """
        rows = {number: metadata_fields(row) for number, row in self.rows.get("StackFrames", {}).items()}
        parents = {number: _integer(fields.get("parent_frame_id", "0")) for number, fields in rows.items()}
        shift = int(bool(parents) and 0 not in parents.values() and parents.get(1) == 1)
        located = {number: self._location(number) for number in self.rows.get("FileLocations", {})}
        places = {number: located.get(_integer(fields.get("file_location_id", "0"))) for number, fields in rows.items()}
        return {number: (places[number], parent - shift) for number, parent in parents.items()}

    def _location(self, identity: int) -> Source | None:
        fields = metadata_fields(self.rows["FileLocations"][identity])
        file = self.rows.get("FileNames", {}).get(_integer(fields.get("file_name_id", "0")))
        function = self.rows.get("FunctionNames", {}).get(_integer(fields.get("function_name_id", "0")), "")
        if file is None:
            return None
        line, column = _integer(fields.get("line", "0")), _integer(fields.get("column", "0"))
        return Source(unquote(file), line, column, unquote(function))


def _integer(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


_DEFINITION = re.compile(r"^(#[\w.$]+)[ \t]*=[ \t]*loc\((.*)\)[ \t]*$", re.M)
_POSITION = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"):(\d{1,9}):(\d{1,9})(?: to .*)?$', re.S)
_NAMED = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(?:\((.*)\))?$', re.S)
_CALL = re.compile(r"callsite\((.*)\)$", re.S)
_FUSED = re.compile(r"fused(?:<.*?>)?\[(.*)\]$", re.S)
_BETWEEN = re.compile(rf"{STRING.pattern}|[()\[\]]| at ", re.S)
_DEEPEST = 200

_Place = tuple[str, tuple[Source, ...]]
_UNKNOWN: _Place = ("", ())


@dataclass
class Locations:
    """The aliases of a module, and what each stands for, remembered."""

    aliases: dict[str, str]
    frames: str = ""
    _known: dict[str, _Place] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, frames: str = "") -> Locations:
        return cls(dict(_DEFINITION.findall(text)), frames)

    def resolve(self, text: str) -> tuple[str, Source | None]:
        """The inside of a ``loc(...)`` -> the framework's name of the operation, and the user's line (or None)."""
        name, stack = self._place(text.strip(), 0)
        return name.removesuffix(":"), users_line(stack, self.frames)

    def _place(self, text: str, depth: int) -> _Place:
        if text not in self._known:
            self._known[text] = _UNKNOWN  # an alias that leads back to itself stays unknown
            self._known[text] = self._read(text, depth + 1) if depth < _DEEPEST else _UNKNOWN
        return self._known[text]

    def _read(self, text: str, depth: int) -> _Place:
        if text.startswith("#"):
            return self._place(self.aliases[text].strip(), depth) if text in self.aliases else _UNKNOWN
        if position := _POSITION.match(text):
            return "", (Source(unquote(position[1]), _integer(position[2]), _integer(position[3])),)
        if named := _NAMED.match(text):
            return self._named(unquote(named[1]), (named[2] or "").strip(), depth)
        if call := _CALL.match(text):
            callee, caller = _split_at(call[1])
            name, stack = self._place(callee.strip(), depth)
            return name, (*stack, *self._place(caller.strip(), depth)[1])
        if fused := _FUSED.match(text):
            parts = [self._place(part, depth) for part in split_top(fused[1])]
            return next((name for name, _ in parts if name), ""), tuple(s for _, stack in parts for s in stack)
        return _UNKNOWN

    def _named(self, name: str, child: str, depth: int) -> _Place:
        """A name around a bare file position is the function it is in; around a stack, the operation's own name."""
        _, stack = self._place(child, depth) if child else _UNKNOWN
        if len(stack) == 1 and not stack[0].function:
            stack = (replace(stack[0], function=name),)
        return name, stack


def _split_at(text: str) -> tuple[str, str]:
    """``CALLEE at CALLER`` split at the `` at `` outside brackets and strings."""
    depth = 0
    for mark in _BETWEEN.finditer(text):
        depth += (mark[0] in "([") - (mark[0] in ")]")
        if depth == 0 and mark[0] == " at ":
            return text[: mark.start()], text[mark.end() :]
    return text, ""
