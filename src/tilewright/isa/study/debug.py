"""A program one instruction at a time: the machine's own interpreter, with breakpoints and a look at everything.

Loops are not fused here, so every instruction can be seen; values, counts and cycles are those of a plain run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.machine import Machine, work_of
from tilewright.isa.execute.run import Runner, RunResult, Tensors, result_of
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.study.explain import InstructionExplanation, explain
from tilewright.layout import paged
from tilewright.render.formats import finite, first_rows

# What ``print`` shows of a processing element: registers, tensors, tokens, pages, caches, accounts.

_MOST_THREADS = 16
_REGISTER = re.compile(r"(r|ur|p)([0-9]+)(?:\[([0-9]+)(?:(:)([0-9]*))?\])?(?:\s+as\s+([a-z]+[0-9]*))?", re.IGNORECASE)
_TENSOR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(?:\[(.*)\])?")
_INDEX = re.compile(r"-?[0-9]{1,18}")
Place = tuple[MachineProgram, int]
"""An instruction: its program, whichever processing elements run it, and its number there."""


@dataclass(frozen=True)
class Answer:
    """What a command has to say: ``text``; what it shows as a ``value`` (numbers, lists, dicts; else None); ``ok``:
    whether it was understood.
    """

    text: str
    value: Any = None
    ok: bool = True


def small_number(text: str) -> int | None:
    """A number of at most nine digits, or None for any other text."""
    return int(text.lstrip("0") or "0") if re.fullmatch(r"0*[0-9]{1,9}", text) else None


def look(pe: Pe, text: str) -> Answer:
    """What ``text`` names of a processing element. Raises :class:`UsageError` where there is no such thing."""
    text = " ".join(text.split())
    if text in _VIEWS:
        return _VIEWS[text](pe)
    register = _REGISTER.fullmatch(text)
    if register is not None:
        return _register(pe, text, register)
    tensor = _TENSOR.fullmatch(text)
    if tensor is not None and tensor[1] in pe.chip.storages:
        return _tensor(pe, text, tensor[1], tensor[2])
    known = ", ".join([*filter(None, _VIEWS), *pe.chip.storages])
    raise UsageError(f"cannot print {shortened(text)}", how=f"a register as r0, ur4 or p1, or one of {known}")


def shortened(text: str) -> str:
    """A user's text in quotes, cut to 60 characters."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _register(pe: Pe, text: str, match: re.Match[str]) -> Answer:
    kind, digits, first, colon, end, form = match.groups()
    kind, form, c = kind.lower(), form and form.lower(), pe.config
    limit = {"r": c.registers, "ur": c.uniform_registers, "p": c.predicates}[kind]
    number = small_number(digits)
    if number is None or number >= limit:
        raise UsageError(f"there is no {shortened(kind + digits)}", how=f"{kind}0 to {kind}{limit - 1}")
    if kind == "ur" and first is not None:
        raise UsageError(f"{kind}{number} is shared by all threads", how=f"print {kind}{number}")
    if kind == "p" and form is not None:
        raise UsageError(f"{kind}{number} is true or false", how=f"print {kind}{number}")
    if form not in (None, "hex", *ELEMENT_TYPES):
        raise UsageError(f"no type {shortened(str(form))}", how=f"hex, or one of {', '.join(ELEMENT_TYPES)}")
    if kind == "ur":
        values = np.array(pe.uniform[number : number + 1], np.int64).astype(np.int32)
    else:
        values = np.ascontiguousarray((pe.registers if kind == "r" else pe.predicates)[:, number])
    threads = len(values)
    if first is not None:
        values = values[_threads(first, colon, end, threads)]
    shown = values[:_MOST_THREADS] if first is None else values
    rest = f" ... ({kind}{number}[0:{threads}] shows all)" if len(shown) < len(values) else ""
    value = finite(_formed(values, form))
    one = kind == "ur" or (first is not None and colon is None)
    return Answer(f"{text} = {' '.join(_words(shown, form))}{rest}", value[0] if one else value)


def _threads(first: str, colon: str | None, end: str | None, threads: int) -> slice:
    """Parse the threads of ``r0[3]``, ``r0[0:8]`` or ``r0[8:]``."""
    low = small_number(first)
    high = small_number(end) if end else threads if colon else None if low is None else low + 1
    if low is None or high is None or not low < min(high, threads):
        written = shortened(f"{first}{colon or ''}{end or ''}")
        raise UsageError(f"no threads {written}", how=f"0 to {threads - 1}, as [3], [0:8] or [8:]")
    return slice(low, high)


