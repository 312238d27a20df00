"""Streams as commands need them, whatever they were started with: closed, not UTF-8, or of no width."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: What a write fails with where there is no room, or no device any more.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_IN_ASCII = {"×": "x", "→": "->", "µ": "u", "–": "-", "…": "...", "·": ".", "─": "-", "│": "|", "≥": ">=", "≤": "<="}


def usable_streams() -> None:
    """Closed ones lead nowhere; a letter that an encoding lacks is written as others; no columns means the usual 80."""
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
    """Leave out what a storage library's threads print of a save that failed: the command has one line for it.

    They tell its event loop, which is closed by then, and each prints a traceback of that.
    """
    tell = sys.unraisablehook

    def told(unraisable: UnraisableHookArgs) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            tell(unraisable)

    sys.unraisablehook = told


def abandon_stdout() -> None:
    """Let nothing that is still buffered complain at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end
