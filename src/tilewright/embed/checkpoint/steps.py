"""The folder of a training: one folder per finished step, names that tell unfinished ones apart; errors of both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tilewright.embed.checkpoint.schema import CHECKSUMS, SCHEMA
from tilewright.errors import TilewrightError, UsageError

# One clear error for whatever stops a save or a restore: the disk, permissions, damaged files.

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
    text = str(error)
    reason, how = next(
        ((reason, how) for pattern, reason, how in _REASONS if re.search(pattern, text)),
        (_short(text) or type(error).__name__, "mend that"),
    )
    latest = [str(step) for step in sorted(finished)]
    listed = ", ".join(latest[-6:]) if len(latest) <= 6 else f"..., {', '.join(latest[-6:])}"
    kept = f"; finished steps are kept: {listed}" if latest else ""
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


def _short(text: str) -> str:
    """The first line of a message without the places in somebody's source that tensorstore adds."""
    line = re.sub(r"\s*\[(source locations|tensorstore_spec|domain)=.*", "", text.strip().split("\n")[0]).strip()
    return line if len(line) <= 200 else f"{line[:197]}..."


# The steps.

TABLES, EXTRA = "tables", "extra"
_ARRAYS = "_METADATA"
"""What Orbax writes beside arrays; of a step's folder alone it says nothing about what is in it."""


waiting: list[Callable[[Path], None]] = []
"""Called with a folder before its steps are listed, to wait for what this process writes there."""


def saved_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The finished steps in a folder, in order; none where there is no such folder yet.

    A save of this process that is under way there is waited for. A step that a killed process left half written is not
    among them. Steps of jax-tpu-embedding are.

    >>> saved_steps("/nowhere")
    []
    """
    for wait in waiting:
        wait(Path(os.path.abspath(folder)))
    return finished_steps(folder)


def finished_steps(folder: str | os.PathLike[str]) -> list[int]:
    """The finished steps in a folder, in order, without waiting for a save that is under way."""
    path = Path(folder)
    try:
        return sorted(int(entry.name) for entry in path.iterdir() if _finished(entry))
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        how = "name the folder that holds the steps"
        raise UsageError("a file, not a folder of checkpoints", where=str(path), how=how) from None
    except OSError as error:
        raise read_error(error, str(path), "") from None


def _finished(entry: Path) -> bool:
    """A step's folder gets its plain number when everything is written. Of others, arrays must be in it."""
    if not re.fullmatch(r"0|[1-9][0-9]*", entry.name):
        return False
    ours = (entry / CHECKSUMS).exists() or (entry / TABLES / SCHEMA).exists()
    return ours or any(next(entry.glob(pattern), None) for pattern in (_ARRAYS, f"*/{_ARRAYS}"))


def step_folder(folder: str | os.PathLike[str], step: int | None) -> Path:
    """Folder of a step (the last one).

    Raises :class:`UsageError` where there is none.
    """
    path, steps = Path(folder), saved_steps(folder)
    if not steps:
        exists = path.exists()
        problem = "no finished checkpoint in this folder" if exists else "no such folder"
        raise UsageError(problem, where=str(path), how="name the folder that embed.save was given")
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        few = ", ".join(map(str, steps[-6:]))
        raise UsageError(f"no finished step {step}", where=str(path), how=f"take one of {few}")
    return path / str(chosen)
