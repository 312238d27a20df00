"""HLO text to a Program: our own reader, for dumps of any age.

jaxlib's parser can abort the whole process on a malformed text; this one answers with a ParseError that has line,
column and reason. It reads what a report needs (instructions, shapes with layouts, operands, attributes, called
computations, metadata) and keeps everything else as text. Compilers print new forms with every release: where a few
places of a long text are not understood, the others are read, and a note says which they are. A fragment is read too:
computations without the module's header, or instructions cut out of one. What a fragment uses and does not define
becomes a parameter of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tilewright.errors import ParseError
from tilewright.hlo.program import CALLS, Computation, Operation, Program, Source
from tilewright.hlo.reading import hlo_scan as words
from tilewright.hlo.reading.hlo_scan import Scanner, closed, split_top, unquote, whole_shape
from tilewright.hlo.reading.sources import SourceTables, metadata_fields

_LITERAL = frozenset({"constant", "parameter"})
_FEW = 8
"""Of so many instructions one may not be understood; where there are more, the text is damaged, not new."""
_NAMED = 3
"""Places that are not understood and that a note names."""


class _Behind(NamedTuple):
    """What stands behind an instruction's operands: its attributes, and what of the program they name."""

    attributes: dict[str, str]
    op_name: str
    source: Source | None
    calls: tuple[str, ...]


def read_hlo(text: str, where: str = "", frames: str = "") -> Program:
    """Read HLO text; ``frames`` chooses lines (``users_line``). Raises ParseError with line, column and reason.

    >>> program = read_hlo("HloModule m\\nENTRY e {\\n p = f32[4] parameter(0)\\n ROOT c = f32[4] copy(p)\\n}")
    >>> [op.opcode for op in program.entry.operations]
    ['parameter', 'copy']
    """
    reader = _Reader(text, where)
    reader.tables.frames = frames
    try:
        return reader.program()
    except ParseError as error:  # what was not understood before may be the cause
        raise (reader.errors[0] if reader.errors else error) from None


