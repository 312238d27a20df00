"""One clear error for whatever stops a save or a restore: the disk, permissions, damaged files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.errors import TilewrightError, UsageError

_REASONS = (
    (r"interpreter shutdown", "the program ended before it was written", "call wait() on what save returns"),
    (r"No space left|ENOSPC|RESOURCE_EXHAUSTED", "the disk is full", "make room"),
    (r"Disk quota exceeded", "the disk quota is used up", "make room"),
    (r"File too large", "a file is larger than this process may write", "raise the limit on file sizes (ulimit -f)"),
    (r"Permission denied|PERMISSION_DENIED|not permitted", "no permission", "give this user the right to it"),
    (r"Read-only file system", "the file system is read-only", "take another folder"),
    (r"Directory not empty", "somebody else wrote that step meanwhile", "look who"),
    (r"Not a directory|File exists", "part of the path is a file, not a folder", "take another folder"),
    (r"Unsupported type", "`extra` holds something else than arrays and numbers", "leave it out"),
)


def write_error(error: BaseException, where: str, finished: Iterable[int]) -> TilewrightError:
    """What a failed save says: why, where, what to do, and that no finished step is lost."""
    reason, how = _reason(error)
    kept = f"; finished steps are kept: {_listed(finished)}" if (finished := list(finished)) else ""
    return UsageError(f"the checkpoint was not saved: {reason}{kept}", where=where, how=f"{how} and save again")


def read_error(error: BaseException, where: str, how: str) -> TilewrightError:
    """What a failed restore says: damaged or unreadable, and what to restore instead."""
    if isinstance(error, TilewrightError):
        return error
    text = _short(str(error))
    if re.search(r"Permission denied|PERMISSION_DENIED", text):
        return UsageError("no permission to read it", where=where, how="give this user the right to it")
    problem = (
        "a file of the checkpoint is missing"
        if re.search(r"NOT_FOUND|No such file", text)
        else "the checkpoint is damaged"
    )
    return UsageError(f"{problem} ({text})", where=where, how=how)


def _reason(error: BaseException) -> tuple[str, str]:
    text = str(error)
    for pattern, reason, how in _REASONS:
        if re.search(pattern, text):
            return reason, how
    return _short(text) or type(error).__name__, "mend that"


def _short(text: str) -> str:
    """The first line of a message without the places in somebody's source that tensorstore adds."""
    line = re.sub(r"\s*\[(source locations|tensorstore_spec|domain)=.*", "", text.strip().split("\n")[0]).strip()
    return line if len(line) <= 200 else f"{line[:197]}..."


def _listed(steps: Iterable[int]) -> str:
    """The latest few of many steps."""
    ordered = sorted(steps)
    shown = ", ".join(map(str, ordered[-6:]))
    return shown if len(ordered) <= 6 else f"..., {shown}"