def _formed(values: np.ndarray[Any, Any], form: str | None) -> np.ndarray[Any, Any]:
    """Words of threads as another type; of several elements to a word a row for each thread, low bytes first."""
    if form is None or form == "s32":
        return values
    elements = values.view(np.uint32 if form == "hex" else paged((1,), form).numpy_dtype)
    return elements if len(elements) == len(values) else elements.reshape(len(values), -1)


def _words(values: np.ndarray[Any, Any], form: str | None) -> list[str]:
    if values.dtype == bool:
        return ["1" if v else "0" for v in values]
    pattern = "{:#010x}" if form == "hex" else "{:g}" if form and form in ("f32", "f16", "bf16") else "{}"
    rows = _formed(values, form).reshape(len(values), -1).tolist()
    return [",".join(pattern.format(v) for v in row) for row in rows]


def _tensor(pe: Pe, text: str, name: str, place: str | None) -> Answer:
    values = pe.chip.storages[name].values(pe.chip.store)
    how = f"{name} is {list(values.shape)}; print {name}[0, 2:4] is a part of it"
    index = tuple(_index(part.strip(), how) for part in place.split(",")) if place is not None else ()
    try:
        part = np.asarray(values[index])
    except (IndexError, ValueError) as error:
        raise UsageError(f"{shortened(text)}: {error}", how=how) from None
    return Answer(f"{text} =\n{part}" if part.ndim else f"{text} = {part}", finite(part))


def _index(part: str, how: str) -> int | slice:
    """Parse one index of a tensor: ``3``, ``-1``, ``2:4``, ``::2``."""
    ends = [end.strip() for end in part.split(":")]
    wrong = len(ends) > 3 or part == "" or not all(end == "" or _INDEX.fullmatch(end) for end in ends)
    if wrong:
        raise UsageError(f"{shortened(part)} is neither a number nor first:end:step", how=how)
    numbers = [int(end) if end else None for end in ends]
    return slice(*numbers) if len(ends) > 1 else int(ends[0])


def _tokens(pe: Pe) -> Answer:
    c, clock = pe.config, pe.clock
    kinds = (("r", c.registers), ("ur", c.uniform_registers), ("p", c.predicates))
    names = [(kind, n) for kind, limit in kinds for n in range(limit)]
    waits = {f"{kind}{n}": int(clock.tokens[clock.span(kind, n)][0]) - clock.issue for kind, n in names}
    waits = {name: cycles for name, cycles in waits.items() if cycles > 0}
    rows = first_rows([f"{name} in {cycles} cycle{'s' * (cycles != 1)}" for name, cycles in waits.items()], 32)
    text = "\n".join([f"next issue at cycle {clock.issue}", *(rows or ["every register is there"])])
    return Answer(text, {"issue": clock.issue, "waits": waits})


def _pages(pe: Pe) -> Answer:
    lines, tables = [], {}
    for name, storage in pe.chip.storages.items():
        entries = storage.table.entries(pe.clock.issue)
        lines.append(f"{name}: {len(entries)} page{'s' * (len(entries) != 1)} of {storage.page_bytes} bytes")
        lines += first_rows(entries, 64, "  ")
        tables[name] = [vars(entry) for entry in entries]
    return Answer("\n".join(lines) or "no tensors", tables)


def _caches(pe: Pe) -> Answer:
    pages = sum(pe.chip.l2_pages.values()) // pe.config.line_bytes
    held = {"L1": len(pe.l1.lines()), "L2": len(pe.chip.l2.lines()) - pages}
    c = pe.counts
    numbers = {"touches": c.l1_touches, "L1 misses": c.l1_misses, "L2 misses": c.l2_misses}
    lines = [f"{name}: {count} lines held" for name, count in held.items()]
    lines.append(", ".join(f"{n} {name}" for name, n in numbers.items()))
    return Answer("\n".join(lines), {"held": held, **numbers})


def _account(numbers: Mapping[str, int]) -> Answer:
    rows = [f"{name:20} {value:,}" for name, value in numbers.items() if value]
    return Answer("\n".join(rows) or "nothing yet", dict(numbers))


