"""autotune: its cycles are the machine's, its bounds hold, and its choice is the best there is."""

import json
import runpy
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, by_night, tries
from tilewright.cli import main
from tilewright.errors import UsageError
from tilewright.isa import MatrixUnitConfig, autotune, matmul
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.isa.study import choices as _choices
from tilewright.isa.study.choices import Problem
from tilewright.isa.study.tune import bounded, timed
from tilewright.layout import paged

SMALL = MatrixUnitConfig(threads=16, l1_bytes=1024, l2_bytes=4096)
night = pytest.mark.nightly


def product(sizes, dtype, config, choice):
    """The whole machine, values and all."""
    m, n, k = sizes
    kind = paged((1,), dtype).numpy_dtype
    rng = np.random.default_rng(sum(sizes))
    a, b = (rng.integers(0, 9, shape).astype(kind) for shape in ((m, k), (k, n)))
    result = matmul(a, b, config, **choice.options)
    assert (result.value == a.astype(np.int64) @ b.astype(np.int64)).all()
    return result


@settings(max_examples=tries(10))
@given(
    data=st.data(),
    sizes=st.tuples(st.integers(1, 24), st.integers(1, 24), st.integers(1, 40)),
    dtype=st.sampled_from(ELEMENT_TYPES),
    machine=st.fixed_dictionaries(
        {},
        optional={
            "pes": st.integers(2, 3),
            "l1_ports": st.sampled_from([2, 4]),
            "l1_ways": st.sampled_from([1, 2, 4]),
            "ka_split": st.just("interleaved"),
            "disjoint_sets": st.just(True),
            "kb_add_cycles": st.integers(1, 3),
            "math_issue": st.just("instruction"),
            "dram_bytes_per_cycle": st.sampled_from([1, 8, 256]),
            "l2_bytes": st.sampled_from([512, 65536]),
            "columns_per_step": st.just(2),
            "kb_mode": st.just("split"),
        },
    ),
)
def test_cycles_are_the_machines_and_bounds_hold(data, sizes, dtype, machine):
    config = MatrixUnitConfig(threads=16, **{"l1_bytes": 1024, "l2_bytes": 4096, **machine})
    problem = Problem(*sizes, paged((1,), dtype).numpy_dtype.itemsize, config)
    choice = data.draw(st.sampled_from(problem.choices({})))
    each = timed(problem, dtype, bounded(problem, choice))
    if each.refused:  # then the machine refuses too
        with pytest.raises(Exception, match=each.refused[:20].replace("(", ".").replace("[", ".")):
            product(sizes, dtype, config, choice)
        return
    result = product(sizes, dtype, config, choice)
    assert each.cycles == result.cycles
    assert (each.math_cycles, each.stalls, each.queue) == (result.math_cycles, result.stalls, result.queue)
    assert each.counts == result.counts
    assert each.math_cycles + sum(each.stalls.values()) == each.cycles == sum(each.queue.values())
    units = problem.busy(choice)
    assert each.bound == max(units.values()) <= result.cycles, units
    if config.pes == 1:
        assert units["math unit"] == result.math_cycles


@pytest.mark.parametrize(
    ("sizes", "dtype", "machine"),
    [
        ((5, 14, 24), "s8", {}),
        ((20, 9, 17), "bf16", {"l1_bytes": 256}),
        pytest.param((3, 20, 24), "f32", {"l1_ways": 2, "dram_bytes_per_cycle": 4, "l2_latency": 236}, marks=night),
    ],
)
def test_the_choice_is_the_best_of_all(sizes, dtype, machine):
    """Every choice is run on the machine; the tuner times some of them and must come to the same. By day: two cases."""
    config = MatrixUnitConfig(threads=16, **{"l1_bytes": 1024, **machine})
    tuning = autotune(*sizes, dtype, config, most=10_000, order="k_outer", columns=None, line=None, page=None)
    assert tuning.proved
    assert len(tuning.timed) < len(tuning.ranking)
    found = {each.choice: product(sizes, dtype, config, each.choice).cycles for each in tuning.ranking}
    assert tuning.best.cycles == found[tuning.best.choice] == min(found.values())
    assert all(each.cycles in (None, found[each.choice]) for each in tuning.ranking)
    again = matmul(np.ones(sizes[::2], np.int8), np.ones(sizes[:0:-1], np.int8), config, **tuning.options)
    assert again.value.shape == sizes[:2]


def test_a_large_square_is_tuned_at_once():
    tuning = autotune(512, 512, 512)
    assert tuning.proved
    assert len(tuning.timed) < 30 < 500 < len(tuning.ranking)
    assert tuning.best.cycles == matmul(*np.ones((2, 512, 512), np.int8), **tuning.options).cycles
    assert tuning.best.energy_pj > 0
    assert tuning.best.utilisation >= 0.67
    assert tuning.best.choice.block_a == 8


@pytest.mark.nightly
def test_few_rows_are_shared_by_threads_that_were_idle():
    """By day tests/isa/test_silent_costs.py tunes the same product, in chunks."""
    for mode, speedup, steps in (("split", 1.3, 256), ("chunk", 1.5, 128)):
        tuning = autotune(16, 64, 64, config=MatrixUnitConfig(threads=64, kb_mode=mode))
        assert tuning.best.choice.ka * tuning.best.choice.kb > 1
        assert tuning.speedup > speedup
        assert f"multiplying 512 -> {steps}" in tuning.why


