"""matmul: values against numpy, counts against the closed forms, the worked numbers, bad input."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa import (
    Counts,
    MatrixUnit,
    MatrixUnitConfig,
    Memory,
    assemble,
    autotune,
    expected_counts,
    matmul,
)

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
quick = settings(max_examples=tries(20))


def integers(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(dtype)


def modulo(a, b):
    """a @ b modulo 2^32, by the column so that nothing is larger than int64 can hold modulo 2^64."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.uint64).astype(np.uint32).view(np.int32)


sizes = st.tuples(st.integers(1, 40), st.integers(1, 50), st.integers(1, 40))
options = st.fixed_dictionaries(
    {
        "ka": st.integers(1, 4),
        "kb": st.integers(1, 4),
        "transpose_b": st.booleans(),
        "order": st.sampled_from(["k_outer", "k_outer", "k_outer", "column_outer"]),
        "columns": st.sampled_from([None, None, 5, 16]),
    }
)
machines = st.fixed_dictionaries(
    {
        "threads": st.sampled_from([16, 24, 64]),
        "kb_acc": st.sampled_from(["first", "last"]),
        "ka_split": st.sampled_from(["blocked", "interleaved"]),
        "group_order": st.sampled_from(["consecutive", "strided"]),
        "line_bytes": st.sampled_from([16, 64]),
        "a_bytes": st.sampled_from([4, 8, 8, 16]),
        "kb_mode": st.sampled_from(["chunk", "chunk", "split"]),
        "disjoint_sets": st.sampled_from([False, False, True]),
        "columns_per_step": st.sampled_from([1, 1, 3]),
    }
)


@quick
@given(
    st.integers(0, 2**32),
    sizes,
    st.sampled_from(DTYPES),
    st.booleans(),
    options,
    machines,
    st.integers(1, 8),
)
def test_random_products_and_counts(seed, mnk, dtype, mixed, how, machine, blocks):
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    other = dtype if not mixed else dtype.lstrip("u") if dtype[0] == "u" else "u" + dtype
    a, b = integers(rng, (m, k), dtype), integers(rng, (k, n), other)
    config = MatrixUnitConfig(**machine)
    if config.disjoint_sets:  # half of the threads load
        how |= {"ka": min(how["ka"], 2), "columns": how["columns"] and min(how["columns"], config.loader_threads)}
    if how["order"] == "column_outer" and how["kb"] == 1:
        how |= {"block_a": blocks}
    result = matmul(a, b, config=config, **how)
    assert result.errors == ()
    assert result.math_cycles + sum(result.stalls.values()) == result.cycles == sum(result.queue.values())
    assert result.value.dtype == np.int32
    assert (result.value == modulo(a, b)).all()
    assert result.counts == expected_counts(m, n, k, config=config, element_bytes=a.itemsize, **how)


