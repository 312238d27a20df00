"""The values of a movement report: rows, tensors, totals, rankings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

__all__ = ["MovementReport", "MovementRow", "PaddedTensor"]


@dataclass(frozen=True, slots=True)
class MovementRow:
    """One operation. Bytes are of its result, ``moved_bytes`` are read and written together.

    ==================  ========================================================================================
    ``op``, ``name``    what it is (``reshape``) and what it is called (``reshape.12``)
    ``source``          the user's line, ``model.py:47``, or ""
    ``from_layout``     its operand's shape and layout, ``(a, b)`` for several; ``to_layout`` its result's
    ``logical_bytes``   bytes of the result's elements; ``padded_bytes`` with padding
    ``moved_bytes``     bytes read and written, padding included; 0 for a bitcast and inside a fusion
    ``bitcast``         every element keeps its address
    ``reason``          why it is, or is not, a bitcast
    ``path``            the computations from the entry to the one it is in
    ``op_name``         the framework's name for it
    ``in_fusion``       it is part of a fusion and writes nothing to memory by itself
    ``predicted``       its layouts are predictions
    ==================  ========================================================================================
    """

    op: str
    name: str
    source: str
    from_layout: str
    to_layout: str
    logical_bytes: int
    padded_bytes: int
    moved_bytes: int
    bitcast: bool
    reason: str
    path: str
    op_name: str = ""
    in_fusion: bool = False
    predicted: bool = False

    @property
    def from_short(self) -> str:
        """``from_layout`` with a run of equal operands written once: ``(16 x f32[512,1,32]{2,1,0})``."""
        if not self.from_layout.startswith("("):
            return self.from_layout
        operands = re.split(r", (?=[a-z(])", self.from_layout[1:-1])
        runs = ((operand, len(list(same))) for operand, same in groupby(operands))
        return "(" + ", ".join(f"{n} x {operand}" if n > 1 else operand for operand, n in runs) + ")"

    @property
    def padding_ratio(self) -> float:
        """padded_bytes / logical_bytes, 1.0 for an empty array."""
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """An array that has a buffer of its own, and the bytes of it that hold no data."""

    name: str
    op: str
    source: str
    layout: str
    logical_bytes: int
    padded_bytes: int
    path: str

    @property
    def wasted_bytes(self) -> int:
        """Padding, in bytes."""
        return self.padded_bytes - self.logical_bytes

    @property
    def padding_ratio(self) -> float:
        """padded_bytes / logical_bytes, 1.0 for an empty array."""
        return self.padded_bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclass(frozen=True)
class MovementReport:
    """The rows in the order of the program, the tensors with buffers, and rankings of both.

    ``predicted``: layouts are the target's predictions; ``tiled``: any of them has tiles; ``unsized``: shapes with
    unbounded dims, which have no bytes to count.

    >>> from tilewright.hlo import load, report
    >>> text = "HloModule m\\nENTRY e {\\n p = f32[4,2]{1,0} parameter(0)\\n ROOT c = f32[4,2]{0,1} copy(p)\\n}"
    >>> result = report(load(text))
    >>> [(row.op, row.moved_bytes, row.reason) for row in result.rows]
    [('copy', 64, 'the order of the elements changes: dim 1 (2) was the fastest, dim 0 (4) is now')]
    """

    program: str
    kind: str
    target: str | None
    predicted: bool
    tiled: bool
    unsized: tuple[str, ...]
    rows: tuple[MovementRow, ...]
    tensors: tuple[PaddedTensor, ...]

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes moved by all rows."""
        return sum(row.moved_bytes for row in self.rows)

    @property
    def moved_by_op(self) -> dict[str, int]:
        """Operation -> the bytes its rows move, most first."""
        totals: dict[str, int] = {}
        for row in self.rows:
            totals[row.op] = totals.get(row.op, 0) + row.moved_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of these figures must know."""
        notes = ["every computation counts once, however often it is called"]
        if self.predicted:
            notes.append(f"layouts are predicted by the rule of {self.target}; the compiler may choose others")
            notes.append("each operation is counted by itself; a compiler fuses most broadcasts into their users")
        elif not self.tiled:
            notes.append("no shape of this dump carries tiles: bytes are those of linear arrays, without padding")
        if any(row.in_fusion for row in self.rows):
            notes.append("rows inside fusions write nothing to memory and count 0 bytes")
        if self.unsized:
            notes.append(f"shapes without a size are left out: {', '.join(self.unsized[:5])}")
        return tuple(notes)

    @property
    def bitcasts(self) -> int:
        """How many rows are free."""
        return sum(row.bitcast for row in self.rows)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the elements of all tensors."""
        return sum(tensor.logical_bytes for tensor in self.tensors)

    @property
    def padded_bytes(self) -> int:
        """Bytes of all tensors, padding included."""
        return sum(tensor.padded_bytes for tensor in self.tensors)

    @property
    def wasted_bytes(self) -> int:
        """Bytes of padding in all tensors."""
        return self.padded_bytes - self.logical_bytes

    def ranked(self, top: int | None = None) -> list[MovementRow]:
        """The rows that move bytes, most first; rows of equal weight stay in the program's order."""
        moving = [row for row in self.rows if row.moved_bytes]
        return sorted(moving, key=lambda row: -row.moved_bytes)[:top]

    def wasteful(self, top: int | None = None) -> list[PaddedTensor]:
        """The tensors with padding, most wasted bytes first."""
        padded = [tensor for tensor in self.tensors if tensor.wasted_bytes]
        return sorted(padded, key=lambda tensor: -tensor.wasted_bytes)[:top]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values; ``schema_version`` counts changes that break readers."""
        from tilewright.hlo._report_faces import to_json

        return to_json(self)

    def to_html(self) -> str:
        """One self-contained page."""
        from tilewright.hlo._report_faces import to_html

        return to_html(self)
