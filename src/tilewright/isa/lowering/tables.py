"""The state of a compilation: which tables hold which values, and the steps so far; copies as programs.

A program asks for a value in the shape it needs (:meth:`Lowering.table`): which dims are folded into which. A view of a
table serves where the bytes lie so already; else the host places an argument or a constant that way, or a copy is made,
which is kept for later programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.segments import Part, by_dim
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.errors import Array
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import LAYOUT, Reading, machine_type
from tilewright.isa.lowering.sources import Coordinate, Groups, Job, Source, Step, Table
from tilewright.isa.vector.spec import size_of

# Copies: elements in another order, as programs of loads and stores.


_REGISTERS = 16
"""Registers of one load."""
_IN_FLIGHT, _SPACE = 8, 256
"""Runs of a thread on their way, and registers of all of them."""
_WRITE, _COLUMN, _NUMBER = 4, 8, 10
"""Of a run: four registers for its place in ``$A``, four for that in ``$C``, two for its numbers', four for these."""
_BASE, _RUNS, _PLACE = 260, 64, 296
"""Where elements are loaded one by one: the same registers; the numbers of all elements; the place of one."""
_NOWHERE = Coordinate(0, ())


@dataclass(frozen=True)
class Number:
    """One number of each column of a table: ``segment``, its row; brought to 0 to ``most`` (None: it is as it is)."""

    segment: str
    row: int
    most: int | None


