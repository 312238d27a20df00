"""Copies: elements in another order, as programs of loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.sources import Coordinate

_MOST = 16
"""Registers of one load."""
_TOGETHER, _SPACE = 8, 256
"""Runs of a thread on their way, and registers of all of them."""


@dataclass(frozen=True)
class CopyPlan:
    """``sizes`` of the atoms, slowest first; coordinates in ``$A`` (read) and ``$C`` (written), d1 first.

    Elements of ``element_bytes``; ``runs`` (first, end) of the thread's runs along the fastest atom are this element's.
    """

    sizes: tuple[int, ...]
    reads: tuple[Coordinate, ...]
    writes: tuple[Coordinate, ...]
    element_bytes: int
    config: MatrixUnitConfig
    runs: tuple[int, int] = (0, 0)

    @property
    def walk(self) -> tuple[int, int, int]:
        """Elements of a run, the dim (0: d1) along which it is read and the stride there; one where none serves.

        Stride 0: one element, repeated.
        """
        size, last = self.sizes[-1], len(self.sizes) - 1
        along = [(d, c.steps[last]) for d, c in enumerate(self.reads) if c.steps[last]] or [(0, 0)]
        back = [(d, c.steps[last]) for d, c in enumerate(self.writes) if c.steps[last]]
        if len(along) != 1 or along[0][0] > 1 or along[0][1] < 0 or len(back) != 1 or back[0][0]:
            return 1, 0, 1
        most = _MOST * 4 // self.element_bytes
        return max(n for n in range(1, min(most, size) + 1) if size % n == 0), *along[0]

    @property
    def count(self) -> int:
        """Runs in all."""
        return prod(self.sizes) // self.walk[0]


def merged(
    sizes: Sequence[int], reads: Sequence[Coordinate], writes: Sequence[Coordinate]
) -> tuple[tuple[int, ...], tuple[Coordinate, ...], tuple[Coordinate, ...]]:
    """The same with neighbouring atoms made one where every coordinate walks through both evenly; none of size 1."""
    kept: list[tuple[int, list[int]]] = []
    every = [*reads, *writes]
    for atom, size in enumerate(sizes):
        steps = [c.steps[atom] for c in every]
        if size == 1:
            continue
        if kept and all(before == own * size for before, own in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = kept[-1][0] * size, steps
        else:
            kept.append((size, steps))
    kept = kept or [(1, [0] * len(every))]
    made = [Coordinate(c.first, tuple(steps[i] for _, steps in kept)) for i, c in enumerate(every)]
    return tuple(size for size, _ in kept), tuple(made[: len(reads)]), tuple(made[len(reads) :])


@lru_cache(maxsize=512)
def copy_program(plan: CopyPlan) -> MachineProgram:
    """Every thread takes runs of the fastest atom, finds their places in ``$A`` and in ``$C``, loads and stores them.

    It has several on their way at once, so that it waits for memory once and not for each of them.
    """
    run, dim, stride = plan.walk
    (first, end), threads = plan.runs, plan.config.threads
    registers, limit = -(-run * plan.element_bytes // 4), f".n{run}" if run * plan.element_bytes % 4 else ""
    repeats = run > 1 and not stride
    loads = "ld.n1" if repeats else f"ld.t{dim}{f'.s{stride}' if stride > 1 else ''}{limit}"
    gap = plan.writes[0].steps[-1] if run > 1 else 1
    stores = f"st{f'.s{gap}' if gap > 1 else ''}{limit}"
    lines = ["segment ur3, $A", "segment ur5, $C", "tid r280", f"mov ur0, {first}", "again:"]
    together = max(1, min(_TOGETHER, _SPACE // (8 + registers), -(-(end - first) // threads)))
    for u in range(together):
        base = u * (8 + registers)
        lines += [*_numbered(u * threads, end), *_places(plan, run, base)]
        lines += [f"@p1, {loads} r{base + 8}, ur3:rf{base}:0x00, {1 if repeats else registers}"]
    for u in range(together):
        base = u * (8 + registers)
        lines += _repeated(plan.element_bytes, registers, base + 8) if repeats else []
        lines += _numbered(u * threads, end) if together > 1 else []
        lines += [f"@p1, {stores} r{base + 8}, ur5:rf{base + 4}:0x00, {registers}"]
    lines += [f"add ur0, ur0, {threads * together}", f"br.lt ur0, {end}, again", "halt"]
    return assemble("\n".join(lines), plan.config)


def _numbered(further: int, end: int) -> list[str]:
    """The number of a thread's run in r281, and whether there is one in p1."""
    more = [f"add r281, r281, {further}"] if further else []
    return ["add r281, r280, ur0", *more, f"cmp.lt p1, r281, {end}"]


