"""What only moves elements, as steps: concatenations, pads, gathers, dynamic slices, scatters to known places.

A gather is a copy whose places in the operand have numbers added that stand in memory (:class:`CopyPlan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.lowering.reading import machine_type, operations
from tilewright.isa.lowering.sources import Coordinate, Groups, Source, Step
from tilewright.isa.lowering.tables import BYTES, CopyPlan, Lowering, Number, constant, copy_program, natural

# Room around values and between their elements, or less at their ends: copies into tables of that size.


def lower_pad(lowering: Lowering, node: Node) -> None:
    """The operand into the middle of zeros, or of another number that is written there before."""
    own, (x, fill), out = node.attributes, node.operands, node.result
    if machine_type(out) is None:
        raise UnsupportedError(f"the machine has no {out.dtype}")
    sides = list(zip(own["low"], own["high"], own["interior"], strict=True))
    alone = [d for d, ends in enumerate(sides) if any(ends) or d == len(sides) - 1]
    groups = tuple(tuple(run) for _, run in groupby(range(len(sides)), lambda d: d if d in alone else -1))
    if len(groups) > 4:
        raise UnsupportedError("a pad of many dims")
    number = lowering.reading.number(fill)
    gaps = [gap + 1 for gap in own["interior"]]
    copy_padded(lowering, x, out, groups, own["low"], gaps, "pad", None if number == 0 else fill)
    lowering.steps[-1].nodes, lowering.steps[-1].outputs = (node,), (out,)


def copy_padded(
    lowering: Lowering,
    x: Value,
    out: Value,
    groups: Groups,
    low: Sequence[int],
    gaps: Sequence[int],
    kind: str,
    fill: Value | None = None,
) -> str:
    """A table for ``out``: element i of ``x`` along a dim is at ``low`` + i * gap; the others are ``fill``, or 0."""
    first = [max(0, -(before // gap)) for before, gap in zip(low, gaps, strict=True)]
    several = zip(x.sizes, out.sizes, low, gaps, strict=True)
    end = [min(count, (size - 1 - before) // gap + 1) for count, size, before, gap in several]
    if any(a >= b for a, b in zip(first, end, strict=True)):
        raise UnsupportedError("padding that leaves nothing of the operand")
    if not lowering.sources(x):
        lowering.table(x, natural(x.sizes))
    cuts = first, end, [1] * len(first)
    found = [source.sliced(*cuts) for source in lowering.sources(x)]
    parts = [source for source in found if source is not None]
    if not parts:
        lowering.copy(x, natural(x.sizes))
        parts = [source for source in (lowering.places[x][-1].sliced(*cuts),) if source is not None]
    part = min(parts, key=lambda source: len(source.coordinates))
    table, name = lowering.new_table(out, groups), lowering.name(kind)
    if fill is not None:
        if not lowering.sources(fill):
            lowering.table(fill, natural(fill.sizes))
        everywhere = lowering.sources(fill)[0].broadcast(out.sizes, ())
        lowering.copy_step(f"{name}.around", everywhere, table, groups, [0] * len(groups))
    begins = [low[g[0]] + first[g[0]] * gaps[g[0]] if len(g) == 1 else 0 for g in groups]
    lowering.copy_step(name, part, table, groups, begins, [gaps[g[0]] if len(g) == 1 else 1 for g in groups])
    return table


def lower_concatenate(lowering: Lowering, node: Node) -> None:
    """Lower a ``concatenate``: copy every operand into its part of the result."""
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


# Elements by numbers that stand in memory.


@dataclass(frozen=True)
class Place:
    """One coordinate of the operand: a coordinate of the result plus an index loaded from memory, or one of the two."""

    dim: int | None = None
    number: int | None = None


def lower_gather(lowering: Lowering, node: Node) -> None:
    """Lower any ``gather`` without batching dims."""
    own, (x, numbers), out = node.attributes, node.operands, node.result
    if own["batch"] or own["indices_batch"]:
        raise UnsupportedError("a gather with batches")
    deep = own["index_dim"]
    if deep < len(numbers.sizes) - 1:
        raise UnsupportedError("the machine has no program for a gather with its numbers apart")
    rows = tuple(d for d in range(len(out.sizes)) if d not in own["offset_dims"])
    kept = iter(own["offset_dims"])
    along = [None if d in own["collapsed"] else next(kept) for d in range(len(x.sizes))]
    most = [size - taken for size, taken in zip(x.sizes, own["sizes"], strict=True)]
    order = {d: n for n, d in enumerate(own["index_map"])}
    places = [Place(dim, order.get(d)) for d, dim in enumerate(along)]
    found = [Number("I", n, most[d]) for n, d in enumerate(own["index_map"])]
    groups = tuple(range(deep, len(numbers.sizes))), tuple(range(min(deep, len(numbers.sizes))))
    _add_pick(lowering, node, x, places, found, rows, {"I": _numbers(lowering, numbers, groups)})


def lower_dynamic_slice(lowering: Lowering, node: Node) -> None:
    """Lower a ``dynamic_slice``: its start indices are loaded and clamped."""
    x, *starts = node.operands
    places = [Place(d, d) for d in range(len(x.sizes))]
    most = [size - taken for size, taken in zip(x.sizes, node.attributes["sizes"], strict=True)]
    found = [Number(f"I{d}", 0, end) for d, end in enumerate(most)]
    tables = {f"I{d}": _numbers(lowering, start, ((), ())) for d, start in enumerate(starts)}
    _add_pick(lowering, node, x, places, found, (), tables)


def lower_scatter(lowering: Lowering, node: Node) -> None:
    """Numbers that are known, each of them once, into zeros: every element of the result knows what comes to it."""
    own = node.attributes
    if len(node.operands) != 3 or own.get("monoid") != "add" or own["batch"] or own["indices_batch"]:
        raise UnsupportedError("the machine has no program for scatter")
    (x, numbers, updates), reading = node.operands, lowering.reading
    known, start = constant(reading, numbers), reading.number(x)
    if known is None or start is None or start != 0:
        raise UnsupportedError("the machine has no program for a scatter to places that are not known beforehand")
    deep, indexed = own["index_dim"], own["index_map"]
    if deep < len(numbers.sizes) - 1 or set(own["inserted"]) != set(indexed):
        raise UnsupportedError("the machine has no program for a scatter of other than single places")
    rows = tuple(d for d in range(len(updates.sizes)) if d not in own["window_dims"])
    places = known.reshape(-1, len(indexed)).astype(np.int64)
    sizes = tuple(x.sizes[d] for d in indexed)
    inside = ((places >= 0) & (places < sizes)).all(1)
    flat = np.ravel_multi_index(tuple(places[inside].T), sizes)
    windows = [updates.sizes[d] for d in own["window_dims"]]
    whole_ = windows == [size for d, size in enumerate(x.sizes) if d not in indexed]
    if len(np.unique(flat)) < len(flat) or not whole_:
        raise UnsupportedError("the machine has no program for a scatter of several to one place")
    comes = np.full((len(rows), prod(sizes)), -1, np.int32)
    where = np.unravel_index(np.flatnonzero(inside), [updates.sizes[d] for d in rows])
    comes[:, flat] = np.stack(where)
    value = Value(comes.shape, "i32")
    reading.constants[value] = comes
    through = iter([d for d in range(len(x.sizes)) if d not in indexed])
    order = {d: n for n, d in enumerate(rows)}
    found = [Number("I", n, None) for n in range(len(rows))]
    made = [Place(None, order[d]) if d in order else Place(next(through)) for d in range(len(updates.sizes))]
    table = _numbers(lowering, value, ((0,), (1,)))
    _add_pick(lowering, node, updates, made, found, tuple(indexed), {"I": table})


def _numbers(lowering: Lowering, value: Value, groups: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    if machine_type(value) != "s32":
        raise UnsupportedError(f"the machine has no program for places of type {value.dtype}")
    return lowering.table(value, groups)


def _add_pick(
    lowering: Lowering,
    node: Node,
    x: Value,
    places: list[Place],
    numbers: list[Number],
    columns: tuple[int, ...],
    tables: dict[str, str],
) -> None:
    out, dims = node.result, range(len(x.sizes))
    if machine_type(out) is None or not out.sizes:
        raise UnsupportedError(f"the machine has no {out!r}")
    kept = [d for d in dims if x.sizes[d] > 1] or [len(x.sizes) - 1]  # the others' only place is 0
    if len(kept) > 4 or len(numbers) > 4 or len(out.sizes) > 8:
        raise UnsupportedError("the machine has no program for picking from so many dims")
    a = lowering.table(x, tuple((d,) for d in kept))
    c = lowering.new_table(out, natural(out.sizes))
    rank = len(out.sizes)
    chosen = [places[d] for d in reversed(kept)]
    picked = tuple(Coordinate(0, tuple(int(place.dim == d) for d in range(rank))) for place in chosen)
    *writes, column = Source.of("", out.sizes, (*natural(out.sizes)[::-1], columns)).coordinates
    plan = CopyPlan(
        *(out.sizes, picked, tuple(writes), BYTES[lowering.tables[a].dtype], lowering.config, tuple(numbers)),
        added=tuple(place.number for place in chosen),
        column=column,
    )
    jobs = lowering.jobs(plan.count, lambda runs: copy_program(replace(plan, runs=runs)), A=a, **tables, C=c)
    name, reads = lowering.name(node.name), (a, *tables.values())
    lowering.steps.append(Step(name, "copy", (node,), (), (out,), jobs, "", reads, (c,), operations(node)))