class _Reader(Scanner):
    def __init__(self, text: str, where: str) -> None:
        super().__init__(text, where)
        self.tables = SourceTables()
        self.places: dict[str, int] = {}
        self.shapes: dict[str, str] = {}
        self.elements: dict[str, list[str]] = {}
        self.operations: list[Operation] = []
        self.origins: dict[str, tuple[str, Source | None]] = {"": ("", None)}
        self.behind: dict[str, _Behind | None] = {}
        self.called: set[str] = set()
        self.fragment = False
        self.assumed: list[Operation] = []
        self.errors: list[ParseError] = []
        self.places_passed: list[str] = []
        self.passed_over = self.failed_at = 0

    def fail(self, reason: str, at: int | None = None, how: str = "") -> ParseError:
        """The error for a place; behind others, which are told in its stead, with its line's text alone.

        An error counts the lines before it: of many in a long text, that would not take linear time.
        """
        self.failed_at = self.at if at is None else at
        if len(self.errors) < _NAMED:
            return super().fail(reason, at, how)
        start = self.text.rfind("\n", 0, self.failed_at) + 1
        return ParseError(reason, text=self.text[start : self.failed_at], column=self.failed_at - start)

    def program(self) -> Program:
        self.blank()
        name, attributes = "fragment", {}
        self.fragment = words.FRAGMENT.match(self.text, self.at) is not None and not self.peek("HloModule")
        if not self.fragment:
            name = unquote(self.match(words.HEADER, "'HloModule NAME'")[1]).rstrip(":")
            attributes = self.attributes()
            if self.peek(","):
                raise self.fail("expected an attribute 'name=value' after the comma")
            self.tables.read(self)
        computations: list[Computation] = []
        while not self.ended():
            start = self.at
            try:
                header = self._header()
            except ParseError as error:
                if self.text.startswith("HloModule", start):
                    how = "put each into a file of its own"
                    raise self.fail("a second module begins here", start, how) from None
                self._pass_over(error, start, words.COMPUTATION)
                continue
            computation = self._computation(*header)
            if computation.name in self.places:
                raise self.fail(f"computation {computation.name} is defined twice", start)
            self.places[computation.name] = start
            computations.append(computation)
        read = sum(len(computation.operations) for computation in computations)
        if self.errors and len(self.errors) * _FEW > read:
            raise self.errors[0]
        if not computations:
            raise self.fail("the module has no computation")
        checked = tuple(self._checked(computations))
        return Program("hlo", name, self.text, checked, attributes, notes=self._notes())

    def _notes(self) -> tuple[str, ...]:
        """What was not understood, in a sentence."""
        if not self.errors:
            return ()
        some = "; ".join(self.places_passed)
        more = f" and {len(self.errors) - _NAMED} more" if len(self.errors) > _NAMED else ""
        return (f"not everything in the text was understood, the rest was read: {some}{more}",)

    def _pass_over(self, error: ParseError, start: int, further: re.Pattern[str]) -> str:
        """What is not understood, up to where ``further`` begins; the error where it does not, or where it took long.

        An unclosed bracket is looked for to the end of the text: only a few times, so that reading stays linear.
        """
        ends = "never closed" in error.what
        self.passed_over += (len(self.text) if ends else max(start, self.failed_at)) - start
        match = further.search(self.text, start + 1)
        self._note(error, start if match and match.end() <= self.failed_at else None)
        if match is None or self.passed_over > _FEW * len(self.text):
            raise self.errors[0]
        self.at = match.start()
        return self.text[start : self.at]

    def _note(self, error: ParseError, start: int | None = None) -> None:
        """An error that does not end the reading; ``start``: what is passed over, where the error stands behind it."""
        self.errors.append(error)
        if len(self.errors) <= _NAMED:
            line = error.line if start is None else self.text.count("\n", 0, start) + 1
            self.places_passed.append(f"line {line}: {error.what}")

    def _header(self) -> tuple[str, bool]:
        """``ENTRY? %name (parameters)? -> shape? {``: a name ("" before a fragment's lines), and whether ENTRY."""
        if self.fragment and words.ASSIGN.match(self.text, self.at):
            return "", True
        plain = words.HEAD.match(self.text, self.at)
        if plain and closed(plain[3] or ""):
            self.at = plain.end()
            return plain[2], plain[1] is not None
        entry = words.ENTRY.match(self.text, self.at)
        if entry:
            self.at = entry.end()
            self.blank()
        name = unquote(self.match(words.NAME, "a computation: 'NAME {' or 'ENTRY NAME {'")[1])
        self.blank()
        if self.peek("("):
            self.balanced()
            self.expect("->", "the parameters")
            self.blank()
            self.shape()
        if rest := words.TO_BRACE.match(self.text, self.at):
            self.at = rest.end()
        else:
            self.expect("{", f"the name of computation {name}")
        return name, entry is not None

    def _computation(self, name: str, entry: bool) -> Computation:
        """``instructions }``, or a fragment's instructions alone."""
        self.shapes, self.assumed, self.operations = {}, [], []
        if not name:
            while not self.ended():
                self._instruction()
            return self._finished("fragment", True)
        while not self.take("}"):
            if self.at >= len(self.text):
                raise self.fail(f"computation {name} is never closed", how="end it with '}'")
            start = self._lines()
            if start is None:
                continue
            try:
                self._instruction()
            except ParseError as error:
                self._unread(self._pass_over(error, start, words.NEXT), start, error)
        self.attributes()
        return self._finished(name, entry)

    def _unread(self, text: str, start: int, error: ParseError) -> None:
        """The operation of an instruction that is not understood: its name, its shape, and the operands it names."""
        head = words.ASSIGN.match(self.text, start)
        name = unquote(head[2]) if head else ""
        if head is None or name in self.shapes:
            return
        shape = words.WHOLE_SHAPE.match(self.text, head.end())
        self.shapes[name] = shape[0] if shape else "opaque[]"
        used = dict.fromkeys(word for word in words.PERCENT.findall(text) if word in self.shapes and word != name)
        operands, shapes = tuple(used), tuple(map(self.shapes.__getitem__, used))
        self.operations.append(
            Operation(
                *(name, "unread", self.shapes[name], operands, shapes, {"reason": error.what, "text": text.strip()}),
                line=self._line,
                root=head[1] is not None,
            )
        )

    def _finished(self, name: str, entry: bool) -> Computation:
        operations = self.operations
        if not operations:
            raise self.fail(f"computation {name} has no instruction", self.at - 1)
        roots = sum(op.root for op in operations)
        if roots > 1:
            raise self.fail(f"computation {name} has {roots} ROOT instructions", self.at - 1)
        if not roots:  # without the mark, the last instruction is the result
            operations[-1] = replace(operations[-1], root=True)
        return Computation(name, (*self.assumed, *operations), entry)

    def _lines(self) -> int | None:
        """Instructions as XLA prints them, each on a line of its own; where one that is not so begins, or None."""
        text, shapes, line, start = self.text, self.shapes, self.line(), self.at
        while found := words.LINE.match(text, start):
            root, name, written, opcode, arguments, rest = found.groups()
            behind = self.behind[rest] if rest in self.behind else self._behind(rest)
            shape = whole_shape(written)
            operands = self._known(opcode, arguments)
            if behind is None or not shape or operands is None or name in shapes:
                break
            self._operation(root, name, shape, opcode, arguments, operands, behind, line)
            line, start = line + 1, found.end()
        if start == self.at:
            return start
        self.at = self._counted = start
        self._line = line
        return None

    def _behind(self, text: str) -> _Behind | None:
        """What the rest of a line says, read once for all that are alike; None where it is not the whole of it."""
        scanner = Scanner(text)
        try:
            attributes = scanner.attributes()
        except ParseError:
            attributes = {}
        self.behind[text] = self._said(attributes) if scanner.ended() else None
        return self.behind[text]

    def _said(self, attributes: dict[str, str]) -> _Behind:
        if "device_ids" in attributes and "replica_groups" in attributes:  # mesh['a'=4,'b'=2], device_ids=(...) {'b'}
            attributes["replica_groups"] += f", device_ids={attributes.pop('device_ids')}"
        named = [attributes[key] for key in CALLS if key in attributes]
        calls = tuple(unquote(name) for names in named for name in words.NAME.findall(names))
        self.called.update(calls)
        return _Behind(attributes, *self._place(attributes.get("metadata", "")), calls)

    def _instruction(self) -> None:
        """``ROOT? %name = shape opcode(operands), attributes``; joins ``operations``, its shape ``shapes``."""
        line, start = self.line(), self.at
        head = self.match(words.ASSIGN, "an instruction: 'NAME = SHAPE OPCODE(OPERANDS)'")
        name = unquote(head[2])
        if name in self.shapes:
            raise self.fail(f"{name} is defined twice in this computation", start)
        self.blank()
        shape = self.shape()
        self.blank()
        opcode = self.match(words.OPCODE, "an opcode and '(' after the shape")[1]
        inside = self.at + 1
        arguments = self.balanced()[1:-1]
        behind, operands = self._said(self._known_attributes()), self._known(opcode, arguments)
        if operands is None and opcode not in _LITERAL:
            operands = [self._operand(part, arguments, inside, line) for part in split_top(arguments)]
        self._operation(head[1], name, shape, opcode, arguments, operands or (), behind, line)

    def _known_attributes(self) -> dict[str, str]:
        """The attributes of an instruction; what stands between them and is not understood becomes a note."""
        found = self.attributes()
        noted = False
        while left := words.LEFT.match(self.text, self.at):
            if not noted:
                expected = "expected an attribute 'name=value' after the comma"
                self._note(self.fail(expected if self.peek(",") else "what stands here is not understood"))
            self.at, noted = left.end(), True
            found |= self.attributes()
        return found

    def _known(self, opcode: str, arguments: str) -> Sequence[str] | None:
        """Names of the operands, whether or not types stand before them; None where one is not plainly known."""
        if opcode in _LITERAL or not arguments:
            return () if closed(arguments) else None
        if "/*" in arguments:
            arguments = words.INDEX.sub("", arguments)
        names = arguments[1:].split(", %") if arguments[0] == "%" else arguments.split(", ")
        if self.shapes.keys() >= set(names):
            return names
        names = words.PERCENT.findall(arguments) if words.TYPED_OPERANDS.fullmatch(arguments) else []
        return names if names and self.shapes.keys() >= set(names) else None

    def _operation(
        self, root: str | None, name: str, shape: str, opcode: str, arguments: str, operands: Sequence[str],
        behind: _Behind, line: int,
    ) -> None:  # fmt: skip
        attributes, op_name, source, calls = behind
        if opcode in _LITERAL:
            attributes = {**attributes, "literal": arguments.strip()}
        shapes = tuple([self.shapes[operand] for operand in operands])
        self.shapes[name] = shape
        self.operations.append(
            Operation(
                *(name, opcode, shape, tuple(operands), shapes, attributes),
                *(op_name, source, calls, line, root is not None),
            )
        )

    def _place(self, metadata: str) -> tuple[str, Source | None]:
        """The framework's name and the source line in an instruction's metadata; many instructions share one."""
        if metadata not in self.origins:
            fields = metadata_fields(metadata)
            self.origins[metadata] = fields.get("op_name", ""), self.tables.source(fields)
        return self.origins[metadata]

    def _operand(self, part: str, arguments: str, inside: int, line: int) -> str:
        match = words.OPERAND.match(part)
        name = unquote(match[2]) if match else ""
        if match and match[3] and name in self.shapes:
            return self._projected(name, match[3], inside + max(0, arguments.find(part)), line)
        if name not in self.shapes or match is None:
            at = inside + max(0, arguments.find(part))
            if not self.fragment:
                raise self.fail(f"operand '{name or part[:40]}' is not defined before its use", at)
            if match is None or not match[1]:
                raise self.fail(f"operand '{name or part[:40]}' has neither definition nor type", at)
            shape = match[1].strip()  # a parameter in place of what the fragment does not hold
            if Scanner(shape, self.where).shape() != shape:
                raise self.fail(f"'{shape[:40]}' is not a shape", at)
            self.shapes[name] = shape
            self.assumed.append(Operation(name, "parameter", shape, line=self.line()))
        return name

    def _projected(self, name: str, indices: str, at: int, line: int) -> str:
        """``%x#1``: recent texts write so for an element of a tuple that has no line of its own.

        It gets the operation that XLA has for it, by the name it stands under in the text.
        """
        for index in indices[1:].split("#"):
            whole, element = self.shapes[name], f"{name}#{int(index)}"
            if element not in self.shapes:
                if whole not in self.elements:
                    self.elements[whole] = split_top(whole[1:-1]) if whole.startswith("(") else []
                elements = self.elements[whole]
                if int(index) >= len(elements):
                    raise self.fail(f"'{name}' has {len(elements)} elements, not one numbered {index}", at)
                shape, attributes = elements[int(index)], {"index": str(int(index))}
                self.shapes[element] = shape
                taken = Operation(element, "get-tuple-element", shape, (name,), (whole,), attributes, line=line)
                self.operations.append(taken)
            name = element
        return name

    def _checked(self, computations: list[Computation]) -> list[Computation]:
        """Every computation that is called is there; what a fragment lacks, or was not understood, is not called."""
        lost = self.called - self.places.keys()
        if not lost:
            return computations
        for op in (op for computation in computations for op in computation.operations):
            if not self.fragment and not self.errors and (missing := [name for name in op.calls if name in lost]):
                reason = f"{op.name} calls computation {missing[0]}, which the module does not have"
                raise self.fail(reason, self.first_of(op.line))
            op.calls = tuple(name for name in op.calls if name not in lost)
        return computations
