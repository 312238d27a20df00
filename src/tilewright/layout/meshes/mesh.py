"""A mesh: devices numbered along named axes, the last axis fastest; groups of them; shardings of arrays over them.

A device's number is its place in the mesh: of ``Mesh({"d": 2, "m": 4})`` device 6 has the coordinates d = 1, m = 2.
Which real device stands at a place (its id) is said by ``devices`` where it is not the number itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.extras import need
from tilewright.layout.index.types import to_ints

MOST_DEVICES = 1 << 16
_TOPOLOGY = re.compile(r"(?:\w+:)?(?:(\d{1,4})\*)?(\d{1,6}(?:x\d{1,6})*)")


def read_topology(text: str) -> tuple[int, tuple[int, ...]]:
    """How many slices there are, and the chips of one along each dim of its torus.

    >>> read_topology("v5e:4x8"), read_topology("2*16x16")
    ((1, (4, 8)), (2, (16, 16)))
    """
    found = _TOPOLOGY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no topology", how="as 4x8, v5e:4x8, or 2*16x16 for two slices")
    return int(found[1] or 1), tuple(map(int, found[2].split("x")))


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
    ``topology``    the chips of a slice as ``v5e:4x4`` or ``4x4``, ``2*4x4`` for two; None where nobody said
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
            slices, dims = read_topology(chips)
            count = slices * math.prod(dims)
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
        """A device's coordinate on every axis. Raises :class:`UsageError` for one that the mesh does not have."""
        if not 0 <= device < self.size:
            raise UsageError(f"device {device} is outside the mesh, which has {self.size}", where=str(self))
        return {name: int(at) for name, at in zip(self.names, np.unravel_index(device, self.shape), strict=True)}

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


# Which mesh axes cut which dim of an array: dim d into as many shards as its axes have devices together, the first
# axis major: a device's coordinates on them are the digits of the shard's number. Axes that cut no dim hold copies (or,
# where they are manual or unreduced, arrays of their own: other values of the same shape).

Dims = tuple[tuple[Part, ...], ...]
TYPES = ("manual", "unreduced", "replicated")


