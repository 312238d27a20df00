"""A command run as several processes on this machine that train together under jax.distributed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import IO

import typer

from tilewright.errors import CheckFailed, UsageError

_PLACE = "TILEWRIGHT_PROCESS"
"""Where a started process finds its number, how many there are, and the port they meet at."""


def joined() -> bool:
    """Join the other processes, where this is one of several; False where it is not."""
    place = os.environ.get(_PLACE)
    if place is None:
        return False
    from tilewright.machine import join

    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")  # data; what libraries print themselves goes to stderr
    os.dup2(2, 1)
    number, count, port = map(int, place.split())
    join(number, count, port)
    return True


def first_of_all() -> bool:
    """Whether this process is the only one, or the one that prints and writes."""
    return os.environ.get(_PLACE, "0").startswith("0")


def start_all(processes: int, chips: int, target: str) -> None:
    """Run this command as ``processes`` processes with an equal share of the chips' devices each, on the CPU.

    Where one of them ends early the others are ended too, with one error: its own, or that it was killed.
    """
    from tilewright.embed import Topology

    devices = Topology.for_target(target, chips).devices
    if processes < 1 or devices % processes:
        problem = f"{devices} devices do not divide over {processes} processes"
        raise UsageError(problem, where="--processes", how="take a divisor of them, or more --chips")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices // processes}"
    shared = os.environ | {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", "-m", "tilewright", *sys.argv[1:]]
    with ExitStack() as files:
        data = files.enter_context(tempfile.TemporaryFile("w+"))
        words: list[IO[str]] = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(processes)]
        started = [
            subprocess.Popen(
                command,
                env=shared | {_PLACE: f"{number} {processes} {port}"},
                stdout=data if number == 0 else subprocess.DEVNULL,
                stderr=words[number],
                start_new_session=True,  # Ctrl-C is for this process to deal with
            )
            for number in range(processes)
        ]
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
            codes = _awaited(started, words[0])
        finally:
            for process in started:
                process.kill()
                process.wait()
        _tell(codes, words, data)


def _awaited(started: list[subprocess.Popen[bytes]], words: IO[str]) -> list[int | None]:
    """Exit codes when all have ended well, or when one has not and the others had a moment to."""
    told = 0
    while True:
        codes = [process.poll() for process in started]
        told = _forward(words, told)
        if all(code == 0 for code in codes) or any(code is not None and code < 0 for code in codes):
            return codes
        if any(codes):
            time.sleep(2)
            _forward(words, told)
            return [process.poll() for process in started]
        time.sleep(0.05)


def _forward(words: IO[str], told: int) -> int:
    """Pass on the first process's remarks, errors not among them."""
    words.seek(told)
    text = words.read()
    whole = text[: text.rfind("\n") + 1]
    for line in whole.splitlines():
        if line.startswith("step "):
            print(line, file=sys.stderr)
    return told + len(whole.encode())


def _tell(codes: list[int | None], words: list[IO[str]], data: IO[str]) -> None:
    killed = [(number, -code) for number, code in enumerate(codes) if code is not None and code < 0]
    if killed:
        number, by = min(killed, key=lambda each: each[1] == signal.SIGABRT)  # which is how those left behind end
        problem = f"process {number} of {len(codes)} was ended by {signal.Signals(by).name}"
        how = "finished checkpoints are as they were: go on with --resume"
        raise CheckFailed(problem, where="embed train", how=how)
    if any(codes):
        for part in words:
            part.seek(0)
        lines = [line for part in words for line in part.read().splitlines()]
        ours = [line for line in lines if line.startswith("tilewright: ")]
        print(
            ours[0] if ours else f"tilewright: process {[bool(c) for c in codes].index(True)} failed", file=sys.stderr
        )
        raise typer.Exit(next(code for code in codes if code))
    data.seek(0)
    sys.stdout.write(data.read())
