"""Which line of a program costs what: a run counted instruction by instruction."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.machine import Machine, work_of
from tilewright.isa.execute.run import Job, Runner, RunResult, Tensors, Work, result_of
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Traffic
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.study.heat import Heat, new_heat

# What a profile found: instructions with what they cost, their sums, and the lines of memory that were accessed.

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
        sums = {f.name: getattr(self, f.name) for f in fields(ProfileTotals)}
        return sums | {"counts": self.counts.to_dict(), "traffic": self.traffic.to_dict()}


@dataclass(frozen=True)
class ProfileLine(ProfileTotals):
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
    pes: tuple[int, ...] = (0,)

    @property
    def waits(self) -> _Account:
        """Cycles the queue waited for this line, by reason, the longest first."""
        waits = {reason: n for reason, n in self.queue.items() if n and reason != "issued"}
        return dict(sorted(waits.items(), key=lambda row: -row[1]))

    def to_dict(self) -> dict[str, Any]:
        sums = super().to_dict()
        plain = {"pc": self.pc, "text": self.text} | {name: sums[name] for name in list(sums)[:4]}
        return plain | {"labels": list(self.labels), "stalls": self.stalls, "pes": list(self.pes)} | sums

    def to_row(self) -> dict[str, Any]:
        """A column per number, for CSV."""
        row: dict[str, Any] = {"pc": self.pc, "text": self.text, "executed": self.executed, "cycles": self.cycles}
        row |= {f"queue.{name}": n for name, n in self.queue.items()} | {"math_cycles": self.math_cycles}
        row |= {f"math.{name}": n for name, n in self.stalls.items()}
        return row | self.counts.to_dict() | self.traffic.to_dict()


@dataclass(frozen=True, eq=False)
class RunProfile:
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

    program: MachineProgram
    result: RunResult
    lines: tuple[ProfileLine, ...]
    seen: Mapping[str, np.ndarray[Any, Any]]
    pes: tuple[RunProfile, ...] = ()

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
        """The lines and the totals of the run, for JSON; of several processing elements those of each too."""
        heat = {name: self.heat(name).totals for name in self.tensors}
        rows = [line.to_dict() for line in self.lines]
        plain: dict[str, Any] = {"lines": rows, "totals": self.totals.to_dict(), "tensors": heat}
        return plain | ({"pes": [{"pe": part.number, **part.to_dict()} for part in self.pes]} if self.pes else {})

    def to_csv(self) -> str:
        """A row per line of the program (and per processing element), a column per number."""
        text = io.StringIO()
        parts = self.pes or (self,)
        rows = [({"pe": part.number} if self.pes else {}) | line.to_row() for part in parts for line in part.lines]
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


def combined(parts: Sequence[RunProfile]) -> RunProfile:
    """The profiles of several processing elements as one; ``parts`` in order, at least one."""
    if len(parts) == 1:
        return parts[0]
    same_program: dict[str, list[RunProfile]] = {}
    for part in parts:
        same_program.setdefault("\n".join(line.text for line in part.lines), []).append(part)
    lines = []
    for same in same_program.values():
        for rows in zip(*(part.lines for part in same), strict=True):
            sums = _totals(rows)
            lines.append(replace(rows[0], **sums.__dict__, pes=tuple(part.number for part in same)))
    seen = {name: np.sum([part.seen[name] for part in parts], axis=0) for name in parts[0].seen}
    last = max(parts, key=lambda part: part.result.cycles)
    return RunProfile(parts[0].program, last.result, tuple(lines), seen, tuple(parts))


def _totals(lines: Sequence[ProfileLine]) -> ProfileTotals:
    return ProfileTotals(
        executed=sum(line.executed for line in lines),
        cycles=sum(line.cycles for line in lines),
        queue={name: sum(line.queue[name] for line in lines) for name in QUEUE},
        math_cycles=sum(line.math_cycles for line in lines),
        stalls={name: sum(line.stalls[name] for line in lines) for name in MATH_STALLS},
        counts=Counts.together(line.counts for line in lines),
        traffic=Traffic.together(line.traffic for line in lines),
    )


Array = np.ndarray[Any, Any]
_COUNTS = tuple(f.name for f in fields(Counts))
_TRAFFIC = tuple(f.name for f in fields(Traffic))
_ENDS = np.cumsum([len(_COUNTS), len(_TRAFFIC), len(QUEUE), len(MATH_STALLS), 1, 1])
_DRAIN = int(_ENDS[1]) + list(QUEUE).index("drain")
_AFTER = int(_ENDS[2]) + list(MATH_STALLS).index("after")


class _ElementAccount:
    """One processing element: a row of sums (counts, traffic, queue, stalls, ...) for every instruction it is given."""

    def __init__(self, pe: Pe, jobs: list[Job], before: Array) -> None:
        self.pe = pe
        programs = dict.fromkeys(job.program for job in jobs)
        self.tables = {program: np.zeros((len(program), int(_ENDS[-1])), np.int64) for program in programs}
        self.last_row: Array | None = None
        self._last = before

    def add(self, program: MachineProgram, pc: int, since: int) -> None:
        """Count what happened since the last call for this instruction."""
        now, row = _tally(self.pe), self.tables[program][pc]
        row += now - self._last
        self._last = now
        if self.last_row is None or self.pe.clock.cycles > since:
            self.last_row = row

    def finish(self) -> None:
        """Count the cycles after the last instruction for the one whose result came last."""
        queue, math = self.pe.clock.accounts()
        if self.last_row is not None:
            self.last_row[_DRAIN] += queue["drain"]
            self.last_row[_AFTER] += math["after"]

    def profile(self) -> RunProfile:
        """What this processing element did, line by line."""
        assert self.pe.heat is not None
        lines = [
            _line(program, pc, row, self.pe.number)
            for program, table in self.tables.items()
            for pc, row in enumerate(table)
        ]
        return RunProfile(next(iter(self.tables)), result_of(self.pe), tuple(lines), self.pe.heat)


class _Profiler(Runner):
    """The interpreter, one instruction at a time, counting each for itself."""

    def __init__(self, work: Work, accounts: dict[int, _ElementAccount]) -> None:
        self.accounts = accounts
        super().__init__(work)

    def step(self, pe: Pe) -> None:
        program, pc, end = self.programs[pe.number], pe.pc, pe.clock.cycles
        super().step(pe)
        self.accounts[pe.number].add(program, pc, end)

    def _release(self, waiting: list[Pe]) -> None:
        """Count the wait at a barrier for the barrier."""
        places = [(pe, self.programs[pe.number], pe.barrier[1], pe.clock.cycles) for pe in waiting if pe.barrier]
        super()._release(waiting)
        for pe, program, at, end in places:
            self.accounts[pe.number].add(program, at, end)


def _tally(pe: Pe) -> Array:
    """All counters of a processing element, in the order of the table's columns."""
    c = pe.clock
    counted = (*pe.counts.__dict__.values(), *pe.traffic.__dict__.values())
    return np.array((*counted, *c.queue.values(), *c.math.values(), c.math_busy, pe.executed), np.int64)