@dataclass(frozen=True)
class Sharding:
    """How an array lies over a mesh.

    =================  ==================================================================================
    ``mesh``           the devices
    ``dims``           per dim the axes that cut it, major first; dims behind the last one are whole
    ``open``           the dims that a compiler may cut further (Shardy's ``?``, JAX's UNCONSTRAINED)
    ``priorities``     (dim, p) of Shardy's ``{"d"}p1``
    ``replicated``     axes that shall hold copies
    ``manual``         axes whose devices the program tells apart itself
    ``unreduced``      axes whose devices hold summands
    ``order``          the device at every place of the mesh, where a list names them that no axes do
    ``device``         the only device, of a maximal sharding
    ``kind``           ``unknown``, ``manual`` or ``unreduced`` where a text says only that
    ``notation``       how ``str`` writes it: ``shardy``, ``gspmd``, ``named`` or ``jax``
    =================  ==================================================================================
    """

    mesh: Mesh
    dims: Dims = ()
    open: frozenset[int] = frozenset()
    priorities: tuple[tuple[int, int], ...] = ()
    replicated: tuple[Part, ...] = ()
    manual: tuple[Part, ...] = ()
    unreduced: tuple[Part, ...] = ()
    order: tuple[int, ...] | None = None
    device: int | None = None
    kind: str = ""
    notation: str = "shardy"

    def __post_init__(self) -> None:
        parts = [*(part for dim in self.dims for part in dim), *self.replicated, *self.manual, *self.unreduced]
        unused([self.mesh.piece(part) for part in parts], self.mesh.size)  # each axis once, and there

    def pieces(self, dim: int) -> list[Piece]:
        """The digits of a device's place in the mesh that cut a dim, major first."""
        return [self.mesh.piece(part) for part in (self.dims[dim] if dim < len(self.dims) else ())]

    def count(self, dim: int) -> int:
        """Into how many shards a dim is cut."""
        return math.prod(piece.size for piece in self.pieces(dim))

    @cached_property
    def free(self) -> list[Piece]:
        """The digits that cut no dim: devices that differ only in them hold the same shard."""
        return unused([piece for dim in range(len(self.dims)) for piece in self.pieces(dim)], self.mesh.size)

    @property
    def replicas(self) -> int:
        """How many devices hold every element."""
        return 1 if self.device is not None else math.prod(piece.size for piece in self.free)

    @cached_property
    def homes(self) -> np.ndarray[Any, Any]:
        """Per device the place in the mesh of the first that holds its shard; -1 where it holds nothing."""
        places = np.arange(self.mesh.size)
        if self.device is not None:
            return np.where(places == self.device, 0, -1)
        for size, stride in self.free:
            places = places - places // stride % size * stride
        if self.order is None:
            return places
        homes = np.empty(self.mesh.size, np.int64)
        homes[list(self.order)] = places
        return homes

    def device_at(self, place: Any) -> Any:
        """The device at a place of the mesh (arrays too)."""
        if self.device is not None:
            return place + self.device
        if self.order is None:
            return place
        return self.order[place] if isinstance(place, int) else np.array(self.order)[place]

    def holders(self, place: int) -> list[int]:
        """The devices that hold the shard of the place in the mesh that is its first holder's."""
        if self.device is not None:
            return [self.device]
        return sorted(int(self.device_at(place + step)) for step in sums(self.free))

    def cuts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a shard: every dim divided by its devices, rounded up. Raises :class:`UsageError`."""
        if len(self.dims) > len(shape):
            raise UsageError(f"{self} cuts {len(self.dims)} dims, and the array has {len(shape)}")
        return tuple(-(-size // self.count(dim)) for dim, size in enumerate(shape))

    @property
    def spec(self) -> tuple[str | tuple[str, ...] | None, ...]:
        """The entries of JAX's ``PartitionSpec``. Raises :class:`UnsupportedError` where it has no word.

        >>> Sharding(Mesh({"d": 2, "m": 2, "x": 2}), ((Part("d"),), (), (Part("m"), Part("x")))).spec
        ('d', None, ('m', 'x'))
        """
        parts = [part for dim in self.dims for part in dim]
        if self.order is not None or self.device is not None or self.kind or self.manual or any(p.size for p in parts):
            raise UnsupportedError(f"{self} has no PartitionSpec: it names no whole axes")
        names = (tuple(part.axis for part in dim) for dim in self.dims)
        return tuple(None if not dim else dim[0] if len(dim) == 1 else dim for dim in names)

    def to_jax(self, devices: Iterable[Any] | None = None) -> Any:
        """JAX's ``NamedSharding``, on these devices (by default JAX's own, by their ids)."""
        need("jax", what="to_jax")
        from tilewright.layout.exchange.inside_jit import named_sharding

        return named_sharding(self, devices)

    @property
    def gspmd(self) -> str:
        """XLA's text; the devices are numbered in the mesh's order.

        >>> Sharding(Mesh({"d": 2, "m": 4}), ((), (Part("m"),))).gspmd
        '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
        """
        if self.device is not None:
            return f"{{maximal device={self.device}}}"
        if self.kind:
            return f"{{{self.kind}}}"
        dims = [self.pieces(k) for k in range(len(self.dims))]
        kinds = {name: [self.mesh.piece(part) for part in getattr(self, name)] for name in TYPES}
        used = [piece for dim in (*dims, kinds["manual"], kinds["unreduced"]) for piece in dim]
        kinds["replicated"] = unused(used, self.mesh.size)
        last = {name: pieces for name, pieces in kinds.items() if math.prod(piece.size for piece in pieces) > 1}
        if all(piece.size == 1 for dim in dims for piece in dim) and len(last) <= 1:
            return f"{{{next(iter(last), 'replicated')}}}"
        every = [*dims, *last.values()]
        sizes = ",".join(str(math.prod(piece.size for piece in dim)) for dim in every)
        flat = [piece for dim in every for piece in dim if piece.size > 1]
        tail = " last_tile_dim_replicate" if [*last] == ["replicated"] else f" last_tile_dims={{{', '.join(last)}}}"
        devices = f"<={iota_text(flat)}"
        if self.order is not None:
            devices = ",".join(str(self.order[place]) for place in sums(flat))
        return f"{{devices=[{sizes}]{devices}{tail if last else ''}}}"

    @property
    def shardy(self) -> str:
        """Shardy's text with the mesh in it; :class:`UnsupportedError` for lists of devices and manual axes."""
        if self.device is not None:
            return f"#sdy.sharding<mesh<[], device_ids=[{self.device}]>, {self._dims_text()}>"
        if self.order is not None or self.kind or self.manual:
            raise UnsupportedError(f"Shardy has no word for {self.gspmd}")
        return f"#sdy.sharding<mesh{self.mesh}, {self._dims_text()}>"

    def __str__(self) -> str:
        """The text in the notation in which it was written, or that has a word for it; one that reads back."""
        if self.notation == "named":
            axes = ",".join(f"'{name}'={size}" for name, size in self.mesh.axes.items())
            ids = "" if self.order is None else f" device_ids=({','.join(map(str, self.order))}),"
            return f"{{mesh[{axes}],{ids} {self._dims_text()}}}".replace('"', "'")
        if self.notation == "gspmd" or self.order is not None or self.kind or self.manual:
            return self.gspmd
        if self.notation == "jax":
            axes = ", ".join(f"'{name}': {size}" for name, size in self.mesh.axes.items())
            entries = ["UNCONSTRAINED" if k in self.open else repr(entry) for k, entry in enumerate(self.spec)]
            summed = ", ".join(repr(part.axis) for part in self.unreduced)
            entries += [f"unreduced={{{summed}}}"] if summed else []
            return f"NamedSharding(mesh=Mesh({axes}), spec=P({', '.join(entries)}))"
        return self.shardy

    def _dims_text(self) -> str:
        levels, dims = dict(self.priorities), list[str]()
        for k, dim in enumerate(self.dims):
            inside = ", ".join([*map(str, dim), *["?"] * (k in self.open)])
            dims.append(f"{{{inside}}}" + (f"p{levels[k]}" if k in levels else ""))
        more = ((name, getattr(self, name)) for name in ("replicated", "manual", "unreduced"))
        return f"[{', '.join(dims)}]" + "".join(f", {name}={{{', '.join(map(str, p))}}}" for name, p in more if p)
