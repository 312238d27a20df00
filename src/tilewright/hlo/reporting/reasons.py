"""Why an operation is, or is not, a bitcast: in words, with the dims and tiles responsible.

The decision itself is ``tilewright.layout.is_bitcast``, which is exact. The words are found afterwards: dims are
matched by runs of equal product, and the first of these that differs is named: the order of the elements, a dim that is
split or merged across a tile, the tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.layout import TensorLayout

_MOST_GROUPS = 2


@dataclass(frozen=True)
class _Group:
    """Dims of the operand and of the result that hold the same elements (a run of equal product)."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@lru_cache(maxsize=16384)
def relayout_reason(a: TensorLayout, b: TensorLayout, permutation: tuple[int, ...] | None, bitcast: bool) -> str:
    """Why reshape(transpose(a, permutation)) to b is, or is not, a bitcast.

    >>> from tilewright.layout import parse
    >>> relayout_reason(parse("f32[336,50]{1,0:T(8,128)}"), parse("f32[16800]{0:T(1024)}"), None, False)
    'dims 0 (336) and 1 (50) merge into dim 0 (16800), but dim 1 (50) is cut by the tile 128'
    """
    if bitcast:
        return "a bitcast: every element keeps its offset"
    if 0 in a.shape or 0 in b.shape:
        return "an array without elements"
    groups = _groups(a.shape, b.shape, permutation)
    order = _order_reason(a, b, groups)
    if order:
        return order
    if regrouped := [g for g in groups if len(g.before) != 1 or len(g.after) != 1]:
        cut = [text for g in regrouped if (text := _cut_reason(a, b, g))]
        if cut:
            return "; ".join(cut[:_MOST_GROUPS])
    if a.tiles != b.tiles:
        return f"the tiles change from {_tiles(a)} to {_tiles(b)}"
    if a.size_bytes != b.size_bytes:
        return _padding_reason(a, b)
    if a.memory_space != b.memory_space:
        return space_reason(a, b)
    return f"the same dims lie elsewhere under {_tiles(a)}: the tiles fall on other dims"


def space_reason(a: TensorLayout, b: TensorLayout) -> str:
    """Which memory space the array leaves and which it enters.

    >>> from tilewright.layout import parse
    >>> space_reason(parse("f32[8]{0}"), parse("f32[8]{0:S(1)}"))
    'moves from S(0) to S(1)'
    """
    return f"moves from S({a.memory_space}) to S({b.memory_space})"


def _groups(before: Sequence[int], after: Sequence[int], permutation: tuple[int, ...] | None) -> list[_Group]:
    """Dims matched by prefix products; dims of size 1 belong to no group."""
    order = permutation if permutation is not None else tuple(range(len(before)))
    left = [dim for dim in order if before[dim] != 1]
    right = [dim for dim, size in enumerate(after) if size != 1]
    groups, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        i0, j0 = i, j
        p, q = before[left[i]], after[right[j]]
        i, j = i + 1, j + 1
        while p != q and (i < len(left) if p < q else j < len(right)):
            if p < q:
                p, i = p * before[left[i]], i + 1
            else:
                q, j = q * after[right[j]], j + 1
        groups.append(_Group(tuple(left[i0:i]), tuple(right[j0:j])))
    return groups


def _order_reason(a: TensorLayout, b: TensorLayout, groups: list[_Group]) -> str:
    """Do the elements lie in another order, tiles apart?"""
    before, after = _physical(a, [g.before for g in groups]), _physical(b, [g.after for g in groups])
    if before == after:
        return ""
    apart = [g for number, g in enumerate(groups) if (number, True) not in before or (number, True) not in after]
    if apart:
        group = apart[0]
        side = "before" if (groups.index(group), True) not in before else "after"
        layout = a if side == "before" else b
        return f"{_deed(a, b, group)}, which do not lie side by side in order in the layout {side}, {_order(layout)}"
    fastest_a, fastest_b = _fastest(a), _fastest(b)
    if any(fastest_a == g.before[-1] and fastest_b == g.after[-1] for g in groups):
        return (
            f"the slower dims change places: {_named(before, groups)} from major to minor, {_named(after, groups)} now"
        )
    was, now = f"dim {fastest_a} ({a.shape[fastest_a]})", f"dim {fastest_b} ({b.shape[fastest_b]})"
    return f"the order of the elements changes: {was} was the fastest, {now} is now"


