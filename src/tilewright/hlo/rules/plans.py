"""Plans: how to say a whole region on arrays of another shape, found first and built only where all of it can be said.

A plan is a function that makes a value. A region is planned from its root backwards; where one of its values has no
plan, nothing has been made yet and the rule leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker

Plan = Callable[[Maker], Value]
_MOST = 96  # values looked at for one root


class Plans:
    """The plans of one region: each value is planned once and made once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Plan | None] = {}

    def of(self, key: Hashable, find: Callable[[], Plan | None]) -> Plan | None:
        """The plan under ``key``, found by ``find`` the first time; None where there is none or the region is large."""
        if key not in self._known:
            self._known[key] = None
            self._known[key] = _once(find()) if len(self._known) <= _MOST else None
        return self._known[key]


def elementwise(node: Node, plans: Sequence[Plan | None], shape: tuple[int, ...]) -> Plan | None:
    """The elementwise ``node`` on planned operands, which have another ``shape``."""
    found = [plan for plan in plans if plan is not None]
    if len(found) < len(plans):
        return None
    return lambda make: make.same(node, [plan(make) for plan in found], shape)


def as_it_is(value: Value) -> Plan:
    """A value that stays."""
    return lambda make: value


def _once(plan: Plan | None) -> Plan | None:
    if plan is None:
        return None
    made: list[Value] = []

    def first(make: Maker) -> Value:
        if not made:
            made.append(plan(make))
        return made[0]

    return first
