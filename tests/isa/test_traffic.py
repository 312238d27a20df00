"""Caches and retention: LRU against an ordered dictionary, the retention figures, the source's 4 x 4 example."""

from __future__ import annotations

import re
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.isa import Machine, MatrixUnit, MatrixUnitConfig, Memory, assemble, matmul
from tilewright.isa.chip.state import Cache
from tilewright.isa.kernels.cache_kernels import (
    BYPASSED,
    HIT,
    MISS,
    PINNED,
    drop_lines,
    lru_list,
    lru_release,
    lru_touch,
)
from tilewright.isa.kernels.records import CACHE
from tilewright.isa.study.claims import claims, column_walk_misses


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

    def release_retained(self):
        for group in self.sets:
            group.update(dict.fromkeys(group, False))


@settings(max_examples=tries(30))
@given(
    st.lists(
        st.tuples(st.integers(0, 23), st.sampled_from(["no", "no", "keep", "let go", "let all go"])), max_size=120
    ),
    st.sampled_from([(4, 0), (8, 2), (6, 3), (5, 1)]),
    st.booleans(),
)
def test_lru_sets_with_retained_lines(touches, shape, bypass):
    fast, slow = Cache.of(24, *shape), SlowCache(*shape)
    for line, what in touches:
        assert lru_touch(fast.cells, line, bypass) == slow.touch(line, bypass)
        if what == "let all go":
            lru_release(fast.cells)
            slow.release_retained()
        elif what != "no":
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
        (65536, 1276),
        (65536, 1276),
        (65536, 1024),
        (65536, 1276),
        (65536, 49408),
        (65536, 65284),
        (65536, 64528),
        (65536, 61504),
        (512, 128),
        (4096, 1024),
        (4096, 1024),
        (512, 512),
        (512, 128),
        (512, 512),
    ]
    numbers = [re.findall(r"instructions: 8 -> (\d+)", row.counted) for row in rows[-6:]]
    assert numbers == [["8"], ["8"], ["8"], ["8"], ["2"], ["32"]]
    holds = [True] * 2 + [False] + [True] * 4 + [False] * 4 + [True] * 3 + [False, True, False]
    assert [row.holds for row in rows] == holds


def test_every_claim_of_the_machine_is_timed_124_125():
    """The clock confirms broadcast and, where A stays in registers, retention; not what loads A again."""
    timed = [row for row in claims() if row.cycles]
    confirmed = [True, True, False, True, False, False, True, True, False, False, False]
    assert [row.confirmed for row in timed] == confirmed
    assert all(row.why for row in timed if row.holds)
    assert [row.cycles for row in timed][2:6] == [
        (81953, 81953),
        (509585, 126041),
        (3095289, 2991969),
        (1514, 1848),
    ]
    assert [row.cycles for row in timed][6:10] == [(4708, 1954), (4708, 1956), (1514, 1890), (1514, 888)]


def test_the_machine_retains_as_its_kernel_does():
    """K rows of one line through half as many: half stay until used up, half are bypassed; so the second time."""
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
    # Everything was used, and the first column comes again: another walk. 32 lines are there from the first.
    twice = unit.run(program.replace("TIMES", "2"), memory).counts
    assert twice.l1_misses - once.l1_misses <= once.l1_misses


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


def some(*shape):
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.int8)


def test_each_walk_over_b_is_a_walk_15_125():
    """256 lines a block of columns through 255: one of them misses 64 times, whichever block of rows it is for."""
    config, b = MatrixUnitConfig(l1_bytes=255 * 64), some(256, 256)
    for blocks in (1, 2, 3):
        made = matmul(some(256 * blocks, 256), b, config, transpose_b=True, order="column_outer")
        assert made.counts.l1_misses == 1276 * blocks


def test_a_program_that_starts_again_walks_again_125():
    config, b = MatrixUnitConfig(l1_bytes=255 * 64), some(256, 256)
    program = matmul(some(256, 256), b, config, transpose_b=True, order="column_outer").program
    machine = Machine(config)
    machine.system |= {"A": some(256, 256), "B": b, "C": np.zeros((256, 256), np.int32)}
    for name in "ABC":
        machine.page_table(name, mapped=True)
    for times in (1, 2, 3):
        machine.start(program)
        (run,) = machine.run()
        assert run.counts.l1_misses == 1276 * times


def test_a_page_that_comes_back_is_walked_again_65_125():
    """Two pages of 8 rows through L1 of 8 lines: each is used up, leaves, comes back, and is retained as at first."""
    walk = "\n".join(f"mov r290, r280\ncmp.eq p1, r280, {j}\n@p1, mm8.t1 r0, ur4:rf290:0x00, r256" for j in range(64))
    text = f"""
        segment ur4, $B
        dmain ur4
        dmawait ur4
        tid r280
        setmm 64, 1
        mov r291, 0
        {walk}
        dmaout ur4
        dmain ur4
        dmawait ur4
        {walk}
    """
    config = MatrixUnitConfig(threads=64, l1_bytes=8 * 64)
    memory = Memory()
    memory.add("B", some(8, 64), resident=False)
    run = MatrixUnit(config).run(text, memory)
    assert run.counts.l1_misses == 2 * 8
    assert run.traffic.retained_lines == run.traffic.released_lines == 2 * 8


