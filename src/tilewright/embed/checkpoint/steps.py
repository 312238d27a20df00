"""The folder of a training: one folder per finished step, and names that tell unfinished ones apart."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tilewright.embed.checkpoint import checksums, schema
from tilewright.embed.checkpoint.failure import read_error
from tilewright.errors import UsageError

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
    """The same as things stand, without waiting."""
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
    ours = (entry / checksums.FILE).exists() or (entry / TABLES / schema.FILE).exists()
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
