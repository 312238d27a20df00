"""A sharding: which mesh axes cut which dim of an array; its texts are read and printed in ``text.py``.

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
from tilewright.layout.meshes.mesh import Mesh, Part, Piece, mesh_of, sums, unused

Dims = tuple[tuple[Part, ...], ...]


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

        >>> sharding_of([("d",), (), ("m", "x")], Mesh({"d": 2, "m": 2, "x": 2})).spec
        ('d', None, ('m', 'x'))
        """
        parts = [part for dim in self.dims for part in dim]
        if self.order is not None or self.device is not None or self.kind or self.manual or any(p.size for p in parts):
            raise UnsupportedError(f"{self} has no PartitionSpec: it names no whole axes")
        names = (tuple(part.axis for part in dim) for dim in self.dims)
        return tuple(None if not dim else dim[0] if len(dim) == 1 else dim for dim in names)

    def to_jax(self, devices: Iterable[Any] | None = None) -> Any:
        """JAX's ``NamedSharding``, on these devices (by default JAX's own, by their ids)."""
        import jax

        spec = list[Any](self.spec)
        for dim in self.open:
            if spec[dim] is None:
                spec[dim] = jax.sharding.PartitionSpec.UNCONSTRAINED
        if devices is None:
            by_id = {device.id: device for device in jax.devices()}
            if missing := [number for number in self.mesh.ids if number not in by_id]:
                raise UsageError(f"JAX has no device {missing[0]} here", how="pass devices=, one per place of the mesh")
            devices = [by_id[number] for number in self.mesh.ids]
        grid = np.array(list(devices), object)
        if grid.size != self.mesh.size:
            raise UsageError(f"{grid.size} devices for a mesh of {self.mesh.size}")
        more = {"unreduced": {part.axis for part in self.unreduced}} if self.unreduced else {}
        mesh = jax.sharding.Mesh(grid.reshape(self.mesh.shape), self.mesh.names)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec, **more))  # type: ignore[no-untyped-call]

    @property
    def gspmd(self) -> str:
        """XLA's text, as ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``."""
        from tilewright.layout.meshes.text import gspmd_text

        return gspmd_text(self)

    @property
    def shardy(self) -> str:
        """Shardy's text, as ``#sdy.sharding<mesh<["d"=2]>, [{"d"}, {}]>``; UnsupportedError where it has no word."""
        from tilewright.layout.meshes.text import shardy_text

        return shardy_text(self)

    def __str__(self) -> str:
        from tilewright.layout.meshes.text import sharding_text

        return sharding_text(self)


def sharding_of(value: Any, mesh: Any = None) -> Sharding:
    """A sharding, given as one, as a text, as JAX's, or as a list of axes per dim over ``mesh``.

    A list has one entry per dim: None or () for none, an axis, or several of them, major first.
    """
    mesh = None if mesh is None else mesh_of(mesh)
    if isinstance(value, str):
        from tilewright.layout.meshes.text import read_sharding

        found = read_sharding(value, mesh)
        if isinstance(found, tuple):
            raise UsageError(f"{value[:80]!r} is a tuple of {len(found)} shardings", how="give one of them")
        return found
    if not isinstance(value, Sharding):
        if mesh is None and hasattr(value, "mesh") and hasattr(value, "spec"):
            mesh, value = mesh_of(value.mesh), value.spec
        elif hasattr(value, "_to_xla_hlo_sharding"):  # what JAX has beside NamedSharding says itself in XLA's words
            return sharding_of(str(value._to_xla_hlo_sharding(getattr(value, "ndim", 1))), mesh)
        if mesh is None:
            raise UsageError(f"a list of axes needs a mesh: {value!r}")
        return _of_entries(value, mesh)
    if mesh is not None and mesh != value.mesh:
        raise UsageError(f"{value} is over another mesh than {mesh}")
    return value


def _of_entries(spec: Any, mesh: Mesh) -> Sharding:
    try:
        entries = list(spec)
    except TypeError:
        raise UsageError(f"a sharding is a text, or a list of axes per dim, not {spec!r}") from None
    dims, free = list[tuple[Part, ...]](), set[int]()
    for at, entry in enumerate(entries):
        if type(entry).__name__ == "UnconstrainedSingleton":
            free.add(at)
            entry = ()
        axes = () if entry is None else (entry,) if isinstance(entry, (str, Part)) else entry
        if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, (str, Part)) for axis in axes):
            raise UsageError(f"dim {at} is cut by {entry!r}, which is no axis and no list of axes")
        dims.append(tuple(axis if isinstance(axis, Part) else Part(axis) for axis in axes))
    summed = tuple(Part(axis) for axis in mesh.names if axis in (getattr(spec, "unreduced", None) or ()))
    return Sharding(mesh, tuple(dims), frozenset(free), unreduced=summed)
