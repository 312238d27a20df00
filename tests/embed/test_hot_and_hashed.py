"""Hot rows held by every device, and multi-hash: planned, trained and saved as if they were not there, or counted."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.cli.conftest import completed
from tilewright.embed import (
    SGD,
    Adagrad,
    Feature,
    MultiHash,
    Table,
    Topology,
    from_tables,
    hash_tables,
    hot_rows,
    lookup,
    lookup_hot,
    plan,
    plan_pod,
    preprocess,
    put_hot,
    read_hot_rows,
    read_limits,
    restore,
    save,
    split_hot,
    stack,
    tables,
    take_hot,
    update,
    update_hot,
)
from tilewright.errors import UsageError

DRAW = np.random.default_rng(5)
SIZE = 16


def features(optimizer):
    item = Table("item", 60, 12, optimizer=optimizer)
    mean = Table("tag", 40, 12, combiner="mean", optimizer=optimizer)
    root = Table("word", 30, 8, combiner="sqrtn", optimizer=optimizer)
    return [Feature("item", item), Feature("seen", item), Feature("tag", mean), Feature("word", root)]


def batch(weights=False):
    """Ids 7 and 3 are everywhere; some samples are empty, some hold hot ids only."""
    made = {}
    for name, vocab in (("item", 60), ("seen", 60), ("tag", 40), ("word", 30)):
        lengths = DRAW.integers(0, 4, SIZE)
        ids = np.where(DRAW.random(lengths.sum()) < 0.5, 7, DRAW.integers(0, vocab, lengths.sum()))
        ids = np.where(DRAW.random(len(ids)) < 0.2, 3, ids)
        flat = ids, np.concatenate([[0], np.cumsum(lengths)])
        made[name] = (*flat, DRAW.random(len(ids)).astype(np.float32) + 0.5) if weights else flat
    return made


HOT = {"item": np.array([3, 7]), "tag": np.array([7]), "word": np.array([3, 7])}


@pytest.mark.parametrize("optimizer", [Adagrad(0.1)], ids=lambda o: type(o).__name__)
def test_training_with_hot_rows_is_training_without(optimizer, tmp_path):
    stacking = stack(features(optimizer), Topology(1, 2))
    values = {
        p.table.name: DRAW.normal(size=(p.table.vocab, p.table.width)).astype(np.float32) for p in stacking.placements
    }
    plain = apart = from_tables(stacking, values)
    held = take_hot(apart, HOT)

    @jax.jit
    def hot_step(apart, held, cold, entries, gradients):
        vectors = lookup_hot(held, entries, lookup(apart, cold), stacking)
        after, rest = update_hot(apart, held, entries, gradients)
        return vectors, update(apart, cold, rest), after

    weighted = batch(weights=True)
    for parts in (2, 3):  # the same ids without weights and with them, so that all compiles once
        given = {name: of_feature[:parts] for name, of_feature in weighted.items()}
        gradients = {f.name: DRAW.normal(size=(SIZE, f.table.width)).astype(np.float32) for f in stacking.features}
        host, (cold, entries) = preprocess(given, stacking), split_hot(given, stacking, HOT)
        expected, plain = lookup(plain, host), update(plain, host, gradients)
        vectors, apart, held = hot_step(apart, held, preprocess(cold, stacking), entries, gradients)
        for name in expected:
            np.testing.assert_allclose(vectors[name], expected[name], rtol=1e-5, atol=1e-6)
    joined = put_hot(apart, held, HOT)
    for slot in (None, *optimizer.slots):
        found, wanted = tables(joined, slot), tables(plain, slot)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)
    assert not np.allclose(
        tables(apart)["item"][7], tables(plain)["item"][7]
    )  # its home is behind until it is put back
    if optimizer.slots:
        save(tmp_path, joined, 1).wait()
        again = take_hot(restore(tmp_path, stack(features(optimizer), Topology(2, 2))), HOT)
        jax.tree.map(np.testing.assert_array_equal, again, held)


def test_hot_rows_over_devices_are_summed():
    """Every device sees its samples; the rows they hold stay alike."""
    stacking = stack([Feature("f", Table("t", 64, 8, optimizer=Adagrad(0.1)))], Topology(4, 1))
    state = from_tables(stacking, {"t": DRAW.normal(size=(64, 8)).astype(np.float32)})
    hot, ids = {"t": np.array([7])}, np.where(DRAW.random((SIZE, 1)) < 0.6, 7, 9)
    gradients = {"f": DRAW.normal(size=(SIZE, 8)).astype(np.float32)}
    held, (_, entries) = take_hot(state, hot), split_hot({"f": ids}, stacking, hot)
    expected, _ = update_hot(state, held, entries, gradients)
    parts = [split_hot({"f": part}, stacking, hot)[1] for part in np.split(ids, 4)]
    entries = jax.tree.map(lambda *each: np.stack(each), *parts)
    gradients = {"f": gradients["f"].reshape(4, -1, 8)}
    found = jax.vmap(lambda e, g: update_hot(state, held, e, g, axis="d")[0], axis_name="d")(entries, gradients)
    for rows in found.rows["t"]:
        np.testing.assert_allclose(rows, expected.rows["t"], rtol=1e-5)


def test_the_planner_finds_hot_rows_and_plans_without_them():
    made = features(SGD(0.1))
    batches = [batch() for _ in range(8)]
    hot = hot_rows(batches, made, above=0.15)
    assert {name: ids.tolist() for name, ids in hot.items()} == {"item": [3, 7], "tag": [3, 7], "word": [3, 7]}
    topology = Topology(2, 2)
    full, without = (plan_pod(batches, made, topology, SIZE, apart=apart) for apart in (None, hot))
    cold = [split_hot(given, full.stacking, hot)[0] for given in batches]
    assert without.limits == plan(cold, made, topology).limits
    most = [max(stack.observed.max_ids_per_partition for stack in made.stacks) for made in (without, full)]
    assert most[0] < most[1]
    assert without.limits_json()["hot_rows"] == {name: ids.tolist() for name, ids in hot.items()}


def test_hot_ids_that_cannot_be():
    state = from_tables(stack([Feature("f", Table("t", 8, 8))], Topology(1, 1)), {"t": np.zeros((8, 8), np.float32)})
    for hot in {"t": np.array([3, 3])}, {"t": np.array([8])}, {"u": np.array([1])}:
        with pytest.raises(UsageError):
            take_hot(state, hot)
    with pytest.raises(UsageError, match="a share of 2"):
        hot_rows([], [], above=2)


def test_a_hashed_table_looks_up_the_sum_of_its_rows():
    wide = [Feature("user", Table("user", 10**9, 8)), Feature("item", Table("item", 20, 8, combiner="mean"))]
    hashed = hash_tables(wide, {"user": MultiHash(64, hashes=2, seed=3), "item": MultiHash(12, hashes=3)})
    stacking = stack(hashed.features, Topology(1, 2))
    values = {
        "user": DRAW.normal(size=(64, 8)).astype(np.float32),
        "item": DRAW.normal(size=(12, 8)).astype(np.float32),
    }
    state = from_tables(stacking, values)
    ids = {"user": DRAW.integers(0, 10**9, (4, 1)), "item": ([3, 19, 4, 4], [0, 2, 2, 3, 4])}
    found = lookup(state, preprocess(hashed.batch(ids), stacking))
    rows = hashed.hashes["user"].places(ids["user"][:, 0])
    assert (rows[:, 0] < 32).all()
    assert (rows[:, 1] >= 32).all()
    np.testing.assert_allclose(found["user"], values["user"][rows].sum(1), rtol=1e-6)
    places = hashed.hashes["item"].places(np.array([3, 19, 4, 4]))
    expected = np.stack(
        [
            values["item"][part].reshape(-1, 8).mean(0) if len(part) else np.zeros(8)
            for part in (places[:2], places[:0], places[2:3], places[3:])
        ]
    )
    np.testing.assert_allclose(found["item"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match=r"id 20 of sample 1 is not in 0 .. 19"):
        hashed.batch({"item": np.array([[1], [20]])})
    np.testing.assert_array_equal(
        hashed.batch({"item": ([1, 20, 2], [0, 2, 3])}, "drop")["item"][1], np.array([0, 3, 6])
    )


def test_collisions_are_counted():
    ids = DRAW.integers(0, 10**9, 400)
    one, two = (MultiHash(1000, hashes).collisions(ids) for hashes in (1, 2))
    distinct = len(np.unique(ids))
    assert (one.ids, one.sharing) == (distinct, one.alike)
    assert one.alike > 80
    assert two.sharing > one.sharing
    assert two.alike < 10
    by_hand = MultiHash(1000, 1).places(np.unique(ids))[:, 0]
    assert one.alike == sum(np.count_nonzero(by_hand == place) > 1 for place in by_hand)
    with pytest.raises(UsageError, match="rows = 1"):
        MultiHash(1, 2)
    with pytest.raises(UsageError, match="no table called 'x'"):
        hash_tables([Feature("f", Table("t", 8, 8))], {"x": MultiHash(4)})


TOML = """
target = "tpu-v5p"
batch = 64

