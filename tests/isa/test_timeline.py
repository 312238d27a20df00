"""The timeline of a run: its lanes add up to the run's own accounts, and a trace changes nothing."""

from __future__ import annotations

from collections import Counter as Tally
from itertools import pairwise

import numpy as np
import pytest

from tilewright.isa import MatrixUnit, MatrixUnitConfig, matmul
from tilewright.isa.execute.run import timeline
from tilewright.trace import Counter, Instant, Slice, perfetto_bytes

CASES = [
    ({"m": 20, "n": 40, "k": 70}, {}),
    ({"m": 64, "n": 64, "k": 64, "threads": 32}, {"ka": 2, "kb": 2}),
    ({"m": 16, "n": 24, "k": 40, "l1_bytes": 256}, {"transpose_b": True, "order": "column_outer"}),
    ({"m": 33, "n": 48, "k": 64, "pes": 2}, {"split": "rows"}),
    ({"m": 24, "n": 64, "k": 64}, {"segments": 2}),
    ({"m": 24, "n": 64, "k": 64, "math_issue": "instruction"}, {}),
]


def product(m, n, k, trace, how, **fields):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype(np.int8) for shape in ((m, k), (k, n)))
    return matmul(a, b, config=MatrixUnitConfig(**fields), trace=trace, **how)


def spent(events, process, lane):
    """Cycles by name in one lane, whose slices do not overlap."""
    slices = sorted(
        (e for e in events if isinstance(e, Slice) and e.track.process == process and e.track.lane == lane),
        key=lambda e: e.start,
    )
    assert all(a.start + a.duration <= b.start for a, b in pairwise(slices))
    total = Tally()
    for each in slices:
        total[each.name] += each.duration
    return total


@pytest.mark.parametrize(("sizes", "how"), CASES)
def test_lanes_add_up_and_a_trace_changes_nothing(sizes, how):
    plain, traced = product(trace=False, how=how, **sizes), product(trace=True, how=how, **sizes)
    assert (plain.value == traced.value).all()
    assert (plain.counts, plain.cycles, plain.stalls, plain.queue) == (
        traced.counts,
        traced.cycles,
        traced.stalls,
        traced.queue,
    )
    assert not plain.trace
    runs = traced.pes or (traced,)
    for number, run in enumerate(runs):
        name = f"PE {number}"
        waits = spent(traced.trace, name, "issue queue waits")
        assert waits == {k: v for k, v in run.queue.items() if v and k not in ("issued", "drain")}
        idle = spent(traced.trace, name, "math idle")
        assert idle == {k: v for k, v in run.stalls.items() if v and k != "after"}
        issued = [e for e in traced.trace if isinstance(e, Slice) and e.track.process == name and e.track.lane in LANES]
        assert len(issued) == run.queue["issued"]
        last = {}
        for event in traced.trace:
            if isinstance(event, Counter) and event.track.process == name:
                assert event.value >= last.get(event.track.lane, 0)
                last[event.track.lane] = event.value
        assert last["L1 misses"] == run.counts.l1_misses
        assert last["DRAM bytes"] == run.counts.dram_bytes


LANES = ("arithmetic", "math", "load-store", "control", "dma")


def test_transfers_are_drawn_once():
    traced = product(24, 64, 64, True, {"segments": 2})
    moved = [e for e in traced.trace if e.track.process == "DMA"]
    assert sum(dict(e.args)["bytes"] for e in moved) == traced.dma_bytes
    assert perfetto_bytes(traced.trace)


def test_a_long_run_says_where_its_timeline_ends(monkeypatch):
    monkeypatch.setattr("tilewright.isa.chip.clock.MOST_EVENTS", 10)
    run = MatrixUnit().run(
        "mov r0, 0\nagain:\nadd r0, r0, 1\nadd r1, r0, 1\n" + "add r2, r1, 1\n" * 20 + "halt", {}, trace=True
    )
    events = timeline([run])
    assert len(events) == 11
    (cut,) = [event for event in events if isinstance(event, Instant)]
    assert "after 10 events" in cut.name