def _line(program: MachineProgram, pc: int, row: Array, pe: int) -> ProfileLine:
    counts, traffic, queue, math, busy, executed = (part.tolist() for part in np.split(row, _ENDS[:-1]))
    return ProfileLine(
        pc=pc,
        labels=tuple(name for name, at in program.labels if at == pc),
        text=str(program.instructions[pc]),
        executed=executed[0],
        cycles=sum(queue),
        queue=dict(zip(QUEUE, queue, strict=True)),
        math_cycles=busy[0],
        stalls=dict(zip(MATH_STALLS, math, strict=True)),
        counts=Counts(*counts),
        traffic=Traffic(*traffic),
        pes=(pe,),
    )


def profile(
    program: MachineProgram | str | Machine,
    memory: Tensors = None,
    config: MatrixUnitConfig | None = None,
    watch: Callable[[Counts], None] | None = None,
) -> RunProfile:
    """Run a program as :meth:`MatrixUnit.run` does, counting every instruction of it apart, and every line of memory.

    Given a :class:`Machine` with programs started on it, run that: several processing elements, each counted for
    itself (``.pes``) and all together. Values, counts and cycles are those of the plain run. Instructions run one by
    one, so it takes longer. ``watch`` is called with the counts now and then. Raises what the plain run raises (with
    ``result``, as far as it came).

    >>> found = profile("mov ur1, 0\\nagain: add ur1, ur1, 1\\nbr.lt ur1, 3, again\\nhalt")
    >>> [(line.text, line.executed, line.cycles) for line in found.lines]
    [('mov ur1, 0', 1, 1), ('add ur1, ur1, 1', 3, 3), ('br.lt ur1, 3, again', 3, 3), ('halt', 1, 1)]
    >>> machine = Machine(MatrixUnitConfig(pes=2, threads=4))
    >>> machine.start("peid ur1\\nbr.eq ur1, 0, end\\ntid r0\\nend: halt")
    >>> [[line.executed for line in each.lines] for each in profile(machine).pes]
    [[1, 1, 0, 1], [1, 1, 1, 1]]
    """
    before = {pe.number: _tally(pe) for pe in program.chip.pes} if isinstance(program, Machine) else {}
    work, ended = work_of(program, memory, config, "profile")
    nothing = np.zeros(int(_ENDS[-1]), np.int64)
    accounts = {pe.number: _ElementAccount(pe, jobs, before.get(pe.number, nothing)) for pe, jobs in work}
    for pe, _ in work:
        pe.heat = new_heat(pe.chip.storages)
    try:
        _Profiler(work, accounts).run(watch)
        for account in accounts.values():
            account.finish()
        parts = [account.profile() for account in accounts.values()]
    finally:
        for pe, _ in work:
            pe.heat = None
    ended()
    return combined(parts)
