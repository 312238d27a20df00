"""Threads that all do a first thing at once, in several processes on one empty cache, get what one thread gets.

``./run python -m tests.nightly.threads [--starts 50] [--processes 4] [--threads 8]``: each start is so many processes
on a new cache, each with so many threads that wait for one another and then do the same jobs in orders of their own:
layouts, products, embeddings, programs. Prints what was counted; exits with 1 where a value differs or one raises.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading

from tests.nightly.kernels import JOBS, digest


def _program() -> str:
    import jax.numpy as jnp
    import numpy as np

    import tilewright

    x = np.arange(2 * 4 * 8, dtype=np.float32).reshape(2, 4, 8)
    groups = tilewright.optimize(lambda x: x.reshape(2, 4, 2, 4).sum((1, 3)), target="vector8x128")
    return digest(groups(jnp.asarray(x)))


NAMES = ("SGD", "Adam", "f32{1,0:T(8,128)}", "bf16{0,1:T(8,128)(2,1)}", "product of float32", "a program")


def together(threads: int, seed: int) -> list[dict[str, str]]:
    """What each thread's jobs gave; an exception's text in place of a value."""
    import jax.numpy  # noqa: F401 - threads that import jax at the same time see it half made, in any program

    jobs, found = {**JOBS, "a program": _program}, [dict[str, str]() for _ in range(threads)]
    ready = threading.Barrier(threads)

    def work(number: int) -> None:
        order = random.Random(f"{seed} {number}").sample(NAMES, len(NAMES))
        ready.wait()
        for name in order:
            try:
                found[number][name] = jobs[name]()
            except Exception as error:
                found[number][name] = repr(error)

    everybody = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for one in everybody:
        one.start()
    for one in everybody:
        one.join()
    return found


def _start(folder: str, threads: int, seed: int) -> subprocess.Popen[str]:
    code = "import json, sys; from tests.nightly.threads import together\n"
    code += "print(json.dumps(together(int(sys.argv[1]), int(sys.argv[2]))))"
    places = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", code, str(threads), str(seed)]
    return subprocess.Popen(command, env=places, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> None:
    """Print what was done and what was wrong."""
    parser = argparse.ArgumentParser()
    for name, default in (("starts", 50), ("processes", 4), ("threads", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    [expected], wrong = together(1, 0), 0
    for start in range(given.starts):
        with tempfile.TemporaryDirectory() as folder:
            running = [_start(folder, given.threads, start * given.processes + k) for k in range(given.processes)]
            for process in running:
                out, said = process.communicate()
                values = json.loads(out) if process.returncode == 0 else []
                fine = not said and len(values) == given.threads and all(value == expected for value in values)
                wrong += not fine
                if not fine:
                    print(f"start {start}: exit {process.returncode}: {values} {said[-500:]}", flush=True)
    print(f"{given.starts} starts of {given.processes} processes with {given.threads} threads: {wrong} processes wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
