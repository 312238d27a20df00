"""A layout over a mesh as a picture: what every device holds, and one device's shard opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.layout.draw.panels import COLOURS, Bounds, Panel, Scene, each_cell
from tilewright.layout.draw.scene import make_scene
from tilewright.render import bytes_text, count_text

if TYPE_CHECKING:
    from tilewright.layout.meshes.shards import MeshLayout

_ROWS, _COLUMNS, _ROOMY = 16, 16, 4


def mesh_scene(layout: MeshLayout, colour: str, most: Bounds, window: str, at: Sequence[int] | None) -> Scene:
    """The devices of a mesh, its last axis from left to right, and below them the shard that holds ``at``."""
    device = layout.sharding.holders(0)[0] if at is None else int(layout.where(*at)[0][0])
    start = layout.starts(device) or ()
    inside = None if at is None else [i - low for i, low in zip(at, start, strict=True)]
    scene = make_scene(layout.shard_layout, colour=colour, most=most, window=window, at=inside)
    copies = f", every element on {count_text(layout.replicas)} of them" if layout.replicas > 1 else ""
    facts = f"{count_text(layout.mesh.size)} devices with {bytes_text(layout.bytes_per_device)} each{copies}"
    opened = f"; device {device} opened: {_held(layout, device)}, indices counted in its shard"
    return replace(scene, title=str(layout), facts=facts + opened, devices=_devices(layout))


def _held(layout: MeshLayout, device: int) -> str:
    box = layout.box(device)
    return "nothing" if box is None else ",".join(f"{side.start}:{side.stop}" for side in box) or "the element"


def _devices(layout: MeshLayout) -> Panel:
    mesh = layout.mesh
    across = mesh.shape[-1] if mesh.shape else 1
    numbers = np.arange(mesh.size).reshape(-1, across)[:_ROWS, :_COLUMNS]
    homes = layout.sharding.homes[numbers]
    shards = {home: k for k, home in enumerate(sorted(set(layout.sharding.homes.tolist())))}

    def short(device: int) -> str:
        starts = layout.starts(device)
        numbered = zip(starts or (), layout.shard_shape, strict=False)
        return "" if starts is None else ",".join(str(low // max(1, size)) for low, size in numbered) or "0"

    roomy = across <= _ROOMY
    labels = each_cell(lambda device: f"{device}: {_held(layout, device)}" if roomy else short(device), numbers)
    rows = [mesh.coordinates(int(device)) for device in numbers[:, 0]]
    last = mesh.names[-1] if mesh.names else ""
    cut = "" if numbers.size == mesh.size else f", the first {numbers.size} of {count_text(mesh.size)}"
    return Panel(
        f"the {'indices that every device holds' if roomy else 'shard of every device'}{cut}; a colour per shard",
        "",
        last,
        tuple(", ".join(f"{name}={n}" for name, n in row.items() if name != last) or "device" for row in rows),
        tuple(map(str, range(numbers.shape[1]))),
        labels,
        each_cell(lambda device: f"device {device}: {_held(layout, device)}", numbers),
        homes < 0,
        np.vectorize(lambda home: shards[home] % COLOURS, otypes=[np.int64])(homes),
        numbers[..., None],
        numbers[..., None],
    )
