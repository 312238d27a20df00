"""Caches and retention: LRU against an ordered dictionary, the retention figures, the source's 4 x 4 example."""

from __future__ import annotations

import re
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.isa import MatrixUnit, MatrixUnitConfig, assemble, claims, matmul
from tilewright.isa.chip.state import Cache
from tilewright.isa.kernels.cache_kernels import BYPASSED, HIT, MISS, PINNED, drop_lines, lru_list, lru_touch
from tilewright.isa.kernels.records import CACHE
from tilewright.isa.study.claims import column_walk_misses


class SlowCache:
    """Sets as ordered dictionaries, least recent first; values say whether the line is retained."""

    def __init__(self, capacity, ways):
        self.sets = [OrderedDict() for _ in range(capacity // ways if ways else 1)]
        self.ways = ways or capacity

    def touch(self, line, bypass):
        group = self.sets[line % len(self.sets)]
        if line in group:
            group.move_to_end(line)
            return HIT
        result = MISS
        if len(group) == self.ways:
            free = [each for each, retained in group.items() if not retained]
            if not free:
                if bypass:
                    return BYPASSED
                result, free = PINNED, list(group)
            del group[free[0]]
        group[line] = False
        return result

    def mark(self, line, retained):
        group = self.sets[line % len(self.sets)]
        if line in group:
            group[line] = retained


@settings(max_examples=tries(30))
@given(
    st.lists(st.tuples(st.integers(0, 23), st.sampled_from(["no", "no", "keep", "let go"])), max_size=120),
    st.sampled_from([(4, 0), (8, 2), (6, 3), (5, 1)]),
    st.booleans(),
)
def test_lru_sets_with_retained_lines(touches, shape, bypass):
    fast, slow = Cache.of(24, *shape), SlowCache(*shape)
    for line, what in touches:
        assert lru_touch(fast.cells, line, bypass) == slow.touch(line, bypass)
        if what != "no":
            lru_list(fast.cells, line, int(what == "keep"))
            slow.mark(line, what == "keep")
    here = [line for group in slow.sets for line in group]
    assert sorted(np.flatnonzero(fast.cells[fast.cells[CACHE.places["slots"]] :])) == sorted(here)


def test_a_cache_larger_than_memory_holds_all_of_it():
    for ways in (0, 4, 1 << 40):
        cache = Cache.of(10, 1 << 40, ways).cells
        assert [lru_touch(cache, line, True) for line in (*range(10), *range(10))] == [1] * 10 + [0] * 10


def test_forgotten_lines_are_the_first_victims():
    cache = Cache.of(16, 4, 0).cells
    assert [lru_touch(cache, line, True) for line in (0, 1, 2, 3)] == [1] * 4
    drop_lines(3, 4, cache)
    assert lru_touch(cache, 7, True) == 1
    assert [lru_touch(cache, line, True) for line in (0, 1, 2, 7, 3)] == [0, 0, 0, 0, 1]


def product(n, order="column_outer", l1_lines=256, **more):
    """A K = N product of int8 with few rows and row-major B; 64-byte lines unless said otherwise."""
    config = MatrixUnitConfig(threads=n, l1_bytes=l1_lines * more.get("line_bytes", 64), **more)
    a, b = np.ones((2, n), np.int8), np.ones((n, n), np.int8)
    return matmul(a, b, config=config, transpose_b=True, order=order)


def test_k_outer_order_fetches_every_line_once_without_retention_too():
    assert product(256, order="k_outer", l1_lines=8).counts.l1_misses == 1024


@pytest.mark.parametrize(
    ("misses", "retention", "how"),
    [
        (65536, None, {"lines": 256, "foreign": True}),
        (1276, "evict", {"lines": 256, "foreign": True}),
        (1024, "bypass", {"lines": 256, "foreign": True}),
        (65536, None, {"lines": 64}),
        (65284, "evict", {"lines": 64}),
        (49408, "bypass", {"lines": 64}),
        (65536, None, {"lines": 256, "ways": 4, "pitch": 4096}),
        (64528, "bypass", {"lines": 256, "ways": 4, "pitch": 4096}),
        (1024, None, {"lines": 8, "outer": True}),
    ],
)
def test_retention_in_column_outer_order(misses, retention, how):
    assert column_walk_misses(retention=retention, **how) == misses


def test_every_claim_is_counted():
    rows = claims()
    assert [(row.without, row.with_it) for row in rows] == [
        (256**3, 65536),
        (65536, 4096),
        (1024, 1024),
        (65536, 1024),
        (65536, 1276),
        (65536, 49408),
        (65536, 65284),
        (65536, 64528),
        (65536, 61504),
        (512, 128),
        (512, 128),
        (512, 128),
        (512, 512),
    ]
    assert [re.findall(r"instructions: (8 -> \d+)", row.counted) for row in rows[-4:-1]] == [
        ["8 -> 8"],
        ["8 -> 2"],
        ["8 -> 4"],
    ]
    assert [row.holds for row in rows] == [True] * 2 + [False, True, True] + [False] * 4 + [True] * 3 + [False]


def test_the_machine_retains_as_its_kernel_does():
    """K rows of one line through half as many: half stay until used up, half are bypassed; the second time all miss."""
    program = """
        segment ur2, $B
        tid r8
        mov ur9, 0
        setmm 64, 1
    again:
        mov ur1, 0
    column:
        cmp.eq p1, r8, ur1
        mov ur0, 0
        mov r2, ur1
    depth:
        mov r3, ur0
        @p1, mm8.t1 r100, ur2:rf2:0x00, r10
        add ur0, ur0, 8
        br.lt ur0, 64, depth
        add ur1, ur1, 1
        br.lt ur1, 64, column
        add ur9, ur9, 1
        br.lt ur9, TIMES, again
    """
    unit = MatrixUnit(MatrixUnitConfig(threads=64, l1_bytes=32 * 64))
    memory = {"B": np.zeros((64, 64), np.int8)}
    once = unit.run(program.replace("TIMES", "1"), memory).counts
    assert (once.l1_touches, once.l1_misses) == (4096, 32 + 32 * 64)
    twice = unit.run(program.replace("TIMES", "2"), memory).counts
    assert twice.l1_misses - once.l1_misses == 64 * 64


def test_four_by_four_with_lines_of_four():
    assert product(4, line_bytes=4, l1_lines=4).counts.l1_misses == 4
    # A cache of one line discards what the next column needs: every element is fetched.
    one = MatrixUnitConfig(threads=4, line_bytes=4, l1_bytes=4, l2_bytes=64, retention="evict")
    a = b = np.ones((4, 4), np.int8)
    counts = matmul(a, b, config=one, transpose_b=True, order="column_outer").counts
    assert counts.l1_misses == 16
    assert (counts.l2_misses, counts.dram_bytes) == (4, 16)


def test_columns_that_are_off_cause_no_traffic():
    program = assemble("segment ur4, $B\ntid r291\ncmp.lt p1, r291, 3\n@p1, mm r0, ur4:rf290:0, r256")
    counts = MatrixUnit(MatrixUnitConfig(threads=8)).run(program, {"B": np.ones((8, 8), np.int8)}).counts
    assert (counts.l1_touches, counts.column_loads, counts.steps) == (3, 3, 3)


def test_loads_through_l1_disturb_it_but_are_not_counted():
    a, b = np.ones((64, 64), np.int8), np.ones((64, 64), np.int8)
    small = {"threads": 64, "l1_bytes": 64 * 64}
    apart = matmul(a, b, config=MatrixUnitConfig(**small)).counts
    shared = matmul(a, b, config=MatrixUnitConfig(**small, loads_through_l1=True)).counts
    assert shared.l1_touches == apart.l1_touches
    assert shared.l1_misses > apart.l1_misses == 64
