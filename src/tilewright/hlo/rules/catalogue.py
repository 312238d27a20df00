"""The catalogue: every rule of the rooms below this folder, found by itself and sorted by phase."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

import tilewright.hlo.rules as rooms
from tilewright.errors import UsageError
from tilewright.hlo.rules.confirmed import confirmed
from tilewright.hlo.rules.rule import PHASES, Rule


@cache
def catalogue() -> MappingProxyType[str, Rule]:
    """Every rule by its name, earlier phases first, then by name."""
    rules = []
    for room in pkgutil.iter_modules(rooms.__path__, rooms.__name__ + "."):
        if room.ispkg:
            for file in pkgutil.iter_modules(import_module(room.name).__path__, room.name + "."):
                rule = getattr(import_module(file.name), "RULE", None)
                if isinstance(rule, Rule):
                    rules.append(rule)
    rules.sort(key=lambda rule: (PHASES.index(rule.phase), rule.name))
    named = {rule.name: rule for rule in rules}
    assert len(named) == len(rules), "two rules of one name"
    return MappingProxyType(named)


def list_rules() -> list[dict[str, Any]]:
    """Every rule as plain values: name, phase, room, guard, what it says, its example, and the confirmed factors."""
    return [
        {
            "name": rule.name,
            "phase": rule.phase,
            "room": room_of(rule),
            "guard": rule.guard,
            "summary": rule.summary,
            "finding": rule.finding,
            "change": rule.change,
            "source": rule.source,
            "confirmed": {
                row.chip: {"factor": row.factor, "kind": row.kind, "by": row.by, "date": row.date}
                for row in confirmed(rule.name)
            },
        }
        for rule in catalogue().values()
    ]


def room_of(rule: Rule) -> str:
    """The folder a rule stands in."""
    return _rooms()[rule.name]


@cache
def _rooms() -> dict[str, str]:
    catalogue()
    return {
        module.RULE.name: name.rpartition(".")[0].rpartition(".")[2]
        for name, module in sys.modules.items()
        if name.startswith(rooms.__name__ + ".") and isinstance(getattr(module, "RULE", None), Rule)
    }


def chosen(names: Sequence[str] | None, opt_in: bool = False) -> tuple[Rule, ...]:
    """The rules of these names, in the catalogue's order; None is all that act and need no opting in.

    Raises UsageError for a name that there is no rule of.
    """
    known = catalogue()
    if names is None:
        return tuple(rule for rule in known.values() if rule.build is not None and (opt_in or not rule.opt_in))
    for name in names:
        if name not in known:
            raise UsageError(f"no rule called {name!r}", how=f"known: {', '.join(known)}")
    return tuple(rule for rule in known.values() if rule.name in names)
