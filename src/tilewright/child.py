"""Untrusted input is worked on in a process of its own: bounded in memory and time, and nothing is lost if it dies.

A question and an answer are bytes. The process starts with the first question and keeps what it has loaded for the
next; when it dies or is ended, the next question starts another.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

from tilewright.errors import CheckFailed, UnsupportedError

_HEAD = struct.Struct(">cQ")
"""A frame's kind and the length of what follows."""
_QUESTION, _NOTE, _ANSWER = b"q", b"n", b"a"
_PACKAGES = str(Path(__file__).resolve().parents[1])
_GIB = 1 << 30
Tell: TypeAlias = Callable[[bytes], None]


class ChildDied(CheckFailed):
    """The process died while it worked on a question."""


class ChildLate(UnsupportedError):
    """A question took longer than it may, and was stopped."""


def most_memory(gibibytes: int = 8) -> int:
    """Bytes that a process may take: so many GiB, or what the environment variable TILEWRIGHT_CHILD_GIB says."""
    word = os.environ.get("TILEWRIGHT_CHILD_GIB", "")
    return (int(word) if word.isdecimal() and int(word) else gibibytes) * _GIB


def half_of_memory() -> int:
    """Half of the bytes that are free, unless ``TILEWRIGHT_CHILD_GIB`` says otherwise; 8 GiB where nobody knows.

    >>> half_of_memory() >= 1 << 30
    True
    """
    with suppress(OSError, StopIteration, ValueError), open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
        return most_memory(max(1, free // 2 // _GIB))
    return most_memory()


class Child:
    """A process that answers questions: ``home`` is the module whose ``main`` it runs.

    It is asked one question at a time, by whatever thread. It is a session of its own, so Ctrl-C in the terminal is the
    asker's; when the asker is gone, so is the process.
    """

    def __init__(self, home: str, environment: Mapping[str, str] | None = None) -> None:
        self.home, self.environment = home, environment or {}
        self._owner, self._turn = os.getpid(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._closed = False

    def ask(self, question: bytes, seconds: float, told: Tell | None = None) -> bytes:
        """The answer. ``seconds``: how long it, and each note before it, may take; ``told`` is called with each note.

        Raises :class:`ChildLate`, or :class:`ChildDied` with the last line that the process wrote to stderr.
        """
        if self._owner != os.getpid():  # after a fork, process and lock are the other's
            self._owner, self._turn, self._process, self._stderr = os.getpid(), threading.Lock(), None, None
        if not self._turn.acquire(timeout=seconds):
            raise ChildLate("still busy with what was asked before")
        try:
            if self._closed:
                raise ChildLate("it is ending")
            return self._exchange(self._started(), question, seconds, told)
        finally:
            self._turn.release()

    @property
    def pid(self) -> int | None:
        """The number of the process, None where there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process, whatever it is doing; nothing is answered any more."""
        self._closed = True
        if self._owner != os.getpid():
            return
        if (process := self._process) is not None:
            kill_group(process)
        with self._turn:
            self._stop()

    def _exchange(self, process: subprocess.Popen[bytes], question: bytes, seconds: float, told: Tell | None) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            kill_group(process)

        def watched() -> threading.Timer:
            timer = threading.Timer(seconds, end)
            timer.daemon = True
            timer.start()
            return timer

        watch = watched()
        try:
            with suppress(BrokenPipeError):  # it died: what it said is read below
                _send(process.stdin, _QUESTION, question)
            while (frame := _receive(process.stdout)) is not None:
                if frame[0] == _ANSWER:
                    return frame[1]
                watch.cancel()
                if told is not None:
                    told(frame[1])
                watch = watched()
        except BaseException:  # an interrupt in mid-answer: the next question must not read the rest of it
            self._stop()
            raise
        finally:
            watch.cancel()
        raise self._ended(process, seconds if late.is_set() else 0)

    def _ended(self, process: subprocess.Popen[bytes], seconds: float) -> ChildLate | ChildDied:
        """The error for a process that gave no answer."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)  # that it has closed its end is seen before that it has ended
        code, said = process.returncode, self._last_error_line()
        self._stop()
        if seconds:
            return ChildLate(f"stopped: this takes longer than {seconds:.0f} s")
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        return ChildDied(f"the process that worked on this has died ({how}{': ' if said else ''}{said})")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - what it prints, as long as it lives
            code = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from {self.home} import main; main()"
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        return self._process

    def _last_error_line(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - 4096))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def _stop(self) -> None:
        process, self._process = self._process, None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if process is None:
            return
        kill_group(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what could not be written to a dead process
                    pipe.close()


def kill_group(process: Any) -> None:
    """Kill a process that leads a session of its own, and those that it forked."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _send(stream: IO[bytes], kind: bytes, payload: bytes) -> None:
    stream.write(_HEAD.pack(kind, len(payload)))
    stream.write(payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next frame; None where the stream ends first."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, length = _HEAD.unpack(head)
    payload = stream.read(length)
    return (kind, payload) if len(payload) == length else None


# -- inside the process -------------------------------------------------------------------------------------------


def bound(memory: int, seconds: int = 0) -> None:
    """Limit what this process may take: bytes that it writes to, and seconds of processor time if any are given."""
    with suppress(ImportError, ValueError, OSError):  # a system that has no such limits
        import resource

        # Threads reserve addresses that they never use, the more the more processors there are: those count less.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (4 * memory, 4 * memory))
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        if seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def serve(answer: Callable[[bytes, Tell], bytes], *, forks: bool = False) -> None:
    """Answer questions until the asker is gone by ``answer(question, note)``, whose ``note`` sends bytes early.

    ``forks``: the process forks, so no other thread may run in it; then it is only between questions that it notices.
    """
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not print into the answers
    for question in _questions() if forks else _watched():
        _send(answers, _ANSWER, answer(question, lambda note: _send(answers, _NOTE, note)))


def _questions() -> Iterator[bytes]:
    while (frame := _receive(sys.stdin.buffer)) is not None:
        yield frame[1]


def _watched() -> Iterator[bytes]:
    """The questions, read by a thread that ends the process when the asker is gone, whatever the process is doing."""
    from queue import SimpleQueue

    waiting: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for question in _questions():
            waiting.put(question)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield waiting.get()
