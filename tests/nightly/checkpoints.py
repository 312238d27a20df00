"""Attack checkpoints: ``python -m tests.nightly.checkpoints [--trials 500] [--kills 50] [--seed 1]``.

Damaged folders: after every damage each step restores equal to what was saved as that step of that run, or is refused
by an error of ours. Kills: two trainings fight for one folder, one of them is killed again and again; every announced
step is there, whole, with the numbers of the training that announced it.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from tests.embed.killed_saves import logical, stacking, state_of
from tilewright.embed import restore, restore_extra, save, saved_features, saved_limits, saved_steps
from tilewright.embed.checkpoint.save import own_folder
from tilewright.errors import TilewrightError

STEPS = (1, 2, 3)
WEIGHTS = {"w": np.zeros(1000, np.float32), "layers": [np.zeros((2, 3), np.float32)], "count": 0}
OTHER = 10_000
"""What the numbers of one training are beyond those of another."""


def extra_of(number):
    return {
        "w": np.arange(1000, dtype=np.float32) + number,
        "layers": [np.full((2, 3), number, np.float32)],
        "count": number,
    }


def model():
    from tilewright.embed import Adam, Feature, Table, Topology, stack

    tables = [Table(n, 90, 8, optimizer=Adam(0.1)) for n in ("a", "b")]
    return stack([Feature(f"f{t.name}", t) for t in tables], Topology(1, 3))


def numbers(plan, number):
    """A state whose rows and slots are all different, and different for every number."""
    import jax

    from tilewright.embed import EmbeddingState, init

    rng = np.random.default_rng(number)
    like = jax.eval_shape(lambda: init(plan, jax.random.key(0)))
    filled = jax.tree.map(lambda a: jax.device_put(rng.normal(size=a.shape).astype(np.float32)), like)
    return EmbeddingState(jax.device_put(np.int32(number)), filled.stacks, filled.slots, plan)


def all_numbers(state, extra):
    """Everything that is restored, as a list of arrays."""
    import jax

    from tilewright.embed import tables

    slots = [tables(state, slot)[name] for name in ("a", "b") for slot in ("momentum", "velocity")]
    whole = [*tables(state).values(), *slots, state.step, *jax.tree.leaves(extra)]
    return [np.asarray(value) for value in whole]


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def swap(one, other):
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


def flip(draw, folder, _):
    path = draw.choice(files_of(folder))
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(draw, folder, _):
    path = draw.choice(files_of(folder))
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data) + 1)])


def lose(draw, folder, _):
    draw.choice(files_of(folder)).unlink()


def two(draw, folder, pattern, same=None):
    """Two places that match; ``same``: the part of their paths that they share."""
    places = sorted(folder.glob(pattern))
    one = draw.choice(places)
    others = [place for place in places if place != one and (same is None or same(place) == same(one))]
    return one, draw.choice(others)


def swap_chunks_of_steps(draw, folder, _):
    swap(*two(draw, folder, "*/tables/*/**/c.*", lambda path: path.relative_to(folder).parts[1:]))


def swap_chunks_of_tables(draw, folder, _):
    swap(*two(draw, folder, "*/tables/*/**/c.*", lambda path: (path.relative_to(folder).parts[0], path.name)))


def swap_slots(draw, folder, _):
    swap(*two(draw, folder, "*/tables/*/slots/*", lambda path: path.parent))


def swap_shards(draw, folder, _):
    swap(*two(draw, folder, "*/tables/*/**/c.*", lambda path: path.parent))


def swap_parts_of_steps(draw, folder, _):
    pattern = draw.choice(("*/tables", "*/extra", "*/checksums.json", "*/tables/schema.json", "*/tables/checksums.*"))
    swap(*two(draw, folder, pattern))


def swap_dense_files(draw, folder, _):
    swap(*two(draw, folder, "*/extra/**/d/*"))


def swap_steps(draw, folder, _):
    swap(*two(draw, folder, "[0-9]"))


def mix_steps(draw, folder, other):
    place = draw.choice(STEPS)
    shutil.rmtree(folder / str(place))
    shutil.copytree(other / str(place), folder / str(place))


def mix_parts(draw, folder, other):
    place = f"{draw.choice(STEPS)}/{draw.choice(('tables', 'extra', 'tables/a', 'tables/b/rows'))}"
    shutil.rmtree(folder / place)
    shutil.copytree(other / place, folder / place)


def mix_files(draw, folder, other):
    """Files of another run over those of the same name."""
    names = [path.relative_to(other) for path in files_of(other) if (folder / path.relative_to(other)).exists()]
    for name in draw.sample([name for name in names if name.name != "run.json"], draw.choice((1, 3, 20))):
        shutil.copyfile(other / name, folder / name)


def mix_all(draw, folder, other):
    """Another run's folder copied over it, without the file that names the run."""
    shutil.copytree(other, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("run.json"))


ATTACKS = (
    *(flip, flip, flip, cut, cut, lose, swap_chunks_of_steps, swap_chunks_of_tables, swap_slots, swap_shards),
    *(swap_parts_of_steps, swap_dense_files, swap_steps, mix_steps, mix_parts, mix_files, mix_all),
)


