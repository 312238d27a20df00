"""A run counted instruction by instruction: which line of a program costs what, which lines of memory it touches."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import check_known
from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.segments import Storage
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.machine import Machine, work_of
from tilewright.isa.execute.run import Job, Runner, RunResult, Tensors, Work, result_of
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.counts import Counts, Traffic
from tilewright.isa.language.errors import Array
from tilewright.isa.language.program import MachineProgram
from tilewright.layout.draw.panels import Bounds, Level, Panel, Scene
from tilewright.layout.draw.picture import draw_picture
from tilewright.layout.draw.terminal import scene_text
from tilewright.layout.kinds.paged import PagedLayout
from tilewright.render import count_text
from tilewright.render.drawing import Drawing

if TYPE_CHECKING:
    from rich.text import Text


def new_heat(storages: dict[str, Storage]) -> dict[str, Array]:
    """Counters at zero: int64[lines, kinds of access] for every tensor."""
    return {
        name: np.zeros((s.map.num_pages * s.map.page_elements // s.map.line_elements, len(LINE_ACCESSES)), np.int64)
        for name, s in storages.items()
    }


def _kind(name: str, doc: str) -> property:
    return property(lambda heat: heat.of(name), doc=doc)


@dataclass(frozen=True, eq=False)
class Heat:
    """Accesses to the lines of one tensor during a run.

    ==============  =======================================================================================
    ``lines``       int64[lines, 5], lines counted through all pages, padding included; columns as below
    ``touches``     by the columns of B of ``mm``; ``misses`` of them in L1, ``l2_misses`` of those in L2
    ``loads``       by ``ld``; ``stores`` by ``st``: requests of a thread for a line
    ==============  =======================================================================================

    The five are also arrays of the tensor's shape: each element has its line's count. Sums over ``lines``, taken over
    all tensors, are the run's ``l1_touches``, ``l1_misses``, ``l2_misses``, ``load_lines`` and ``store_lines``.

    >>> from tilewright.isa import MatrixUnitConfig, profile
    >>> program = "segment ur1, $A\\ntid r1\\nmov r0, 0\\nld r2, ur1:rf0:0x00\\nhalt"
    >>> found = profile(program, {"A": np.arange(8, dtype=np.int32).reshape(4, 2)}, MatrixUnitConfig(threads=4))
    >>> found.heat("A").loads.tolist()
    [[1, 1], [1, 1], [1, 1], [1, 1]]
    """

    name: str
    storage: Storage
    lines: Array

    @property
    def layout(self) -> PagedLayout:
        """The pages of lines that hold the elements."""
        return self.storage.map

    @property
    def totals(self) -> dict[str, int]:
        """Accesses to the whole tensor, by kind."""
        return dict(zip(LINE_ACCESSES, self.lines.sum(axis=0).tolist(), strict=True))

    @cached_property
    def line_of(self) -> Array:
        """int64, of the tensor's shape: the row of ``lines`` that each element's line has."""
        return self.storage.line_numbers(*(np.arange(n) for n in self.layout.shape))

    touches = _kind("touches", "Touches by mm, of the tensor's shape.")
    misses = _kind("misses", "Of the touches, those that L1 did not have.")
    l2_misses = _kind("l2_misses", "Of the misses, those that L2 did not have either.")
    loads = _kind("loads", "Requests by ld for a line.")
    stores = _kind("stores", "Requests by st for a line.")

    def of(self, kind: str) -> Array:
        """One kind, of the tensor's shape; ``accesses`` is touches, loads and stores together."""
        return self.per_line(kind)[self.line_of]

    def per_line(self, kind: str) -> Array:
        """Accesses of one kind to every line: int64[lines]."""
        if kind == "accesses":
            return np.asarray(self.lines[:, [0, 3, 4]].sum(axis=1))
        check_known(kind, LINE_ACCESSES, f"no kind of access called {kind!r}", say="one of accesses,")
        return self.lines[:, LINE_ACCESSES.index(kind)]

    def drawing(self, kind: str = "accesses") -> Drawing:
        """A picture: the tensor's elements, lines or blocks, the deeper the colour the more accesses."""
        scene, top = _scene(self, kind)
        rows, columns = scene.panels[0][0].padding.shape
        if rows > 32 and columns < 16:  # a tower of few columns
            scene, top = _scene(self, kind, 32)
        legend = [("ramp", f"0 to {_number(top)} {_NAMES[kind]}")] if top else []
        legend += [("padding", f"no {_NAMES[kind]}")] if any(p.padding.any() for p in scene.everything) else []
        legend += [(f"edge l{min(k, 3)}", level.name) for k, level in enumerate(scene.levels)]
        return draw_picture(scene, legend)

    def to_svg(self, kind: str = "accesses") -> str:
        return str(self.drawing(kind).svg())

    def to_text(self, kind: str = "accesses", width: int = 100) -> Text:
        """The map for a terminal of ``width`` columns: a number per cell, ``·`` where nothing came."""

        def scene(most: Bounds) -> Scene:
            return replace(_scene(self, kind, most.rows, most.columns)[0], levels=())  # a line is often one row

        return scene_text(scene, width, legend=False)

    def __str__(self) -> str:
        return self.to_text().plain


