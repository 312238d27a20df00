"""Room around values and between their elements, or less at their ends: copies into tables of that size."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.lowering.reading import machine_type
from tilewright.isa.lowering.sources import Groups
from tilewright.isa.lowering.tables import Lowering, natural


def lower_pad(lowering: Lowering, node: Node) -> None:
    """The operand into the middle of zeros, or of another number that is written there before."""
    own, (x, fill), out = node.attributes, node.operands, node.result
    if machine_type(out) is None:
        raise UnsupportedError(f"the machine has no {out.dtype}")
    sides = list(zip(own["low"], own["high"], own["interior"], strict=True))
    groups: list[tuple[int, ...]] = []
    for d, ends in enumerate(sides):
        if d and not any(ends) and not any(sides[d - 1]) and d < len(sides) - 1:
            groups[-1] += (d,)
        else:
            groups.append((d,))
    if len(groups) > 4:
        raise UnsupportedError("a pad of many dims")
    number = lowering.reading.number(fill)
    gaps = [gap + 1 for gap in own["interior"]]
    padded(lowering, x, out, tuple(groups), own["low"], gaps, "pad", None if number == 0 else fill)
    lowering.steps[-1].nodes, lowering.steps[-1].outputs = (node,), (out,)


def padded(
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
