"""From a program's operations to steps: each group by what lowers it, and by XLA on the host where nothing does."""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo import Block, Node
from tilewright.isa.chip.parts import by_dim
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.lowering.copying import rows_program, runs_of_rows
from tilewright.isa.lowering.grouping import Group, groups_of
from tilewright.isa.lowering.padding import lower_pad
from tilewright.isa.lowering.picking import lower_dynamic_slice, lower_gather, lower_scatter
from tilewright.isa.lowering.products import lower_convolution, lower_product
from tilewright.isa.lowering.reading import MOVING, Reading, machine_type, operations
from tilewright.isa.lowering.steps import Job, Step
from tilewright.isa.lowering.tables import BYTES, Lowering, natural, whole
from tilewright.isa.lowering.tails import takes_product
from tilewright.isa.lowering.vectors import Region, specification, vector_jobs
from tilewright.isa.lowering.windows import lower_reduction, lower_windows, over_leading


def lower(block: Block, config: MatrixUnitConfig, apart: bool = False) -> Lowering:
    """All of a program as steps on tables; ``apart``: XLA's part runs in a process of its own."""
    reading = Reading.of(block, apart)
    lowering = Lowering(reading, config)
    for group in groups_of(reading, lambda node: Region.begun(reading, node), partial(takes_product, reading)):
        _lower_group(lowering, group)
    return lowering


def _lower_group(lowering: Lowering, group: Group) -> None:
    if group.product is not None:  # both in one program, or one after the other
        before = _kept(lowering)
        try:
            _product(lowering, group.product, group)
            _closed(lowering, len(before[-1]))
            return
        except TilewrightError:
            _take_back(lowering, before)
        alone = Group("matrix", [group.product], outputs=tuple(group.product.results))
        _lower_group(lowering, alone)
    before = _kept(lowering)
    node = group.nodes[0]
    try:
        if group.kind == "matrix":
            _product(lowering, node, None)
        elif node.name == "concatenate":
            _concatenate(lowering, node)
        elif node.name == "pad":
            lower_pad(lowering, node)
        elif node.name == "gather":
            _gather(lowering, node) if rows_of(node) else lower_gather(lowering, node)
        elif node.name == "dynamic_slice":
            lower_dynamic_slice(lowering, node)
        elif node.name == "scatter":
            lower_scatter(lowering, node)
        elif group.kind == "window":
            lower_windows(lowering, node)
        elif group.kind == "vector" and len(group.nodes) == 1 and node.name == "reduce" and over_leading(node):
            _leading(lowering, group)
        elif group.kind == "vector":
            _vector(lowering, group)
        else:
            raise UnsupportedError(_why(group.nodes))
    except TilewrightError as error:
        _take_back(lowering, before)
        _fall_back(lowering, group, str(error))
    _closed(lowering, len(before[-1]))


def _product(lowering: Lowering, node: Node, after: Group | None) -> None:
    lower_one = lower_product if node.name == "dot_general" else lower_convolution
    lower_one(lowering, node, after)


def _kept(lowering: Lowering) -> tuple[Any, ...]:
    places = {v: list(s) for v, s in lowering.places.items()}
    return dict(lowering.tables), places, dict(lowering.names), list(lowering.steps)


def _take_back(lowering: Lowering, kept: tuple[Any, ...]) -> None:
    """As if what failed had not begun."""
    tables, places, names, steps = kept
    lowering.tables, lowering.places, lowering.names, lowering.steps = tables, places, names, list(steps)


def _closed(lowering: Lowering, first: int) -> None:
    """Give the steps from ``first`` on what names elements before their operations, and what they take then."""
    for step in lowering.steps[first:]:
        if step.nodes:
            nodes, inputs = lowering.reading.closure(step.nodes, stop=())
            step.nodes, step.inputs = tuple(nodes), tuple(inputs)
        if step.fallback:
            found = [lowering.places[v][0].table for v in step.inputs if v in lowering.places]
            step.reads = tuple(table for table in found if lowering.tables[table].held is None)


def _why(nodes: list[Node]) -> str:
    names = dict.fromkeys(node.name for node in nodes if node.name not in MOVING)
    return f"the machine has no program for {', '.join(names) or nodes[0].name}"


