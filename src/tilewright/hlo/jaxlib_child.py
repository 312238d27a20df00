"""The process that asks jaxlib's parsers and interpreter, so that what ends them ends a copy of it and nothing else.

A question is one byte of kind ("m" bytecode, "h" HLO proto, "k" a Pallas kernel: to text; "v" a StableHLO text and
arrays: its values; "p" a StableHLO text with shardings: what one device does, "y" the same by Shardy's own passes, "s"
HLO text: as StableHLO) and a payload; an answer one byte ("t" what was asked for, "e" refused, "d" died, "u" no jaxlib)
and the rest. The process starts with the first question and is kept; threads that ask at once have one each. Every
question is served by a fork, which has everything imported already, has its own limits on memory and time, and may
crash.
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.child import Child, ChildDied, ChildLate, bound, serve
from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.extras import need
from tilewright.hlo import ir, xla_partitioner

if TYPE_CHECKING:
    import numpy as np

_MEMORY = 2 << 30
_DEVICE = 40 << 20  # for the threads of one virtual device: jaxlib 0.12 starts four for each, with a stack of 8 MB
_PATIENCE = 10  # the limit of a question counts processor time; this many times that ends what sleeps
_TEXTS = {b"m": "bytecode_text", b"h": "proto_text", b"k": "kernel_text"}
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "1", "JAX_PLATFORMS": "cpu"}
_QUIET |= {"MALLOC_ARENA_MAX": "2"}  # a virtual device has threads, and each would reserve addresses of its own
CHILD = Child("tilewright.hlo.jaxlib_child", _QUIET)
atexit.register(CHILD.close)
_IDLE: queue.LifoQueue[Child] = queue.LifoQueue()
"""Processes that work on nothing: threads that ask at once each have one of their own."""
_IDLE.put(CHILD)


class Refused(UnsupportedError):
    """jaxlib refused what it was given, or died of it."""


def ask(kind: bytes, payload: bytes, seconds: int) -> bytes:
    """What jaxlib makes of ``payload`` in so many seconds of processor time.

    Raises :class:`Refused`, UnsupportedError where there is no jaxlib.
    """
    need("jax", "jaxlib", what="reading binary programs")
    question = kind + seconds.to_bytes(4, "big") + payload
    try:
        child = _IDLE.get_nowait()
    except queue.Empty:
        child = Child("tilewright.hlo.jaxlib_child", _QUIET)
        atexit.register(child.close)
    try:
        answer = child.ask(question, _PATIENCE * seconds)
    except (ChildDied, ChildLate) as error:
        raise Refused(error.what) from None
    finally:
        _IDLE.put(child)
    if answer[:1] == b"t":
        return answer[1:]
    reason = answer[1:].decode("utf-8", errors="replace")
    raise UnsupportedError(reason) if answer[:1] == b"u" else Refused(reason)


def read_arrays(raw: bytes, types: Sequence[tuple[Sequence[int], np.dtype[Any]]]) -> list[np.ndarray[Any, Any]]:
    """The arrays of these shapes and element types that stand one behind the other in an answer's bytes."""
    import numpy as np

    results, at = [], 0
    for shape, dtype in types:
        part = raw[at : at + int(np.prod(shape, dtype=object)) * dtype.itemsize]
        at += len(part)
        try:
            results.append(np.frombuffer(part, dtype).reshape(shape))
        except ValueError:
            raise UnsupportedError("the program gives other arrays than it says") from None
    return results


_DOES = {b"v": ir.interpreted, b"p": xla_partitioner.partitioned, b"s": xla_partitioner.stablehlo}
_DOES |= {b"y": xla_partitioner.by_shardy}

# -- inside the process -------------------------------------------------------------------------------------------


def main() -> None:
    missing = ""
    try:
        ir.context()
    except TilewrightError as error:
        missing = str(error)

    def answer(question: bytes) -> bytes:
        if missing:
            return b"u" + missing.encode()
        if question[:1] in (b"p", b"s"):
            xla_partitioner.parts()  # here, so that no copy loads them anew
        return _served(question[:1], question[5:], int.from_bytes(question[1:5], "big"))

    serve(lambda question, _: answer(question), forks=True)


def _served(kind: bytes, payload: bytes, seconds: int) -> bytes:
    """The answer of a fork, or how it died."""
    if not hasattr(os, "fork"):
        return _answer(kind, payload)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            devices = int(payload[:6].partition(b"\n")[0]) if kind == b"p" else 0
            bound(_MEMORY + 64 * len(payload) + devices * _DEVICE, seconds)
            with os.fdopen(writer, "wb") as stream:
                stream.write(_answer(kind, payload))
            os._exit(0)  # no clean-up in a copy: it belongs to the process this was forked from
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if answer and not code:
        return answer
    if code == -signal.SIGXCPU:
        return f"dreading it takes more than {seconds} s".encode()
    return f"djaxlib crashes on it ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})".encode()


def _answer(kind: bytes, payload: bytes) -> bytes:
    try:
        return b"t" + (_DOES[kind](payload) if kind in _DOES else getattr(ir, _TEXTS[kind])(payload).encode())
    except MemoryError:
        return b"eit asks for more memory than there is"
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return b"e" + next((line for line in lines if "error:" in line), lines[-1]).encode()
