"""A model carried through: generated log, plan, training, kill -9, restore elsewhere. Run as a process by tests.

    python -m tests.embed.carry_through whole FOLDER 8      # the unbroken run, then one that dies in mid-save
    python -m tests.embed.carry_through rest FOLDER 4 3     # restore its last step on 4 and on 3 chips, train on
    python -m tests.embed.carry_through killed FOLDER 20    # 20 random kills of one training, each looked after

Everything is a whole number, so that results have the same bits however sums are ordered.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tilewright.embed import (
    SGD,
    Checkpoints,
    Feature,
    Feed,
    Loop,
    Table,
    Topology,
    init,
    plan,
    read_log,
    restore,
    resume,
    saved_steps,
    stack,
    tables,
    train_step,
)

BATCH, STEPS, EVERY, KILLED_AT = 48, 60, 10, 20


def whole_numbers(key, shape, dtype):
    return jax.random.randint(key, shape, -9, 10).astype(dtype)


def features():
    def table(name, vocab, width):
        return Table(name, vocab, width, optimizer=SGD(1.0), initializer=whole_numbers)

    item = table("item", 96, 8)
    return [Feature("user", table("user", 200, 8)), Feature("item", item), Feature("history", item)]


def loss(params, vectors, labels):
    """Gradients are whole numbers that depend on the tables: signs of the activations, times the labels."""
    total = sum((jnp.abs(v).sum(axis=1) * labels).sum() for v in vectors.values())
    return total + (params * labels).sum()


def write_log(folder):
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 4, 20 * BATCH)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.savez(
        folder / "log.npz",
        user=draw.zipf(1.3, 20 * BATCH) % 200,
        item=draw.integers(0, 96, 20 * BATCH),
        label=draw.integers(-1, 2, 20 * BATCH),
        **{"history.values": draw.integers(0, 96, int(offsets[-1])), "history.offsets": offsets},
    )


class Training:
    """One training on ``chips`` devices."""

    def __init__(self, folder, chips, pipelined=False):
        log = read_log(folder / "log.npz", features(), BATCH, values=["label"])
        self.stacking = stack(features(), Topology(chips, 1), batch_size=BATCH)
        learnt = plan((part.features for part in log), features(), self.stacking.topology, stacking=self.stacking)
        self.log, self.limits = log, learnt.limits
        meshed = {} if chips == 1 else {"mesh": jax.make_mesh((chips,), ("chips",)), "axis": "chips"}
        self.one = train_step(loss, optax.sgd(1.0), pipelined, **meshed)
        self.params = jnp.zeros(BATCH)

    def start(self):
        state = init(self.stacking, jax.random.key(0), mesh=self.one.mesh, axis=self.one.axis)
        return self.one.start(self.params, state)

    def samples(self, first, steps):
        endless = itertools.chain.from_iterable(iter(self.log) for _ in itertools.count())
        return ((part.features, (part.values["label"],)) for part in itertools.islice(endless, first, steps))

    def train(self, carry, first, steps, saver=None):
        loop = Loop(self.one, Feed(self.stacking, self.limits), saver=saver)
        return loop.train(carry, self.samples(first, steps), first)


def result(trained):
    carry = trained.carry
    of_tables = {name: np.asarray(value) for name, value in tables(carry.state).items()}
    return {**of_tables, "params": np.asarray(carry.params), "losses": np.asarray(trained.losses)}


class DiesInMidSave(Checkpoints):
    """kill -9 as soon as a file of the step's folder is there."""

    def save(self, carry, step):
        super().save(carry, step)
        if step == KILLED_AT:
            while not list(Path(self.folder).glob(f"{step}.orbax-checkpoint-tmp*")):
                time.sleep(0.0001)
            os.kill(os.getpid(), signal.SIGKILL)


def whole(folder, chips):
    write_log(folder)
    one = Training(folder, chips)
    np.savez(folder / "unbroken.npz", **result(one.train(one.start(), 0, STEPS)))
    one.train(one.start(), 0, STEPS, DiesInMidSave(str(folder / "steps"), EVERY, one.limits))


def rest(folder, *topologies):
    for chips in topologies:
        one = Training(folder, chips)
        carry, first = resume(one.one, one.params, one.stacking, folder / "steps")
        assert first == KILLED_AT - EVERY, first
        found = result(one.train(carry, first, STEPS))
        with np.load(folder / "unbroken.npz") as expected:
            for name, value in found.items():
                wanted = expected[name][first:] if name == "losses" else expected[name]
                np.testing.assert_array_equal(value, wanted, err_msg=name)
        print(f"{STEPS - first} further steps on {chips} are those of the unbroken run")


def endless(folder):
    """Train until killed, going on where the last one ended; tell of every step that is saved."""
    one = Training(folder, 1, pipelined=True)
    carry, first = one.start(), 0
    if saved_steps(folder / "steps"):
        carry, first = resume(one.one, one.params, one.stacking, folder / "steps")
    saver = Checkpoints(str(folder / "steps"), 2, one.limits, on_saved=lambda step: print(step, flush=True))
    print(first, flush=True)
    one.train(carry, first, 10**6, saver)


def killed(folder, times, seed=0):
    """Kill a training ``times`` times; the last step announced is there each time, and restores."""
    write_log(folder)
    draw, stacking = random.Random(seed), stack(features(), Topology(3, 1), batch_size=BATCH)
    last = 0
    for _ in range(times):
        command = [sys.executable, "-m", "tests.embed.carry_through", "endless", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            begun = int(process.stdout.readline())
            assert begun >= last
            for _ in range(draw.randint(1, 6)):
                process.stdout.readline()
            time.sleep(draw.random() * 0.2)
            process.kill()
            announced = max([begun, *map(int, process.stdout.read().split())])
        steps = saved_steps(folder / "steps")
        assert steps[-1] >= announced, (steps, announced)
        state = restore(folder / "steps", stacking)
        assert int(state.step) == steps[-1]
        last = steps[-1]
        print(f"killed: step {announced} was announced, {last} restores", flush=True)


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    globals()[name](Path(folder), *map(int, numbers))
