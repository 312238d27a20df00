"""Collectives: bytes over a chip's links at the published rate, in rings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.hlo.program import Operation
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.mechanisms.tiles import Tiles

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
COLLECTIVES = frozenset(kind + suffix for kind in (*_KINDS, "ragged-all-to-all") for suffix in ("", "-start", "-done"))
"""Operations that exchange data between chips."""

_GROUPS = re.compile(r"\{\{([\d,]*)\}")
_IOTA = re.compile(r"\[(\d+),(\d+)\]<=")
_TENSOR = re.compile(r"tensor<(\d+)x(\d+)xi64>")


def group_size(op: Operation) -> int:
    """Chips that take part together, from ``replica_groups``; 2 where the text does not say."""
    text = op.attributes.get("replica_groups", "")
    if match := _IOTA.search(text) or _TENSOR.search(text):
        return int(match[2])
    if match := _GROUPS.search(text):
        return match[1].count(",") + 1
    return 2


def collective_us(chip: Chip, op: Operation, operands: Sequence[Tiles], results: Sequence[Tiles]) -> float | None:
    """Microseconds of one collective over all links of a chip, or None where the links are not known.

    A ring sends, of n chips: an all-reduce 2 (n - 1) / n of its operand, a gather, scatter or exchange (n - 1) / n of
    the larger side, a permute all of it. Published rates, not calibrated.
    """
    if not chip.link_bytes_per_second:
        return None
    larger = max(sum(t.megabytes for t in operands), max((t.megabytes for t in results), default=0.0))
    chips = group_size(op)
    share = (chips - 1) / chips if chips else 0.0
    if op.opcode.startswith("all-reduce"):
        sent = 2 * share * sum(t.megabytes for t in operands)
    elif op.opcode.startswith("collective-permute"):
        sent = larger
    else:
        sent = share * larger
    return chip.kernel["launch_us"] + sent / (chip.link_bytes_per_second / 1e12)
