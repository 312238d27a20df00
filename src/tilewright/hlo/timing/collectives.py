"""Collectives: bytes over a chip's links at the published rate, in rings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.mechanisms.tiles import Tiles

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
COLLECTIVES = frozenset(kind + suffix for kind in (*_KINDS, "ragged-all-to-all") for suffix in ("", "-start", "-done"))
"""Operations that exchange data between chips."""

_GROUPS = re.compile(r"\{\{([\d,]+)\}")
_IOTA = re.compile(r"\[(\d{1,9}),(\d{1,9})\]<=")
_TENSOR = re.compile(r"tensor<(\d{1,9})x(\d{1,9})xi64>")
_MESH = re.compile(r"mesh\[([^\[\]]*)\](?:, device_ids=\(.*\))? ?\{([^{}]*)\}")
_SIZE = re.compile(r"'([^']*)'=(\d{1,9})")
_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d{1,9}))?")
"""An axis of a mesh, or as ``'a':(2)4`` a part of one: how many come before it, and its size."""


def group_size(op: Operation, devices: int = 0) -> int:
    """Chips that take part together, from ``replica_groups``: of groups that differ in size those of the first.

    Groups that name none are all ``devices`` (0: not known, which counts as 2).

    >>> group_size(Operation("g", "all-gather", "", attributes={"replica_groups": "mesh['a'=4,'b'=2] {'b'}"}))
    2
    """
    text = op.attributes.get("replica_groups", "")
    if match := _IOTA.search(text) or _TENSOR.search(text):
        return int(match[2])
    if match := _GROUPS.search(text):
        return match[1].count(",") + 1
    if match := _MESH.search(text):
        sizes = {name: int(size) for name, size in _SIZE.findall(match[1])}
        return prod(int(part) if part else sizes.get(name, 1) for name, part in _AXIS.findall(match[2]))
    return devices or 2


def devices_of(program: Program) -> int:
    """The devices that a module is for, as its header says; 0 where it says nothing."""
    numbers = [program.attributes.get(key, "") for key in ("num_partitions", "replica_count")]
    known = [int(number) for number in numbers if number.isdecimal() and len(number) < 10]
    return prod(known) if known else 0


def parts_in_fusions(program: Program) -> Counter[str]:
    """``channel_id`` -> how many fused operations show the exchange.

    One that the compiler spreads over fusions that compute (``AsyncCollectiveStart``, parts, ``AsyncCollectiveDone``)
    stands whole in each of them, and goes over the links once.
    """
    fused = (op for name in program.fused for op in program.by_name[name].operations)
    known = (op for op in fused if plain_opcode(op.opcode) in COLLECTIVES and "channel_id" in op.attributes)
    return Counter(op.attributes["channel_id"] for op in known)


def collective_us(
    chip: Chip, op: Operation, operands: Sequence[Tiles], results: Sequence[Tiles], devices: int = 0
) -> float | None:
    """Microseconds of one collective over all links of a chip, or None where the links are not known.

    A ring sends, of n chips: an all-reduce 2 (n - 1) / n of its operand, a gather, scatter or exchange (n - 1) / n of
    the larger side, a permute all of it. Published rates, not calibrated.
    """
    if not chip.link_bytes_per_second:
        return None
    larger = max(sum(t.megabytes for t in operands), max((t.megabytes for t in results), default=0.0))
    chips = group_size(op, devices)
    share = (chips - 1) / chips if chips else 0.0
    if op.opcode.startswith("all-reduce"):
        sent = 2 * share * sum(t.megabytes for t in operands)
    elif op.opcode.startswith("collective-permute"):
        sent = larger
    else:
        sent = share * larger
    return chip.kernel["launch_us"] + sent / (chip.link_bytes_per_second / 1e12)
