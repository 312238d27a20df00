"""What only moves elements, as steps: concatenations, pads, gathers, dynamic slices, scatters to known places.

Each thread of a gather takes a run of the result, finds its place there, loads the numbers that belong to it, and with
them finds the place in the operand. What lies outside the operand is not loaded, and is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.lowering.reading import machine_type, operations
from tilewright.isa.lowering.sources import Groups, Step
from tilewright.isa.lowering.tables import BYTES, Lowering, constant, natural

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


_REGISTERS = 16
"""Registers of one load."""
_OUT, _SPACE = 282, 256
"""Registers of a run's place in the result, from here on; those of all runs on their way."""
_NUMBER, _DATA = 8, 12
"""Of a run: two registers for its place in the result, two for the numbers', four in the operand; numbers; elements."""
_BASE, _RUNS, _PLACE = 260, 64, 290
"""The same where elements are loaded one by one; the numbers of all of them; the place of one."""


@dataclass(frozen=True)
class Number:
    """One number of each column of a table: ``segment``, its row; brought to 0 to ``most`` (None: it is as it is)."""

    segment: str
    row: int
    most: int | None


@dataclass(frozen=True)
class Place:
    """One coordinate of ``$A``: a coordinate of the result plus an index loaded from memory, or one of the two."""

    dim: int | None = None
    number: int | None = None


