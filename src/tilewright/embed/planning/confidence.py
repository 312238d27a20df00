"""How far limits learnt from some batches can be trusted on the next: counted on batches that did not teach them.

Batches are taken to come in no particular order (shuffled days; a log sorted by time does not keep that).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs

LEVEL = 0.95
"""How sure the bounds are."""


@dataclass(frozen=True)
class Confidence:
    """What a batch that is not in the log does to the limits.

    ================  ============================================================================================
    ``batches``       the log's; ``records``: those that alone hold some maximum, which limits from the other
                      batches would not have held
    ``expected``      records / batches: the chance that limits from one batch fewer are exceeded, without bias
    ``held_out``      batches that judged the limits of the others; ``exceeded``: those that exceeded some limit
    ``at_least``      a fresh batch exceeds the limits of those others with a probability between this and
    ``at_most``       this, with a confidence of 95 %; limits from all batches are exceeded no more often
    ================  ============================================================================================
    """

    batches: int
    records: int
    held_out: int
    exceeded: int

    @property
    def expected(self) -> float:
        """See the class."""
        return self.records / self.batches

    @property
    def at_least(self) -> float:
        """See the class."""
        return lower_bound(self.exceeded, self.held_out)

    @property
    def at_most(self) -> float:
        """See the class."""
        return upper_bound(self.exceeded, self.held_out)

    @property
    def sentence(self) -> str:
        """For people."""
        fresh = f"a fresh batch exceeds them with a chance of about {self.expected:.2g}"
        if self.batches == 1:
            return "limits from one batch: whether another one keeps them is not known"
        if not self.held_out:
            return f"{fresh} ({self.records} of {self.batches} batches hold a maximum alone)"
        judged = f"{self.exceeded} of {self.held_out} held-out batches exceeded what the others gave"
        return f"{fresh}, at most {self.at_most:.2g} with {LEVEL:.0%} confidence ({judged})"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "batches": self.batches,
            "records": self.records,
            "expected": self.expected,
            "held_out_batches": self.held_out,
            "held_out_exceeded": self.exceeded,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "confidence": LEVEL,
            "sentence": self.sentence,
        }


HELD_OUT = 5
"""Every fifth batch is held out: it judges the limits that the others give."""


def confidence_of_all(peaks: Longs, allowed: Callable[[Longs], Longs]) -> Confidence:
    """From all batches' peaks int64[batches, stacks, 2]; ``allowed``: the limits that such maxima give."""
    batches = len(peaks)
    if batches == 1:
        return Confidence(1, 1, 0, 0)
    order = np.sort(peaks, axis=0)
    alone = order[-1] > allowed(order[-2])
    records = int((alone & (peaks == order[-1])).any(axis=(1, 2)).sum())
    judges = np.arange(batches) % HELD_OUT == HELD_OUT - 1
    limits = allowed(peaks[~judges].max(axis=0))
    return Confidence(batches, records, int(judges.sum()), int((peaks[judges] > limits).any(axis=(1, 2)).sum()))


def upper_bound(hits: int, tries: int, level: float = LEVEL) -> float:
    """The largest probability under which so few hits have a chance of (1 - level) / 2 (Clopper and Pearson).

    >>> round(upper_bound(0, 100), 4), upper_bound(5, 5), upper_bound(0, 0)
    (0.0362, 1.0, 1.0)
    """
    if hits >= tries:
        return 1.0
    return _where(lambda p: _at_most(hits, tries, p) > (1 - level) / 2)


def lower_bound(hits: int, tries: int, level: float = LEVEL) -> float:
    """The smallest probability under which so many hits have that chance.

    >>> round(lower_bound(100, 100), 4), lower_bound(0, 5)
    (0.9638, 0.0)
    """
    if hits == 0:
        return 0.0
    return _where(lambda p: 1 - _at_most(hits - 1, tries, p) < (1 - level) / 2)


def _where(below: Callable[[float], bool]) -> float:
    """The probability up to which ``below`` holds."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _at_most(hits: int, tries: int, p: float) -> float:
    """The chance of so many hits or fewer."""
    return sum(math.exp(log_chance(k, tries, p)) for k in range(hits + 1))


def log_chance(hits: int, tries: int, p: float) -> float:
    """Logarithm of the chance of just so many hits; 0 < p < 1."""
    ways = math.lgamma(tries + 1) - math.lgamma(hits + 1) - math.lgamma(tries - hits + 1)
    return ways + hits * math.log(p) + (tries - hits) * math.log1p(-p)
