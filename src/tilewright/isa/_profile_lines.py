"""What a profile found: instructions with what they cost, their sums, and the lines of memory that were accessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._clock import MATH_STALLS, QUEUE
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._heat import Heat
from tilewright.isa._program import Program
from tilewright.isa._run import RunResult

__all__ = ["Profile", "ProfileLine", "ProfileTotals", "together"]

_Account = dict[str, int]


@dataclass(frozen=True)
class ProfileTotals:
    """The sums of some lines; of several processing elements all cycles of all of them."""

    executed: int
    cycles: int
    queue: _Account
    math_cycles: int
    stalls: _Account
    counts: Counts
    traffic: Traffic

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("executed", "cycles", "queue", "math_cycles")}
        return {**plain, "stalls": self.stalls, "counts": self.counts.to_dict(), "traffic": self.traffic.to_dict()}


@dataclass(frozen=True)
class ProfileLine:
    """One instruction of a program, over the whole run.

    ================  ====================================================================================
    ``pc``            its address; ``labels`` that stand before it; ``text``: canonical
    ``executed``      times it was executed
    ``cycles``        cycles it held the issue queue, waiting for its turn included: the sum of ``queue``
    ``queue``         of them, by what the queue did; ``drain`` is with the line whose result came last, ``host`` with
                      the first one
    ``math_cycles``   cycles it held the math unit
    ``stalls``        cycles the math unit waited for it; those ``after`` the last product are with the same line as
                      ``drain``
    ``counts``        its part of the run's ``counts``; ``traffic``: of the run's ``traffic``
    ``pes``           the processing elements that ran it: all numbers are theirs together
    ================  ====================================================================================
    """

    pc: int
    labels: tuple[str, ...]
    text: str
    executed: int
    cycles: int
    queue: _Account
    math_cycles: int
    stalls: _Account
    counts: Counts
    traffic: Traffic
    pes: tuple[int, ...] = (0,)

    @property
    def waits(self) -> _Account:
        """Why it held the queue, but for being issued; the longest first."""
        found = {reason: n for reason, n in self.queue.items() if n and reason != "issued"}
        return dict(sorted(found.items(), key=lambda row: -row[1]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = {name: getattr(self, name) for name in ("pc", "text", "executed", "cycles", "queue", "math_cycles")}
        plain |= {"labels": list(self.labels), "stalls": self.stalls, "pes": list(self.pes)}
        return {**plain, "counts": self.counts.to_dict(), "traffic": self.traffic.to_dict()}


@dataclass(frozen=True, eq=False)
class Profile:
    """A run by lines of the program: every column of ``lines`` adds up to ``totals``.

    ==============  ======================================================================================
    ``program``     what was run; ``result``: what the plain run leaves, the same values, counts and cycles
    ``lines``       its instructions. Of several processing elements: of every program that differs, one after
                    the other, each counted for all the elements that ran it (their ``pes``)
    ``totals``      the sums of ``lines``
    ``pes``         of several processing elements: a profile of each; ``result`` is then the last one's
    ``seen``        accesses to the lines of every tensor, of all elements together
    ==============  ======================================================================================
    """

    program: Program
    result: RunResult
    lines: tuple[ProfileLine, ...]
    seen: Mapping[str, np.ndarray[Any, Any]]
    pes: tuple[Profile, ...] = ()

    @property
    def number(self) -> int:
        """The processing element that ``result`` is of."""
        return self.result.state.number

    @property
    def totals(self) -> ProfileTotals:
        """All lines together: of one processing element what its run counted."""
        return _totals(self.lines)

    @property
    def hottest(self) -> tuple[ProfileLine, ...]:
        """Lines by the cycles they held the queue, most first."""
        return tuple(sorted(self.lines, key=lambda line: -line.cycles))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of which any line was touched, loaded or stored."""
        return tuple(name for name, lines in self.seen.items() if lines.any())

    def heat(self, name: str) -> Heat:
        """How often each line of a tensor was touched and missed, by all processing elements."""
        if name not in self.seen:
            raise UsageError(f"no tensor called {name!r}", how=f"there are {', '.join(self.seen) or 'none'}")
        return Heat(name, self.result.state.chip.storages[name], self.seen[name])

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: the lines, and the run's totals; of several processing elements those of each too."""
        heat = {name: self.heat(name).totals for name in self.tensors}
        rows = [line.to_dict() for line in self.lines]
        found: dict[str, Any] = {"lines": rows, "totals": self.totals.to_dict(), "tensors": heat}
        return found | ({"pes": [{"pe": each.number, **each.to_dict()} for each in self.pes]} if self.pes else {})

    def to_csv(self) -> str:
        """A row per line of the program (and per processing element), a column per number."""
        import csv
        import io

        text = io.StringIO()
        parts = self.pes or (self,)
        rows = [({"pe": part.number} if self.pes else {}) | _flat(line) for part in parts for line in part.lines]
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["pc"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def __str__(self) -> str:
        """The lines that were executed, with times, cycles and what they waited for."""
        width = max((len(line.text) for line in self.lines), default=0)
        rows = [
            f"{line.pc:4}  {line.text:{width}}  {line.executed:9,}x  {line.cycles:11,} cycles"
            + (f"  {next(iter(line.waits))}" if line.waits else "")
            for line in self.lines
            if line.executed
        ]
        sums = self.totals
        of = f" of {len(self.pes)} processing elements" if self.pes else ""
        return "\n".join([*rows, f"{sums.executed:,} instructions, {sums.cycles:,} cycles{of}"])


def together(parts: Sequence[Profile]) -> Profile:
    """The profiles of several processing elements as one; ``parts`` in order, at least one."""
    if len(parts) == 1:
        return parts[0]
    found: dict[str, list[Profile]] = {}
    for part in parts:
        found.setdefault("\n".join(line.text for line in part.lines), []).append(part)
    lines = []
    for same in found.values():
        for rows in zip(*(part.lines for part in same), strict=True):
            sums = _totals(rows)
            lines.append(replace(rows[0], **sums.__dict__, pes=tuple(part.number for part in same)))
    seen = {name: np.sum([part.seen[name] for part in parts], axis=0) for name in parts[0].seen}
    last = max(parts, key=lambda part: part.result.cycles)
    return Profile(parts[0].program, last.result, tuple(lines), seen, tuple(parts))


def _totals(lines: Sequence[ProfileLine]) -> ProfileTotals:
    return ProfileTotals(
        executed=sum(line.executed for line in lines),
        cycles=sum(line.cycles for line in lines),
        queue=_accounts(QUEUE, [line.queue for line in lines]),
        math_cycles=sum(line.math_cycles for line in lines),
        stalls=_accounts(MATH_STALLS, [line.stalls for line in lines]),
        counts=Counts.together(line.counts for line in lines),
        traffic=Traffic.together(line.traffic for line in lines),
    )


def _accounts(names: Iterable[str], several: Sequence[_Account]) -> _Account:
    return {name: sum(each[name] for each in several) for name in names}


def _flat(line: ProfileLine) -> dict[str, Any]:
    row: dict[str, Any] = {"pc": line.pc, "text": line.text, "executed": line.executed, "cycles": line.cycles}
    row |= {f"queue.{name}": n for name, n in line.queue.items()} | {"math_cycles": line.math_cycles}
    row |= {f"math.{name}": n for name, n in line.stalls.items()}
    return row | line.counts.to_dict() | line.traffic.to_dict()
