"""How long devices exchange data: the bytes that each sends, over the links that its group has on the torus.

A program names the devices of a group by their places in its mesh, and not where they stand: that is taken to be where
JAX puts them (``device_places``), on the squarest slice of their number unless the program's topology is known. A dump
that names no mesh has one of which all its groups run along axes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import COLLECTIVES
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.semantics.collectives import Groups, groups_of
from tilewright.hlo.semantics.dims import devices_of
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.layout.meshes.mesh import read_topology
from tilewright.layout.meshes.text import digits
from tilewright.layout.meshes.torus import Extent, Slice, device_places, fullest, squarest
from tilewright.targets import Links, Target

SLICES = "xla_megascale_runtime"
"""What sends and receives name as their handler that exchange data with other slices."""
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')
_TARGET = re.compile(r'_xla_megascale_target="?\{?\{([^{}]*)\}')
_MOST_DEVICES = 1 << 16
_ON_CHIP = 6
"""Links that the two devices of a chip have to each other are as fast as so many between chips (published for 7x)."""


class Torus:
    """The links of a chip, of which ``devices`` share them, and what was seen of them; a chip has two in each dim.

    Rates are in megabytes per microsecond: of one ``link`` in one direction, of a device to its ``host``'s memory or
    back, and to other slices over the data centre's ``network`` (0: not public). ``hop_us``: from a chip to the next.
    """

    def __init__(self, links: Links, devices: int = 1) -> None:
        self.links, self.devices, self.dims = links, devices, links.dims
        self.link = devices * links.bytes_per_second / 1e12 / (2 * links.dims)
        self.hop_us, self.start_us = links.hop_ns / 1e3, links.start_ns / 1e3
        self.host, self.network = links.host_bytes_per_second / 1e12, links.network_bytes_per_second / 1e12
        orders = (order.partition(":")[::2] for order in links.orders.split(";") if order)
        # small slices -> JAX's order of their devices
        self.orders = {chips.strip(): tuple(map(int, order.split())) for chips, order in orders}

    @classmethod
    def of(cls, machine: Target) -> Torus | None:
        """The links of a target, None where they are not known."""
        links = machine.links
        return cls(links, machine.devices_per_chip) if links is not None and links.bytes_per_second else None

    def slice_of(self, program: Program) -> Slice | None:
        """Where the devices of a program stand; None where it is for one, or does not say for how many."""
        known = devices_of(program)
        found = (op for _, op in program.operations() if plain_opcode(op.opcode).removesuffix("-start") in COLLECTIVES)
        keys = ("replica_groups", "source_target_pairs")
        once = {tuple(op.attributes.get(key, "") for key in keys): op for op in found}
        tables = [groups for op in once.values() if (groups := groups_of(op, known))]
        devices = max(known, 1 + max((max(group) for rows in tables for group in rows), default=0))
        chips = devices // self.devices
        if devices < 2 or devices % self.devices or devices > _MOST_DEVICES:
            return None
        slices, torus = read_topology(program.attributes.get("topology") or "1")
        if sum(size > 1 for size in torus) > self.dims:
            torus_text, how = "x".join(map(str, torus)), f"give one such as {'4x' * (self.dims - 1)}8"
            raise UsageError(f"{torus_text} is no slice of chips with links in {self.dims} dims", how=how)
        if prod(torus) * slices != chips:
            slices = -(-chips // self.links.largest) if self.links.largest else 1
            slices = slices if chips % slices == 0 else 1
            torus = squarest(chips // slices, self.dims)
        said = [axis.rpartition("=")[::2] for axis in program.attributes.get("mesh", "").split(",") if axis]
        mesh = tuple(int(size) for _, size in said) or mesh_along(tables, devices)
        if prod(mesh) != devices or mesh[0] % slices:
            mesh, said = (devices,), []
        inside = (mesh[0] // slices, *mesh[1:])  # the first axis runs over the slices, as JAX's hybrid meshes have it
        places = device_places(inside, torus, self.devices, self.orders)
        numbers = np.repeat(np.arange(slices), len(places))[:, None]
        rings = [bool(self.links.wrap) and size % self.links.wrap == 0 for size in torus]
        rings = [ring and (self.dims < 3 or all(rings)) for ring in rings]
        names = tuple(name for name, _ in said) or tuple(f"axis {k}" for k in range(len(mesh)))
        return Slice(np.concatenate([numbers, np.tile(places, (slices, 1))], 1), torus, rings, mesh, names)

    def exchange_us(
        self, op: Operation, operands: list[Tiles], results: list[Tiles], devices: int = 0, on: Slice | None = None
    ) -> tuple[float, float]:
        """Microseconds of one exchange, and the megabytes that it reads and writes in a device's memory.

        Each of n sends, padding included: in a gather (n - 1) / n of its result, in a scatter of sums of its operand,
        in an all-reduce twice that, over both links of a ring and the one that the ends of a line have, all dims at
        once; in a permute all of it, over the links on its way. In an all-to-all every part passes all links on its
        way. Groups that share links share their rate. Where a chip's devices are in one group, each sends its share of
        what the chip does. Of a group in several slices the chips of one do their part first, and the rest goes over
        the network. ``devices``: all of the program's; ``on``: where they stand.
        """
        kind, groups = op.opcode.removesuffix("-start").replace("_", "-"), groups_of(op, devices)
        # the tuple of one that is begun has the operands first
        first = len(operands) if op.opcode.endswith("-start") and len(results) > len(operands) else 0
        results = results[first : first + len(operands)]
        given, taken = (sum(tiles.megabytes for tiles in arrays) for arrays in (operands, results))
        moved = sum(tiles.megabytes for tiles in (*operands, *results) if not tiles.space)
        n = len(groups[0]) if groups else devices or 2
        if on is None or not groups or max(map(max, groups)) >= len(on.chips):
            on = None
        sums = kind in ("all-reduce", "reduce-scatter")
        link = self.link * (self.links.reduce_percent if sums else self.links.gather_percent) / 100
        if kind == "collective-permute":
            us = given / (link / self.devices)
            if on is not None:
                hops, shared, across = on.permuted(groups)
                us = (max(1, hops) - 1) * self.hop_us + max(given * shared / link, given / (_ON_CHIP * self.link))
                us = given / self.network if self.network and across else us
            return self.start_us + self.hop_us + us, moved
        chips = max(1, n // self.devices) if n % self.devices == 0 else n
        lines = tuple(Extent(size) for size in squarest(chips, self.dims) if size > 1)
        extents, slices, whole = lines, 1, taken if kind == "all-gather" else given
        if on is not None:
            own = {on.chips[device] for device in groups[0]}
            slices = len({chip[0] for chip in own})
            chips, extents, n = len(own) // slices, on.extents(groups), len(groups[0]) // slices
        together = max(1, n // chips)  # devices of one chip in the group
        us = (together - 1) / together * whole / (_ON_CHIP * self.link)
        hops = 1
        if chips > 1:
            hops = sum((size // 2 if ring else size - 1) * apart for size, ring, apart, _ in extents)
            parts = max(fullest(kind, extents)) / (1 if "all-to-all" in kind else together)
            us = max(us, parts * whole / (link / self.devices))
        times = 2 if kind == "all-reduce" else 1
        us = self.start_us + times * (hops * self.hop_us + us)
        if slices > 1:
            sent = {"all-gather": whole / n, "all-to-all": whole / slices}.get(kind, times * whole / n / slices)
            us += (slices - 1) * sent / self.network if self.network else 0.0
        return us, moved

    def between_slices_us(self, op: Operation, given: float) -> tuple[float, float] | None:
        """Microseconds of an exchange with other slices that a ``send`` of ``given`` megabytes begins; its result's.

        Of n slices each device sends, over the network of its host, (n - 1) / n of what a sum scatters or all swap,
        twice that of what is summed for all, n - 1 times what is gathered, all of what is passed on; all it sends and
        gets passes the host's link on its way. None where the rate is not public or the text does not say how many.

        >>> said = '_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_GATHER"'
        >>> send = Operation("s", "send", "", attributes={"frontend_attributes": said})
        >>> links = Links(10**11, host_bytes_per_second=32 * 10**9, network_bytes_per_second=125 * 10**8)
        >>> Torus(links).between_slices_us(send, 1.0)
        (80.0, 2.0)
        """
        said = op.attributes.get("frontend_attributes", "")
        kind, target = _KIND.search(said), _TARGET.search(said)
        if not (self.network and kind and target):
            return None
        numbers, many = re.findall(r"\d{1,9}", target[1]), max(2, target[1].count(",") + 1)
        if ":" in target[1] and len(numbers) == 2:
            many = max(2, int(numbers[1]) - int(numbers[0]) + 1)
        rest = (many - 1) / many
        shares = {"ALL_REDUCE": (2 * rest, 1.0), "ALL_GATHER": (many - 1.0, float(many)), "ALL_TO_ALL": (rest, 1.0)}
        sent, taken = (shares | {"REDUCE_SCATTER": (rest, 1 / many)}).get(kind[1], (1.0, 1.0))
        hosted = given * max(1.0, taken) / self.host if self.host else 0.0
        return max(given * sent / self.network, hosted), given * taken


def mesh_along(tables: Sequence[Groups], devices: int) -> tuple[int, ...]:
    """The sizes of the axes of a mesh along which all these groups run.

    >>> mesh_along([((0, 2), (1, 3), (4, 6), (5, 7))], 8)
    (2, 2, 2)
    """
    bounds, kept = {1, devices}, [1]
    for rows in (np.array(table) for table in tables if len({*map(len, table)}) == 1):
        for size, stride in digits(rows - rows[:, :1], 1) or ():
            bounds |= {stride, stride * size}
    for bound in sorted(bounds):
        if bound > kept[-1] and bound % kept[-1] == 0 == devices % bound:
            kept.append(bound)
    return tuple(b // a for a, b in reversed([*pairwise(kept)])) or (1,)
