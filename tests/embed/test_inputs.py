"""Bad input: one clear error each, and the next batch works as if nothing had been."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.embed import COO, Feature, Limits, Table, Topology, preprocess, stack
from tilewright.errors import UsageError

USER, ITEM = Table("user", 10, 8), Table("item", 20, 8, combiner="mean")
PLAN = stack([Feature("u", USER), Feature("i", ITEM)], Topology(1, 2))
GOOD = {"u": [[1], [2], [3], [4]], "i": [[1], [2]]}


def attempt(u=GOOD["u"], i=GOOD["i"], **options):
    return preprocess({"u": u, "i": i}, PLAN, **options)


FLAT = [1, 2, 3, 4]
BAD_INPUTS = {
    "one sample": ([[1]], "feature 'u': a batch of 1 does not divide over 2 SparseCores"),
    "empty array": (np.zeros((0, 1), int), "feature 'u': an array of shape (0, 1)"),
    "three dimensions": (np.zeros((2, 1, 1), int), "feature 'u': an array of shape (2, 1, 1)"),
    "floats": (np.ones((2, 1)), "feature 'u': ids of type float64; ids and offsets are integers"),
    "texts": ([["a"], ["b"]], "feature 'u': ids of type <U1"),
    "none": (None, "feature 'u': ids of type object"),
    "a mixed list": ([[1], 2], "feature 'u': a list that mixes ids and lists"),
    "nested too deep": ([[[1]], [[2]]], "feature 'u': lists nested deeper"),
    "beyond int64 and negative": ([[2**63], [-1]], "feature 'u': ids hold 9223372036854775808, which int64 does not"),
    "too large": ([[2**70], [1]], "feature 'u': ids "),
    "one array in a tuple": ((FLAT,), "feature 'u': a tuple of 1 is not an input"),
    "values not flat": (([FLAT], [0, 2, 4]), "feature 'u': values of shape (1, 4) are not flat"),
    "no offsets": ((FLAT, []), "feature 'u': offsets of shape (0,)"),
    "one offset": ((FLAT, [4]), "feature 'u': offsets of shape (1,)"),
    "offsets decrease": ((FLAT, [0, 3, 2, 4, 4]), "feature 'u': offsets decrease: offsets[1] = 3, offsets[2] = 2"),
    "offsets too short": ((FLAT, [0, 1, 3]), "feature 'u': offsets run from 0 to 3, but there are 4 values"),
    "offsets from one": ((FLAT, [1, 2, 4]), "feature 'u': offsets run from 1 to 4"),
    "offsets are floats": ((FLAT, [0.0, 4.0]), "feature 'u': offsets of type float64"),
    "too few weights": ((FLAT, [0, 2, 4], [1, 1]), "feature 'u': weights of shape (2,) for 4 values"),
    "weights are texts": ((FLAT, [0, 2, 4], list("abcd")), "feature 'u': weights are not numbers"),
    "NaN": ((FLAT, [0, 2, 4], [1, np.nan, 1, 1]), "feature 'u': weights[1] is nan"),
    "beyond float32": ((FLAT, [0, 2, 4], [1, 1, 1e60, 1]), "feature 'u': weights[2] is inf"),
    "COO without a batch": (COO([0], [1], 0), "feature 'u': batch_size = 0"),
    "COO of two lengths": (COO([0], [1, 2], 2), "feature 'u': row_ids of shape (1,), col_ids of shape (2,)"),
    "COO beyond the batch": (COO([0, 2], [1, 2], 2), "feature 'u': row_ids[1] = 2 is not a sample of a batch of 2"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs(name):
    given, message = BAD_INPUTS[name]
    with pytest.raises(UsageError) as error:
        attempt(u=given)
    assert message in str(error.value)
    assert attempt().partition("user", 0, 1)[0].tolist() == [0]


@pytest.mark.parametrize("bad", [-1, 10, 2**40, 2**64 - 1])
def test_a_bad_id_is_named(bad):
    """As the second id of sample 2, in lists and in arrays."""
    with pytest.raises(UsageError) as error:
        attempt(u=[[1], [], [2, bad, bad], [3]])
    assert str(error.value).startswith(
        f"table 'user', feature 'u': id {bad} of sample 2 is not in 0 .. 9; mend the data"
    )
    with pytest.raises(UsageError, match=rf"id {bad} of sample 1 "):
        attempt(u=np.array([[1], [bad]], np.uint64 if bad >= 2**63 else np.int64))


def test_the_first_bad_id_of_the_first_feature_is_named():
    with pytest.raises(UsageError, match=r"table 'user', feature 'u': id 11 of sample 3"):
        attempt(u=[[1], [2], [3], [11]], i=[[-5], [0]])


def test_a_bad_id_of_another_process_is_not_ours():
    plan = stack([Feature("u", USER)], Topology(2, 1))
    batch = {"u": [[1], [2], [3], [99]]}
    assert preprocess(batch, plan, sources=range(1)).stats["user"].max_ids_per_partition.tolist() == [1, 1]
    with pytest.raises(UsageError, match="id 99 of sample 3"):
        preprocess(batch, plan, sources=range(1, 2))


def test_weights_that_have_no_mean_are_named():
    with pytest.raises(UsageError, match="feature 'i': the weights of sample 1 sum to 0, so their mean has no value"):
        attempt(i=([1, 2, 3], [0, 1, 3], [1, 2, -2]))
    squared = stack([Feature("f", Table("t", 9, 8, combiner="sqrtn"))], Topology(1, 1))
    with pytest.raises(UsageError, match="feature 'f': the weights of sample 0 sum to 0, so their sqrtn"):
        preprocess({"f": ([1], [0, 1], [0.0])}, squared)
    with pytest.raises(UsageError, match="weights of sample 0 sum to inf"):
        preprocess({"f": ([1, 2], [0, 2], [3e38, 3e38])}, squared)
    assert attempt(u=([1, 2], [0, 1, 2], [0.0, 1.0])).partition("user", 0, 1)[2].tolist() == [0.0]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"u": [[1], [2]]}, "batch: no input for feature 'i'"),
        ({**GOOD, "ux": [[1]]}, "batch: no feature called 'ux'; did you mean u?"),
    ],
)
def test_features_missing_and_unknown(batch, message):
    with pytest.raises(UsageError) as error:
        preprocess(batch, PLAN)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overflow": "abort"}, "preprocess: overflow = 'abort'; one of minibatch, drop, error"),
        ({"bad_ids": "wrap"}, "preprocess: bad_ids = 'wrap'; one of error, clip, drop"),
        ({"drop_order": "first"}, "preprocess: drop_order = 'first'"),
        ({"sources": range(3)}, "sources = range(0, 3) is not a range of the 2 SparseCores"),
        ({"sources": [0, 1]}, "sources = [0, 1] is not a range"),
        ({"sources": range(1)}, "sources = range(0, 1) cuts a device of 2 SparseCores"),
        ({"limits": {"users": Limits(1, 1)}}, "limits: limits for 'users', which is no stack; stacks are user, item"),
        ({"limits": {"user": (1, 1)}}, "limits of 'user': (1, 1) is not a Limits"),
        ({"limits": {"user": Limits(2**30, 1)}}, "stack 'user': the buffer would have 274877906944 slots per device"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UsageError) as error:
        attempt(**options)
    assert message in str(error.value)


def test_buffers_beyond_memory_are_refused_before_they_are_touched():
    plan = stack([Feature("f", Table("t", 9, 8))], Topology(256, 4))
    with pytest.raises(UsageError, match=r"the buffers take 1649535877120 bytes, the machine has \d+; lower max_ids"):
        preprocess({"f": np.zeros((1024, 1), int)}, plan, {"t": Limits(2048, 2048)})


def test_a_batch_prints_in_a_line():
    assert repr(attempt()) == "<HostBatch of 2 features: 2 stacks, 2 sources, 1 mini-batches>"


def test_limits_for_a_stacked_table_name_its_stack():
    plan = stack([Feature("a", Table("a", 9, 8)), Feature("b", Table("b", 9, 8))], Topology(1, 1))
    with pytest.raises(UsageError, match="limits for 'a', which is no stack; its stack is 'a_b'"):
        preprocess({"a": [[1]], "b": [[1]]}, plan, limits={"a": Limits(1, 1)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody", 0, 0), "no stack called 'nobody'"),
        (("user", 2, 0), "source 2 is not in this batch; 0 to 1"),
        (("user", 0, 2), "shard 2 is not in this batch; 0 to 1"),
        (("user", 0, 0, 1), "minibatch 1 is not in this batch; 0 to 0"),
    ],
)
def test_partitions_that_are_not_there(arguments, message):
    with pytest.raises(UsageError) as error:
        attempt().partition(*arguments)
    assert message in str(error.value)