def _fall_back(lowering: Lowering, group: Group, why: str) -> None:
    """XLA does it on the host, with the values as the machine made them."""
    outputs = group.outputs
    lowering.on_host |= set(outputs)
    work = sum(operations(node) for node in group.nodes)
    kinds = [node.name.removeprefix("chlo.") for node in group.nodes]
    name = lowering.name(kinds[0] if len(kinds) == 1 else "elements")
    lowering.steps.append(Step(name, "host", tuple(group.nodes), (), outputs, fallback=why, operations=work))


def _leading(lowering: Lowering, group: Group) -> None:
    """A reduction over dims that are not the last: a program of windows, else a copy with those dims behind."""
    before = _kept(lowering)
    try:
        lower_reduction(lowering, group.nodes[0])
    except TilewrightError:
        _take_back(lowering, before)
        _vector(lowering, group)


def _vector(lowering: Lowering, group: Group) -> None:
    """A region as one vector program."""
    outputs = group.outputs
    written = specification(lowering, group.region, group.nodes, outputs)
    jobs = vector_jobs(lowering, written)
    tables = [written.tables[each.name] for each in written.spec.inputs]
    made = [written.tables[out.name] for out in written.spec.outputs]
    work = sum(operations(node) for node in group.nodes)
    kinds = [node.name.removeprefix("chlo.") for node in group.nodes]
    name = lowering.name(kinds[0] if len(kinds) == 1 else "elements")
    lowering.steps.append(
        Step(name, "vector", tuple(group.nodes), (), outputs, jobs, "", tuple(tables), tuple(made), work)
    )


def _concatenate(lowering: Lowering, node: Node) -> None:
    """Every operand into its part of the result."""
    dim, out = node.attributes["dim"], node.result
    if machine_type(out) is None:
        raise UnsupportedError(f"the machine has no {out.dtype}")
    rank = len(out.sizes)
    groups: Any = (tuple(range(dim)), (dim,), tuple(range(dim + 1, rank)))
    groups = groups[:2] if dim == rank - 1 else groups
    sources = []
    for operand in node.operands:
        if not lowering.sources(operand):
            lowering.table(operand, natural(operand.sizes))
        sources.append(min(lowering.sources(operand), key=lambda s: len(s.coordinates)))
    table, at, name = lowering.new_table(out, groups), 0, lowering.name("concatenate")
    for part, (operand, source) in enumerate(zip(node.operands, sources, strict=True)):
        origin = (0, at, 0)[: len(groups)]
        lowering.copy_step(f"{name}.{part}", source, table, groups, origin)
        at += operand.sizes[dim]
    lowering.steps[-1].nodes, lowering.steps[-1].outputs = (node,), (out,)


def rows_of(node: Node) -> bool:
    """Whether a gather takes whole rows by one number each."""
    own, (x, numbers), out = node.attributes, node.operands, node.result
    first = len(out.sizes) - len(x.sizes) + 1
    plain = own["collapsed"] == own["index_map"] == (0,) and not own["batch"] and own["sizes"][1:] == x.sizes[1:]
    plain &= own["offset_dims"] == tuple(range(first, len(out.sizes))) and machine_type(numbers) == "s32"
    return bool(plain and own["index_dim"] >= len(numbers.sizes) - 1 and machine_type(out) is not None)


def _gather(lowering: Lowering, node: Node) -> None:
    """Rows of a table by their numbers."""
    (x, numbers), out = node.operands, node.result
    rest = tuple(range(1, len(x.sizes)))
    first = len(out.sizes) - len(rest)
    config = lowering.config
    a = lowering.table(x, ((0,), rest))
    i = lowering.table(numbers, (tuple(range(len(numbers.sizes))), ()))
    c = lowering.new_table(out, (tuple(range(first)), tuple(range(first, len(out.sizes)))))
    (rows, columns), (count, _) = lowering.tables[a].shape, lowering.tables[i].shape
    e = BYTES[lowering.tables[a].dtype]
    windows = tuple(
        (name, table, whole(lowering.tables[table].shape)) for name, table in (("A", a), ("I", i), ("C", c))
    )
    jobs = []
    for pe, (part,) in by_dim((runs_of_rows(columns, count, e),), 0, config.pes).items():
        share = part.base[0], part.base[0] + part.size[0]
        jobs.append(Job(pe, rows_program(rows, columns, count, e, share, config), windows))
    name = lowering.name("gather")
    lowering.steps.append(Step(name, "copy", (node,), (), (out,), tuple(jobs), reads=(a, i), writes=(c,)))
