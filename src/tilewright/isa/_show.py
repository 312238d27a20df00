"""State that prints on a screen and compares field by field."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tilewright.isa._state import Chip, Pe

__all__ = ["same_state", "show_chip", "show_pe", "show_run"]

_APART = frozenset({"chip", "events", "lanes"})
"""Fields that say nothing of their own: the way back to the chip, and the timeline."""


def same_state(one: Any, other: Any) -> bool:
    """Whether two values of the machine's state are equal, arrays and nested dataclasses included.

    >>> same_state({"a": np.arange(3)}, {"a": np.arange(3)})
    True
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        # Two NaNs are as good as one another where their bits agree.
        return bool((one == other).all()) or (one.dtype.kind not in "iub" and one.tobytes() == other.tobytes())
    if is_dataclass(one) and not isinstance(one, type):
        names = [f.name for f in fields(one) if f.compare and f.name not in _APART]
        return all(same_state(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    return bool(one == other)


def show_pe(pe: Pe) -> str:
    """A processing element on a screen: where it is, what its registers hold, what it counted."""
    state = "halted" if pe.halted else f"at barrier {pe.barrier[0]}" if pe.barrier is not None else "running"
    lines = [f"PE {pe.number}: {state}, pc {pe.pc}, {pe.executed} instructions, {pe.clock.cycles} cycles"]
    rows = "as many as fit" if pe.rows is None else pe.rows
    lines.append(f"  mm: {pe.columns} columns, rows: {rows}")
    lines += _rows("uniform", [(f"ur{n}", value) for n, value in enumerate(pe.uniform) if value])
    used = np.flatnonzero(pe.registers.any(axis=0)).tolist()
    lines += _rows("registers", [(f"r{n}", _threads(pe.registers[:, n])) for n in used[:16]])
    if len(used) > 16:
        lines.append(f"    ... and {len(used) - 16} more registers that are not 0")
    some = np.flatnonzero(pe.predicates.any(axis=0)).tolist()
    lines += _rows("predicates", [(f"p{n}", _bits(pe.predicates[:, n])) for n in some])
    waiting = [n for n in range(pe.config.registers) if pe.clock.tokens[n] > pe.clock.issue]
    if waiting:
        lines.append(f"  tokens pending: {_ranges('r', waiting)}")
    lines += _rows("segments", [(f"{s.handle}", _segment(s)) for s in pe.segments.values()])
    lines += [f"  error {record}" for record in pe.errors[:5]]
    return "\n".join(lines)


def show_chip(chip: Chip) -> str:
    """The chip on a screen: memories, page tables, transfers, processing elements."""
    used = sum(chip.l2_pages.values())
    device = len(chip.store) - chip.l2_end
    lines = [f"device memory: {device} bytes; L2 pages: {used} of {chip.l2_end} bytes"]
    for storage in chip.storages.values():
        states = storage.table.entries()
        lines.append(
            f"{storage.name}: {storage.dtype}{list(storage.map.shape)}, {len(states)} pages of {storage.page_bytes}"
        )
        lines += [f"  {entry}" for entry in states[:8]]
        if len(states) > 8:
            lines.append(f"  ... and {len(states) - 8} more")
    lines += [f"dma: {transfer}" for transfer in chip.dma.transfers[-8:]]
    return "\n".join([*lines, *(str(pe) for pe in chip.pes)])


def show_run(result: Any) -> str:
    """What a run or a kernel left, on a screen: its size, time and where it went, counts, errors; values are apart."""
    value = getattr(result, "value", None)
    lines = [] if value is None else [f"value: {value.dtype}{list(value.shape)}"]
    executed = f"{result.executed} instructions, " if hasattr(result, "executed") else ""
    math = f", {result.math_cycles} of them math" if hasattr(result, "math_cycles") else ""
    lines.append(f"{executed}{result.cycles} cycles{math}")
    accounts = {name: getattr(result, name, {}) for name in ("stalls", "queue")}
    accounts["counts"] = result.counts.to_dict()
    for title, numbers in accounts.items():
        shown = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
        lines += [f"{title}: {shown}"] if shown else []
    lines += [f"error {record}" for record in result.errors[:5]]
    if len(result.errors) > 5:
        lines.append(f"... and {len(result.errors) - 5} more errors")
    return "\n".join(lines)


def _rows(title: str, rows: list[tuple[str, Any]]) -> list[str]:
    return [f"  {title}:", *(f"    {name:6} {value}" for name, value in rows)] if rows else []


def _threads(values: np.ndarray[Any, Any]) -> str:
    shown = " ".join(str(v) for v in values[:8].tolist())
    return shown + (" ..." if len(values) > 8 else "")


def _bits(values: np.ndarray[Any, Any]) -> str:
    shown = "".join("1" if v else "0" for v in values[:64].tolist())
    return shown + ("..." if len(values) > 64 else "")


def _segment(segment: Any) -> str:
    window = " x ".join(f"{b}..{b + s - 1}" for b, s in zip(segment.base.tolist(), segment.sizes.tolist(), strict=True))
    return f"{segment.name or '(made by the program)'} of {segment.storage.name}: {window} (d1 first)"


def _ranges(kind: str, numbers: list[int]) -> str:
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(f"{kind}{a}" if a == b else f"{kind}{a}..{kind}{b}" for a, b in found)
