"""Costs of which the source is silent: free unless they are set, and then in time alone, never in values or counts."""

from dataclasses import replace

import numpy as np
import pytest

from tests.isa.test_traffic import some
from tilewright.errors import UsageError
from tilewright.isa import Machine, MatrixUnit, MatrixUnitConfig, Memory, autotune, matmul, roofline


def cycles(a=(64, 64), b=(64, 64), kb=1, **config):
    made = matmul(some(*a), some(*b), MatrixUnitConfig(**config), kb=kb)
    assert (made.value == some(*a).astype(np.int32) @ some(*b)).all()
    assert made.math_cycles + sum(made.stalls.values()) == made.cycles == sum(made.queue.values())
    return made


def test_by_default_they_are_free():
    none = cycles()
    assert none.queue["fetch"] == 0
    wide = cycles(bus_bytes_per_cycle=1 << 20, bcast_depth=2)
    assert none.counts == wide.counts
    assert cycles(bus_bytes_per_cycle=8).cycles >= none.cycles


@pytest.mark.parametrize("slow", [{}, {"uninitialized": "poison"}], ids=["a block", "one by one"])
def test_columns_follow_one_another_on_a_narrow_bus_102(slow):
    """128 bytes of a column with kb16 are 16 cycles on a bus of 8 bytes: no run is faster than its bus."""
    config = {"threads": 64, "bus_bytes_per_cycle": 8, "kb_mode": "chunk", **slow}
    for kb, column in ((1, 1), (16, 16)):
        made = cycles((4, 256), (256, 64), kb, **config)
        assert MatrixUnitConfig(**config).column_cycles(1, kb) == column
        assert made.cycles > made.counts.column_loads * column == 256 * 64 // 8
    assert made.cycles > cycles((4, 256), (256, 64), 16, threads=64, kb_mode="chunk", **slow).cycles


@pytest.mark.parametrize("slow", [{}, {"uninitialized": "poison"}], ids=["a block", "one by one"])
def test_every_instruction_is_fetched_98(slow):
    free, three = (
        MatrixUnit(MatrixUnitConfig(threads=4, fetch_cycles=n, **slow)).run("nop\nnop\nmov r1, 1\nhalt") for n in (0, 3)
    )
    assert three.queue["fetch"] == 3 * three.executed == 12
    assert three.cycles == free.cycles + 12


def test_the_hosts_link_takes_its_time_56():
    def now(**config):
        machine = Machine(MatrixUnitConfig(threads=4, **config))
        machine.system["X"] = np.zeros(1 << 18, np.int32)
        machine.page_table("X", mapped=True)
        brought = machine.now
        machine.fetch("X")
        return brought, machine.now

    assert now() == (1, 2)
    assert now(host_bytes_per_cycle=32, host_latency=100) == (1 + 100 + (1 << 15), 2 + 200 + (1 << 16))


def test_a_narrow_bus_changes_what_the_tuner_ranks_first():
    """Where a column of kb4 takes as long as four of kb1, sharing dot products saves no time on the bus."""
    machine = MatrixUnitConfig(threads=64, kb_mode="chunk")
    free, narrow = (autotune(16, 64, 64, config=replace(machine, bus_bytes_per_cycle=n)) for n in (0, 2))
    assert free.best.choice.kb == 4
    assert narrow.best.choice != free.best.choice
    assert narrow.best.cycles > free.best.cycles


def test_the_roofline_has_a_bound_for_each():
    config = MatrixUnitConfig(bus_bytes_per_cycle=1, fetch_cycles=2)
    made = matmul(some(64, 64), some(64, 64), config)
    bounds = {bound.name: bound.cycles for bound in roofline(made, config).bounds}
    assert bounds["broadcast bus"] == 64 * 64
    assert bounds["instruction fetch"] == 3 * made.executed
    assert max(bounds.values()) <= made.cycles
    assert "bus_bytes_per_cycle" in " ".join(roofline(made, config).advice)


def test_each_page_an_instruction_reaches_is_translated_61_63():
    """512 pages take 512 translations; a table of them that is large enough has them the second time."""
    text = "segment ur1, $X\ntid r0\nld r1, ur1:rf0:0\nld r2, ur1:rf0:0"

    def taken(page, **config):
        memory = Memory()
        memory.add("X", np.arange(512, dtype=np.int32), page=(page,), line=(1,))
        run = MatrixUnit(MatrixUnitConfig(threads=512, line_bytes=4, **config)).run(text, memory)
        assert (run.registers[:, 1] == np.arange(512)).all()
        return run.cycles

    assert taken(1) == taken(512)
    cost = {"page_hit_cycles": 1, "page_miss_cycles": 20}
    assert taken(512, **cost) == taken(512) + 20 + 1
    assert taken(1, **cost) == taken(1) + 512 * (20 + 1)
    assert taken(1, **cost, page_entries=512) == taken(1, **cost)
    assert taken(1, **cost, page_entries=511) == taken(1) + 512 * (20 + 20)


def test_a_page_that_moved_is_translated_anew_65():
    text = "segment ur1, $X\nld r1, ur1:rf0:0\n{}\nld r1, ur1:rf0:0"
    runs = [
        MatrixUnit(MatrixUnitConfig(threads=1, page_miss_cycles=1000)).run(
            text.format(move), {"X": np.zeros(4, np.int32)}
        )
        for move in ("", "dmain ur1\ndmawait ur1")
    ]
    assert [run.queue["port"] for run in runs] == [1000, 2000]


@pytest.mark.parametrize(
    "name", ["bus_bytes_per_cycle", "fetch_cycles", "host_bytes_per_cycle", "host_latency", "page_hit_cycles"]
)
def test_less_than_nothing_is_refused(name):
    with pytest.raises(UsageError, match=name):
        MatrixUnitConfig(**{name: -1})
