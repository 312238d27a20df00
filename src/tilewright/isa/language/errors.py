"""Errors of a running program (records, and the exception that carries them), and the checks of arguments."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.isa.language.config import shown

Array = np.ndarray[Any, Any]
KINDS = {
    "register_out_of_range": "a column's product register is out of range; the column is skipped, all others complete",
    "operand_out_of_range": "an operand needs registers beyond the end of the register file; nothing is done",
    "group_too_large": "ka * kb exceeds the number of threads; nothing is done",
    "unknown_segment": "the uniform register or the name holds no segment; nothing is done",
    "type_mismatch": "TYPE, or the dim walked along, does not fit the segment; nothing is done",
    "page_fault": "a page is absent; the column (or thread) is skipped, all others complete",
    "l2_full": "no room in L2 for the pages of a dmain; nothing is moved",
    "divide_by_zero": "a division by zero; the result is 0",
    "divergent_barrier": "a barrier that not all threads, or not all processing elements, come to; those there go on",
    "uninitialized_register": "mm adds to a product register nothing was put in (uninitialized='poison'); it adds",
    "segment_out_of_range": "a descriptor would reach beyond its storage, or has no such dim; nothing is changed",
    "segment_table_full": "segdef with no descriptor left; nothing is done",
    "thread_out_of_range": "read of a thread that is not there; the result is 0",
    "count_out_of_range": "setmm with fewer than 1 column or row, or more columns than threads; nothing is changed",
}


Faults = list[tuple[str, int, int]]
"""What an instruction has to report: (kind, column, register) of every record."""


@dataclass(frozen=True)
class ErrorRecord:
    """One sticky record: ``column`` is the column of the instruction (or the thread), ``register`` a number; -1: none.

    ``pe``: the processing element.

    >>> print(ErrorRecord(3, "mm8 r0, ...", "register_out_of_range", 256, 256))
    pc 3: register_out_of_range (column 256, r256) in: mm8 r0, ...
    """

    pc: int
    instruction: str
    kind: str
    column: int = -1
    register: int = -1
    pe: int = 0

    def __str__(self) -> str:
        parts = [f"column {self.column}"] * (self.column >= 0) + [f"r{self.register}"] * (self.register >= 0)
        place = f" ({', '.join(parts)})" if parts else ""
        where = f"PE {self.pe}, " if self.pe else ""
        return f"{where}pc {self.pc}: {self.kind}{place} in: {self.instruction}"


class MatrixUnitError(TilewrightError):
    """A program went wrong: ``records`` says what happened, ``result`` is the run so far (None: not kept)."""

    exit_code = 1

    def __init__(self, what: str, *, records: tuple[ErrorRecord, ...] = (), how: str = "") -> None:
        self.records = records
        self.result: Any = None
        super().__init__(what, how=how)


# Arguments as numbers and arrays, or one clear error.

MOST_WHOLE = 1 << 62
"""The largest number an argument may be: kernels count in 64 bits."""


def whole(name: str, value: Any, low: int = 0, most: int = MOST_WHOLE) -> int:
    """An integer from ``low`` to ``most`` (numpy's are welcome, bools and floats are not)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} = {value!r} is not a whole number") from None
    if isinstance(value, bool | np.bool_) or number < low:
        raise UsageError(f"{name} = {shown(value)} is not a whole number of at least {low}")
    if number > most:
        raise UsageError(f"{name} = {shown(value)}: no room for more than {most}")
    return number


def wholes(name: str, values: Any, low: int = 0) -> tuple[int, ...]:
    """A tuple of such integers."""
    try:
        numbers = tuple(values)
    except TypeError:
        raise UsageError(f"{name} = {values!r} is not whole numbers, one per dim") from None
    return tuple(whole(name, value, low) for value in numbers)


def array_of(name: str, value: Any) -> np.ndarray[Any, Any]:
    """``value`` as a numpy array in native byte order."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no array: {error}") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
