"""The normal form of an index map: every axis as a sum of digits of the logical index.

    axis = base + sum of weight * (((e + shift) div div) mod mod)         e = the index along one logical dim

A :class:`Digit` is one such term; ``shift`` is 0 but for rotations and start places, ``mod`` is 0 for the topmost digit
of a dim (its value is bounded by the dim itself). A :class:`Line` is the symbolic form of one coordinate. Rules
answer None where no digit form exists (a ``*`` that the tile does not divide).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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


def dim_line(dim: int, size: int) -> Line:
    """The line of logical dim ``dim`` itself."""
    return Line(0, (Digit(dim, 1, 1, 0, size),) if size > 1 else ())


def scale_digits(digits: tuple[Digit, ...], by: int) -> tuple[Digit, ...]:
    """Every weight times ``by``."""
    return digits if by == 1 else tuple([Digit(d[0], d[1] * by, d[2], d[3], d[4], d[5]) for d in digits])


def scale_line(line: Line, by: int) -> Line:
    """Every value times ``by``."""
    return line if by == 1 else Line(line.base * by, scale_digits(line.digits, by))


def add_constant(line: Line, by: int) -> Line:
    """Every value plus ``by``."""
    return Line(line.base + by, line.digits)


def merge_lines(major: Line, minor: Line, minor_size: int) -> Line:
    """major * minor_size + minor."""
    high = scale_line(major, minor_size)
    return Line(high.base + minor.base, (*minor.digits, *high.digits))


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


def split_line(line: Line, tile: int) -> tuple[Line, Line] | None:
    """(line div tile, line mod tile) as lines, or None where digits do not tell."""
    return _split(line, tile) or _split(_absorb_base(line), tile)


def _split(line: Line, tile: int) -> tuple[Line, Line] | None:
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


def rotate_line(line: Line, by: int, size: int) -> Line | None:
    """(line + by) mod size, where the line is one whole digit of that size."""
    by %= size
    if not by:
        return line
    if not line.digits:
        return Line((line.base + by) % size, ())
    digit = line.digits[0]
    if len(line.digits) > 1 or line.base or digit.weight != 1 or digit.div != 1 or digit.mod not in (0, size):
        return None
    return Line(0, (digit._replace(mod=size, shift=digit.shift + by, count=size),))


def is_chain(digits: Sequence[Digit], size: int) -> bool:
    """Whether the digits of one dim count on where the one before stops: weight * e for every e below ``size``."""
    reach, weight = 1, digits[0].weight
    for digit in sorted(digits, key=lambda d: d.div):
        if digit.shift or digit.div != reach or digit.weight != weight * reach:
            return False
        reach = digit.div * digit.mod if digit.mod else size
    return reach >= size


def strides_of(line: Line, shape: Sequence[int]) -> tuple[int, ...] | None:
    """What one step along every dim adds (0 for dims of size 1); None where a dim is cut."""
    strides = []
    for dim, size in enumerate(shape):
        digits = [digit for digit in line.digits if digit.dim == dim]
        if digits and not is_chain(digits, size):
            return None
        strides.append(min((digit.weight for digit in digits), default=0))
    return tuple(strides)
