"""Kernels that a long command will need, compiled by a child process while the command does other work.

The child is started when this process compiles its first kernel, so never where all are kept. It compiles into the same
cache, in the order it is given; :mod:`tilewright.kernels` lets no two processes compile the same kernel. Its
standard input is a pipe that closes when this process ends, however that ends; then it ends too, between two files.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from tilewright.compiling import own_process
from tilewright.threads import thread_count


@contextmanager
def compiling_ahead(rooms: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """While the block runs, a child may do jobs of the rooms' ``warm``, in this order.

    They should compile kernels the block will need. What needs jax is better left to the block, which has loaded it.
    """
    from tilewright.kernels import tell_first_compiled

    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if thread_count() > 1:
            with suppress(OSError):  # the block compiles all by itself
                children.append(_child(rooms))

    tell_first_compiled("ahead", start)
    try:
        yield
    finally:
        tell_first_compiled("ahead", None)
        for child in children:
            _end(child)


def _child(rooms: Mapping[str, Sequence[str]]) -> subprocess.Popen[bytes]:
    nowhere = subprocess.DEVNULL
    # A session of its own: Ctrl-C in the terminal is the parent's.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from tilewright.ahead import main; main()", json.dumps(rooms)],
        stdin=subprocess.PIPE,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# -- inside the child ---------------------------------------------------------------------------------------------


def main() -> None:
    """Do the jobs until all are done or standard input closes."""
    own_process()
    writing = threading.Lock()
    _hold_while_keeping(writing)
    threading.Thread(target=_leave_with_the_parent, args=(writing,), daemon=True).start()
    gc.disable()  # it ends soon
    for room, jobs in json.loads(sys.argv[1]).items():
        import_module(f"tilewright.{room}").warm(only=jobs)


def _hold_while_keeping(writing: threading.Lock) -> None:
    from numba.core import caching

    kept: Any = caching.Cache
    keep = kept.save_overload

    def keep_whole(self: Any, *compiled: object) -> None:
        with writing:
            keep(self, *compiled)

    kept.save_overload = keep_whole


def _leave_with_the_parent(writing: threading.Lock) -> None:
    os.read(0, 1)
    with writing:
        os._exit(0)
