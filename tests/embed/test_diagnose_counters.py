"""Counters of batches, of plans and of files: what a diagnosis is made from."""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.embed import (
    COUNTERS_TEMPLATE,
    Counters,
    Feature,
    Limits,
    Seconds,
    SparseCoreConfig,
    Table,
    Topology,
    batch_counters,
    diagnose,
    plan,
    preprocess,
    read_counters,
    stack,
)
from tilewright.embed.diagnosis.sources import parse_counters, partition_counts
from tilewright.embed.model.counters import HbmCounters, StackCounters, TableCounters
from tilewright.errors import TilewrightError, UsageError
from tilewright.targets import target

FEATURES = [Feature("user", Table("user", 1000, 16)), Feature("item", Table("item", 77, 16))]
TOPOLOGY = Topology(chips=2, sparsecores_per_chip=2)
STACKING = stack(FEATURES, TOPOLOGY)


def batch(seed, samples=32):
    draw = np.random.default_rng(seed)
    return {
        "user": draw.integers(0, 1000, (samples, 5)),
        "item": [draw.integers(0, 77, n).tolist() for n in draw.integers(0, 6, samples)],
    }


@pytest.mark.parametrize(
    ("limits", "overflow"),
    [(None, "error"), (Limits(9, 5), "minibatch"), (Limits(9, 5), "drop"), (Limits(99, 99), "minibatch")],
)
@pytest.mark.parametrize("sources", [None, range(2, 4)])
def test_partitions_counted_from_row_pointers(limits, overflow, sources):
    made = preprocess(batch(0), STACKING, {"user_item": limits} if limits else None, overflow=overflow, sources=sources)
    counted, distinct = (partition_counts(made, "user_item", rows) for rows in (False, True))
    for i, source in enumerate(made.sources):
        for shard in range(4):
            assert counted[i, shard] == len(made.partition("user_item", source, shard)[0])
            assert distinct[i, shard] == len(set(made.partition("user_item", source, shard)[0].tolist()))


def test_batches_under_limits():
    limits = {"user_item": Limits(9, 5)}
    whole = [preprocess(batch(seed), STACKING) for seed in range(3)]
    cut = batch_counters((preprocess(batch(seed), STACKING, limits) for seed in range(3)), limits, "tpu-v5p")
    kept = batch_counters(iter(whole))
    assert (kept.steps, kept.minibatches, kept.steps_over) == (3, 3, 0.0)
    assert cut.minibatches > 3
    assert cut.steps_over == 1.0
    assert cut.minibatch_layout
    one, two = cut.stacks["user_item"], kept.stacks["user_item"]
    assert (one.ids, one.shard_ids, one.observed_ids) == (two.ids, two.shard_ids, two.observed_ids)
    planned = plan((batch(seed) for seed in range(3)), FEATURES, TOPOLOGY, stacking=STACKING).stacks[0]
    assert (two.wait, two.wait_rows, two.wait_ids) == (planned.wait, planned.wait_rows, planned.wait_ids)
    on_chip = batch_counters(iter(whole), None, "tpu-v5p").stacks["user_item"]
    assert one.wait == on_chip.wait == plan(map(batch, range(3)), FEATURES, TOPOLOGY, target="tpu-v5p").stacks[0].wait
    assert two.ids == sum(len(b.partition("user_item", s, t)[0]) for b in whole for s in range(4) for t in range(4))
    names = {each.bottleneck for each in diagnose(cut).findings}
    assert {"limits-too-low", "mini-batching"} <= names
    assert "mini-batching" in diagnose(kept).clear


def test_batches_that_drop_and_change_shape():
    limits = {"user_item": Limits(9, 9)}
    made = batch_counters((preprocess(batch(s), STACKING, limits, overflow="drop") for s in range(2)), limits)
    each = made.stacks["user_item"]
    assert each.dropped_ids > 0
    assert each.ids == batch_counters(preprocess(batch(s), STACKING) for s in range(2)).stacks["user_item"].ids
    assert "id-dropping" in {found.bottleneck for found in diagnose(made).findings}
    grown = batch_counters(preprocess(batch(s, samples), STACKING) for s, samples in ((0, 8), (1, 512), (2, 512)))
    assert grown.compilations == 2
    wide = batch_counters([preprocess(batch(0), STACKING, {"user_item": Limits(99, 99)})])
    (idle,) = (found for found in diagnose(wide).findings if found.bottleneck == "idle-mini-batching")
    sixtyfourth = batch_counters([preprocess(batch(0), STACKING, {"user_item": Limits(99, 99)}, overflow="error")])
    assert wide.buffer_bytes == 64 * sixtyfourth.buffer_bytes
    assert idle.evidence["buffer bytes"] == wide.buffer_bytes


