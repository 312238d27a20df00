"""A matrix product over several processing elements, and over B in segments that L2 can hold.

Every element gets a part of C, rows or columns, as windows of the same tensors; its program knows of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
        return Counts.together(run.counts for run in self.runs)

    def traffic(self) -> Traffic:
        """All elements' together."""
        return Traffic.together(run.traffic for run in self.runs)

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
    watch: Callable[[Counts], None] | None = None,
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
    cuts = {pe: _cuts(plan, used[pe], widths) for pe, widths in streams.items()}
    page = page if page is not None or not segments else _page(plan, cuts, line)
    for pe, found in cuts.items():
        for s, cut in enumerate(found):
            machine.page_table(f"B{pe}_{s}", tensor="B", part=cut, page=page, line=line)
    overlapped = bool(segments) and _overlapped(machine, cuts, double)
    programs = []
    for pe, part in used.items():
        mine = replace(plan, m=part.size[0], n=part.size[1])
        windows: dict[str, Part | tuple[str, Part]] = {"A": Part((part.base[0], 0), (part.size[0], plan.k)), "C": part}
        if segments:
            windows |= {f"B{s}": (f"B{pe}_{s}", Part((0, 0), cut.size)) for s, cut in enumerate(cuts[pe])}
            programs.append(streamed_program(mine, streams[pe], overlapped))
        else:
            (windows["B"],) = _cuts(plan, part, (part.size[1],))
            programs.append(matmul_program(mine))
        machine.start(programs[-1], pe, segments=windows)
    runs = machine.run(watch)
    how = "" if not segments else "double" if overlapped else "serial"
    of_all = tuple(runs[pe] for pe in used)
    return Spread(machine.tensor("C"), of_all, tuple(programs), machine.chip.dma.bytes("in"), how)


def _split(plan: Plan, split: str | None, segments: int | None) -> str:
    pes = plan.config.pes
    if split is None:
        split = "columns" if segments or -(-plan.m // plan.fit) < pes else "rows"
    if segments and split == "rows" and pes > 1:
        what = "segments of B shared by elements that do not wait for one another"
        raise UnsupportedError(what, how="split='columns'")
    return split


def _widths(part: Part, segments: int) -> tuple[int, ...]:
    """Of an element's segments of B, as even as can be."""
    return tuple(piece.size[0] for (piece,) in by_dim((part.size[1],), 0, segments).values())


def _page(plan: Plan, cuts: dict[int, list[Part]], line: Sequence[int] | None) -> tuple[int, ...]:
    """One page for the widest segment: all pages are of one size then, and what one leaves in L2 the next one fits."""
    sizes = [max(cut.size[d] for found in cuts.values() for cut in found) for d in range(2)]
    lines = line or (1, max(1, plan.config.line_bytes // plan.element_bytes))
    return tuple(-(-size // each) * each for size, each in zip(sizes, lines, strict=True))


def _overlapped(machine: Machine, cuts: dict[int, list[Part]], double: bool) -> bool:
    """Whether L2 holds two segments of every element that has more than one. Raises where it does not hold one."""
    storages, room = machine.chip.storages, machine.chip.l2_end
    sizes = {pe: [storages[f"B{pe}_{s}"].total_bytes for s in range(len(found))] for pe, found in cuts.items()}
    one = sum(max(each) for each in sizes.values())
    two = sum(max((a + b for a, b in pairwise(each)), default=each[0]) for each in sizes.values())
    page = next(iter(storages[f"B{pe}_0"].page_bytes for pe in cuts))
    room -= room % page
    if one > room:
        what = f"segments of B take {one} bytes of L2 at once, which has room for {room} in pages of {page}"
        raise UsageError(what, how="more segments=, a larger l2_bytes, smaller page=, or fewer pes")
    return double and two <= room


def _cuts(plan: Plan, part: Part, widths: tuple[int, ...]) -> list[Part]:
    """Where the columns of each segment lie in B as it is stored."""
    first, found = part.base[1], []
    for width in widths:
        along = [(0, plan.k), (first, width)] if plan.transpose_b else [(first, width), (0, plan.k)]
        found.append(Part((along[0][0], along[1][0]), (along[0][1], along[1][1])))
        first += width
    return found
