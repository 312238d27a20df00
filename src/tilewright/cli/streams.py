"""The standard streams and the signals of a command: stdin, progress on stderr, Ctrl-C and SIGTERM.

``-`` is stdin. Streams are made usable whatever they were started with: closed, not UTF-8, or of no width.

The interpreter tells the main thread of a signal only between two of its own instructions, and a kernel or a compiler
may keep it for seconds; an exception in the middle of either can crash it. So another thread waits for the signals. It
removes what is half written, gives the terminal its cursor back, and ends the process.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
import threading
import time
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tilewright import reading
from tilewright.errors import UsageError
from tilewright.files import undo_unfinished
from tilewright.render import seconds_text
from tilewright.render.delivery import remark

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    import numpy as np

#: Error numbers of a write to a device that is full or gone.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_IN_ASCII = {"×": "x", "→": "->", "µ": "u", "–": "-", "…": "...", "·": ".", "─": "-", "│": "|", "≥": ">=", "≤": "<="}

#: Seconds between two lines of progress where stderr is no terminal.
EVERY = 10.0
#: Seconds after which a pace is known.
PACE_AFTER = 2.0
_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHOW_CURSOR = "\x1b[?25h"

MOST_DATA = 1 << 40
"""Data is no text: it is as large as the array that it is unpacked to, and only memory bounds it."""


def read_bytes(path: str, most: int | None = None) -> bytes:
    """The bytes of a file (a gzip or xz file's unpacked), or of stdin for ``-``: at most a text's, or ``most``."""
    if path == "-":
        return reading.unpacked(reading.read_stream(sys.stdin.buffer, "stdin", most), "stdin", most)
    return reading.read_bytes(path, most)


def read_text(path: str) -> str:
    """The UTF-8 text of a file, or of stdin for ``-``."""
    return reading.text_of(read_bytes(path), path)


def read_array(path: str) -> np.ndarray[Any, Any]:
    """The array of an .npy file, or of stdin for ``-``; never a pickle, never an archive."""
    import numpy as np

    try:
        if path == "-":
            return np.lib.format.read_array(io.BytesIO(read_bytes(path, MOST_DATA)), allow_pickle=False)
        with reading.open_bytes(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=path) from None
    except (ValueError, EOFError, MemoryError, OverflowError, TypeError, SyntaxError, tokenize.TokenError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UsageError(f"not a whole .npy file: {reason}", where=path, how="write it with numpy.save") from None


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The array as an .npy file; never a pickle."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def done_text(done: float, total: float | None) -> str:
    """``12/96``, or ``12`` where nobody knows of how many, or nothing before anything is done."""
    return f"{done:,.0f}/{total:,.0f}" if total else f"{done:,.0f}" if done else ""


class Pace:
    """Remarks once, from the pace behind its first part, how long something will take where that is more than ten
    seconds. The first part says nothing of the others: it loads and compiles."""

    def __init__(self, what: str) -> None:
        self.what, self.begun, self.told = what, time.monotonic(), False
        self.first: tuple[float, float] | None = None

    def __call__(self, done: float, total: float | None) -> None:
        now = time.monotonic()
        if self.first is None and done > 0:
            self.first = done, now
        parts, at = self.first or (0, now)
        if self.told or not total or not parts < done < total or now - at < PACE_AFTER:
            return
        self.told = True
        if (whole := at - self.begun + (now - at) * (total - parts) / (done - parts)) > EVERY:
            remark(
                f"{self.what}: about {seconds_text(whole)} in all, at the pace of its first {done_text(done, total)}"
            )


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Any]:
    """A rich progress bar on stderr; yields ``advance(done, total, note="")``. Elsewhere a line every ten seconds.

    ``total``: how much there will be, where that is known from the beginning.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    ended, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(EVERY):
            words = bar.tasks[0].description, bar.tasks[0].fields["count"], f"({time.monotonic() - begun:.0f} s)"
            remark(f"still at {' '.join(filter(None, words))}")

    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total or None, count=done_text(0, total))
        pace = Pace(description)
        if not console.is_terminal:
            threading.Thread(target=tell, daemon=True).start()

        def advance(done: int, total: int | None = None, note: str = "") -> None:
            of = total or bar.tasks[task].total
            pace(done, of)
            bar.update(task, completed=done, total=of, description=note or description, count=done_text(done, of))

        try:
            yield advance
        finally:
            ended.set()


def tell_of_compiling() -> None:
    """On a terminal, remark once that kernels are compiled, which later starts find in the cache."""
    from tilewright.kernels.cache import before_compiling

    def say() -> None:
        if sys.stderr.isatty():
            remark("compiling kernels, once; later runs find them (`tilewright warm` compiles all beforehand)")

    before_compiling[:] = [say]


def usable_streams() -> None:
    """Open closed streams on the null device, replace letters that an encoding lacks, take 0 columns as 80."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    codecs.register_error("tilewright", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
        if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="tilewright")
    if os.environ.get("COLUMNS", "1").strip().lstrip("0") == "":
        del os.environ["COLUMNS"]


def quiet_threads() -> None:
    """Suppress what a storage library's threads print of a save that failed: the command has one line for it.

    They tell its event loop, which is closed by then, and each prints a traceback of that.
    """
    tell = sys.unraisablehook

    def told(unraisable: UnraisableHookArgs) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            tell(unraisable)

    sys.unraisablehook = told


def abandon_stdout() -> None:
    """Send what is still buffered to the null device, so that writing it raises nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _handled_by_thread(number: int, frame: object) -> None:
    """Do nothing: that this is the handler tells the waiting thread to act."""


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Inside the block a signal ends the process with 130 or 143, unless a command has put a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _handled_by_thread) for number in _SIGNALS}
    waiting = threading.Thread(target=_wait, args=(reader,), name="tilewright-signals", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waker)
        os.close(writer)
        waiting.join()
        os.close(reader)


def _wait(reader: int) -> None:
    """Act on each signal that comes, until the pipe is closed."""
    while numbers := os.read(reader, 16):
        for number in numbers:
            if number in _SIGNALS and signal.getsignal(number) is _handled_by_thread:
                _leave(number)


def _leave(number: int) -> None:
    undo_unfinished()
    with suppress(OSError):
        words, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # no other thread may hide the cursor again
            os.dup2(nowhere, stream)
        cursor = _SHOW_CURSOR if os.isatty(words) else ""
        os.write(words, f"{cursor}\ntilewright: {_SIGNALS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def _reset_in_child() -> None:
    """Give a forked process the usual handlers: it has ours and the pipe, but not the thread."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _handled_by_thread:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_reset_in_child)