@dataclass(frozen=True)
class CopyPlan:
    """``sizes`` of the atoms, slowest first; coordinates in ``$A`` (read) and ``$C`` (written), d1 first.

    Elements of ``element_bytes``; ``runs`` (first, end) of the thread's runs along the fastest atom are this element's.
    ``numbers`` that stand in memory, in the ``column`` of their tables: ``added`` says which is added to each
    coordinate read. What lies outside ``$A`` then is 0, and ``$C`` has nothing else along d1 than the fastest atom.
    """

    sizes: tuple[int, ...]
    reads: tuple[Coordinate, ...]
    writes: tuple[Coordinate, ...]
    element_bytes: int
    config: MatrixUnitConfig
    numbers: tuple[Number, ...] = ()
    added: tuple[int | None, ...] = ()
    column: Coordinate = _NOWHERE
    runs: tuple[int, int] = (0, 0)

    @property
    def walk(self) -> tuple[int, int, int]:
        """Elements of a run, the dim (0: d1) along which it is read and the stride there; one where none serves.

        Stride 0: one element, repeated. Dim -1: each element has numbers, or dims, of its own.
        """
        size, last = self.sizes[-1], len(self.sizes) - 1
        along = [(d, c.steps[last]) for d, c in enumerate(self.reads) if c.steps[last]] or [(0, 0)]
        back = [(d, c.steps[last]) for d, c in enumerate(self.writes) if c.steps[last]]
        most = _REGISTERS * 4 // self.element_bytes
        if self.numbers:
            straight = along == [(0, 1)] and not self.column.steps[last]
            count = -(-size // (most if straight else _REGISTERS))
            return -(-size // count), *(along[0] if straight else (-1, 0))
        if len(along) != 1 or along[0][0] > 1 or along[0][1] < 0 or len(back) != 1 or back[0][0]:
            return 1, 0, 1
        return max(n for n in range(1, min(most, size) + 1) if size % n == 0), *along[0]

    @property
    def count(self) -> int:
        """How many runs there are."""
        return prod(self.sizes[:-1]) * -(-self.sizes[-1] // self.walk[0])


@lru_cache(maxsize=512)
def copy_program(plan: CopyPlan) -> MachineProgram:
    """Every thread takes runs of the fastest atom, finds their places in ``$A`` and in ``$C``, loads and stores them.

    It has several on their way at once, so that it waits for memory once and not for each of them.
    """
    segments = {name: 6 + n for n, name in enumerate(dict.fromkeys(number.segment for number in plan.numbers))}
    lines = ["segment ur3, $A", "segment ur5, $C", *(f"segment ur{ur}, ${name}" for name, ur in segments.items())]
    lines += ["tid r280", f"mov ur0, {plan.runs[0]}", "again:"]
    body = _elements_code if plan.walk[1] < 0 else _runs_code
    lines += body(plan, [segments[number.segment] for number in plan.numbers])
    return assemble("\n".join([*lines, f"br.lt ur0, {plan.runs[1]}, again", "halt"]), plan.config)


def _runs_code(plan: CopyPlan, handles: list[int]) -> list[str]:
    """Code that moves several runs of each thread; ``handles``: uniform registers of the numbers' segments."""
    run, dim, stride = plan.walk
    (first, end), threads, lines = plan.runs, plan.config.threads, list[str]()
    registers, limit = -(-run * plan.element_bytes // 4), f".n{run}" if run * plan.element_bytes % 4 else ""
    repeats = run > 1 and not stride
    how = "ld.n1" if repeats else f"ld.t{dim}{f'.s{stride}' if stride > 1 else ''}{limit}"
    gap = plan.writes[0].steps[-1] if run > 1 else 1
    stores = f"st{f'.s{gap}' if gap > 1 else ''}{limit}"
    data = _NUMBER + 4 if handles else _COLUMN
    in_flight = max(1, min(_IN_FLIGHT, _SPACE // (data + registers), -(-(end - first) // threads)))
    bases = [(u * threads, u * (data + registers)) for u in range(in_flight)]
    loads = [f"@p1, {how} r{base + data}, ur3:rf{base}:0x00, {1 if repeats else registers}" for _, base in bases]
    for (further, base), load in zip(bases, loads, strict=True):
        lines += [*_run_number_code(further, end), *_place_code(plan, run, base)]
        lines += _numbers_code(plan, handles, base, base + _NUMBER, 1) or [load]
    for (further, base), load in zip(bases, loads, strict=True) if handles else ():
        lines += _clamped_code(plan, base + _NUMBER, 1)
        for d, number in enumerate(plan.added):
            lines += [f"add r{base + d}, r{base + d}, r{base + _NUMBER + number}"] if number is not None else []
        lines += _run_number_code(further, end) if in_flight > 1 else []
        lines += [f"clr r{base + data}, {registers}", load]
    for further, base in bases:
        lines += _repeat_code(plan.element_bytes, registers, base + data) if repeats else []
        lines += _run_number_code(further, end) if in_flight > 1 else []
        lines += [f"@p1, {stores} r{base + data}, ur5:rf{base + _WRITE}:0x00, {registers}"]
    return [*lines, f"add ur0, ur0, {threads * in_flight}"]


def _numbers_code(plan: CopyPlan, handles: list[int], base: int, into: int, count: int) -> list[str]:
    """Code that loads ``count`` neighbours of every number."""
    lines = []
    for n, (number, handle) in enumerate(zip(plan.numbers, handles, strict=True)):
        lines += [f"mov r{base + _COLUMN + 1}, {number.row}"]
        lines += [f"@p1, ld.n{count} r{into + n * count}, ur{handle}:rf{base + _COLUMN}:0x00, {count}"]
    return lines


def _clamped_code(plan: CopyPlan, into: int, count: int) -> list[str]:
    """Code that brings them to where they may be."""
    lines = []
    for at, number in zip(range(into, into + len(plan.numbers) * count, count), plan.numbers, strict=True):
        if number.most is not None:
            lines += [f"vi.max r{at}, r{at}, 0, {count}", f"vi.min r{at}, r{at}, {number.most}, {count}"]
    return lines


def _elements_code(plan: CopyPlan, handles: list[int]) -> list[str]:
    """Code that loads the elements of a run one by one and stores them at once."""
    run, e = plan.walk[0], plan.element_bytes
    words, limit, varies = -(-run * e // 4), f".n{run}" if run * e % 4 else "", plan.column.steps[-1]
    lines = [*_run_number_code(0, plan.runs[1]), *_place_code(plan, run, _BASE)]
    count = run if varies else 1
    lines += [*_numbers_code(plan, handles, _BASE, _RUNS, count), *_clamped_code(plan, _RUNS, count), f"clr r0, {run}"]
    for k in range(run):
        for d, (coordinate, number) in enumerate(zip(plan.reads, plan.added, strict=True)):
            at, step, anew = _PLACE + d, coordinate.steps[-1], not k or (number is not None and varies)
            if anew and number is not None:
                lines += [f"add r{at}, r{_BASE + d}, r{_RUNS + count * number + k * varies}"]
            elif anew:
                lines += [f"mov r{at}, r{_BASE + d}"]
            lines += [f"add r{at}, r{at}, {k * step if anew else step}"] if step and k else []
        lines += [f"@p1, ld.n1 r{k}, ur3:rf{_PLACE}:0x00, 1"]
    lines += [f"vcvt.to_u{e * 8}.from_u32.wrap r0, r0, {run}"] if e < 4 else []
    stored = f"@p1, st{limit} r0, ur5:rf{_BASE + _WRITE}:0x00, {words}"
    return [*lines, stored, f"add ur0, ur0, {plan.config.threads}"]


def _run_number_code(further: int, end: int) -> list[str]:
    """Code for the number of a thread's run in r281, and in p1 whether there is one."""
    more = [f"add r281, r281, {further}"] if further else []
    return ["add r281, r280, ur0", *more, f"cmp.lt p1, r281, {end}"]


def _place_code(plan: CopyPlan, run: int, base: int) -> list[str]:
    """Coordinates of run r281, in ``$A`` from ``base`` on, in ``$C`` behind it, and the column of its numbers."""
    *slow, size = plan.sizes
    at, lines = 283, list[str]()
    if size == run:
        lines += [f"mov r{at}, 0"]
    else:
        several = -(-size // run)
        lines += [f"rem r{at}, r281, {several}", f"mul r{at}, r{at}, {run}", f"div r281, r281, {several}"]
    places = {len(slow): at}
    for atom in reversed(range(len(slow))):
        at += 1
        places[atom] = at
        if atom:
            lines += [f"rem r{at}, r281, {slow[atom]}", f"div r281, r281, {slow[atom]}"]
        else:
            lines += [f"mov r{at}, r281"]
    column = (plan.column,) if plan.numbers else ()
    for begin, coordinates in ((base, plan.reads), (base + _WRITE, plan.writes), (base + _COLUMN, column)):
        for d, coordinate in enumerate(coordinates):
            lines += _coordinate_code(begin + d, coordinate, places)
    return lines


def _repeat_code(element_bytes: int, registers: int, first: int) -> list[str]:
    """Code that repeats the element in the first of some registers in all of them."""
    mask, times = {1: ("0xff", "0x1010101"), 2: ("0xffff", "0x10001")}.get(element_bytes, ("", ""))
    spread = [f"and r{first}, r{first}, {mask}", f"mul r{first}, r{first}, {times}"] if mask else []
    return spread + [f"mov r{first + n}, r{first}" for n in range(1, registers)]


def _coordinate_code(register: int, coordinate: Coordinate, places: dict[int, int]) -> list[str]:
    """Code for one coordinate in ``register``, from the registers of the atoms' numbers."""
    terms = [(places[a], step) for a, step in enumerate(coordinate.steps) if step]
    if not terms:
        return [f"mov r{register}, {coordinate.first}"]
    (atom, step), *others = terms
    if step == 1:
        lines = [f"add r{register}, r{atom}, {coordinate.first}"]
    else:
        lines = [f"mov r{register}, {coordinate.first}", f"mad r{register}, r{atom}, {step}, r{register}"]
    return lines + [f"mad r{register}, r{a}, {s}, r{register}" for a, s in others]


BYTES = {name: size_of(name) for name in ELEMENT_TYPES}
"""Of an element in memory."""
_MOST_DIMS = 4
"""Dims of a table: what four offset registers reach."""


def natural(shape: Sequence[int]) -> Groups:
    """All dims but the last folded to one, and the last.

    >>> natural((2, 3, 4))
    ((0, 1), (2,))
    """
    rank = len(shape)
    return (tuple(range(max(0, rank - 1))), tuple(range(max(0, rank - 1), rank)))


def folded(shape: Sequence[int], groups: Groups) -> tuple[int, ...]:
    """The shape of a table whose dims are these groups of a value's dims."""
    return tuple(prod(shape[d] for d in group) for group in groups)


def folded_array(array: Array, groups: Groups) -> Array:
    """An array in the shape of such a table; booleans as bytes."""
    order = [d for group in groups for d in group]
    order += [d for d in range(array.ndim) if d not in order]  # of size 1
    plain = array.view(np.uint8) if array.dtype == bool else array
    return np.ascontiguousarray(plain.transpose(order)).reshape(folded(array.shape, groups))


def unfolded_array(raw: Array, shape: Sequence[int], groups: Groups, dtype: np.dtype[Any]) -> Array:
    """The inverse of :func:`folded_array`: an array of ``shape`` from what its table has."""
    order = [d for group in groups for d in group]
    order += [d for d in range(len(shape)) if d not in order]
    array = raw.reshape([shape[d] for d in order]).transpose(np.argsort(order))
    return (array != 0 if dtype.kind == "b" else array.view(dtype)).copy()


@dataclass
class Lowering:
    """The compilation so far: tables, which of them hold which values, and steps."""

    reading: Reading
    config: MatrixUnitConfig
    tables: dict[str, Table] = field(default_factory=dict)
    places: dict[Value, list[Source]] = field(default_factory=dict)
    groups: dict[str, Groups] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    on_host: set[Value] = field(default_factory=set)

    def strides(self, table: Table) -> tuple[int, ...]:
        """Elements from one coordinate to the next, per dim: rows are padded to whole lines."""
        line = max(1, self.config.line_bytes // BYTES[table.dtype])
        padded = [*table.shape[1:-1], -(-table.shape[-1] // line) * line] if len(table.shape) > 1 else []
        return (*list(accumulate(reversed(padded), lambda x, y: x * y))[::-1], 1)

    def name(self, kind: str) -> str:
        """A fresh name: the kind and a running number."""
        self.names[kind] = self.names.get(kind, 0) + 1
        return f"{kind}_{self.names[kind]}"

    def new_table(self, value: Value, groups: Groups, held: bool = False) -> str:
        """A table of its own for a value, to be written by a step (or by the host: ``held``)."""
        dtype = machine_type(value)
        assert dtype is not None
        name = self.name("t")
        self.tables[name] = Table(name, folded(value.sizes, groups), dtype, held=(value, groups) if held else None)
        self.groups[name] = groups
        self.places.setdefault(value, []).append(Source.of(name, value.sizes, groups))
        return name

    def held(self, value: Value) -> bool:
        """Whether the host has the value: an argument, a constant, or a result of XLA."""
        return value.operation is None or value in self.reading.constants or value in self.on_host

    def sources(self, value: Value) -> list[Source]:
        """Every table that has the value's elements, as a :class:`Source`."""
        own = self.places.get(value, [])
        node = value.operation
        if node is None or node.name not in LAYOUT or value in self.reading.constants:
            return own
        behind = [source_of_layout(node, source) for source in self.sources(node.operands[0])]
        return own + [source for source in behind if source is not None]

    def existing_table(self, value: Value, groups: Groups) -> str | None:
        """The table (or a view) that has the value in this shape already; None where there is none."""
        shape = folded(value.sizes, groups)
        wanted = self.strides(Table("", shape, str(machine_type(value))))
        for source in self.sources(value):
            table = self.tables[source.table]
            first, has = source.addresses(self.strides(table))
            _, want = source.folded(groups).addresses(wanted)
            atoms = [a for group in groups for d in group for a in source.dims[d]]
            if first or any(has[a] != want[a] for a in atoms if source.sizes[a] > 1):
                continue
            whole = prod(source.sizes[a] for a in atoms) == prod(table.shape)
            return self.view(table, shape) if whole else None
        return None

    def view(self, table: Table, shape: tuple[int, ...]) -> str:
        """The name of a table's bytes under another shape."""
        if table.shape == shape:
            return table.name
        base = table.base or table.name
        if self.tables[base].shape == shape:
            return base
        name = f"{base}_as_{'x'.join(map(str, shape))}"
        self.tables.setdefault(name, Table(name, shape, table.dtype, base=base))
        return name

    def table(self, value: Value, groups: Groups) -> str:
        """A table (or view) that has the value in this shape; placed by the host or copied where there is none."""
        if name := self.existing_table(value, groups):
            return name
        root = self.reading.root(value)
        if self.held(root):
            return self.new_table(value, groups, held=True)
        if not self.sources(value):
            self._materialise(value)
            if name := self.existing_table(value, groups):
                return name
        return self.copy(value, groups)

    def _materialise(self, value: Value) -> None:
        """Some operation between its root and it has no source: copy what comes before that one, naturally."""
        node = value.operation
        if node is None or node.name not in LAYOUT:
            raise UnsupportedError(f"{value!r} is in no table")
        before = node.operands[0]
        if not self.sources(before):
            self._materialise(before)
        if not any(source_of_layout(node, source) for source in self.sources(before)):
            groups = natural(before.sizes)
            serves = source_of_layout(node, Source.of("", before.sizes, groups)) is not None
            self.copy(before, groups if serves else (tuple(range(len(before.sizes))),))
        if not any(source_of_layout(node, source) for source in self.sources(before)):
            raise UnsupportedError(f"{node!r}: the dims of one side do not divide those of the other")

    def copy(self, value: Value, groups: Groups) -> str:
        """Add a step that copies the value into a new table; its name."""
        source = min(self.sources(value), key=lambda s: len(s.coordinates))
        name = self.new_table(value, groups)
        self.copy_step(self.name("copy"), source, name, groups)
        return name

    def copy_step(
        self,
        name: str,
        source: Source,
        table: str,
        groups: Groups,
        origin: Sequence[int] = (),
        gaps: Sequence[int] = (),
    ) -> None:
        """Elements of ``source`` into ``table``, whose dims fold the value's so; from ``origin``, ``gaps`` apart."""
        coordinates = *source.coordinates[::-1], *source.folded(groups, origin, gaps).coordinates[::-1]
        atoms = tuple(a for group in groups for d in group for a in source.dims[d])
        both, kept = replace(source, dims=(atoms,), coordinates=coordinates).merged()
        made = [Coordinate(c.first, tuple(c.steps[a] for a in kept) or (0,)) for c in both.coordinates]
        reads, writes = made[: len(source.coordinates)], made[len(source.coordinates) :]
        if max(len(reads), len(writes)) > _MOST_DIMS:
            raise UnsupportedError(f"a copy over {max(len(reads), len(writes))} dims")
        sizes = tuple(both.sizes[a] for a in kept) or (1,)
        plan = CopyPlan(sizes, tuple(reads), tuple(writes), BYTES[self.tables[table].dtype], self.config)
        jobs = self.jobs(plan.count, lambda runs: copy_program(replace(plan, runs=runs)), A=source.table, C=table)
        copied = None if origin else (source, table, groups)
        self.steps.append(Step(name, "copy", jobs=jobs, reads=(source.table,), writes=(table,), copied=copied))

    def jobs(self, count: int, program: Callable[[tuple[int, int]], MachineProgram], **tables: str) -> tuple[Job, ...]:
        """``count`` runs dealt to the processing elements: ``program((first, end))`` does those from first to end.

        Every element sees all of the ``tables``, by these names.
        """
        windows = tuple((name, table, whole(self.tables[table].shape)) for name, table in tables.items())
        parts = by_dim((count,), 0, self.config.pes)
        return tuple(
            Job(pe, program((part.base[0], part.base[0] + part.size[0])), windows) for pe, (part,) in parts.items()
        )


def whole(shape: Sequence[int]) -> Part:
    """The part that is all of a table of this shape."""
    return Part((0,) * len(shape), tuple(shape))


def source_of_layout(node: Node, source: Source) -> Source | None:
    """The source of what a :data:`LAYOUT` operation makes of a value with this one."""
    shape, own = node.result.sizes, node.attributes
    if node.name == "transpose":
        return source.transposed(own["permutation"])
    if node.name == "broadcast_in_dim":
        return source.broadcast(shape, own["dims"])
    if node.name == "reshape":
        return source.reshaped(shape)
    if node.name == "slice":
        return source.sliced(own["start"], own["limit"], own["strides"])
    if node.name == "reverse":
        return source.reversed(own["dims"])
    return None


def constant(reading: Reading, value: Value) -> Array | None:
    """The array of a constant value, also behind layout operations; None for others."""
    if value in reading.constants or value.operation is None or value.operation.name not in LAYOUT:
        return reading.constants.get(value)
    before = constant(reading, value.operation.operands[0])
    return None if before is None else value.operation.rearranged(before)
