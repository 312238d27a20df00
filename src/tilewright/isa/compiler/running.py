"""A compiled model on one chip: the host fills memory, starts every step's programs, and takes the results.

:class:`ChipRun` needs tables and steps only, as a saved model has them; :class:`Execution` runs what was just lowered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo import Value, array_dtype
from tilewright.isa.chip.segments import Storage, make_storage
from tilewright.isa.chip.state import make_page, map_page, move_in, unmap_page
from tilewright.isa.compiler.planning import planned_stays
from tilewright.isa.compiler.report import Layer, MachineReport
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic, energy, math_cycles_at_least
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Groups, Stay, Step, Table
from tilewright.isa.lowering.tables import Lowering, apply_layout, folded_array, unfolded_array
from tilewright.isa.multiply.matmul import stored_weights

Array = np.ndarray[Any, Any]


@dataclass
class ChipRun:
    """A run of ``steps`` over ``tables``; ``stays``: what stands in L2 from which step to which."""

    tables: Mapping[str, Table]
    steps: Sequence[Step]
    config: MatrixUnitConfig
    machine: Machine = field(init=False)
    stays: tuple[Stay, ...] = ()
    layers: list[Layer] = field(default_factory=list)
    host_bytes: int = 0

    def fill(self, contents: Mapping[str, Array]) -> dict[str, Storage]:
        """Memory as it stands before the first step: these arrays in their tables, zeros in the others."""
        self.machine = Machine(self.config)
        chip = self.machine.chip
        tensors: list[tuple[str, Array, dict[str, Any]]] = []
        for table in self.tables.values():
            if not table.base:
                zeros = np.broadcast_to(np.zeros((), numpy_type(table.dtype)), table.shape)
                tensors.append((table.name, contents.get(table.name, zeros), {}))
        self.machine.link(sum(array.nbytes for array in contents.values()))
        for storage in chip.add_all(tensors) if tensors else []:
            for page in range(storage.map.num_pages):
                map_page(chip, storage, page)
        for table in self.tables.values():
            if table.base:
                base = chip.storages[table.base]
                nothing = np.broadcast_to(np.zeros((), numpy_type(table.dtype)), table.shape)
                view = make_storage(table.name, nothing, base.home, self.config.line_bytes)
                chip.storages[table.name] = replace(view, table=base.table)
        return chip.storages

    def place(self, table: str, array: Array) -> None:
        """Let the host write a table in device memory."""
        chip = self.machine.chip
        storage = chip.storages[table]
        into = chip.store[storage.home : storage.home + storage.total_bytes]
        storage.map.pack(array, out=into.view(storage.map.numpy_dtype))
        chip.forget(storage.home, storage.total_bytes)
        self.machine.link(storage.total_bytes)

    def fetch(self, table: str, shape: Sequence[int], groups: Groups, dtype: np.dtype[Any]) -> Array:
        """Let the host read a value of this shape and type from the table that holds it; ``groups``: of its dims."""
        array = self.machine.tensor(table)
        self.machine.link(array.nbytes)
        return unfolded_array(array, shape, groups, dtype)

    def arrivals(self, number: int) -> None:
        """Bring tables to L2, or give them room there, before a step."""
        machine, chip = self.machine, self.machine.chip
        for stay in self.stays:
            if stay.first == number:
                storage = chip.storages[stay.table]
                for page in range(storage.map.num_pages):
                    begin = stay.begin + page * storage.page_bytes
                    if stay.comes:
                        unmap_page(chip, storage, page)
                        move_in(chip.pes[0], storage, page, machine.now, begin)
                    else:
                        make_page(chip, storage, page, begin)

    def departures(self, number: int) -> None:
        """Write tables back from L2, or give up their room, after a step."""
        machine, chip = self.machine, self.machine.chip
        for stay in self.stays:
            if stay.last == number:
                storage = chip.storages[stay.table]
                if stay.leaves:
                    machine.dma_out(stay.table)
                for page in range(storage.map.num_pages):
                    unmap_page(chip, storage, page)
                    map_page(chip, storage, page)

    def step(self, number: int, check: Callable[[Step], None] | None = None) -> None:
        """Run and count one step; ``check`` is called before any of its values is given up."""
        step = self.steps[number]
        machine, pes = self.machine, self.machine.chip.pes
        before = self._counted()
        started, errors, wall = machine.now, sum(len(pe.errors) for pe in pes), time.perf_counter()
        if step.fallback:
            self.on_host(step)
        self.arrivals(number)
        for job in step.jobs:
            windows = {name: (table, part) for name, table, part in job.windows}
            machine.start(job.program, job.pe, windows)
        if step.jobs:
            machine.run()
        if check is not None:
            check(step)
        self.departures(number)
        counts, traffic, moved = self._counted()
        moved, traffic = moved - before[2], traffic - before[1]
        cycles = machine.now - started if step.jobs else 0
        busy = math_cycles_at_least(moved, self.config)
        self.layers.append(
            Layer(
                name=step.name,
                unit=step.unit,
                cycles=cycles,
                counts=counts - before[0],
                fallback=step.fallback,
                moved=moved,
                energy_pj=sum(energy(moved, traffic, self.config).values()),
                math_utilisation=busy / (cycles * self.config.pes) if cycles else 0.0,
                operations=step.operations,
                errors=tuple(str(e) for pe in pes for e in pe.errors)[errors:],
                seconds=time.perf_counter() - wall,
            )
        )

    def _counted(self) -> tuple[Counts, Traffic, Moved]:
        pes = self.machine.chip.pes
        moved = Moved.together(pe.clock.port.moved for pe in pes)
        return Counts.together(pe.counts for pe in pes), Traffic.together(pe.traffic for pe in pes), moved

    def on_host(self, step: Step) -> None:
        """Compute a step that the machine does not."""
        raise NotImplementedError

    def report(self) -> MachineReport:
        moved = tuple(self.machine.chip.dma.transfers)
        return MachineReport(tuple(self.layers), self.config, self.machine.now, self.host_bytes, moved)


Watch = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and the name of the one that begins."""


class Execution(ChipRun):
    """A run of a model that was just lowered, with the values the host has."""

    def __init__(self, lowering: Lowering, config: MatrixUnitConfig) -> None:
        super().__init__(lowering.tables, lowering.steps, config)
        self.lowering = lowering
        self.values: dict[Value, Array] = {}

    def begin(self, arguments: Sequence[Array]) -> None:
        """Fill memory as it is before the first step."""
        reading = self.lowering.reading
        self.values = {**reading.constants, **dict(zip(reading.block.arguments, arguments, strict=True))}
        self.fill(self.contents())
        self.stays = planned_stays(self.lowering)

    def contents(self) -> dict[str, Array]:
        """The arrays that the host puts into tables before the first step."""
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
            return apply_layout(node, self.value(node.operands[0]))
        for source in self.lowering.places.get(value, []):
            if source.table in self.machine.chip.storages:
                self.values[value] = self.fetched(value, source.table, self.lowering.groups[source.table])
                return self.values[value]
        raise UsageError(f"{value!r} is nowhere")

    def fetched(self, value: Value, table: str, groups: Groups) -> Array:
        """Fetch a value over the host's link from the table that holds it."""
        return self.fetch(table, value.sizes, groups, array_dtype(value))

    def on_host(self, step: Step) -> None:
        """Let XLA compute a step, from what the machine made."""
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