@quick
@given(st.integers(0, 2**32), sizes, st.data(), st.booleans(), st.sampled_from([1, 2, 4]))
def test_pages_and_lines_of_b_change_traffic_only(seed, mnk, data, transpose_b, width):
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    a, b = (integers(rng, shape, f"int{8 * width}") for shape in ((m, k), (k, n)))
    per_line = 32 // width
    tall = data.draw(st.sampled_from([d for d in (1, 2, 4, 8) if per_line % d == 0]))
    line = (tall, per_line // tall)
    page = tuple(unit * data.draw(st.integers(1, 3)) for unit in line)
    config = MatrixUnitConfig(threads=32, line_bytes=32)
    result = matmul(a, b, config=config, transpose_b=transpose_b, page=page, line=line)
    expected = expected_counts(m, n, k, config=config, element_bytes=width, transpose_b=transpose_b)
    assert (result.value == modulo(a, b)).all()
    assert result.counts.macs == expected.macs
    assert result.counts.broadcast_elements == expected.broadcast_elements


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("ka", "kb", "mode"), [(1, 1, "split"), (2, 3, "split"), (2, 3, "chunk")])
def test_floats_follow_the_documented_order(dtype, transpose_b, ka, kb, mode):
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(13, 29)).astype(dtype), rng.normal(size=(29, 11)).astype(dtype)
    config, whole = MatrixUnitConfig(threads=48, kb_mode=mode), 8 // a.itemsize
    result = matmul(a, b, config=config, ka=ka, kb=kb, transpose_b=transpose_b)
    assert result.value.dtype == np.float32
    chunk, depth = (-(-whole // kb), whole) if mode == "split" else (whole, whole * kb)
    assert (result.value == chunked(a.astype(np.float32), b.astype(np.float32), chunk, depth)).all()
    how = {"ka": ka, "kb": kb, "transpose_b": transpose_b}
    assert result.counts == expected_counts(13, 11, 29, config=config, element_bytes=a.itemsize, **how)


def chunked(a, b, chunk, depth):
    """The 'chunk' order in numpy float32: every rounding where the documentation puts it."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k0 in range(0, a.shape[1], depth):
        dot, end = None, min(k0 + depth, a.shape[1])
        for q in range(k0, end, chunk):
            d = None
            for u in range(q, min(q + chunk, end)):
                product = a[:, u, None] * b[u]
                d = product if d is None else d + product
            dot = d if dot is None else dot + d
        out += dot
    return out


def test_a_large_float_product_bit_for_bit():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(256, 96)).astype(np.float32), rng.normal(size=(96, 256)).astype(np.float32)
    assert (matmul(a, b).value == chunked(a, b, 2, 2)).all()
    exact = matmul(a, b, config=MatrixUnitConfig(float_order="exact")).value
    assert np.allclose(exact, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_worked_numbers_of_256_threads():
    counts = matmul(np.ones((256, 256), np.int8), np.ones((256, 256), np.int8)).counts
    assert (counts.instructions, counts.steps) == (32, 8192)
    assert counts.macs // counts.instructions == 524288
    assert counts.broadcast_elements == 65536
    assert 256**3 // counts.broadcast_elements == 256  # a load of B per thread fetches M*K*N elements
    assert counts == expected_counts(256, 256, 256)


@pytest.mark.parametrize(
    ("ka", "kb", "instructions", "steps"), [(1, 1, 8, 512), (4, 1, 8, 128), (1, 4, 2, 128), (2, 2, 4, 128)]
)
def test_worked_numbers_of_64_threads(ka, kb, instructions, steps):
    """The specification's, in its reading of kb: the group covers kb whole chunks. The text's split covers one."""
    a, b = np.ones((16, 64), np.int8), np.ones((64, 64), np.int8)
    chunked, split = (
        matmul(a, b, config=MatrixUnitConfig(threads=64, kb_mode=mode), ka=ka, kb=kb).counts
        for mode in ("chunk", "split")
    )
    assert (chunked.instructions, chunked.steps) == (instructions, steps)
    assert (split.instructions, split.steps) == (8, 512 // ka)


def test_300_columns_leave_44_errors_and_256_columns():
    rng = np.random.default_rng(1)
    a, b = integers(rng, (5, 8), "int8"), integers(rng, (8, 300), "int8")
    config = MatrixUnitConfig(threads=300)
    result = matmul(a, b, config=config, columns=300)
    assert len(result.errors) == 44
    first = result.errors[0]
    assert (first.kind, first.column, first.register) == ("register_out_of_range", 256, 256)
    assert result.counts.column_loads == 256
    assert (result.value[:, :256] == modulo(a, b)[:, :256]).all()
    assert not result.value[:, 256:].any()
    assert matmul(a, b, config=config, columns=300, ka=2).errors == ()
    assert (matmul(a, b, config=config).value == modulo(a, b)).all()


def test_a_survives_the_300_columns():
    program = (
        "segment ur1, $A\nsegment ur4, $B\ntid r291\nmov r290, 0\nld r256, ur1:rf290:0, 2\nmm r0, ur4:rf290:0, r256"
    )
    a = np.arange(2400, dtype=np.int64).astype(np.int8).reshape(300, 8)
    result = MatrixUnit(MatrixUnitConfig(threads=300)).run(program, {"A": a, "B": a})
    assert (result.registers[:, 256:258].copy().view(np.int8) == a).all()
    assert len(result.errors) == 44


def test_absent_depth_hides_nan_and_infinity():
    a = np.full((4, 3), np.nan, np.float32)
    a[:, 0] = 2
    b = np.full((1, 5), 3, np.float32)
    assert (matmul(a[:, :1], b).value == 6).all()
    assert np.isnan(matmul(a, np.ones((3, 5), np.float32)).value).all()


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_empty_products_are_zeros(shape):
    m, n, k = shape
    result = matmul(np.ones((m, k), np.int8), np.ones((k, n), np.int8))
    assert result.value.shape == (m, n)
    assert not result.value.any()
    assert result.counts == Counts() == expected_counts(m, n, k)


def test_the_program_is_real():
    a, b = np.ones((3, 3), np.int16), np.ones((3, 2), np.uint16)
    result = matmul(a, b, kb=2, order="column_outer")
    assert assemble(str(result.program)) == result.program
    assert "@p1, mm16.ka1.kb2.t0.sa.ub r0, ur4:rf290:0x00, r256" in str(result.program)
    again = MatrixUnit().run(str(result.program), {"A": a, "B": b.T, "C": np.zeros((3, 2), np.int32)})
    assert (again.tensor("C") == 3).all()
    assert again.counts == result.counts


@pytest.mark.parametrize(
    ("a", "b", "how", "reason"),
    [
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int16), {}, "different widths"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.float32), {}, "one float type"),
        (np.ones((2, 3), np.float16), np.ones((3, 2), ml_dtypes.bfloat16), {}, "one float type"),
        (np.ones((2, 3)), np.ones((3, 2)), {}, "float64"),
        (np.ones((2, 3), bool), np.ones((3, 2), bool), {}, "bool"),
        (np.ones((2, 3), np.int8), np.ones((2, 3), np.int8), {}, "must agree"),
        (np.ones(3, np.int8), np.ones((3, 2), np.int8), {}, "two matrices"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"ka": 0}, "ka = 0 is not a whole number of at least 1"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"kb": 1.5}, "kb = 1.5 is not a whole number"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"ka": True}, "ka = True"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"columns": 0}, "columns = 0"),
        ([[1, 2], [3]], np.ones((3, 2), np.int8), {}, "A is no array"),
        ("two", np.ones((3, 2), np.int8), {}, "two matrices"),
        (np.array([["x"]]), np.ones((1, 2), np.int8), {}, "type"),
        (np.array([[None]]), np.ones((1, 2), np.int8), {}, "type"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"ka": 16, "kb": 17}, "group of 272 threads"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"columns": 257}, r"not within 1..256"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"order": "rows"}, "k_outer or column_outer"),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), {"line": (1, 3)}, "line_bytes"),
        (
            np.ones((2, 3), np.int8),
            np.ones((3, 2), np.int8),
            {"config": MatrixUnitConfig(registers=128)},
            "300 registers",
        ),
    ],
)
def test_bad_input_is_one_clear_error(a, b, how, reason):
    with pytest.raises(UsageError, match=reason):
        matmul(a, b, **how)


def test_what_the_kernel_does_not_write_is_unsupported():
    a = np.ones((2, 2), np.int8)
    with pytest.raises(UnsupportedError, match="one register per dim"):
        matmul(a, a, config=MatrixUnitConfig(offset_mode="linear"))
    with pytest.raises(UnsupportedError, match="predicates"):
        matmul(a, a, config=MatrixUnitConfig(pred_scope="both"), order="column_outer")


def test_closed_forms_refuse_what_does_not_fit():
    for how in ({"ka": 300}, {"columns": 300}, {"order": "x"}, {"element_bytes": 3}, {"kb": 0}):
        with pytest.raises(UsageError):
            expected_counts(8, 8, 8, **how)


def test_time_does_not_touch_results():
    rng = np.random.default_rng(4)
    a, b = integers(rng, (20, 70), "int8"), integers(rng, (70, 20), "int8")
    base = matmul(a, b, config=MatrixUnitConfig(threads=32))
    slow = {"l1_latency": 40, "l2_latency": 900, "dram_latency": 5000, "bcast_depth": 1, "macs_per_thread_cycle": 1}
    other = matmul(a, b, config=MatrixUnitConfig(threads=32, l2_bytes_per_cycle=1, dram_bytes_per_cycle=1, **slow))
    assert (base.value == other.value).all()
    assert base.counts == other.counts
    assert base.cycles < other.cycles
    assert base.math_cycles == base.counts.steps
    assert other.math_cycles == 8 * base.counts.steps
    assert matmul(a, b, config=MatrixUnitConfig(threads=32)).cycles == base.cycles


@settings(max_examples=tries(10))
@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 60),
    options,
    st.sampled_from(
        ["l1_latency", "l2_latency", "dram_latency", "l2_bytes_per_cycle", "dram_bytes_per_cycle", "l1_bytes"]
    ),
    st.integers(2, 9),
)
def test_a_better_memory_is_never_slower(m, n, k, how, name, factor):
    a, b = np.ones((m, k), np.int8), np.ones((k, n), np.int8)
    base = MatrixUnitConfig(threads=32, l1_bytes=1024)
    worse = {"l1_bytes": 128, "l2_bytes_per_cycle": 7, "dram_bytes_per_cycle": 5}.get(
        name, getattr(base, name) * factor
    )
    slower = dataclasses.replace(base, **{name: worse})
    first, second = (matmul(a, b, config=c, **how) for c in (base, slower))
    assert first.cycles <= second.cycles
    assert (first.value == second.value).all()


def test_loaders_are_the_default_columns():
    rng = np.random.default_rng(6)
    a, b = integers(rng, (9, 20), "int16"), integers(rng, (20, 21), "int16")
    config = MatrixUnitConfig(threads=32, loaders=8)
    for columns, blocks in ((None, 3), (21, 1)):
        result = matmul(a, b, config=config, columns=columns)
        assert (result.value == modulo(a, b)).all()
        assert result.counts == expected_counts(9, 21, 20, config=config, element_bytes=2, columns=columns)
        assert result.counts.instructions == 5 * blocks


def test_absent_type_and_signs_are_the_segments():
    a = np.full((8, 8), 255, np.uint8)
    program = "segment ur4, $B\ntid r291\nmov r256, 255\nSIGNS r0, ur4:rf290:0, r256"
    unit = MatrixUnit(MatrixUnitConfig(threads=8))
    products = {"mm": 255 * 255, "mm.sb": -255, "mm.sa": -255, "mm.sa.sb": 1, "mm8": 1, "mm8.ub.ua": 255 * 255}
    for name, product in products.items():
        assert unit.run(program.replace("SIGNS", name), {"B": a}).registers[0, 0] == product
    halves = np.ones((8, 8), np.float16)
    assert unit.run(program.replace("SIGNS", "mm"), {"B": halves}).errors == ()
    assert unit.run(program.replace("SIGNS", "mm.sa"), {"B": halves}).errors[0].kind == "type_mismatch"


def test_a_vector_is_a_segment_of_one_dim():
    program = "segment ur4, $B\nmov r290, 2\nmov r256, 0x01010101\nsetmm 1\nmm r0, ur4:rf290:0, r256"
    unit, vector = MatrixUnit(MatrixUnitConfig(threads=4)), {"B": np.arange(7, dtype=np.int8)}
    assert unit.run(program, vector).registers[0, 0] == 2 + 3 + 4 + 5
    assert unit.run(program.replace("mm r0", "mm.t1 r0"), vector).errors[0].kind == "type_mismatch"


def test_foreign_byte_order_and_strides_are_values_all_the_same():
    rng = np.random.default_rng(8)
    a, b = integers(rng, (9, 20), "int16").astype(">i2"), integers(rng, (40, 21), "int16")[::2]
    assert (matmul(a, b).value == modulo(a, b)).all()


def test_more_columns_than_registers_in_a_small_file():
    config = MatrixUnitConfig(threads=1024, registers=300)
    result = matmul(np.ones((3, 8), np.int8), np.ones((8, 1024), np.int8), config=config, columns=1024)
    assert len(result.errors) == 768
    assert (result.value[:, :256] == 8).all()
    tensors = {"A": np.ones((3, 8), np.int8), "B": np.ones((1024, 8), np.int8), "C": result.value}
    assert len(MatrixUnit(config).run(result.program, tensors).state.clock.tokens) == 300 + 64 + 8


def test_readings_of_time_change_time_alone():
    a, b = np.ones((8, 40), np.int8), np.ones((40, 24), np.int8)
    base = MatrixUnitConfig(threads=32)
    plain = matmul(a, b, config=base, kb=3)
    slow = matmul(a, b, config=dataclasses.replace(base, kb_add_cycles=5), kb=3)
    assert slow.math_cycles == plain.math_cycles + 2 * 5 * plain.counts.steps
    whole = matmul(a, b, config=dataclasses.replace(base, math_issue="instruction"), kb=3)
    assert whole.cycles > plain.cycles
    assert whole.math_cycles == plain.math_cycles
    assert (plain.value == slow.value).all()
    assert plain.counts == slow.counts == whole.counts


def test_a_block_of_a_counts_as_its_rounds_do():
    a, b = np.ones((40, 100), np.int8), np.ones((100, 50), np.int8)
    config = MatrixUnitConfig(threads=32)
    for how in ({}, {"ka": 2}, {"transpose_b": True}):
        blocked, plain = matmul(a, b, config, block_a=5, **how), matmul(a, b, config, **how)
        assert (blocked.value == 100).all()
        assert blocked.counts == plain.counts
        assert blocked.traffic.load_lines < plain.traffic.load_lines
    with pytest.raises(UsageError, match="at most 12"):
        matmul(a, b, config, block_a=13)
    for kb, block_a in ((2, 3), (4, 2)):  # blocks that do not divide k; threads with half a register
        with pytest.raises(UnsupportedError, match="kb=1"):
            matmul(a, b, config, block_a=block_a, kb=kb)


@pytest.mark.parametrize("mode", ["chunk", "split"])
@pytest.mark.parametrize("pes", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ((20, 30, 64), {"kb": 2, "block_a": 2}),
        ((20, 30, 64), {"kb": 4, "block_a": 2, "transpose_b": True}),
        ((35, 20, 96), {"segments": 3, "kb": 3, "block_a": 4, "ka": 2}),
        ((37, 20, 41), {"tail_kb": 5}),
        ((37, 20, 64), {"block_a": 3, "tail_kb": 8, "transpose_b": True}),
        ((37, 20, 64), {"kb": 2, "tail_kb": 3, "segments": 2}),
        ((70, 9, 30), {"ka": 2, "tail_kb": 4, "order": "column_outer"}),
    ],
)
def test_groups_load_blocks_of_a_and_the_last_rows_have_more_threads(sizes, how, pes, mode):
    """By day one PE: test_spread.py divides such products over several."""
    (m, n, k), rng = sizes, np.random.default_rng(0)
    config = MatrixUnitConfig(threads=32, pes=pes, kb_mode=mode)
    for dtype in (np.int8, np.float32):
        a, b = rng.integers(-9, 9, (m, k)).astype(dtype), rng.integers(-9, 9, (k, n)).astype(dtype)
        kb = how.get("kb", 1)
        odd = k % 16 if mode == "chunk" else config.chunk(a.itemsize, kb) * a.itemsize % 4 or 8 // a.itemsize % kb
        if "block_a" in how and (dtype == np.float32 or mode == "split") and odd:
            continue
        made = matmul(a, b, config, **how)
        assert (made.value == a @ b.astype(np.int32)).all()
        forms = {name: value for name, value in how.items() if name != "block_a"}
        assert made.counts == expected_counts(m, n, k, config, a.itemsize, **forms)


def test_the_last_rows_are_sooner_done():
    a, b = np.ones((300, 300), np.int8), np.ones((300, 300), np.int8)
    chunk = MatrixUnitConfig(kb_mode="chunk")
    assert matmul(a, b, chunk, block_a=8, tail_kb=4).cycles < 0.9 * matmul(a, b, chunk, block_a=8).cycles
    with pytest.raises(UnsupportedError, match="no tail_kb"):
        matmul(np.ones((20, 64), np.int8), np.ones((64, 4), np.int8), kb=2, block_a=2, tail_kb=4)
    with pytest.raises(UsageError, match="a group of 512 threads"):
        matmul(a, b, tail_kb=512)


def test_512_cubed_uses_two_thirds_of_the_math():
    ones = np.ones((512, 512), np.int8)
    best = matmul(ones, ones, block_a=8, segments=2, page=(256, 64))
    assert (best.value == 512).all()
    assert best.math_utilisation >= 0.67
    assert best.cycles < 97_389


@pytest.mark.parametrize("name", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("k", [5, 300])
def test_elements_of_four_and_eight_bits(name, k):
    """Sums stay small enough to be exact; what is no number comes through; the energy is that of the type."""
    dtype, rng = np.dtype(getattr(ml_dtypes, name)), np.random.default_rng(k)
    low = 0 if name == "uint4" else -8
    a, b = (rng.integers(low, 8, shape).astype(np.float32).astype(dtype) for shape in ((20, k), (k, 9)))
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    for how in ({}, {"transpose_b": True}, {"ka": 2, "kb": 2}):
        made = matmul(a, b, MatrixUnitConfig(threads=32), **how)
        assert made.value.dtype == (np.int32 if "int" in name else np.float32)
        assert (made.value == wanted).all()
        assert made.counts == expected_counts(20, 9, k, config=MatrixUnitConfig(threads=32), element_bytes=1, **how)
    assert made.moved.macs_f8 + made.moved.macs_int8 == 20 * 9 * k
    if "float" in name:
        a[3, 0] = np.nan
        assert np.isnan(matmul(a, b).value[3]).all()


def test_a_stays_in_registers_over_all_columns_91_100():
    """Figure 7 as the text means it: 32 rounds of A are loaded once, and every column is finished over them."""
    rng = np.random.default_rng(1)
    a, b = integers(rng, (256, 256), "int8"), integers(rng, (256, 256), "int8")
    for block_a, loaded in ((1, 256), (8, 1), (32, 1)):
        made = matmul(a, b, transpose_b=True, order="column_outer", block_a=block_a)
        assert (made.value == modulo(a, b)).all()
        assert made.counts.a_bytes_loaded == loaded * 256 * 256
        assert made.counts == expected_counts(256, 256, 256, transpose_b=True, order="column_outer", block_a=block_a)
    with pytest.raises(UsageError, match="registers for at most 104"):
        matmul(a, b, order="column_outer", block_a=105)


def test_one_register_of_a_is_one_product_a_round_87_88_106():
    """Figure 6: each round adds one product to every element of C; in int8 a register has four."""
    one = MatrixUnitConfig(a_bytes=4)
    rng = np.random.default_rng(1)
    a, b = integers(rng, (7, 12), "int32"), integers(rng, (12, 5), "int32")
    made = matmul(a, b, one)
    assert (made.value == modulo(a, b)).all()
    assert (made.counts.instructions, made.counts.steps) == (12, 12 * 5)
    assert made.counts == expected_counts(7, 5, 12, one, element_bytes=4)
    assert [one.chunk(size) for size in (1, 2, 4)] == [4, 2, 1]


@pytest.mark.parametrize(
    ("config", "kb", "depth", "dtype"),
    [
        ({}, 2, 8, "int8"),  # two registers hold 8 int8 [106], of which each thread has 4 [121]
        ({}, 2, 4, "int16"),  # k = 1, 2 | 3, 4 [119]
        ({}, 2, 2, "int32"),  # k = 1 | 2 [118]
        ({"kb_mode": "chunk", "a_bytes": 4}, 2, 8, "int8"),  # so it is where a thread has one register, all its own
    ],
)
def test_a_dot_product_of_the_texts_own_length_is_halved_106_118_119_121(config, kb, depth, dtype):
    """Columns of zeros but for one element show what each thread multiplies: here A of the second is poisoned."""
    config = MatrixUnitConfig(threads=kb, **config)
    size = np.dtype(dtype).itemsize
    assert (config.depth(size, kb), config.chunk(size, kb)) == (depth, depth // kb)
    a, b = np.arange(1, depth + 1, dtype=dtype)[None], np.eye(depth, dtype=dtype)[:, :kb]
    made = matmul(a, b, config, kb=kb)
    assert (made.counts.instructions, made.counts.kb_transfers) == (1, kb)
    second = made.program.instructions
    assert f"mul r286, r284, {depth // kb}" in [str(one) for one in second]
    assert (made.value == modulo(a, b)).all()


@pytest.mark.parametrize(("order", "equal"), [("chunk", True), ("exact", True), ("fma", False)])
def test_two_threads_give_the_floats_of_one_but_for_fma_119(order, equal):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 16)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    config = MatrixUnitConfig(threads=16, float_order=order)
    alone, shared = (np.asarray(matmul(a, b, config, kb=kb).value) for kb in (1, 2))
    assert np.array_equal(alone, shared) == equal
    assert np.allclose(alone, shared, atol=1e-5)


def test_without_l2_every_miss_is_device_memorys_56():
    rng = np.random.default_rng(1)
    a, b = integers(rng, (48, 64), "int8"), integers(rng, (64, 64), "int8")
    none, some = (matmul(a, b, MatrixUnitConfig(threads=16, l1_bytes=512, l2_bytes=size)) for size in (0, 1 << 20))
    assert (none.value == some.value).all()
    assert none.counts.l2_misses == none.counts.l1_misses == some.counts.l1_misses > some.counts.l2_misses
    # A comes a line at a time, and each thread has the line it asked for last; a line that is stored to goes at once.
    assert none.bytes["dram"]["b"] == 64 * none.counts.l1_misses
    assert none.cycles >= some.cycles
    assert autotune(8, 16, 16, config=MatrixUnitConfig(threads=16, l2_bytes=0)).best.choice.segments is None
    memory = Memory()
    memory.add("X", np.zeros(4, np.int32), resident=False)
    run = MatrixUnit(MatrixUnitConfig(threads=1, l2_bytes=0)).run("segment ur1, $X\ndmain ur1", memory)
    assert [error.kind for error in run.errors] == ["l2_full"]
