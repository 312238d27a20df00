"""Who writes into a folder of checkpoints: one run, by a lock of the system with the owner's name in its file."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable
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


_meetings = itertools.count()
_PATIENCE = 600
"""Seconds in which all processes come to a meeting."""


def meet(name: str) -> None:
    """Wait until every process is here; called from any thread, in the same order everywhere, for no device is used."""
    if jax.process_count() > 1:
        client: Any = getattr(multihost_utils, "distributed").global_state.client  # noqa: B009 - jax exports no way to it
        client.wait_at_barrier(f"tilewright/{next(_meetings)}/{name}", 1000 * _PATIENCE)


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