def _rows(rows: Iterable[Any], none: str) -> Answer:
    lines = [str(row) for row in rows]
    return Answer("\n".join(first_rows(lines, 64)) or none, lines)


_VIEWS: dict[str, Callable[[Pe], Answer]] = {
    "": lambda pe: Answer(str(pe)),
    "state": lambda pe: Answer(str(pe.chip)),
    "tokens": _tokens,
    "segments": lambda pe: _rows((f"handle {n}: {one}" for n, one in pe.segments.items()), "no segments yet"),
    "pages": _pages,
    "caches": _caches,
    "counts": lambda pe: _account(pe.counts.to_dict()),
    "traffic": lambda pe: _account(pe.traffic.to_dict()),
    "queue": lambda pe: _account(result_of(pe).queue),
    "stalls": lambda pe: _account(result_of(pe).stalls),
    "errors": lambda pe: _rows(pe.errors, "no errors"),
}


HELP = """\
step [N]          execute N instructions (1) of every processing element; s
run               go on to a breakpoint, a change that is watched, or the end; continue, c
until PLACE       go on to a place: a label, an address as 12, or a line of the text as :7; u
break PLACE       stop there from now on; breaks lists them, delete PLACE (or all) takes them away; b
watch WHAT        stop when what print WHAT shows has changed; unwatch WHAT (or all) ends it
list [N]          the N (9) instructions around the next one; l
print WHAT        r0 (of all threads), r0[3], r0[0:8], r0 as f32 (hex, or any element type: s8 is four to a register),
                  ur4, p1, A (a tensor), A[0, 2:4],
                  tokens, segments, pages, caches, counts, traffic, queue, stalls, errors, state; p
explain [PLACE]   what the next instruction (or that one) would do now, in words; e
pe [N]            look at processing element N; without N all of them
where, help, quit; an empty line is step"""


class _Single(Runner):
    """A runner without compiled blocks: a turn is one instruction of every processing element that can go on."""

    compiles = False