# A tensor's accesses as a picture, with the cells, outlines and legend of the layout pictures; and in a terminal.

_NAMES = {
    "accesses": "accesses",
    "touches": "touches by mm",
    "misses": "L1 misses",
    "l2_misses": "L2 misses",
    "loads": "requests by ld",
    "stores": "requests by st",
}
_COLOURS, _FOLD, _BESIDE = 8, 32, 4
_ROWS, _COLUMNS, _BLOCKS = 64, 64, 8


@dataclass(frozen=True)
class _Frame:
    """How a tensor is cut into cells: ``block`` elements (rows, columns) a cell.

    A single row or column of cells is folded into rows of ``fold`` (0: it is not); it runs along ``axis``.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    line: tuple[int, int]
    outer: tuple[int, ...]
    fold: int = 0
    axis: int = 0

    @property
    def words(self) -> str:
        if self.block == (1, 1):
            return "a cell is an element, its number that of its line"
        size = " x ".join(str(n) for n in (self.block if self.shape[0] > 1 else self.block[1:]))
        lines = math.prod(-(-b // n) for b, n in zip(self.block, self.line, strict=True))
        return f"a cell is {size} elements" + (": one line" if lines == 1 else f", the mean over its {lines} lines")


def _frame(heat: Heat, rows: int, columns: int) -> _Frame:
    """How to cut a tensor into cells: elements where they fit, else lines, else blocks of lines."""
    layout = heat.layout
    *outer, r, c = (1, *layout.shape) if len(layout.shape) == 1 else layout.shape
    *_, line_r, line_c = (1, *layout.line)
    fits, fold, axis = r <= rows and c <= columns, min(_FOLD, columns), 1 if r == 1 else 0
    if fits:
        return _Frame((r, c), (1, 1), (line_r, line_c), tuple(outer))
    folded = r == 1 or line_c >= c
    most = [fold * rows] * 2 if folded else [rows, columns]
    block = [1, 1] if r == 1 and c <= most[1] else [min(line_r, r), min(line_c, c)]
    for d, size in enumerate((r, c)):
        while -(-size // block[d]) > most[d]:
            block[d] *= 2
    return _Frame((r, c), (block[0], block[1]), (line_r, line_c), tuple(outer), fold if folded else 0, axis)


def _means(heat: Heat, frame: _Frame, at: tuple[int, ...]) -> Array:
    """float64[kinds + 1, rows of cells, columns of cells]: the mean over a cell's elements; the last are accesses."""
    (rows, columns), (tall, wide) = frame.shape, frame.block
    counted = np.concatenate([heat.lines, heat.per_line("accesses")[:, None]], axis=1).T
    starts, means = np.arange(0, columns, wide), []
    lengths = np.diff([*starts, columns])
    outer = [np.array([x]) for x in at]
    for r in range(0, rows, tall):
        down = np.arange(r, min(r + tall, rows))
        along = [*outer, down, np.arange(columns)][-len(heat.layout.shape) :]
        lines = heat.storage.line_numbers(*along).reshape(len(down), columns)
        sums = np.add.reduceat(counted[:, lines].sum(axis=1), starts, axis=1)
        means.append(sums / (lengths * len(down)))
    return np.stack(means, axis=1)


