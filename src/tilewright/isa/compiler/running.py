"""A compiled model on one chip: the plan of L2, and the host that fills memory, starts programs and takes results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo import Value, array_dtype
from tilewright.isa.chip.segments import Storage, make_storage
from tilewright.isa.chip.state import make_page, move_in, unmap_page
from tilewright.isa.compiler.report import Layer, MachineReport
from tilewright.isa.execute.machine import Machine
from tilewright.isa.execute.operands import numpy_type
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Moved, Traffic, energy, math_cycles_at_least
from tilewright.isa.language.errors import Array
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Stay, Step, Table
from tilewright.isa.lowering.tables import Lowering, folded_array, unfolded_array
from tilewright.isa.multiply.matmul import stored_weights

# Which tables stand in L2, where, and from which step to which. What a step makes is put where its users find it in L2
# if there is room until the last of them; what the host placed in device memory comes to L2 by DMA while the step
# before its reader runs. Three quarters of L2 are for such pages; the rest (and what pages leave) caches lines.

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
    return make_storage(table.name, _zeros(table), 0, lowering.config.line_bytes)


def _zeros(table: Table) -> Array:
    return np.broadcast_to(np.zeros((), numpy_type(table.dtype)), table.shape)


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


# Running: the host fills memory, starts every step's programs, and takes the results.


@dataclass
class Execution:
    """A run of a lowered model; ``stays``: what stands in L2 from which step to which.

    ``known``: the values that the host has; ``fetched``: tables it has read.
    """

    lowering: Lowering
    config: MatrixUnitConfig
    machine: Machine = field(init=False)
    stays: tuple[Stay, ...] = ()
    known: dict[Value, Array] = field(default_factory=dict)
    fetched: dict[str, Array] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    host_bytes: int = 0

    def begin(self, arguments: Sequence[Array]) -> None:
        """Fill memory as it is before the first step: what the host has in its tables, zeros in the others."""
        reading, tables = self.lowering.reading, self.lowering.tables
        self.known = reading.constants | dict(zip(reading.block.arguments, arguments, strict=True))
        contents = {table.name: self._placed(table) for table in self._held(set(self.known))}
        self.machine = Machine(self.config)
        chip = self.machine.chip
        own = [table for table in tables.values() if not table.base]
        tensors: list[Any] = [(each.name, contents.get(each.name, _zeros(each)), {}) for each in own]
        self.machine.link(sum(array.nbytes for array in contents.values()))
        for storage in chip.add_all(tensors) if tensors else []:
            storage.map_pages()
        for table in tables.values():
            if table.base:
                base = chip.storages[table.base]
                view = placed(self.lowering, table)
                chip.storages[table.name] = replace(view, home=base.home, table=base.table)
        self.stays = planned_stays(self.lowering)

    def _held(self, roots: set[Value]) -> list[Table]:
        """The tables that the host fills with elements of these values."""
        tables = self.lowering.tables.values()
        return [t for t in tables if t.held is not None and self.lowering.reading.root(t.held[0]) in roots]

    def _placed(self, table: Table) -> Array:
        """The array that the host puts into a table."""
        assert table.held is not None
        value, groups = table.held
        array = folded_array(self.value(value), groups)
        return array if table.weights is None else stored_weights(table.weights, array)

    def value(self, value: Value) -> Array:
        """A value as the host sees it: its own, named otherwise, or fetched from the machine."""
        if value in self.known:
            return self.known[value]
        node, places = value.operation, self.lowering.places.get(value)
        if node is not None and node.name in LAYOUT:
            return node.rearranged(self.value(node.operands[0]))
        if not places:
            raise UsageError(f"{value!r} is nowhere")
        return self.in_table(value, places[0].table)

    def in_table(self, value: Value, table: str) -> Array:
        """A value that a table has, which the host reads over its link."""
        if table not in self.fetched:  # once: it may be given up afterwards
            self.fetched[table] = self.machine.tensor(table)
            self.machine.link(self.fetched[table].nbytes)
        return unfolded_array(self.fetched[table], value.sizes, self.lowering.groups[table], array_dtype(value))

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
                storage.map_pages()

    def step(self, number: int, check: Callable[[Step], None] | None = None) -> None:
        """Run and count one step; ``check`` is called before any of its values is given up."""
        step = self.lowering.steps[number]
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
        """Let XLA compute a step, from what the machine made."""
        given = [self.value(v) for v in step.inputs]
        made = self.lowering.reading.xla.of(step.nodes, step.inputs, step.outputs, given)
        self.known |= dict(zip(step.outputs, made, strict=True))
        self.host_bytes += sum(array.nbytes for array in (*given, *made))
        chip = self.machine.chip
        for table in self._held(set(step.outputs)):
            storage = chip.storages[table.name]
            into = chip.store[storage.home : storage.home + storage.total_bytes]
            storage.map.pack(self._placed(table), out=into.view(storage.map.numpy_dtype))
            chip.forget(storage.home, storage.total_bytes)
            self.machine.link(storage.total_bytes)

    def report(self) -> MachineReport:
        moved = tuple(self.machine.chip.dma.transfers)
        return MachineReport(tuple(self.layers), self.config, self.machine.now, self.host_bytes, moved)


Watch = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and the name of the one that begins."""


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
