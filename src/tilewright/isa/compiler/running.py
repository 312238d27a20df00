"""A compiled model on one chip: the host fills memory, starts every step's programs, and takes the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo import Value, array_dtype
from tilewright.isa.compiler.chip_run import ChipRun
from tilewright.isa.compiler.planning import planned_stays
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Groups
from tilewright.isa.lowering.steps import Step, Table
from tilewright.isa.lowering.tables import Lowering, folded_array, named, unfolded_array
from tilewright.isa.multiply.conv import stored_weights

Array = np.ndarray[Any, Any]
Watch = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and the name of the one that begins."""


class Execution(ChipRun):
    """A run of a compiled model: with the values the host has."""

    def __init__(self, lowering: Lowering, config: MatrixUnitConfig) -> None:
        super().__init__(lowering.tables, lowering.steps, config)
        self.lowering = lowering
        self.values: dict[Value, Array] = {}

    def begin(self, arguments: Sequence[Array]) -> None:
        """Memory as it stands before the first step."""
        reading = self.lowering.reading
        self.values = {**reading.constants, **dict(zip(reading.block.arguments, arguments, strict=True))}
        self.fill(self.contents())
        self.planned(planned_stays(self.lowering))

    def contents(self) -> dict[str, Array]:
        """What the host puts into tables before the first step."""
        tables, root = self.lowering.tables.values(), self.lowering.reading.root
        held = [table for table in tables if table.held is not None and root(table.held[0]) in self.values]
        return {table.name: self._placed(table) for table in held}

    def _placed(self, table: Table) -> Array:
        """A value as the host puts it into its table."""
        assert table.held is not None
        value, groups = table.held
        array = folded_array(self.value(value), groups)
        return array if table.weights is None else stored_weights(table.weights, array)

    def value(self, value: Value) -> Array:
        """A value as the host sees it: its own, named otherwise, or fetched from the machine."""
        if value in self.values:
            return self.values[value]
        node = value.operation
        if node is not None and node.name in LAYOUT:
            return named(node, self.value(node.operands[0]))
        for source in self.lowering.places.get(value, []):
            if source.table in self.machine.chip.storages:
                self.values[value] = self.fetched(value, source.table, self.lowering.groups[source.table])
                return self.values[value]
        raise UsageError(f"{value!r} is nowhere")

    def fetched(self, value: Value, table: str, groups: Groups) -> Array:
        """A value from the table that holds it."""
        array = self.machine.tensor(table)
        self.machine.link(array.nbytes)
        return unfolded_array(array, value.sizes, groups, array_dtype(value))

    def on_host(self, step: Step) -> None:
        """XLA computes it, of what the machine made."""
        arrays = [self.value(v) for v in step.inputs]
        made = self.lowering.reading.xla.of(step.nodes, step.inputs, step.outputs, arrays)
        self.values.update(zip(step.outputs, made, strict=True))
        self.host_bytes += sum(a.nbytes for a in (*arrays, *made))
        for table in self.lowering.tables.values():
            if table.held is not None and self.lowering.reading.root(table.held[0]) in step.outputs:
                self.place(table.name, self._placed(table))


def checked_arguments(lowering: Lowering, arguments: Sequence[Any]) -> list[Array]:
    """The program's arguments as arrays of its types."""
    expected = lowering.reading.block.arguments
    if len(arguments) != len(expected):
        raise UsageError(f"{len(arguments)} arrays for a program of {len(expected)} arguments")
    arrays = []
    for number, (given, value) in enumerate(zip(arguments, expected, strict=True)):
        array = np.asarray(given)
        if array.shape != value.sizes or array.dtype != array_dtype(value):
            problem = f"argument {number} is {array.dtype}{list(array.shape)}"
            raise UsageError(problem, how=f"this program takes {value!r}")
        arrays.append(array)
    return arrays
