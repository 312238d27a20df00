"""A compiled model on one chip: the host fills memory, starts every step's programs, and takes the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo import Value, array_dtype
from tilewright.isa.chip.segments import make_storage
from tilewright.isa.chip.state import Cache, make_page, map_page, move_in, unmap_page
from tilewright.isa.compiler.planning import SHARE, Stay, bytes_of, plan_stays
from tilewright.isa.compiler.result import Layer, MachineReport
from tilewright.isa.execute.machine import Machine
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.energy import energy, math_cycles_at_least
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Groups
from tilewright.isa.lowering.steps import Step, Table
from tilewright.isa.lowering.tables import Lowering, folded_array, named
from tilewright.isa.multiply.conv import stored_weights

Array = np.ndarray[Any, Any]
Watch = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and the name of the one that begins."""


@dataclass
class Execution:
    """One run: the machine, and the values the host has."""

    lowering: Lowering
    config: MatrixUnitConfig
    machine: Machine = field(init=False)
    values: dict[Value, Array] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    host_bytes: int = 0
    stays: tuple[Stay, ...] = ()

    def begin(self, arguments: Sequence[Array]) -> None:
        """Memory as it stands before the first step."""
        reading = self.lowering.reading
        self.values = {**reading.constants, **dict(zip(reading.block.arguments, arguments, strict=True))}
        self.machine = Machine(self.config)
        chip = self.machine.chip
        tensors: list[tuple[str, Array, dict[str, Any]]] = []
        bases = [table for table in self.lowering.tables.values() if not table.base]
        for table in bases:
            if table.held is not None and reading.root(table.held[0]) in self.values:
                array = self._placed(table)
            else:
                array = np.broadcast_to(np.zeros((), _numpy_type(table.dtype)), table.shape)
            tensors.append((table.name, array, {}))
        for storage in chip.add_all(tensors) if tensors else []:
            for page in range(storage.map.num_pages):
                map_page(chip, storage, page)
        for table in self.lowering.tables.values():
            if table.base:
                base = chip.storages[table.base]
                nothing = np.broadcast_to(np.zeros((), _numpy_type(table.dtype)), table.shape)
                view = make_storage(table.name, nothing, base.home, self.config.line_bytes)
                chip.storages[table.name] = replace(view, table=base.table)
        self._plan()

    def _plan(self) -> None:
        """What stands in L2, and when; the lines' cache has the rest of it."""
        chip, c = self.machine.chip, self.config
        room = int(chip.l2_end * SHARE)
        self.stays = plan_stays(self.lowering, bytes_of(chip.storages, self.lowering.tables), room)
        pages = max((stay.begin + stay.size for stay in self.stays), default=0)
        lines = (chip.l2_end - pages) // c.line_bytes
        ways = c.l2_ways
        chip.l2 = Cache.of(len(chip.store) // c.line_bytes, lines // ways * ways if ways else lines, ways)

    def arrivals(self, number: int) -> None:
        """What comes to L2, or is given room there, before a step."""
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
        """What is written back, or given up, after a step."""
        machine, chip = self.machine, self.machine.chip
        for stay in self.stays:
            if stay.last == number:
                storage = chip.storages[stay.table]
                if stay.leaves:
                    machine.dma_out(stay.table)
                for page in range(storage.map.num_pages):
                    unmap_page(chip, storage, page)
                    map_page(chip, storage, page)

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
        raw = self.machine.tensor(table)
        order = [d for group in groups for d in group]
        order += [d for d in range(len(value.sizes)) if d not in order]
        array = raw.reshape([value.sizes[d] for d in order]).transpose(np.argsort(order))
        return (array != 0 if array_dtype(value).kind == "b" else array.view(array_dtype(value))).copy()

    def step(self, number: int, check: Callable[[Step], None] | None = None) -> None:
        """One step, counted; ``check`` sees its values before any are given up."""
        step = self.lowering.steps[number]
        machine, pes = self.machine, self.machine.chip.pes
        before = [_snapshot(pe) for pe in pes]
        started, errors, wall = machine.now, sum(len(pe.errors) for pe in pes), time.perf_counter()
        if step.fallback:
            self._on_host(step)
        self.arrivals(number)
        for job in step.jobs:
            windows = {name: (table, part) for name, table, part in job.windows}
            machine.start(job.program, job.pe, windows, dict(job.uniform))
        if step.jobs:
            machine.run()
        if check is not None:
            check(step)
        self.departures(number)
        counted = [_since(pe, old) for pe, old in zip(pes, before, strict=True)]
        counts = Counts.together(one[0] for one in counted)
        traffic = Traffic.together(one[1] for one in counted)
        moved = Moved.together(one[2] for one in counted)
        cycles = machine.now - started if step.jobs else 0
        busy = math_cycles_at_least(moved, self.config)
        self.layers.append(
            Layer(
                name=step.name,
                unit=step.unit,
                cycles=cycles,
                counts=counts,
                fallback=step.fallback,
                moved=moved,
                energy_pj=sum(energy(moved, traffic, self.config).values()),
                math_utilisation=busy / (cycles * self.config.pes) if cycles else 0.0,
                operations=step.operations,
                errors=tuple(str(e) for pe in pes for e in pe.errors)[errors:],
                seconds=time.perf_counter() - wall,
            )
        )

    def _on_host(self, step: Step) -> None:
        arrays = [self.value(v) for v in step.inputs]
        made = self.lowering.reading.xla.of(step.nodes, step.inputs, step.outputs, arrays)
        self.values.update(zip(step.outputs, made, strict=True))
        self.host_bytes += sum(a.nbytes for a in (*arrays, *made))
        for table in self.lowering.tables.values():
            if table.held is not None and self.lowering.reading.root(table.held[0]) in step.outputs:
                storage = self.machine.chip.storages[table.name]
                into = self.machine.chip.store[storage.home : storage.home + storage.total_bytes]
                storage.map.pack(self._placed(table), out=into.view(storage.map.numpy_dtype))
                self.machine.chip.forget(storage.home, storage.total_bytes)

    def report(self) -> MachineReport:
        """What was counted."""
        return MachineReport(tuple(self.layers), self.config, self.machine.now, self.host_bytes)


def _numpy_type(dtype: str) -> Any:
    from tilewright.layout import parse

    return parse(f"{dtype}[]").numpy_dtype  # type: ignore[union-attr]


def _snapshot(pe: Any) -> tuple[dict[str, int], ...]:
    return pe.counts.to_dict(), pe.traffic.to_dict(), pe.clock.port.moved.to_dict()


def _since(pe: Any, before: tuple[dict[str, int], ...]) -> tuple[Counts, Traffic, Moved]:
    now = _snapshot(pe)
    counts, traffic, moved = ({k: new[k] - old[k] for k in new} for new, old in zip(now, before, strict=True))
    return Counts(**counts), Traffic(**traffic), Moved(**moved)


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