class Debugger:
    """A program, or a :class:`Machine` with programs started on it, stopped before the first instruction.

    :meth:`command` takes what one would type, and returns what one would read; nothing it is given ends the process.
    :meth:`answer` returns numbers too. ``pe`` is the processing element that is looked at, ``program`` what it runs.
    A program alone runs on the first processing element, as :meth:`MatrixUnit.run` has it.

    >>> debugger = Debugger("tid r0\\nmul r1, r0, r0\\nhalt", config=MatrixUnitConfig(threads=4))
    >>> print(debugger.command("step 2"))
    0002  halt
    >>> print(debugger.command("print r1"))
    r1 = 0 1 4 9
    """

    def __init__(
        self, program: MachineProgram | str | Machine, memory: Tensors = None, config: MatrixUnitConfig | None = None
    ) -> None:
        work, self._ended = work_of(program, memory, config, "Debugger")
        self.runner = _Single(work)
        self.config = work[0][0].config
        self.pe = work[0][0]
        self.breaks: list[Place] = []
        self.watched: dict[tuple[int, str], Answer] = {}
        self.stopped = ""
        self._interrupted = False
        self._commands: dict[str, Callable[[str], str | Answer]] = {
            **dict.fromkeys(("step", "s"), lambda text: self._advance(_number(text or "1", "step"))),
            **dict.fromkeys(("run", "continue", "c"), self._run),
            **dict.fromkeys(("until", "u"), lambda text: self._advance(self._most, (self.program, self._place(text)))),
            **dict.fromkeys(("break", "b"), self._break),
            "delete": self._delete,
            "breaks": self._breaks,
            "watch": self._watch,
            "unwatch": self._unwatch,
            **dict.fromkeys(("list", "l"), self._list),
            **dict.fromkeys(("print", "p"), lambda what: look(self.pe, what)),
            **dict.fromkeys(("explain", "e"), self._explain),
            "pe": self._look_at,
            **dict.fromkeys(("where", "w"), lambda _: self.where()),
            "help": lambda _: HELP,
        }

    @property
    def program(self) -> MachineProgram:
        """The program of the current processing element (``pe``)."""
        return self.runner.programs[self.pe.number]

    @property
    def done(self) -> bool:
        """Whether all programs have ended, or an error has ended the run."""
        return bool(self.stopped) or all(pe.halted for pe in self.runner.pes)

    @property
    def words(self) -> list[str]:
        """Commands, labels and tensors, for a line editor that completes words."""
        return sorted({*self._commands, "quit", *dict(self.program.labels), *self.pe.chip.storages})

    def result(self) -> RunResult:
        """The result of the processing element that is looked at, up to here."""
        return result_of(self.pe)

    def command(self, line: str) -> str:
        """Do one command; an empty one is ``step``. A mistake is a line that says so."""
        return self.answer(line).text

    def answer(self, line: str) -> Answer:
        """The same, with the numbers it shows as ``value``, and ``ok``: whether the command was understood."""
        name, *rest = line.split(None, 1) or ["step"]
        action = self._commands.get(name)
        if action is None:
            return Answer(f"no command {shortened(name)}; help lists them", ok=False)
        try:
            reply = action(rest[0].strip() if rest else "")
        except TilewrightError as error:
            return Answer(str(error), ok=False)
        return reply if isinstance(reply, Answer) else Answer(reply)

    def where(self) -> str:
        """The next instruction, or how the program ended; of several processing elements a line each."""
        if self.stopped and len(self.runner.pes) == 1:
            return f"{self.stopped}\nat {_line(self.program, self.pe.pc)}"
        if self.stopped or len(self.runner.pes) == 1:
            return self.stopped or self._next(self.pe)
        rows = [f"{'>' if pe is self.pe else ' '} PE {pe.number}  {self._next(pe)}" for pe in self.runner.pes]
        return "\n".join(rows)

    def interrupt(self) -> None:
        """From a signal or another thread: let what is going on stop after the instruction that is going on."""
        self._interrupted = True

    def explain_first(
        self, addresses: Iterable[int], watch: Callable[[int], None] | None = None
    ) -> dict[int, InstructionExplanation]:
        """Run on until each of these instructions was come to, and explain it there; ``watch`` is told how many were.

        Those that are never come to are not in the result. Breakpoints do not matter.

        >>> debugger = Debugger("tid r0\\njump end\\nnop\\nend:\\nhalt")
        >>> list(debugger.explain_first(range(4)))
        [0, 1, 3]
        """
        left, explanations = set(addresses), dict[int, InstructionExplanation]()
        while left and not self.done:
            if self.pe.pc in left and self.pe.barrier is None:
                explanations[self.pe.pc] = explain(self.program.instructions[self.pe.pc], at=self.pe)
                left.discard(self.pe.pc)
                if watch is not None:
                    watch(len(explanations))
            self._turn()
        return explanations

    def _turn(self) -> None:
        try:
            self.runner.turn()
        except TilewrightError as error:
            self.stopped = f"stopped: {error}"

    def _next(self, pe: Pe) -> str:
        if pe.barrier is not None:
            return f"at barrier {pe.barrier[0]}"
        if pe.halted:
            return f"ended after {pe.executed:,} instructions, {pe.clock.cycles:,} cycles by the model"
        return _line(self.runner.programs[pe.number], pe.pc)

    def _advance(self, most: int, place: Place | None = None) -> str:
        places = {*self.breaks, *([place] if place else [])}
        self._interrupted = False
        for _ in range(0 if self.done else most):
            # Tensors need not be looked at again unless the next instruction of a processing element may change them.
            going = [pe for pe in self.runner.pes if self.watched and not pe.halted and pe.barrier is None]
            stored = any(self.runner.steps[pe.number][pe.pc][1].spec.unit in ("lsu", "dma") for pe in going)
            self._turn()
            if self._interrupted:
                return f"interrupted\n{self.where()}"
            if changed := self._changes(stored):
                return f"{changed}\n{self.where()}"
            if self.done or any(
                (self.runner.programs[pe.number], pe.pc) in places for pe in self.runner.pes if not pe.halted and places
            ):
                break
        if self.done:
            self._ended()
        return self.where()

    def _changes(self, stored: bool) -> str:
        """The watched values that changed since the last look, old and new; remember the new ones."""
        lines = []
        for (number, expression), old in self.watched.items():
            if not stored and expression.partition("[")[0].strip() in self.pe.chip.storages:
                continue
            new = look(self._element(number), expression)
            if (new.value, new.text) != (old.value, old.text):
                self.watched[number, expression] = new
                lines.append(f"changed: {self._whose(number)}{_short(old)}\n     now: {_short(new)}")
        return "\n".join(lines)

    def _whose(self, number: int) -> str:
        return f"PE {number}, " if len(self.runner.pes) > 1 else ""

    def _element(self, number: int) -> Pe:
        element = next((pe for pe in self.runner.pes if pe.number == number), None)
        if element is None:
            known = ", ".join(str(pe.number) for pe in self.runner.pes)
            raise UsageError(f"no processing element {number} runs a program", how=f"these do: {known}")
        return element

    def _run(self, text: str) -> str:
        if text:
            raise UsageError("run takes nothing after it", how="until PLACE goes on to a place")
        return self._advance(self._most)

    @property
    def _most(self) -> int:
        """More turns than any run has: every processing element's instructions, and a barrier after each."""
        return 2 * len(self.runner.pes) * (self.config.max_instructions + 2)

    def _break(self, text: str) -> str:
        key = self.program, self._place(text)
        self.breaks += [key] if key not in self.breaks else []
        return self._breaks("")

    def _delete(self, text: str) -> str:
        if text == "all":
            self.breaks.clear()
        else:
            key = self.program, self._place(text)
            if key not in self.breaks:
                raise UsageError(f"no breakpoint at {shortened(text)}", how="breaks lists them")
            self.breaks.remove(key)
        return self._breaks("")

    def _breaks(self, text: str) -> str:
        return "\n".join(_line(*key) for key in sorted(self.breaks, key=itemgetter(1))) or "no breakpoints"

    def _watch(self, text: str) -> str:
        if text:
            expression = " ".join(text.split())
            self.watched[self.pe.number, expression] = look(self.pe, expression)
        lines = [f"{self._whose(n)}{_short(now)}" for (n, _), now in self.watched.items()]
        return "\n".join(lines) or "nothing is watched"

    def _unwatch(self, text: str) -> str:
        key = self.pe.number, " ".join(text.split())
        if text in ("", "all"):
            self.watched.clear()
        elif self.watched.pop(key, None) is None:
            raise UsageError(f"{shortened(text)} is not watched", how="watch lists what is")
        return self._watch("")

    def _place(self, text: str) -> int:
        """The address of a label, a number, or ``:line`` (the first instruction on it or after)."""
        labels = dict(self.program.labels)
        number = small_number(text.removeprefix(":"))
        if text in labels and labels[text] < len(self.program):
            return labels[text]
        if number is not None and text.startswith(":"):
            for pc, instruction in enumerate(self.program.instructions):
                if instruction.line >= number:
                    return pc
        elif number is not None and number < len(self.program):
            return number
        known = ", ".join(labels) or "none"
        last = f"0 to {len(self.program) - 1}, " if len(self.program) else ""
        raise UsageError(f"no place {shortened(text)}", how=f"a label ({known}), {last}or :line")

    def _list(self, text: str) -> str:
        around, size = _number(text or "9", "list"), len(self.program)
        at = min(self.pe.pc, size - 1)
        first = max(0, min(at - around // 2, size - around))
        mark = {pc: "*" for program, pc in self.breaks if program == self.program}
        if not self.done and not self.pe.halted:
            mark[at] = ">"
        labels = {pc: f"{name}:" for name, pc in self.program.labels}
        lines = []
        for pc in range(first, min(size, first + around)):
            lines += [f"        {labels[pc]}"] if pc in labels else []
            lines.append(f"{mark.get(pc, ' ')} {_line(self.program, pc)}")
        return "\n".join(lines) or "a program without instructions"

    def _explain(self, text: str) -> str | Answer:
        if not text and (self.done or self.pe.halted):
            raise UsageError("the program has ended", how="explain PLACE has any of its instructions")
        pc = self._place(text) if text else min(self.pe.pc, len(self.program) - 1)
        explanation = explain(self.program.instructions[pc], at=self.pe)
        return Answer(str(explanation), explanation.to_dict())

    def _look_at(self, text: str) -> str:
        if text:
            number = small_number(text)
            if number is None:
                raise UsageError(f"pe {shortened(text)}: not a number")
            self.pe = self._element(number)
        return self.where()


def _line(program: MachineProgram, pc: int) -> str:
    return f"{pc:04d}  {program.instructions[pc]}" if pc < len(program) else f"{pc:04d}  the end"


def _short(shown: Answer) -> str:
    text = " ".join(shown.text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _number(text: str, command: str) -> int:
    number = small_number(text)
    if not number:
        raise UsageError(f"{command} {shortened(text)}: not a number from 1 to 999999999")
    return number
