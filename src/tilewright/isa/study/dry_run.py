"""One instruction done on a copy of the machine by the machine's own function: what it would do, with nothing done."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import checked_tensor
from tilewright.isa.chip.state import Pe, map_page, new_chip
from tilewright.isa.execute.run import HANDLERS
from tilewright.isa.execute.tensor import Roles, assign_roles
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Traffic
from tilewright.isa.language.errors import ErrorRecord
from tilewright.isa.language.program import Address, Instruction
from tilewright.isa.study.heat import new_heat
from tilewright.layout import paged

Array = np.ndarray[Any, Any]
MOST = 1 << 26
"""Elements of B that one rehearsed instruction may ask for."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What one instruction did on a copy of ``pe``, which is as it was before.

    ``roles`` of an ``mm`` that is not refused; ``waits``: cycles the issue queue waited, by reason; ``times``: cycles
    of its issue and of its last result; ``lines``: accesses to every line of every tensor, as a profile has them.
    """

    pe: Pe
    roles: Roles | None
    counts: Counts
    traffic: Traffic
    errors: tuple[ErrorRecord, ...]
    waits: dict[str, int]
    times: tuple[int, int]
    lines: dict[str, Array]
    staged: bool = False

    def accesses(self) -> dict[str, dict[str, int]]:
        """Of every tensor it accesses: lines, their first and last byte, and accesses by kind."""
        accesses = {}
        for name, seen in self.lines.items():
            count, first, last = self.span(name)
            kinds = dict(zip(LINE_ACCESSES, seen.sum(axis=0).tolist(), strict=True))
            if count:
                accesses[name] = {"lines": count, "first_byte": first, "last_byte": last, **kinds}
        return accesses

    def span(self, name: str) -> tuple[int, int, int]:
        """Of a tensor: lines accessed, and the first and the last byte of them (staged: from the tensor's own)."""
        storage = self.pe.chip.storages[name]
        layout, size = storage.map, storage.element_bytes
        lines = np.flatnonzero(self.lines[name].any(axis=1))
        per_page = layout.page_elements // layout.line_elements
        if not lines.size:
            return 0, 0, 0
        width = layout.line_elements * size
        begins = storage.table.phys[lines // per_page] + lines % per_page * width
        home = storage.home if self.staged else 0
        return len(lines), int(begins.min()) - home, int(begins.max()) + width - 1 - home


def rehearse(pe: Pe, instruction: Instruction, staged: bool = False) -> Rehearsal:
    """Do it on a copy; ``staged``: of a machine that is there for this alone.

    Values are left out of an ``mm``: they are no part of what it costs.
    """
    copy = _copy(pe, instruction)
    roles = assign_roles(copy, instruction) if instruction.name == "mm" else None
    copy.next_pc = copy.pc + 1
    copy.record(instruction, HANDLERS[instruction.name](copy, instruction) or [])
    waits = {reason: n - pe.clock.queue[reason] for reason, n in copy.clock.queue.items()}
    issued = pe.clock.issue + sum(n for reason, n in waits.items() if reason not in ("issued", "A", "dma"))
    set_ = copy.clock.tokens != pe.clock.tokens
    end = max(copy.clock.issue, int(copy.clock.tokens[set_].max(initial=0)))
    assert copy.heat is not None
    return Rehearsal(
        pe,
        None if isinstance(roles, str) else roles,
        copy.counts,
        copy.traffic,
        tuple(copy.errors),
        {reason: n for reason, n in waits.items() if n and reason != "issued"},
        (issued, end),
        copy.heat,
        staged,
    )


def _copy(pe: Pe, instruction: Instruction) -> Pe:
    """Everything that the instruction may change: large memories that it only reads are shared."""
    chip, clock, name = pe.chip, pe.clock, instruction.name
    config = replace(pe.config, on_error="record", values=False)
    memo: dict[int, Any] = {id(pe.config): config, id(pe.heat): None}
    for mine in (chip.pes, pe.errors, clock.events, clock.lanes, chip.dma.transfers):
        memo[id(mine)] = []
    shared = [one for s in chip.storages.values() for one in (s.map, s.sizes, s.starts, s.pages_of, s.offsets_of)]
    shared += [pe.file] if name == "mm" else []
    shared += [chip.store] if name != "st" and instruction.spec.unit != "dma" else []
    memo |= {id(one): one for one in shared}
    copy = deepcopy(pe, memo)
    copy.chip.pes = [copy]
    copy.counts, copy.traffic, copy.heat = Counts(), Traffic(), new_heat(copy.chip.storages)
    return copy


def stage(
    instruction: Instruction,
    config: MatrixUnitConfig,
    segment: Any = None,
    columns: int | None = None,
    rows: int | None = None,
) -> tuple[Pe, bool]:
    """A machine ready for one ``mm``, and whether ``segment`` (an array like B as it is stored) is only assumed.

    All columns are on and every loader stands at its column, at k = 0: loader j at the j-th of all columns (of one dim:
    j times the depth further on). Nothing is cached; every page is there, every register was written to.
    """
    address = instruction.operands[1]
    assert isinstance(address, Address)
    columns = config.default_columns if columns is None else columns
    depth = _depth(instruction, config, segment)
    if columns * depth > MOST:
        raise UsageError(f"{columns} columns of {depth} elements", where=str(instruction), how="fewer threads")
    chip = new_chip(replace(config, pes=1))
    array = _assumed(instruction, columns, depth) if segment is None else checked_tensor("B", segment)
    storage = chip.add("B", np.broadcast_to(np.zeros((), array.dtype), array.shape))
    for page in range(storage.map.num_pages):
        map_page(chip, storage, page)
    pe = chip.pes[0]
    pe.columns, pe.rows, pe.uniform[address.segment] = columns, rows, pe.names["B"]
    if instruction.guard is not None:
        pe.predicates[:, instruction.guard.predicate] = not instruction.guard.negated
    if pe.written is not None:
        pe.written[:] = True
    _place(pe, address, int(instruction.suffix("t") or 0), depth)
    return pe, segment is None


def _depth(instruction: Instruction, config: MatrixUnitConfig, segment: Any) -> int:
    """Elements of k it covers (of a group that fits the machine)."""
    width = np.asarray(segment).dtype.itemsize if segment is not None else _element(instruction).itemsize
    return config.depth(width, min(int(instruction.suffix("kb") or 1), config.compute_threads))


def _element(instruction: Instruction) -> np.dtype[Any]:
    """The element type of B that TYPE names; bytes where it is absent."""
    name = instruction.type or "8"
    return paged((1,), f"s{name}" if name.isdigit() else name).numpy_dtype


def _assumed(instruction: Instruction, columns: int, depth: int) -> Array:
    """As much of B as the instruction covers, stored as it walks it."""
    shape = (depth, columns) if instruction.suffix("t") == "1" else (columns, depth)
    return np.broadcast_to(np.zeros((), _element(instruction)), shape)


def _place(pe: Pe, address: Address, dim: int, depth: int) -> None:
    """Coordinates of every loader, where the register file has room for them."""
    segment = pe.segment(address.segment)
    assert segment is not None
    sizes, loader = segment.sizes, np.arange(pe.config.threads, dtype=np.int64)
    at = np.zeros((len(loader), len(sizes)), np.int64)
    others = [d for d in range(len(sizes)) if d != dim]
    rest = loader * depth if not others else loader
    for d in others[:-1]:
        rest, at[:, d] = np.divmod(rest, sizes[d])
    at[:, others[-1] if others else 0] = rest
    if pe.config.offset_mode == "linear":
        at = (at * np.concatenate(([1], np.cumprod(sizes)[:-1]))).sum(axis=1, keepdims=True)
    at[:, 0] -= address.immediate
    room = pe.registers[:, address.offset : address.offset + at.shape[1]]
    room[:] = np.clip(at, -(2**31), 2**31 - 1)[:, : room.shape[1]]
