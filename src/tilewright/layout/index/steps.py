"""The steps an index map is made of, each with its forward rule, its inverse and its digit rule.

A step turns a list of coordinates (with their sizes) into another list. ``forward`` and ``inverse`` work on Python
integers and on int64 arrays alike; ``inverse`` also says which coordinates are data and which are padding.

    Permute   reorder the coordinates
    Merge     two neighbours become one: c0 * d1 + c1              (`*` in a tile)
    Pad       `low` places before, `high` places behind            (alignment, the start NPU, a table's row offset)
    Split     c becomes (c div tile, c mod tile)                   (a tile, the lanes, a page, the shards)
    Rotate    c becomes (c + by) mod d                             (a table's rotation)
    NewDim    a new coordinate that is always 0                    (a tile with more dims than the array)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.layout.index.digits import Line, add_constant, merge_lines, rotate_line, split_line

Sizes = tuple[int, ...]
Coordinates = list[Any]  # Python ints, or int64 arrays of one shape
Lines = list[Line | None]


class Step(Protocol):
    """What every step can do."""

    def sizes(self, sizes: Sizes) -> Sizes:
        """The sizes of the coordinates behind the step."""

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        """Coordinates through the step; ``sizes`` are those before it."""

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        """Coordinates before the step and whether they lie inside ``sizes``, the sizes before it."""

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        """The step on symbolic coordinates; None where no digit form exists."""


def sizes_behind(steps: Iterable[Step], sizes: Sizes) -> Sizes:
    """The sizes of the coordinates behind all the steps; ``sizes`` are those before them."""
    for step in steps:
        sizes = step.sizes(sizes)
    return sizes


def replaced(values: Sequence[Any], at: int, count: int, new: list[Any]) -> list[Any]:
    """The values with ``count`` of them from ``at`` on replaced by the ``new`` ones."""
    return [*values[:at], *new, *values[at + count :]]


@dataclass(frozen=True)
class Permute:
    """new[i] = old[order[i]]."""

    order: tuple[int, ...]

    def sizes(self, sizes: Sizes) -> Sizes:
        return tuple(sizes[i] for i in self.order)

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return [c[i] for i in self.order]

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        old: Coordinates = [0] * len(c)
        for place, i in enumerate(self.order):
            old[i] = c[place]
        return old, True

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        return [lines[i] for i in self.order]


@dataclass(frozen=True)
class Merge:
    """Coordinates ``dim`` and ``dim + 1`` become one."""

    dim: int

    def sizes(self, sizes: Sizes) -> Sizes:
        return tuple(replaced(sizes, self.dim, 2, [sizes[self.dim] * sizes[self.dim + 1]]))

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return replaced(c, self.dim, 2, [c[self.dim] * sizes[self.dim + 1] + c[self.dim + 1]])

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        minor = max(sizes[self.dim + 1], 1)
        return replaced(c, self.dim, 1, [c[self.dim] // minor, c[self.dim] % minor]), True

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        major, minor = lines[self.dim], lines[self.dim + 1]
        merged = None if major is None or minor is None else merge_lines(major, minor, sizes[self.dim + 1])
        return replaced(lines, self.dim, 2, [merged])


@dataclass(frozen=True)
class Pad:
    """``low`` places of padding before coordinate ``dim`` and ``high`` behind it."""

    dim: int
    low: int = 0
    high: int = 0

    def sizes(self, sizes: Sizes) -> Sizes:
        return tuple(replaced(sizes, self.dim, 1, [sizes[self.dim] + self.low + self.high]))

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return replaced(c, self.dim, 1, [c[self.dim] + self.low])

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        value = c[self.dim] - self.low
        return replaced(c, self.dim, 1, [value]), (value >= 0) & (value < sizes[self.dim])

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        line = lines[self.dim]
        return replaced(lines, self.dim, 1, [line and add_constant(line, self.low)])


@dataclass(frozen=True)
class Split:
    """Coordinate ``dim`` becomes its tile's number and its place in the tile."""

    dim: int
    tile: int

    def sizes(self, sizes: Sizes) -> Sizes:
        return tuple(replaced(sizes, self.dim, 1, [-(-sizes[self.dim] // self.tile), self.tile]))

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return replaced(c, self.dim, 1, [c[self.dim] // self.tile, c[self.dim] % self.tile])

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        value = c[self.dim] * self.tile + c[self.dim + 1]
        return replaced(c, self.dim, 2, [value]), value < sizes[self.dim]

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        line = lines[self.dim]
        parts = split_line(line, self.tile) if line else None
        return replaced(lines, self.dim, 1, list(parts) if parts else [None, None])


@dataclass(frozen=True)
class Rotate:
    """Coordinate ``dim`` turns by ``by`` places."""

    dim: int
    by: int

    def sizes(self, sizes: Sizes) -> Sizes:
        return sizes

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return replaced(c, self.dim, 1, [(c[self.dim] + self.by) % sizes[self.dim]])

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        return replaced(c, self.dim, 1, [(c[self.dim] - self.by) % sizes[self.dim]]), True

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        line = lines[self.dim]
        return replaced(lines, self.dim, 1, [line and rotate_line(line, self.by, sizes[self.dim])])


@dataclass(frozen=True)
class NewDim:
    """A new coordinate 0 of size 1 at place ``dim``."""

    dim: int

    def sizes(self, sizes: Sizes) -> Sizes:
        return (*sizes[: self.dim], 1, *sizes[self.dim :])

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return [*c[: self.dim], 0, *c[self.dim :]]

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        return replaced(c, self.dim, 1, []), c[self.dim] == 0

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        return [*lines[: self.dim], Line(0, ()), *lines[self.dim :]]
