"""One command in a process of its own, with limits on its time, its memory and what it prints."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE

import anyio
from anyio.abc import ByteReceiveStream, Process

from tilewright.errors import CheckFailed, TilewrightError, UsageError

_RUN = """
import os, sys, threading, time
seconds, memory = int(sys.argv.pop(1)), int(sys.argv.pop(1))
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
def end_with(server):
    while os.getppid() == server:
        time.sleep(0.5)
    os._exit(1)
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
from tilewright.cli import main
main()
"""
"""The limits are set before anything is imported; a server that was killed takes its calls with it."""


@dataclass(frozen=True)
class Bounds:
    """What one call may take: ``seconds``, ``memory`` in bytes, ``output`` in bytes of text."""

    seconds: int = 120
    memory: int = 16 * 2**30
    output: int = 400_000


async def run_bounded(words: Sequence[str], stdin: bytes, folder: str, bounds: Bounds) -> str:
    """What ``tilewright WORDS`` prints, begun in ``folder``; its own one-line error where it fails.

    Raises a TilewrightError also where it takes more than ``bounds``.
    """
    # -P: the folder may hold a json.py of its own. The processor's time is limited as well, should this process die.
    command = [sys.executable, "-P", "-c", _RUN, str(2 * bounds.seconds), str(bounds.memory), *words]
    environment = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    process = await anyio.open_process(
        command, stdin=PIPE if stdin else DEVNULL, cwd=folder, env=environment, start_new_session=True
    )
    try:
        with anyio.fail_after(bounds.seconds):
            out, err = await _exchange(process, stdin, bounds.output)
            code = await process.wait()
    except TimeoutError:
        how = "give a smaller program or plan, or start the server with --seconds N"
        raise UsageError(f"stopped after {bounds.seconds} s", how=how) from None
    finally:
        await _end(process)
    return _answer(out, err, code, bounds)


async def _exchange(process: Process, stdin: bytes, limit: int) -> tuple[bytes, bytes]:
    """Hand stdin over and read both outputs, each up to its limit and a byte; the process ends where it prints more."""
    read: dict[str, bytes] = {}

    async def receive(name: str, stream: ByteReceiveStream) -> None:
        data = bytearray()
        async for part in stream:
            data += part
            if len(data) > limit:
                _kill(process)
                break
        read[name] = bytes(data[: limit + 1])

    async def send() -> None:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it failed before it read everything
            await process.stdin.send(stdin)
        await process.stdin.aclose()

    assert process.stdout is not None
    assert process.stderr is not None
    async with anyio.create_task_group() as tasks:
        if stdin:
            tasks.start_soon(send)
        tasks.start_soon(receive, "out", process.stdout)
        tasks.start_soon(receive, "err", process.stderr)
    return read["out"], read["err"]


def _kill(process: Process) -> None:
    """The process and those that it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


async def _end(process: Process) -> None:
    if process.returncode is None:
        _kill(process)
    with anyio.CancelScope(shield=True):
        await process.aclose()


def _answer(out: bytes, err: bytes, code: int, bounds: Bounds) -> str:
    text = out.decode("utf-8", "replace")
    if len(out) > bounds.output:
        raise UsageError(f"the answer is longer than {bounds.output:,} bytes", how="ask for fewer rows, or for text")
    remarks = err.decode("utf-8", "replace").strip().splitlines()
    failed = next((line for line in remarks if line.startswith("tilewright: ")), "").removeprefix("tilewright: ")
    if code == 0:
        return text
    if code == 1 and text:  # a check that found something has printed what it checked
        return f"{text}\n{failed}"
    if failed:
        caret = remarks[remarks.index(f"tilewright: {failed}") + 1 :]
        raise (CheckFailed if code == 1 else TilewrightError)("\n".join([failed, *caret]))
    how = f"a call may take {bounds.memory / 2**30:g} GiB of memory and {bounds.seconds} s"
    raise UsageError(f"it ended with exit code {code} and said nothing", how=how)