_DEPTH = """
    mov ur6, 0
    mov r291, 0
{label}:
    {guard} mm8.t1 r0, {b}:rf290:0x00, r256
    add r291, r291, 8
    add ur6, ur6, 8
    br.lt ur6, 64, {label}
"""
_UNRELATED = "clr r0, 64\n" + _DEPTH.format(label="other", guard="", b="ur5")


@pytest.mark.parametrize("slow", [{}, {"uninitialized": "poison"}], ids=["a block", "one by one"])
@pytest.mark.parametrize("lines", [8, 9, 32])
@pytest.mark.parametrize(
    "guard", ["lt p1, r290, 64", "lt p1, r290, 63", "ne p1, r290, 0", "ne p1, r290, 40", "eq p1, r290, 3"]
)
def test_columns_that_take_no_part_are_not_waited_for_19_97_105(guard, lines, slow):
    """64 rows of one line through a few: no row misses twice, and an unrelated product finds L1 free."""
    head = f"segment ur4, $B\nsegment ur5, $D\ntid r290\nsetmm 64, 1\ncmp.{guard}\n"
    program = head + _DEPTH.format(label="depth", guard="@p1,", b="ur4")
    unit = MatrixUnit(MatrixUnitConfig(threads=64, l1_bytes=64 * lines, **slow))
    memory = {"B": some(64, 64), "D": some(64, 64)}
    alone = unit.run(program, memory).counts.l1_misses
    assert alone == 64
    assert unit.run(program + _UNRELATED, memory).counts.l1_misses - alone == 64


@pytest.mark.parametrize(
    "slow",
    [pytest.param({}, id="a block"),
     pytest.param({"uninitialized": "poison"}, id="one by one", marks=pytest.mark.nightly)],
)  # fmt: skip
def test_a_column_that_is_passed_over_on_the_way_is_not_waited_for_102_105(slow):
    """Columns one by one, each over all of K, as in figure 7, but for column 63: the next 64 find L1 free.

    By day in a block, which does what single instructions do: test_blocks.
    """
    text = """
        segment ur4, $B
        tid r290
        setmm 128, 1
        mov ur1, 0
    column:
        cmp.eq p1, r290, ur1
        mov ur0, 0
        mov r291, 0
    depth:
        @p1, mm8.t1 r0, ur4:rf290:0x00, r256
        add r291, r291, 8
        add ur0, ur0, 8
        br.lt ur0, 64, depth
        add ur1, ur1, 1
        br.ne ur1, 63, on
        add ur1, ur1, SKIPPED
    on:
        br.lt ur1, 128, column
    """
    unit = MatrixUnit(MatrixUnitConfig(threads=128, l1_bytes=64 * 64, **slow))
    for skipped in (0, 1):
        run = unit.run(text.replace("SKIPPED", str(skipped)), {"B": some(64, 128)})
        assert run.counts.l1_misses == 128
        assert run.traffic.retained_lines == run.traffic.released_lines == 128


def test_without_retention_a_walk_is_a_plain_one():
    config = MatrixUnitConfig(l1_bytes=255 * 64, retention="off")
    made = matmul(some(256, 256), some(256, 256), config, transpose_b=True, order="column_outer")
    assert (made.counts.l1_misses, made.traffic.retained_lines) == (65536, 0)


@pytest.mark.parametrize(
    ("l2_bytes", "buffering", "a_bytes"),
    [
        (32768, "serial", 16 * 32768),  # one segment fills L2: A comes anew for each of 16 blocks of columns
        (65536, "double", 15 * 32768),  # two do; the last has the half to itself, which a block of A's rows fits
        (1 << 20, "double", 32768),
    ],
)
def test_l2_has_one_capacity_57_58(l2_bytes, buffering, a_bytes):
    a, b = some(64, 512), some(512, 512)
    made = matmul(a, b, MatrixUnitConfig(threads=32, l2_bytes=l2_bytes), segments=8)
    assert (made.value == a.astype(np.int32) @ b.astype(np.int32)).all()
    assert (made.buffering, made.bytes["dram"]["a"]) == (buffering, a_bytes)


def test_pages_that_a_program_or_the_host_brings_take_room_from_lines_57():
    """16 lines of L2: a tensor of 8 is read twice from device memory once pages fill them, and again when they left."""
    config = MatrixUnitConfig(threads=1, l2_bytes=16 * 64)
    read = "\n".join(f"mov r0, {16 * n}\nld r1, ur1:rf0:0" for n in range(8))
    memory = Memory({"X": np.zeros(128, np.int32)})
    memory.add("P", np.zeros(256, np.int32), resident=False)
    program = f"segment ur1, $X\nsegment ur2, $P\n{{}}\n{read}\n{{}}\n{read}"
    for before, after, lines in (("", "", 8), ("dmain ur2", "", 16), ("", "dmain ur2", 16)):
        run = MatrixUnit(config).run(program.format(before, after), memory)
        assert run.bytes["dram"]["a"] == 64 * lines
    machine = Machine(config)
    machine.system |= {"X": np.zeros(128, np.int32), "P": np.zeros(256, np.int32)}
    machine.page_table("X", mapped=True)
    machine.page_table("P")
    machine.dma_in("P")
    machine.start(program.format("", "dmaout ur2"))
    (run,) = machine.run()
    assert run.bytes["dram"]["a"] == 64 * 16
