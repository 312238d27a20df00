"""A week of a recommender: a log that drifts, planned, checked, trained on eight devices, then on four, and served.

    ./run python examples/recommender_week.py FOLDER [--rows 2000000]

Each step is a command that it prints before it runs it, on one description of the model (model.toml, then applied.toml
with what the plan's findings write into it). Ends with exit code 1 where a step fails or a promise does not hold. It is
also the model file of its own training: plain JAX, without tables.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow
from pyarrow import parquet

DAYS, LEARNT, BATCH, WIDTH, CHIPS = 7, 3, 2048, 16, 8
VOCABS = {f"c{k}": int(30 * 1.5**k) for k in range(24)} | {"item": 60_000}
NUMERIC, LABEL = ["age"], "label"


def optimizer():
    """How the dense parameters learn."""
    return optax.adam(3e-2)


def init(key):
    """Dense parameters: a bias, and what each column brings along alone."""
    return {"bias": jnp.float32(-1), "age": jnp.zeros(1), "alone": jnp.zeros((len(VOCABS) + 1, WIDTH))}


def loss(params, numeric, vectors, labels):
    """(mean cross entropy, logits f32[B]): a factorisation machine of the looked-up rows."""
    stacked = jnp.stack([vectors[name] for name in sorted(vectors)], axis=1)
    pairs = (stacked.sum(1) ** 2 - (stacked**2).sum(1)).sum(-1) / 40
    logits = params["bias"] + numeric @ params["age"] + (stacked * params["alone"]).sum((1, 2)) + pairs
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), logits


def describe(folder):
    """The one description: 25 tables, 26 features (a history of items with weights shares the items' table)."""
    lines = [f'target = "tpu-v5p"\nchips = {CHIPS}\nbatch = {BATCH}\n']
    for name, vocab in VOCABS.items():
        rule = '{ kind = "adagrad", learning_rate = 0.1, initial_accumulator = 1e-6 }'
        combiner = 'combiner = "mean"\n' if name == "item" else ""
        lines.append(f'[[table]]\nname = "{name}"\nvocab = {vocab}\nwidth = {WIDTH}\n{combiner}optimizer = {rule}\n')
        lines.append(f'[[feature]]\nname = "{name}"\nids = "direct"\n')
    lines.append('[[feature]]\nname = "history"\ntable = "item"\nweights = "history_weights"\nids = "direct"\n')
    (folder / "model.toml").write_text("\n".join(lines))


def day(number, rows):
    """One day's table: Zipf ids whose order of popularity drifts, an item on sale from the fifth day on."""
    world, draw = np.random.default_rng(0), np.random.default_rng(100 + number)
    columns, score = {}, np.zeros(rows)
    for name, vocab in VOCABS.items():
        order, taste = world.permutation(vocab), world.normal(size=vocab)
        moved = draw.permutation(vocab)[: vocab * number // 50]  # two per cent of the ids more each day
        order[np.sort(moved)] = order[moved]
        ids = order[np.minimum(draw.zipf(1.25, rows) - 1, vocab - 1)]
        if name == "item" and number >= 5:
            ids[draw.random(rows) < 0.15] = 4_711
        columns[name], score = ids, score + taste[ids] / 5
    lengths = draw.integers(0, 8, rows)
    flat = np.minimum(draw.zipf(1.25, lengths.sum()) - 1, VOCABS["item"] - 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    weights = draw.random(lengths.sum(), np.float32) + 0.1
    for name, values in (("history", flat), ("history_weights", weights)):
        columns[name] = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(values))
    columns["age"] = draw.random(rows, np.float32)
    columns["label"] = (draw.random(rows) < 1 / (1 + np.exp(1 - score))).astype(np.float32)
    return pyarrow.table(columns)


def tilewright(folder, *words, devices=1, allowed=(0,), into=None):
    """Run a command in the folder as if the machine had so many devices; its exit code. ``into``: a file for stdout."""
    print(f"\n$ tilewright {' '.join(words)}{f' > {into}' if into else ''}", flush=True)
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tilewright", *words]
    with (folder / into).open("wb") if into else nullcontext() as out:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=out, check=False)
    if done.returncode not in allowed:
        sys.exit(f"that ended with exit code {done.returncode}")
    return done.returncode


def week(folder, rows):
    """The whole week."""
    folder.mkdir(parents=True, exist_ok=True)
    describe(folder)
    each = max(2 * BATCH, rows // DAYS // BATCH * BATCH)
    logs = [f"day{number}.parquet" for number in range(DAYS)]
    for number, log in enumerate(logs):
        parquet.write_table(day(number, each), folder / log)
    print(f"{DAYS} days of {each:,} rows", flush=True)
    early, late = logs[:LEARNT], logs[LEARNT:]
    tilewright(folder, "embed", "plan", *early, "--config", "model.toml", "--apply", "all", "-o", "applied.toml")
    plan = ("embed", "plan", *early, "--config", "applied.toml")
    tilewright(folder, *plan, "--json", into="plan.json")
    confidence = json.loads((folder / "plan.json").read_text())["confidence"]
    print(confidence["sentence"])
    tilewright(folder, *plan, "--headroom", f"{confidence['headroom_for_a_week']:.2f}", "-o", "limits.json")
    held = [
        tilewright(folder, "embed", "check", log, "limits.json", "--config", "applied.toml", allowed=(0, 1)) == 0
        for log in late
    ]
    print(f"\nlimits of days 0 to {LEARNT - 1} hold on {sum(held)} of {len(held)} later days", flush=True)
    steps = each // BATCH
    model = ("embed", "train", str(Path(__file__).resolve()), "--config", "applied.toml", "--checkpoint", "run")
    first = ("--data", late[0], "--limits", "limits.json", "--renew-limits", str(max(2, steps // 4)))
    tilewright(folder, *model, *first, "--steps", str(steps), devices=CHIPS)
    more = ("--chips", str(CHIPS // 2), "--data", late[1], "--resume", "--steps", str(2 * steps))
    tilewright(folder, *model, *more, devices=CHIPS // 2)
    tilewright(folder, "embed", "export", "run", "-o", "week.tables", "--dtype", "bf16")
    judge(folder, late[2])


def judge(folder, log):
    """What is served on a later day against the checkpoint, and against knowing nothing."""
    from tilewright.embed import (
        Topology,
        lookup,
        open_export,
        preprocess,
        read_config,
        read_log,
        restore,
        restore_extra,
        stack,
    )

    config = read_config(folder / "applied.toml")
    part = next(iter(read_log(str(folder / log), config.in_log, BATCH, config.columns, values=("age", "label"))))
    state = restore(folder / "run", stack(config.features, Topology(1, 1)), slots=False)
    params = init(jax.random.key(0))
    params = restore_extra(folder / "run", {"params": params, "optimizer_state": optimizer().init(params)})["params"]
    numeric, labels = part.values["age"][:, None], part.values["label"]
    kept = lookup(state, preprocess(part.features, state.stacking))
    served = open_export(folder / "week.tables").lookup(part.features)
    losses = [float(loss(params, numeric, vectors, labels)[0]) for vectors in (kept, served)]
    rate = labels.mean()
    blind = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    print(f"\nloss on {log}: {losses[0]:.4f}, served in bf16 {losses[1]:.4f}, knowing the rate alone {blind:.4f}")
    if not losses[0] < blind or abs(losses[1] - losses[0]) > 0.01:
        sys.exit("the model learnt nothing, or is served otherwise than it was trained")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    asked, begin = parser.parse_args(), time.monotonic()
    week(asked.folder, asked.rows)
    print(f"{time.monotonic() - begin:.0f} s in all")
