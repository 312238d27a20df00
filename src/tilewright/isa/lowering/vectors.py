"""Regions of work on elements: which operations one vector program does together, and its specification.

A region is a space of dims; every operation in it has a place there: which dim of the space each of its own is. Some
last dims of the space are the columns, over which sums and maxima go; what has one number for each row is a row. A
region may also be done to a product's sums before they are stored (its :class:`Tail`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.segments import Part, by_dim
from tilewright.isa.lowering.reading import Group, Reading, machine_type
from tilewright.isa.lowering.sources import Groups, Job
from tilewright.isa.lowering.tables import Lowering, folded
from tilewright.isa.multiply.matmul import operand_windows
from tilewright.isa.vector.programs import vector_program
from tilewright.isa.vector.spec import OPERATIONS, Input, Op, Output, VectorSpec

Dims = tuple[int | None, ...]
"""Which dim of a space (or of another value) each dim of a value is; None where it has one element."""

_CHLO = {"chlo.erf": "erf", "chlo.square": "multiply"}
_REDUCE = {"add": "reduce_add", "maximum": "reduce_max", "minimum": "reduce_min"}
_REDUCE |= {"and": "reduce_min", "or": "reduce_max"}
"""Of truth values ``and`` is the least, ``or`` the largest; of integers the machine has neither."""


def through_layouts(reading: Reading, value: Value) -> tuple[Value, Dims]:
    """What ``value`` repeats or turns, and which dim of ``value`` each of its dims is."""
    to: list[int | None] = [d if size > 1 else None for d, size in enumerate(value.sizes)]
    while value.operation is not None and value not in reading.constants:
        node = value.operation
        if node.name == "broadcast_in_dim":
            before, dims = node.operands[0], node.attributes["dims"]
            to = [to[dims[i]] if size > 1 else None for i, size in enumerate(before.sizes)]
        elif node.name == "transpose":
            before, turned = node.operands[0], list(to)
            for place, d in enumerate(node.attributes["permutation"]):
                turned[d] = to[place]
            to = turned
        elif node.name == "reshape" and _long(node.operands[0].sizes) == _long(value.sizes):
            before, named = node.operands[0], iter([d for d, size in zip(to, value.sizes, strict=True) if size > 1])
            to = [next(named) if size > 1 else None for size in before.sizes]
        else:
            break
        value = before
    return value, tuple(to)


def _long(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size > 1]


@dataclass(eq=False)
class Region:
    """``sizes`` of the space; ``columns``: its dims that sums go over (None: not yet known); operations' places."""

    reading: Reading
    sizes: list[int]
    columns: tuple[int, ...] | None = None
    places: dict[Node, Dims] = field(default_factory=dict)

    @classmethod
    def starting_at(cls, reading: Reading, node: Node) -> Region | None:
        """The region that an operation begins; None where no vector program does it."""
        if not _is_supported(reading, node):
            return None
        reduces = node.name == "reduce"
        shape, dims = (node.operands[0].sizes, node.attributes["dims"]) if reduces else (node.result.sizes, ())
        region = cls(reading, list(shape), tuple(d for d in dims if shape[d] > 1) if reduces else None)
        region.places[node] = tuple(d if shape[d] > 1 else None for d in range(len(shape)) if d not in dims)
        return region

    @property
    def long(self) -> set[int]:
        return {d for d, size in enumerate(self.sizes) if size > 1}

    @property
    def rows(self) -> set[int]:
        """The long dims that are not columns."""
        return self.long - set(self.columns or ())

    @property
    def columns_not_last(self) -> bool:
        """Whether the columns are not the last dims, so that all its inputs have to be copied."""
        return self.columns is not None and any(row > c for row in self.rows for c in self.columns)

    def joins(self, node: Node) -> bool:
        """Add an operation whose users are in the region, if one program can do both; whether it was added."""
        place = self.place_of(node) if _is_supported(self.reading, node) else None
        if place is None:
            return False
        has = {d for d in place if d is not None}
        if node.name == "reduce":
            return self._joins_reduction(node, place, has)
        if has == self.long:
            if self.columns_not_last:
                return False
        elif not has:
            return False
        elif self.columns is None and len(has) < len(self.long):
            if max(has) > min(self.long - has):
                return False
            self.columns = tuple(sorted(self.long - has))
        elif has != self.rows:
            return False
        self.places[node] = place
        return True

    def _joins_reduction(self, node: Node, place: Dims, has: set[int]) -> bool:
        shape, dims = node.operands[0].sizes, list(node.attributes["dims"])
        summed = [shape[d] for d in dims if shape[d] > 1]
        kept = [d for d in range(len(shape)) if d not in dims]
        if any(min(dims) < d for d in kept if shape[d] > 1):
            return False  # over dims that are not the last: a region of its own
        if self.columns is None and has == self.long:  # what was a matrix is a column of a larger one
            first = len(self.sizes)
            self.sizes += summed
            self.columns = tuple(range(first, len(self.sizes)))
        elif self.columns is None and has < self.long and max(has, default=-1) < min(self.long - has):
            if [self.sizes[d] for d in sorted(self.long - has)] != summed:
                return False
            self.columns = tuple(sorted(self.long - has))
        elif has != self.rows or [self.sizes[d] for d in self.columns or ()] != summed:
            return False
        if self.columns_not_last:
            return False
        self.places[node] = place
        return True

    def operand_place(self, node: Node) -> Dims:
        """The place of a node's operands: the node's own, or for a reduction that and the columns."""
        if node.name != "reduce":
            return self.places[node]
        shape, dims = node.operands[0].sizes, node.attributes["dims"]
        own, columns = iter(self.places[node]), iter(self.columns or ())
        return tuple((next(columns) if shape[d] > 1 else None) if d in dims else next(own) for d in range(len(shape)))

    def place_of(self, node: Node) -> Dims | None:
        """Where its users here want it; None where they disagree, or reach it by more than names of elements."""
        place: Dims | None = None
        for user in self.places:
            of = self.operand_place(user)
            for operand in user.operands[:1] if user.name == "reduce" else user.operands:
                if self.reading.root(operand) is not node.result:
                    continue
                base, dims = through_layouts(self.reading, operand)
                if base is not node.result:
                    return None
                there = tuple(None if d is None else of[d] for d in _spread(operand, of, dims))
                if place not in (None, there):
                    return None
                place = there
        return place


