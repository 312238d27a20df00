"""A derivation in words: how the steps of a map take an index to its address, number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.layout._index_map import Axis, IndexMap
from tilewright.layout._lineage import dim_names, program_sizes, step_levels
from tilewright.layout._steps import Merge, Pad, Permute, Rotate, Split, Step, Unit
from tilewright.layout._tiled import TensorLayout

__all__ = ["Coordinate", "Derivation", "derive", "explain", "explain_place"]


@dataclass(frozen=True)
class Coordinate:
    """A number on its way: what it is, its value, its size, and the tile level that made it."""

    label: str
    value: int
    size: int
    level: int = 0


@dataclass(frozen=True)
class Derivation:
    """How one element gets its address.

    ===============  =====================================================================
    ``lines``        (heading, sentence) pairs, to be read from top to bottom
    ``coordinates``  what the linearisation reads
    ``expressions``  per axis, the arithmetic that ends in the address
    ``address``      per axis, the value
    ===============  =====================================================================
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    coordinates: tuple[Coordinate, ...]
    expressions: dict[str, str]
    address: dict[str, int]

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        body = (f"{heading:<{width}}  {text}".rstrip() for heading, text in self.lines)
        return "\n".join([self.title, "", *body])


def explain(layout: IndexMap, *index: int) -> str:
    """The derivation of an element's address, as text.

    >>> from tilewright.layout import parse
    >>> print(explain(parse("f32[3,5]{1,0:T(2,2)}"), 2, 3))
    f32[3,5]{1,0:T(2,2)}, element (2,3)
    <BLANKLINE>
    dims      (d0,d1) = (2,3) of (3,5), major to minor
    T(2,2)    d0: 2 = 1*2 + 0    tile 1 of 2 (ceil 3/2), place 0 of 2
              d1: 3 = 1*2 + 1    tile 1 of 3 (ceil 5/2), place 1 of 2
              tile (1,1), inside (0,1)
    together  (1,1,0,1) of (2,3,2,2)
    offset    (1*3+1)*4+1 = 17
    place     element 17 of 24, byte 68 of 96
    """
    return str(derive(layout, index))


def derive(layout: IndexMap, index: Sequence[int]) -> Derivation:
    """The derivation of an element's address."""
    address = layout.address(*index)  # checks the index
    now, lines = _begin(layout, index)
    sizes = program_sizes(layout)
    levels = step_levels(layout)
    for k, step in enumerate(layout.steps):
        level = None if levels is None else levels[k]
        before = now
        now = _advance(step, now, sizes[k], level)
        lines += [(_heading(layout, level), said) for said in _say(step, before, now)]
        if levels is not None and level and (k + 1 == len(levels) or levels[k + 1] != level):
            lines.append(("", _both_parts(now, level)))
    lines = _without_repeats(lines)
    lines.append(("together", f"{_vector(c.value for c in now)} of {_vector(c.size for c in now)}"))
    expressions = {axis.name: _expression(axis, now) for axis in layout.axis_terms}
    lines += [(name, f"{text} = {address[name]}") for name, text in expressions.items()]
    lines.append(("place", _in_memory(layout, address)))
    return Derivation(f"{layout}, element {_vector(index)}", tuple(lines), tuple(now), expressions, address)


def explain_place(layout: IndexMap, *place: int) -> str:
    """What lies at a place (axis values in the order of ``.axes``): an element and its derivation, or padding and why.

    >>> from tilewright.layout import parse
    >>> print(explain_place(parse("f32[3,5]{1,0:T(2,2)}"), 9))
    f32[3,5]{1,0:T(2,2)}, offset 9: padding; no element of the array lies there
    """
    found = layout.index(*place)  # checks the place
    where = ", ".join(f"{name} {value}" for name, value in zip(layout.axes, place, strict=True))
    if found is None:
        return f"{layout}, {where}: padding; no element of the array lies there"
    return f"{layout}, {where}: element {_vector(found)}\n\n{explain(layout, *found)}"


