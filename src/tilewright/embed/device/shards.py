"""Where the shards of a stack live, and arrays made there piece by piece, so that no process holds them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from tilewright.embed.host.arrays import Floats
from tilewright.embed.model.stacking import TablePlacement
from tilewright.embed.model.tables import Topology
from tilewright.errors import UsageError

Piece: TypeAlias = range
"""Consecutive shards that lie on one device."""


@dataclass(frozen=True)
class Shards:
    """The S shards of every stack: on jax's default device, or split evenly over the devices of a mesh axis.

    >>> Shards(4).pieces()
    (range(0, 4),)
    """

    count: int
    sharding: NamedSharding | None = None

    @classmethod
    def over(cls, topology: Topology, mesh: Mesh | None, axis: str | None, where: str) -> Shards:
        """The shards of a topology on ``mesh``; without one on the default device.

        Raises :class:`UsageError` at ``where`` for an axis the mesh does not have, or whose devices S does not divide
        over.
        """
        count = topology.sparsecores
        if mesh is None:
            if axis is not None:
                raise UsageError(f"axis {axis!r} without a mesh", where=where, how="give mesh and axis together")
            return cls(count)
        if axis not in mesh.shape:
            problem = f"the mesh has no axis {axis!r}" if axis is not None else "a mesh without an axis"
            raise UsageError(problem, where=where, how=f"name one of {', '.join(map(str, mesh.axis_names))}")
        devices = mesh.shape[axis]
        if count % devices:
            problem = f"{count} shards do not divide over the {devices} devices of axis {axis!r}"
            raise UsageError(problem, where=where, how="take an axis, or a topology, of which one divides the other")
        # Written as jit writes the shardings of its results, so that a step is not compiled again for its own state.
        others = (None, None) if AxisType.Explicit in mesh.axis_types else ()
        return cls(count, NamedSharding(mesh, PartitionSpec(axis, *others)))  # type: ignore[no-untyped-call]

    @property
    def per_device(self) -> int:
        """Shards of one device."""
        if self.sharding is None:
            return self.count
        return int(self.sharding.shard_shape((self.count, 1, 1))[0])

    def pieces(self) -> tuple[Piece, ...]:
        """The shards this process holds, a piece for every device (replicas count once), in order."""
        return tuple(sorted(self._devices(), key=lambda piece: piece.start))

    def _devices(self) -> dict[Piece, list[jax.Device]]:
        if self.sharding is None:
            return {range(self.count): []}
        devices: dict[Piece, list[jax.Device]] = {}
        for device, index in self.sharding.addressable_devices_indices_map((self.count, 1, 1)).items():
            assert index is not None
            devices.setdefault(range(self.count)[index[0]], []).append(device)
        return devices

    def array(self, make: Callable[[Piece], Floats]) -> jax.Array:
        """The array [S, ...] whose shards ``make`` yields, [shards of the piece, ...] of a piece.

        On a CPU an array of :func:`aligned` is not copied.
        """
        if self.sharding is None:
            whole: jax.Array = jax.device_put(make(range(self.count)))
            return whole
        parts, shape = [], None
        for piece, devices in self._devices().items():
            values = make(piece)
            shape = (self.count, *values.shape[1:])
            parts += [jax.device_put(values, device) for device in devices]
        if shape is None:
            how = "take a mesh with at least one device of every process"
            raise UsageError("no device of the mesh is in this process", where="mesh", how=how)
        return jax.make_array_from_single_device_arrays(shape, self.sharding, parts)

    def full(self, shape: tuple[int, ...], value: float) -> jax.Array:
        """A float32 array [S, ...] that holds ``value`` everywhere, made where it lives."""
        return jax.numpy.full(shape, value, jax.numpy.float32, device=self.sharding)

    def scalar(self, value: int) -> jax.Array:
        """An int32, on every device of the mesh."""
        whole = None if self.sharding is None else NamedSharding(self.sharding.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        return jax.numpy.full((), value, jax.numpy.int32, device=whole)


def local_pieces(array: Any) -> list[tuple[Piece, NDArray[Any]]]:
    """What this process holds of an array [S, ...] split over its first axis; on a CPU views, not copies.

    Raises :class:`UsageError` for an array that is split over another axis.
    """
    if not isinstance(array, jax.Array):
        return [(range(len(array)), np.asarray(array))]
    held = []
    for shard in array.addressable_shards:
        if shard.replica_id:
            continue
        if shard.data.shape[1:] != array.shape[1:]:
            problem = f"an array {list(array.shape)} split into {list(shard.data.shape)}"
            raise UsageError(problem, where="state", how="split stacks and slots over their first axis only")
        held.append((range(array.shape[0])[shard.index[0]], np.asarray(shard.data)))
    return held


def aligned(shape: tuple[int, ...]) -> Floats:
    """Zeros whose memory jax takes over without a copy (it begins at a multiple of 64 bytes)."""
    size = 4 * int(np.prod(shape, dtype=np.int64))
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view(np.float32).reshape(shape)


def column(placement: TablePlacement, shard: int) -> int:
    """What the ids of a table on ``shard`` leave when divided by S: shard s holds ids c, c + S, c + 2 S, ...

    >>> from tilewright.embed.model.tables import Table
    >>> column(TablePlacement(Table("t", 100, 8), "t", rotation=3, row_offset=0, padded_vocab=128, shards=4), 1)
    2
    """
    return (shard - placement.rotation) % placement.shards


def slab(placement: TablePlacement, shard: int) -> slice:
    """Local rows of a table's ids on ``shard``, without the padding below them."""
    rows = len(range(column(placement, shard), placement.table.vocab, placement.shards))
    return slice(placement.row_offset, placement.row_offset + rows)
