"""Files are written whole or not at all, and what was begun is undone where the process is told to end."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import UsageError

_unfinished: list[Path] = []
"""Files that are half written and folders that are still empty or needed for a while only."""
_scratch: set[Path] = set()
"""Of the folders, those that go with all in them."""
_changing = threading.Lock()
"""Held while one of them comes or goes, so that :func:`undo_unfinished` misses none."""


@contextmanager
def writing_whole(path: Path | str, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file beside its place, moved there when the block ends well: a reader sees the old one or the new one.

    ``durable``: it is on disk before it is moved, so that a machine that stops leaves one of the two as well. Raises
    UsageError where the file cannot be written; whatever ends the block, nothing half written is left.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with _changing:
            file = open(partial, "w+b")  # noqa: SIM115 - closed below; the lock is held for the opening alone
            _unfinished.append(partial)
        with file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        with _changing:
            partial.replace(target)
            _forget(partial)
    except BaseException as error:
        with _changing:
            partial.unlink(missing_ok=True)
            _forget(partial)
        if isinstance(error, OSError):
            raise UsageError(f"cannot write it: {error.strerror or error}", where=str(path)) from None
        raise


def write_whole(path: Path | str, data: str | bytes) -> None:
    """Write a file as :func:`writing_whole` does. Text is written as UTF-8."""
    with writing_whole(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def making_folder(path: Path | str) -> Iterator[Path]:
    """The folder, made if need be and shown to be writable; one that was made goes again if the block leaves it empty.

    Raises UsageError where it cannot be made or written to.
    """
    folder = Path(path)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        try:
            with _changing:
                _unfinished.extend(reversed(made))
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / ".tilewright-probe"
                probe.touch()
                probe.unlink()
        except OSError as error:
            problem = f"cannot write into it: {error.strerror or error}"
            raise UsageError(problem, where=str(folder), how="give another folder") from None
        yield folder
    finally:
        with _changing:
            for place in made:
                _forget(place)
                with suppress(OSError):
                    place.rmdir()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of the system's temporary place, gone with all in it when the block ends."""
    import tempfile

    with _changing:
        folder = Path(tempfile.mkdtemp(prefix="tilewright-"))
        _unfinished.append(folder)
        _scratch.add(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with _changing:
            _forget(folder)


def undo_unfinished() -> None:
    """Take away all that is unfinished. Only for who ends the process next: nothing can be begun after it."""
    _changing.acquire(timeout=2)
    for path in reversed(_unfinished):
        with suppress(OSError):
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif path in _scratch:
                shutil.rmtree(path)
            else:
                path.rmdir()


def _forget(path: Path) -> None:
    with suppress(ValueError):
        _unfinished.remove(path)
    _scratch.discard(path)