# -- the beginning ------------------------------------------------------------------------------------------------


def _begin(layout: IndexMap, index: Sequence[int]) -> tuple[list[Coordinate], list[tuple[str, str]]]:
    names = dim_names(layout)
    lines: list[tuple[str, str]] = []
    if layout.origin:
        names = tuple(f"{n}-{first}" if first else n for n, first in zip(names, layout.origin, strict=True))
        lines.append(("start", f"the segment begins at {_vector(layout.origin)} of its tensor"))
    first = layout.origin or (0,) * layout.rank
    values = [value - low for value, low in zip(index, first, strict=True)]
    now = [Coordinate(n, int(v), size) for n, v, size in zip(names, values, layout.shape, strict=True)]
    if not layout.rank:
        lines.append(("dims", "none: a single element"))
    elif not (layout.steps and isinstance(layout.steps[0], Permute) and len(layout.steps[0].order) == layout.rank):
        order = ", major to minor" if isinstance(layout, TensorLayout) and layout.rank > 1 else ""
        lines.append(("dims", _assignment(now) + order))
    return now, lines


def _heading(layout: IndexMap, level: int | None) -> str:
    if level and isinstance(layout, TensorLayout):
        return f"T({','.join('*' if t == -1 else str(t) for t in layout.tiles[level - 1])})"
    return "dims" if level == 0 else "then"


