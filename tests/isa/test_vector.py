"""Vector instructions: values bit for bit, what they count and cost, guards, ends of registers, errors of functions."""

from __future__ import annotations

from decimal import Decimal, getcontext

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory
from tilewright.isa.execute.vector import FUNCTIONS

SMALL = MatrixUnitConfig(threads=6, registers=40)
NAN = 0x7FC00000


def run(text, first=None, second=None, config=SMALL):
    """With ``first`` in r0 on and ``second`` in r10 on (words, a row a thread); r20 on are 7."""
    memory = Memory()
    start = np.full((config.threads, 40), 7, np.int32)
    for at, words in ((0, first), (10, second)):
        if words is not None:
            start[:, at : at + words.shape[1]] = words.view(np.int32)
    memory.add("V", start)
    lines = ["segment ur1, $V", "tid r39", "mov r38, 0", "ld r0, ur1:rf38:0, 38", "cmp.lt p1, r39, 3", text]
    return MatrixUnit(config).run("\n".join(lines), memory)


def words(values):
    return np.ascontiguousarray(values).view(np.int32)


EDGES = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38, 0.1, 7.0]
floats = st.lists(st.sampled_from(EDGES), min_size=48, max_size=48).map(lambda v: np.array(v, np.float32).reshape(6, 8))
integers = st.lists(st.sampled_from([0, 1, -1, 7, -7, 100, 2**31 - 1, -(2**31), 31, 33]), min_size=48, max_size=48).map(
    lambda v: np.array(v, np.int32).reshape(6, 8)
)


def one_nan(values):
    made = words(values.astype(np.float32)).copy()
    made[np.isnan(values)] = NAN
    return made


def greatest(x, y):
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, np.where(x >= y, x, y)))


FLOATS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": greatest,
    "min": lambda x, y: -greatest(-x, -y),
}


@settings(max_examples=tries(15))
@given(floats, floats, st.sampled_from(sorted(FLOATS)), st.booleans(), st.integers(0, 8))
def test_floats_are_numpys_bit_for_bit(x, y, op, one, n):
    result = run(f"vf.{op}{'.y1' if one else ''} r20, r0, r10, {n}", x, y)
    with np.errstate(all="ignore"):
        expected = one_nan(FLOATS[op](x, y[:, :1] if one else y))[:, :n]
    assert (result.registers[:, 20 : 20 + n] == expected).all()
    assert (result.registers[:, 20 + n : 38] == 7).all()
    assert result.traffic.vector_ops == 6 * n
    assert result.traffic.special_ops == (6 * n if op == "div" else 0)


def divided(x, y, remainder):
    q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else -1
    return (x if y == 0 else x - y * q) if remainder else q


INTEGERS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: divided(x, y, False),
    "rem": lambda x, y: divided(x, y, True),
    "min": min,
    "max": max,
    "minu": lambda x, y: min(x % 2**32, y % 2**32),
    "maxu": lambda x, y: max(x % 2**32, y % 2**32),
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << (y & 31),
    "shr": lambda x, y: x >> (y & 31),
    "shru": lambda x, y: x % 2**32 >> (y & 31),
}


@settings(max_examples=tries(15))
@given(integers, integers, st.sampled_from(sorted(INTEGERS)), st.sampled_from(["r10", "ur2", "-3"]), st.booleans())
def test_integers_are_pythons_modulo_2_to_32(x, y, op, source, guarded):
    result = run(f"mov ur2, {y[0, 0]}\n{'@p1, ' * guarded}vi.{op} r0, r0, {source}, 8", x, y)
    other = {"r10": y, "ur2": np.full_like(x, y[0, 0]), "-3": np.full_like(x, -3)}[source]
    expected = [[(INTEGERS[op](int(a), int(b)) + 2**31) % 2**32 - 2**31 for a, b in zip(*r)] for r in zip(x, other)]
    if guarded:
        expected[3:] = x[3:].tolist()
    assert result.registers[:, :8].tolist() == expected
    assert result.traffic.vector_ops == (3 if guarded else 6) * 8


def test_comparisons_choices_and_counting():
    x = np.array(EDGES * 4, np.float32).reshape(6, 8)
    result = run("vfcmp.lt r20, r0, 0.5, 8\nvsel r20, r20, r0, -1.0, 8\nviota r28, r39, 4\nviota r32, 9, 3", x)
    assert (result.registers[:, 20:28] == words(np.where(x < 0.5, x, np.float32(-1)))).all()
    assert result.registers[2, 28:35].tolist() == [2, 3, 4, 5, 9, 10, 11]
    y = np.arange(48, dtype=np.int32).reshape(6, 8) - 20
    below = run("vcmp.ltu r20, r0, 10, 8\nvcmp.le.y1 r28, r0, r39, 8", y).registers
    assert (below[:, 20:28] == ((y >= 0) & (y < 10))).all()
    assert (below[:, 28:36] == (y <= np.arange(6)[:, None])).all()


