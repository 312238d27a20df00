"""The steps an index map is made of, and its normal form: every axis as a sum of digits of the logical index.

A step turns a list of coordinates (with their sizes) into another list. ``forward`` and ``inverse`` work on Python
integers and on int64 arrays alike; ``inverse`` also says which coordinates are data and which are padding.

    Permute   reorder the coordinates
    Merge     two neighbours become one: c0 * d1 + c1              (`*` in a tile)
    Pad       `low` places before, `high` places behind            (alignment, the start NPU, a table's row offset)
    Split     c becomes (c div tile, c mod tile)                   (a tile, the lanes, a page, the shards)
    Rotate    c becomes (c + by) mod d                             (a table's rotation)
    NewDim    a new coordinate that is always 0                    (a tile with more dims than the array)

The normal form is axis = base + sum of weight * (((e + shift) div div) mod mod), e the index along one logical dim. A
:class:`Digit` is one such term; ``shift`` is 0 but for rotations and start places, ``mod`` is 0 for the topmost digit
of a dim (its value is bounded by the dim itself). A :class:`Line` is the symbolic form of one coordinate; None where no
digit form exists (a ``*`` that the tile does not divide).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Digit(NamedTuple):
    """weight * (((e + shift) div div) mod mod) with e along logical ``dim``; ``count`` values 0..count-1 occur."""

    dim: int
    weight: int
    div: int
    mod: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    shift: int = 0


class Line(NamedTuple):
    """base + digits, the digits in ascending weight."""

    base: int
    digits: tuple[Digit, ...]

    @property
    def reach(self) -> int:
        """The largest value the digits add to ``base``."""
        return sum([d.weight * (d.count - 1) for d in self.digits])


def scale_digits(digits: tuple[Digit, ...], by: int) -> tuple[Digit, ...]:
    """The digits with every weight multiplied by ``by``."""
    return digits if by == 1 else tuple([Digit(d[0], d[1] * by, d[2], d[3], d[4], d[5]) for d in digits])


def _absorb_base(line: Line) -> Line:
    """A base on a single unit-weight top digit is a shift of that digit: (e div d) + s = (e + s*d) div d."""
    if line.base and len(line.digits) == 1:
        digit = line.digits[0]
        if digit.weight == 1 and digit.mod == 0:
            shift = digit.shift + line.base * digit.div
            return Line(0, (digit._replace(shift=shift, count=digit.count + line.base),))
    return line


def _cut(digit: Digit, tile: int) -> tuple[Digit, Digit] | None:
    """One digit of weight below ``tile`` cut into (inside the tile, tile's number), or None."""
    if tile % digit.weight:
        return None
    inner = tile // digit.weight
    if digit.mod and digit.mod % inner:
        return None
    dim, weight, div, mod, count, shift = digit
    low = Digit(dim, weight, div, inner, min(inner, count), shift)
    return low, Digit(dim, 1, div * inner, mod // inner if mod else 0, -(-count // inner), shift)


def _split(line: Line, tile: int) -> tuple[Line, Line] | None:
    """(line div tile, line mod tile) as lines, or None where digits do not tell."""
    low: list[Digit] = []
    high: list[Digit] = []
    for digit in line.digits:
        dim, weight, div, mod, count, shift = digit
        if weight % tile == 0:
            high.append(Digit(dim, weight // tile, div, mod, count, shift))
        elif weight * (count - 1) < tile:
            low.append(digit)
        elif weight > tile:
            return None
        else:
            parts = _cut(digit, tile)
            if parts is None:
                return None
            low.append(parts[0])
            high.append(parts[1])
    inner = Line(line.base % tile, tuple(low))
    if inner.base + inner.reach >= tile:
        return None
    return Line(line.base // tile, tuple([d for d in high if d.count > 1])), inner


def is_chain(digits: Sequence[Digit], size: int) -> bool:
    """Whether the digits of one dim count on where the one before stops: weight * e for every e below ``size``."""
    reach, weight = 1, digits[0].weight
    for digit in sorted(digits, key=lambda d: d.div):
        if digit.shift or digit.div != reach or digit.weight != weight * reach:
            return False
        reach = digit.div * digit.mod if digit.mod else size
    return reach >= size


Sizes = tuple[int, ...]
Coordinates = list[Any]  # Python ints, or int64 arrays of one shape
Lines = list[Line | None]


class Step(Protocol):
    """One step of an index map, on coordinates and on their symbolic form."""

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


def replaced(values: Sequence[Any], at: int, count: int, new: Sequence[Any]) -> list[Any]:
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
        if major is None or minor is None:
            return replaced(lines, self.dim, 2, [None])
        by = sizes[self.dim + 1]
        digits = (*minor.digits, *scale_digits(major.digits, by))
        return replaced(lines, self.dim, 2, [Line(major.base * by + minor.base, digits)])


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
        return replaced(lines, self.dim, 1, [line and Line(line.base + self.low, line.digits)])


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
        parts = (_split(line, self.tile) or _split(_absorb_base(line), self.tile)) if line else None
        return replaced(lines, self.dim, 1, list(parts or (None, None)))


@dataclass(frozen=True)
class Rotate:
    """Coordinate ``dim`` moves on by ``by`` places, modulo its size."""

    dim: int
    by: int

    def sizes(self, sizes: Sizes) -> Sizes:
        return sizes

    def forward(self, c: Coordinates, sizes: Sizes) -> Coordinates:
        return replaced(c, self.dim, 1, [(c[self.dim] + self.by) % sizes[self.dim]])

    def inverse(self, c: Coordinates, sizes: Sizes) -> tuple[Coordinates, Any]:
        return replaced(c, self.dim, 1, [(c[self.dim] - self.by) % sizes[self.dim]]), True

    def digits(self, lines: Lines, sizes: Sizes) -> Lines:
        line, size = lines[self.dim], sizes[self.dim]
        by, digit = self.by % size, line.digits[0] if line and line.digits else None
        if line is None or not by:
            turned = line
        elif digit is None:
            turned = Line((line.base + by) % size, ())
        elif len(line.digits) > 1 or line.base or digit.weight != 1 or digit.div != 1 or digit.mod not in (0, size):
            turned = None  # only one whole digit of that size has a digit form when it is turned
        else:
            turned = Line(0, (digit._replace(mod=size, shift=digit.shift + by, count=size),))
        return replaced(lines, self.dim, 1, [turned])


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
