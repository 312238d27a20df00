"""HLO text to a Program: our own reader, for dumps of any age.

jaxlib's parser can abort the whole process on a malformed text; this one answers with a ParseError that has line,
column and reason. It reads what a report needs (instructions, shapes with layouts, operands, attributes, called
computations, metadata) and keeps everything else as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tilewright.errors import ParseError
from tilewright.hlo._hlo_scan import Scanner, split_top
from tilewright.hlo._program import Computation, Operation, Program
from tilewright.hlo._sources import SourceTables, metadata_fields

__all__ = ["read_hlo"]

_HEADER = re.compile(r"HloModule\s+([^\s,]+)")
_ENTRY = re.compile(r"ENTRY\s+")
_NAME = re.compile(r"%?([\w.\-]+)")
_ASSIGN = re.compile(r"(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\s*(?=\()")
_ATTRIBUTE = re.compile(r",\s*([\w.\-]+)\s*=\s*")
_OPERAND = re.compile(r"(?:.*\s)?%?([\w.\-]+)$", re.S)
_CALLEE = re.compile(r"%?([\w.\-]+)")
_CALLS = (
    *("calls", "to_apply", "condition", "body", "branch_computations", "true_computation", "false_computation"),
    *("called_computations", "select", "scatter", "comparator"),
)
_LITERAL = frozenset({"constant", "parameter"})


def read_hlo(text: str, where: str = "") -> Program:
    """Read HLO text (the module header included). Raises ParseError with line, column and reason.

    >>> program = read_hlo("HloModule m\\nENTRY e {\\n p = f32[4] parameter(0)\\n ROOT c = f32[4] copy(p)\\n}")
    >>> [op.opcode for op in program.entry.operations]
    ['parameter', 'copy']
    """
    scanner = Scanner(text, where)
    scanner.blank()
    name = scanner.match(_HEADER, "'HloModule NAME'")[1]
    attributes = _attributes(scanner)
    tables = SourceTables()
    tables.read(scanner)
    computations: list[Computation] = []
    places: dict[str, int] = {}
    while not scanner.ended():
        start = scanner.at
        computation = _computation(scanner, tables, places)
        if computation.name in places:
            raise scanner.fail(f"computation {computation.name} is defined twice", start)
        places[computation.name] = start
        computations.append(computation)
    if not computations:
        raise scanner.fail("the module has no computation")
    _check_calls(scanner, computations, places)
    return Program("hlo", name, text, tuple(computations), attributes)


def _attributes(scanner: Scanner) -> dict[str, str]:
    """``, key=value`` as often as it stands here."""
    found: dict[str, str] = {}
    while True:
        scanner.blank()
        head = _ATTRIBUTE.match(scanner.text, scanner.at)
        if head is None:
            if scanner.peek(","):
                raise scanner.fail("expected an attribute 'name=value' after the comma")
            return found
        scanner.at = head.end()
        found[head[1]] = scanner.value()


def _computation(scanner: Scanner, tables: SourceTables, places: Mapping[str, int]) -> Computation:
    """``ENTRY? %name (parameters)? -> shape? { instructions }``."""
    entry = _ENTRY.match(scanner.text, scanner.at)
    if entry:
        scanner.at = entry.end()
    name = scanner.match(_NAME, "a computation: 'NAME {' or 'ENTRY NAME {'")[1]
    scanner.blank()
    if scanner.peek("("):
        scanner.balanced()
        scanner.expect("->", "the parameters")
        scanner.blank()
        scanner.shape()
    scanner.expect("{", f"the name of computation {name}")
    shapes: dict[str, str] = {}
    operations: list[Operation] = []
    while not scanner.take("}"):
        if scanner.at >= len(scanner.text):
            raise scanner.fail(f"computation {name} is never closed", how="end it with '}'")
        operations.append(_instruction(scanner, tables, shapes))
    _attributes(scanner)
    if not operations:
        raise scanner.fail(f"computation {name} has no instruction", scanner.at - 1)
    roots = [op for op in operations if op.root]
    if len(roots) > 1:
        raise scanner.fail(f"computation {name} has {len(roots)} ROOT instructions", scanner.at - 1)
    if not roots:  # without the mark, the last instruction is the result
        operations[-1] = replace(operations[-1], root=True)
    return Computation(name, tuple(operations), entry is not None)


def _instruction(scanner: Scanner, tables: SourceTables, shapes: dict[str, str]) -> Operation:
    """``ROOT? %name = shape opcode(operands), attributes``; adds its shape to ``shapes``."""
    line = scanner.line()
    start = scanner.at
    head = scanner.match(_ASSIGN, "an instruction: 'NAME = SHAPE OPCODE(OPERANDS)'")
    if head[2] in shapes:
        raise scanner.fail(f"{head[2]} is defined twice in this computation", start)
    shape = scanner.shape()
    opcode = scanner.match(_OPCODE, "an opcode and '(' after the shape")[1]
    inside = scanner.at + 1
    arguments = scanner.balanced()[1:-1]
    operands = () if opcode in _LITERAL else _operands(scanner, arguments, inside, shapes)
    attributes = _attributes(scanner)
    if opcode in _LITERAL:
        attributes["literal"] = arguments.strip()
    fields = metadata_fields(attributes["metadata"]) if "metadata" in attributes else {}
    shapes[head[2]] = shape
    return Operation(
        *(head[2], opcode, shape, operands, tuple(map(shapes.__getitem__, operands)), attributes),
        *(fields.get("op_name", ""), tables.source(fields) if fields else None),
        calls=_callees(attributes),
        line=line,
        root=head[1] is not None,
    )


def _operands(scanner: Scanner, arguments: str, inside: int, shapes: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the operands, whether or not types stand before them."""
    names = []
    for part in split_top(arguments):
        found = _OPERAND.match(part)
        if found is None or found[1] not in shapes:
            at = inside + max(0, arguments.find(part))
            raise scanner.fail(f"operand '{found[1] if found else part[:40]}' is not defined before its use", at)
        names.append(found[1])
    return tuple(names)


def _callees(attributes: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for key in _CALLS:
        if key in attributes:
            found += _CALLEE.findall(attributes[key])
    return tuple(found)


def _check_calls(scanner: Scanner, computations: list[Computation], places: Mapping[str, int]) -> None:
    for computation in computations:
        for op in computation.operations:
            for callee in op.calls:
                if callee not in places:
                    raise _missing(scanner, computation, op, callee, places[computation.name])


def _missing(scanner: Scanner, computation: Computation, op: Operation, callee: str, start: int) -> ParseError:
    at = re.compile(rf"%?{re.escape(op.name)}\s*=").search(scanner.text, start)
    return scanner.fail(f"{op.name} calls computation {callee}, which the module does not have", at and at.start())
