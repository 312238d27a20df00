"""Which line of a program costs what: a run counted instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._assemble import program_of
from tilewright.isa._clock import MATH_STALLS, QUEUE
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._errors import MatrixUnitError
from tilewright.isa._heat import Heat, new_heat
from tilewright.isa._program import Program
from tilewright.isa._run import Job, Runner, RunResult, result_of
from tilewright.isa._segments import Memory
from tilewright.isa._state import Pe
from tilewright.isa._unit import start_state

__all__ = ["Profile", "ProfileLine", "profile"]

_COUNTS = tuple(f.name for f in fields(Counts))
_TRAFFIC = tuple(f.name for f in fields(Traffic))
_ENDS = np.cumsum([len(_COUNTS), len(_TRAFFIC), len(QUEUE), len(MATH_STALLS), 1, 1])
_DRAIN = int(_ENDS[1]) + list(QUEUE).index("drain")
_AFTER = int(_ENDS[2]) + list(MATH_STALLS).index("after")
_EXECUTED = int(_ENDS[4])


@dataclass(frozen=True)
class ProfileLine:
    """One instruction of a program, over the whole run.

    ================  ====================================================================================
    ``pc``            its address; ``labels`` that stand before it; ``text``: canonical
    ``executed``      times it was executed
    ``cycles``        cycles it held the issue queue, waiting for its turn included: the sum of ``queue``
    ``queue``         of them, by what the queue did; ``drain`` is with the line whose result came last
    ``math_cycles``   cycles it held the math unit
    ``stalls``        cycles the math unit waited for it; those ``after`` the last product are with the same line as
                      ``drain``
    ``counts``        its part of the run's ``counts``; ``traffic``: of the run's ``traffic``
    ================  ====================================================================================
    """

    pc: int
    labels: tuple[str, ...]
    text: str
    executed: int
    cycles: int
    queue: dict[str, int]
    math_cycles: int
    stalls: dict[str, int]
    counts: Counts
    traffic: Traffic

    @property
    def waits(self) -> dict[str, int]:
        """Why it held the queue, but for being issued; the longest first."""
        found = {reason: n for reason, n in self.queue.items() if n and reason != "issued"}
        return dict(sorted(found.items(), key=lambda row: -row[1]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plain = {name: getattr(self, name) for name in ("pc", "text", "executed", "cycles", "queue", "math_cycles")}
        plain |= {"labels": list(self.labels), "stalls": self.stalls}
        return {**plain, "counts": self.counts.to_dict(), "traffic": self.traffic.to_dict()}


@dataclass(frozen=True, eq=False)
class Profile:
    """A run by lines of the program: every column of ``lines`` adds up to the run's own total.

    ``result`` is what the plain run leaves: values, counts and cycles are the same.
    """

    program: Program
    result: RunResult
    lines: tuple[ProfileLine, ...]
    seen: Mapping[str, np.ndarray[Any, Any]]

    @property
    def hottest(self) -> tuple[ProfileLine, ...]:
        """Lines by the cycles they held the queue, most first."""
        return tuple(sorted(self.lines, key=lambda line: -line.cycles))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of which any line was touched, loaded or stored."""
        return tuple(name for name, lines in self.seen.items() if lines.any())

    def heat(self, name: str) -> Heat:
        """How often each line of a tensor was touched and missed."""
        if name not in self.seen:
            raise UsageError(f"no tensor called {name!r}", how=f"there are {', '.join(self.seen) or 'none'}")
        return Heat(name, self.result.state.chip.storages[name], self.seen[name])

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: the lines, and the run's totals."""
        r = self.result
        totals = {"executed": r.executed, "cycles": r.cycles, "queue": r.queue, "math_cycles": r.math_cycles}
        totals |= {"stalls": r.stalls, "counts": r.counts.to_dict(), "traffic": r.traffic.to_dict()}
        heat = {name: self.heat(name).totals for name in self.tensors}
        return {"lines": [line.to_dict() for line in self.lines], "totals": totals, "tensors": heat}

    def to_csv(self) -> str:
        """A row per line of the program, a column per number."""
        import csv
        import io

        text = io.StringIO()
        rows = [_flat(line) for line in self.lines]
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
        return "\n".join([*rows, f"{self.result.executed:,} instructions, {self.result.cycles:,} cycles"])


