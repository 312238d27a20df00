"""What confirmed a rule's gain: the factors seen at its example's shapes, by chip, with compiler and date.

The figures stand in ``confirmed.json`` beside this file; ``benchmarks/confirm_rules.py`` writes them. A TPU's factors
are its compiler's estimated cycles before over after, no run times; those of ``cpu`` and ``gpu`` are measured times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("confirmed.json")


@dataclass(frozen=True)
class Confirmed:
    """One figure: ``factor`` on ``chip`` (``tpu-v5e``, ``cpu``, ``gpu``), seen by ``by`` on ``date``.

    ``kind`` is ``estimated`` (by the compiler) or ``measured``.
    """

    rule: str
    chip: str
    factor: float
    kind: str
    by: str
    date: str

    def __str__(self) -> str:
        """``57.8 times (estimated by libtpu 0.0.42.1, 2026-11-22)``."""
        return f"{self.factor:.3g} times ({self.kind} by {self.by}, {self.date})"


@cache
def _table() -> dict[tuple[str, str], Confirmed]:
    rows = json.loads(_FILE.read_text())["rows"] if _FILE.exists() else []
    return {(row["rule"], row["chip"]): Confirmed(**row) for row in rows}


def confirmed(rule: str) -> tuple[Confirmed, ...]:
    """Every figure of a rule."""
    return tuple(row for (name, _), row in _table().items() if name == rule)


def factor_on(rule: str, chip: str) -> Confirmed | None:
    """The figure of a rule on a chip, or None where nobody looked."""
    return _table().get((rule, chip))
