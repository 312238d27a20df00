"""Numbers of two reports side by side: what is compared, where it stands in a report, and what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.render import Better, Kind, Tone

Plain = Mapping[str, Any]
Find = Callable[[Plain], Any]


@dataclass(frozen=True)
class Quantity:
    """A number of both sides: what it is called, how it is written, which way is better, and where it stands."""

    name: str
    kind: Kind
    better: Better
    of: Find


@dataclass(frozen=True)
class Change:
    """A quantity before and after; None where a side does not have it."""

    name: str
    kind: Kind
    better: Better
    before: float | None
    after: float | None

    @property
    def tone(self) -> Tone:
        """Whether the change is for the better."""
        if self.before is None or self.after is None or self.before == self.after or self.better == "neither":
            return "plain"
        return "good" if (self.after < self.before) == (self.better == "less") else "bad"


@dataclass(frozen=True)
class Sentence:
    """What is said of something before and after; None where a side says nothing of it."""

    of: str
    before: str | None
    after: str | None


def at(*path: str) -> Find:
    """The value at a path of keys; None where it ends before."""

    def value(side: Plain) -> Any:
        found: Any = side
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    return value


def held(value: Any, find: Callable[[Any], Any]) -> Any:
    """What ``find`` makes of a value; None of none."""
    return None if value is None else find(value)


def within(outer: str, find: Find) -> Find:
    """The same, in the dict under a key."""
    return lambda side: find(side.get(outer) or {})


def largest(table: str, key: str) -> Find:
    """The largest value in a column of a list of rows."""
    return lambda side: max((row[key] for row in side.get(table, ()) if row.get(key) is not None), default=None)


def total(table: str, *path: str) -> Find:
    """The sum of a column of a list of rows."""
    value = at(*path)
    return lambda side: sum(value(row) or 0 for row in side[table]) if table in side else None


#: What two embedding plans are compared by.
PLAN = (
    Quantity("HBM a chip", "bytes", "less", at("hbm_per_chip", "total_bytes")),
    Quantity("tables a chip", "bytes", "less", at("hbm_per_chip", "tables_bytes")),
    Quantity("optimizer slots a chip", "bytes", "less", at("hbm_per_chip", "slots_bytes")),
    Quantity("buffers of a batch, one device", "bytes", "less", total("stacks", "buffer_bytes_per_device")),
    Quantity("max ids per partition, all stacks", "count", "less", total("stacks", "limits", "max_ids_per_partition")),
    Quantity("imbalance, largest", "ratio", "less", largest("stacks", "imbalance")),
    Quantity("entries dropped, largest share", "percent", "less", largest("stacks", "drop_rate")),
    Quantity("batches over the limits", "percent", "less", at("batches_over")),
    Quantity("bytes a step moves, a chip", "bytes", "less", at("feeding", "step_bytes_per_chip")),
    Quantity("a step's lookups, at least", "seconds", "less", at("feeding", "step_seconds_at_least")),
    Quantity("chips", "count", "neither", at("topology", "chips")),
    Quantity("samples a batch", "count", "neither", at("batch")),
)
