"""Ctrl-C and SIGTERM end a command at once and leave nothing half done.

The interpreter tells the main thread of a signal only between two of its own instructions, and a kernel or a compiler
may keep it for seconds; an exception in the middle of either can crash it. So another thread waits for the signals. It
takes away what is half written, gives the terminal its cursor back, and ends the process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilewright.files import undo_unfinished

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHOW_CURSOR = "\x1b[?25h"


def _noted(number: int, frame: object) -> None:
    """The main thread's part of a signal: none. That it is the handler tells the waiting thread to act."""


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Inside the block a signal ends the process with 130 or 143, unless a command has put a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _noted) for number in _SIGNALS}
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
            if number in _SIGNALS and signal.getsignal(number) is _noted:
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


def _alone_in_a_child() -> None:
    """A forked process has the handlers and the pipe, but not the thread: it ends as other processes do."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _noted:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_alone_in_a_child)
