"""The checks: silent on every good batch and changing nothing, and each proven by an injected fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed import batches
from tilewright.embed import (
    Feature,
    Limits,
    SparseCoreConfig,
    Table,
    Topology,
    check_host_batch,
    preprocess,
    stack,
)
from tilewright.embed.host.buffers import Buffers
from tilewright.errors import CheckFailed, LimitError

LOOSE = {"max_ids_per_chip_per_sample": 10**6}
BOUNDS = SparseCoreConfig(assert_level="bounds", **LOOSE)
CANARIES = SparseCoreConfig(buffer_contents_sanitizer_config="all", **LOOSE)
ALL = SparseCoreConfig(
    assert_level="bounds",
    buffer_contents_sanitizer_config="all",
    enable_id_bound_check=True,
    detect_nan=True,
    **LOOSE,
)
STACKING = stack([Feature("f", Table("a", 50, 8)), Feature("g", Table("b", 50, 8, combiner="mean"))], Topology(2, 2))
BATCH = {"f": np.arange(32).reshape(16, 2), "g": np.arange(16).reshape(16, 1)}


def same(one, other):
    for name in one.stacking.stacks:
        for kind in ("row_pointers", "embedding_ids", "sample_ids", "gains"):
            np.testing.assert_array_equal(getattr(one, kind)[name], getattr(other, kind)[name])


@settings(max_examples=tries(8), suppress_health_check=list(HealthCheck))
@given(
    batches.stackings(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "minibatch", "drop"]),
    st.integers(1, 12),
)
def test_good_batches_pass_every_check_and_are_the_same(plan, seed, overflow, most):
    batch = batches.given(batches.random_batch(plan, seed), seed)
    limits = None if overflow is None else {name: Limits(most, most) for name in plan.stacks}
    options = {} if overflow is None else {"overflow": overflow, "allow_id_dropping": True}
    same(preprocess(batch, plan, limits, **options), preprocess(batch, plan, limits, **options, sparsecore=ALL))


def moved(monkeypatch, slots):
    """The first stack's sources begin and end ``slots`` too late."""
    before = Buffers.places

    def places(self, required):
        found = before(self, required)
        found[0, :, :3] += slots
        return found

    monkeypatch.setattr(Buffers, "places", places)


@pytest.mark.parametrize("options", [{}, {"limits": {"a": Limits(1, 1), "b": Limits(8, 8)}, "overflow": "drop"}])
def test_a_write_outside_its_slots_is_caught(options, monkeypatch):
    moved(monkeypatch, 8)
    with pytest.raises(CheckFailed, match="a write to slot") as error:
        preprocess(BATCH, STACKING, **options, sparsecore=BOUNDS)
    assert error.value.where == "memory bounds: stack 'a', source 0"
    monkeypatch.undo()
    same(preprocess(BATCH, STACKING, sparsecore=BOUNDS), preprocess(BATCH, STACKING))


def test_a_pointer_outside_its_segment_is_caught(monkeypatch):
    before = Buffers.places

    def places(self, required):
        found = before(self, required)
        found[1, -1, 3] += 8
        return found

    monkeypatch.setattr(Buffers, "places", places)
    with pytest.raises(CheckFailed, match="row pointer"):
        preprocess(BATCH, STACKING, sparsecore=BOUNDS)


def test_partitions_larger_than_their_room_are_caught(monkeypatch):
    before = Buffers.places

    def places(self, required):
        found = before(self, required)
        found[0, 0, 2] = found[0, 0, 1] + 8
        return found

    monkeypatch.setattr(Buffers, "places", places)
    with pytest.raises(CheckFailed, match="a write to slot"):
        preprocess(BATCH, STACKING, sparsecore=BOUNDS)


def test_canaries_see_a_buffer_overrun(monkeypatch):
    moved(monkeypatch, 8)
    with pytest.raises(CheckFailed, match="8 canaries overwritten, the first 0 slots behind the end") as error:
        preprocess(BATCH, STACKING, sparsecore=CANARIES)
    assert error.value.where == "buffer check: stack 'a'"
    assert preprocess(BATCH, STACKING).num_minibatches == 1, "off by default"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("embedding_ids", 10**6, "local row 1000000 is not in 0 .. 15"),
        ("embedding_ids", -1, "local row -1"),
        ("sample_ids", 4, "sample 4 is not in 0 .. 3"),
        ("gains", np.nan, "a gain of nan"),
        ("gains", np.inf, "a gain of inf"),
    ],
)
def test_a_broken_entry_is_named(kind, value, message):
    host = preprocess(BATCH, STACKING)
    check_host_batch(host)
    memory = getattr(host, kind)["a"].copy()
    memory[0, 0] = value
    getattr(host, kind)["a"] = memory
    with pytest.raises(CheckFailed, match=message) as error:
        check_host_batch(host)
    assert "stack 'a', source 0, shard 0" in error.value.where


def test_the_guides_knob_checks_the_finished_buffers(monkeypatch):
    """Pointers that count from elsewhere; what a wrong slot holds depends on who had the memory before."""
    before = Buffers.places

    def places(self, required):
        found = before(self, required)
        found[0, :, 0] -= 2**20
        return found

    monkeypatch.setattr(Buffers, "places", places)
    with pytest.raises(CheckFailed, match="row pointers"):
        preprocess(BATCH, STACKING, sparsecore=SparseCoreConfig(enable_id_bound_check=True, **LOOSE))
    preprocess(BATCH, STACKING)


def test_broken_pointers_are_named():
    host = preprocess(BATCH, STACKING)
    host.row_pointers["b"][1, 3] = 2**20
    with pytest.raises(CheckFailed, match="row pointers"):
        check_host_batch(host)


def test_the_knobs_of_a_configuration_act():
    tight = {"a": Limits(1, 1), "b": Limits(1, 1)}
    dropping = SparseCoreConfig(allow_id_dropping=True, **LOOSE)
    lone = {"f": np.zeros((16, 1), int), "g": np.zeros((16, 1), int)}
    with pytest.raises(LimitError):
        preprocess(lone, STACKING, tight)
    assert preprocess(lone, STACKING, tight, sparsecore=dropping).stats["a"].dropped_ids.sum() == 12
    for knobs, table in (
        (SparseCoreConfig(max_ids_per_chip_per_sample=1), "all tables"),
        (SparseCoreConfig(max_ids_per_table={"a": 31}, **LOOSE), "a"),
        (SparseCoreConfig(max_unique_ids_per_table={"b": 15}, **LOOSE), "b"),
    ):
        with pytest.raises(LimitError) as error:
            preprocess(BATCH, STACKING, sparsecore=knobs)
        assert (error.value.table, error.value.observed > error.value.limit) == (table, True)
    enough = SparseCoreConfig(max_ids_per_table={"a": 32}, max_unique_ids_per_table={"b": 16}, **LOOSE)
    same(preprocess(BATCH, STACKING, sparsecore=enough), preprocess(BATCH, STACKING))
