"""Moves as a target of XLA's foreign function interface on CPU: the kernels of `move`, called from inside jit.

A call has two operands, the data and five words that :func:`move_words` made: where the plan's header is for a target
on a cache line, where it is for another, who made them, how many bytes are to be zero beforehand, how many threads.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from llvmlite import binding, ir

from tilewright.kernels import cfunc, inner, xla_call
from tilewright.kernels.vectors import I64, Word, carray, emitted, load_word, to_bytes
from tilewright.layout.move import GIVEN, LINE, SCRATCH, THREADS
from tilewright.layout.move.move_kernels import move

_CALL = 4 * LINE // 8
"""Words of a call's memory, a line more than its three."""

# A plan lies in the memory of the process that made it, and jax keeps compiled programs for other processes: words name
# their process by a random number, which a kernel finds by a name that is published before it is loaded.
_process = np.array([secrets.randbits(63)], np.int64)
_PROCESS = "tilewright_process"
binding.add_symbol(_PROCESS, _process.ctypes.data)  # before any kernel that asks for it is loaded
_STALE = np.frombuffer(b"a program of another process: its kernels' plans are not in this one\0", np.uint8)
_API, _CREATE_ERROR, _FAILED_PRECONDITION = 16, 48, 9  # of XLA's interface


@emitted
def _process_address(builder: Any) -> Word:
    known = builder.module.globals.get(_PROCESS)
    return builder.ptrtoint(known or ir.Function(builder.module, ir.FunctionType(I64, []), _PROCESS), I64)


@inner()
def _stale(frame: Any) -> Any:
    """What a handler answers to a call that another process compiled: XLA's error."""
    request = np.empty(4, np.int64)  # size of the struct, no extension, the message, the kind of error
    request[0], request[1], request[2], request[3] = 28, 0, np.int64(_STALE.ctypes.data), _FAILED_PRECONDITION
    create = load_word(load_word(frame + _API, 0) + _CREATE_ERROR, 0)
    error = xla_call.call_address(create, np.int64(request.ctypes.data))
    request[0] = 0  # it is needed until here
    return error


@cfunc(xla_call.FRAME)
def _move_handler(call: Any) -> Any:
    if xla_call.is_share(call):
        memory = np.empty(SCRATCH + 3 * LINE, np.uint8)
        scratch = (np.int64(memory.ctypes.data) + 2 * LINE - 1) // LINE * LINE
        move(xla_call.share(call)[0], scratch)  # type: ignore[arg-type]  # numba has one kind of integer
        memory[0] = 0  # it is needed until here
        return 0
    if xla_call.is_question(call):
        return 0
    words = xla_call.data(xla_call.operand(call, 1))
    if load_word(words, 2) != load_word(_process_address(), 0):
        return _stale(call)
    target, threads = xla_call.data(xla_call.result(call, 0)), load_word(words, 4)
    carray(to_bytes(target), (load_word(words, 3),))[:] = 0
    room = np.zeros(_CALL, np.int64)
    first = np.int64(room.ctypes.data)
    begin = (first + LINE - 1) // LINE * LINE
    place = (begin - first) // 8
    room[place + GIVEN] = target
    room[place + GIVEN + 1] = xla_call.data(xla_call.operand(call, 0))
    room[place + GIVEN + 2] = load_word(words, 1 if target % LINE else 0)
    room[place + THREADS] = threads
    xla_call.shared(begin, xla_call.own_address(), threads)
    room[0] = 0  # it is needed until here
    return 0


def move_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return xla_call.registered("tilewright_move", _move_handler)


def move_words(on_line: int, off_line: int, zeros: int, threads: int) -> np.ndarray[Any, Any]:
    """The second operand: uint8[40]."""
    return np.array([on_line, off_line, int(_process[0]), zeros, threads], np.int64).view(np.uint8)