def test_a_row_may_have_three_threads():
    """80 rows, 256 threads: groups of 3 use 240 of them, groups of 2 or 4 fewer."""
    tuning = autotune(80, 256, 256, config=MatrixUnitConfig(dram_bytes_per_cycle=256, kb_mode="chunk"), block_a=1)
    assert tuning.best.choice.ka * tuning.best.choice.kb == 3
    assert tuning.proved


def test_columns_are_as_many_as_the_window_of_products_holds():
    tuning = autotune(8, 64, 16, config=MatrixUnitConfig(threads=64, acc_window=(0, 16)), ka=1, transpose_b=False)
    assert "register_out_of_range" in tuning.default.refused
    assert "cannot run" in tuning.why
    assert tuning.best.choice.columns in (8, 16)


def test_rows_that_meet_in_the_same_sets_are_moved_apart():
    """256 rows 4096 bytes apart, 4 ways: the page gets one line more a row."""
    config = MatrixUnitConfig(l1_ways=4, l1_bytes=16384)
    fixed = {"ka": 1, "kb": 4, "order": "k_outer", "transpose_b": True, "columns": 64, "line": None}
    tuning = autotune(8, 64, 4096, config=config, **fixed)
    apart, together = tuning.best, tuning.default
    assert apart.choice.page is not None or together.counts.l1_misses == apart.counts.l1_misses
    square = autotune(64, 4096, 64, config=config, **{**fixed, "columns": 256})
    assert square.best.choice.page == (64, 4096 + 64)
    assert square.best.counts.l1_misses < square.default.counts.l1_misses / 2


def test_a_tensor_larger_than_l2_comes_in_segments_where_that_is_faster():
    config = MatrixUnitConfig(threads=32, l1_bytes=1024, l2_bytes=4096, dma_latency=20)
    tuning = autotune(64, 128, 64, config=config, ka=1, kb=1, transpose_b=False, most=10_000)
    segmented = [each for each in tuning.timed if each.choice.segments]
    assert segmented
    assert "double" in {each.buffering for each in segmented}
    assert tuning.best.choice.segments
    assert tuning.best.cycles < tuning.default.cycles


@pytest.mark.parametrize(
    ("pes", "split"), [(1, None), pytest.param(2, "rows", marks=night), pytest.param(2, "columns", marks=night)]
)
def test_row_blocks_beyond_the_third_cost_what_it_does(monkeypatch, pes, split):
    config = MatrixUnitConfig(threads=16, l1_bytes=1024, pes=pes)
    whole = autotune(150, 24, 64, config=config, ka=1, kb=2, order="k_outer", columns=None, split=split)
    monkeypatch.setattr(_choices, "_MOST_LOADS", 0)
    scaled = autotune(150, 24, 64, config=config, ka=1, kb=2, order="k_outer", columns=None, split=split)
    assert scaled.best.scaled
    assert not whole.best.scaled
    exact = {each.choice: each for each in whole.timed}
    for each in scaled.timed:
        assert each.cycles == pytest.approx(exact[each.choice].cycles, rel=0.02)
        assert each.counts.macs == 150 * 24 * 64
        assert each.counts.steps == exact[each.choice].counts.steps


def test_less_is_timed_where_little_is_worth_looking_for():
    near = autotune(128, 128, 128, within=0.05)
    assert len(near.timed) <= len(autotune(128, 128, 128).timed)
    assert near.proved
    few = autotune(16, 64, 64, config=MatrixUnitConfig(threads=64), most=3)
    assert len(few.timed) == 3
    assert not few.proved
    assert few.best_left < few.best.cycles


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"m": 0}, "m = 0"),
        ({"dtype": "s2"}, "no element type called 's2'"),
        ({"kc": 2}, "no option called 'kc'"),
        ({"ka": 512}, "more than 256 threads"),
        ({"order": "diagonal"}, "order 'diagonal'"),
        ({"within": 1}, "within = 1"),
        ({"m": 1 << 20, "n": 1 << 20}, "more than 134217728 elements"),
        ({"config": MatrixUnitConfig(registers=256)}, "nothing considered can run"),
    ],
)
def test_what_cannot_be_tuned(call, reason):
    with pytest.raises(UsageError, match=reason):
        autotune(**{"m": 8, "n": 8, "k": 8, **call})


def test_the_command(monkeypatch, capsys, tmp_path):
    words = ["isa", "tune", "--m", "8", "--n", "16", "--k", "24", "--set", "threads=16", "--kb", "2"]
    for more in (["--json", "--check", "-o", str(tmp_path / "t.html")], ["--top", "2", "--check", "--plain"]):
        monkeypatch.setattr(sys, "argv", ["tilewright", *words, *more])
        try:
            main()
        except SystemExit as stop:
            assert not stop.code
        printed = capsys.readouterr().out
        assert "--plain" not in more or " line " not in printed
        if "--json" in more:
            value = json.loads(printed)
            assert value["schema_version"] == 1
            assert value["best"]["cycles"] == min(row["cycles"] for row in value["ranking"] if row["cycles"])
            assert all(row["options"]["kb"] == 2 for row in value["ranking"])
    assert "(default)" in printed
    assert printed.endswith(
        f"checked with values: {value['check']['cycles']:,} cycles as modelled, the value equals numpy's\n"
    )
    page = (tmp_path / "t.html").read_text()
    assert value["best"]["choice"] in page
    assert "waiting for columns of B" in page


def test_no_random_program_is_faster():
    search = runpy.run_path(str(ROOT / "benchmarks" / "random_search.py"))["search"]
    for shape in ((48, 64, 64, 64), (100, 40, 96, 128))[: 1 + by_night()]:
        found = search(shape, 30, 1)
        assert found["random"] is None or found["random"] >= found["tuned"]
