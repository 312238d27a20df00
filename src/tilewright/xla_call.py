"""numba kernels as targets of XLA's typed foreign function interface on CPU: called from inside jit, without Python.

A handler is a function of one address, XLA's call frame (``xla/ffi/api/c_api.h``, version 0.1 and later): it finds its
operands and results there. A worker does the handler's work; it is a function of the address of three words, the
frame, its part and the number of parts, so that several threads can share a call.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types as numba_types

from tilewright.kernels import inner
from tilewright.vectors import intrinsic, load_word

types: Any = numba_types  # called as signatures, which its annotations do not know
carray: Any = numba.carray  # type: ignore[attr-defined]

FRAME = "int64(int64)"
"""The signature of handlers and workers: an address -> 0."""

_ARGS, _RETS, _ATTRS = 40, 80, 120  # where the three lists begin in a frame
_LIST, _NAMED = 32, 40  # where a list's pointers stand; attributes have names before them
_DATA, _DIMS = 24, 40  # of a buffer
_STAGE, _EXECUTE = 32, 3
_METADATA = 1  # the extension in which the runtime asks for the version of the interface
_MOST_THREADS = 64


@inner()
def is_question(frame: Any) -> Any:
    """Whether the runtime only asks for the version of the interface (0.1 is the answer), or it is not yet time."""
    extension = load_word(frame + 8, 0)
    if extension != 0 and load_word(extension + 8, 0) & 0xFFFFFFFF == _METADATA:
        metadata = load_word(extension + 24, 0)
        _store_word(metadata + 24, 1 << 32)
        return True
    return load_word(frame + _STAGE, 0) & 0xFFFFFFFF != _EXECUTE


@inner()
def operand(frame: Any, i: Any) -> Any:
    """Address of operand ``i``'s description."""
    return load_word(load_word(frame + _ARGS + _LIST, 0), i)


@inner()
def result(frame: Any, i: Any) -> Any:
    """Address of result ``i``'s description."""
    return load_word(load_word(frame + _RETS + _LIST, 0), i)


@inner()
def operands(frame: Any) -> Any:
    """Number of operands."""
    return load_word(frame + _ARGS + 16, 0)


@inner()
def results(frame: Any) -> Any:
    """Number of results."""
    return load_word(frame + _RETS + 16, 0)


@inner()
def number(frame: Any, i: Any) -> Any:
    """Attribute ``i`` (in the order of the names), an int64."""
    return load_word(load_word(load_word(load_word(frame + _ATTRS + _NAMED, 0), i) + 8, 0), 0)


_STALE = np.frombuffer(b"a program of another process: its kernels' plans are not in this one\0", np.uint8)
_API, _CREATE_ERROR, _FAILED_PRECONDITION = 16, 48, 9


@inner()
def stale(frame: Any) -> Any:
    """What a handler answers to a call that another process compiled: XLA's error."""
    request = np.empty(4, np.int64)  # size of the struct, no extension, the message, the kind of error
    request[0], request[1], request[2], request[3] = 28, 0, np.int64(_STALE.ctypes.data), _FAILED_PRECONDITION
    create = load_word(load_word(frame + _API, 0) + _CREATE_ERROR, 0)
    error = _call_worker(create, np.int64(request.ctypes.data))
    request[0] = 0  # it is needed until here
    return error


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


def _pointer(kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def cast(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(types.CPointer(kind)))

        return types.CPointer(kind)(types.int64), generate

    return cast


to_floats, to_ints, to_longs = _pointer(types.float32), _pointer(types.int32), _pointer(types.int64)
to_bytes = _pointer(types.uint8)


@inner()
def floats(buffer: Any) -> Any:
    """A buffer as float32[elements]."""
    return carray(to_floats(data(buffer)), (size(buffer),))


@inner()
def ints(buffer: Any) -> Any:
    """A buffer as int32[elements]."""
    return carray(to_ints(data(buffer)), (size(buffer),))


@inner()
def _store_word(address: Any, value: Any) -> None:
    carray(to_longs(address), (1,))[0] = value


# Threads: each takes its part of a call. They live as long as the call; starting one takes some 20 us.

_create: Any = types.ExternalFunction("pthread_create", types.int32(types.int64, types.int64, types.int64, types.int64))
_join: Any = types.ExternalFunction("pthread_join", types.int32(types.int64, types.int64))


@inner()
def handle(frame: Any, worker: Any, parts: Any) -> Any:
    """Do a call in ``parts``, each in a thread of its own; ``worker`` is the address of the worker."""
    parts = min(max(parts, 1), _MOST_THREADS)
    shares = np.empty(4 * _MOST_THREADS, np.int64)  # of each: frame, part, parts, thread
    first, started = np.int64(shares.ctypes.data), 0
    for part in range(parts):
        at = 4 * part
        shares[at], shares[at + 1], shares[at + 2], shares[at + 3] = frame, part, parts, 0
    for part in range(1, parts):
        share = first + 32 * part
        if _create(share + 24, 0, worker, share) != 0:
            break
        started = part
    _call_worker(worker, first)
    for part in range(started + 1, parts):  # what no thread was left for
        _call_worker(worker, first + 32 * part)
    for part in range(1, started + 1):
        _join(shares[4 * part + 3], 0)
    return 0


@intrinsic  # type: ignore[untyped-decorator]
def _call_worker(typing: Any, worker: Any, share: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.PointerType(ir.FunctionType(word, [word])))
        return builder.call(function, [args[1]])

    return types.int64(types.int64, types.int64), generate


def published(name: str, worker: Any) -> Any:
    """A kernel's way to a worker's address: by a name in the process, so that kernels kept on disk find it again.

    The name must be known before a kernel that uses it is loaded.
    """
    binding.add_symbol(name, worker.address)

    @intrinsic  # type: ignore[untyped-decorator]
    def address(typing: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.ptrtoint(function, word)

        return types.int64(), generate

    return address


def register(name: str, handler: Any) -> str:
    """Make a handler known to XLA's CPU as the target ``name``, which comes back."""
    import jax  # whoever calls a kernel from inside jit has it

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    jax.ffi.register_ffi_target(name, new(handler.address, None, None), platform="cpu", api_version=1)
    return name