def _flat(line: ProfileLine) -> dict[str, Any]:
    row: dict[str, Any] = {"pc": line.pc, "text": line.text, "executed": line.executed, "cycles": line.cycles}
    row |= {f"queue.{name}": n for name, n in line.queue.items()} | {"math_cycles": line.math_cycles}
    row |= {f"math.{name}": n for name, n in line.stalls.items()}
    return row | line.counts.to_dict() | line.traffic.to_dict()


class _Profiler(Runner):
    """The interpreter with a tally before and after every instruction; no loop is fused."""

    def __init__(self, pe: Pe, program: Program) -> None:
        self.table = np.zeros((len(program), int(_ENDS[-1])), np.int64)
        self.last_done = 0
        self._last = np.array(_tally(pe), np.int64)
        super().__init__([(pe, [Job(program)])])

    def step(self, pe: Pe) -> None:
        pc, end = pe.pc, pe.clock.cycles
        super().step(pe)
        now = np.array(_tally(pe), np.int64)
        self.table[pc] += now - self._last
        self._last = now
        if pe.clock.cycles >= end:
            self.last_done = pc if pe.clock.cycles > end else self.last_done

    def _loop(self, pe: Pe, last: int) -> None:
        """Every turn is looked at."""

    def finish(self, pe: Pe) -> None:
        """What no instruction did goes to the one whose result came last."""
        queue, math = pe.clock.accounts()
        if len(self.table):
            self.table[self.last_done, _DRAIN] += queue["drain"]
            self.table[self.last_done, _AFTER] += math["after"]


def _tally(pe: Pe) -> tuple[int, ...]:
    """Everything that adds up, in the order of the table's columns."""
    c = pe.clock
    counted = (*pe.counts.__dict__.values(), *pe.traffic.__dict__.values())
    return (*counted, *c.queue.values(), *c.math.values(), c.math_busy, pe.executed)


def _line(program: Program, pc: int, row: np.ndarray[Any, Any]) -> ProfileLine:
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
    )


def profile(
    program: Program | str,
    memory: Memory | Mapping[str, Any] | None = None,
    config: MatrixUnitConfig | None = None,
    watch: Callable[[Counts], None] | None = None,
) -> Profile:
    """Run a program as :meth:`MatrixUnit.run` does, counting every instruction of it apart, and every line of memory.

    Values, counts and cycles are those of the plain run. No loop is fused, so it takes longer. ``watch`` is called with
    the counts now and then. Raises what the plain run raises (with ``result``, as far as it came).

    >>> found = profile("mov ur1, 0\\nagain: add ur1, ur1, 1\\nbr.lt ur1, 3, again\\nhalt")
    >>> [(line.text, line.executed, line.cycles) for line in found.lines]
    [('mov ur1, 0', 1, 1), ('add ur1, ur1, 1', 3, 3), ('br.lt ur1, 3, again', 3, 3), ('halt', 1, 1)]
    """
    config = checked_config(config)
    program = program_of(program, config)
    pe = start_state(config, memory if isinstance(memory, Memory) else Memory(memory))
    pe.heat = new_heat(pe.chip.storages)
    profiler = _Profiler(pe, program)
    try:
        profiler.run(watch)
    except MatrixUnitError as error:
        error.result = result_of(pe)
        raise
    profiler.finish(pe)
    lines = tuple(_line(program, pc, row) for pc, row in enumerate(profiler.table))
    return Profile(program, result_of(pe), lines, pe.heat)
