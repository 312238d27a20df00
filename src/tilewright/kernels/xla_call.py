"""numba kernels as targets of XLA's typed foreign function interface on CPU: called from inside jit, without Python.

A handler is a function of one address, XLA's call frame (``xla/ffi/api/c_api.h``, version 0.1 and later): it finds its
operands and results there. Several threads can share a call: :func:`shared` lets each of them call the handler again,
with its :func:`share` of the call in place of a frame.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
from llvmlite import ir

from tilewright.kernels.declare import Callback, inner
from tilewright.kernels.vectors import I64, Word, carray, emitted, load_word, to_longs, types

FRAME = "int64(int64)"
"""The signature of handlers: an address -> 0."""

ARGUMENTS, RESULTS, ATTRIBUTES = 40, 80, 120  # where the three lists begin in a frame
COUNT, LIST, NAMED = 16, 32, 40  # where a list's length and pointers stand; attributes have names before them
_DATA, _DIMS = 24, 40  # of a buffer
_STAGE, _EXECUTE = 32, 3
_METADATA = 1  # the extension in which the runtime asks for the version of the interface
_MOST_THREADS = 64


@inner()
def is_question(frame: Any) -> Any:
    """Whether the runtime only asks for the version of the interface (0.1 is the answer), or it is not yet time."""
    extension = load_word(frame + 8, 0)
    if extension != 0 and load_word(extension + 8, 0) & 0xFFFFFFFF == _METADATA:
        carray(to_longs(load_word(extension + 24, 0) + 24), (1,))[0] = 1 << 32
        return True
    return load_word(frame + _STAGE, 0) & 0xFFFFFFFF != _EXECUTE


@inner()
def operand(frame: Any, i: Any) -> Any:
    """Address of operand ``i``'s description."""
    return load_word(load_word(frame + ARGUMENTS + LIST, 0), i)


@inner()
def result(frame: Any, i: Any) -> Any:
    """Address of result ``i``'s description."""
    return load_word(load_word(frame + RESULTS + LIST, 0), i)


@inner()
def data(buffer: Any) -> Any:
    """Address of a buffer's first element."""
    return load_word(buffer + _DATA, 0)


@inner()
def dim(buffer: Any, i: Any) -> Any:
    """Length of a buffer's dimension ``i``."""
    return load_word(load_word(buffer + _DIMS, 0), i)


@inner()
def size(buffer: Any) -> Any:
    """Elements of a buffer."""
    elements = 1
    for i in range(load_word(buffer + 32, 0)):
        elements *= dim(buffer, i)
    return elements


# Threads: each takes its share of a call. They live as long as the call; starting one takes some 20 us. A share is four
# words: what is shared, the part, the parts, the thread. Its address is odd, and a frame's is even.

_create: Any = types.ExternalFunction("pthread_create", types.int32(types.int64, types.int64, types.int64, types.int64))
_join: Any = types.ExternalFunction("pthread_join", types.int32(types.int64, types.int64))


@inner()
def is_share(call: Any) -> Any:
    """Whether a handler was called by :func:`shared`, and not by XLA."""
    return call & 1 == 1


@inner()
def share(call: Any) -> Any:
    """(what is shared, which part of it, parts) of a share."""
    return load_word(call - 1, 0), load_word(call - 1, 1), load_word(call - 1, 2)


@inner()
def shared(what: Any, handler: Any, parts: Any) -> Any:
    """Split a call over up to ``parts`` threads, the caller's among them; returns 0 when all are done.

    ``what`` is the word that all of them get, such as the address of the call's frame; ``handler``, the address of a
    function, is called once for each part with a share, which :func:`share` reads.
    """
    parts = min(max(parts, 1), _MOST_THREADS)
    shares = np.empty(4 * _MOST_THREADS, np.int64)
    first, started = np.int64(shares.ctypes.data) + 1, 0
    for part in range(parts):
        at = 4 * part
        shares[at], shares[at + 1], shares[at + 2], shares[at + 3] = what, part, parts, 0
    for part in range(1, parts):
        if _create(first - 1 + 32 * part + 24, 0, handler, first + 32 * part) != 0:
            break
        started = part
    call_address(handler, first)
    for part in range(started + 1, parts):  # what no thread was left for
        call_address(handler, first + 32 * part)
    for part in range(1, started + 1):
        _join(shares[4 * part + 3], 0)
    return 0


@emitted
def call_address(builder: Any, function: Word, argument: Word) -> Word:
    """What the C function of one word at an address answers."""
    return builder.call(builder.inttoptr(function, ir.PointerType(ir.FunctionType(I64, [I64]))), [argument])


@emitted
def own_address(builder: Any) -> Word:
    """The address of the handler that asks. It is code of the same file, so nothing can come between the two."""
    name = f"cfunc.{builder.function.name}"  # numba's name for what C calls
    known = builder.module.globals.get(name)
    return builder.ptrtoint(known or ir.Function(builder.module, ir.FunctionType(I64, [I64]), name), I64)


_registered: set[str] = set()
_registering = threading.Lock()


def registered(name: str, handler: Callback) -> str:
    """The target ``name``, made known to XLA's CPU by the first call of it in the process."""
    with _registering:
        if name not in _registered:
            import jax  # whoever calls a kernel from inside jit has it

            new = ctypes.pythonapi.PyCapsule_New
            new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
            jax.ffi.register_ffi_target(name, new(handler.address, None, None), platform="cpu", api_version=1)
            _registered.add(name)
    return name
