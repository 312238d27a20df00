"""Products asked for again: the machine is kept, of the third one the values alone are made, and nothing shows it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from tilewright.isa import MatrixUnitConfig, MatrixUnitError, matmul
from tilewright.isa.chip.state import same_state
from tilewright.isa.execute import stretch
from tilewright.isa.execute.run import start_state
from tilewright.isa.multiply import kept

BF16, FP8, INT4 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4
M, N, K = 11, 21, 37
SMALL = MatrixUnitConfig(threads=8)


@pytest.fixture(autouse=True)
def keeping(monkeypatch, every_instruction):
    """Costs are kept, and every kernel is worth its call."""
    monkeypatch.setattr(kept, "MOST", 64)
    monkeypatch.setattr(kept, "_SMALL", 0)
    kept.forget()
    yield
    kept.forget()


def factors(types, seed):
    rng = np.random.default_rng(seed)
    for shape, dtype in zip(((M, K), (K, N)), types, strict=True):
        if np.dtype(dtype).kind in "iu":
            ends = np.iinfo(dtype)
            yield rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        else:
            yield (8 * rng.standard_normal(shape)).clip(-8, 7).astype(dtype)


def machine_gone(monkeypatch):
    monkeypatch.setattr("tilewright.isa.multiply.matmul.run_on", None)


@pytest.mark.parametrize(
    ("types", "options"),
    [
        ((np.int8, np.int8), {}),
        ((np.int8, np.int8), {"transpose_b": True, "columns": 5}),
        ((np.uint8, np.int8), {"ka": 2}),
        ((np.uint8, np.uint8), {"block_a": 2}),
        ((INT4, INT4), {}),
        ((np.int16, np.uint16), {"kb": 2}),
        ((np.int32, np.uint32), {"order": "column_outer"}),
        ((np.float32, np.float32), {"kb": 2, "ka": 2}),
        ((BF16, BF16), {"kb": 4, "transpose_b": True}),
        ((np.float16, np.float16), {}),
        ((FP8, FP8), {"block_a": 3}),
    ],
)
def test_the_third_product_is_the_machines(monkeypatch, types, options):
    for seed in range(2):
        matmul(*factors(types, seed), SMALL, **options)
    a, b = factors(types, 2)
    if types[0] in (np.float32, BF16):
        a[3, 5], a[4, 6], b[7, 8] = np.nan, np.inf, -np.inf
    run = matmul(a, b, SMALL, rerun=True, **options)
    machine_gone(monkeypatch)
    again = matmul(a, b, SMALL, **options)
    assert same_state(again, run)
    assert again.value.tobytes() == run.value.tobytes()
    assert again.program is run.program
    run.counts.macs, again.counts.macs, again.queue["issued"] = -1, -1, -1
    assert min(matmul(a, b, SMALL, **options).counts.macs, *again.stalls.values()) >= 0


@pytest.mark.parametrize(
    ("dtype", "fields", "options"),
    [
        (np.int8, {"overflow": "saturate"}, {}),
        (np.float32, {"float_order": "exact"}, {}),
        (np.int8, {"values": False}, {}),
        (np.int8, {"acc_window": (0, 4)}, {}),  # columns without registers: errors
        (np.int8, {}, {"page": (8, 64)}),
        (np.int8, {"pes": 2}, {}),
    ],
)
def test_what_is_run_every_time(monkeypatch, dtype, fields, options):
    config = MatrixUnitConfig(threads=8, **fields)
    a, b = factors((dtype, dtype), 3)
    runs = [matmul(a, b, config, **options) for _ in range(3)]
    assert same_state(runs[2], runs[0])
    assert runs[2].value.tobytes() == runs[0].value.tobytes()
    machine_gone(monkeypatch)
    monkeypatch.setattr("tilewright.isa.multiply.matmul.Machine", None)
    with pytest.raises(TypeError):
        matmul(a, b, config, **options)


def test_a_cost_that_two_runs_do_not_share_is_not_kept():
    a, b = factors((np.int8, np.int8), 4)
    run = matmul(a, b, SMALL, rerun=True)
    for plan, other, value in (("cost", 1, run.value), ("value", 0, run.value + 1), ("no value", 0, None)):
        for more in (0, other):
            result = matmul(a, b, SMALL, rerun=True)
            result.cycles += more
            kept.note(plan, result, lambda value=value: value)
        assert kept.cost_of(plan) is None
        kept.note(plan, result, lambda: run.value)
        assert kept.cost_of(plan) is None  # for good
    for _ in range(2):
        kept.note("same", run, lambda: run.value)
    assert kept.cost_of("same").counts == run.counts
    for number in range(64):
        kept.note(number, run, lambda: run.value)
    assert kept.cost_of("same") is None  # the oldest


def test_large_products(monkeypatch):
    """Strips, rows and depths of our own kernel, on several threads."""
    monkeypatch.setattr(kept, "_SHARED", 0)
    rng = np.random.default_rng(5)
    for types in ((np.int8, np.int8), (np.uint8, np.int8)):
        a, b = (
            rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, endpoint=True)
            for t, s in zip(types, ((70, 1100), (1100, 300)), strict=True)
        )
        for left, right in ((a, b), (a[::2, ::-1], np.asfortranarray(b))):
            left.flags.writeable = False
            found = kept.product_in_order(left, right, True, SMALL, 1)
            assert np.array_equal(found, left.astype(np.int64) @ right.astype(np.int64))


# Machines that are kept.

MACHINES = [
    ((np.int8, np.int8), {}, {}),
    ((np.uint8, np.int8), {"ka": 2}, {"l1_bytes": 1 << 9, "l2_bytes": 1 << 11}),
    ((np.int8, np.int8), {"block_a": 2}, {"l1_bytes": 1 << 9, "l1_ways": 2, "l2_bytes": 1 << 11, "l2_ways": 4}),
    ((np.int16, np.uint16), {"kb": 2}, {"dram": "ddr4_3200", "l2_bytes": 1 << 10}),
    ((np.float32, np.float32), {"columns": 5}, {"dram": "hbm2", "math_issue": "instruction"}),
    ((BF16, BF16), {"order": "column_outer"}, {"uninitialized": "poison"}),
    ((INT4, INT4), {}, {"overflow": "saturate", "dram_bytes_per_cycle": 3}),
    ((FP8, FP8), {"kb": 2}, {"values": False}),
]


@pytest.mark.parametrize(("types", "options", "fields"), MACHINES)
def test_a_machine_at_rest_is_a_new_one(types, options, fields):
    config = MatrixUnitConfig(threads=8, **fields)
    runs = [matmul(*factors(types, seed), config, **options) for seed in (5, 6, 7)]
    (plan,) = kept._machines
    kept.forget()
    new = matmul(*factors(types, 7), config, **options)
    assert same_state(runs[2], new)
    assert runs[2].value.tobytes() == new.value.tobytes()
    a, b = factors(types, 8)
    tensors = {"A": a, "B": np.ascontiguousarray(b.T), "C": np.zeros(new.value.shape, new.value.dtype)}
    rested, fresh = kept.machine_of(plan, tensors), start_state(config, tensors)
    assert same_state(rested, fresh)
    assert same_state(rested.chip, fresh.chip)
    assert kept.machine_of(plan, tensors) is None  # the caller's alone


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {"transpose_b": True}),  # lines are retained
        ({"acc_window": (0, 4)}, {}),  # errors
        ({"l2_bytes": 1 << 26}, {}),  # large
        ({}, {"trace": True}),
        ({}, {"line": (1, 64)}),
        ({"pes": 2}, {}),
    ],
)
def test_machines_that_are_not_kept(fields, options):
    matmul(*factors((np.int8, np.int8), 1), MatrixUnitConfig(threads=8, **fields), **options)
    assert not kept._machines


def test_the_newest_machines_are_kept():
    sizes = range(2, 2 + 2 * kept._MACHINES)
    for size in sizes:
        matmul(np.ones((size, 4), np.int8), np.ones((4, 3), np.int8), SMALL)
    assert [plan.m for plan in kept._machines] == list(sizes[-kept._MACHINES :])


def test_threads_have_machines_of_their_own():
    pairs = [tuple(factors((np.int8, np.int8), seed)) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: matmul(*pair, SMALL), pairs))
    for (a, b), result in zip(pairs, found, strict=True):
        assert np.array_equal(result.value, a.astype(np.int64) @ b.astype(np.int64))
        assert same_state(result.counts, found[0].counts)
        assert result.cycles == found[0].cycles


def test_a_machine_that_failed_is_not_used_again():
    a, b = factors((np.int8, np.int8), 2)
    config = MatrixUnitConfig(threads=8, max_instructions=60)
    for _ in range(2):
        with pytest.raises(MatrixUnitError, match="60 instructions"):
            matmul(a, b, config)
    assert not kept._machines


def test_records_that_were_given_up_are_made_again(monkeypatch):
    """The program's code has their addresses."""
    pairs = [tuple(factors((np.int8, np.int8), seed)) for seed in range(3)]
    new = [matmul(*pair, SMALL, rerun=True).value for pair in pairs]
    kept.forget()
    made, prepare = [], stretch.Frame.prepare
    monkeypatch.setattr(stretch, "_MOST_SUMS", 0)
    monkeypatch.setattr(stretch.Frame, "prepare", lambda frame, pe: made.append(1) or prepare(frame, pe))
    for pair, value in zip(pairs, new, strict=True):
        made.clear()
        assert np.array_equal(matmul(*pair, SMALL, rerun=True).value, value)
        assert made