def ulps(function, true, points):
    """The largest distance from the true value, in units of the last place."""
    made, worst = FUNCTIONS[function](points.astype(np.float64)).astype(np.float32), Decimal(0)
    for x, got in zip(points, made):
        exact = true(Decimal(float(x)))
        worst = max(worst, abs(Decimal(float(got)) - exact) / Decimal(float(np.spacing(abs(np.float32(exact))))))
    return worst


def tanh(x):
    e = (2 * abs(x)).exp()
    return ((e - 1) / (e + 1)).copy_sign(x)


@pytest.mark.parametrize(
    ("function", "true", "low", "high"),
    [
        ("exp", lambda x: x.exp(), -103, 88),
        ("log", lambda x: x.ln(), 1e-6, 3),
        ("tanh", tanh, -12, 12),
        ("tanh", tanh, -0.02, 0.02),
        ("rsqrt", lambda x: 1 / x.sqrt(), 1e-3, 1e3),
        ("sqrt", lambda x: x.sqrt(), 1e-3, 1e3),
        ("recip", lambda x: 1 / x, 1e-3, 1e3),
    ],
)
def test_functions_are_within_their_bound(function, true, low, high):
    getcontext().prec = 40
    points = np.random.default_rng(1).uniform(low, high, 300).astype(np.float32)
    assert ulps(function, true, points) < Decimal("0.51")


def test_functions_where_they_end():
    x = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 200.0, -200.0]] * 6, np.float32)
    expected = {
        "exp": [1, 1, np.inf, 0, np.nan, np.exp(-1), np.inf, 0],
        "log": [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, np.log(200), np.nan],
        "tanh": [0.0, -0.0, 1, -1, np.nan, np.tanh(-1), 1, -1],
        "rsqrt": [np.inf, -np.inf, 0, np.nan, np.nan, np.nan, 200**-0.5, np.nan],
        "recip": [np.inf, -np.inf, 0, -0.0, np.nan, -1, 0.005, -0.005],
    }
    for name, row in expected.items():
        text = f"vfun.{name} r20, r0, 8"
        assert (run(text, x).registers[0, 20:28] == one_nan(np.array(row, np.float64))).all(), name


TYPES = {
    "s4": ml_dtypes.int4,
    "u4": ml_dtypes.uint4,
    "s8": np.int8,
    "u8": np.uint8,
    "s16": np.int16,
    "u16": np.uint16,
    "s32": np.int32,
    "u32": np.uint32,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
}


@settings(max_examples=tries(20))
@given(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES)), st.booleans(), st.booleans(), st.data())
def test_conversions_of_packed_elements(source, target, zero, wrap, data):
    bits = np.dtype(TYPES[source]).itemsize * 8
    mask = 15 if source in ("s4", "u4") else 2**bits - 1
    raw = np.array(data.draw(st.lists(st.integers(0, mask), min_size=30, max_size=30)), f"u{bits // 8}").reshape(6, 5)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = raw.view(TYPES[source]).astype(np.float64)
    start = np.zeros((6, 20), f"u{bits // 8}")
    start[:, :5] = raw
    packed = start.view(np.int32)[:, : 20 * bits // 32]
    text = f"vcvt.to_{target}.from_{source}{'.rz' * zero}{'.wrap' * wrap} r20, r0, 5"
    result = run(text, packed)
    size = np.dtype(TYPES[target]).itemsize
    made = np.ascontiguousarray(result.registers[:, 20:28]).view(TYPES[target])[:, :5]
    with np.errstate(all="ignore"):
        if target[0] in "su":
            n = int(target[1:])
            low, high = (0, 2**n - 1) if target[0] == "u" else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)
            whole = np.trunc(values) if zero else np.rint(values)
            if wrap and source[0] in "su":
                expected = (values - low) % 2**n + low
            else:
                expected = np.clip(np.where(np.isnan(whole), 0, whole), low, high)
            assert (made.astype(np.float64) == expected).all()
        else:
            narrow = raw.view(TYPES[source])
            # numpy's own round once, from float32, which has all integers up to 2^24; only a bf16 holds larger ones.
            expected = narrow.astype(np.float32).astype(TYPES[target])
            if target == "bf16" and source[0] in "su":
                expected = nearest_bf16(values)
            good = ~np.isnan(expected.astype(np.float32))
            assert (made.view(f"u{size}")[good] == expected.view(f"u{size}")[good]).all()
            assert np.isnan(made[~good].astype(np.float32)).all()
    assert (
        np.ascontiguousarray(result.registers[:, 20:38]).view(np.uint8)[:, 5 * size :]
        == words(np.full((6, 18), 7, np.int32)).view(np.uint8)[:, 5 * size :]
    ).all()


def nearest_bf16(values):
    """Whole numbers to the nearest bf16, ties to even, by search among three."""
    best = values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.int16)
    near = np.stack([best - 1, best, best + 1]).view(ml_dtypes.bfloat16)
    apart = np.abs(near.astype(np.float64) - values) * 2 + (near.view(np.int16) & 1)
    apart[np.isnan(apart)] = np.inf
    return np.take_along_axis(near, apart.argmin(axis=0)[None], 0)[0]


