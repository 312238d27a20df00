"""The process that turns binary programs into text, so that a damaged file kills a copy of it and nothing else.

A question is one byte of kind ("m" bytecode, "h" HLO proto) and the file; an answer one byte ("t" text, "e" refused,
"d" died, "u" no jaxlib) and a text. Every question is served by a fork, which has everything imported already, has its
own limits on memory and time, and may crash.
"""

from __future__ import annotations

import os
import signal

from tilewright.child import bound, serve
from tilewright.errors import TilewrightError
from tilewright.hlo import ir

_MEMORY = 2 << 30


def seconds(size: int) -> int:
    """Processor time that reading ``size`` bytes may take; real files take a tenth of it."""
    return 4 + 2 * (size >> 20)


def main() -> None:
    """Serve questions until who asks is gone."""
    missing = ""
    try:
        ir.plain_context()
    except TilewrightError as error:
        missing = str(error)

    def answer(question: bytes) -> bytes:
        if missing:
            return b"u" + missing.encode()
        return b"".join(_served(question[:1], question[1:]))

    serve(lambda question, _: answer(question), forks=True)


def _served(kind: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """The answer of a fork, or how it died."""
    if not hasattr(os, "fork"):
        return _convert(kind, payload)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _fork_main(writer, kind, payload)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code or not answer:
        return b"d", _died(code, len(payload)).encode()
    return answer[:1], answer[1:]


def _fork_main(writer: int, kind: bytes, payload: bytes) -> None:
    code = 1
    try:
        bound(_MEMORY + 64 * len(payload), seconds(len(payload)))
        answer, text = _convert(kind, payload)
        with os.fdopen(writer, "wb") as stream:
            stream.write(answer + text)
        code = 0
    finally:
        os._exit(code)  # no clean-up in a copy: it belongs to the process this was forked from


def _convert(kind: bytes, payload: bytes) -> tuple[bytes, bytes]:
    try:
        text = ir.bytecode_text(payload) if kind == b"m" else ir.proto_text(payload)
    except MemoryError:
        return b"e", b"it asks for more memory than there is"
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "error:" in line), lines[-1] if lines else type(error).__name__)
        return b"e", reason.encode()
    return b"t", text.encode()


def _died(code: int, size: int) -> str:
    if code == -signal.SIGXCPU:
        return f"reading it takes more than {seconds(size)} s"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"XLA's parser crashes on it ({name})"