def _number(value: float) -> str:
    """A count as text; a mean below 100 with one decimal."""
    return f"{value:.1f}" if value < 100 and value != int(value) else count_text(round(value))


def _span(start: int, size: int, end: int) -> str:
    last = min(start + size, end) - 1
    return str(start) if last == start else f"{start}..{last}"


def _panel(frame: _Frame, at: tuple[int, ...], means: Array, kind: str, top: float) -> Panel:
    (tall, wide), (rows, columns) = frame.block, frame.shape
    values = means[_index(kind)]
    across = values.shape[1]
    tips = [
        [_tip(at, _span(r * tall, tall, rows), _span(c * wide, wide, columns), means[:, r, c]) for c in range(across)]
        for r in range(len(values))
    ]
    row_names = [_span(r * tall, tall, rows) for r in range(len(values))]
    column_names = [str(c * wide) for c in range(across)]
    if frame.fold:
        size = values.size
        padded = np.pad(values.reshape(-1), (0, -size % frame.fold), constant_values=np.nan)  # NaN: no cell
        values = padded.reshape(-1, frame.fold)
        flat = [tip for row in tips for tip in row] + [""] * (values.size - size)
        tips = [flat[r : r + frame.fold] for r in range(0, len(flat), frame.fold)]
        row_names = [str(r * frame.fold * frame.block[frame.axis]) for r in range(len(values))]
        column_names = [f"+{c * frame.block[frame.axis]}" for c in range(values.shape[1])]
    here: Array = ~np.isnan(values)
    values = np.where(here, values, 0.0)
    never: Array = here & (values == 0)
    labels = tuple(tuple(_number(v) if v else "" for v in row) for row in values.tolist())
    colours = np.clip(np.ceil(values * _COLOURS / max(top, 1e-9)).astype(np.int64) - 1, 0, _COLOURS - 1)
    heading = f"[{', '.join(map(str, at))}]" if at else ""
    names, places = (tuple(row_names), tuple(column_names)), np.zeros((*values.shape, 1), np.int64)
    return Panel(heading, "", "", *names, labels, tuple(map(tuple, tips)), never, colours, places, places)


def _index(kind: str) -> int:
    return len(LINE_ACCESSES) if kind == "accesses" else LINE_ACCESSES.index(kind)


def _tip(at: tuple[int, ...], row: str, column: str, means: Array) -> str:
    parts = [f"{_number(v)} {_NAMES[kind]}" for kind, v in zip(LINE_ACCESSES, means.tolist(), strict=False) if v]
    return f"({', '.join([*map(str, at), row, column])}): {', '.join(parts) or 'never accessed'}"


