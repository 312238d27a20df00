"""What a mechanism answers: microseconds, and what they are spent on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BOUNDS = ("matrix", "vector", "hbm", "vmem", "link", "latency", "relayout")
"""What can bound an operation."""


@dataclass(frozen=True, slots=True)
class Price:
    """Microseconds of one kernel, and the parts that were weighed against each other to find them.

    ``resident``: megabytes of an argument taken to lie near the core already, brought there between calls.
    ``parts``: bound -> microseconds that this unit alone would need. Units work side by side, so the whole is less than
    their sum; ``bound`` is the largest.

    >>> Price(3.0, {"latency": 1.0, "hbm": 2.0}).bound
    'hbm'
    """

    microseconds: float
    parts: Mapping[str, float]
    resident: float = 0.0

    def at_least(self, other: Price) -> Price:
        """The longer of both: what needs many windows takes no less than the most that fit one, as more never does."""
        return self if self.microseconds >= other.microseconds else other

    @property
    def bound(self) -> str:
        """The unit that needs the longest."""
        return max(self.parts, key=lambda unit: self.parts[unit])
