"""The folder of a training: one run writes into it, by a lock of the system; its finished steps; errors of the disk."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from tilewright.errors import TilewrightError, UsageError
from tilewright.files import writing_whole

LOCK, RUN = "lock", "run.json"
TABLES, EXTRA = "tables", "extra"
SCHEMA, CHECKSUMS = "schema.json", "checksums.json"
_KIND = "embedding_run"
_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)


@dataclass(frozen=True)
class Owned:
    """A folder that this process may write into, alone or with those that train with it.

    ``name`` is this owner's part of temporary names. ``file`` is the open file that holds the lock: closed by the
    system, however this process ends, which is what makes a dead owner's lock free. -1: the first process has it.
    """

    name: str
    file: int

    def holds(self, folder: Path) -> bool:
        """Whether the lock is still that of this folder: both may have been removed and made again."""
        return self.file < 0 or _same_file(self.file, folder / LOCK)


_owned: dict[Path, Owned] = {}
_changing = threading.RLock()


def own(folder: Path) -> Owned:
    """Make this process the owner of a folder, until it ends or gives it back; the folder is made if need be.

    Over several processes the first one is the owner, and all of them call this. Raises :class:`UsageError` where
    another process is, and OSError where the folder cannot be written.
    """
    folder = _real(folder)
    with _changing:
        held = _owned.get(folder)
        if held is None:
            first: Owned = from_first(lambda: Owned(secrets.token_hex(4), _take(folder)))
            held = _owned[folder] = first if jax.process_index() == 0 else Owned(first.name, -1)
        elif not held.holds(folder):
            release(folder)
            held = _owned[folder] = Owned(held.name, _take(folder))
        return held


def owned(folder: Path) -> Owned | None:
    """This process's ownership of a folder; None where it is not the owner."""
    return _owned.get(_real(folder))


def _real(folder: Path) -> Path:
    """One name for a folder that links lead to as well."""
    return Path(os.path.realpath(folder))


def release(folder: Path) -> None:
    """End the ownership of a folder, so that another process can take it."""
    with _changing:
        held = _owned.pop(_real(folder), None)
        if held is None or held.file < 0:
            return
        try:
            os.ftruncate(held.file, 0)  # a clean end: no other host needs to ask what became of the owner
        finally:
            os.close(held.file)


def release_all() -> None:
    """End every ownership of this process, when the program ends."""
    for folder in list(_owned):
        release(folder)


def _forget_in_child() -> None:
    """A forked child is not the owner, and must not keep the lock of a parent that dies."""
    for held in _owned.values():
        if held.file >= 0:
            os.close(held.file)
    _owned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _take(folder: Path) -> int:
    """The lock's file, locked, with our name in it."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        with ExitStack() as opened:
            file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            opened.callback(os.close, file)
            try:
                sure = _lock(file)
            except BlockingIOError:
                raise _busy(folder, _owner_in(file)) from None
            if _same_file(file, folder / LOCK):  # else it was removed between the two
                _refuse_other(folder, _owner_in(file), sure)
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(_myself()).encode() + b"\n", 0)
                opened.pop_all()
                return file


def _busy(folder: Path, owner: dict[str, Any]) -> UsageError:
    problem = f"another training writes into this folder: {_words(owner)}"
    return UsageError(problem, where=str(folder), how="wait for its end, or give another folder")


def _lock(file: int) -> bool:
    """Lock it for this process. False where the system or file system has no locks; BlockingIOError where it is taken.

    A lock of the open file and not of the process: another part of the program that opens and closes the file, such as
    a copy of the folder, would end the latter.
    """
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise BlockingIOError from error
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _refuse_other(folder: Path, owner: dict[str, Any], sure: bool) -> None:
    """An owner whose name is still there, although the lock is free: dead, or where the lock is not seen.

    On this machine a free lock means that the owner is dead. Of another machine nobody can say: network file systems
    may keep locks to each machine.
    """
    if not owner:
        return
    me = _myself()
    here = owner.get("boot") == me["boot"] if me["boot"] and owner.get("boot") else owner.get("host") == me["host"]
    if not here and owner.get("host") != me["host"]:
        problem = f"{_words(owner)} owns this folder, and from {me['host']} nobody sees whether it still runs"
        raise UsageError(problem, where=str(folder), how=f"once it has ended, remove {folder / LOCK}")
    if not sure and owner.get("process") != me["process"] and here and _runs(owner):
        raise _busy(folder, owner)


def _owner_in(file: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _words(owner: dict[str, Any]) -> str:
    if not owner:
        return "a process that has not yet said its name"
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('since')}"


def _myself() -> dict[str, Any]:
    """``boot`` tells machines apart by their last start: containers of one machine have several host names."""
    return {
        "host": socket.gethostname(),
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "process": os.getpid(),
        "started": _started(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }


def _runs(owner: dict[str, Any]) -> bool:
    """Whether that very process of this machine still runs; another one may have its number by now."""
    try:
        os.kill(int(owner["process"]), 0)
    except PermissionError:
        pass
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return bool(owner.get("started") == _started(owner["process"]))


def _started(process: int) -> str:
    """When a process began, in clock ticks: the 22nd of its fields, the second of which may hold blanks."""
    fields = _first_line(f"/proc/{process}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def from_first(make: Callable[[], Any]) -> Any:
    """What ``make`` gives in the first process, or the error it raises there, in all of them."""
    if jax.process_count() == 1:
        return make()
    made: Any = None
    if jax.process_index() == 0:
        try:
            made = make()
        except (TilewrightError, OSError) as error:
            made = error
    data = np.frombuffer(pickle.dumps(made), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    sent = multihost_utils.broadcast_one_to_all(np.resize(data, size))
    made = pickle.loads(np.asarray(sent, np.uint8).tobytes()) if jax.process_index() else made
    if isinstance(made, Exception):
        raise made
    return made


def run_of(folder: Path) -> str | None:
    """The id of the run that a folder belongs to; None where none has begun there, or its file was left behind.

    Raises :class:`UsageError` where the file is damaged.
    """
    path = folder / RUN
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        value = None
    run = value.get("run") if isinstance(value, dict) and value.get("kind") == _KIND else None
    if not isinstance(run, str) or run != _id_of(run.partition("-")[0]):
        how = f"remove {path}: its steps are then read without looking whether they belong together"
        raise UsageError("the file that names the folder's run is damaged", where=str(path), how=how)
    return run


def begin_run(folder: Path, so_far: str | None) -> str:
    """The id of a folder's run, which its owner makes when the run begins; ``so_far`` where its steps have one."""
    if (run := run_of(folder)) is None:
        run = so_far or _id_of(secrets.token_hex(8))
        with writing_whole(folder / RUN, durable=True) as file:
            file.write(json.dumps({"kind": _KIND, "run": run}).encode() + b"\n")
    return run


def _id_of(token: str) -> str:
    """A token and its checksum, so that a damaged id is not taken for that of another run."""
    return f"{token}-{zlib.crc32(token.encode()):08x}"


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
