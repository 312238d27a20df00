"""An array over a mesh as an index map: logical index -> (device, offset in that device's shard).

Every dim is padded to a whole number of shards, cut into (shard, place in it), and the shard's number into the devices'
coordinates; the places then go through the steps of the shard's own layout, tiles and all:

    (i, j) --Pad, Split--> shard numbers --Split--> coordinates on the axes --> device
                       \\-> places in the shard --tiles------------------------> offset
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.address_map import Axis, IndexRangeError
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Line, Pad, Permute, Split, Step
from tilewright.layout.index.types import UNBOUNDED, to_int
from tilewright.layout.kinds.tiled import TensorLayout, TupleLayout, from_text, parse
from tilewright.layout.meshes.mesh import Sharding
from tilewright.layout.meshes.text import sharding_of

Shards = dict[int, np.ndarray[Any, Any]]


@dataclass(frozen=True, repr=False)
class MeshLayout(IndexMap):
    """An array over a mesh; ``whole`` is its layout without the mesh, ``shard_layout`` that of one device's shard.

    Devices are numbered in the mesh's order, the last axis fastest. ``address`` gives the first device that holds an
    element, ``where`` all of them.
    """

    whole: TensorLayout = None  # type: ignore[assignment]  # dataclasses want a default behind defaults
    sharding: Sharding = None  # type: ignore[assignment]
    shard_layout: TensorLayout = None  # type: ignore[assignment]

    @property
    def mesh(self) -> Any:
        """The devices."""
        return self.sharding.mesh

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Sizes of a device's shard; the last shards of a dim that does not divide are padded."""
        return self.shard_layout.shape

    @property
    def replicas(self) -> int:
        """How many devices hold every element."""
        return self.sharding.replicas

    @property
    def bytes_per_device(self) -> int:
        """Bytes of a device's shard, with its tiles' padding."""
        return self.shard_layout.size_bytes

    @property
    def tiles(self) -> tuple[tuple[int, ...], ...]:
        return self.shard_layout.tiles

    @property
    def level_names(self) -> tuple[str, ...]:
        return self.shard_layout.level_names

    @property
    def step_levels(self) -> tuple[int, ...]:
        return (0,) * (len(self.steps) - len(self.shard_layout.steps)) + self.shard_layout.step_levels

    @property
    def outer_coordinates(self) -> int:
        """How many coordinates in front of the others say the device."""
        return len(self.axis_terms[0].terms)

    def part_names(self, at: int) -> tuple[str, str] | None:
        """What step ``at`` cuts: the axes from the place in a shard, then one axis from the next."""
        return self._part_names.get(at)

    @cached_property
    def _part_names(self) -> dict[int, tuple[str, str]]:
        return _mesh_steps(self.whole.shape, self.shard_shape, self.sharding)[2]

    @property
    def particulars(self) -> dict[str, Any]:
        facts = {"sharding": str(self.sharding), "mesh": self.mesh.axes, "shard_shape": list(self.shard_shape)}
        shard = {"shard_layout": str(self.shard_layout), "replicas": self.replicas}
        return super().particulars | facts | shard

    def first_copy(self, value: Any) -> Any:
        homes = self.sharding.homes
        return int(homes[value]) if isinstance(value, int) else homes[np.clip(value, 0, len(homes) - 1)]

    def _axis_values(self, coordinates: Sequence[Any]) -> list[Any]:
        place, offset = super()._axis_values(coordinates)
        return [self.sharding.device_at(place), offset]

    @cached_property
    def digits(self) -> dict[str, Line] | None:
        if self.sharding.order is not None or self.sharding.device is not None:
            return None
        return IndexMap.digits.func(self)  # type: ignore[attr-defined,no-any-return]

    def address_text(self, axis: str, arithmetic: str) -> str:
        """The arithmetic of an axis; a list of devices is looked up."""
        if axis != "device":
            return arithmetic
        if self.sharding.device is not None:
            return "the only one"
        return arithmetic if self.sharding.order is None else f"the list's number {arithmetic}"

    def where(self, *index: Any) -> list[tuple[int, ...]]:
        """All (device, offset) that hold an element, by device; the index as one sequence or number by number.

        >>> shard("f32[4,4]", {"d": 2, "m": 2}, [("d",), ()]).where((3, 1))
        [(2, 5), (3, 5)]
        """
        if len(index) == 1 and isinstance(index[0], (tuple, list, np.ndarray)):
            index = tuple(index[0])
        address = self.address(*index)
        place = self.first_copy(address["device"])
        return [(device, address["offset"]) for device in self.sharding.holders(place)]

    def starts(self, device: int) -> tuple[int, ...] | None:
        """The first index of a device's shard; None where it holds none (of a maximal sharding)."""
        if not 0 <= to_int(device, "a device") < self.mesh.size:
            raise IndexRangeError(f"device {device} is outside the mesh, which has {self.mesh.size}", where=str(self))
        place, found = self.first_copy(device), list[int]()
        if place < 0:
            return None
        for dim, size in enumerate(self.shard_shape):
            number = 0
            for piece in self.sharding.pieces(dim):
                number = number * piece.size + place // piece.stride % piece.size
            found.append(number * size)
        return tuple(found)

    def box(self, device: int) -> tuple[slice, ...] | None:
        """The indices that a device holds, a slice per dim (empty where its shard is all padding)."""
        starts = self.starts(device)
        if starts is None:
            return None
        ends = zip(starts, self.shard_shape, self.shape, strict=True)
        return tuple(slice(min(a, n), min(a + size, n)) for a, size, n in ends)

    def pack(  # type: ignore[override]  # the shards of many memories
        self, array: Any, out: Any = None, fill: Any = 0, *, in_memory: bool = False
    ) -> Shards:
        """The shards of an array, {device: array of ``shard_shape``}; what is no element holds ``fill``.

        With ``in_memory`` every shard as it lies in its device, 1-D with its tiles, so that offsets count in it.

        >>> shards = shard("s32[3]", {"d": 2}, [("d",)]).pack(np.array([7, 8, 9], np.int32))
        >>> {device: values.tolist() for device, values in shards.items()}
        {0: [7, 8], 1: [9, 0]}
        """
        if out is not None:
            raise UsageError("shards are new arrays: out= is for one memory")
        values, shards = np.asarray(array), Shards()
        if values.shape != self.shape or values.dtype != self.numpy_dtype:
            raise UsageError(f"an array {values.dtype}{list(values.shape)} for the layout {self}")
        for device in range(self.mesh.size):
            box = self.box(device)
            if box is not None:
                part = values[box]
                shards[device] = np.full(self.shard_shape, fill, values.dtype)
                shards[device][tuple(slice(n) for n in part.shape)] = part
        return {d: self.shard_layout.pack(s, fill=fill) for d, s in shards.items()} if in_memory else shards

    def unpack(self, buffer: Mapping[int, Any], out: Any = None) -> np.ndarray[Any, Any]:
        """The array out of its shards, in either form that :meth:`pack` makes; copies are taken from the first."""
        result = np.empty(self.shape, self.numpy_dtype) if out is None else out
        for place in sorted(set(self.sharding.homes.tolist()) - {-1}):
            device = int(self.sharding.device_at(place))
            part = self.shard_of(buffer, device)
            box = self.box(device) or ()
            result[box] = part[tuple(slice(b.stop - b.start) for b in box)]
        return result

    def shard_of(self, shards: Mapping[int, Any], device: int) -> np.ndarray[Any, Any]:
        """One device's shard, checked; a 1-D one in memory is taken out of its tiles."""
        if not isinstance(shards, Mapping) or device not in shards:
            raise UsageError(f"there is no shard of device {device}", where=str(self), how="as {device: array}")
        part = np.asarray(shards[device])
        if part.shape != self.shard_shape and part.shape == (self.shard_layout.num_slots,):
            part = self.shard_layout.unpack(part)
        if part.shape != self.shard_shape or part.dtype != self.numpy_dtype:
            how = f"shards are {self.numpy_dtype}{list(self.shard_shape)}"
            raise UsageError(f"device {device} has {part.dtype}{list(part.shape)}", where=str(self), how=how)
        return part

    @property
    def num_slots(self) -> int:
        return len(self.sharding.homes[self.sharding.homes >= 0]) * self.shard_layout.num_slots

    def __str__(self) -> str:
        return f"{self.whole} over {self.sharding}"