def test_batches_of_nothing_or_of_two_models():
    with pytest.raises(UsageError, match="no batches"):
        batch_counters([])
    other = stack(FEATURES, TOPOLOGY, table_stacking=False)
    with pytest.raises(UsageError, match="several stackings"):
        batch_counters([preprocess(batch(0), STACKING), preprocess(batch(0), other)])


def test_a_plan_as_counters_and_measured_times_on_top():
    made = plan((batch(s) for s in range(3)), FEATURES, TOPOLOGY, target="tpu-v5p", quantile=0.5)
    counters = made.counters()
    each = counters.stacks["user_item"]
    assert counters.shards == 4
    assert each.limits == made.stacks[0].limits
    assert each.observed_ids == made.stacks[0].observed.max_ids_per_partition
    assert "limits-too-low" in {found.bottleneck for found in diagnose(made).findings}
    measured = counters.merged(
        Counters(seconds=Seconds(step=0.01, wait=0.005), stacks={"user_item": StackCounters(dropped_ids=3)})
    )
    assert measured.stacks["user_item"].observed_ids == each.observed_ids
    assert (measured.stacks["user_item"].dropped_ids, measured.target) == (3, "tpu-v5p")
    assert measured.seconds.host == counters.seconds.host
    assert diagnose(measured).findings[0].bottleneck == "host-bound"
    assert measured.to_json()["hbm"]["tables"] == made.heap.tables


def test_a_plans_json_and_a_runs_report_hold_its_counters(tmp_path):
    made = plan((batch(s) for s in range(3)), FEATURES, TOPOLOGY, target="tpu-v5p")
    for name, value in (("plan", made.to_json()), ("report", {"kind": "run", "plan": made.to_json()})):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
        assert read_counters(tmp_path / f"{name}.json") == made.counters()
    assert (
        diagnose(made).to_json()["findings"] == diagnose(read_counters(tmp_path / "report.json")).to_json()["findings"]
    )


def test_a_share_of_nothing_is_known_and_default_knobs_too():
    made = Counters("tpu-v5p", steps=3, steps_over=0.0, sparsecore=SparseCoreConfig())
    again = parse_counters(made.to_json())
    assert again == made
    assert "mini-batching" in diagnose(again).clear
    assert "checks-left-on" in diagnose(again).clear
    assert "checks-left-on" in diagnose(Counters()).not_judged


def test_json_comes_back(tmp_path):
    made = batch_counters([preprocess(batch(0), STACKING)], {"user_item": Limits(9, 5)}, "tpu-v6e")
    made = made.merged(Counters(hbm=HbmCounters(tables=5, capacity=9), seconds=Seconds(step=0.5)))
    for name, value in (("counters", made.to_json()), ("diagnosis", diagnose(made).to_json())):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(value))
        assert read_counters(path) == made