def test_requantisation_rounds_half_to_even_and_ends_where_the_type_ends():
    x = np.array([[1, 3, 5, -1, -3, 1000, -1000, 7]] * 6, np.int32)
    scale = np.array([[0.5] * 7 + [np.nan]] * 6, np.float32)
    result = run("vquant.to_s8.from_s32 r20, r0, r10, 3, 8", x, scale)
    assert np.ascontiguousarray(result.registers[:1, 20:22]).view(np.int8).tolist() == [[3, 5, 5, 3, 1, 127, -128, 0]]
    per_thread = np.array([[0.5], [1], [2], [4], [0], [np.inf]], np.float32)
    result = run("vquant.to_u8.from_s32.y1 r20, r0, r10, 0, 8", x, per_thread)
    rows = np.ascontiguousarray(result.registers[:, 20:22]).view(np.uint8)
    assert rows[1].tolist() == [1, 3, 5, 0, 0, 255, 0, 7]
    assert rows[5].tolist() == [255, 255, 255, 0, 0, 255, 0, 255]


def by_halves(values):
    while len(values) > 1:
        half = -(-len(values) // 2)
        values = [v + values[n + half] if n + half < len(values) else v for n, v in enumerate(values[:half])]
    return values[0]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_sums_along_registers_are_by_halves(n):
    x = np.random.default_rng(n).normal(size=(6, 8)).astype(np.float32)
    result = run(f"vred.add.f32 r20, r0, {n}\nvred.max.f32 r21, r0, {n}\nvred.min.s32 r22, r0, {n}", x)
    assert (result.registers[:, 20] == words(np.array([by_halves(list(row[:n])) for row in x]))).all()
    assert (result.registers[:, 21] == words(x[:, :n].max(axis=1))).all()
    assert (result.registers[:, 22] == words(x)[:, :n].min(axis=1)).all()


@pytest.mark.parametrize(("group", "size"), [("", 6), (".g2", 2), (".g4", 4), (".g7", 6)])
@pytest.mark.parametrize("guard", ["", "@!p1, "])
def test_sums_across_threads(group, size, guard):
    x = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    result = run(f"{guard}vthr.add.f32{group} r20, r0, 3", x)
    for first in range(0, 6, size):
        threads = list(range(first, min(6, first + size)))
        on = [t for t in threads if not guard or t >= 3]
        for r in range(3):
            pad = [x[t, r] if t in on else np.float32(-0.0) for t in threads] + [np.float32(-0.0)] * (
                size - len(threads)
            )
            for t in threads:
                word = words(np.float32(by_halves(pad)))[()] if t in on else 7
                assert result.registers[t, 20 + r] == word


def test_a_broadcast_load_is_fetched_once():
    memory = {"S": np.arange(64, dtype=np.int16).reshape(4, 16)}
    lines = ["segment ur1, $S", "tid r5", "mov r1, 2", "add r2, r5, 1", "cmp.gt p1, r5, 1", "mov r10, -1"]
    result = MatrixUnit(SMALL).run("\n".join([*lines, "@p1, ldb.n3 r10, ur1:rf1:1, 2", "ldb r20, ur1:rf1:-6"]), memory)
    loaded = np.ascontiguousarray(result.registers[:, 10:12]).view(np.int16)
    assert loaded[2:].tolist() == [[51, 52, 53, 0]] * 4
    assert loaded[:2].tolist() == [[-1, -1, 0, 0]] * 2
    assert (result.registers[:, 20] == 0).all()  # outside of the segment
    assert result.traffic.load_bytes == 6
    assert result.bytes["l1"]["a"] == 6
    assert result.bytes["dram"]["a"] == 64
    assert result.traffic.load_lines == 1


def test_what_vectors_cost():
    text = "vf.add r0, r0, 1.0, 8\nvfun.exp r0, r0, 8\nvthr.add.f32.g4 r0, r0, 8\nvf.mul r20, r20, 2.0, 12\nhalt"
    for rate, special in ((1, 4), (4, 16)):
        config = MatrixUnitConfig(threads=6, registers=40, vector_rate=rate, special_cycles=special, alu_latency=1)
        result = MatrixUnit(config).run(text)
        assert result.cycles == 8 // rate + 8 * special + 2 * (8 // rate) + 12 // rate
        assert sum(result.queue.values()) == result.cycles
        assert result.queue["vector"] + result.queue["arithmetic"] > 0
    assert result.energy_pj > 0


def test_vectors_end_where_registers_do():
    narrow = "vcvt.to_s8.from_s32 r39, r0, 4\nvcvt.to_s32.from_s8 r39, r0, 4"
    result = run(f"vf.add r30, r0, 1.0, 20\n{narrow}\nvred.add.s32 r1, r36, 8")
    assert [(e.kind, e.pc) for e in result.errors] == [("operand_out_of_range", pc) for pc in (5, 7, 8)]
    big = run("mov ur2, 0x7fffffff\nvi.add r0, r0, 1, ur2\nmov ur2, -5\nvi.add r0, r0, 1, ur2\nvred.add.s32 r0, r1, 0")
    assert [e.kind for e in big.errors] == ["operand_out_of_range"]
    assert (big.registers[:, :38] == 7).all()
