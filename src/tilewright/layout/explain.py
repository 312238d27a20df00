"""Layouts in words: how one element gets its address, number by number, and the facts of the whole.

A derivation reads what becomes of every dim on its way through the steps, as pictures do. A tile cuts a dim's
coordinate into a tile's number and a place inside the tile, and the next tile may cut either of them again. The
coordinates at the end of the program that stem from one dim are its :class:`Leaf` values, from major to minor, so that

    position along the dim, padding included = the leaves' values in the mixed radix of their sizes
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

from tilewright.layout.index.address_map import AddressMap, Axis, solutions
from tilewright.layout.index.steps import Merge, NewDim, Pad, Permute, Rotate, Split, Step, replaced
from tilewright.layout.index.types import UNBOUNDED, memory_name
from tilewright.render import Column, bytes_text
from tilewright.render.tables import glance, glance_table


@dataclass(frozen=True, order=True)
class Leaf:
    """A final coordinate: its place in the list, its size, and the tile level that made it (0: outside all tiles)."""

    place: int
    size: int
    level: int


@dataclass(frozen=True)
class DrawnDim:
    """A dim as it is drawn: its name, the logical dims it counts (several if combined, none if cut), size, leaves."""

    name: str
    parts: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    size: int = 1

    @property
    def logical(self) -> int | None:
        """The one logical dim it is; None where it is combined of several, or made by a tile."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def extent(self) -> int:
        """Positions along the dim, padding included."""
        return math.prod(leaf.size for leaf in self.leaves)

    def period(self, level: int) -> int | None:
        """Positions from one tile of this level to the next, or None where the level does not cut the dim."""
        for at, leaf in enumerate(self.leaves):
            if leaf.level == level:
                return math.prod(inner.size for inner in self.leaves[at:])
        return None


def dim_order(layout: AddressMap) -> tuple[int, ...] | None:
    """The order into which the first step brings the dims, major first; None where they stay as they are."""
    first = layout.steps[0] if layout.steps else None
    return first.order if isinstance(first, Permute) and len(first.order) == layout.rank else None


def _start(layout: AddressMap) -> tuple[int, list[str], list[tuple[int, ...]]]:
    """The step behind the last Merge, and the names and logical dims of the coordinates there, major to minor."""
    names: list[str] = list(layout.dim_names)
    parts: list[tuple[int, ...]] = [(k,) for k in range(layout.rank)]
    start = max((k + 1 for k, step in enumerate(layout.steps) if isinstance(step, Merge)), default=0)
    for step in layout.steps[:start]:
        match step:
            case Permute():
                names, parts = [names[k] for k in step.order], [parts[k] for k in step.order]
            case NewDim():
                names, parts = ["", *names], [(), *parts]
            case Merge(at):
                whole = parts[at] + parts[at + 1] if parts[at] and parts[at + 1] else ()
                names = replaced(names, at, 2, [f"{names[at]}*{names[at + 1]}"])
                parts = replaced(parts, at, 2, [whole])
            case Split(at, tile):
                names = replaced(names, at, 1, [f"{names[at]} div {tile}", f"{names[at]} mod {tile}"])
                parts = replaced(parts, at, 1, [(), ()])
    order = dim_order(layout)
    if start == 0 and order is not None:
        return 1, [names[k] for k in order], [parts[k] for k in order]
    return start, names, parts


def lineage(layout: AddressMap) -> tuple[DrawnDim, ...]:
    """The dims as they are drawn, major to minor: those behind the last `*`, each with its leaves.

    >>> from tilewright.layout import parse
    >>> [(d.name, d.size, d.extent, d.period(1)) for d in lineage(parse("f32[3,5]{1,0:T(2,2)}"))]
    [('d0', 3, 4, 2), ('d1', 5, 6, 2)]
    """
    start, names, parts = _start(layout)
    levels = layout.step_levels
    now = [(dim, "", 0) for dim in range(len(names))]  # of every coordinate: dim, place among its leaves, level
    for k, step in enumerate(layout.steps[start:], start=start):
        match step:
            case Permute(order):
                now = [now[at] for at in order]
            case NewDim(at):
                names, parts = [*names, ""], [*parts, ()]
                now.insert(at, (len(names) - 1, "", 0))
            case Split(at, _):
                dim, path, level = now[at]
                inside = level + 1 if levels is None else levels[k]
                now[at : at + 1] = [(dim, f"{path}0", level), (dim, f"{path}1", inside)]
    behind = layout.step_sizes[-1]
    leaves = sorted((dim, path, Leaf(place, behind[place], level)) for place, (dim, path, level) in enumerate(now))
    own = {dim: tuple(leaf for _, _, leaf in group) for dim, group in groupby(leaves, key=itemgetter(0))}
    sizes = layout.step_sizes[start]
    drawn = [DrawnDim(names[d], parts[d], own[d], sizes[d] if d < len(sizes) else 1) for d in range(len(names))]
    return (*reversed(drawn[len(sizes) :]), *drawn[: len(sizes)])


