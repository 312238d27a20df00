"""Kill a program that saves, again and again: ``python -m tests.embed.killed_saves FOLDER KILLS [SEED [REFUSED]]``.

Each victim restores the last finished step, checks every number of it, and saves steps until it is killed, in the
middle of a save. Victims are forks of a process that has imported everything and started nothing.

With a folder REFUSED this process saves there afterwards, where the system refuses: a file too large, then no right to
the folder. It says what the errors were, and ends without waiting for its last save.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time

import jax
import numpy as np

from tilewright.embed import (
    Adagrad,
    EmbeddingState,
    Feature,
    Table,
    Topology,
    restore,
    restore_extra,
    save,
    saved_steps,
    stack,
)
from tilewright.embed.checkpoint import restore as _restore
from tilewright.embed.checkpoint import save as _save

LOADED = _restore, _save  # here once, not in every victim


def stacking(sparsecores):
    features = [Feature(f"f{n}", Table(n, v, w, optimizer=Adagrad(0.1))) for n, v, w in (("a", 4001, 16), ("b", 77, 5))]
    return stack(features, Topology(1, sparsecores))


def state_of(step, plan):
    """A state whose every number follows from its step."""

    def numbers(name):
        shape = (plan.stacks[name].shards, plan.stacks[name].rows_per_shard, plan.stacks[name].padded_width)
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + step

    stacks = {name: jax.device_put(numbers(name)) for name in plan.stacks}
    slots = {name: {"accumulator": jax.device_put(-numbers(name))} for name in plan.stacks}
    return EmbeddingState(jax.device_put(np.int32(step)), stacks, slots, plan)


def logical(state):
    from tilewright.embed import tables

    return [*tables(state).values(), *tables(state, "accumulator").values()]


def victim(folder, tell, writer):
    """Restore, check, say which step it was, then save until killed."""
    last = (saved_steps(folder) or [0])[-1]
    if last:
        found = restore(folder, stacking(3))
        expected = state_of(last, stacking(writer))
        assert int(found.step) == last
        assert all(np.array_equal(a, b) for a, b in zip(logical(found), logical(expected)))
        assert restore_extra(folder, {"w": np.zeros(1000, np.float32)})["w"][7] == last
    os.write(tell, f"restored {last}\n".encode())
    for step in range(last + 1, last + 1000):
        saving = save(folder, state_of(step, stacking(4)), step, extra={"w": np.full(1000, step, np.float32)})
        os.write(tell, f"saving {step}\n".encode())
        saving.wait()
        os.write(tell, f"saved {step}\n".encode())


def lines_until(pipe, saves):
    """The victim's lines until it has begun so many saves."""
    heard = []
    while sum(line.startswith("saving") for line in heard) < saves:
        line = pipe.readline()
        if not line:
            raise SystemExit(f"the victim died by itself after {heard}")
        heard.append(line.strip())
    return heard


def refused(folder):
    def told():
        try:
            save(folder, state, 2).wait()
        except Exception as error:
            print(type(error).__name__, error)

    state, endless = state_of(1, stacking(4)), resource.RLIM_INFINITY
    save(folder, state, 1).wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, endless))
    told()
    resource.setrlimit(resource.RLIMIT_FSIZE, (endless, endless))
    os.chmod(folder, 0o555)
    if root := os.getuid() == 0:
        os.seteuid(65534)
    told()
    if root:
        os.seteuid(0)
    os.chmod(folder, 0o755)
    save(folder, state, 3, extra={"w": np.ones(100_000)})


def main():
    folder, kills = sys.argv[1], int(sys.argv[2])
    draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    announced, unfinished = 0, 0
    for _ in range(kills):
        ear, mouth = os.pipe()
        child = os.fork()
        if not child:
            os.close(ear)
            victim(folder, mouth, writer=4)
            os._exit(0)
        os.close(mouth)
        with os.fdopen(ear) as pipe:
            # Until a step is announced none need be there; whoever begins a second save has announced the first.
            heard = lines_until(pipe, draw.randint(1, 2) if announced else 2)
            time.sleep(draw.uniform(0, 0.2))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            heard += [line.strip() for line in pipe]
        restored = int(heard[0].removeprefix("restored "))
        assert restored >= announced, f"step {announced} was announced, {restored} restored"
        announced = max([announced, *(int(line.split()[1]) for line in heard if line.startswith("saved"))])
        unfinished += any("tmp" in entry for entry in os.listdir(folder))
    print(f"{kills} kills, {unfinished} left a half-written step, last step {announced}", flush=True)
    if len(sys.argv) > 4:
        refused(sys.argv[4])


if __name__ == "__main__":
    main()