@dataclass(frozen=True)
class PickPlan:
    """``out``: the result's dims; ``columns``: those that say in which column of their tables the numbers stand."""

    out: tuple[int, ...]
    places: tuple[Place, ...]
    numbers: tuple[Number, ...]
    columns: tuple[int, ...]
    element_bytes: int
    config: MatrixUnitConfig
    runs: tuple[int, int] = (0, 0)

    @property
    def contiguous(self) -> bool:
        """Whether neighbours along the last dim of the result are neighbours in the operand, too."""
        last = len(self.out) - 1
        return self.places[-1].dim == last and all(p.dim != last for p in self.places[:-1]) and last not in self.columns

    @property
    def run(self) -> int:
        """Neighbouring elements of the result that a thread moves."""
        size, most = self.out[-1], _REGISTERS * (4 // self.element_bytes if self.contiguous else 1)
        return -(-size // -(-size // most))

    @property
    def words(self) -> int:
        """Registers that hold a run."""
        return -(-self.run * self.element_bytes // 4)

    @property
    def limit(self) -> str:
        """The suffix of a load or store whose elements do not fill their registers."""
        return f".n{self.run}" if self.run * self.element_bytes % 4 else ""

    @property
    def count(self) -> int:
        """How many runs there are."""
        return prod(self.out[:-1]) * -(-self.out[-1] // self.run)


@lru_cache(maxsize=64)
def pick_program(plan: PickPlan) -> MachineProgram:
    """The program: ``$A`` and the numbers' segments to ``$C``, which folds all dims but the last."""
    segments = {name: 6 + n for n, name in enumerate(dict.fromkeys(number.segment for number in plan.numbers))}
    lines = ["segment ur3, $A", "segment ur5, $C", *(f"segment ur{ur}, ${name}" for name, ur in segments.items())]
    lines += ["tid r280", f"mov ur0, {plan.runs[0]}", "again:"]
    body = _runs_code if plan.contiguous else _elements_code
    lines += body(plan, [segments[number.segment] for number in plan.numbers])
    return assemble("\n".join([*lines, f"br.lt ur0, {plan.runs[1]}, again", "halt"]), plan.config)


def _runs_code(plan: PickPlan, handles: list[int]) -> list[str]:
    """Several runs of a thread on their way at once, so that it waits for memory once and not for each of them."""
    (first, end), threads, words, lines = plan.runs, plan.config.threads, plan.words, list[str]()
    in_flight = range(max(1, min(8, _SPACE // (_DATA + words), -(-(end - first) // threads))))
    bases = [u * (_DATA + words) for u in in_flight]
    for u, base in enumerate(bases):
        lines += ["add r281, r280, ur0", f"add r281, r281, {u * threads}", *_place_code(plan, base)]
        for n, number in enumerate(plan.numbers):
            where = f"ur{handles[n]}:rf{base + 2}:0x00"
            lines += [f"mov r{base + 3}, {number.row}", f"ld.n1 r{base + _NUMBER + n}, {where}, 1"]
    for base in bases:
        for n, number in enumerate(plan.numbers):
            at = base + _NUMBER + n
            lines += [f"max r{at}, r{at}, 0", f"min r{at}, r{at}, {number.most}"] if number.most is not None else []
        for d, place in enumerate(plan.places):
            if place.number is not None:
                at = base + 4 + len(plan.places) - 1 - d
                lines += [f"add r{at}, r{at}, r{base + _NUMBER + place.number}"]
        lines += [f"clr r{base + _DATA}, {words}", f"ld{plan.limit} r{base + _DATA}, ur3:rf{base + 4}:0x00, {words}"]
    for u, base in enumerate(bases):
        lines += ["add r281, r280, ur0", f"add r281, r281, {u * threads}", f"cmp.lt p1, r281, {end}"]
        lines += [f"@p1, st{plan.limit} r{base + _DATA}, ur5:rf{base}:0x00, {words}"]
    return [*lines, f"add ur0, ur0, {threads * len(bases)}"]


def _elements_code(plan: PickPlan, handles: list[int]) -> list[str]:
    """Code that loads the elements of a run one by one and stores them at once."""
    run, last, e = plan.run, len(plan.out) - 1, plan.element_bytes
    varies = last in plan.columns
    lines = ["add r281, r280, ur0", f"cmp.lt p1, r281, {plan.runs[1]}", *_place_code(plan, _BASE)]
    for n, number in enumerate(plan.numbers):
        at, count = _RUNS + run * n, run if varies else 1
        where = f"ur{handles[n]}:rf{_BASE + 2}:0x00"
        lines += [f"mov r{_BASE + 3}, {number.row}", f"@p1, ld.n{count} r{at}, {where}, {count}"]
        if number.most is not None:
            lines += [f"vi.max r{at}, r{at}, 0, {count}", f"vi.min r{at}, r{at}, {number.most}, {count}"]
    lines += [f"clr r0, {run}"]
    for k in range(run):
        for d, place in enumerate(plan.places):
            at = _PLACE + len(plan.places) - 1 - d
            own = _BASE + 4 + len(plan.places) - 1 - d
            if place.number is not None and (varies or not k):
                lines += [f"add r{at}, r{own}, r{_RUNS + run * place.number + k * varies}"]
            elif not k:
                lines += [f"mov r{at}, r{own}"]
            if place.dim == last and k:
                lines += [f"add r{at}, r{at}, {k if place.number is not None and varies else 1}"]
        lines += [f"@p1, ld.n1 r{k}, ur3:rf{_PLACE}:0x00, 1"]
    if e < 4:
        lines += [f"vcvt.to_u{e * 8}.from_u32.wrap r0, r0, {run}"]
    return [*lines, f"@p1, st{plan.limit} r0, ur5:rf{_BASE}:0x00, {plan.words}", f"add ur0, ur0, {plan.config.threads}"]


def _place_code(plan: PickPlan, base: int) -> list[str]:
    """Of run r281: its place in ``$C``, the numbers' column, and of its place in ``$A`` what the result's dims say."""
    lines, rank = [], len(plan.out)
    for d in reversed(range(rank)):
        at, size = _OUT + d, -(-plan.out[d] // plan.run) if d == rank - 1 else plan.out[d]
        lines += [f"rem r{at}, r281, {size}", f"div r281, r281, {size}"] if d else [f"mov r{at}, r281"]
        lines += [f"mul r{at}, r{at}, {plan.run}"] if d == rank - 1 and plan.run > 1 else []
    lines += [f"mov r{base}, r{_OUT + rank - 1}", *_fold_code(base + 1, range(rank - 1), plan.out)]
    lines += _fold_code(base + 2, plan.columns, plan.out)
    for d, place in enumerate(plan.places):
        at = base + 4 + len(plan.places) - 1 - d
        lines += [f"mov r{at}, r{_OUT + place.dim}" if place.dim is not None else f"mov r{at}, 0"]
    return lines


def _fold_code(register: int, dims: Sequence[int], sizes: tuple[int, ...]) -> list[str]:
    """Code that folds some coordinates of the result into one register."""
    if len(dims) < 2:
        return [f"mov r{register}, r{_OUT + dims[0]}" if dims else f"mov r{register}, 0"]
    lines = [f"mul r{register}, r{_OUT + dims[0]}, {prod(sizes[e] for e in dims[1:])}"]
    for place, d in enumerate(dims[1:], 2):
        lines += [f"mad r{register}, r{_OUT + d}, {prod(sizes[e] for e in dims[place:])}, r{register}"]
    return lines


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
    if len(kept) > 4 or len(numbers) > 4:
        raise UnsupportedError("the machine has no program for picking from so many dims")
    a = lowering.table(x, tuple((d,) for d in kept))
    c = lowering.new_table(out, natural(out.sizes))
    e, config = BYTES[lowering.tables[a].dtype], lowering.config
    plan = PickPlan(out.sizes, tuple(places[d] for d in kept), tuple(numbers), columns, e, config)
    jobs = lowering.jobs(plan.count, lambda runs: pick_program(replace(plan, runs=runs)), A=a, **tables, C=c)
    name, reads = lowering.name(node.name), (a, *tables.values())
    lowering.steps.append(Step(name, "copy", (node,), (), (out,), jobs, "", reads, (c,), operations(node)))