def position_of(layout: AddressMap, index: Sequence[int], dim: DrawnDim) -> int:
    """Where an element stands along a drawn dim.

    >>> from tilewright.layout import parse
    >>> layout = parse("f32[3,4,5]{2,1,0:T(*,2)}")
    >>> [position_of(layout, (2, 1, 3), dim) for dim in lineage(layout)]
    [2, 8]
    """
    values = _states(layout, index)[-1]
    position = 0
    for leaf in dim.leaves:
        position = position * leaf.size + values[leaf.place].value
    return position


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

    layout: str
    index: tuple[int, ...]
    lines: tuple[tuple[str, str], ...]
    coordinates: tuple[Coordinate, ...]
    expressions: dict[str, str]
    address: dict[str, int]

    def __str__(self) -> str:
        width = max(len(heading) for heading, _ in self.lines)
        body = (f"{heading:<{width}}  {text}".rstrip() for heading, text in self.lines)
        return "\n".join([f"{self.layout}, element {_vector(self.index)}", "", *body])


def explain(layout: AddressMap, *index: int) -> str:
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
    memory    slot 17 of 24, byte 68 of 96
    """
    return str(derive(layout, index))


_MOST_STEPS = 200  # of thousands of tile levels nobody reads more, and their names grow with every level
_MOST_SHOWN = 64  # coordinates


def derive(layout: AddressMap, index: Sequence[int]) -> Derivation:
    """The derivation of an element's address; behind two hundred steps only what they come to."""
    address = layout.address(*index)  # checks the index
    states = _states(layout, index)
    lines = _begin(layout, states[0])
    levels = layout.step_levels
    taken = len(states) - 1
    for k, step in enumerate(layout.steps[:taken]):
        level = levels[k] if levels else None
        sentences = _sentences(step, states[k], states[k + 1], _part_names(layout, k))
        heading = layout.level_names[level - 1] if level else "dims" if level == 0 or not layout.rank else "steps"
        heading = "mesh" if layout.part_names(k) else heading
        lines += [(heading, sentence) for sentence in sentences]
        if levels and level and levels[k + 1 : k + 2] != (level,):
            tiled = states[k + 1][layout.outer_coordinates :]
            outer, inner = (_vector(c.value for c in tiled if (c.level == level) is s) for s in (False, True))
            lines.append(("", f"{'tile' if level == 1 else 'outside'} {outer}, inside {inner}"))
    now = states[-1]
    lines = _in_columns(lines)
    if taken < len(layout.steps):
        values: list[Any] = [int(value) - low for value, low in zip(index, layout.first_index, strict=True)]
        for step, sizes in zip(layout.steps, layout.step_sizes, strict=False):
            values = step.forward(values, sizes)
        now = [Coordinate("", value, size) for value, size in zip(values, layout.step_sizes[-1], strict=True)]
        lines.append(("", f"... and {len(layout.steps) - taken} steps more, not written out"))
    numbers = (_vector(numbers, _MOST_SHOWN) for numbers in ([c.value for c in now], [c.size for c in now]))
    lines.append(("together", " of ".join(numbers)))
    expressions = {axis.name: _expression(axis, now) for axis in layout.axis_terms}
    if layout.scrambles:
        name, place = layout.axes[-1], address[layout.axes[-1]]
        plain = sum(now[c].value * stride for c, stride in layout.axis_terms[-1].terms)
        expressions[name] = f"({expressions[name]}) xor {plain ^ place}"
    for name, text in expressions.items():
        shown = layout.address_text(name, text)
        lines.append((name, shown if shown == str(address[name]) else f"{shown} = {address[name]}"))
    lines.append(("memory", _in_memory(layout, address)))
    if layout.replicas > 1:
        holders = [str(device) for device, _ in layout.where(*index)]
        lines.append(("copies", f"on the {layout.axes[0]}s {', '.join(holders[:_MOST_SHOWN])}"))
    return Derivation(str(layout), tuple(index), tuple(lines), tuple(now), expressions, address)


