"""Fresh processes that need not import numba: forks of one that has, each with a folder and an environment of its own.

`python -m tests.forks` reads jobs, a list a line, and answers with their exit codes. It has imported nothing of ours
and has compiled one function: what takes every process that starts from nothing more than a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300
"""Seconds after which a job is ended by a signal: one that waits for ever is a failure, not a suite that hangs."""


class Forks:
    """A process to fork, while it is entered."""

    def __enter__(self) -> Forks:
        words, pipe = [sys.executable, "-m", "tests.forks"], subprocess.PIPE
        self._server = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, codes: list[str], folder: Path, environment: dict[str, str]) -> list[tuple[int, str, str]]:
        """(exit code, what it wrote to stdout, to stderr) of each of these programs, which run at the same time."""
        with TemporaryDirectory() as place:
            jobs = [(code, str(folder), environment, f"{place}/{k}") for k, code in enumerate(codes)]
            self._server.stdin.write(json.dumps(jobs) + "\n")
            self._server.stdin.flush()
            ends = json.loads(self._server.stdout.readline())
            written = [[Path(f"{job[3]}.{name}").read_text() for name in ("out", "err")] for job in jobs]
        return [(end, *both) for end, both in zip(ends, written, strict=True)]


def started(code: str, folder: str, environment: dict[str, str], said: str) -> int:
    """The number of the process that does the job."""
    if number := os.fork():
        return number
    status = 1
    try:
        signal.alarm(PATIENCE)
        os.environ.update(environment)
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        sys.path[0] = folder
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{said}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        exec(compile(code, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def main() -> None:
    import numba

    numba.njit("int64(int64)")(lambda x: x)
    for line in sys.stdin:
        numbers = [started(*job) for job in json.loads(line)]
        print([os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers], flush=True)


if __name__ == "__main__":
    main()
