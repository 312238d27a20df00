"""Checks against brute force over all partitions; bad input is one error, and the same stacking works afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.embed.test_plan import TOPOLOGY, counts, features, logs
from tilewright.embed import COO, Limits, SparseCoreConfig, check_batches, plan, preprocess, stack
from tilewright.embed.model.tables import limits_json, limits_of
from tilewright.errors import LimitError, UsageError

STACKING = stack(features(), TOPOLOGY, batch_size=16)


def observed(batches):
    seen = {name: counts(batches, STACKING, name).max(axis=0) for name in STACKING.stacks}
    return {name: Limits(int(ids), int(unique)) for name, (ids, unique) in seen.items()}


def test_the_plans_limits_hold_and_one_less_does_not():
    batches = logs(6)
    made = plan(batches, features(), TOPOLOGY)
    limits = {stack.name: stack.observed for stack in made.stacks}
    assert limits == observed(batches)
    assert made.limits == {name: most.with_headroom(0) for name, most in limits.items()}
    assert check_batches(batches, STACKING, made.limits).passed
    whole = check_batches(iter(batches), STACKING, limits)
    assert (whole.passed, whole.batches, whole.batches_over, whole.minibatches) == (True, 6, 0, 1)
    assert all(each.observed == each.limit for each in whole.limits)
    less = {**limits, "c": Limits(limits["c"].max_ids_per_partition - 1, limits["c"].max_unique_ids_per_partition - 1)}
    told = []
    found = check_batches(batches, STACKING, less, progress=told.append)
    assert (found.passed, told) == (False, [1, 2, 3, 4, 5, 6])
    assert [e.knob for e in found.limits if e.over] == ["max_ids_per_partition", "max_unique_ids_per_partition"]
    cut = [preprocess(b, STACKING, less, allow_id_dropping=True).num_minibatches for b in batches]
    assert found.minibatches == max(cut) > 1
    over = []
    for batch in batches:
        try:
            preprocess(batch, STACKING, less, overflow="error")
        except LimitError as error:
            over.append(error)
    assert found.batches_over == len(over)
    worst = next(e for e in found.limits if e.over)
    batch, source, shard = (int(word.split(" ")[1]) for word in worst.place.split(", "))
    ids, _, _ = preprocess(batches[batch], STACKING).partition("c", source, shard)
    assert len(ids) == worst.observed


def test_bounds_of_tables_samples_and_chips():
    batches = logs(3)
    knobs = SparseCoreConfig(
        max_ids_per_chip_per_sample=4, max_ids_per_table={"a": 50, "c": 1000}, max_unique_ids_per_table={"a": 50}
    )
    found = {(e.what, e.knob): e for e in check_batches(batches, STACKING, {}, knobs).limits}
    table_of = {f.name: f.table for f in features()}
    alone = stack(features(), TOPOLOGY, table_stacking=False)
    sums = {name: max(counts([b], alone, name)[:, 0].sum() for b in batches) for name in "ac"}
    assert found["a", "max_ids_per_table"].observed == sums["a"]
    assert found["c", "max_ids_per_table"].observed == sums["c"]
    assert found["a", "max_ids_per_table"].over
    unique = max(counts([b], alone, "a")[:, 1].sum() for b in batches)
    assert found["a", "max_unique_ids_per_table"].observed == unique
    most = 0
    for batch in batches:
        for sample in range(16):
            per_chip = [0, 0]
            for name, values in batch.items():
                place = STACKING.tables[table_of[name].name]
                for i in set(values[sample].tolist()):
                    per_chip[(i + place.rotation) % 4 // 2] += 1
            most = max(most, *per_chip)
    assert found["all tables", "max_ids_per_chip_per_sample"].observed == most > 4


def test_json_is_plain():
    value = json.loads(json.dumps(check_batches(logs(1), STACKING, {"c": Limits(1, 1)}).to_json()))
    assert (value["kind"], value["passed"], value["schema_version"]) == ("embedding_check", False, 1)
    assert value["limits"][0]["over"] is True


def test_wrong_questions():
    with pytest.raises(UsageError, match="no batches"):
        check_batches([], STACKING, {})
    with pytest.raises(UsageError, match="'d', which is no stack"):
        check_batches(logs(1), STACKING, {"d": Limits(1, 1)})
    with pytest.raises(UsageError, match="'d', which is no table"):
        check_batches(logs(1), STACKING, {}, SparseCoreConfig(max_ids_per_table={"d": 1}))


def bad(change):
    return {**logs(1)[0], **change}


@pytest.mark.parametrize(
    ("batch", "limits", "message"),
    [
        (bad({"fa": (np.array([1, 2]), np.array([0, 2, 1] + [2] * 14))}), None, "offsets decrease"),
        (bad({"fa": np.zeros((16, 2))}), None, "ids of type float64"),
        (bad({"fa": [["x"]] * 16}), None, "ids of type"),
        (bad({"fa": (np.array([1]), np.array([0] + [1] * 16), np.array([np.nan]))}), None, "weights\\[0\\] is nan"),
        (bad({"fa": COO([0], [1], 16, weights=["w"])}), None, "weights are not numbers"),
        (bad({"fa": np.zeros((15, 2), int)}), None, "15 does not divide over 4"),
        ({k: v for k, v in logs(1)[0].items() if k != "fb"}, None, "no input for feature 'fb'"),
        (bad({"fx": [[1]] * 16}), None, "no feature called 'fx'"),
        (bad({"fa": np.full((16, 2), 100)}), None, "id 100 of sample 0 is not in 0 .. 99"),
        (bad({}), {"a": Limits(1, 1)}, "its stack is 'a_b'"),
        (bad({}), {"c": Limits(1, 1), "nothing": Limits(1, 1)}, "which is no stack"),
        (bad({}), {"c": (1, 1)}, "is not a Limits"),
    ],
)
def test_bad_input_is_one_error_and_the_same_stacking_works_afterwards(batch, limits, message):
    good = logs(1)[0]
    before = preprocess(good, STACKING)
    want = [[part.copy() for part in before.partition(name, 1, 2)] for name in STACKING.stacks]
    with pytest.raises(UsageError, match=message) as error:
        preprocess(batch, STACKING, limits)
    assert "\n" not in str(error.value)
    after = preprocess(good, STACKING)
    for name, parts in zip(STACKING.stacks, want):
        for a, b in zip(after.partition(name, 1, 2), parts):
            np.testing.assert_array_equal(a, b)


def test_limits_of_more_distinct_ids_than_ids():
    """A check and a file refuse them alike; a batch is made as the second limit never binds."""
    wrong = {name: Limits(8, 9) for name in STACKING.stacks}
    told = "max_unique_ids_per_partition 9 is above max_ids_per_partition 8; no partition has more distinct ids"
    with pytest.raises(UsageError, match=f"limits of 'a_b': {told}"):
        check_batches(logs(1), STACKING, wrong)
    with pytest.raises(UsageError, match=told):
        limits_json(wrong)
    with pytest.raises(UsageError, match=f"^here: {told}"):
        limits_of({"max_ids_per_partition": 8, "max_unique_ids_per_partition": 9}, "here")
    assert preprocess(logs(1)[0], STACKING, wrong, overflow="drop").num_minibatches == 1
