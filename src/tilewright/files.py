"""Files are written whole or not at all; what is unfinished when the process is told to end is removed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import UsageError

_DESCRIPTOR = re.compile(r"/dev/(?:std(?:in|out|err)|fd/\d+)|/proc/self/fd/\d+")
_unfinished: dict[Path, bool] = {}
"""Half-written files, new folders that are still empty, and (True) temporary folders, removed with all in them."""
_changing = threading.Lock()
"""Held while an entry is added or removed, so that :func:`undo_unfinished` misses none."""


@contextmanager
def writing_whole(path: Path | str, *, durable: bool = False) -> Iterator[BinaryIO]:
    """A file written beside ``path`` and moved there when the block ends well: a reader sees the old or the new one.

    Two writers of one name end with the whole file of one of them. The new file has the mode of the one it replaces. A
    symbolic link is replaced, never written through: the file it names stays as it is. A pipe or a device
    (``/dev/stdout`` too) is written to, after all was made. ``durable``: it is on disk before it is moved, so that a
    machine that stops leaves one of the two as well. Raises UsageError where the file cannot be written; whatever ends
    the block, nothing half written is left.
    """
    target = Path(path)
    try:
        if _is_stream(target):
            with _streaming(target) as file:
                yield file
        else:
            with _replacing(target, durable) as file:
                yield file
    except OSError as error:
        raise UsageError(f"cannot write it: {error.strerror or error}", where=str(path)) from None


def names_open_file(path: Path | str) -> bool:
    """Whether a name stands for a file that this process has open, as ``/dev/stdin`` and a shell's ``<(...)`` do."""
    return bool(_DESCRIPTOR.fullmatch(str(path)))


def _is_stream(path: Path) -> bool:
    if names_open_file(path):
        return True
    try:
        kind = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISLNK(kind) or stat.S_ISDIR(kind))


@contextmanager
def _streaming(path: Path) -> Iterator[BinaryIO]:
    """A temporary file whose content is copied to a pipe or a device when the block ends."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        yield file
        file.seek(0)
        with open(path, "wb") as place:
            shutil.copyfileobj(file, place)


@contextmanager
def _replacing(target: Path, durable: bool) -> Iterator[BinaryIO]:
    # A name of its own, that nobody can have put a link at: two writers share no file, and none is written through.
    partial = target.with_name(f".tilewright-{secrets.token_hex(8)}.partial")
    try:
        with _changing:
            file = os.fdopen(_new_file(partial, target), "w+b")
            _unfinished[partial] = False
        with file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        with _changing:
            partial.replace(target)
            _unfinished.pop(partial, None)
    except BaseException:
        with _changing:
            with suppress(OSError):  # also where nothing could be made: a read-only disk refuses this too
                partial.unlink(missing_ok=True)
            _unfinished.pop(partial, None)
        raise


def _new_file(partial: Path, target: Path) -> int:
    """A new file, open, with the mode of the file that it will replace."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        kept = os.lstat(target).st_mode
    except OSError:
        kept = 0
    if not stat.S_ISREG(kept):
        return os.open(partial, flags, 0o666)
    descriptor = os.open(partial, flags, stat.S_IMODE(kept) & 0o777)
    with suppress(OSError):  # a file system without modes
        os.chmod(partial, stat.S_IMODE(kept) & 0o777)
    return descriptor


def write_whole(path: Path | str, data: str | bytes) -> None:
    """Write a file as :func:`writing_whole` does. Text is written as UTF-8."""
    with writing_whole(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def making_folder(path: Path | str) -> Iterator[Path]:
    """The folder, made if need be and tried to be writable; one that was made is removed if the block leaves it empty.

    Raises UsageError where it cannot be made or written to.
    """
    folder = Path(path)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        try:
            with _changing:
                _unfinished.update(dict.fromkeys(reversed(made), False))
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
                _unfinished.pop(place, None)
                with suppress(OSError):
                    place.rmdir()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the system's temporary folder, removed with all that is in it when the block ends."""
    import tempfile

    with _changing:
        folder = Path(tempfile.mkdtemp(prefix="tilewright-"))
        _unfinished[folder] = True
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with _changing:
            _unfinished.pop(folder, None)


def undo_unfinished() -> None:
    """Remove all that is unfinished. Call it only right before the process ends: no file can be begun after it."""
    _changing.acquire(timeout=2)
    for path, temporary in reversed([*_unfinished.items()]):
        with suppress(OSError):
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif temporary:
                shutil.rmtree(path)
            else:
                path.rmdir()
