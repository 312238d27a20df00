"""Errors of a running program: records, and the exception that carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.isa._machine import RunResult

__all__ = ["KINDS", "ErrorRecord", "MatrixUnitError"]

KINDS = {
    "register_out_of_range": "a column's product register is out of range; the column is skipped, all others complete",
    "operand_out_of_range": "an operand needs registers beyond the end of the register file; nothing is done",
    "group_too_large": "ka * kb exceeds the number of threads; nothing is done",
    "unknown_segment": "the uniform register or the name holds no segment; nothing is done",
    "type_mismatch": "TYPE or the registers do not fit the segment's element type; nothing is done",
    "page_fault": "a page is absent; the column (or thread) is skipped, all others complete",
    "l2_full": "no room in L2 for the pages of a dma.in; nothing is moved",
    "divide_by_zero": "a division by zero; the result is 0",
    "count_out_of_range": "setmm with fewer than 1 column or row, or more columns than threads; nothing is changed",
}


@dataclass(frozen=True)
class ErrorRecord:
    """One sticky record: ``column`` is the column of the instruction (or the thread), ``register`` a number; -1: none.

    >>> print(ErrorRecord(3, "mm8 r0, ...", "register_out_of_range", 256, 256))
    pc 3: register_out_of_range (column 256, r256) in: mm8 r0, ...
    """

    pc: int
    instruction: str
    kind: str
    column: int = -1
    register: int = -1

    def __str__(self) -> str:
        """One line for a terminal."""
        parts = [f"column {self.column}"] * (self.column >= 0) + [f"r{self.register}"] * (self.register >= 0)
        place = f" ({', '.join(parts)})" if parts else ""
        return f"pc {self.pc}: {self.kind}{place} in: {self.instruction}"


class MatrixUnitError(TilewrightError):
    """A program went wrong: ``records`` holds what, ``result`` the machine as it stood (None: it was not kept)."""

    exit_code = 1

    def __init__(self, what: str, *, records: tuple[ErrorRecord, ...] = (), how: str = "") -> None:
        self.records = records
        self.result: RunResult | None = None
        super().__init__(what, how=how)
