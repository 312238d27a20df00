"""Moves as a target of XLA's foreign function interface on CPU: the kernels of `move`, called from inside jit.

A call has two operands, the data and five words that :func:`move_words` made: where the plan's header is for a target
on a cache line, where it is for another, who made them, how many bytes are to be zero beforehand, how many threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.kernels import cfunc
from tilewright.layout.move.blocks import LINE, SCRATCH
from tilewright.layout.move.move_kernels import move
from tilewright.layout.move.words import GIVEN, THREADS
from tilewright.vectors import load_word
from tilewright.xla_call import (
    FRAME,
    carray,
    data,
    handle,
    is_question,
    operand,
    published,
    register,
    result,
    stale,
    to_bytes,
)

_CALL = 4 * LINE // 8
"""Words of a call's memory, a line more than its three."""


@cfunc(FRAME)
def _move_worker(share: Any) -> Any:
    memory = np.empty(SCRATCH + 3 * LINE, np.uint8)
    scratch = (np.int64(memory.ctypes.data) + 2 * LINE - 1) // LINE * LINE
    move(load_word(share, 0), scratch)  # type: ignore[arg-type]  # numba has one kind of integer
    memory[0] = 0  # it is needed until here
    return 0


_worker_address = published("tilewright_move_worker", _move_worker)


@cfunc(FRAME)
def _move_handler(frame: Any) -> Any:
    if is_question(frame):
        return 0
    words = data(operand(frame, 1))
    if load_word(words, 2) != _worker_address():
        return stale(frame)
    target, threads = data(result(frame, 0)), load_word(words, 4)
    carray(to_bytes(target), (load_word(words, 3),))[:] = 0
    memory = np.zeros(_CALL, np.int64)
    first = np.int64(memory.ctypes.data)
    call = (first + LINE - 1) // LINE * LINE
    place = (call - first) // 8
    memory[place + GIVEN] = target
    memory[place + GIVEN + 1] = data(operand(frame, 0))
    memory[place + GIVEN + 2] = load_word(words, 1 if target % LINE else 0)
    memory[place + THREADS] = threads
    handle(call, _worker_address(), threads)
    memory[0] = 0  # it is needed until here
    return 0


@cache
def move_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return register("tilewright_move", _move_handler)


def move_words(on_line: int, off_line: int, zeros: int, threads: int) -> np.ndarray[Any, Any]:
    """The second operand: uint8[40]."""
    return np.array([on_line, off_line, _move_worker.address, zeros, threads], np.int64).view(np.uint8)