def explain_place(layout: AddressMap, *place: int) -> str:
    """What lies at a place (axis values in the order of ``.axes``): an element and its derivation, or padding and why.

    >>> from tilewright.layout import parse
    >>> print(explain_place(parse("f32[3,5]{1,0:T(2,2)}"), 9))
    f32[3,5]{1,0:T(2,2)}, offset 9: padding
    <BLANKLINE>
    d1 = 2*2 + 1 = 5 would be outside 0..4
    """
    index, where = layout.index(*place), layout.place_text(place)
    place = (layout.first_copy(place[0]), *place[1:])
    if index is None:
        return f"{layout}, {where}: padding\n\n{_why_padding(layout, place)}"
    return f"{layout}, {where}: element {_vector(index)}\n\n{explain(layout, *index)}"


def _states(layout: AddressMap, index: Sequence[int]) -> list[list[Coordinate]]:
    """The coordinates of an element before the first step and behind every step, or the first of very many."""
    first = layout.first_index
    names = (f"{n}-{low}" if low else n for n, low in zip(layout.dim_names, first, strict=True))
    values = (int(value) - low for value, low in zip(index, first, strict=True))
    states = [[Coordinate(n, v, size) for n, v, size in zip(names, values, layout.shape, strict=True)]]
    levels = layout.step_levels
    for k, (step, sizes) in enumerate(zip(layout.steps[:_MOST_STEPS], layout.step_sizes, strict=False)):
        states.append(_advance(step, states[-1], sizes, levels[k] if levels else None))
    return states