def _mesh_steps(
    shape: Sequence[int], cuts: Sequence[int], sharding: Sharding
) -> tuple[list[Step], list[tuple[int, int]], dict[int, tuple[str, str]]]:
    """The steps that cut an array into shards, the (coordinate, stride) of its device, and what the cuts are called.

    Behind the steps come first all coordinates that say the device, then the places in the shard.
    """
    steps, names = list[Step](), dict[int, tuple[str, str]]()
    outer, inner, strides, at = list[int](), list[int](), list[int](), 0
    for dim, (size, cut) in enumerate(zip(shape, cuts, strict=True)):
        parts, count = sharding.dims[dim] if dim < len(sharding.dims) else (), sharding.count(dim)
        if count > 1:
            steps += [Pad(at, high=count * cut - size)] if count * cut > size else []
            names[len(steps)] = ("+".join(part.axis for part in parts), "place")
            steps.append(Split(at, max(cut, 1)))
            pieces = sharding.pieces(dim)
            for k in range(len(parts) - 1):
                rest = count = count // pieces[k].size
                names[len(steps)] = (parts[k].axis, "+".join(part.axis for part in parts[k + 1 :]))
                steps.append(Split(at + k, rest))
            outer += range(at, at + len(parts))
            strides += [piece.stride for piece in pieces]
            at += len(parts)
        inner.append(at)
        at += 1
    order = (*outer, *inner)
    steps += [Permute(order)] if order != tuple(range(at)) else []
    return steps, list(enumerate(strides)), names


