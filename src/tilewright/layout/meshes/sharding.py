"""A sharding: which mesh axes cut which dim of an array; and its texts, which ``text.py`` reads.

Dim d is cut into as many shards as its axes have devices together, the first axis major: a device's coordinates on
them are the digits of the shard's number. Axes that cut no dim hold copies (or, where they are manual or unreduced,
arrays of their own: other values of the same shape).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.meshes.mesh import Mesh, Part, Piece, iota_text, sums, unused

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
        from tilewright.layout.exchange.inside_jit import named_sharding

        return named_sharding(self, devices)

    @property
    def gspmd(self) -> str:
        """XLA's text, as ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``."""
        return gspmd_text(self)

    @property
    def shardy(self) -> str:
        """Shardy's text, as ``#sdy.sharding<mesh<["d"=2]>, [{"d"}, {}]>``; UnsupportedError where it has no word."""
        return shardy_text(self)

    def __str__(self) -> str:
        return sharding_text(self)


# -- printing ----------------------------------------------------------------------------------------------------------


def sharding_text(sharding: Sharding) -> str:
    """The text in the notation in which it was written, or that has a word for it; one that reads back."""
    if sharding.notation == "named":
        axes = ",".join(f"'{name}'={size}" for name, size in sharding.mesh.axes.items())
        ids = "" if sharding.order is None else f" device_ids=({','.join(map(str, sharding.order))}),"
        return f"{{mesh[{axes}],{ids} {_dims_text(sharding)}}}".replace('"', "'")
    if sharding.notation == "gspmd" or sharding.order is not None or sharding.kind or sharding.manual:
        return gspmd_text(sharding)
    if sharding.notation == "jax":
        axes = ", ".join(f"'{name}': {size}" for name, size in sharding.mesh.axes.items())
        entries = ["UNCONSTRAINED" if k in sharding.open else repr(entry) for k, entry in enumerate(sharding.spec)]
        summed = ", ".join(repr(part.axis) for part in sharding.unreduced)
        entries += [f"unreduced={{{summed}}}"] if summed else []
        return f"NamedSharding(mesh=Mesh({axes}), spec=P({', '.join(entries)}))"
    return shardy_text(sharding)


def _dims_text(sharding: Sharding) -> str:
    levels, dims = dict(sharding.priorities), list[str]()
    for k, dim in enumerate(sharding.dims):
        inside = ", ".join([*map(str, dim), *["?"] * (k in sharding.open)])
        dims.append(f"{{{inside}}}" + (f"p{levels[k]}" if k in levels else ""))
    more = ((name, getattr(sharding, name)) for name in ("replicated", "manual", "unreduced"))
    return f"[{', '.join(dims)}]" + "".join(f", {name}={{{', '.join(map(str, p))}}}" for name, p in more if p)


def shardy_text(sharding: Sharding) -> str:
    """Shardy's text with the mesh in it; :class:`UnsupportedError` for lists of devices and manual axes."""
    if sharding.device is not None:
        return f"#sdy.sharding<mesh<[], device_ids=[{sharding.device}]>, {_dims_text(sharding)}>"
    if sharding.order is not None or sharding.kind or sharding.manual:
        raise UnsupportedError(f"Shardy has no word for {gspmd_text(sharding)}")
    return f"#sdy.sharding<mesh{sharding.mesh}, {_dims_text(sharding)}>"


def gspmd_text(sharding: Sharding) -> str:
    """XLA's text; the devices are numbered in the mesh's order.

    >>> gspmd_text(Sharding(Mesh({"d": 2, "m": 4}), ((), (Part("m"),))))
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
    """
    if sharding.device is not None:
        return f"{{maximal device={sharding.device}}}"
    if sharding.kind:
        return f"{{{sharding.kind}}}"
    dims = [sharding.pieces(k) for k in range(len(sharding.dims))]
    kinds = {name: [sharding.mesh.piece(part) for part in getattr(sharding, name)] for name in TYPES}
    used = [piece for dim in (*dims, kinds["manual"], kinds["unreduced"]) for piece in dim]
    kinds["replicated"] = unused(used, sharding.mesh.size)
    last = {name: pieces for name, pieces in kinds.items() if math.prod(piece.size for piece in pieces) > 1}
    if all(piece.size == 1 for dim in dims for piece in dim) and len(last) <= 1:
        return f"{{{next(iter(last), 'replicated')}}}"
    every = [*dims, *last.values()]
    sizes = ",".join(str(math.prod(piece.size for piece in dim)) for dim in every)
    flat = [piece for dim in every for piece in dim if piece.size > 1]
    tail = " last_tile_dim_replicate" if [*last] == ["replicated"] else f" last_tile_dims={{{', '.join(last)}}}"
    devices = f"<={iota_text(flat)}"
    if sharding.order is not None:
        devices = ",".join(str(sharding.order[place]) for place in sums(flat))
    return f"{{devices=[{sizes}]{devices}{tail if last else ''}}}"
