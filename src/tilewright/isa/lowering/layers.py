"""From a program's operations to steps: each group by what lowers it, and by XLA on the host where nothing does."""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo import Block
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.lowering import moves
from tilewright.isa.lowering.products import lower_convolution, lower_product
from tilewright.isa.lowering.reading import MOVING, Group, Reading, group_operations
from tilewright.isa.lowering.sources import Step
from tilewright.isa.lowering.tables import Lowering
from tilewright.isa.lowering.vectors import Region, specification, takes_product, vector_jobs
from tilewright.isa.lowering.windows import lower_reduction, lower_windows, over_leading


def lower(block: Block, config: MatrixUnitConfig, apart: bool = False) -> Lowering:
    """All of a program as steps on tables; ``apart``: XLA's part runs in a process of its own."""
    reading = Reading.of(block, apart)
    lowering = Lowering(reading, config)
    new_region = partial(Region.starting_at, reading)
    for group in group_operations(reading, new_region, partial(takes_product, reading)):
        _lower_group(lowering, group)
    return lowering


_PRODUCTS = {"dot_general": lower_product, "convolution": lower_convolution}
_ALONE = {
    "concatenate": moves.lower_concatenate,
    "pad": moves.lower_pad,
    "gather": moves.lower_gather,
    "dynamic_slice": moves.lower_dynamic_slice,
    "scatter": moves.lower_scatter,
    "reduce_window": lower_windows,
}
"""What lowers the operations that are a layer of their own."""


def _lower_group(lowering: Lowering, group: Group) -> None:
    if group.product is not None:  # both in one program, or one after the other
        before = _snapshot(lowering)
        try:
            _PRODUCTS[group.product.name](lowering, group.product, group)
            _complete(lowering, len(before[-1]))
            return
        except TilewrightError:
            _restore(lowering, before)
        alone = Group("matrix", [group.product], outputs=tuple(group.product.results))
        _lower_group(lowering, alone)
    before = _snapshot(lowering)
    node = group.nodes[0]
    try:
        if group.kind == "matrix":
            _PRODUCTS[node.name](lowering, node, None)
        elif node.name in _ALONE:
            _ALONE[node.name](lowering, node)
        elif group.kind == "vector" and len(group.nodes) == 1 and node.name == "reduce" and over_leading(node):
            _leading(lowering, group)
        elif group.kind == "vector":
            _vector(lowering, group)
        else:
            names = dict.fromkeys(node.name for node in group.nodes if node.name not in MOVING)
            raise UnsupportedError(f"the machine has no program for {', '.join(names) or node.name}")
    except TilewrightError as error:
        _restore(lowering, before)
        _fall_back(lowering, group, str(error))
    _complete(lowering, len(before[-1]))


def _snapshot(lowering: Lowering) -> tuple[Any, ...]:
    places = {v: list(s) for v, s in lowering.places.items()}
    return dict(lowering.tables), places, dict(lowering.names), list(lowering.steps)


def _restore(lowering: Lowering, kept: tuple[Any, ...]) -> None:
    """Undo a lowering that failed: back to a :func:`_snapshot`."""
    tables, places, names, steps = kept
    lowering.tables, lowering.places, lowering.names, lowering.steps = tables, places, names, list(steps)


def _complete(lowering: Lowering, first: int) -> None:
    """Give the steps from ``first`` on what names elements before their operations, and what they take then."""
    for step in lowering.steps[first:]:
        if step.nodes:
            nodes, inputs = lowering.reading.closure(step.nodes, stop=())
            step.nodes, step.inputs = tuple(nodes), tuple(inputs)
        if step.fallback:
            found = [lowering.places[v][0].table for v in step.inputs if v in lowering.places]
            step.reads = tuple(table for table in found if lowering.tables[table].held is None)


def _fall_back(lowering: Lowering, group: Group, why: str) -> None:
    """A step that XLA computes on the host, from the values the machine made."""
    lowering.on_host |= set(group.outputs)
    name, nodes = lowering.name(group.label), tuple(group.nodes)
    lowering.steps.append(Step(name, "host", nodes, (), group.outputs, fallback=why, operations=group.operations))


def _leading(lowering: Lowering, group: Group) -> None:
    """A reduction over dims that are not the last: a program of windows, else a copy with those dims behind."""
    before = _snapshot(lowering)
    try:
        lower_reduction(lowering, group.nodes[0])
    except TilewrightError:
        _restore(lowering, before)
        _vector(lowering, group)


def _vector(lowering: Lowering, group: Group) -> None:
    """Lower a region as one vector program."""
    spec, tables = specification(lowering, group.region, group.nodes, group.outputs)
    jobs = vector_jobs(lowering, spec, tables)
    reads, writes = (tuple(tables[each.name] for each in several) for several in (spec.inputs, spec.outputs))
    name, nodes = lowering.name(group.label), tuple(group.nodes)
    lowering.steps.append(Step(name, "vector", nodes, (), group.outputs, jobs, "", reads, writes, group.operations))