def _places(plan: CopyPlan, run: int, base: int) -> list[str]:
    """Coordinates of run r281, in ``$A`` from ``base`` on, in ``$C`` from four behind it."""
    *slow, size = plan.sizes
    at, lines = 283, list[str]()
    if size == run:
        lines += [f"mov r{at}, 0"]
    else:
        lines += [f"rem r{at}, r281, {size // run}", f"mul r{at}, r{at}, {run}", f"div r281, r281, {size // run}"]
    places = {len(slow): at}
    for atom in reversed(range(len(slow))):
        at += 1
        places[atom] = at
        if atom:
            lines += [f"rem r{at}, r281, {slow[atom]}", f"div r281, r281, {slow[atom]}"]
        else:
            lines += [f"mov r{at}, r281"]
    for begin, coordinates in ((base, plan.reads), (base + 4, plan.writes)):
        for d, coordinate in enumerate(coordinates):
            lines += _sum(begin + d, coordinate, places)
    return lines


@lru_cache(maxsize=64)
def rows_program(
    rows: int, columns: int, count: int, element_bytes: int, share: tuple[int, int], config: MatrixUnitConfig
) -> MachineProgram:
    """Rows of ``$A`` [rows, columns], by the numbers in ``$I`` [count, 1] (the nearest there is), to ``$C``.

    Every thread takes a run of a row; ``share`` (first, end) of the runs are this element's.
    """
    most = _MOST * 4 // element_bytes
    run = max(n for n in range(1, min(most, columns) + 1) if columns % n == 0)
    registers, limit = -(-run * element_bytes // 4), f".n{run}" if run * element_bytes % 4 else ""
    lines = ["segment ur3, $A", "segment ur4, $I", "segment ur5, $C", "tid r280", f"mov ur0, {share[0]}", "again:"]
    lines += ["add r281, r280, ur0", f"cmp.lt p1, r281, {share[1]}", f"rem r294, r281, {columns // run}"]
    lines += [f"mul r294, r294, {run}", "mov r298, r294", f"div r299, r281, {columns // run}"]
    lines += ["mov r290, 0", "mov r291, r299", "@p1, ld r295, ur4:rf290:0x00, 1"]
    lines += ["max r295, r295, 0", f"min r295, r295, {rows - 1}"]
    lines += [f"@p1, ld{limit} r0, ur3:rf294:0x00, {registers}", f"@p1, st{limit} r0, ur5:rf298:0x00, {registers}"]
    lines += [f"add ur0, ur0, {config.threads}", f"br.lt ur0, {share[1]}, again", "halt"]
    return assemble("\n".join(lines), config)


def runs_of_rows(columns: int, count: int, element_bytes: int) -> int:
    """Runs that :func:`rows_program` deals to threads."""
    most = _MOST * 4 // element_bytes
    return count * columns // max(n for n in range(1, min(most, columns) + 1) if columns % n == 0)


def _repeated(element_bytes: int, registers: int, first: int) -> list[str]:
    """The element in the first of these registers in all of them."""
    mask, times = {1: ("0xff", "0x1010101"), 2: ("0xffff", "0x10001")}.get(element_bytes, ("", ""))
    spread = [f"and r{first}, r{first}, {mask}", f"mul r{first}, r{first}, {times}"] if mask else []
    return spread + [f"mov r{first + n}, r{first}" for n in range(1, registers)]


def _sum(register: int, coordinate: Coordinate, places: dict[int, int]) -> list[str]:
    """A coordinate from the atoms' registers."""
    terms = [(places[a], step) for a, step in enumerate(coordinate.steps) if step]
    if not terms:
        return [f"mov r{register}, {coordinate.first}"]
    (atom, step), *others = terms
    if step == 1:
        lines = [f"add r{register}, r{atom}, {coordinate.first}"]
    else:
        lines = [f"mov r{register}, {coordinate.first}", f"mad r{register}, r{atom}, {step}, r{register}"]
    return lines + [f"mad r{register}, r{a}, {s}, r{register}" for a, s in others]
