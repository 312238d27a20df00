"""How long devices exchange data: the bytes that each sends, over the links that its group has on the torus."""

from __future__ import annotations

import re

from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.collectives import groups_of
from tilewright.hlo.semantics.tiles import Tiles
from tilewright.layout.meshes.torus import Extent, Slice, fullest, squarest
from tilewright.targets import Links, Target

SLICES = "xla_megascale_runtime"
"""What sends and receives name as their handler that exchange data with other slices."""
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')
_TARGET = re.compile(r'_xla_megascale_target="?\{?\{([^{}]*)\}')
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

    @classmethod
    def of(cls, machine: Target) -> Torus | None:
        """The links of a target, None where they are not known."""
        links = machine.links
        return cls(links, machine.devices_per_chip) if links is not None and links.bytes_per_second else None

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