def _levels(heat: Heat, frame: _Frame) -> tuple[Level, ...]:
    """Pages, where there are several and cells do not cross them, and lines where a cell is an element."""
    levels = []
    page = (1, *heat.layout.page)[-2:]
    several = any(p < n for p, n in zip(page, frame.shape, strict=True)) and not frame.fold
    if several and all(p % b == 0 for p, b in zip(page, frame.block, strict=True)):
        periods = [p // b for p, b in zip(page, frame.block, strict=True)]
        levels.append(Level(f"page ({', '.join(map(str, heat.layout.page))})", periods[0], periods[1]))
    if frame.block == (1, 1) and not frame.fold:
        levels.append(Level(f"line ({', '.join(map(str, heat.layout.line))})", frame.line[0], frame.line[1]))
    return tuple(levels)


def _facts(heat: Heat) -> str:
    """What happened to the tensor, in a line."""
    t, layout = heat.totals, heat.layout
    firsts = (np.arange(0, n, size) for n, size in zip(layout.shape, layout.line, strict=True))
    lines = np.unique(heat.storage.line_numbers(*firsts))  # those that hold an element
    never = int((heat.per_line("accesses")[lines] == 0).sum())
    parts = [f"{count_text(t[kind])} by {name}" for kind, name in (("loads", "ld"), ("stores", "st")) if t[kind]]
    if t["touches"]:
        missed = f"{count_text(t['misses'])} missed L1, {count_text(t['l2_misses'])} L2"
        parts = [f"{count_text(t['touches'])} by mm ({missed})", *parts]
    text = f"accesses to its lines: {', '.join(parts) or 'none'}"
    return text + (f"; {count_text(never)} lines had none" if never and parts else "")


def _scene(heat: Heat, kind: str, rows: int = _ROWS, columns: int = _COLUMNS) -> tuple[Scene, float]:
    """The picture, and the number of its deepest colour."""
    heat.per_line(kind)  # a kind there is none of is an error
    frame = _frame(heat, rows, columns)
    shown, every = list(islice(product(*map(range, frame.outer)), _BLOCKS)), math.prod(frame.outer)
    means = [_means(heat, frame, at) for at in shown]
    top = max(float(m[_index(kind)].max()) for m in means)
    panels = [_panel(frame, at, m, kind, top) for at, m in zip(shown, means, strict=True)]
    beside = max(1, min(_BESIDE, 2 * _COLUMNS // max(1, panels[0].padding.shape[1])))
    grid = tuple(tuple(panels[k : k + beside]) for k in range(0, len(panels), beside))
    cut = f"the first {len(shown)} of {count_text(every)} blocks of rows and columns" if len(shown) < every else ""
    shape = ",".join(map(str, heat.layout.shape))
    title = f"{heat.name} {heat.storage.dtype}[{shape}]: {_NAMES[kind]} by line"
    words = "; ".join(part for part in (frame.words, cut) if part)
    return Scene(title, _facts(heat), grid, _levels(heat, frame), "offset", "", words), top


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
    ``counts``        its part of the run's ``counts``; ``traffic``: of the run's ``traffic``; ``row``: all numbers
    ``pes``           the processing elements that ran it: all numbers are theirs together
    ================  ====================================================================================
    """

    pc: int
    labels: tuple[str, ...]
    text: str
    row: Array = field(repr=False, compare=False)
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
        return ProfileTotals(**_sums(line.row for line in self.lines))

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
        check_known(name, self.seen, f"no tensor called {name!r}", say="there are")
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
            counted = [line.row for line in rows]
            pes = tuple(part.number for part in same)
            lines.append(replace(rows[0], **_sums(counted), row=sum(counted), pes=pes))
    seen = {name: np.sum([part.seen[name] for part in parts], axis=0) for name in parts[0].seen}
    last = max(parts, key=lambda part: part.result.cycles)
    return RunProfile(parts[0].program, last.result, tuple(lines), seen, tuple(parts))


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


def _sums(rows: Iterable[Array]) -> dict[str, Any]:
    """Fields of ProfileTotals from rows of the accounts' tables."""
    row = sum(rows, np.zeros(int(_ENDS[-1]), np.int64))
    counts, traffic, queue, math, busy, executed = (part.tolist() for part in np.split(row, _ENDS[:-1]))
    sums = {"executed": executed[0], "cycles": sum(queue), "queue": dict(zip(QUEUE, queue, strict=True))}
    sums |= {"math_cycles": busy[0], "stalls": dict(zip(MATH_STALLS, math, strict=True))}
    return sums | {"counts": Counts(*counts), "traffic": Traffic(*traffic)}


def _line(program: MachineProgram, pc: int, row: Array, pe: int) -> ProfileLine:
    labels = tuple(name for name, at in program.labels if at == pc)
    return ProfileLine(**_sums([row]), pc=pc, labels=labels, text=str(program.instructions[pc]), row=row, pes=(pe,))


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