[[table]]
name = "user"
vocab = 1_000_000_000
width = 8
hashing = { rows = 512, hashes = 2 }

[[feature]]
name = "user"
ids = "direct"
"""


def test_hashed_tables_and_hot_rows_on_the_command_line(tmp_path):
    log, config, out = tmp_path / "log.csv", tmp_path / "model.toml", tmp_path / "limits.json"
    users = np.where(DRAW.random(640) < 0.4, 5, DRAW.integers(0, 10**9, 640))
    log.write_text("\n".join(["user", *map(str, users)]) + "\n")
    config.write_text(TOML)
    for words in ((), ("--engine", "local")):
        done = completed("embed", "plan", log, "--config", config, "-o", out, *words)
        assert done.returncode == 0, done.stderr
        assert b" rows by 2 hashes: " in done.stderr
        assert read_hot_rows(out) == {}
    config.write_text(TOML.replace("hashing", "# hashing").replace("1_000_000_000", "1_000_000_000"))
    before = read_limits(out)["user"].max_ids_per_partition
    done = completed("embed", "plan", log, "--config", config, "--hot", "0.2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert {name: ids.tolist() for name, ids in read_hot_rows(out).items()} == {"user": [5]}
    assert read_limits(out)["user"].max_ids_per_partition < before
    config.write_text(TOML.replace("rows = 512", "rows = 1"))
    done = completed("embed", "plan", log, "--config", config)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"table 'user': hashing: rows = 1 is not a whole number of at least 2" in done.stderr
