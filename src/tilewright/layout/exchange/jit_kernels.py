"""Moves as a target of XLA's foreign function interface on CPU: the kernels of `move`, called from inside jit.

A call has two operands, the data and five words that :func:`move_words` made: where the plan's header is for a target
on a cache line, where it is for another, who made them, how many bytes are to be zero beforehand, how many threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import cfunc
from tilewright.kernels.vectors import carray, load_word, to_bytes
from tilewright.kernels.xla_call import (
    FRAME,
    data,
    is_of_this_process,
    is_question,
    is_share,
    operand,
    own_address,
    process_number,
    registered,
    result,
    share,
    shared,
    stale,
)
from tilewright.layout.move.move_kernels import move
from tilewright.layout.move.words import GIVEN, LINE, SCRATCH, THREADS

_CALL = 4 * LINE // 8
"""Words of a call's memory, a line more than its three."""


@cfunc(FRAME)
def _move_handler(call: Any) -> Any:
    if is_share(call):
        memory = np.empty(SCRATCH + 3 * LINE, np.uint8)
        scratch = (np.int64(memory.ctypes.data) + 2 * LINE - 1) // LINE * LINE
        move(share(call)[0], scratch)  # type: ignore[arg-type]  # numba has one kind of integer
        memory[0] = 0  # it is needed until here
        return 0
    if is_question(call):
        return 0
    words = data(operand(call, 1))
    if not is_of_this_process(load_word(words, 2)):
        return stale(call)
    target, threads = data(result(call, 0)), load_word(words, 4)
    carray(to_bytes(target), (load_word(words, 3),))[:] = 0
    room = np.zeros(_CALL, np.int64)
    first = np.int64(room.ctypes.data)
    begin = (first + LINE - 1) // LINE * LINE
    place = (begin - first) // 8
    room[place + GIVEN] = target
    room[place + GIVEN + 1] = data(operand(call, 0))
    room[place + GIVEN + 2] = load_word(words, 1 if target % LINE else 0)
    room[place + THREADS] = threads
    shared(begin, own_address(), threads)
    room[0] = 0  # it is needed until here
    return 0


def move_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return registered("tilewright_move", _move_handler)


def move_words(on_line: int, off_line: int, zeros: int, threads: int) -> np.ndarray[Any, Any]:
    """The second operand: uint8[40]."""
    return np.array([on_line, off_line, process_number(), zeros, threads], np.int64).view(np.uint8)
