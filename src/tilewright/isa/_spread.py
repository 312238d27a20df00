"""A matrix product over several processing elements, and over B in segments that L2 can hold.

Every element gets a part of C, rows or columns, as windows of the same tensors; its program knows of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._emit import Plan, matmul_program, streamed_program
from tilewright.isa._machine import Machine
from tilewright.isa._program import Program
from tilewright.isa._run import RunResult
from tilewright.isa._work import Part, by_dim

__all__ = ["Spread", "spread"]

Array = np.ndarray[Any, Any]


@dataclass
class Spread:
    """C, a result and a program for every processing element at work, what DMA moved, and how segments came."""

    value: Array
    runs: tuple[RunResult, ...]
    programs: tuple[Program, ...]
    dma_bytes: int
    buffering: str

    def counts(self) -> Counts:
        """All elements' together."""
        return Counts(**{f.name: sum(getattr(r.counts, f.name) for r in self.runs) for f in fields(Counts)})

    def traffic(self) -> Traffic:
        """All elements' together."""
        return Traffic(**{f.name: sum(getattr(r.traffic, f.name) for r in self.runs) for f in fields(Traffic)})

    def last(self) -> RunResult:
        """The element that was done last."""
        return max(self.runs, key=lambda run: run.cycles)


def spread(
    plan: Plan,
    a: Array,
    b: Array,
    split: str | None,
    segments: int | None,
    double: bool,
    page: Sequence[int] | None,
    line: Sequence[int] | None,
    trace: bool,
) -> Spread:
    """Run it; ``b`` as it is stored. ``split``: rows or columns (None: rows if every element gets a block of them)."""
    split = _split(plan, split, segments)
    machine = Machine(plan.config, trace=trace)
    out = np.zeros((plan.m, plan.n), np.int32 if plan.signs else np.float32)
    machine.system |= {"A": a, "B": b, "C": out}
    machine.page_table("A", mapped=True)
    machine.page_table("C", mapped=True)
    if not segments:
        machine.page_table("B", page=page, line=line, mapped=True)
    parts = by_dim((plan.m, plan.n), 0 if split == "rows" else 1, plan.config.pes)
    used = {pe: found[0] for pe, found in parts.items()}
    streams = {pe: _widths(part, segments) for pe, part in used.items()} if segments else {}
    overlapped = double and bool(segments) and _two_fit(plan, streams)
    programs = []
    for pe, part in used.items():
        mine = replace(plan, m=part.size[0], n=part.size[1])
        windows: dict[str, Part | tuple[str, Part]] = {"A": Part((part.base[0], 0), (part.size[0], plan.k)), "C": part}
        if segments:
            for s, cut in enumerate(_cuts(plan, part, streams[pe])):
                machine.page_table(f"B{pe}_{s}", tensor="B", part=cut, page=page, line=line)
                windows[f"B{s}"] = (f"B{pe}_{s}", Part((0, 0), cut.size))
            programs.append(streamed_program(mine, streams[pe], overlapped))
        else:
            (windows["B"],) = _cuts(plan, part, (part.size[1],))
            programs.append(matmul_program(mine))
        machine.start(programs[-1], pe, segments=windows)
    runs = machine.run()
    how = "" if not segments else "double" if overlapped else "serial"
    of_all = tuple(runs[pe] for pe in used)
    return Spread(machine.tensor("C"), of_all, tuple(programs), machine.chip.dma.bytes("in"), how)


def _split(plan: Plan, split: str | None, segments: int | None) -> str:
    pes = plan.config.pes
    if split is None:
        split = "columns" if segments or -(-plan.m // plan.fit) < pes else "rows"
    if split not in ("rows", "columns"):
        raise UsageError(f"split {split!r}", how="rows or columns")
    if segments and split == "rows" and pes > 1:
        what = "segments of B shared by elements that do not wait for one another"
        raise UnsupportedError(what, how="split='columns'")
    return split


def _widths(part: Part, segments: int) -> tuple[int, ...]:
    """Of an element's segments of B, as even as can be."""
    return tuple(piece.size[0] for (piece,) in by_dim((part.size[1],), 0, segments).values())


def _two_fit(plan: Plan, streams: dict[int, tuple[int, ...]]) -> bool:
    """Whether L2 holds two segments of every element that has more than one."""
    several = sum(len(widths) > 1 for widths in streams.values())
    widest = max(max(widths) for widths in streams.values())
    return 2 * widest * plan.k * plan.element_bytes * max(1, several) <= plan.config.l2_bytes


def _cuts(plan: Plan, part: Part, widths: tuple[int, ...]) -> list[Part]:
    """Where the columns of each segment lie in B as it is stored."""
    first, found = part.base[1], []
    for width in widths:
        along = [(0, plan.k), (first, width)] if plan.transpose_b else [(first, width), (0, plan.k)]
        found.append(Part((along[0][0], along[1][0]), (along[0][1], along[1][1])))
        first += width
    return found
