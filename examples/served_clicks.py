"""From a generated click log to served rows: a plan, a training, int8 tables, and the same rows from three readers.

    ./run python examples/served_clicks.py FOLDER [--rows 131072] [--steps 400]

Writes clicks.parquet and held_out.parquet, limits.json, checkpoints and model.tables into the folder, and ends with
exit code 1 where a promise does not hold: AUC within 0.1 % of float32, and rows equal to the bit in numpy, in JAX and
through jax.export. It is also the model file of its own training.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow
from pyarrow import parquet

from tilewright.embed import Adagrad, Feature, Table, Topology, device_lookup, open_export, plan, read_limits, read_log
from tilewright.machine import FitJob, QuantiseJob, fit, quantise

USERS, ITEMS, TAGS, WIDTH, BATCH = 2000, 800, 60, 16, 512
NUMERIC, LABEL, IDS = ["age"], "label", "direct"


def features(scale):
    """Users, items, and one to three tags of an item, whose rows are averaged."""
    optimizer = Adagrad(learning_rate=0.1, initial_accumulator=1e-6)
    return [
        Feature("user", Table("user", USERS, WIDTH, optimizer=optimizer)),
        Feature("item", Table("item", ITEMS, WIDTH, optimizer=optimizer)),
        Feature("tags", Table("tag", TAGS, WIDTH, combiner="mean", optimizer=optimizer)),
    ]


def optimizer():
    """How the dense parameters learn."""
    return optax.adam(1e-2)


def init(key):
    """Dense parameters: a bias, and what a user, an item or an age brings along alone."""
    return {"bias": jnp.float32(0), "age": jnp.zeros(1), "user": jnp.zeros(WIDTH), "item": jnp.zeros(WIDTH)}


def loss(params, numeric, vectors, labels):
    """(mean cross entropy, logits f32[B])."""
    user, item = vectors["user"], vectors["item"] + vectors["tags"]
    alone = user @ params["user"] + item @ params["item"] + numeric @ params["age"]
    logits = params["bias"] + (user * item).sum(axis=1) + alone
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean(), logits


def clicks(rows, seed):
    """A table of the log: few users and items are everywhere, and hidden tastes decide who clicks on what."""
    world, draw = np.random.default_rng(0), np.random.default_rng(seed)
    of_user, of_item = world.normal(size=(USERS, 3)), world.normal(size=(ITEMS, 3))
    tags = [world.choice(TAGS, world.integers(1, 4), replace=False).tolist() for _ in range(ITEMS)]
    user, item = (draw.zipf(1.3, rows) * 7919 % n for n in (USERS, ITEMS))
    chance = 1 / (1 + np.exp(1 - 2 * (of_user[user] * of_item[item]).sum(axis=1)))
    columns = {"label": (draw.random(rows) < chance).astype(np.float32), "user": user, "item": item}
    columns |= {"tags": [tags[i] for i in item], "age": (user % 50 / 50).astype(np.float32)}
    return pyarrow.table(columns)


def run(folder, rows, steps):
    """All of it; what was found, {name: value}."""
    folder, here = Path(folder), Path(__file__)
    log, held_out = folder / "clicks.parquet", folder / "held_out.parquet"
    parquet.write_table(clicks(rows, 1), log)
    parquet.write_table(clicks(max(BATCH, rows // 8), 2), held_out)

    batches = [batch for batch in read_log(log, features(1), BATCH) if batch.rows == BATCH]
    planned = plan((b.features for b in batches), features(1), Topology.for_target("tpu-v5p", 2), target="tpu-v5p")
    planned.write_limits(folder / "limits.json")

    job = FitJob(here, str(log), "tpu-v5p", 2, steps, BATCH, str(folder / "limits.json"), str(folder / "checkpoints"))
    trained = fit(job).trained
    served = folder / "model.tables"
    judged = quantise(QuantiseJob(here, str(folder / "checkpoints"), str(held_out), out=str(served), batch=BATCH))

    opened, ids = open_export(served), {"user": USERS, "item": ITEMS, "tags": TAGS}
    asked = {name: np.arange(64, dtype=np.int32).reshape(64, 1) * 7 % vocab for name, vocab in ids.items()}
    tables, lookup = device_lookup(opened)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (tables, asked))
    found = opened.lookup(asked)
    others = jax.jit(lookup)(tables, asked), jax.export.export(jax.jit(lookup))(*shapes).call(tables, asked)
    equal = all(np.array_equal(found[name], np.asarray(other[name])) for other in others for name in asked)
    return {
        "stacks": len(read_limits(folder / "limits.json")),
        "losses": (round(trained.losses[0], 3), round(trained.losses[-1], 3)),
        "auc": judged.before.auc,
        "auc_served": judged.after.auc,
        "bytes": judged.exported.file_bytes / judged.exported.float_bytes,
        "rows_equal": equal,
    }


def main():
    parser = argparse.ArgumentParser(description="From a click log to served rows.")
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    found = run(given.folder, given.rows, given.steps)
    for name, value in found.items():
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
    sys.exit(0 if found["rows_equal"] and abs(found["auc_served"] / found["auc"] - 1) < 1e-3 else 1)


if __name__ == "__main__":
    main()
