"""Plans against brute force over all partitions of all batches."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.embed.slow_batch import partitions
from tilewright.embed import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    Clipped,
    Feature,
    LaProp,
    Limits,
    RowwiseAdagrad,
    Table,
    Topology,
    gather_seconds,
    memory,
    plan,
    preprocess,
    read_limits,
    stack,
)
from tilewright.errors import LimitError, UsageError
from tilewright.render import bytes_text
from tilewright.targets import target

TOPOLOGY = Topology(2, 2)


def features(optimizer=None):
    kind = optimizer or Adagrad(0.1)
    a, b, c = (Table(n, v, w, optimizer=kind) for n, v, w in (("a", 100, 12), ("b", 40, 16), ("c", 7, 1)))
    return [Feature("fa", a), Feature("fb", b), Feature("fc", c), Feature("fa2", a)]


def logs(batches=12, samples=16, seed=0):
    """Dense features of two ids per sample, the low ids much more frequent."""
    rng = np.random.default_rng(seed)
    return [
        {f.name: (f.table.vocab * rng.random((samples, 2)) ** 4).astype(np.int32) for f in features()}
        for _ in range(batches)
    ]


def counts(batches, stacking, name):
    """[(entries, distinct ids)] of every batch, source and shard."""
    found = []
    for batch in batches:
        rows = {n: [[(int(i), 1.0) for i in row] for row in values] for n, values in batch.items()}
        parts = partitions(rows, stacking, name)
        for source in range(stacking.topology.sparsecores):
            for shard in range(stacking.topology.sparsecores):
                part = parts.get((source, shard, 0), [])
                found.append((len(part), len({row for row, _, _ in part})))
    return np.array(found)


@pytest.mark.parametrize("quantile", [1.0, 0.8, 0.31])
def test_limits_buffers_and_imbalance_equal_brute_force(quantile):
    batches = logs()
    made = plan(iter(batches), features(), TOPOLOGY, quantile)
    assert made.stacking == stack(features(), TOPOLOGY, batch_size=16)
    assert (made.batches, made.samples, made.replayed) == (12, 192, 8)
    over = np.zeros(12, bool)
    for each in made.stacks:
        seen = counts(batches, made.stacking, each.name)
        rank = math.ceil(quantile * len(seen)) - 1
        ids, unique = (-(-np.sort(seen, axis=0)[rank] // 8) * 8).tolist()
        assert each.limits == Limits(ids, unique)
        assert each.observed == Limits(*map(int, seen.max(axis=0)))
        assert each.mean_ids == pytest.approx(seen[:, 0].mean())
        assert each.partitions_over == pytest.approx(max((seen[:, 0] > ids).mean(), (seen[:, 1] > unique).mean()))
        per_shard = seen[:, 0].reshape(-1, 4).sum(axis=0)
        assert each.imbalance == pytest.approx(per_shard.max() / per_shard.mean())
        assert each.slots == ids * 2 * 4
        low, chip = Limits(ids - 7, unique - 7), ("tpu-v5p", 4, each.padded_width)
        exact, rounded = memory(*chip, low), memory(*chip, each.limits)
        assert (exact.tile_bytes, exact.stack_bytes) == (rounded.tile_bytes, rounded.stack_bytes), "it costs nothing"
        assert each.pointers == 16
        assert each.buffer_bytes == 12 * each.slots + 4 * 16
        over |= (seen > [ids, unique]).any(axis=1).reshape(12, -1).any(axis=1)
    assert made.batches_over == pytest.approx(over.mean())
    assert made.target == ""
    assert made.fits is None


def test_drops_and_mini_batches_are_those_of_preprocessing():
    batches = logs(batches=5)
    made = plan(batches, features(), TOPOLOGY, 0.8)
    for each in made.stacks:
        hosts = [preprocess(b, made.stacking, made.limits, overflow="drop") for b in batches]
        dropped = sum(int(h.stats[each.name].dropped_ids.sum()) for h in hosts)
        entries = counts(batches, made.stacking, each.name)[:, 0].sum()
        assert each.drop_rate == pytest.approx(dropped / entries)
    for point in made.curve:
        numbers, refused = [], []
        for batch in batches:
            try:
                numbers.append(preprocess(batch, made.stacking, point.limits).num_minibatches)
            except LimitError as error:
                refused.append(str(error))
        assert point.minibatches_mean == (np.mean(numbers) if numbers else None)
        assert point.minibatches_max == max(numbers, default=None)
        assert (point.uncut, point.uncut_because) == (len(refused) / 5, next(iter(refused), ""))
    whole, *lower = made.curve
    cut = preprocess(batches[0], made.stacking, whole.limits)
    arrays = (cut.row_pointers, cut.embedding_ids, cut.sample_ids, cut.gains)
    assert whole.minibatch_buffer_bytes == sum(a[s.name][0].nbytes for a in arrays for s in made.stacks)
    assert (whole.batches_over, whole.minibatches_max, whole.drop_rate) == (0.0, 1, 0.0)
    assert any(point.minibatches_mean and point.minibatches_mean > 1 for point in lower)
    assert lower[-1].uncut > 0
    assert lower[-1].drop_rate > 0


def test_memory_of_a_chip():
    made = plan(logs(3), features(), TOPOLOGY, target="tpu-v5p", prefetched_batches=3)
    for each in made.stacks:
        for program, op in ((each.forward, "forward"), (each.backward, "adagrad")):
            assert program == memory("tpu-v5p", 4, each.padded_width, each.limits, op)
    padded = {"a": 128 * 16 * 4, "b": 64 * 16 * 4, "c": 32 * 8 * 4}
    assert {t.name: t.padded_bytes for t in made.tables} == padded
    assert made.heap.tables == made.heap.slots == sum(padded.values()) // 2
    assert made.heap.inputs == 3 * sum(s.buffer_bytes for s in made.stacks)
    assert made.heap.if_cut == 63 * 5 * sum(s.buffer_bytes for s in made.stacks), "two more wait for gradients"
    two = [sum(m.stack_bytes for m in ms) for ms in zip(*((s.forward, s.backward) for s in made.stacks))]
    assert (made.heap.forward_stack, made.heap.backward_stack) == (two[0] * 2, two[1] * 2)
    assert made.heap.stack_basis == "modelled", "two stacks are added"
    assert "updates of 2 stacks are added, the most they can take (8 equal ones on" in made.heap.stack_note
    assert made.heap.capacity == 96 * 2**30 - target("tpu-v5p").memory("hbm").reserved
    assert made.fits is True
    assert "compiles and fits on tpu-v5p" in made.verdict
    narrow = next(t for t in made.tables if t.name == "c")
    assert narrow.wasted_by_width == 7 / 8
    lost = narrow.wasted_by_width + narrow.wasted_by_vocab
    assert lost == pytest.approx(1 - narrow.data_bytes / narrow.padded_bytes)


@pytest.mark.parametrize(
    ("chip", "tables", "modelled"),
    [
        ("tpu-v5p", 1, []),
        ("tpu-v5p", 3, ["lookups of 3 stacks are added", "updates of 3 stacks are added"]),
        ("tpu-v6e", 8, ["lookups of 8 stacks are added", "updates of 8 stacks are added"]),
        ("tpu-v4", 1, ["TileSpmem of tpu-v4 has not been measured"]),
    ],
)
def test_what_is_modelled_says_how(chip, tables, modelled):
    """Measured is one stack alone, on v5p, v6e, 7x."""
    several = [Feature(f"t{k}", Table(f"t{k}", 100, 16, optimizer=SGD(0.1))) for k in range(tables)]
    batch = {f.name: np.arange(16, dtype=np.int32).reshape(16, 1) for f in several}
    made = plan([batch], several, TOPOLOGY, target=chip, table_stacking=False)
    assert made.heap.stack_basis == ("modelled" if modelled else "measured")
    parts = made.heap.stack_note.split("; ")
    if modelled:
        assert len(set(parts)) == len(modelled)
        assert all(any(part.startswith(text) for part in parts) for text in modelled)
    else:
        assert parts == ["rules measured ahead of time against libtpu 0.0.50.1"]


def test_a_chip_of_a_plan_has_the_memory_of_all_its_devices():
    batch = {"f": np.arange(16, dtype=np.int32).reshape(16, 1)}
    made = plan([batch], [Feature("f", Table("t", 100, 16))], Topology.for_target("tpu-7x"), target="tpu-7x")
    assert made.heap.capacity == 2 * target("tpu-7x").memory("hbm").usable < 192 << 30
    traffic = made.traffic
    assert traffic.hbm_bytes / traffic.least == pytest.approx(7.38e12)
    assert traffic.launches == 2 * gather_seconds(rows=0, width=16, dtype="f32", target="tpu-7x")


def test_what_does_not_compile_is_said_with_a_way_out():
    """Every id of a large batch meets one shard of one source: a partition no tile can hold."""
    table = Table("t", 4_000_000, 100, optimizer=SGD(0.1))
    batch = {"f": np.arange(65536, dtype=np.int32).reshape(4, -1) * 4}
    made = plan([batch], [Feature("f", table)], TOPOLOGY, target="tpu-v6e")
    assert made.limits["t"] == Limits(16384, 16384)
    assert made.fits is False
    assert "does not compile on tpu-v6e: stack t, sgd" in made.verdict
    best = made.stacks[0].backward.largest_limits
    assert f"limits of {best.max_ids_per_partition} ids and" in made.verdict


def test_tables_too_large_for_the_chip():
    made = plan(
        [{"f": np.zeros((4, 1), np.int32)}], [Feature("f", Table("t", 2 * 10**9, 16))], TOPOLOGY, target="tpu-v6e"
    )
    assert made.fits is False
    assert "does not fit on tpu-v6e" in made.verdict


def test_tables_that_the_host_could_hold():
    """The fewest, the largest first, without which HBM holds the rest, and what a step moves of them at most."""
    sizes = {"small": 10**6, "large": 10**9, "larger": 2 * 10**9}
    several = [Feature(n, Table(n, v, 16, optimizer=Adagrad(0.1))) for n, v in sizes.items()]
    batch = {f.name: np.arange(4, dtype=np.int32).reshape(4, 1) for f in several}
    for dense, names in ((0, ("larger",)), (40 * 2**30, ("larger", "large")), (100 * 2**30, ())):
        made = plan([batch], several, TOPOLOGY, target="tpu-v5p", dense_bytes=dense)
        assert (made.heap.dense, made.fits) == (dense, False)
        assert made.for_host == tuple(made.to_json()["tables_for_the_host"]) == names
        left = [f for f in several if f.name not in names]
        rest = plan([{f.name: batch[f.name] for f in left}], left, TOPOLOGY, target="tpu-v5p", dense_bytes=dense)
        assert rest.fits is bool(names)
        held = sum(t.padded_bytes for t in made.tables if t.name in names)  # rows and one slot, on two chips
        said = f"; or hold {', '.join(names)} on the host ({bytes_text(held)} a chip; at most "
        assert (said in made.verdict) is bool(names)
    assert plan([{"small": batch["small"]}], several[:1], TOPOLOGY, target="tpu-v5p").for_host == ()


def test_a_generator_is_read_once_and_progress_is_told():
    told = []
    plan((batch for batch in logs(3)), features(), TOPOLOGY, progress=told.append)
    assert told == [1, 2, 3]


def test_a_given_stacking_is_planned():
    mine = stack(features(), TOPOLOGY, table_stacking=False)
    made = plan(logs(1), features(), TOPOLOGY, stacking=mine)
    assert [s.name for s in made.stacks] == ["a", "b", "c"]
    with pytest.raises(UsageError, match="another topology"):
        plan(logs(1), features(), Topology(1, 4), stacking=mine)


@pytest.mark.parametrize(
    ("batches", "options", "text"),
    [
        ([], {}, "no batches"),
        (logs(1), {"quantile": 0.0}, "quantile 0.0"),
        (logs(1), {"quantile": 1.1}, "quantile 1.1"),
        (logs(1), {"prefetched_batches": -1}, "prefetched_batches"),
        (logs(1, samples=6), {}, "batch 1, feature .*6 does not divide over 4"),
        (logs(1), {"target": "tpu-v9"}, "no target called"),
        (logs(1), {"target": "cpu"}, "no SparseCores"),
    ],
)
def test_wrong_arguments(batches, options, text):
    with pytest.raises(UsageError, match=text):
        plan(batches, features(), TOPOLOGY, **options)


def test_json_is_plain_and_whole():
    value = json.loads(json.dumps(plan(logs(2), features(), TOPOLOGY, target="tpu-v5p").to_json(), allow_nan=False))
    assert (value["schema_version"], value["kind"], value["target"]) == (1, "embedding_plan", "tpu-v5p")
    assert [s["name"] for s in value["stacks"]] == ["a_b", "c"]
    assert {p["op"] for s in value["stacks"] for p in s["programs"]} == {"forward", "adagrad"}
    assert value["tables"][2]["wasted_by_width"] == 7 / 8
    assert value["hbm_per_chip"]["total_bytes"] < value["hbm_per_chip"]["capacity_bytes"]
    assert value["hbm_per_chip"]["exchange_bytes"] > 0
    assert [q["quantile"] for q in value["stacks"][0]["quantiles"]] == [0.5, 0.9, 0.99, 0.999, 1.0]
    assert sum(value["stacks"][0]["ids_per_shard"]) == pytest.approx(value["stacks"][0]["mean_ids"] * 2 * 16)
    assert {c["change"] for c in value["skew"]["changes"]} >= {"as it is", "ids hashed", "log shuffled"}
    assert value["savings"]["packed_tables"] == []  # 7 rows of one float: a line a shard either way
    assert value["tables"][2]["packed_bytes"] == value["tables"][2]["padded_bytes"]
    assert (value["feeding"]["host_basis"], value["feeding"]["step_basis"]) == ("measured", "modelled")
    assert value["curve"][0]["buffer_bytes_per_device"] == sum(s["buffer_bytes_per_device"] for s in value["stacks"])
    assert [p["fraction"] for p in value["curve"]] == [1.0, 0.9, 0.75, 0.5, 0.35, 0.25]


def test_limits_survive_the_file(tmp_path):
    made = plan(logs(2), features(), TOPOLOGY, 0.9)
    path = tmp_path / "limits.json"
    made.write_limits(path)
    assert read_limits(path) == made.limits
    value = json.loads(path.read_text())
    assert (value["schema_version"], value["quantile"], value["topology"]["sparsecores_per_chip"]) == (1, 0.9, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a limits file"),
        ('{"kind": "embedding_plan", "stacks": {}}', "not a limits file"),
        ('{"kind": "embedding_limits", "schema_version": 9, "stacks": {}}', "schema_version 9"),
        (
            '{"kind": "embedding_limits", "schema_version": 1, "stacks": {"a": {}}}',
            "stack 'a': max_ids_per_partition and max_unique",
        ),
        (
            '{"kind": "embedding_limits", "schema_version": 1, "stacks": {"a": {"max_ids_per_partition": 0, '
            '"max_unique_ids_per_partition": 2}}}',
            "stack 'a': max_ids_per_partition = 0 is not",
        ),
    ],
)
def test_bad_limits_files(tmp_path, text, message):
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_limits(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="cannot read it"):
        read_limits(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot write it"):
        plan(logs(1), features(), TOPOLOGY).write_limits(tmp_path / "no" / "limits.json")


def test_faces(capsys):
    made = plan(logs(2), features(), TOPOLOGY, target="tpu-v5p")
    made.print()
    out = capsys.readouterr().out
    assert "2 batches, 32 samples, 3 tables in 2 stacks on 4 SparseCores (2 chips)" in out
    assert made.verdict in out
    html = made.html()
    assert html.count("<table") == 8
    assert html.count("<svg") == 5
    for text in (
        "log shuffled",
        "hottest ids of its fullest shard",
        "arrangements",
        "this host makes a batch of all chips in",
    ):
        assert text in out
    assert ">a_b<" in html


def test_batches_may_come_in_one_buffer_used_again_and_again():
    """What is run again later is a copy."""
    room = {name: np.empty_like(values) for name, values in logs(1)[0].items()}

    def reused():
        for batch in logs(5):
            for name, values in batch.items():
                room[name][:] = values
            yield room

    one, two = (plan(given, features(), TOPOLOGY, 0.8) for given in (reused(), logs(5)))
    assert (one.curve, one.stacks, one.skew) == (two.curve, two.stacks, two.skew)


def test_bounded_memory_only_eight_batches_are_kept():
    import weakref

    class Batch(dict):
        pass

    alive = []

    def stream():
        for batch in logs(30):
            one = Batch(batch)
            alive.append(weakref.ref(one))
            yield one

    most = 0

    def watch(_):
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive))

    assert plan(stream(), features(), TOPOLOGY, progress=watch).replayed == 8
    assert most <= 8 + 3


def test_what_pipelining_holds():
    """Two more batches of inputs, and activations and gradients once more."""
    piped = plan(logs(2), features(), TOPOLOGY, target="tpu-v5p", prefetched_batches=0).heap
    plain = plan(logs(2), features(), TOPOLOGY, target="tpu-v5p", prefetched_batches=2, pipelining=False).heap
    assert (piped.inputs, plain.pipelined) == (0, 0)
    assert piped.pipelined == plain.inputs + plain.exchange
    assert piped.total - plain.total == plain.exchange


def several(widths):
    made = [Feature(f"t{k}", Table(f"t{k}", 100, w, optimizer=SGD(0.1))) for k, w in enumerate(widths)]
    return made, [{f.name: np.arange(16, dtype=np.int32).reshape(16, 1) for f in made}]


@pytest.mark.parametrize("widths", [[16] * 8, [256, 8, 64, 8, 8], [8], [16, 128]])
def test_serialized_tables_need_the_largest_that_are_live(widths):
    """The sum of the largest k, which never rises with the number in turn; 0 and 1 mean all of them."""
    features, batches = several(widths)
    plans = [
        plan(batches, features, TOPOLOGY, target="tpu-v5p", table_stacking=False, serialized_tables=n)
        for n in range(len(widths) + 2)
    ]
    for kind in ("forward", "backward"):
        sizes = sorted((getattr(s, kind).stack_bytes for s in plans[0].stacks), reverse=True)
        taken = [getattr(made.heap, f"{kind}_stack") // TOPOLOGY.sparsecores_per_chip for made in plans]
        assert taken == [sum(sizes[: max(1, len(sizes) - max(0, n - 1))]) for n in range(len(widths) + 2)]
        assert taken == sorted(taken, reverse=True)
    assert plans[-1].heap.stack_basis == ("measured" if len(widths) == 1 else "modelled")
    if len(widths) == 8:
        note = "the largest 5 of 8 stacks are live at a time, as 4 are processed in turn"
        assert note in plans[4].heap.stack_note


def test_all_stacks_together_take_what_the_largest_takes_at_least():
    features, batches = several([256, 8, 8])
    made = plan(batches, features, TOPOLOGY, target="tpu-v5p", table_stacking=False)
    chips = TOPOLOGY.sparsecores_per_chip
    assert made.heap.forward_stack >= max(s.forward.stack_bytes for s in made.stacks) * chips
    assert made.heap.backward_stack >= max(s.backward.stack_bytes for s in made.stacks) * chips


def test_a_plan_counts_the_slots_of_every_optimizer():
    padded = 4 * (16 * (128 + 64) + 8 * 32)  # bytes of the rows of a, b and c on 4 shards
    rows = 4 * (128 + 64 + 32)
    expected = {
        SGD(0.1): 0,
        Adagrad(0.1): padded,
        RowwiseAdagrad(0.1): rows,
        Adam(0.1): 2 * padded,
        FTRL(0.1): 2 * padded,
        Clipped(LaProp(0.1), high=1.0): 2 * padded,
    }
    for optimizer, slots in expected.items():
        found = plan(logs(1), features(optimizer), TOPOLOGY, target="tpu-v5p")
        assert found.heap.slots == slots // 2, optimizer
        assert found.heap.stack_basis == "modelled"
        inside = getattr(optimizer, "optimizer", optimizer)
        assert {stack.optimizer for stack in found.stacks} == {type(inside).__name__}
