"""A compiled model as text: its tables, and every layer with the programs it starts."""

from __future__ import annotations

from tilewright.isa.lowering.steps import Step, Table
from tilewright.isa.lowering.tables import Lowering


def listing(lowering: Lowering) -> str:
    """Layers in order; a program that several jobs share is written once."""
    numbers: dict[int, int] = {}
    lines = [f"# {len(lowering.steps)} layers", ""]
    lines += [_table(table) for table in lowering.tables.values()]
    for step in lowering.steps:
        lines += ["", *_step(step, lowering, numbers)]
    return "\n".join(lines)


def _table(table: Table) -> str:
    shape = f"{table.dtype}[{','.join(map(str, table.shape))}]"
    if table.base:
        return f"table {table.name} {shape}: {table.base} under another shape"
    return f"table {table.name} {shape}{': placed by the host' if table.held is not None else ''}"


def _step(step: Step, lowering: Lowering, numbers: dict[int, int]) -> list[str]:
    lines = [f"layer {step.name} ({step.unit})" + (f": left to XLA, {step.fallback}" if step.fallback else "")]
    shown: list[str] = []
    for job in step.jobs:
        first = id(job.program) not in numbers
        number = numbers.setdefault(id(job.program), len(numbers))
        windows = ", ".join(f"{name} = {table}{part}" for name, table, part in job.windows)
        lines.append(f"  PE {job.pe} runs program {number}: {windows}")
        if first:
            shown += [f"  program {number}:", *(f"    {line}" for line in str(job.program).splitlines())]
    return lines + shown
