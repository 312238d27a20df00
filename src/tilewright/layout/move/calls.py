"""Running moves: what a kernel gets to know, which threads run it, and what happens to a thread that comes late.

A kernel reads all it needs from a few words of memory, a *call*, which all threads share. With cold caches, making a
call or a thread's scratch memory costs more than a small move, so both are kept and used again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.kernels.threads import call_soon, thread_count
from tilewright.layout.index.types import Array
from tilewright.layout.move import CORE, DONE, GIVEN, JOIN, KIND, LINE, SCRATCH, SHORTS, THREADS

NO_GAPS = np.zeros((0, 2), np.int64)
_SMALL = 1 << 22  # bytes up to which one thread does it all: waking another takes as long as moving a megabyte
_MOST_IDLE = 16  # calls kept where threads come late: on a crowded machine many of them are underway


def address_of(array: Array) -> int:
    """Where the array's first element is; ``array.ctypes`` costs ten times as much."""
    return int(array.__array_interface__["data"][0])


class Call:
    """What a kernel reads (``words``, three lines), and a thread's scratch memory with a line of room before it."""

    __slots__ = ("address", "scratch", "words")

    def __init__(self) -> None:
        memory = np.zeros(5 * LINE + SCRATCH, np.uint8)
        first = -address_of(memory) % LINE
        self.address = address_of(memory) + first
        self.words = memory[first : first + 3 * LINE].data.cast("q")  # writes a word in a tenth of the time
        self.scratch = self.address + 4 * LINE


_idle: list[Call] = []


def take_call() -> Call:
    """A call that is not in use. Release it after use; one lost by an interrupt is collected as garbage."""
    try:
        return _idle.pop()  # no check before: another thread may take the last one in between
    except IndexError:
        return Call()


def release_call(call: Call) -> None:
    """Put a call that is no longer in use back for :func:`take_call`."""
    _idle.append(call)


def run_plan(plan: MovePlan, target: Array, source: Array, value: int = 0) -> None:
    """Move the data and write ``value`` into the plan's padding; both arrays are addressed by their first element."""
    call = take_call()
    words = call.words
    words[0] = words[DONE] = 0
    words[GIVEN], words[GIVEN + 1] = address_of(target), address_of(source)
    words[GIVEN + 2], words[GIVEN + 3], words[THREADS] = plan.header, value, 1
    if plan.total > _SMALL and (others := min(thread_count(), plan.parts) - 1):
        _share(call, plan, others)
    else:
        plan.kernel(call.address, call.scratch)
        release_call(call)


def _share(call: Call, plan: MovePlan, others: int) -> None:
    """Run it with so many other threads, if they come in time.

    A thread that comes late still reads the call and the plan, so the last one to leave releases the call. It holds
    no array: these belong to the caller again, who may close or resize their memory.
    """
    leaving = [True, *[False] * others]
    call.words[THREADS] = 1 + others

    def help_() -> None:
        mine = take_call()
        plan.kernel(call.address, mine.scratch)
        release_call(mine)
        leave()

    def leave() -> None:
        if leaving.pop() and len(_idle) < _MOST_IDLE:
            release_call(call)

    try:
        for _ in range(others - call_soon(help_, others)):
            leave()
        _finish(call, plan)
    except BaseException:  # raised by a signal's handler, perhaps before the first line of what is called here
        _finish(call, plan)
        raise
    leave()


def _finish(call: Call, plan: MovePlan) -> None:
    """Work until every thread has finished: one that still ran would write into arrays that are the caller's again."""
    try:
        while not plan.kernel(call.address, call.scratch):
            time.sleep(1e-4)
    except BaseException:  # whatever a signal's handler raises, TimeoutError as well as KeyboardInterrupt
        _finish(call, plan)
        raise


# A plan as it is run: primitives at places, and the tables of numbers that the kernels read.


