"""Which tables stand in L2, where, and from which step to which: decided before anything runs; and the listing of it.

What a step makes is put where its users find it in L2 if there is room until the last of them; what the host placed in
device memory comes to L2 by DMA while the step before its reader runs. Three quarters of L2 are for such pages, the
rest (and what pages leave) is the cache of device memory's lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.isa.chip.segments import Storage, make_storage
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.sources import Stay, Step, Table
from tilewright.isa.lowering.tables import Lowering

SHARE = 0.75
"""Of L2, what pages may take."""


@dataclass(frozen=True)
class L2Plan:
    """What stands in L2: ``stays`` within ``room`` bytes; ``steps``: the layers' names.

    ``spans``: for tables that could stand there, the steps from the first to the last that use them; ``sizes``: bytes.
    What the host placed for the very first step could not: nothing runs while it comes.
    """

    stays: tuple[Stay, ...]
    sizes: dict[str, int]
    room: int
    steps: tuple[str, ...]
    spans: dict[str, tuple[int, int]]

    @property
    def live(self) -> tuple[int, ...]:
        """For each step, bytes of the tables that are in L2."""
        return self._bytes_per_step([(stay.first, stay.last, stay.size) for stay in self.stays])

    @property
    def left(self) -> dict[str, int]:
        """Tables that found no place at any time, with their bytes: the largest first."""
        placed = {stay.table for stay in self.stays}
        away = {name: self.sizes[name] for name in self.spans if name not in placed}
        return dict(sorted(away.items(), key=lambda item: -item[1]))

    @property
    def asked(self) -> tuple[int, ...]:
        """For each step, bytes of all tables that could be in L2."""
        return self._bytes_per_step([(*span, self.sizes[name]) for name, span in self.spans.items()])

    def _bytes_per_step(self, spans: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """The sum of the sizes of these (first step, last step, bytes) during every step."""
        steps = range(len(self.steps))
        return tuple(sum(size for first, last, size in spans if first <= step <= last) for step in steps)


def l2_plan(lowering: Lowering, sizes: dict[str, int], room: int) -> L2Plan:
    """What stands in L2, and what is left out; ``sizes``: bytes of the tables, ``room``: bytes of L2 for them.

    First fit: what is made first, and of what is brought in for a step the smaller first.
    """
    uses = _uses(lowering.steps, lowering.tables)
    roots = [lowering.reading.root(value) for value in lowering.reading.results]
    wanted = {lowering.places[root][0].table for root in roots if lowering.places.get(root)}
    asked, spans = [], {}
    for table, own in uses.items():
        size, held = sizes.get(table, 0), lowering.tables[table].held is not None
        # Of neighbouring steps that read it the first; one at the begin: nothing runs while it comes.
        firsts = [n for last, n in zip([-2, *own.reads], own.reads) if n > max(last + 1, own.begin)]
        begins = [n - 1 for n in firsts] if held else [own.begin]
        if size and begins:
            spans[table] = (begins[0], max([*own.reads, *(() if held else own.host)], default=begins[0]))
        if not 0 < size <= room:
            continue
        if held:
            asked += [(n - 1, 1, size, table, n, True, False) for n in firsts]
        else:
            host = [n for n in own.host if n > own.begin]
            last = min([*(n - 1 for n in host), max(own.reads, default=own.begin)])
            asked.append((own.begin, 0, size, table, last, False, bool(host) or table in wanted))
    stays: list[Stay] = []
    for first, _, size, table, last, comes, leaves in sorted(asked):
        if comes and any(s.table == table and s.first <= last and first <= s.last for s in stays):
            continue
        begin = _free(stays, first, last, size, room)
        if begin is not None:
            stays.append(Stay(table, begin, size, first, last, comes, leaves))
    steps = tuple(step.name for step in lowering.steps)
    return L2Plan(tuple(stays), sizes, room, steps, spans)


@dataclass
class _Use:
    """The step before which a table's values are there, the steps on the machine that read it, those on the host."""

    begin: int
    reads: list[int]
    host: list[int]