def _physical(layout: TensorLayout, groups: list[tuple[int, ...]]) -> list[tuple[int, bool]]:
    """The groups from major to minor, each with whether its dims stand in order and side by side."""
    places = {
        dim: place for place, dim in enumerate(d for d in reversed(layout.minor_to_major) if layout.shape[d] != 1)
    }
    found = []
    for number, group in enumerate(groups):
        at = [places[dim] for dim in group]
        found.append((at[0], number, at == list(range(at[0], at[0] + len(at)))))
    return [(number, whole) for _, number, whole in sorted(found)]


def _named(order: list[tuple[int, bool]], groups: list[_Group]) -> str:
    """The operand's dims in an order of groups."""
    return "dims " + ", ".join(str(dim) for number, _ in order for dim in groups[number].before)


def _fastest(layout: TensorLayout) -> int:
    return next((dim for dim in layout.minor_to_major if layout.shape[dim] != 1), 0)


def _order(layout: TensorLayout) -> str:
    return "{" + ",".join(map(str, layout.minor_to_major)) + "}"


def _padding_reason(a: TensorLayout, b: TensorLayout) -> str:
    """Sizes differ though order and tiles agree: name the dim that leaves most of its tile empty."""
    change = f"the padding changes: {a.size_bytes} bytes become {b.size_bytes}"
    larger, side = (a, "the operand") if a.size_bytes > b.size_bytes else (b, "the result")
    partial = [(larger.shape[d] / t, d, t) for d in range(larger.rank) if (t := _tile_of(larger, d)) > larger.shape[d]]
    if not partial:
        return change
    _, dim, tile = min(partial)
    return f"{change}; dim {dim} ({larger.shape[dim]}) of {side} fills part of the tile {tile}"


def _cut_reason(a: TensorLayout, b: TensorLayout, group: _Group) -> str:
    """Which tile stands against the split or merge of this group, if one does."""
    cuts = [f"dim {d} ({a.shape[d]}) is cut by the tile {t}" for d in group.before[1:] if (t := _tile_of(a, d)) > 1]
    cuts += [
        f"dim {d} ({b.shape[d]}) of the result is cut by the tile {t}"
        for d in group.after[1:]
        if (t := _tile_of(b, d)) > 1
    ]
    if not cuts:
        cuts = [f"dim {d} ({a.shape[d]}) is cut by the tile {t}" for d in group.before if (t := _tile_of(a, d)) > 1]
    if not cuts:
        return ""
    return f"{_deed(a, b, group)}, but {' and '.join(cuts)}"


def _deed(a: TensorLayout, b: TensorLayout, group: _Group) -> str:
    before, after = _dims(a, group.before), _dims(b, group.after)
    if len(group.after) == 1:
        return f"{before} merge into {after}"
    return f"{before} {'splits' if len(group.before) == 1 else 'regroup'} into {after}"


def _dims(layout: TensorLayout, dims: tuple[int, ...]) -> str:
    named = [f"{dim} ({layout.shape[dim]})" for dim in dims]
    if len(named) == 1:
        return f"dim {named[0]}"
    return f"dims {', '.join(named[:-1])} and {named[-1]}"


def _tile_of(layout: TensorLayout, dim: int) -> int:
    """The size of the first tile over a dim, 1 if none covers it (a combined dim counts as a tile of its size)."""
    if not layout.tiles:
        return 1
    tile = layout.tiles[0]
    place = layout.minor_to_major.index(dim)
    if place >= len(tile):
        return 1
    size = tile[len(tile) - 1 - place]
    return size if size > 0 else prod((layout.shape[dim],))


def _tiles(layout: TensorLayout) -> str:
    if not layout.tiles:
        return "no tiles"
    inside = ")(".join(",".join("*" if size < 0 else str(size) for size in tile) for tile in layout.tiles)
    return f"T({inside})"
