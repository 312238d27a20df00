"""What a compiled model is made of: tables in memory, and steps in order, each some programs over windows of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.hlo import Node, Value
from tilewright.isa.chip.parts import Part
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.sources import Groups, Source
from tilewright.isa.multiply.matmul import MatmulPlan

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """A page table: ``shape`` as numpy says it and the machine's element type; ``base``: the table it is a view of.

    A view names the same bytes with other dims, which is possible where rows are padded alike.
    ``held``: the value that the host puts there before the first step, as these groups of its dims; None if a step
    writes it. ``weights``: of a convolution, arranged for the threads of this plan.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    base: str = ""
    held: tuple[Value, Groups] | None = None
    weights: MatmulPlan | None = None


@dataclass(frozen=True)
class Job:
    """A program for a processing element, and the windows it sees: (its name for it, the table, which part)."""

    pe: int
    program: MachineProgram
    windows: tuple[tuple[str, str, Part], ...]


@dataclass
class Step:
    """One layer: on the machine (``jobs``), or on the host by XLA (``fallback`` says why).

    ``unit``: matrix, vector, copy or host. ``nodes`` compute ``outputs`` of ``inputs``: what XLA is asked to check it.
    ``reads`` and ``writes``: tables, views by their own names. ``operations``: arithmetic, a multiply-add as two.
    """

    name: str
    unit: str
    nodes: tuple[Node, ...] = ()
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    jobs: tuple[Job, ...] = ()
    fallback: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    operations: int = 0
    expected: dict[str, int] = field(default_factory=dict)
    copied: tuple[Source, str, Groups] | None = None


@dataclass(frozen=True)
class Stay:
    """A table in L2 from byte ``begin`` on, from before step ``first`` until after step ``last``.

    ``comes``: by DMA, as the host had placed it; else a step makes it there. ``leaves``: by DMA, as somebody wants it
    in device memory; else it is given up.
    """

    table: str
    begin: int
    size: int
    first: int
    last: int
    comes: bool = False
    leaves: bool = False
