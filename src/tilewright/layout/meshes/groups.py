"""The devices that a collective joins, group by group: ``replica_groups=`` and ``source_target_pairs=`` of HLO.

{{0,1},{2,3}}, {} for all devices, [4,2]<=[2,4]T(1,0), mesh['axis_0'=4,'axis_1'=4] {'axis_1'} (the devices along these
axes of a mesh of its own), the same with device_ids=([4,4]T(1,0)) where that mesh is not in order.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from tilewright.layout.index.types import text_of
from tilewright.layout.meshes.mesh import Mesh, Part, iota_text
from tilewright.layout.meshes.text import (
    AXES,
    DEVICE_IDS,
    INTS,
    IOTA,
    PARTS,
    Cursor,
    device_list,
    digits,
    mesh_of_axes,
    parts_of,
)


@dataclass(frozen=True)
class DeviceGroups:
    """Groups of devices; ``mesh`` and ``parts`` are those of a text that names axes.

    >>> groups = read_groups("mesh['axis_0'=2,'axis_1'=2] {'axis_0'}")
    >>> groups.groups, str(groups)
    (((0, 2), (1, 3)), "mesh['axis_0'=2,'axis_1'=2] {'axis_0'}")
    """

    groups: tuple[tuple[int, ...], ...]
    mesh: Mesh | None = None
    parts: tuple[Part, ...] = ()
    iota: str = ""

    def axes(self, mesh: Mesh) -> tuple[Part, ...] | None:
        """The axes of a mesh along which these groups lie, major first; None where they are not along axes.

        >>> [str(part) for part in read_groups("[4,2]<=[2,4]T(1,0)").axes(Mesh({"d": 2, "m": 4}))]
        ['"d"']
        """
        if len({len(group) for group in self.groups}) != 1:
            return None
        table = np.array(self.groups)
        along = digits(table - table[:, :1], 1)
        parts = None if along is None else [mesh.parts(piece) for piece in along]
        if parts is None or any(part is None for part in parts):
            return None
        found = tuple(part for several in parts for part in several or ())
        return found if sorted(mesh.groups(found)) == sorted(map(tuple, self.groups)) else None

    def __str__(self) -> str:
        if self.mesh is not None:
            axes = ",".join(f"'{name}'={size}" for name, size in self.mesh.axes.items())
            ids = self.mesh.devices and f", device_ids=({','.join(map(str, self.mesh.devices))})"
            names = ",".join(str(part).replace('"', "'") for part in self.parts)
            return f"mesh[{axes}]{ids or ''} {{{names}}}"
        return self.iota or f"{{{','.join('{' + ','.join(map(str, group)) + '}' for group in self.groups)}}}"


def read_groups(text: str, devices: int = 0) -> DeviceGroups:
    """The groups out of their text. ``devices`` is how many there are in all, which ``{}`` does not say.

    Raises :class:`ParseError` with its column.

    >>> str(read_groups("[4,2]<=[2,4]T(1,0)")), read_groups("{}", 4).groups
    ('[4,2]<=[2,4]T(1,0)', ((0, 1, 2, 3),))
    """
    at = Cursor(text_of(text, "a text of groups"))
    if found := at.take(rf"mesh\[{AXES}\](?:{DEVICE_IDS})?\s*{{({PARTS})}}"):
        mesh = mesh_of_axes(at, found[1], device_list(at, found[2]).tolist() if found[2] else None)
        parts = parts_of(found[3])
        places = at.checked(lambda: mesh.groups(parts))
        return at.whole(DeviceGroups(tuple(tuple(mesh.ids[k] for k in group) for group in places), mesh, parts))
    if found := at.take(rf"\[(\d{{1,9}}),(\d{{1,9}})\]<=({IOTA})"):
        sizes, numbers = (int(found[1]), int(found[2])), device_list(at, found[3])
        if math.prod(sizes) != len(numbers):
            raise at.fail(f"not (groups, devices in each) of {len(numbers)} devices")
        table = numbers.reshape(sizes)
        pieces = [piece for dim in (0, 1) for piece in digits(table, dim) or ()]
        text = f"[{sizes[0]},{sizes[1]}]<={iota_text(pieces) if pieces else '[1]'}"
        return at.whole(DeviceGroups(tuple(map(tuple, table.tolist())), iota=text))
    lists = at.need(
        rf"{{\s*((?:{{(?:{INTS})?}}\s*,?\s*)*)}}", "groups as {{0,1},{2,3}}, [4,2]<=[8] or mesh['a'=4] {'a'}"
    )[1]
    groups = tuple(tuple(map(int, re.findall(r"\d+", inside))) for inside in re.findall(r"{([^{}]*)}", lists))
    return at.whole(DeviceGroups(groups if groups or not devices else (tuple(range(devices)),)))