def _without_repeats(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each heading once: a blank where it continues, so that a level reads as a block."""
    kept, last = [], ""
    for heading, text in lines:
        kept.append(("" if heading == last else heading, text))
        last = heading or last
    return kept


# -- one step -----------------------------------------------------------------------------------------------------


def _advance(step: Step, now: list[Coordinate], sizes: tuple[int, ...], level: int | None) -> list[Coordinate]:
    """The coordinates behind a step: values and sizes by the step itself, labels and levels beside them."""
    values = step.forward([c.value for c in now], sizes)
    after = step.sizes(sizes)
    tags = _tags(step, now, level)
    return [Coordinate(tag, int(v), n, lev) for (tag, lev), v, n in zip(tags, values, after, strict=True)]


def _tags(step: Step, now: list[Coordinate], level: int | None) -> list[tuple[str, int]]:
    tags = [(c.label, c.level) for c in now]
    match step:
        case Permute():
            return [tags[k] for k in step.order]
        case Unit():
            return [*tags[: step.dim], ("1", 0), *tags[step.dim :]]
        case Merge():
            (major, lev), (minor, _) = tags[step.dim], tags[step.dim + 1]
            return [*tags[: step.dim], (f"{_wrap(major)}*{now[step.dim + 1].size}+{minor}", lev), *tags[step.dim + 2 :]]
        case Split():
            name, lev = tags[step.dim]
            inside = lev + 1 if level is None else level
            pair = [(f"{_wrap(name)} div {step.tile}", lev), (f"{_wrap(name)} mod {step.tile}", inside)]
            return [*tags[: step.dim], *pair, *tags[step.dim + 1 :]]
        case Pad() if step.low:
            return [*tags[: step.dim], (f"{tags[step.dim][0]}+{step.low}", tags[step.dim][1]), *tags[step.dim + 1 :]]
        case Rotate() if step.by:
            label = f"({_wrap(tags[step.dim][0])}+{step.by}) mod {now[step.dim].size}"
            return [*tags[: step.dim], (label, tags[step.dim][1]), *tags[step.dim + 1 :]]
    return tags


def _say(step: Step, before: list[Coordinate], after: list[Coordinate]) -> list[str]:
    """What a step does to this element; nothing where it does nothing."""
    match step:
        case Permute():
            return [_assignment(after) + ", major to minor"] if _first_order(before, after) else []
        case Unit():
            return ["the tile has more dims than the array: a dim of size 1 is put before them"]
        case Merge():
            major, minor, whole = before[step.dim], before[step.dim + 1], after[step.dim]
            sum_ = f"{major.value}*{minor.size}+{minor.value} = {whole.value}"
            return [f"* combines {major.label} and {minor.label}: {sum_} of {major.size}*{minor.size} = {whole.size}"]
        case Split():
            return [_cut(before[step.dim], after[step.dim], after[step.dim + 1])]
        case Pad() if step.low:
            c = before[step.dim]
            return [
                f"{c.label}: {step.low} places stay free before it, {c.value} + {step.low} = {after[step.dim].value}"
            ]
        case Rotate() if step.by:
            c = before[step.dim]
            turned = f"({c.value} + {step.by}) mod {c.size} = {after[step.dim].value}"
            return [f"{c.label}: turned by {step.by}, {turned}"]
    return []


def _first_order(before: list[Coordinate], after: list[Coordinate]) -> bool:
    """Whether a Permute brings dims into physical order (later ones only move tile coordinates inward)."""
    return all(c.level == 0 and " " not in c.label for c in before) and len(before) == len(after)


def _cut(whole: Coordinate, number: Coordinate, inside: Coordinate) -> str:
    equation = f"{whole.label}: {whole.value} = {number.value}*{inside.size} + {inside.value}"
    many = f"{number.size} (ceil {whole.size}/{inside.size})" if whole.size % inside.size else f"{number.size}"
    return f"{equation}    tile {number.value} of {many}, place {inside.value} of {inside.size}"


def _both_parts(now: list[Coordinate], level: int) -> str:
    outer, inner = (_vector(c.value for c in now if (c.level == level) is side) for side in (False, True))
    return f"tile {outer}, inside {inner}"


# -- the end ------------------------------------------------------------------------------------------------------


def _expression(axis: Axis, coordinates: Sequence[Coordinate]) -> str:
    """The arithmetic of one axis: nested products where strides nest, level by level; else a sum of products."""
    live = [(coordinates[c], stride) for c, stride in axis.terms if coordinates[c].size > 1]
    if not live:
        return "0"
    following = [math.prod(c.size for c, _ in live[k + 1 :]) for k in range(len(live))]
    if [stride for _, stride in live] != following:
        return " + ".join(f"{c.value}*{stride}" if stride != 1 else f"{c.value}" for c, stride in live)
    groups: list[list[Coordinate]] = []
    for c, _ in live:
        if groups and groups[-1][-1].level == c.level:
            groups[-1].append(c)
        else:
            groups.append([c])
    text = "0"
    for group in groups:
        inner = _nested([(str(c.value), c.size) for c in group])
        text = _nested([(text, 0), (_wrap(inner), math.prod(c.size for c in group))])
    return text


def _nested(digits: list[tuple[str, int]]) -> str:
    """(value, size) pairs as nested products; leading zeros say nothing and are left out."""
    text = "0"
    for value, size in digits:
        text = value if text == "0" else f"{_wrap(text)}*{size}+{value}"
    return text


def _wrap(text: str) -> str:
    return f"({text})" if any(sign in text for sign in "+* ") and not _wrapped(text) else text


def _wrapped(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth and at + 1 < len(text):
            return False
    return True


def _in_memory(layout: IndexMap, address: dict[str, int]) -> str:
    *outer, inner = layout.axis_terms
    at = address[inner.name] * layout.element_bits
    byte = f"byte {at // 8}" if at % 8 == 0 else f"bit {at % 8} of byte {at // 8}"
    total = -(-inner.extent * layout.element_bits // 8)
    if not outer:
        return f"element {address[inner.name]} of {inner.extent}, {byte} of {total}"
    where = ", ".join(f"{axis.name} {address[axis.name]} of {axis.extent}" for axis in outer)
    return f"{where}; there element {address[inner.name]} of {inner.extent}, {byte} of {total}"


def _vector(values: Any) -> str:
    return f"({','.join(str(value) for value in values)})"


def _assignment(now: Sequence[Coordinate]) -> str:
    return f"{_vector(c.label for c in now)} = {_vector(c.value for c in now)} of {_vector(c.size for c in now)}"
