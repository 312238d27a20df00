"""A mesh: devices numbered along named axes, the last axis fastest, and groups of them.

A device's number is its place in the mesh: of ``Mesh({"d": 2, "m": 4})`` device 6 has the coordinates d = 1, m = 2.
Which real device stands at a place (its id) is said by ``devices`` where it is not the number itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.types import to_ints

MOST_DEVICES = 1 << 16
_TOPOLOGY = re.compile(r"(?:\w+:)?(\d{1,6}(?:x\d{1,6})*)")


class Piece(NamedTuple):
    """A digit of a device's number: ``number div stride mod size``."""

    size: int
    stride: int

    def values(self) -> range:
        """What the digit adds to a number."""
        return range(0, self.size * self.stride, self.stride)


class Part(NamedTuple):
    """A mesh axis, or of ``axis`` cut into ``pre`` x ``size`` x the rest the middle part (Shardy's ``(pre)size``).

    ``size`` 0 stands for the whole axis.
    """

    axis: str
    pre: int = 1
    size: int = 0

    def __str__(self) -> str:
        return f'"{self.axis}":({self.pre}){self.size}' if self.size else f'"{self.axis}"'


@dataclass(frozen=True, init=False)
class Mesh:
    """Devices along named axes.

    ==============  =====================================================================================
    ``names``       the axes, major first
    ``shape``       their sizes
    ``topology``    the chips of a slice as ``v5e:4x4`` or ``4x4``; None where nobody said
    ``devices``     the id of the device at every place of the mesh; None where it is the place's number
    ==============  =====================================================================================

    >>> mesh = Mesh({"d": 2, "m": 4})
    >>> str(mesh), mesh.size, mesh.coordinates(6)
    ('<["d"=2, "m"=4]>', 8, {'d': 1, 'm': 2})
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    topology: str | None
    devices: tuple[int, ...] | None

    def __init__(
        self, axes: Mapping[str, int], topology: str | Sequence[int] | None = None, devices: Iterable[int] | None = None
    ) -> None:
        if not isinstance(axes, Mapping) or not all(isinstance(name, str) and name for name in axes):
            raise UsageError(f"a mesh is a mapping of axis names to sizes, not {axes!r}", how='as {"d": 4, "m": 4}')
        shape = to_ints(axes.values(), "an axis's size")
        if any(size < 1 for size in shape):
            raise UsageError(f"the axes of a mesh have sizes from 1 up, not {shape}")
        if math.prod(shape) > MOST_DEVICES:
            raise UnsupportedError(f"a mesh of {math.prod(shape)} devices; {MOST_DEVICES} is the most that is read")
        ids = None if devices is None else to_ints(devices, "a device id")
        if ids is not None and (len(set(ids)) != len(ids) or len(ids) != math.prod(shape) or min(ids) < 0):
            raise UsageError(f"devices= needs {math.prod(shape)} different ids from 0 up, one per place of the mesh")
        chips = None if topology is None else topology if isinstance(topology, str) else "x".join(map(str, topology))
        if chips is not None:
            dims = _TOPOLOGY.fullmatch(chips)
            count = math.prod(map(int, dims[1].split("x"))) if dims else 0
            if math.prod(shape) not in (count, 2 * count) or not count:  # some chips are two devices
                raise UsageError(f"topology {chips!r} is not of {math.prod(shape)} devices", how="write it as v5e:4x4")
        for name, value in zip(
            ("names", "shape", "topology", "devices"), (tuple(axes), shape, chips, ids), strict=True
        ):
            object.__setattr__(self, name, None if name == "devices" and ids == tuple(range(len(ids or ()))) else value)

    @property
    def axes(self) -> dict[str, int]:
        """The sizes of the axes by name."""
        return dict(zip(self.names, self.shape, strict=True))

    @property
    def size(self) -> int:
        """How many devices there are."""
        return math.prod(self.shape)

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of the device at every place."""
        return self.devices if self.devices is not None else tuple(range(self.size))

    def piece(self, part: Part) -> Piece:
        """The digit of a device's number that an axis, or a part of one, is. Raises :class:`UsageError`."""
        if part.axis not in self.names:
            raise UsageError(f"the mesh {self} has no axis {part.axis!r}")
        at = self.names.index(part.axis)
        whole, stride = self.shape[at], math.prod(self.shape[at + 1 :])
        size = part.size or whole
        if part.pre < 1 or size < 1 or whole % (part.pre * size):
            raise UsageError(f"{part} is not a part of an axis of {whole} devices", where=str(self))
        return Piece(size, stride * (whole // (part.pre * size)))

    def parts(self, piece: Piece) -> tuple[Part, ...] | None:
        """The axes, or parts of them, that a digit is, major first; None where it is none."""
        found, rest, stride = list[Part](), piece.size, piece.stride
        below = 1
        for name, size in zip(reversed(self.names), reversed(self.shape), strict=True):
            above = below * size
            if rest > 1 and below <= stride < above:
                inside = stride // below
                taken = math.gcd(rest, size // inside) if size % inside == 0 and stride % below == 0 else 0
                if not taken or (taken < rest and taken * stride != above):
                    return None
                found.insert(0, Part(name) if taken == size else Part(name, size // inside // taken, taken))
                rest, stride = rest // taken, stride * taken
            below = above
        return tuple(found) if rest == 1 else None

    def coordinates(self, device: int) -> dict[str, int]:
        """A device's coordinate on every axis."""
        found = {}
        for name, size in zip(reversed(self.names), reversed(self.shape), strict=True):
            device, found[name] = divmod(device, size)
        return {name: found[name] for name in self.names}

    def groups(self, parts: Iterable[Part | str]) -> tuple[tuple[int, ...], ...]:
        """The devices that differ in nothing but the coordinates on these axes, group by group.

        >>> Mesh({"d": 2, "m": 2}).groups(["d"])
        ((0, 2), (1, 3))
        """
        pieces = [self.piece(Part(part) if isinstance(part, str) else part) for part in parts]
        return spread(pieces, unused(pieces, self.size))

    def __str__(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in self.axes.items())
        ids = "" if self.devices is None else f", device_ids=[{', '.join(map(str, self.devices))}]"
        return f"<[{axes}]{ids}>"

    def __repr__(self) -> str:
        more = "" if self.topology is None else f", topology={self.topology!r}"
        return f"Mesh({self.axes}{more}{'' if self.devices is None else f', devices={self.devices}'})"


def sums(pieces: Sequence[Piece]) -> list[int]:
    """What digits come to together, the first of them slowest."""
    return [sum(values) for values in product(*(piece.values() for piece in pieces))]


def spread(inside: Sequence[Piece], outside: Sequence[Piece]) -> tuple[tuple[int, ...], ...]:
    """For every value of the digits ``outside`` the devices that the digits ``inside`` number."""
    within = sums(inside)
    return tuple(tuple(start + step for step in within) for start in sums(outside))


def unused(pieces: Iterable[Piece], count: int) -> list[Piece]:
    """The digits of numbers below ``count`` that are none of ``pieces``, major first.

    Raises :class:`UsageError` where two pieces overlap.
    """
    free, below = list[Piece](), 1
    for size, stride in sorted((piece for piece in pieces if piece.size > 1), key=lambda piece: piece.stride):
        if stride % below:
            raise UsageError("a mesh axis is used twice", how="an axis, or a part of one, can cut one dim only")
        if stride > below:
            free.insert(0, Piece(stride // below, below))
        below = stride * size
    return [Piece(count // below, below), *free] if count > below else free


def iota_text(pieces: Sequence[Piece]) -> str:
    """``[4,2]T(1,0)``: digits in this order, neighbours that count on as one."""
    joined = list[Piece]()
    for piece in pieces:
        if joined and joined[-1].stride == piece.size * piece.stride:
            joined[-1] = Piece(joined[-1].size * piece.size, piece.stride)
        else:
            joined.append(piece)
    order = sorted(range(len(joined)), key=lambda k: -joined[k].stride)
    sizes = ",".join(str(joined[k].size) for k in order)
    turned = "" if len(joined) == 1 else f"T({','.join(str(order.index(k)) for k in range(len(joined)))})"
    return f"[{sizes}]{turned}"
