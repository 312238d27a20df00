"""Who does what in an ``mm``: loaders and columns, row groups, product registers, element types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.isa._memory import offset_registers
from tilewright.isa._operands import number, threads_on
from tilewright.isa._program import Address, Instruction
from tilewright.isa._segments import Segment
from tilewright.isa._state import Pe

__all__ = ["Roles", "assign_roles", "columns_of", "product_window", "source_registers"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Roles:
    """Who does what in one ``mm``.

    ``type_a``, ``type_b``: element types; ``a``, ``first``: registers of A and of the first product.
    ``groups``: (active rows, ka, kb, thread strides of a row, of qa and of qb, qb of the thread that keeps the sum),
    counted from the first compute thread. ``chunk``: elements of A per thread; ``depth``: of k per instruction.
    ``on``: columns that take part; ``refused``: columns whose product register is out of range. ``part``, ``index``: qa
    and i of every column; ``sequence``: the columns that take part, in the order of their steps ``step_of``.
    """

    segment: Segment
    address: Address
    a: int
    first: int
    type_a: str
    type_b: str
    groups: tuple[int, int, int, int, int, int, int]
    on: Array
    refused: Array
    part: Array
    index: Array
    sequence: Array
    step_of: Array
    chunk: int
    depth: int

    @property
    def columns(self) -> int:
        """n, the columns of the instruction."""
        return len(self.on)

    @property
    def local(self) -> int:
        """c, the columns of a part."""
        return -(-self.columns // self.groups[1])

    @property
    def padded(self) -> int:
        """The columns rounded up to ka equal parts."""
        return self.groups[1] * self.local

    @property
    def steps(self) -> int:
        """Math issues: steps with a column that takes part."""
        at = self.step_of
        return int(np.count_nonzero(at[1:] != at[:-1])) + 1 if len(at) else 0


def _types(segment: Segment, instruction: Instruction) -> tuple[str, str] | None:
    """Element types of A and B, or None where TYPE does not fit the segment."""
    own, written = segment.dtype, instruction.type
    signs = instruction.suffix("a"), instruction.suffix("b")
    if written is not None and not written.isdigit():
        return (written, written) if own == written else None
    if own[0] not in "su":  # a float segment: TYPE is absent, and no sign is
        return (own, own) if written is None and signs == (None, None) else None
    width = own[1:]
    if written is not None and written != width:
        return None
    return f"{signs[0] or own[0]}{width}", f"{signs[1] or own[0]}{width}"


@lru_cache(maxsize=256)
def columns_of(ka_split: str, n: int, ka: int) -> tuple[Array, Array, Array]:
    """qa and i of every column, and the columns in the order of their steps (part by part in a step)."""
    j, c = np.arange(n), -(-n // ka)
    part, index = (j % ka, j // ka) if ka_split == "interleaved" else (j // c, j % c)
    return part, index, np.lexsort((part, index))


def source_registers(pe: Pe, segment: Segment, address: Address, a: int) -> list[int]:
    """An instruction's own: those of A, and the coordinates."""
    return [
        *range(a, a + pe.config.a_registers),
        *range(address.offset, address.offset + offset_registers(pe, segment)),
    ]


def product_window(pe: Pe, first: int, sources: list[int]) -> tuple[int, int]:
    """The registers products may lie in: (low, high), high not among them."""
    if pe.config.acc_window is not None:
        return pe.config.acc_window
    return first, min([pe.config.registers, *(s for s in sources if s >= first)])


def assign_roles(pe: Pe, instruction: Instruction) -> Roles | str:
    """Resolve operands, or say which kind of error keeps the whole instruction from running."""
    c = pe.config
    address = instruction.operands[1]
    assert isinstance(address, Address)
    first, a = number(instruction.operands[0]), number(instruction.operands[2])
    ka, kb = (int(instruction.suffix(key) or 1) for key in ("ka", "kb"))
    segment = pe.segment(address.segment)
    if segment is None:
        return "unknown_segment"
    if ka * kb > c.compute_threads:
        return "group_too_large"
    sources = source_registers(pe, segment, address, a)
    if max(sources) >= c.registers:
        return "operand_out_of_range"
    types = _types(segment, instruction)
    if types is None or int(instruction.suffix("t") or 0) >= len(segment.sizes):
        return "type_mismatch"
    low, high = product_window(pe, first, sources)
    part, index, order = columns_of(c.ka_split, pe.columns, ka)
    on = np.ones(pe.columns, bool) if c.pred_scope == "compute" else threads_on(pe, instruction)[: pe.columns]
    if c.column_numbering == "compact" and not on.all():
        index, order = _compacted(part, on, ka)
    fits = (first + index >= low) & (first + index < high)
    taken = on & fits
    sequence = order if taken.all() else order[taken[order]]
    groups = _groups(pe, ka, kb)
    step_of = index[sequence] // c.columns_per_step
    chunk, depth = c.chunk(segment.element_bytes, kb), c.depth(segment.element_bytes, kb)
    columns = (taken, on & ~fits, part, index, sequence, step_of)
    return Roles(segment, address, a, first, *types, groups, *columns, chunk, depth)


def _compacted(part: Array, on: Array, ka: int) -> tuple[Array, Array]:
    """i of every column when those that are off leave no gap, and the columns in the order of their steps."""
    index = np.zeros(len(part), np.int64)
    for qa in range(ka):
        own = part == qa
        index[own] = np.cumsum(on[own]) - on[own]
    return index, np.lexsort((part, index))


def _groups(pe: Pe, ka: int, kb: int) -> tuple[int, int, int, int, int, int, int]:
    """(active rows, ka, kb, thread strides of a row, of qa and of qb, qb of the thread that keeps the sum)."""
    c, fit = pe.config, pe.config.compute_threads // (ka * kb)
    strides = (1, kb * fit, fit) if c.group_order == "strided" else (ka * kb, kb, 1)
    return fit if pe.rows is None else min(fit, pe.rows), ka, kb, *strides, kb - 1 if c.kb_acc == "last" else 0