def test_the_template_is_a_file_that_reads(tmp_path):
    (tmp_path / "t.toml").write_text(COUNTERS_TEMPLATE)
    made = read_counters(tmp_path / "t.toml")
    assert set(tomllib.loads(COUNTERS_TEMPLATE)["stack"]["user_item"]) <= set(vars(made.stacks["user_item"]))
    assert made.hbm.capacity == target("tpu-v5p").memory("hbm").usable
    assert made.shards == 16
    assert not diagnose(made).severe


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"secondes": {}}, "unknown key 'secondes'; did you mean seconds?"),
        ({"seconds": {"stepp": 1}}, "counters: seconds: unknown key 'stepp'; did you mean step?"),
        ({"seconds": {"step": "fast"}}, "step = 'fast': expected a number, got a text"),
        ({"seconds": {"step": -1}}, "step = -1: expected a number of at least 0"),
        ({"seconds": {"step": True}}, "step = True: expected a number, got true or false"),
        ({"seconds": 3}, "3 is not a table of values"),
        ({"stack": {"a": {"tables": 1.5}}}, "stack 'a': tables = 1.5: expected a whole number"),
        ({"stack": {"a": 3}}, "stack 'a': 3 is not a table of values"),
        ({"table": {"a": {"vocab": 3}}}, "width missing"),
        ({"table": {"a": {"vocab": 3, "width": 0}}}, "width = 0: expected a whole number of at least 1"),
        ({"table": [{"name": "a"}]}, "a model, not counters; `tilewright embed diagnose LOG --config MODEL`"),
        ({"table": 3}, r"write \[table.NAME\] for each"),
        ({"target": 5}, "target = 5: expected a text"),
        ({"target": "tpu-v9", "chips": 2}, "tpu-v9"),
        ({"target": "cpu", "chips": 2}, "cpu has no SparseCores"),
        ({"chips": 0}, "chips = 0: expected a whole number of at least 1"),
        ({"steps": 1.5}, "steps = 1.5: expected a whole number"),
        ({"sparsecore": {"detect_nan": 3}}, "detect_nan"),
        ({"kind": "embedding_limits"}, "kind 'embedding_limits' holds no counters"),
        ({"kind": "embedding_plan"}, "holds no counters"),
        ([], r"\[\] is not a table of values"),
        ({"stack": {"a": {"shard_ids": [1, "x"]}}}, r"shard_ids\[1\]: expected a whole number, got a text"),
        ({"stack": {"a": {"shard_ids": 3}}}, "shard_ids = 3: expected a list"),
        ({"stack": {"a": {"hot": ["t", 1]}}}, "hot = .* expected a list of length 3, got 2"),
        ({"stack": {"a": {"remedies": {"hash": [1, 2]}}}}, "remedies.* expected a list of length 3, got 2"),
    ],
)
def test_wrong_counters(value, message):
    with pytest.raises(UsageError, match=message):
        parse_counters(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "a = ", "not TOML"),
        ("a.json", "{", "not JSON"),
        ("a.toml", b"\xff\xfe", "not UTF-8"),
        ("none.toml", None, "cannot read it"),
    ],
)
def test_wrong_files(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        read_counters(tmp_path / name)


NUMBERS = st.integers(0, 10**12) | st.floats(0, 1e12) | st.none() | st.text(max_size=3) | st.just(-1)
NAMES = st.sampled_from(
    [each.name for kind in (Counters, Seconds, HbmCounters, StackCounters, TableCounters) for each in fields(kind)]
    + ["stack", "table", "tpu-v5p", "Adagrad", "kind", "x"]
)
VALUES = st.recursive(
    NUMBERS | NAMES | st.booleans(),
    lambda inner: st.dictionaries(NAMES, inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=tries(30))
@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_anything_is_counters_or_one_error(value):
    """And whatever counters there are, they can be judged and told."""
    try:
        made = parse_counters(value)
    except TilewrightError:
        return
    told(made)


def sensible(kind):
    """Counters of a kind, each known or not, of any size."""
    kinds = {"Amount": st.floats(0, 1e9), "Count": st.integers(0, 10**9), "Positive": st.integers(1, 300)}
    kinds |= {"Ids": kinds["Count"], "Width": kinds["Positive"]}
    given = {}
    for each in fields(kind):
        base = str(each.type).split(" ")[0]
        if base in kinds:
            least = st.integers(1, 300) if each.name == "tables" else kinds[base]
            given[each.name] = least if each.default is MISSING else st.one_of(st.just(each.default), least)
    return st.builds(kind, **given)


@settings(max_examples=tries(20))
@given(
    st.sampled_from(["", "tpu-v4", "tpu-v5p", "tpu-v6e", "tpu-7x"]),
    sensible(Counters),
    sensible(Seconds),
    st.builds(HbmCounters, tables=st.integers(0, 2**38), capacity=st.integers(1, 2**38), moved=st.integers(0, 2**40)),
    st.dictionaries(st.text(max_size=3), sensible(StackCounters), max_size=3),
    st.dictionaries(st.text(max_size=3), sensible(TableCounters), max_size=3),
)
def test_any_counters_can_be_judged(target, counters, seconds, hbm, stacks, tables):
    told(replace(counters, target=target, sparsecores=16, seconds=seconds, hbm=hbm, stacks=stacks, tables=tables))


def told(made):
    judged = diagnose(made)
    assert judged.text()
    assert str(judged.html())
    assert json.loads(json.dumps(judged.to_json(), allow_nan=False))
    assert all(found.advice and found.source for found in judged.findings)