def _begin(layout: AddressMap, now: list[Coordinate]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if any(layout.origin):
        lines.append(("start", f"the segment begins at {_vector(layout.origin)} of its tensor"))
    if not layout.rank:
        lines.append(("dims", "none: a single element"))
    elif dim_order(layout) is None:
        order = ", major to minor" if layout.step_levels is not None and layout.rank > 1 else ""
        lines.append(("dims", _assignment(now) + order))
    return lines


def _part_names(layout: AddressMap, at: int) -> tuple[str, str]:
    """What the cut of step ``at`` makes of a coordinate: the names of its quotient and of its remainder."""
    if named := layout.part_names(at):
        return named
    if layout.axes[0] == "npu" and any(isinstance(step, Split) for step in layout.steps[at + 1 :]):
        return "block", "place"  # only the last cut deals channels out to NPUs
    return {"npu": ("row", "NPU"), "shard": ("local row", "shard"), "page": ("block", "place")}.get(
        layout.axes[0], ("tile", "place")
    )


def _in_columns(lines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each heading once, so that a level reads as a block; what follows a tab stands in one column."""
    width = max((text.index("\t") for _, text in lines if "\t" in text), default=0)
    kept, last = [], ""
    for heading, text in lines:
        left, tab, right = text.partition("\t")
        kept.append(("" if heading == last else heading, f"{left:<{width}}    {right}" if tab else left))
        last = heading or last
    return kept


def _advance(step: Step, now: list[Coordinate], sizes: tuple[int, ...], level: int | None) -> list[Coordinate]:
    """The coordinates behind a step: values and sizes by the step itself, labels and levels beside them."""
    values = step.forward([c.value for c in now], sizes)
    after = step.sizes(sizes)
    tags = _tags(step, now, level)
    return [Coordinate(tag, int(v), n, lev) for (tag, lev), v, n in zip(tags, values, after, strict=True)]


def _tags(step: Step, now: list[Coordinate], level: int | None) -> list[tuple[str, int]]:
    """(label, tile level) of the coordinates behind a step."""
    tags = [(c.label, c.level) for c in now]
    match step:
        case Permute():
            return [tags[k] for k in step.order]
        case NewDim():
            return replaced(tags, step.dim, 0, [("(new dim)", 0)])
        case Merge():
            (major, lev), (minor, _) = tags[step.dim], tags[step.dim + 1]
            return replaced(tags, step.dim, 2, [(f"{_wrap(major)}*{now[step.dim + 1].size}+{minor}", lev)])
        case Split():
            name, lev = tags[step.dim]
            inside = lev + 1 if level is None else level
            pair = [(f"{_wrap(name)} div {step.tile}", lev), (f"{_wrap(name)} mod {step.tile}", inside)]
            return replaced(tags, step.dim, 1, pair)
        case Pad() if step.low:
            name, lev = tags[step.dim]
            return replaced(tags, step.dim, 1, [(f"{name}+{step.low}", lev)])
        case Rotate() if step.by:
            name, lev = tags[step.dim]
            return replaced(tags, step.dim, 1, [(f"({_wrap(name)}+{step.by}) mod {now[step.dim].size}", lev)])
    return tags


def _sentences(step: Step, before: list[Coordinate], after: list[Coordinate], parts: tuple[str, str]) -> list[str]:
    """What a step does to this element; nothing where it does nothing."""
    match step:
        case Permute():  # later ones only move tile coordinates inward
            dims = len(before) == len(after) and all(c.level == 0 and " " not in c.label for c in before)
            return [_assignment(after) + ", major to minor"] if dims else []
        case NewDim():
            return ["the tile has more dims than the array: a new dim of size 1 is put before them"]
        case Merge():
            major, minor, whole = before[step.dim], before[step.dim + 1], after[step.dim]
            sum_ = f"{major.value}*{minor.size}+{minor.value} = {whole.value}"
            return [f"* combines {major.label} and {minor.label}: {sum_} of {major.size}*{minor.size} = {whole.size}"]
        case Split():
            whole, number, inside = before[step.dim], after[step.dim], after[step.dim + 1]
            many = f"{number.size} (ceil {whole.size}/{inside.size})" if whole.size % inside.size else f"{number.size}"
            equation = f"{whole.label}: {whole.value} = {number.value}*{inside.size} + {inside.value}"
            return [f"{equation}\t{parts[0]} {number.value} of {many}, {parts[1]} {inside.value} of {inside.size}"]
        case Pad() if step.low:
            c = before[step.dim]
            stay = "1 place stays" if step.low == 1 else f"{step.low} places stay"
            return [f"{c.label}: {stay} free before it, {c.value} + {step.low} = {after[step.dim].value}"]
        case Rotate() if step.by:
            c = before[step.dim]
            turned = f"({c.value} + {step.by}) mod {c.size} = {after[step.dim].value}"
            return [f"{c.label}: turned by {step.by}, {turned}"]
    return []


def _why_padding(layout: AddressMap, place: Sequence[int]) -> str:
    """The bound that a place breaks, found by running the steps backwards."""
    sizes = layout.step_sizes
    values: list[Any] = [0] * len(sizes[-1])
    for axis, value in zip(layout.axis_terms, place, strict=True):
        terms = layout.terms_of(axis)
        digits = next(solutions(layout.unscrambled(value), terms), None)
        if digits is None and axis.name == "device":
            return "the device holds nothing of the array"
        if digits is None:
            last = sum((size - 1) * stride for size, stride in terms)
            where = f"behind {last}, the last place the array reaches"
            return f"{axis.name} {value} lies {where if value > last else 'in a gap between the strides'}"
        for (c, _), digit in zip(axis.terms, digits, strict=True):
            values[c] = digit
    states = _states(layout, layout.first_index)
    for k in reversed(range(len(layout.steps))):
        behind, step = values, layout.steps[k]
        values, inside = step.inverse(values, sizes[k])
        if not inside and k >= len(states):
            return "one of its coordinates would be outside the array"
        if not inside:
            dim = getattr(step, "dim", 0)
            if isinstance(step, NewDim):
                return f"the dim of size 1 would have the index {behind[dim]}"
            outside, sum_ = states[k][dim], f"{behind[dim]}"
            if isinstance(step, Split):
                sum_ += f"*{step.tile} + {behind[dim + 1]}"
            elif isinstance(step, Pad) and step.low:
                sum_ += f" - {step.low}"
            sum_ += "" if sum_ == str(values[dim]) else f" = {values[dim]}"
            return f"{outside.label} = {sum_} would be outside 0..{outside.size - 1}"
    return "the array has no elements"


def _expression(axis: Axis, coordinates: Sequence[Coordinate]) -> str:
    """The arithmetic of one axis: nested products where strides nest, level by level; else a sum of products.

    Of very many coordinates only what they come to.
    """
    live = [(coordinates[c], stride) for c, stride in axis.terms if coordinates[c].size > 1]
    live.sort(key=lambda term: -term[1])
    if not live:
        return "0"
    if len(live) > _MOST_SHOWN:
        return str(sum(c.value * stride for c, stride in live))
    following = [math.prod(c.size for c, _ in live[k + 1 :]) for k in range(len(live))]
    if [stride for _, stride in live] != following:
        return " + ".join(f"{c.value}*{stride}" if stride != 1 else f"{c.value}" for c, stride in live)
    groups = [list(group) for _, group in groupby((c for c, _ in live), key=lambda c: c.level)]
    text = "0"
    for group in groups:
        inner = _nested([(str(c.value), c.size) for c in group])
        text = inner if text == "0" else _nested([(text, 0), (_wrap(inner), math.prod(c.size for c in group))])
    return text


def _nested(digits: list[tuple[str, int]]) -> str:
    """(value, size) pairs as nested products; leading zeros say nothing and are left out."""
    text = "0"
    for value, size in digits:
        text = value if text == "0" else f"{_wrap(text)}*{size}+{value}"
    return text


def _wrap(text: str) -> str:
    """The text in parentheses where it needs them."""
    depths = list(accumulate((c == "(") - (c == ")") for c in text))
    wrapped = text.startswith("(") and 0 not in depths[:-1]
    return f"({text})" if any(sign in text for sign in "+* ") and not wrapped else text


def _in_memory(layout: AddressMap, address: dict[str, int]) -> str:
    *outer, inner = layout.axis_terms
    at = address[inner.name] * layout.element_bits
    byte = f"byte {at // 8}" if at % 8 == 0 else f"bit {at % 8} of byte {at // 8}"
    total = -(-inner.extent * layout.element_bits // 8)
    if not outer:
        space = f" of S({layout.memory_space}), {memory_name(layout.memory_space)}" if layout.memory_space else ""
        return f"slot {address[inner.name]} of {inner.extent}, {byte} of {total}{space}"
    where = ", ".join(f"{axis.name} {address[axis.name]} of {axis.extent}" for axis in outer)
    return f"{where}; there slot {address[inner.name]} of {inner.extent}, {byte} of {total}"


def _vector(values: Iterable[Any], most: int | None = None) -> str:
    """Values in parentheses, only the first ``most`` of them."""
    texts = [str(value) for value in values]
    if most is not None and len(texts) > most:
        texts[most:] = [f"... {len(texts) - most} more"]
    return f"({','.join(texts)})"


def _assignment(now: Sequence[Coordinate]) -> str:
    return f"{_vector(c.label for c in now)} = {_vector(c.value for c in now)} of {_vector(c.size for c in now)}"


# -- the facts of a layout as plain values, for tables, JSON and notebooks --------------------------------------------


def summary(layout: Any) -> dict[str, Any]:
    """The facts of one array's layout, or of a tuple of layouts with its elements below it, as plain values.

    Sizes in elements and bytes, order, tiles, memory space, or lanes, pages, shards.

    An array with an unbounded dim has no sizes, nor has a sparse one. What is absent in a text (bounds, L, SC, M ...)
    is absent here too.

    >>> from tilewright.layout import parse
    >>> facts = summary(parse("f32[3,5]{1,0:T(2,2)}"))
    >>> facts["physical_shape"], facts["slots"], facts["size_bytes"]
    ([2, 3, 2, 2], 24, 96)
    """
    if not isinstance(layout, AddressMap):
        elements = [summary(element) for element in layout.elements]
        return {"layout": str(layout), "size_bytes": layout.size_bytes, "elements": elements}
    facts = {
        "layout": str(layout),
        "dtype": layout.dtype,
        "shape": ["?" if n == UNBOUNDED else n for n in layout.shape],
        **layout.particulars,
        "element_bits": layout.element_bits,
    }
    if not layout.is_static:
        return facts
    return facts | {
        "physical_shape": list(layout.physical_shape),
        "slots": layout.num_slots,
        "padding_slots": layout.num_slots - layout.num_elements * layout.replicas,
        "size_bytes": layout.size_bytes,
        "data_bytes": layout.data_bytes,
        "padding_ratio": layout.padding_ratio,
    }


_COLUMNS = (Column("element"), Column("layout", "code"), Column("in memory", "bytes"), Column("padding", "ratio"))


def tuple_html(layout: Any) -> str:
    """A line for every array: what ``--leaf`` calls it, its layout, size and padding."""
    arrays = list(leaves(layout))
    sized = [array for _, array in arrays if UNBOUNDED not in array.shape]
    total = f"{len(arrays)} arrays, {bytes_text(sum(array.size_bytes for array in sized))} in memory"
    rows = [
        (name, str(array), *((None, None) if UNBOUNDED in array.shape else (array.size_bytes, array.padding_ratio)))
        for name, array in arrays
    ]
    return glance("a tuple of layouts", total, glance_table(_COLUMNS, rows))


def leaves(layout: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, layout) of every array of a tuple, the path as ``--leaf`` takes it, ``0,2``; "" for an array alone."""
    if isinstance(layout, AddressMap):
        yield path, layout
        return
    for k, element in enumerate(layout.elements):
        yield from leaves(element, f"{path},{k}".lstrip(","))
