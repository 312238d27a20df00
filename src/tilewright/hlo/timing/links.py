"""How long devices exchange data: the bytes that each sends, over the links that its group has on the torus.

A dump names the devices of a group by number and not where they stand. A slice is taken to be the squarest torus of its
size, and a group to lie along whole dims of it where its size is a product of some, else in a block of lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod

from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.dims import group_size
from tilewright.hlo.timing.tiles import Tiles
from tilewright.targets import Target

SLICES = "xla_megascale_runtime"
"""What sends and receives name as their handler that exchange data with other slices."""
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')
_TARGET = re.compile(r'_xla_megascale_target="?\{?\{([^{}]*)\}')
_ON_CHIP = 6
"""Links that the two devices of a chip have to each other are as fast as so many between chips (published for 7x)."""


@dataclass(frozen=True)
class Torus:
    """The links of a chip and what was seen of them.

    ==================  =======================================================================================
    ``link``            megabytes per microsecond of one link in one direction
    ``dims``            dims of the torus; a chip has two links in each
    ``wrap``            a dim is a ring where its size is a multiple of this; 0: never
    ``devices``         of a chip, which share its links
    ``hop_us``          microseconds from a chip to the next, ``start_us`` until an exchange begins
    ``gather_share``    of the links' rate that gathers and permutes reach, ``reduce_share`` what sums reach
    ``host``            megabytes per microsecond of a device to its host's memory, or back; 0: not public
    ``network``         the same to other slices, over the data centre's network
    ==================  =======================================================================================
    """

    link: float
    dims: int
    wrap: int = 0
    devices: int = 1
    hop_us: float = 0.0
    start_us: float = 0.0
    gather_share: float = 1.0
    reduce_share: float = 1.0
    host: float = 0.0
    network: float = 0.0

    @classmethod
    def of(cls, machine: Target) -> Torus | None:
        """The links of a target, None where they are not known."""
        links = machine.links
        if links is None or not links.bytes_per_second:
            return None
        dims = int(links.topology[:1]) if links.topology[:1].isdigit() else 1
        devices = machine.devices_per_chip
        return cls(
            *(devices * links.bytes_per_second / 1e12 / (2 * dims), dims, links.wrap, devices),
            *(links.hop_ns / 1e3, links.start_ns / 1e3, links.gather_percent / 100, links.reduce_percent / 100),
            *(links.host_bytes_per_second / 1e12, links.network_bytes_per_second / 1e12),
        )

    def exchange_us(
        self, op: Operation, operands: Sequence[Tiles], results: Sequence[Tiles], devices: int = 0
    ) -> tuple[float, float]:
        """Microseconds of one exchange, and the megabytes that it reads and writes in a device's memory.

        Each of n sends, padding included: in a gather (n - 1) / n of its result, in a scatter of sums of its operand,
        in an all-reduce twice that, over both links of a ring and the one that the ends of a line have, all dims at
        once; in a permute all of it, over one link. In an all-to-all every part passes all links on its way. Where a
        chip's devices are in one group, each sends its share of what the chip does. ``devices``: all of the program's.
        """
        kind, n = op.opcode.removesuffix("-start").replace("_", "-"), max(1, group_size(op, devices))
        if op.opcode.endswith("-start") and len(results) > len(operands):
            results = results[len(operands) :]  # its tuple begins with the operands
        given = sum(tiles.megabytes for tiles in operands)
        taken = sum(tiles.megabytes for tiles in results[: len(operands)])
        moved = sum(tiles.megabytes for tiles in (*operands, *results[: len(operands)]) if not tiles.space)
        chips = max(1, n // self.devices) if n % self.devices == 0 else n
        together = n // chips  # devices of one chip in the group
        whole, sums = taken if kind == "all-gather" else given, kind in ("all-reduce", "reduce-scatter")
        us = (together - 1) / together * whole / (_ON_CHIP * self.link)
        hops, link = 1, self.link * (self.reduce_share if sums else self.gather_share) / self.devices
        if kind == "collective-permute":
            us = given / link
        elif chips > 1:
            extents = self.extents(chips, max(chips, devices // self.devices))
            hops = sum(size // 2 if ring else size - 1 for size, ring in extents)
            parts = (chips - 1) / chips / together / sum(1 + ring for _, ring in extents)
            if "all-to-all" in kind:
                parts = max(parts, *(size / (8 if ring else 4) for size, ring in extents))
            us = max(us, parts * whole / link)
        times = 2 if kind == "all-reduce" else 1
        return self.start_us + times * (hops * self.hop_us + us), moved

    def between_slices_us(self, op: Operation, given: float) -> tuple[float, float] | None:
        """Microseconds of an exchange with other slices that a ``send`` of ``given`` megabytes begins; its result's.

        Of n slices each device sends, over the network of its host, (n - 1) / n of what a sum scatters or all swap,
        twice that of what is summed for all, n - 1 times what is gathered, all of what is passed on; all it sends and
        gets passes the host's link on its way. None where the rate is not public or the text does not say how many.

        >>> said = '_xla_megascale_target="{1,2}x{0:7}",_xla_megascale_transfer_type="ALL_GATHER"'
        >>> send = Operation("s", "send", "", attributes={"frontend_attributes": said})
        >>> Torus(0.1, 2, host=0.032, network=0.0125).between_slices_us(send, 1.0)
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

    def extents(self, chips: int, slice_: int) -> tuple[tuple[int, bool], ...]:
        """(size, whether it is a ring) along each dim that a group of ``chips`` of a slice of ``slice_`` has.

        >>> Torus(0.1, 2, wrap=16).extents(256, 256), Torus(0.1, 2, wrap=16).extents(4, 32)
        (((16, True), (16, True)), ((4, False),))
        """
        return _extents(chips, slice_, self.dims, self.wrap)


@lru_cache(maxsize=1024)
def _extents(chips: int, slice_: int, dims: int, wrap: int) -> tuple[tuple[int, bool], ...]:
    shape = _squarest(slice_, dims)
    choices = [
        [(size, bool(wrap) and size % wrap == 0) for size in chosen]
        for count in range(1, dims + 1)
        for chosen in combinations(shape, count)
        if prod(chosen) == chips and min(chosen) > 1
    ]
    lines = [(size, False) for size in _squarest(chips, dims) if size > 1]
    return tuple(max(choices, key=lambda extents: sum(1 + ring for _, ring in extents), default=lines))


def _squarest(count: int, dims: int) -> tuple[int, ...]:
    """Sizes of a slice: 32 chips in two dims are 8 x 4; the largest prime factors first, each to the smallest dim."""
    sizes, rest, factors, by = [1] * dims, count, list[int](), 2
    while rest > 1 and by * by <= rest:
        by, rest, factors = (by, rest // by, [*factors, by]) if rest % by == 0 else (by + 1, rest, factors)
    for factor in sorted([*factors, rest], reverse=True):
        sizes[sizes.index(min(sizes))] *= factor
    return tuple(sorted(sizes, reverse=True))