def damaged(trials, draw, home):
    """Counts by what came of each trial, and the failures in words."""
    plan, runs, failures, counts = model(), [home / "one", home / "other"], [], Counter()
    expected = {}
    for run, folder in enumerate(runs):
        for step in STEPS:
            state, extra = numbers(plan, step + OTHER * run), extra_of(step + OTHER * run)
            save(folder, state, step, extra).wait()
            if run == 0:
                expected[step] = all_numbers(state, extra)
        (folder / "lock").unlink()
    for trial in range(trials):
        attack = ATTACKS[trial % len(ATTACKS)]
        folder = home / "trial"
        shutil.copytree(runs[0], folder)
        attack(draw, folder, runs[1])
        refused = 0
        for step in STEPS:
            try:
                saved_limits(folder, step), saved_features(folder, step)
                found = all_numbers(restore(folder, plan, step), restore_extra(folder, WEIGHTS, step))
            except TilewrightError:
                refused += 1
            except Exception as error:
                failures.append(f"{attack.__name__}: {type(error).__name__}: {error}")
            else:
                if not all(np.array_equal(a, b) for a, b in zip(found, expected[step], strict=True)):
                    failures.append(f"{attack.__name__}: step {step} restored wrong")
        counts["refused" if refused else "equal"] += 1
        shutil.rmtree(folder)
    return counts, failures


def training(folder, who, tell):
    """Own the folder as soon as it is free, check its last step, and save steps until killed."""
    while True:
        try:
            own_folder(folder)
            break
        except TilewrightError as error:
            assert "another training writes into this folder" in str(error), error
            os.write(tell, b"refused\n")
            time.sleep(0.05)
    last = (saved_steps(folder) or [0])[-1]
    os.write(tell, f"owns {last}\n".encode())
    for step in range(last + 1, last + 1000):
        number = step + OTHER * who
        os.write(tell, f"saving {step}\n".encode())
        save(folder, state_of(number, stacking(4)), step, extra={"w": np.full(1000, number, np.float32)}).wait()
        os.write(tell, f"saved {step} {number}\n".encode())


def check(folder, announced):
    """Every announced step is there, equal to what its training had."""
    assert set(announced) <= set(saved_steps(folder)), f"lost: {sorted(set(announced) - set(saved_steps(folder)))}"
    for step, number in announced.items():
        found = restore(folder, stacking(3), step)
        assert all(np.array_equal(a, b) for a, b in zip(logical(found), logical(state_of(number, stacking(4)))))
        assert restore_extra(folder, {"w": np.zeros(1000, np.float32)}, step)["w"][7] == number, step


def child(work, *arguments):
    """A fork that does something and ends; where its words are read, and its process."""
    ear, mouth = os.pipe()
    if not (process := os.fork()):
        os.close(ear)
        code = 1
        try:
            work(*arguments, mouth)
            code = 0
        except BaseException as error:
            os.write(mouth, f"failed {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(mouth)
    return process, ear


def fight(kills, draw, folder):
    """Announced steps, how often one was refused, and the failures in words."""
    announced, refused, failures, heard = {}, 0, [], {0: b"", 1: b""}
    fighters = {who: child(training, folder, who) for who in (0, 1)}

    def listen(seconds):
        nonlocal refused
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([ear for _, ear in fighters.values()], [], [], left)
            for who, (_, ear) in fighters.items():
                if ear in ready:
                    take(who, os.read(ear, 1 << 16))

    def take(who, data):
        nonlocal refused
        *lines, heard[who] = (heard[who] + data).split(b"\n")
        for line in map(bytes.decode, lines):
            refused += line == "refused"
            if line.startswith("saved "):
                step, number = map(int, line.split()[1:])
                if step in announced:
                    failures.append(f"step {step} announced twice")
                announced[step] = number
            if line.startswith("failed"):
                failures.append(line)

    for killed in range(kills):
        before = len(announced)
        while len(announced) == before and not failures:
            listen(0.05)
        listen(draw.uniform(0, 0.2))
        if failures:
            break
        who = draw.randrange(2)
        process, ear = fighters[who]
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        while data := os.read(ear, 1 << 16):
            take(who, data)
        os.close(ear)
        heard[who] = b""
        fighters[who] = child(training, folder, who)
        if killed % 10 == 9:
            failures += checked(folder, announced)
    for process, ear in fighters.values():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ear)
    return announced, refused, failures + checked(folder, announced)


def checked(folder, announced):
    """What a reader of its own finds."""
    process, ear = child(lambda mouth: check(folder, announced))
    with os.fdopen(ear) as pipe:
        words = pipe.read().splitlines()
    os.waitpid(process, 0)
    return words


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("error")
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as home:
        # First, for it forks: nothing has started a thread yet.
        announced, refused, failures = fight(args.kills, draw, Path(home, "fight"))
        counts, wrong = damaged(args.trials, draw, Path(home))
    for line in failures + wrong:
        print(line, file=sys.stderr)
    print(
        f"{args.kills} kills: {len(announced)} steps announced, {len(failures)} failures, {refused} times refused; "
        f"{args.trials} damaged: {counts['refused']} refused, {counts['equal']} restored equal, {len(wrong)} failures"
    )
    sys.exit(bool(failures or wrong))


if __name__ == "__main__":
    main()
