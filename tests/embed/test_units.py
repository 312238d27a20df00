"""Tables sorted one by one or together, and buffers that come back: neither shows in what preprocessing returns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.embed import batches
from tests.embed.test_preprocess import check_against_oracle
from tilewright.embed import Feature, Limits, Table, Topology, preprocess, stack
from tilewright.embed.host import tally as _tally

MANY = stack([Feature(f"f{k}", Table(f"t{k}", 40 * k + 9, 8)) for k in range(6)], Topology(3, 4))


@pytest.mark.parametrize("few", [1, 10**9])
@pytest.mark.parametrize("weighted", [0.0, 0.5])
def test_tables_sorted_alone_and_together_make_the_same_buffers(few, weighted, monkeypatch):
    monkeypatch.setattr(_tally, "_FEW", few)
    plan = stack(MANY.features, MANY.topology)
    batch = batches.random_batch(plan, 3, most=30, hot=5, weighted=weighted)
    host = preprocess(batches.given(batch, 3), plan)
    assert sorted({len(units) for units, _ in plan.__dict__["_units"].values()}) == ([6] if few == 1 else [1])
    check_against_oracle(plan, batch, host)


def test_units_grow_as_ids_get_few():
    assert _tally._tables_per_unit(10**6, 26, 16) == 1
    assert _tally._tables_per_unit(_tally._FEW * 26 * 4 // 5, 26, 4) == 5
    assert _tally._tables_per_unit(0, 26, 4) == 26


def buffers(host):
    return [getattr(host, name)["t"] for name in ("embedding_ids", "sample_ids", "gains")]


@pytest.mark.parametrize("limits", [None, {"t": Limits(16, 16)}])
def test_slots_that_an_earlier_batch_used_are_padding_again(limits):
    plan = stack([Feature("f", Table("t", 64, 8))], Topology(1, 2, devices=1))
    full, sparse = np.arange(24).reshape(12, 2), np.arange(24).reshape(12, 2) % 2 + 40
    full[:, 1] = 40 + np.arange(12)
    fresh = [np.array(a) for a in buffers(preprocess({"f": sparse}, plan, limits))]
    held = [a.ctypes.data for a in buffers(preprocess({"f": full}, plan, limits))]  # nothing refers to it any more
    again = preprocess({"f": sparse}, plan, limits)
    assert limits is None or again.minibatch_layout
    for mine, first in zip(buffers(again), fresh):
        assert np.array_equal(mine, first, equal_nan=mine.dtype == np.float32)
    assert limits is None or held == [a.ctypes.data for a in buffers(again)]  # the memory did come back


def test_buffers_are_read_only():
    plan = stack([Feature("f", Table("t", 8, 8))], Topology(1, 1))
    host = preprocess({"f": [[1], [2]]}, plan)
    for array in buffers(host):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
