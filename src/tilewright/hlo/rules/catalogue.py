"""The catalogue: every rule of the files beside this one, sorted by phase, and the factors that confirmed them.

The factors stand in ``confirmed.json``, which ``benchmarks/confirm_rules.py`` writes. A TPU's are its compiler's
estimated cycles before over after, no run times; those of ``cpu`` and ``gpu`` are measured times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tilewright.errors import check_known
from tilewright.hlo.rules import attention, gathers, images, pairs, pooling
from tilewright.hlo.rules.rule import PHASES, Rule

#: The files of rules, by the names that ``--list-rules`` and docs/rules.md sort them under.
_ROOMS: dict[str, tuple[Rule[Any], ...]] = {
    module.__name__.rpartition(".")[2]: tuple(value for value in vars(module).values() if isinstance(value, Rule))
    for module in (attention, gathers, images, pairs, pooling)
}
_CONFIRMED = Path(__file__).with_name("confirmed.json")


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
        return f"{self.factor:.3g} times ({self.kind} by {self.by}, {self.date})"


@cache
def _confirmed() -> dict[tuple[str, str], Confirmed]:
    rows = json.loads(_CONFIRMED.read_text())["rows"] if _CONFIRMED.exists() else []
    return {(row["rule"], row["chip"]): Confirmed(**row) for row in rows}


def factor_on(rule: str, chip: str) -> Confirmed | None:
    """The figure of a rule on a chip, or None where nobody looked."""
    return _confirmed().get((rule, chip))


@cache
def catalogue() -> MappingProxyType[str, Rule[Any]]:
    """Every rule by its name, earlier phases first, then by name."""
    rules = sorted((rule for room in _ROOMS.values() for rule in room), key=lambda r: (PHASES.index(r.phase), r.name))
    return MappingProxyType({rule.name: rule for rule in rules})


def list_rules() -> list[dict[str, Any]]:
    """Every rule as plain values: name, phase, room, guard, what it says, and the confirmed factors by chip."""
    return [
        {name: getattr(rule, name) for name in ("name", "phase", "guard", "summary", "finding", "change", "source")}
        | {"room": next(room for room, rules in _ROOMS.items() if rule in rules)}
        | {
            "confirmed": {
                row.chip: {key: getattr(row, key) for key in ("factor", "kind", "by", "date")}
                for row in _confirmed().values()
                if row.rule == rule.name
            }
        }
        for rule in catalogue().values()
    ]


def chosen(names: Sequence[str] | None) -> tuple[Rule[Any], ...]:
    """The rules of these names, in the catalogue's order; None is all that act.

    Raises UsageError for a name that there is no rule of.
    """
    known = catalogue()
    if names is None:
        return tuple(rule for rule in known.values() if rule.build is not None)
    for name in names:
        check_known(name, known, f"no rule called {name!r}", say="known:")
    return tuple(rule for rule in known.values() if rule.name in names)
