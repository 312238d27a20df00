"""A compiled model as text: what happens when, its tables, and every layer with the programs it starts."""

from __future__ import annotations

from tilewright.isa.compiler.planning import placed, planned_stays
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.steps import Stay, Step, Table
from tilewright.isa.lowering.tables import Lowering


def listing(lowering: Lowering) -> str:
    """Layers in order; a program that several jobs share is written once."""
    numbers: dict[MachineProgram, int] = {}
    lines = [f"# {len(lowering.steps)} layers", "", schedule(lowering), ""]
    lines += [_table(table, lowering) for table in lowering.tables.values()]
    for step in lowering.steps:
        lines += ["", *_step(step, lowering, numbers)]
    return "\n".join(lines)


def schedule(lowering: Lowering) -> str:
    """Layers in order; before and after each, what becomes of tables in L2."""
    stays, lines = planned_stays(lowering), []
    for number, step in enumerate(lowering.steps):
        lines += [f"  before: {_arrival(stay)}" for stay in stays if stay.first == number]
        who = sorted({job.pe for job in step.jobs})
        where = "the host" if step.fallback else f"PE {who[0]}" if len(who) == 1 else f"PEs {who[0]} to {who[-1]}"
        reads, writes = (", ".join(dict.fromkeys(tables)) or "nothing" for tables in (step.reads, step.writes))
        lines.append(f"{number + 1} {step.name} on {where}: reads {reads}, writes {writes}")
        lines += [f"  after: {_departure(stay)}" for stay in stays if stay.last == number]
    return "\n".join(lines)


def _arrival(stay: Stay) -> str:
    place = f"bytes {stay.begin:,} to {stay.begin + stay.size:,} of L2"
    return f"{stay.table} comes to {place} by DMA" if stay.comes else f"{stay.table} has {place}"


def _departure(stay: Stay) -> str:
    return f"{stay.table} goes to device memory by DMA" if stay.leaves else f"{stay.table} is given up"


def _table(table: Table, lowering: Lowering) -> str:
    line = f"table {table.name} {placed(lowering, table).map}"
    if table.base:
        return f"{line}: {table.base} under another shape"
    return f"{line}{': placed by the host' if table.held is not None else ''}"


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