def _behind(step: Step, count: int) -> Step:
    """The step on coordinates that have ``count`` others in front of them."""
    if isinstance(step, Permute):
        return Permute((*range(count), *(count + k for k in step.order)))
    return replace(step, dim=step.dim + count)  # type: ignore[type-var,attr-defined]


def shard(array: Any, mesh: Any = None, sharding: Any = None) -> MeshLayout:
    """Where every element of an array lives over a mesh.

    ``array`` is a shape's text or layout, with its tiles, of the whole array; ``mesh`` a :class:`Mesh`, sizes by name,
    or JAX's; ``sharding`` axes per dim, a text (see :func:`tilewright.layout.meshes.text.read_sharding`) or JAX's
    ``NamedSharding`` or ``PartitionSpec``. What names its mesh itself needs none: it may stand in the mesh's place.

    >>> weights = shard("bf16[8192,2048]{1,0:T(8,128)(2,1)}", {"d": 4, "m": 4}, [("d",), ()])
    >>> weights.shard_shape, weights.replicas, weights.bytes_per_device
    ((2048, 2048), 4, 8388608)
    >>> weights.where((5000, 100))
    [(8, 1851592), (9, 1851592), (10, 1851592), (11, 1851592)]
    >>> weights.index(9, 1851592)
    (5000, 100)
    """
    if sharding is None:
        mesh, sharding = None, mesh
    if sharding is None:
        raise UsageError("shard takes an array, a mesh and a sharding", how='as shard("f32[8,4]", mesh, [("d",), ()])')
    whole = parse(array) if isinstance(array, str) else array
    if isinstance(whole, TupleLayout) or not isinstance(whole, TensorLayout):
        raise UsageError(f"{whole} is not the layout of one array", how="give the shape's text")
    if whole.text.splits or UNBOUNDED in whole.shape:
        raise UnsupportedError(f"{whole} has no fixed size to cut", how="leave out SC(..), and give '?' a bound")
    over = sharding_of(sharding, mesh)
    if over.kind == "" and not over.mesh.names and mesh is None and over.device is None and over.notation == "gspmd":
        raise UsageError("{replicated} does not say over how many devices", how="give the mesh")
    cuts = over.cuts(whole.shape) if over.device is None else whole.shape
    inside = from_text(replace(whole.text, dims=cuts))
    cutting = over if over.device is None else replace(over, dims=())
    steps, terms, _ = _mesh_steps(whole.shape, cuts, cutting)
    offset = inside.axis_terms[0]
    moved = Axis("offset", tuple((c + len(terms), stride) for c, stride in offset.terms), offset.extent)
    axes = (Axis("device", tuple(terms), over.mesh.size), moved)
    program = (*steps, *(_behind(step, len(terms)) for step in inside.steps))
    return MeshLayout(whole.dtype, whole.shape, program, axes, (), whole.slot_bits, whole, over, inside)
