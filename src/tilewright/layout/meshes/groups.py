"""The devices that a collective joins, group by group: ``replica_groups=`` and ``source_target_pairs=`` of HLO.

{{0,1},{2,3}}, {} for all devices, [4,2]<=[2,4]T(1,0), mesh['axis_0'=4,'axis_1'=4] {'axis_1'} (the devices along these
axes of a mesh of its own), the same with device_ids=([4,4]T(1,0)) where that mesh is not in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ParseError
from tilewright.layout.index.types import text_of
from tilewright.layout.meshes.mesh import Mesh, Part
from tilewright.layout.meshes.text import Cursor, _axes, _iota_text, _part, digits, iota, read_ids


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
        import numpy as np

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
    if at.take("mesh["):
        found = _along_axes(at)
    elif at.take("["):
        found = _iota(at)
    else:
        found = DeviceGroups(tuple(tuple(group) for group in _lists(at)))
        if not found.groups and devices:
            found = DeviceGroups((tuple(range(devices)),))
    return at.whole(found)


def _lists(at: Cursor) -> list[list[int]]:
    def group() -> list[int]:
        at.need("{")
        return at.several(at.number, "}")

    at.need("{")
    return at.several(group, "}")


def _iota(at: Cursor) -> DeviceGroups:
    start = at.at
    sizes = at.several(at.number, "]")
    at.need("<=", "[")
    devices = iota(at)
    if len(sizes) != 2 or math.prod(sizes) != len(devices):
        raise ParseError(f"not (groups, devices in each) of {len(devices)} devices", text=at.text, column=start)
    table = devices.reshape(sizes)
    pieces = [digits(table, dim) for dim in (0, 1)]
    text = _iota_text([piece for dim in pieces for piece in dim or ()]) or "[1]"
    return DeviceGroups(tuple(map(tuple, table.tolist())), iota=f"[{sizes[0]},{sizes[1]}]<={text}")


def _along_axes(at: Cursor) -> DeviceGroups:
    axes = mesh = _axes(at, at.name, "]")
    if at.take(","):
        at.need("device_ids")
        order = read_ids(at)
        mesh = at.checked(lambda: Mesh(axes.axes, devices=order))
    at.need("{")
    parts = tuple(at.several(lambda: _part(at), "}"))
    groups = at.checked(lambda: mesh.groups(parts))
    ids = mesh.ids
    return DeviceGroups(tuple(tuple(ids[place] for place in group) for group in groups), mesh, parts)
