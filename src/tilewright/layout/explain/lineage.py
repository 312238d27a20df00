"""What becomes of every dim on its way through a map's steps; explanations and pictures read it.

A tile cuts a dim's coordinate into a tile's number and a place inside the tile, and the next tile may cut either of
them again. The coordinates at the end of the program that stem from one dim are its :class:`Leaf` values, from major to
minor, so that

    position along the dim, padding included = the leaves' values in the mixed radix of their sizes
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.steps import Merge, NewDim, Permute, Split, Step, replaced


@dataclass(frozen=True)
class Leaf:
    """A final coordinate: its place in the list, its size, and the tile level that made it (0: outside all tiles)."""

    place: int
    size: int
    level: int


@dataclass(frozen=True)
class DrawnDim:
    """A dim as it is drawn: its name, the logical dim it is (None if combined or made by a tile), its leaves."""

    name: str
    logical: int | None
    leaves: tuple[Leaf, ...]

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


class _Walk:
    """Follows coordinates through steps: which leaf of which dim each one is."""

    def __init__(self, names: list[str], logical: list[int | None]) -> None:
        self.names, self.logical = names, logical
        self.chains: list[list[int]] = [[k] for k in range(len(names))]  # per dim, coordinate ids from major to minor
        self.now = list(range(len(names)))  # the ids in the order of the coordinates
        self.level = dict.fromkeys(self.now, 0)

    def take(self, step: Step, level: int | None) -> None:
        if isinstance(step, Permute):
            self.now = [self.now[k] for k in step.order]
        elif isinstance(step, NewDim):
            self._insert(step)
        elif isinstance(step, Split):
            self._split(step, level)

    def _insert(self, step: NewDim) -> None:
        new = len(self.level)
        self.level[new] = 0
        self.now.insert(step.dim, new)
        self.chains.insert(0, [new])
        self.names.insert(0, "")
        self.logical.insert(0, None)

    def _split(self, step: Split, level: int | None) -> None:
        whole = self.now[step.dim]
        number, inside = len(self.level), len(self.level) + 1
        self.level[number] = self.level[whole]
        self.level[inside] = self.level[whole] + 1 if level is None else level
        self.now[step.dim : step.dim + 1] = [number, inside]
        chain = next(chain for chain in self.chains if whole in chain)
        at = chain.index(whole)
        chain[at : at + 1] = [number, inside]


def dim_order(layout: AddressMap) -> tuple[int, ...] | None:
    """The order into which the first step brings the dims, major first; None where they stay as they are."""
    first = layout.steps[0] if layout.steps else None
    return first.order if isinstance(first, Permute) and len(first.order) == layout.rank else None


def _start(layout: AddressMap) -> tuple[int, list[str], list[int | None]]:
    """The step behind the last Merge, and the names and logical dims of the coordinates there, major to minor."""
    names: list[str] = list(layout.dim_names)
    logical: list[int | None] = list(range(layout.rank))
    start = max((k + 1 for k, step in enumerate(layout.steps) if isinstance(step, Merge)), default=0)
    for step in layout.steps[:start]:
        names, logical = _name_step(step, names, logical)
    order = dim_order(layout)
    if start == 0 and order is not None:
        return 1, [names[k] for k in order], [logical[k] for k in order]
    return start, names, logical


def _name_step(step: Step, names: list[str], logical: list[int | None]) -> tuple[list[str], list[int | None]]:
    match step:
        case Permute():
            return [names[k] for k in step.order], [logical[k] for k in step.order]
        case NewDim():
            return ["", *names], [None, *logical]
        case Merge(at):
            return replaced(names, at, 2, [f"{names[at]}*{names[at + 1]}"]), replaced(logical, at, 2, [None])
        case Split(at, tile):
            pair = [f"{names[at]} div {tile}", f"{names[at]} mod {tile}"]
            return replaced(names, at, 1, pair), replaced(logical, at, 1, [None, None])
    return names, logical


def lineage(layout: AddressMap) -> tuple[DrawnDim, ...]:
    """The dims as they are drawn, major to minor: those behind the last `*`, each with its leaves.

    >>> from tilewright.layout import parse
    >>> [(d.name, d.extent, d.period(1)) for d in lineage(parse("f32[3,5]{1,0:T(2,2)}"))]
    [('d0', 4, 2), ('d1', 6, 2)]
    """
    start, names, logical = _start(layout)
    levels = layout.step_levels
    walk = _Walk(names, logical)
    for k, step in enumerate(layout.steps[start:], start=start):
        walk.take(step, None if levels is None else levels[k])
    place = {coordinate: k for k, coordinate in enumerate(walk.now)}
    sizes = layout.step_sizes[-1]
    return tuple(
        DrawnDim(name, dim, tuple(Leaf(place[i], sizes[place[i]], walk.level[i]) for i in chain))
        for name, dim, chain in zip(walk.names, walk.logical, walk.chains, strict=True)
    )