@dataclass(frozen=True, eq=False)
class Work:
    """One primitive at many places."""

    numbers: tuple[int, ...]  # kind, stream, count and (source, target) steps of the repeat, of the core's two loops
    inner: Array  # int64[k, 2]: source and target (or scratch) places within an entry
    rows: Array  # int64[r, 2]: target and scratch places of the rows that leave the scratch, none if direct
    width: int  # bytes of such a row
    runs: Array  # int64[r]: where the source's runs begin within an entry; fetched while the entry before is moved
    length: int  # bytes of such a run
    places: Array  # int64[n, 3]: source and target places of the entries, bytes of their rows (0 if direct)
    padded: int = 0  # bytes of scratch that hold padding where no data goes, 0 if the rows have none

    @property
    def kind(self) -> int:
        """The primitive's number, as `move.__init__` has them."""
        return self.numbers[KIND]

    @property
    def written(self) -> Array:
        """int64[n]: first target bytes of the rows that are written whole, padding too."""
        if not self.padded:
            return np.zeros(0, np.int64)
        return (self.places[:, 1, None] + self.rows[None, :, 0]).reshape(-1)


_PART = 1 << 19  # bytes after which the edges catch up with the bulk, while their lines are near, and threads meet


@dataclass(frozen=True, eq=False)
class MovePlan:
    """What to do for one pair of address maps, elements being ``size`` bytes wide; ``total`` bytes of data.

    ``pads`` int64[n, 2] is padding (first byte, bytes) to be filled that no work writes.
    """

    works: tuple[Work, ...]
    size: int
    total: int
    pads: Array = field(default_factory=lambda: NO_GAPS)

    @property
    def parts(self) -> int:
        """Into how many parts threads divide the move."""
        return max(1, self.total // _PART)

    def __getattr__(self, name: str) -> Any:
        """``tables``, ``header`` and ``kernel``: made when they are first asked for, and the same for all threads.

        On Python 3.11 ``functools.cached_property`` has one lock for all instances: under it one plan waits for
        another's kernel to be compiled, and a child forked meanwhile waits for ever.
        """
        if name not in ("tables", "header", "kernel"):
            raise AttributeError(name)
        return vars(self).setdefault(name, getattr(self, f"_make_{name}")())

    def _make_tables(self) -> tuple[Array, ...]:
        """What the kernel reads. Threads that ask at the same time get the same tables, for their addresses are stored.

        First the header; then a row of numbers per work; inner places, rows, runs and places end to end;
        int64[works, parts + 1], where each part's places begin; and the pads.
        """
        from tilewright.layout.move.move_kernels import address_of_primitive

        numbers, inner, outs, runs = [], 0, 0, 0
        for w in self.works:
            counts = len(w.inner), len(w.rows), len(w.runs)
            wide = w.numbers[CORE] if w.kind in (SHORTS, JOIN) else self.size
            call = address_of_primitive(w.kind, wide, w.numbers[CORE + 3])
            numbers.append([*w.numbers, inner, counts[0], outs, counts[1], runs, counts[2], w.length, w.padded, call])
            inner, outs, runs = inner + counts[0], outs + counts[1], runs + counts[2]
        by_name = ([getattr(w, name) for w in self.works] for name in ("inner", "rows", "runs", "places"))
        whole = (np.ascontiguousarray(np.concatenate(parts), np.int64) for parts in by_name)
        places = np.array([len(w.places) for w in self.works])
        starts = (np.cumsum(places) - places)[:, None] + np.arange(self.parts + 1) * places[:, None] // self.parts
        works, *rest = np.array(numbers, np.int64), *whole, np.ascontiguousarray(starts, np.int64)
        pads = np.ascontiguousarray(self.pads, np.int64)
        where = [works.ctypes.data, len(works), *(table.ctypes.data for table in rest), self.parts]
        return np.array([*where, pads.ctypes.data, len(pads)], np.int64), works, *rest, pads

    def _make_kernel(self) -> Any:
        """What makes the move (numba comes with it)."""
        from tilewright.layout.move.move_kernels import move

        return move

    def _make_header(self) -> int:
        """The address of the header, which says where the other tables are and how long."""
        return int(self.tables[0].ctypes.data)