def _uses(steps: Sequence[Step], tables: dict[str, Table]) -> dict[str, _Use]:
    def base(name: str) -> str:
        return tables[name].base or name

    uses = {name: _Use(0, [], []) for name, table in tables.items() if not table.base}
    begun: set[str] = set()
    for number, step in enumerate(steps):
        for name in dict.fromkeys(map(base, step.writes)):
            if name not in begun:
                begun.add(name)
                uses[name].begin = number
            uses[name].reads.append(number)
        for name in dict.fromkeys(map(base, step.reads)):
            (uses[name].host if step.fallback else uses[name].reads).append(number)
        if step.fallback:
            made = set(step.outputs)
            for name, table in tables.items():
                if table.held is not None and table.held[0] in made:
                    uses[name].begin = number + 1
    return uses


def _free(stays: Sequence[Stay], first: int, last: int, size: int, room: int) -> int | None:
    """The lowest byte of L2 from which ``size`` bytes are free during all of these steps, or None."""
    begin = 0
    for stay in sorted((s for s in stays if s.first <= last and first <= s.last), key=lambda s: s.begin):
        if stay.begin - begin >= size:
            break
        begin = max(begin, stay.begin + stay.size)
    return begin if begin + size <= room else None


def planned_stays(lowering: Lowering) -> tuple[Stay, ...]:
    """The stays in L2 of the machine it was lowered for."""
    config = lowering.config
    l2 = config.l2_bytes // config.line_bytes * config.line_bytes
    return l2_plan(lowering, bytes_of(lowering), int(l2 * SHARE)).stays


def bytes_of(lowering: Lowering) -> dict[str, int]:
    """Bytes of every table that is no view, by its name."""
    own = [table for table in lowering.tables.values() if not table.base]
    return {table.name: placed(lowering, table).total_bytes for table in own}


def placed(lowering: Lowering, table: Table) -> Storage:
    """The storage of a table: how it lies in memory."""
    nothing = np.broadcast_to(np.zeros((), numpy_type(table.dtype)), table.shape)
    return make_storage(table.name, nothing, 0, lowering.config.line_bytes)


# A compiled model as text.


def listing(lowering: Lowering) -> str:
    """Layers in order; a program that several jobs share is written once."""
    numbers: dict[MachineProgram, int] = {}
    lines = [f"# {len(lowering.steps)} layers", "", schedule(lowering), ""]
    for table in lowering.tables.values():
        how = f": {table.base} under another shape" if table.base else ""
        how = how or (": placed by the host" if table.held is not None else "")
        lines.append(f"table {table.name} {placed(lowering, table).map}{how}")
    for step in lowering.steps:
        lines += ["", *_step(step, lowering, numbers)]
    return "\n".join(lines)


def schedule(lowering: Lowering) -> str:
    """Layers in order; before and after each, what becomes of tables in L2."""
    stays, lines = planned_stays(lowering), []
    for number, step in enumerate(lowering.steps):
        for stay in (stay for stay in stays if stay.first == number):
            place = f"bytes {stay.begin:,} to {stay.begin + stay.size:,} of L2"
            lines.append(f"  before: {stay.table} {f'comes to {place} by DMA' if stay.comes else f'has {place}'}")
        who = sorted({job.pe for job in step.jobs})
        where = "the host" if step.fallback else f"PE {who[0]}" if len(who) == 1 else f"PEs {who[0]} to {who[-1]}"
        reads, writes = (", ".join(dict.fromkeys(tables)) or "nothing" for tables in (step.reads, step.writes))
        lines.append(f"{number + 1} {step.name} on {where}: reads {reads}, writes {writes}")
        for stay in (stay for stay in stays if stay.last == number):
            lines.append(f"  after: {stay.table} {'goes to device memory by DMA' if stay.leaves else 'is given up'}")
    return "\n".join(lines)


def _step(step: Step, lowering: Lowering, numbers: dict[MachineProgram, int]) -> list[str]:
    lines = [f"layer {step.name} ({step.unit})" + (f": left to XLA, {step.fallback}" if step.fallback else "")]
    shown: list[str] = []
    for job in step.jobs:
        first = job.program not in numbers
        number = numbers.setdefault(job.program, len(numbers))
        windows = ", ".join(f"{name} = {table}{part}" for name, table, part in job.windows)
        lines.append(f"  PE {job.pe} runs program {number}: {windows}")
        if first:
            shown += [f"  program {number}:", *(f"    {line}" for line in str(job.program).splitlines())]
    return lines + shown
