"""Moves as they are run: what a kernel is told, by which threads, and what becomes of whoever comes late.

A kernel is told everything in a few words of memory, a *call*, which all threads share. Making one costs more than a
small move with cold caches, and so does each thread's scratch memory; so both are kept and used again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.layout.move._blocks import LINE, SCRATCH
from tilewright.threads import call_soon, thread_count

if TYPE_CHECKING:
    from tilewright.layout.move._work import MovePlan

__all__ = ["DONE", "GIVEN", "THREADS", "Call", "address_of", "run_call", "run_plan", "take_call"]

Array = np.ndarray[Any, Any]
# Words behind the count of parts taken: parts done; target, source, header, padding's value; threads.
DONE, GIVEN, THREADS = 8, 16, 20
_SMALL = 1 << 22  # bytes up to which one thread does it all: waking another takes as long as moving a megabyte
_MOST_IDLE = 16  # calls kept where threads come late: on a crowded machine many of them are underway


def address_of(array: Array) -> int:
    """Where the array's first element is; ``array.ctypes`` costs ten times as much."""
    return int(array.__array_interface__["data"][0])


class Call:
    """What a kernel is told (``words``, three lines), and a thread's scratch memory with a line of room before it."""

    __slots__ = ("address", "scratch", "words")

    def __init__(self) -> None:
        memory = np.zeros(5 * LINE + SCRATCH, np.uint8)
        first = -address_of(memory) % LINE
        self.words = memory[first : first + 3 * LINE].view(np.int64)
        self.address = address_of(self.words)
        self.scratch = self.address + 4 * LINE


_idle: list[Call] = []


def take_call() -> Call:
    """A call that nobody uses; who is done with it gives it back, and who is interrupted leaves it to the collector."""
    try:
        return _idle.pop()  # not asked beforehand: another thread may take the last one in between
    except IndexError:
        return Call()


def give_call(call: Call) -> None:
    """Let it be taken again."""
    _idle.append(call)


def run_plan(plan: MovePlan, target: Array, source: Array, value: int = 0) -> None:
    """Move the data and write ``value`` into the plan's padding; both arrays are addressed by their first element."""
    call = take_call()
    call.words[0] = call.words[DONE] = 0
    call.words[GIVEN : THREADS + 1] = address_of(target), address_of(source), plan.header, value, 1
    run_call(call, plan)


def run_call(call: Call, plan: MovePlan) -> None:
    """Run a call that tells of ``plan``, and give it back; whoever asks holds the arrays until then."""
    if plan.total > _SMALL and (others := min(thread_count(), plan.parts) - 1):
        _share(call, plan, others)
    else:
        plan.kernel(call.address, call.scratch)
        give_call(call)


def _share(call: Call, plan: MovePlan, others: int) -> None:
    """Run it with as many other threads, should they come in time.

    One that comes late still reads the call and the plan, so the last of all gives the call back. It holds no array:
    those are the caller's again, who may close or resize their memory.
    """
    leaving = [True, *[False] * others]
    call.words[THREADS] = 1 + others

    def help_() -> None:
        mine = take_call()
        plan.kernel(call.address, mine.scratch)
        give_call(mine)
        leave()

    def leave() -> None:
        if leaving.pop() and len(_idle) < _MOST_IDLE:
            give_call(call)

    try:
        for _ in range(others - call_soon(help_, others)):
            leave()
        _finish(call, plan)
    except BaseException:  # raised by a signal's handler, perhaps before the first line of what is called here
        _finish(call, plan)
        raise
    leave()


def _finish(call: Call, plan: MovePlan) -> None:
    """Work until nobody does: whoever is left behind would write into arrays that belong to the caller again."""
    try:
        while not plan.kernel(call.address, call.scratch):
            time.sleep(1e-4)
    except BaseException:  # whatever a signal's handler raises, TimeoutError as well as KeyboardInterrupt
        _finish(call, plan)
        raise
