"""The state of a compilation: which tables hold which values, and the steps so far.

Whoever wants a value asks for it in a shape of its own (:meth:`Lowering.table`): which dims are folded into which. A
view of a table serves where the bytes lie so already; else the host places an argument or a constant that way, or a
copy is made, and it is kept for the next who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.parts import Part, by_dim
from tilewright.isa.chip.segments import ELEMENT_TYPES
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.lowering.copying import CopyPlan, copy_program, merged
from tilewright.isa.lowering.reading import LAYOUT, Reading, machine_type
from tilewright.isa.lowering.sources import Coordinate, Groups, Source
from tilewright.isa.lowering.steps import Job, Step, Table
from tilewright.isa.vector.emit import size_of

Array = np.ndarray[Any, Any]
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
    """The shape of a table that folds dims so."""
    return tuple(prod(shape[d] for d in group) for group in groups)


def folded_array(array: Array, groups: Groups) -> Array:
    """An array as such a table has it; a boolean is a byte."""
    order = [d for group in groups for d in group]
    order += [d for d in range(array.ndim) if d not in order]  # of size 1
    plain = array.view(np.uint8) if array.dtype == bool else array
    return np.ascontiguousarray(plain.transpose(order)).reshape(folded(array.shape, groups))


def unfolded_array(raw: Array, shape: Sequence[int], groups: Groups, dtype: np.dtype[Any]) -> Array:
    """The other way: an array of ``shape`` from what its table has."""
    order = [d for group in groups for d in group]
    order += [d for d in range(len(shape)) if d not in order]
    array = raw.reshape([shape[d] for d in order]).transpose(np.argsort(order))
    return (array != 0 if dtype.kind == "b" else array.view(dtype)).copy()


@dataclass
class Lowering:
    """Tables, where values stand, and steps."""

    reading: Reading
    config: MatrixUnitConfig
    tables: dict[str, Table] = field(default_factory=dict)
    places: dict[Value, list[Source]] = field(default_factory=dict)
    groups: dict[str, Groups] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    on_host: set[Value] = field(default_factory=set)

    def strides(self, table: str) -> tuple[int, ...]:
        """Elements from one coordinate to the next, per dim: rows are padded to whole lines."""
        entry = self.tables[table]
        line = max(1, self.config.line_bytes // BYTES[entry.dtype])
        padded = [*entry.shape[1:-1], -(-entry.shape[-1] // line) * line] if len(entry.shape) > 1 else []
        return (*list(accumulate(reversed(padded), lambda x, y: x * y))[::-1], 1)

    def name(self, kind: str) -> str:
        """The next name of this kind."""
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
        """Whether the host has it: an argument, a constant, what XLA made."""
        return value.operation is None or value in self.reading.constants or value in self.on_host

    def sources(self, value: Value) -> list[Source]:
        """Every way to name its elements in tables there are."""
        own = self.places.get(value, [])
        node = value.operation
        if node is None or node.name not in LAYOUT or value in self.reading.constants:
            return own
        behind = [renamed(node, source) for source in self.sources(node.operands[0])]
        return own + [source for source in behind if source is not None]

    def there(self, value: Value, groups: Groups) -> str | None:
        """The table, or a view of it, that has the value so already."""
        shape = folded(value.sizes, groups)
        dtype = machine_type(value)
        for source in self.sources(value):
            table = self.tables[source.table]
            wanted = Table("", shape, str(dtype))
            probe = replace(self, tables={"": wanted})
            order = [d for group in groups for d in group]
            first, has = source.addresses(self.strides(source.table))
            target = Source.of("", value.sizes, groups).addresses(probe.strides(""))[1]
            atoms = [a for d in order for a in source.dims[d]]
            want: dict[int, int] = {}
            for d in order:
                step = target[d]
                for atom in reversed(source.dims[d]):
                    want[atom], step = step, step * source.sizes[atom]
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
        if name := self.there(value, groups):
            return name
        root = self.reading.root(value)
        if self.held(root):
            return self.new_table(value, groups, held=True)
        if not self.sources(value):
            self._materialise(value)
            if name := self.there(value, groups):
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
        if not any(renamed(node, source) for source in self.sources(before)):
            groups = natural(before.sizes)
            serves = renamed(node, Source.of("", before.sizes, groups)) is not None
            self.copy(before, groups if serves else (tuple(range(len(before.sizes))),))
        if not any(renamed(node, source) for source in self.sources(before)):
            raise UnsupportedError(f"{node!r}: the dims of one side do not divide those of the other")

    def copy(self, value: Value, groups: Groups) -> str:
        """A step that makes the table."""
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
        atoms = [a for group in groups for d in group for a in source.dims[d]]
        shape, writes = self.tables[table].shape, []
        for i, group in enumerate(groups):
            steps, step = [0] * len(atoms), gaps[i] if gaps else 1
            for a in reversed([a for d in group for a in source.dims[d]]):
                steps[atoms.index(a)], step = step, step * source.sizes[a]
            writes.append(Coordinate(origin[i] if origin else 0, tuple(steps)))
        reads = [Coordinate(c.first, tuple(c.steps[a] for a in atoms)) for c in reversed(source.coordinates)]
        if max(len(reads), len(writes)) > _MOST_DIMS:
            raise UnsupportedError(f"a copy over {max(len(reads), len(writes))} dims")
        made = merged([source.sizes[a] for a in atoms], reads, writes[::-1])
        plan = CopyPlan(*made, BYTES[self.tables[table].dtype], self.config)
        parts = by_dim((plan.count,), 0, self.config.pes)
        windows = tuple((n, t, whole(self.tables[t].shape)) for n, t in (("A", source.table), ("C", table)))
        jobs = []
        for pe, (part,) in parts.items():
            runs = part.base[0], part.base[0] + part.size[0]
            jobs.append(Job(pe, copy_program(replace(plan, runs=runs)), windows))
        step_ = Step(name, "copy", jobs=tuple(jobs), reads=(source.table,), writes=(table,))
        if not origin:
            step_.copied = source, table, groups
        assert shape
        self.steps.append(step_)


def whole(shape: Sequence[int]) -> Part:
    """All of a table."""
    return Part((0,) * len(shape), tuple(shape))


def renamed(node: Node, source: Source) -> Source | None:
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
    """The array of a value that is known beforehand, None for others."""
    if value in reading.constants or value.operation is None or value.operation.name not in LAYOUT:
        return reading.constants.get(value)
    before = constant(reading, value.operation.operands[0])
    return None if before is None else named(value.operation, before)


def named(node: Node, array: Array) -> Array:
    """The same of an array on the host."""
    shape, own = node.result.sizes, node.attributes
    if node.name == "transpose":
        return array.transpose(own["permutation"])
    if node.name == "reshape":
        return array.reshape(shape)
    if node.name == "broadcast_in_dim":
        order = sorted(range(len(own["dims"])), key=lambda k: own["dims"][k])
        wide = [1] * len(shape)
        for k in order:
            wide[own["dims"][k]] = array.shape[k]
        return np.broadcast_to(array.transpose(order).reshape(wide), shape)
    if node.name == "slice":
        return array[tuple(slice(*cut) for cut in zip(own["start"], own["limit"], own["strides"], strict=True))]
    return np.flip(array, own["dims"])
