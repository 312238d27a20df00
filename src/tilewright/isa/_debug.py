"""A program one instruction at a time: the machine's own interpreter, with breakpoints and a look at everything.

Loops are not fused here, so every instruction can be seen; values, counts and cycles are those of a plain run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.isa._assemble import program_of
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._program import Program
from tilewright.isa._run import Job, Runner, RunResult, result_of
from tilewright.isa._segments import Memory
from tilewright.isa._state import Pe
from tilewright.isa._unit import start_state

__all__ = ["HELP", "Debugger"]

HELP = """\
step [N]          execute N instructions (1); s
run               go on to a breakpoint or the end; c, continue
until PLACE       go on to a place: a label, an address as 12, or a line of the text as :7
break PLACE       stop there from now on; breaks lists them, delete PLACE takes one away
list [N]          the N (9) instructions around the next one; l
print WHAT        r0 (all threads), r0[3] (one), r0[0:8], "r0 as f32", ur4, p1, A (a tensor), A[0],
                  tokens, segments, pages, caches, counts, queue, stalls, errors, state; p
help, quit"""

_MOST_THREADS = 16
_REGISTER = re.compile(r"(r|ur|p)(\d+)(?:\[(\d+)(?::(\d+))?\])?(?:\s+as\s+(f32|s32|u32|hex))?")
_TENSOR = re.compile(r"(\w+)((?:\[[\d:, ]+\])?)")


class _Single(Runner):
    """A runner that fuses no loops."""

    def _loop(self, pe: Pe, last: int) -> None:
        pass

    def advance(self, pe: Pe) -> None:
        """One instruction, or past a barrier at which nobody else will come."""
        if pe.barrier is not None:
            self._release([pe])
        else:
            self.step(pe)


class Debugger:
    """One processing element and one program, stopped before its first instruction.

    :meth:`command` takes what one would type, and returns what one would read; nothing it is given ends the process.

    >>> debugger = Debugger("tid r0\\nmul r1, r0, r0\\nhalt", config=MatrixUnitConfig(threads=4))
    >>> print(debugger.command("step 2"))
    0002  halt
    >>> print(debugger.command("print r1"))
    r1 = 0 1 4 9
    """

    def __init__(
        self,
        program: Program | str,
        memory: Memory | Mapping[str, Any] | None = None,
        config: MatrixUnitConfig | None = None,
    ) -> None:
        self.config = checked_config(config)
        self.program = program_of(program, self.config)
        self.pe = start_state(self.config, memory if isinstance(memory, Memory) else Memory(memory))
        self.runner = _Single([(self.pe, [Job(self.program)])])
        self.breaks: set[int] = set()
        self.stopped = ""
        self._commands: dict[str, Callable[[str], str]] = {
            "step": self._step,
            "s": self._step,
            "run": self._run,
            "continue": self._run,
            "c": self._run,
            "until": self._until,
            "break": self._break,
            "delete": self._delete,
            "breaks": self._breaks,
            "list": self._list,
            "l": self._list,
            "print": self._print,
            "p": self._print,
            "help": lambda _: HELP,
        }

    @property
    def done(self) -> bool:
        """Whether the program has ended, or an error has ended it."""
        return bool(self.stopped) or self.pe.halted

    def result(self) -> RunResult:
        """What the run has to show up to here."""
        return result_of(self.pe)

    def command(self, line: str) -> str:
        """Do one command; an empty one is ``step``. A mistake is a line that says so."""
        name, _, rest = line.strip().partition(" ")
        action = self._commands.get(name or "step")
        if action is None:
            return f"no command {name!r}; help lists them"
        try:
            return action(rest.strip())
        except TilewrightError as error:
            return str(error)

    def where(self) -> str:
        """The next instruction, or how the program ended."""
        if self.stopped:
            return self.stopped
        if self.pe.halted:
            return f"ended after {self.pe.executed:,} instructions, {self.pe.clock.cycles:,} cycles by the model"
        return self._line(self.pe.pc)

    def _line(self, pc: int) -> str:
        return f"{pc:04d}  {self.program.instructions[pc]}"

    def _advance(self, most: int, stop: Callable[[int], bool]) -> str:
        for _ in range(most):
            if self.done:
                break
            try:
                self.runner.advance(self.pe)
            except TilewrightError as error:
                self.stopped = f"stopped: {error}"
                break
            if not self.pe.halted and stop(self.pe.pc):
                break
        return self.where()

    def _step(self, text: str) -> str:
        return self._advance(_number(text or "1", "step"), self.breaks.__contains__)

    def _run(self, text: str) -> str:
        return self._advance(self.config.max_instructions + 2, self.breaks.__contains__)

    def _until(self, text: str) -> str:
        place = self._place(text)
        return self._advance(self.config.max_instructions + 2, lambda pc: pc == place or pc in self.breaks)

    def _break(self, text: str) -> str:
        self.breaks.add(self._place(text))
        return self._breaks("")

    def _delete(self, text: str) -> str:
        self.breaks.discard(self._place(text))
        return self._breaks("")

    def _breaks(self, text: str) -> str:
        return "\n".join(self._line(pc) for pc in sorted(self.breaks)) or "no breakpoints"

    def _place(self, text: str) -> int:
        """The address of a label, a number, or ``:line`` (the first instruction on it or after)."""
        labels = dict(self.program.labels)
        if text in labels and labels[text] < len(self.program):
            return labels[text]
        if text.startswith(":") and text[1:].isdecimal():
            for pc, each in enumerate(self.program.instructions):
                if each.line >= int(text[1:]):
                    return pc
        elif text.isdecimal() and int(text) < len(self.program):
            return int(text)
        known = ", ".join(labels) or "none"
        raise UsageError(f"no place {text!r}", how=f"a label ({known}), 0 to {len(self.program) - 1}, or :line")

    def _list(self, text: str) -> str:
        around = _number(text or "9", "list")
        at = min(self.pe.pc, len(self.program) - 1)
        first = max(0, min(at - around // 2, len(self.program) - around))
        shown = range(first, min(len(self.program), first + around))
        mark = {pc: ">" for pc in [at] if not self.done} | {pc: "*" for pc in self.breaks if pc != at or self.done}
        return "\n".join(f"{mark.get(pc, ' ')} {self._line(pc)}" for pc in shown)

    def _print(self, text: str) -> str:
        whole: dict[str, Callable[[], str]] = {
            "": lambda: str(self.pe),
            "state": lambda: str(self.pe.chip),
            "tokens": self._tokens,
            "segments": lambda: "\n".join(map(str, self.pe.segments.values())) or "no segments yet",
            "pages": self._pages,
            "caches": self._caches,
            "counts": lambda: _account(self.pe.counts.to_dict()),
            "queue": lambda: _account(self.result().queue),
            "stalls": lambda: _account(self.result().stalls),
            "errors": lambda: "\n".join(map(str, self.pe.errors)) or "no errors",
        }
        if text in whole:
            return whole[text]()
        if register := _REGISTER.fullmatch(text):
            return self._register(text, *register.groups())
        if (tensor := _TENSOR.fullmatch(text)) and tensor[1] in self.pe.chip.storages:
            return self._tensor(*tensor.groups())
        known = ", ".join([*filter(None, whole), *self.pe.chip.storages])
        raise UsageError(f"cannot print {text!r}", how=f"a register as r0, ur4 or p1, or one of {known}")

    def _register(self, text: str, kind: str, digits: str, first: str | None, end: str | None, form: str | None) -> str:
        number = int(digits)
        limit = {"r": self.config.registers, "ur": self.config.uniform_registers, "p": self.config.predicates}[kind]
        if number >= limit:
            raise UsageError(f"there is no {kind}{number}", how=f"{kind}0 to {kind}{limit - 1}")
        if kind == "ur":
            return f"ur{number} = {self.pe.uniform[number]}"
        values = (self.pe.registers if kind == "r" else self.pe.predicates)[:, number]
        most = len(values)
        if first is not None:
            values = values[int(first) : int(end) if end is not None else int(first) + 1]
        elif most > _MOST_THREADS:
            values = values[:_MOST_THREADS]
        rest = f" ... ({text.split()[0]}[0:{most}] shows all)" if first is None and most > _MOST_THREADS else ""
        return f"{text} = {' '.join(_formed(values, form)) or 'no such thread'}{rest}"

    def _tensor(self, name: str, place: str) -> str:
        values = self.pe.chip.storages[name].values(self.pe.chip.store)
        parts = [part.strip() for part in place.strip("[]").split(",")] if place else []
        try:
            index = tuple(slice(*(int(x) if x else None for x in p.split(":"))) if ":" in p else int(p) for p in parts)
            values = values[index]
        except (IndexError, ValueError) as error:
            raise UsageError(f"{name}{place}: {error}", how=f"{name} is {list(values.shape)}") from None
        return f"{name}{place} =\n{values}" if np.ndim(values) else f"{name}{place} = {values}"

    def _tokens(self) -> str:
        clock = self.pe.clock
        waiting = [n for n in range(self.config.registers) if clock.tokens[n] > clock.issue]
        rows = [f"r{n} in {clock.tokens[n] - clock.issue} cycles" for n in waiting[:32]]
        rows += [f"... and {len(waiting) - 32} more"] if len(waiting) > 32 else []
        return "\n".join([f"next issue at cycle {clock.issue}", *(rows or ["every register is there"])])

    def _pages(self) -> str:
        lines = []
        for name, storage in self.pe.chip.storages.items():
            lines.append(f"{name}: pages of {storage.page_bytes} bytes")
            lines += [f"  {entry}" for entry in storage.table.entries()]
        return "\n".join(lines) or "no tensors"

    def _caches(self) -> str:
        lines = []
        for name, cache in (("L1", self.pe.l1), ("L2", self.pe.chip.l2)):
            held = cache.lines()
            lines.append(f"{name}: {len(held)} lines held")
        c = self.pe.counts
        return "\n".join([*lines, f"{c.l1_touches} touches, {c.l1_misses} L1 misses, {c.l2_misses} L2 misses"])


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{what} {text}: not a number from 1 on")
    return int(text)


def _formed(values: np.ndarray[Any, Any], form: str | None) -> list[str]:
    if values.dtype == bool:
        return ["1" if v else "0" for v in values]
    if form == "f32":
        return (
            [f"{v:g}" for v in values.view(np.float32)] if values.flags.c_contiguous else _formed(values.copy(), form)
        )
    if form in ("u32", "hex"):
        numbers = [int(v) & 0xFFFFFFFF for v in values]
        return [f"{n:#010x}" if form == "hex" else str(n) for n in numbers]
    return [str(v) for v in values.tolist()]


def _account(numbers: Mapping[str, int]) -> str:
    return "\n".join(f"{name:20} {value:,}" for name, value in numbers.items() if value) or "nothing yet"