def _spread(operand: Value, of: Dims, dims: Dims) -> Dims:
    """``dims``, or no place at all for the scalar operand of a select or clamp."""
    return dims if len(operand.sizes) == len(of) else tuple(None for _ in dims)


def element_type(value: Value) -> str:
    """The name of a value's element type in a specification."""
    name = "pred" if value.dtype == "i1" else machine_type(value)
    if name is None:
        raise UnsupportedError(f"the machine has no {value.dtype}")
    return name


def _is_supported(reading: Reading, node: Node) -> bool:
    if len(node.results) != 1 or any(machine_type(v) is None for v in (*node.operands, *node.results)):
        return False
    if node.name == "reduce":
        monoid, truth = node.attributes.get("monoid"), node.operands[0].dtype == "i1"
        return monoid in _REDUCE and truth == (monoid in ("and", "or")) and reading.number(node.operands[1]) is not None
    if node.name == "compare":
        return bool(node.attributes["kind"] != "TOTALORDER")
    return node.name in OPERATIONS or node.name in _CHLO


# A region as a specification, with the tables it reads and writes.


def specification(
    lowering: Lowering,
    region: Region,
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    product: tuple[Node, str] | None = None,
    order: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[VectorSpec, dict[str, str]]:
    """``nodes`` of a region as one specification, and its tables by the names it gives them.

    ``product``: one whose sums, of this type, are the first input, acc.
    ``order``: the dims of the space that are its rows and its columns, where a product has decided.
    """
    writer = _Writer(lowering, region, order)
    if product is not None:
        writer.begin(*product)
    for node in nodes:
        writer.write(node)
    return writer.written(outputs)


class _Writer:
    def __init__(self, lowering: Lowering, region: Region, order: tuple[Sequence[int], Sequence[int]] | None) -> None:
        self.lowering, self.region = lowering, region
        columns = tuple(sorted(region.long))[-1:] if region.columns is None else region.columns
        rows = tuple(d for d in sorted(region.long) if d not in columns)
        self.rows, self.columns = (tuple(rows), tuple(columns)) if order is None else map(tuple, order)
        self.inputs: list[Input] = []
        self.tables: dict[str, str] = {}
        self.known: dict[tuple[str, str], int] = {}
        self.body: list[tuple[str, tuple[Any, ...], str, tuple[str, ...]]] = []
        self.values: dict[Value, Any] = {}

    def begin(self, node: Node, sums: str) -> None:
        """Make the sums of a product the first input, converted to the type of its result."""
        value, dtype = self._input("", "full", sums, 0), element_type(node.result)
        self.values[node.result] = value if dtype == sums else self._append("convert", (value,), dtype)

    def write(self, node: Node) -> None:
        """One operation; operands of the body are (True, number) until the inputs are counted."""
        of, dtype = self.region.operand_place(node), element_type(node.result)
        if node.name == "reduce":
            value = self._append(_REDUCE[node.attributes["monoid"]], (self._operand(node.operands[0], of),), dtype)
            start = self.lowering.reading.number(node.operands[1])
            if not is_identity(node.attributes["monoid"], start):
                value = self._append(node.attributes["monoid"], (value, ("const", start.item(), dtype)), dtype)
            self.values[node.result] = value
            return
        operands = tuple(self._operand(v, of) for v in node.operands)
        attributes = (node.attributes["direction"],) if node.name == "compare" else ()
        name = _CHLO.get(node.name, node.name)
        if node.name == "chlo.square":
            operands *= 2
        self.values[node.result] = self._append(name, operands, dtype, attributes)

    def _append(self, name: str, operands: tuple[Any, ...], dtype: str, attributes: tuple[str, ...] = ()) -> Any:
        self.body.append((name, operands, dtype, attributes))
        return True, len(self.body) - 1

    def _operand(self, value: Value, of: Dims) -> Any:
        reading = self.lowering.reading
        base, dims = through_layouts(reading, value)
        if base in self.values:
            return self.values[base]
        number = reading.number(base) if base in reading.constants else None
        if number is not None:
            return "const", number.item() if base.dtype != "bf16" else float(number), element_type(base)
        place = tuple(None if d is None else of[d] for d in _spread(value, of, dims))
        form, groups, period = self._form(place)
        if not form:  # repeated in the middle: it has to be written out
            base, place = value, tuple(of)
            form, groups, period = self._form(place)
        table = self.lowering.table(base, groups)
        return self._input(table, form, element_type(base), period)

    def _form(self, place: Dims) -> tuple[str, Any, int]:
        """How a value with this place lies over the matrix, and which of its dims are its rows and its columns."""
        at = {d: i for i, d in enumerate(place) if d is not None}
        rows, columns = ([d for d in dims if d in at] for dims in (self.rows, self.columns))
        groups = tuple(at[d] for d in rows), tuple(at[d] for d in columns)
        if len(columns) == len(self.columns):
            if len(rows) == len(self.rows):
                return "full", groups, 0
            if not rows:
                return "col", groups, 0
            if rows == list(self.rows[-len(rows) :]):
                return "rows", groups, prod(self.region.sizes[d] for d in rows)
        elif not columns:
            if not rows:
                return "one", groups, 0
            if len(rows) == len(self.rows):
                return "row", groups, 0
        return "", groups, 0

    def _input(self, table: str, form: str, dtype: str, period: int) -> Any:
        if (table, form) not in self.known:
            name = f"x{len(self.inputs)}" if table else "acc"
            self.inputs.append(Input(name, dtype, form, period))
            if table:
                self.tables[name] = table
            self.known[table, form] = len(self.inputs) - 1
        return self.known[table, form]

    def written(self, outputs: Sequence[Value]) -> tuple[VectorSpec, dict[str, str]]:
        """Finish: number the values, give the outputs tables."""
        count, sizes = len(self.inputs), self.region.sizes

        def numbered(operand: Any) -> Any:
            return operand[1] + count if isinstance(operand, tuple) and operand[0] is True else operand

        body = tuple(Op(n, tuple(map(numbered, o)), d, a) for n, o, d, a in self.body)
        outs: list[Output] = []
        for value in outputs:
            assert value.operation is not None
            form, groups, _ = self._form(self.region.places[value.operation])
            if form not in ("full", "row", "one"):
                raise UnsupportedError("a result with one number for each column")
            name = f"y{len(outs)}"
            self.tables[name] = self.lowering.new_table(value, groups)
            form = "row" if form == "one" else form
            outs.append(Output(name, numbered(self.values[value]), element_type(value), form))
        rows, columns = (prod(sizes[d] for d in dims) for dims in (self.rows, self.columns))
        return VectorSpec(rows, columns, tuple(self.inputs), body, tuple(outs)), self.tables


def is_identity(monoid: str, number: Any) -> bool:
    """Whether a reduction (add, maximum, minimum, and, or) that begins with this numpy scalar is that of nothing."""
    if monoid in ("add", "or", "and"):
        return bool(number == (monoid == "and"))
    kind = np.asarray(number).dtype
    if kind.kind in "iu":
        ends = np.iinfo(kind)
        return bool(number == (ends.min if monoid == "maximum" else ends.max))
    return bool(float(number) == (-np.inf if monoid == "maximum" else np.inf))


def vector_jobs(lowering: Lowering, spec: VectorSpec, tables: dict[str, str]) -> tuple[Job, ...]:
    """Rows to every processing element; columns, where there are too few rows and nothing goes along them."""
    config, jobs = lowering.config, list[Job]()
    by_rows = spec.rows > 1
    pes = 1 if spec.reduces and not by_rows else config.pes
    for pe, (part,) in by_dim((spec.rows if by_rows else spec.cols,), 0, pes).items():
        first, count = part.base[0], part.size[0]
        own = replace(spec, rows=count, first=first) if by_rows else replace(spec, cols=count)
        windows = []
        tensors: list[Input | Output] = [*spec.inputs, *spec.outputs]
        for each in tensors:
            table = tables[each.name]
            base, size = [0, 0], list(lowering.tables[table].shape)
            if by_rows and each.form in ("full", "row"):
                base[0], size[0] = first, count
            elif not by_rows and each.form in ("full", "col", "rows"):
                base[1], size[1] = first, count
            windows.append((each.name, table, Part(tuple(base), tuple(size))))
        jobs.append(Job(pe, vector_program(own, config), tuple(windows)))
    return tuple(jobs)


# What is done to a product's sums before they are stored.


@dataclass
class Tail:
    """``table``: where C is stored, of the value ``out``; ``spec`` and its other ``tables``: None for the sums alone.

    ``nodes``: of the product and of the region; ``operations``: the region's arithmetic.
    """

    table: str
    out: Value
    nodes: tuple[Node, ...]
    spec: VectorSpec | None = None
    tables: dict[str, str] = field(default_factory=dict)
    operations: int = 0

    def windows(self, part: Part) -> tuple[tuple[str, str, Part], ...]:
        found = []
        for name, window in operand_windows(self.spec, part).items():
            assert isinstance(window, Part)
            found.append((name, self.tables[name], window))
        return tuple(found)


def tail_of(lowering: Lowering, node: Node, groups: Groups, sums: str, after: Group | None) -> Tail:
    """The table of C, and what becomes of the sums: of ``groups`` of the result's dims, rows and columns."""
    out = node.result
    if after is not None:
        place = after.region.place_of(node)
        order = tuple(tuple(place[d] for d in group if place[d] is not None) for group in groups)
        (out,) = after.outputs
        spec, tables = specification(lowering, after.region, after.nodes, (out,), (node, sums), (order[0], order[1]))
        if any(each.form == "rows" for each in spec.inputs) or spec.outputs[0].form != "full":
            raise UnsupportedError("an epilogue with repeated rows")
        if (spec.rows, spec.cols) != folded(node.result.sizes, groups):
            raise UnsupportedError("a region that is larger than the product")
        return Tail(tables["y0"], out, (node, *after.nodes), spec, tables, after.operations)
    dtype = str(machine_type(out))
    table = lowering.new_table(out, groups)
    if dtype == sums:
        return Tail(table, out, (node,))
    body = (Op("convert", (0,), dtype),)
    rows, columns = folded(out.sizes, groups)
    spec = VectorSpec(rows, columns, (Input("acc", sums),), body, (Output("y0", 1, dtype),))
    return Tail(table, out, (node,), spec)


def takes_product(reading: Reading, region: Region, node: Node) -> bool:
    """Whether a region can be done to a product's sums: every element of it, and nothing that goes along rows."""
    if any(member.name == "reduce" for member in region.places):
        return False
    place = region.place_of(node)
    return place is not None and {d for d in place if d is not None} == region.long
