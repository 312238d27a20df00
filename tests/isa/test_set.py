"""Instructions beside mm, ld and st: floats bit for bit, conversions, selections, votes, descriptors, page tables."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.isa.reference import fma
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory

SMALL = MatrixUnitConfig(threads=8, registers=32)
NAN = 0x7FC00000
words = st.one_of(
    st.integers(0, 2**32 - 1),
    st.floats(width=32).map(lambda x: int(np.float32(x).view(np.uint32))),
    st.sampled_from([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 1, 0x3F800000, 0x00800000]),
)


def run(text, memory=None, config=SMALL):
    return MatrixUnit(config).run(text, memory)


def single(word):
    return np.uint32(word).view(np.float32)


def bits(value):
    return NAN if np.isnan(value) else int(np.float32(value).view(np.uint32))


def once(x, y, z):
    """x * y + z rounded once, to infinity where it is beyond float32."""
    if all(np.isfinite((x, y, z))):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if abs(exact) >= 2**128 - 2**103:
            return np.float32(np.inf if exact > 0 else -np.inf)
        if 0 < abs(exact) <= Fraction(1, 2**150):
            return np.float32(0.0 if exact > 0 else -0.0)
    if np.isinf(z) and all(np.isfinite((x, y))):
        return z  # however large the product is
    return fma(x, y, z)


def lesser(x, y):
    return y if np.isnan(x) else x if np.isnan(y) else x if x <= y else y


def greater(x, y):
    return y if np.isnan(x) else x if np.isnan(y) else x if x >= y else y


FLOATS = {
    "fadd": lambda x, y: x + y,
    "fsub": lambda x, y: x - y,
    "fmul": lambda x, y: x * y,
    "fdiv": lambda x, y: np.divide(x, y),
    "fmin": lesser,
    "fmax": greater,
}


@settings(max_examples=tries(20))
@given(st.sampled_from(sorted(FLOATS)), st.lists(st.tuples(words, words), min_size=8, max_size=8))
def test_float_arithmetic_rounds_once(name, pairs):
    x, y = (np.array(v, np.uint32) for v in zip(*pairs))
    loads = "segment ur1, $X\nsegment ur2, $Y\ntid r1\nld r2, ur1:rf1:0\nld r3, ur2:rf1:0"
    result = run(f"{loads}\n{name} r4, r2, r3\nmov ur5, 3.25\n{name} r5, ur5, -0.5", {"X": x, "Y": y})
    with np.errstate(all="ignore"):
        expected = [bits(FLOATS[name](single(a), single(b))) for a, b in pairs]
        uniform = bits(FLOATS[name](np.float32(3.25), np.float32(-0.5)))
    assert result.registers.view(np.uint32)[:, 4].tolist() == expected
    assert (result.registers.view(np.uint32)[:, 5] == uniform).all()


@settings(max_examples=tries(20))
@given(st.lists(st.tuples(words, words, words), min_size=8, max_size=8))
@example([(1_065_353_217, 2_139_095_038, 4_286_578_688)] * 8)
def test_fma_rounds_once_and_fsqrt_too(triples):
    x, y, z = (np.array(v, np.uint32) for v in zip(*triples))
    loads = "".join(f"segment ur{n}, ${name}\nld r{n + 1}, ur{n}:rf1:0\n" for n, name in enumerate("XYZ", 1))
    result = run(f"tid r1\n{loads}fma r6, r2, r3, r4\nfsqrt r7, r2", {"X": x, "Y": y, "Z": z})
    with np.errstate(all="ignore"):
        expected = [bits(once(*(single(w) for w in triple))) for triple in triples]
        roots = [bits(np.sqrt(single(a))) for a, _, _ in triples]
    got = result.registers.view(np.uint32)
    assert got[:, 6].tolist() == expected
    assert got[:, 7].tolist() == roots


TYPES = {"s32": np.int32, "u32": np.uint32, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def converted(word, source, target):
    raw = np.array([word], np.uint32)
    low = raw.astype(np.uint16) if source in ("f16", "bf16") else raw
    value = float(low.view(TYPES[source])[0])
    if target in ("s32", "u32"):
        ends = np.iinfo(TYPES[target])
        number = (
            0 if math.isnan(value) else ends.max if value == math.inf else ends.min if value == -math.inf else value
        )
        return max(ends.min, min(ends.max, int(number))) % 2**32
    if math.isnan(value):
        return {"f32": NAN, "f16": 0x7E00, "bf16": 0x7FC0}[target]
    with np.errstate(all="ignore"):
        result = np.array([value], np.float64).astype(TYPES[target])
    if target == "bf16":  # ml_dtypes goes by way of float32; the nearest of the neighbours is found here
        near = result.view(np.uint16)[0]
        around = [np.uint16((int(near) + d) % 65536) for d in (-1, 0, 1)]
        finite = [n for n in around if math.isfinite(float(n.view(ml_dtypes.bfloat16)))]
        if finite and math.isfinite(float(result[0])):
            return min(
                finite, key=lambda n: (abs(float(n.view(ml_dtypes.bfloat16)) - value), int(n) & 1, n != near)
            ).item()
        return int(near)
    return int(result.view(np.uint16 if target == "f16" else np.uint32)[0])


@settings(max_examples=tries(20))
@given(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES)), st.lists(words, min_size=8, max_size=8))
def test_conversions(source, target, values):
    text = f"segment ur1, $X\ntid r1\nld r2, ur1:rf1:0\ncvt.to_{target}.from_{source} r3, r2"
    got = run(text, {"X": np.array(values, np.uint32)}).registers.view(np.uint32)[:, 3].tolist()
    assert got == [converted(word, source, target) for word in values]


def test_integers_that_had_no_test_of_their_own():
    text = "tid r1\nsub r2, r1, 4\nmad r3, r2, 1000000, r1\nnot r4, r2\nshru r5, r2, 28\nmov ur1, -1\nshru ur2, ur1, 1"
    result = run(text)
    t = np.arange(8)
    assert (result.registers[:, 3] == (t - 4) * 1000000 + t).all()
    assert (result.registers[:, 4] == 3 - t).all()
    assert result.registers[:, 5].tolist() == [15] * 4 + [0] * 4
    assert result.state.uniform[2] == 2**31 - 1


def test_selections_votes_and_reading_a_thread():
    text = """
        tid r1
        cmp.ltu p1, r1, 3
        cmp.geu p2, r1, -1      # as unsigned numbers none is that large
        cmp.gt p3, r1, -1
        pxor p4, p1, p3
        sel r2, p1, r1, 50
        pcount ur1, p1
        pany ur2, p2
        pall ur3, p3
        pany ur4, p4
        read ur5, r2, ur1
        read ur6, r2, 8
        fcmp.lt p5, r1, 0f7fc00000
        fcmp.ne p6, r1, 0f7fc00000
        @p1, cmp.eq p6, r1, 1
    """
    result = run(text)
    assert result.registers[:, 2].tolist() == [0, 1, 2] + [50] * 5
    assert result.state.uniform[1:7] == [3, 0, 1, 1, 50, 0]
    assert [(e.kind, e.column) for e in result.errors] == [("thread_out_of_range", 8)]
    assert not result.state.predicates[:, 5].any()
    assert result.state.predicates[:, 6].tolist() == [False, True, False] + [True] * 5


def test_loops_count_down():
    result = run("mov ur1, 5\nagain: add r1, r1, ur1\nloop ur1, again\nnop\npeid ur2\nnpe ur3")
    assert (result.registers[:, 1] == 15).all()
    assert result.executed == 1 + 10 + 3
    assert result.state.uniform[1:4] == [0, 0, 1]


def test_a_descriptor_is_a_window_the_program_makes():
    source = np.arange(48, dtype=np.int32).reshape(6, 8)
    text = """
        segment ur1, $S
        segdef ur2, ur1
        segbase ur2, 1, 3       # d1 is the last dim
        segsize ur2, 1, 2
        segbase ur2, 2, 4
        segget.base ur3, ur2, 1
        segget.size ur4, ur2, 2
        segget.size ur5, ur1, 1
        tid r1
        mov r2, 0
        mov r3, -1
        ld r3, ur2:rf1:0
        mov r2, 1
        mov r4, -1
        ld r4, ur2:rf1:0
    """
    result = run(text, {"S": source})
    assert result.state.uniform[3:6] == [3, 2, 8]
    assert result.registers[:, 3].tolist() == [35, 36, *[-1] * 6]
    assert result.registers[:, 4].tolist() == [43, 44, *[-1] * 6]
    assert "[2, 2] of S from [4, 3]" in str(result.state)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("segbase ur1, 1, 8", "segment_out_of_range"),
        ("segbase ur1, 1, -1", "segment_out_of_range"),
        ("segsize ur1, 2, 7", "segment_out_of_range"),
        ("segsize ur1, 2, 0", "segment_out_of_range"),
        ("segsize ur1, 3, 1", "segment_out_of_range"),
        ("segget.size ur2, ur1, 0", "segment_out_of_range"),
        ("segget.size ur2, ur9, 1", "unknown_segment"),
        ("segdef ur2, ur9", "unknown_segment"),
        ("ptmap ur9", "unknown_segment"),
        ("ptdel ur1, 1", "page_fault"),
    ],
)
def test_descriptors_and_page_tables_refuse(line, kind):
    result = run(f"segment ur1, $S\n{line}", {"S": np.zeros((6, 8), np.int32)})
    assert [(e.kind, e.pc) for e in result.errors] == [(kind, 1)]
    assert result.state.segments[1].sizes.tolist() == [8, 6]


def test_the_descriptor_table_ends():
    result = run("segment ur1, $S\nmov ur3, 1030\nmore: segdef ur2, ur1\nloop ur3, more", {"S": np.zeros(8, np.int8)})
    assert {e.kind for e in result.errors} == {"segment_table_full"}
    assert len(result.errors) == 1030 - 1023
    assert len(result.state.segments) == 1024


def test_entries_are_made_and_deleted_by_the_program():
    memory = Memory()
    memory.add("S", np.arange(64, dtype=np.int32), page=(32,), resident=False)
    read = "segment ur1, $S\ntid r1\nmul r1, r1, 8\nptmap ur1, 1\nmov r2, -1\nld r2, ur1:rf1:0\n"
    half = run(read, memory)
    assert half.registers[:, 2].tolist() == [-1] * 4 + [32, 40, 48, 56]
    table = half.state.segments[1].table
    assert str(table.entries()[0]) == "page 0: absent"
    assert str(table.entries()[1]).startswith("page 1: loaded, DDR at byte ")
    gone = run(read + "ptdel ur1\nld r2, ur1:rf1:0", memory)
    assert [e.kind for e in gone.errors] == ["page_fault"] * 12
    assert {e.state for e in gone.state.segments[1].table.entries()} == {"absent"}


def test_products_nothing_was_put_in_are_recorded():
    text = "segment ur4, $B\ntid r11\nmov r10, 0\nmov r20, 0x01010101\nsetmm 4, 4\nclr r0, 2\nmm r0, ur4:rf10:0, r20\n"
    poison = dataclasses.replace(SMALL, uninitialized="poison")
    result = run(text + "mm r0, ur4:rf10:0, r20", {"B": np.ones((8, 8), np.int8)}, poison)
    assert [(e.kind, e.column, e.register) for e in result.errors] == [
        ("uninitialized_register", 2, 2),
        ("uninitialized_register", 3, 3),
    ]
    assert (result.registers[:4, 30] == 0x7FC0DEAD).all()
    assert run(text, {"B": np.ones((8, 8), np.int8)}).errors == ()


def test_loads_of_fewer_elements_than_the_registers_hold():
    memory = {"S": np.arange(1, 65, dtype=np.int8).reshape(8, 8)}
    result = run("segment ur1, $S\ntid r2\nmov r1, 0\nld.n5 r8, ur1:rf1:0, 2", memory)
    assert result.registers[0, 8:10].copy().view(np.int8).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert result.counts.a_bytes_loaded == 40


def test_the_same_load_sees_the_window_as_it_is_now():
    """Executed again after its descriptor slid, and after its page moved to L2 and back."""
    text = """
        segment ur1, $S
        segdef ur2, ur1
        segsize ur2, 1, 2
        tid r1
        mov r1, 0
        mov ur3, 3
        mov ur4, 0
    again:
        segbase ur2, 1, ur4
        ld r2, ur2:rf1:0
        add r3, r3, r2
        dmain ur1
        dmawait ur1
        ld r2, ur2:rf1:0
        add r3, r3, r2
        dmaout ur1
        ptmap ur1
        add ur4, ur4, 3
        loop ur3, again
    """
    result = run(text, {"S": np.arange(16, dtype=np.int32)})
    assert (result.registers[:, 3] == 2 * (0 + 3 + 6)).all()
    assert result.errors == ()
