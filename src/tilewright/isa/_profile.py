"""Which line of a program costs what: a run counted instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._assemble import program_of
from tilewright.isa._clock import MATH_STALLS, QUEUE
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._errors import MatrixUnitError
from tilewright.isa._heat import new_heat
from tilewright.isa._machine import Machine
from tilewright.isa._profile_lines import Profile, ProfileLine, together
from tilewright.isa._program import Program
from tilewright.isa._run import Job, Runner, result_of
from tilewright.isa._segments import Memory
from tilewright.isa._state import Pe
from tilewright.isa._unit import start_state

__all__ = ["profile"]

Array = np.ndarray[Any, Any]
Work = list[tuple[Pe, list[Job]]]
_COUNTS = tuple(f.name for f in fields(Counts))
_TRAFFIC = tuple(f.name for f in fields(Traffic))
_ENDS = np.cumsum([len(_COUNTS), len(_TRAFFIC), len(QUEUE), len(MATH_STALLS), 1, 1])
_DRAIN = int(_ENDS[1]) + list(QUEUE).index("drain")
_AFTER = int(_ENDS[2]) + list(MATH_STALLS).index("after")


class _Account:
    """One processing element: a row of sums for every instruction of every program it is given."""

    def __init__(self, pe: Pe, jobs: list[Job], before: Array) -> None:
        self.pe = pe
        self.programs = {str(job.program): job.program for job in jobs}
        tables = {text: np.zeros((len(each), int(_ENDS[-1])), np.int64) for text, each in self.programs.items()}
        self.tables = {id(job.program): tables[str(job.program)] for job in jobs}
        self.last_row: Array | None = None
        self._last = before

    def add(self, program: Program, pc: int, since: int) -> None:
        """What happened since the last time is the doing of this instruction."""
        now, row = _tally(self.pe), self.tables[id(program)][pc]
        row += now - self._last
        self._last = now
        if self.last_row is None or self.pe.clock.cycles > since:
            self.last_row = row

    def finish(self) -> None:
        """What no instruction did goes to the one whose result came last."""
        queue, math = self.pe.clock.accounts()
        if self.last_row is not None:
            self.last_row[_DRAIN] += queue["drain"]
            self.last_row[_AFTER] += math["after"]

    def profile(self) -> Profile:
        """All of it."""
        assert self.pe.heat is not None
        seen, self.pe.heat = self.pe.heat, None
        lines = [
            _line(program, pc, row, self.pe.number)
            for program in self.programs.values()
            for pc, row in enumerate(self.tables[id(program)])
        ]
        return Profile(next(iter(self.programs.values())), result_of(self.pe), tuple(lines), seen)


class _Profiler(Runner):
    """The interpreter with a tally after every instruction; no loop is fused."""

    def __init__(self, work: Work, accounts: dict[int, _Account]) -> None:
        self.accounts = accounts
        super().__init__(work)

    def step(self, pe: Pe) -> None:
        program, pc, end = self.programs[pe.number], pe.pc, pe.clock.cycles
        super().step(pe)
        self.accounts[pe.number].add(program, pc, end)

    def _loop(self, pe: Pe, last: int) -> None:
        """Every turn is looked at."""

    def _release(self, waiting: list[Pe]) -> None:
        """What is waited for at a barrier is the barrier's."""
        places = [(pe, self.programs[pe.number], pe.barrier[1], pe.clock.cycles) for pe in waiting if pe.barrier]
        super()._release(waiting)
        for pe, program, at, end in places:
            self.accounts[pe.number].add(program, at, end)


def _tally(pe: Pe) -> Array:
    """Everything that adds up, in the order of the table's columns."""
    c = pe.clock
    counted = (*pe.counts.__dict__.values(), *pe.traffic.__dict__.values())
    return np.array((*counted, *c.queue.values(), *c.math.values(), c.math_busy, pe.executed), np.int64)


def _line(program: Program, pc: int, row: Array, pe: int) -> ProfileLine:
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
    program: Program | str | Machine,
    memory: Memory | Mapping[str, Any] | None = None,
    config: MatrixUnitConfig | None = None,
    watch: Callable[[Counts], None] | None = None,
) -> Profile:
    """Run a program as :meth:`MatrixUnit.run` does, counting every instruction of it apart, and every line of memory.

    Given a :class:`Machine` with programs started on it, run that: several processing elements, each counted for
    itself (``.pes``) and all together. Values, counts and cycles are those of the plain run. No loop is fused, so it
    takes longer. ``watch`` is called with the counts now and then. Raises what the plain run raises (with ``result``,
    as far as it came).

    >>> found = profile("mov ur1, 0\\nagain: add ur1, ur1, 1\\nbr.lt ur1, 3, again\\nhalt")
    >>> [(line.text, line.executed, line.cycles) for line in found.lines]
    [('mov ur1, 0', 1, 1), ('add ur1, ur1, 1', 3, 3), ('br.lt ur1, 3, again', 3, 3), ('halt', 1, 1)]
    >>> machine = Machine(MatrixUnitConfig(pes=2, threads=4))
    >>> machine.start("peid ur1\\nbr.eq ur1, 0, end\\ntid r0\\nend: halt")
    >>> [[line.executed for line in each.lines] for each in profile(machine).pes]
    [[1, 1, 0, 1], [1, 1, 1, 1]]
    """
    if isinstance(program, Machine):
        return _of_machine(program, memory, config, watch)
    config = checked_config(config)
    program = program_of(program, config)
    pe = start_state(config, memory if isinstance(memory, Memory) else Memory(memory))
    return _counted([(pe, [Job(program)])], {pe.number: _tally(pe)}, watch)


def _of_machine(machine: Machine, memory: Any, config: Any, watch: Callable[[Counts], None] | None) -> Profile:
    if memory is not None or config is not None:
        raise UsageError("a Machine has its own memory and config", how="profile(machine)")
    before = {pe.number: _tally(pe) for pe in machine.chip.pes}
    work = machine.release()
    if not work:
        raise UsageError("no program was started on this machine", how="machine.start(program) first")
    found = _counted(work, before, watch)
    machine.ended(work)
    return found


def _counted(work: Work, before: dict[int, Array], watch: Callable[[Counts], None] | None) -> Profile:
    """``before``: every element's tally before anything, its wait for the host included."""
    accounts = {pe.number: _Account(pe, jobs, before[pe.number]) for pe, jobs in work}
    for pe, _ in work:
        pe.heat = new_heat(pe.chip.storages)
    try:
        _Profiler(work, accounts).run(watch)
    except MatrixUnitError as error:
        first = error.records[0].pe if error.records else work[0][0].number
        error.result = result_of(next(pe for pe, _ in work if pe.number == first))
        for pe, _ in work:
            pe.heat = None
        raise
    for account in accounts.values():
        account.finish()
    return together([account.profile() for account in accounts.values()])
