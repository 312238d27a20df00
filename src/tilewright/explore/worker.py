"""Work on input that nobody vouches for, in a process of its own: bounded in memory, and ended when time is up.

A question is a line of JSON, and so is its answer. The process keeps what it has read (a program, a machine that was
stepped) for the next question; when it is ended or dies, the next question starts another.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, BinaryIO

MEMORY = 8 << 30
_HOMES = {
    "layouts": ("layout", "element", "place", "compare"),
    "programs": ("program", "graph", "operation"),
    "matrix": ("matrix",),
    "plans": ("plan",),
}
_HOME_OF = {question: home for home, questions in _HOMES.items() for question in questions}


class Worker:
    """The process, seen from the server: started by the first question, one question at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, question: str, values: Mapping[str, Any], path: str | None, seconds: float) -> str:
        """The answer as JSON text: ``{"value": ...}`` or ``{"error": {"what": ..., ...}}``."""
        if not self._turn.acquire(timeout=seconds):
            return _error("still busy with what was asked before")
        try:
            if self._closed:
                return _error("the explorer is ending")
            process = self._started()
            late = threading.Event()

            def end() -> None:
                late.set()
                process.kill()

            watch = threading.Timer(seconds, end)
            watch.start()
            try:
                answer = self._asked(process, {"ask": question, "values": dict(values), "path": path})
            finally:
                watch.cancel()
            if answer.endswith(b"\n"):
                return answer.decode()
            self._stop()
            if late.is_set():
                return _error(f"stopped: this takes longer than {seconds:.0f} s")
            return _error("the process that worked on this has died; nothing else was lost")
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process, whatever it is doing; nothing is answered any more."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._turn:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            code = "from tilewright.explore.worker import main; main()"
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C in the terminal is the server's, which then ends its workers.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process

    def _asked(self, process: subprocess.Popen[bytes], question: Mapping[str, Any]) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            return process.stdout.readline()
        except OSError:
            return b""

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be written to a dead process
                    pipe.close()


def _error(what: str) -> str:
    return json.dumps({"error": {"what": what}})


# -- inside the process -------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions from standard input until it ends."""
    with contextlib.suppress(ValueError, OSError):  # a system that has no such limits
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(2000)
    answers: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not print into the answers
    for line in sys.stdin.buffer:
        answers.write(answer(json.loads(line)).encode() + b"\n")
        answers.flush()


def answer(question: Mapping[str, Any]) -> str:
    """The answer to one question, as JSON text on one line; whatever goes wrong is an answer, too."""
    from tilewright.errors import ParseError, TilewrightError

    name = question["ask"]
    try:
        home = import_module(f"tilewright.explore.{_HOME_OF[name]}")
        work: Callable[..., Any] = getattr(home, name)
        value = work(Asked(question["values"], question["path"]))
        return json.dumps({"value": value}, allow_nan=False)
    except ParseError as error:
        return json.dumps({"error": {"what": str(error), "caret": error.caret(80)}})
    except TilewrightError as error:
        return json.dumps({"error": {"what": str(error)}})
    except MemoryError:
        return _error(f"this needs more than {MEMORY >> 30} GiB of memory")
    except RecursionError:
        return _error("nested too deeply")
    except Exception as error:
        return _error(f"a fault in tilewright itself, {type(error).__name__}: {' '.join(str(error).split())[:300]}")


def known_target(name: str) -> str:
    """The name, if it is a chip's that comes with the package (with a rule behind it or not), or ""."""
    from tilewright.errors import UsageError
    from tilewright.targets import target_names

    if name and name.partition(":")[0] not in target_names():
        raise UsageError(f"no target called {name[:60]!r}", how=f"known targets: {', '.join(target_names())}")
    return name


class Asked:
    """The values of a question, checked as they are taken: what is missing or of another kind is the given default."""

    def __init__(self, values: Mapping[str, Any], path: str | None = None) -> None:
        self.values, self.path = values, path

    def text(self, name: str, most: int = 20_000) -> str:
        """A text; UsageError where it is longer than ``most``."""
        from tilewright.errors import UsageError

        value = self.values.get(name, "")
        if not isinstance(value, str):
            return ""
        if len(value) > most:
            raise UsageError(f"longer than {most:,} characters", where=name)
        return value

    def target(self, default: str = "") -> str:
        """The name of a chip that is known here; never a file that describes one. UsageError for another."""
        return known_target(self.text("target", 100) or default)

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 31) -> int:
        """A whole number, brought between ``least`` and ``most``."""
        value = self.values.get(name, default)
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 53
        return max(least, min(most, int(value) if whole else default))

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers of a list, or of a text as ``2, 3``; None where there is nothing."""
        from tilewright.errors import UsageError

        value = self.values.get(name)
        if value in (None, "", []):
            return None
        words = value.strip(" ()[],").split(",") if isinstance(value, str) else value
        try:
            return tuple(int(str(word).strip()) for word in words[:4096])
        except (TypeError, ValueError):
            raise UsageError(f"not whole numbers such as 2,3: {str(value)[:60]!r}", where=name) from None

    def texts(self, name: str) -> list[str]:
        """The texts of a list."""
        value = self.values.get(name)
        return [str(word)[:1000] for word in value[:64]] if isinstance(value, list) else []
