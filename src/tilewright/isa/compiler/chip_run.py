"""One chip for a whole run: tables in memory, what stands in L2 and when, steps started and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import Storage, make_storage
from tilewright.isa.chip.state import make_page, map_page, move_in, unmap_page
from tilewright.isa.compiler.result import Layer, MachineReport
from tilewright.isa.execute.machine import Machine
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic
from tilewright.isa.language.energy import energy, math_cycles_at_least
from tilewright.isa.lowering.steps import Stay, Step, Table

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
                zeros = np.broadcast_to(np.zeros((), _numpy_type(table.dtype)), table.shape)
                tensors.append((table.name, contents.get(table.name, zeros), {}))
        self.machine.link(sum(array.nbytes for array in contents.values()))
        for storage in chip.add_all(tensors) if tensors else []:
            for page in range(storage.map.num_pages):
                map_page(chip, storage, page)
        for table in self.tables.values():
            if table.base:
                base = chip.storages[table.base]
                nothing = np.broadcast_to(np.zeros((), _numpy_type(table.dtype)), table.shape)
                view = make_storage(table.name, nothing, base.home, self.config.line_bytes)
                chip.storages[table.name] = replace(view, table=base.table)
        return chip.storages

    def planned(self, stays: tuple[Stay, ...]) -> None:
        """What stands in L2, and when; lines of device memory have the rest of it."""
        self.stays = stays

    def place(self, table: str, array: Array) -> None:
        """The host writes a table in device memory."""
        chip = self.machine.chip
        storage = chip.storages[table]
        into = chip.store[storage.home : storage.home + storage.total_bytes]
        storage.map.pack(array, out=into.view(storage.map.numpy_dtype))
        chip.forget(storage.home, storage.total_bytes)
        self.machine.link(storage.total_bytes)

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

    def step(self, number: int, check: Callable[[Step], None] | None = None) -> None:
        """One step, counted; ``check`` sees its values before any are given up."""
        step = self.steps[number]
        machine, pes = self.machine, self.machine.chip.pes
        before = [_snapshot(pe) for pe in pes]
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

    def on_host(self, step: Step) -> None:
        """What the host does for a step that the machine does not."""
        raise NotImplementedError

    def report(self) -> MachineReport:
        """What was counted."""
        moved = tuple(self.machine.chip.dma.transfers)
        return MachineReport(tuple(self.layers), self.config, self.machine.now, self.host_bytes, moved)


def _numpy_type(dtype: str) -> Any:
    from tilewright.layout import parse

    return parse(f"{dtype}[]").numpy_dtype  # type: ignore[union-attr]


def _snapshot(pe: Any) -> tuple[dict[str, int], ...]:
    return pe.counts.to_dict(), pe.traffic.to_dict(), pe.clock.port.moved.to_dict()


def _since(pe: Any, before: tuple[dict[str, int], ...]) -> tuple[Counts, Traffic, Moved]:
    now = _snapshot(pe)
    counts, traffic, moved = ({k: new[k] - old[k] for k in new} for new, old in zip(now, before, strict=True))
    return Counts(**counts), Traffic(**traffic), Moved(**moved)
