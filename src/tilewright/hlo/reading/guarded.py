"""Binary programs to text in another process: a few flipped bytes abort jaxlib, and would take the caller along.

One process is started on the first use and kept; see ``_convert_child.py`` for what it does.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo.reading.convert_child import FRAME, seconds

_KINDS = {"mlir": b"m", "hlo": b"h"}
_FORMS = {"mlir": "MLIR bytecode", "hlo": "HLO proto"}
_PACKAGES = str(Path(__file__).resolve().parents[3])
_SERVE = "from tilewright.hlo.reading.convert_child import main; main()"
_START = f"import sys; sys.path.insert(0, {_PACKAGES!r}); {_SERVE}"
_PATIENCE = 10  # the child's own limit counts processor time; this many times that ends what sleeps
_QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


def to_text(form: str, payload: bytes, where: str = "") -> str:
    """The text of a ``mlir`` (bytecode, portable artifact) or ``hlo`` (HloModuleProto) program.

    Raises UsageError for a program that jaxlib refuses or dies of, UnsupportedError where jaxlib is missing.
    """
    kind, answer = _child().ask(_KINDS[form], payload)
    if kind == b"t":
        return answer.decode("utf-8", errors="replace")
    reason = answer.decode("utf-8", errors="replace")
    if kind == b"u":
        raise UnsupportedError(reason, where=where)
    raise UsageError(f"a damaged {_FORMS[form]}, or one of another version: {reason}", where=where)


class _Child:
    """The process, started when it is first asked and again after it died."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  what the parsers print, as long as the process lives

    def ask(self, kind: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """One request and its answer; kind ``d`` if there was none."""
        with self.lock:
            process, wait = self._started(), _PATIENCE * seconds(len(payload))
            assert process.stdin is not None
            try:
                process.stdin.write(FRAME.pack(kind, len(payload)))
                process.stdin.write(payload)
                process.stdin.flush()
                deadline = time.monotonic() + wait
                answer, length = FRAME.unpack(self._read(process, FRAME.size, deadline))
                return answer, self._read(process, length, deadline)
            except (BrokenPipeError, EOFError):
                self.end()
                return b"d", f"the process that reads it ended: {self._last_words()}".encode()
            except TimeoutError:
                self.end()
                return b"d", f"no answer within {wait} s".encode()
            except BaseException:  # an interrupt in mid-answer: the next request must not read the rest of it
                self.end()
                raise

    def end(self) -> None:
        """End the process and what it forked."""
        process, self.process = self.process, None
        if process is None or os.getpid() != self.owner:
            return
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                env=os.environ | _QUIET,
                start_new_session=True,
            )
        return self.process

    def _read(self, process: subprocess.Popen[bytes], length: int, deadline: float) -> bytes:
        assert process.stdout is not None
        parts: list[bytes] = []
        while length:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(process.stdout.fileno(), min(length, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


_CHILD = _Child()
atexit.register(lambda: _CHILD.end())


def _child() -> _Child:
    global _CHILD
    if _CHILD.owner != os.getpid():  # after a fork, the pipes belong to the parent
        _CHILD = _Child()
    return _CHILD
