"""A size as a message states it, ``41.74G``: rounded, so it stands for a range of byte counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from tilewright.render import bytes_text

SIZE = r"-?\d[\d,]{0,24}(?:\.\d{1,6})?\s?(?:[KMGTPE](?:i?B)?|B(?![a-z])|bytes)?"
"""A size in a larger pattern (no group of its own)."""

_PARTS = re.compile(r"(-?)(\d[\d,]*)(?:\.(\d+))?\s?([KMGTPE]?)")
_UNITS = {unit: 1 << (10 * power) for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}


@dataclass(frozen=True)
class StatedSize:
    """A size as written.

    =========  ==================================================================================
    ``text``   as written, without blanks at its ends
    ``bytes``  the nearest byte count
    ``low``    the smallest byte count that is written so, ``high`` the largest
    =========  ==================================================================================

    >>> size = read_size("41.74G")
    >>> size.bytes, size.covers(44_818_000_000), size.covers(44_000_000_000)
    (44817983733, True, False)
    """

    text: str
    bytes: int
    low: int
    high: int

    def covers(self, count: int) -> bool:
        """Whether ``count`` bytes are written so."""
        return self.low <= count <= self.high

    def __str__(self) -> str:
        """As written, where it is written with a unit."""
        return self.text if self.text[-1:].isalpha() and len(self.text) < 12 else bytes_text(self.bytes)


def read_size(text: str) -> StatedSize | None:
    """The size at the start of ``text``; None where there is none."""
    found = _PARTS.match(text.strip())
    if found is None:
        return None
    sign, whole, fraction, letter = found.groups()
    unit = _UNITS[letter]
    number = Decimal(f"{whole.replace(',', '')}.{fraction or '0'}")
    half = Decimal(1).scaleb(-len(fraction or "")) / 2 if letter else Decimal(0)
    # From megabytes up the writer drops what is below a 1024th of the unit before it rounds.
    dropped = unit // 1024 if unit > 1024 else 0
    low, near, high = (int((number + part) * unit) for part in (-half, Decimal(0), half))
    if sign:
        low, near, high = -high, -near, -low
    return StatedSize(text.strip(), near, low, high + dropped)
