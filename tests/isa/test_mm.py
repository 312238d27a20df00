"""`mm` against the slow reference: registers bit for bit, work and errors, over types, roles and readings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.isa.reference import Mm, slow_mm
from tilewright.isa import MatrixUnit, MatrixUnitConfig, Memory

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32")
FLOATS = ("f16", "bf16", "f32")
READINGS = (
    *("kb_acc", "ka_split", "group_order", "pred_scope", "float_order", "overflow", "acc_window"),
    *("kb_mode", "column_numbering", "loaders"),
)


def run(mm, words, predicate, b, **config):
    """The instruction on the machine: every register but two is loaded from a segment, then one `mm` runs."""
    options = {name: getattr(mm, name) for name in READINGS}
    options["disjoint_sets"] = mm.loaders is not None
    memory = Memory({"R": words, "B": b})
    written = mm.type_a[1:] if mm.type_a[0] in "su" else mm.type_a
    signs = f".{mm.type_a[0]}a.{mm.type_b[0]}b" if mm.type_a[0] in "su" else ""
    program = f"""
        segment ur1, $R
        segment ur4, $B
        tid r{mm.registers}
        mov r{mm.registers - 1}, 0
        ld r0, ur1:rf{mm.registers - 1}:0x00, {mm.registers - 2}
        cmp.ne p1, r{mm.registers - 3}, 0
        mov r{mm.registers - 3}, 0
        setmm {mm.columns}, {mm.rows}
        @p1, mm{written}.ka{mm.ka}.kb{mm.kb}.t{mm.t}{signs} r{mm.product}, ur4:rf{mm.offset}:{mm.immediate}, r{mm.a}
    """
    # The two registers above the file the instruction sees hold the offsets of the loads; the window keeps mm out.
    unit = MatrixUnit(MatrixUnitConfig(threads=mm.threads, registers=mm.registers + 1, **options, **config))
    result = unit.run(program, memory)
    assert not [e for e in result.errors if e.kind != "register_out_of_range"]
    return result


def random_case(seed, type_a, type_b, **fields):
    rng = np.random.default_rng(seed)
    mm = Mm(type_a, type_b, **fields)
    words = rng.integers(0, 2**32, (mm.threads, mm.registers), dtype=np.uint64).astype(np.uint32)
    rows, depth = rng.integers(1, 20, 2)
    if type_a[0] in "su":
        info = np.iinfo(f"{'int' if type_b[0] == 's' else 'uint'}{type_b[1:]}")
        b = rng.integers(info.min, info.max + 1, (rows, depth), dtype=np.int64).astype(info.dtype)
    else:
        import ml_dtypes

        kind = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}[type_b]
        b = (rng.normal(size=(rows, depth)) * 4).astype(kind)
        values = (rng.normal(size=(mm.threads, 2 * mm.registers)) * 4).astype(kind)
        words = np.ascontiguousarray(values).view(np.uint32)[:, : mm.registers].copy()
        words[:, : mm.a] = rng.normal(size=(mm.threads, mm.a)).astype(np.float32).view(np.uint32)
    words[:, mm.offset] = rng.integers(-2, depth + 1, mm.threads).astype(np.int32).view(np.uint32)
    words[:, mm.offset + 1] = rng.integers(-1, rows + 1, mm.threads).astype(np.int32).view(np.uint32)
    words[:, mm.registers - 3] = rng.integers(0, 4, mm.threads) > 0
    words[:, mm.registers - 2 :] = 0
    return mm, words, b


def check(mm, words, b):
    predicate = words[:, mm.registers - 3] != 0
    result = run(mm, words, predicate, b)
    words = words.copy()
    words[:, mm.registers - 3] = 0
    expected = slow_mm(mm, words.tolist(), predicate.tolist(), b)
    got = result.registers[:, : mm.registers - 2].view(np.uint32)
    want = np.array(expected.words, np.uint32)[:, : mm.registers - 2]
    if mm.type_a[0] in "su":
        assert (got == want).all()
    else:  # bit for bit, but for the sign and payload of a NaN
        same = (got == want) | (np.isnan(got.view(np.float32)) & np.isnan(want.view(np.float32)))
        assert same.all()
    counts = result.counts
    assert counts.macs == expected.macs
    assert counts.column_loads == expected.column_loads
    assert counts.broadcast_elements == expected.broadcast_elements
    assert counts.steps == len(expected.steps)
    assert counts.accumulator_reads == counts.accumulator_writes == expected.accumulators
    assert counts.kb_transfers == expected.kb_transfers
    assert [(e.column, e.register) for e in result.errors] == expected.errors


roles = {
    "ka": st.integers(1, 4),
    "kb": st.integers(1, 4),
    "t": st.integers(0, 1),
    "columns": st.integers(1, 16),
    "rows": st.integers(1, 9),
    "product": st.sampled_from([0, 3, 29]),
    "immediate": st.integers(-2, 3),
    "threads": st.just(16),
    "kb_acc": st.sampled_from(["first", "last"]),
    "ka_split": st.sampled_from(["blocked", "interleaved"]),
    "group_order": st.sampled_from(["consecutive", "strided"]),
    "kb_mode": st.sampled_from(["chunk", "chunk", "split"]),
    "column_numbering": st.sampled_from(["gap", "gap", "compact"]),
    "pred_scope": st.sampled_from(["loader", "compute", "both"]),
}
quick = settings(max_examples=tries(20))


@quick
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from(["8", "16", "32"]),
    signs=st.sampled_from(["ss", "su", "us", "uu"]),
    fields=st.fixed_dictionaries(roles),
)
def test_integers(seed, width, signs, fields):
    check(*random_case(seed, signs[0] + width, signs[1] + width, **fields))


@quick
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(FLOATS),
    order=st.sampled_from(["chunk", "chunk", "fma", "exact"]),
    fields=st.fixed_dictionaries(roles),
)
@example(seed=1, dtype="f32", order="fma", fields={"columns": 16, "threads": 16, "rows": 9})
def test_floats_bit_for_bit(seed, dtype, order, fields):
    check(*random_case(seed, dtype, dtype, float_order=order, **fields))


@quick
@given(seed=st.integers(0, 2**32), width=st.sampled_from(["8", "16", "32"]), fields=st.fixed_dictionaries(roles))
def test_saturation_and_windows(seed, width, fields):
    check(*random_case(seed, "s" + width, "u" + width, overflow="saturate", acc_window=(2, 5), **fields))


def test_saturation_reaches_both_ends():
    mm, words, _ = random_case(3, "s16", "s16", overflow="saturate", columns=2, rows=4)
    words[:, mm.a : mm.a + 2] = 0x7FFF7FFF
    words[:, mm.offset : mm.offset + 2] = 0
    words[:, mm.registers - 3] = 1
    for start, element, end in ((0x7FFFFFF0, 32767, 2**31 - 1), (0x80000000, -32768, -(2**31))):
        words[:, 0] = start
        assert run(mm, words, None, np.full((4, 4), element, np.int16)).registers[0, 0] == end


def test_the_whole_range_path_equals_the_masked_one():
    """Large regular float blocks take a kernel of their own; one absent element sends them through the other."""
    rng = np.random.default_rng(5)
    words = rng.normal(size=(32, 64)).astype(np.float32).view(np.uint32)
    b = rng.normal(size=(24, 9)).astype(np.float32)
    for kb in (1, 2, 4):
        mm = Mm("f32", "f32", kb=kb, columns=24, rows=32, threads=32, registers=64, a=50, offset=54)
        mine = words.copy()
        mine[:, 54], mine[:, 55] = 1, np.arange(32)
        mine[:, mm.registers - 3] = 1
        check(mm, mine, b)
        mine[3, 54] = 8
        check(mm, mine, b)


@quick
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["s8", "u16", "f32", "f16"]),
    loaders=st.integers(4, 12),
    fields=st.fixed_dictionaries(roles),
)
def test_disjoint_sets_of_threads(seed, dtype, loaders, fields):
    """The first threads load, the others compute; groups of 4 or fewer, so that all machines have room for one."""
    fields |= {"columns": min(fields["columns"], loaders), "ka": min(fields["ka"], 2), "kb": min(fields["kb"], 2)}
    check(*random_case(seed, dtype, dtype, loaders=loaders, **fields))


def test_nothing_leaks_from_a_beyond_the_depth():
    mm = Mm("f32", "f32", columns=2, rows=4, kb=2)
    words = np.zeros((8, 40), np.uint32)
    words[:, mm.a : mm.a + 2] = np.array([2.0, np.nan], np.float32).view(np.uint32)
    words[1::2, mm.a] = np.array([np.inf], np.float32).view(np.uint32)
    words[:, mm.offset + 1] = np.arange(8)
    words[:, mm.registers - 3] = 1
    result = run(mm, words, None, np.full((2, 1), 3, np.float32))
    assert (result.registers.view(np.float32)[::2, :2] == 6).all()


def test_signed_zero_starts_from_the_register():
    mm = Mm("f32", "f32", columns=1, rows=1)
    words = np.zeros((8, 40), np.uint32)
    words[:, mm.a] = np.array([-1.0], np.float32).view(np.uint32)
    words[:, mm.registers - 3] = 1
    b = np.zeros((1, 1), np.float32)
    assert run(mm, words, None, b).registers[0, 0] == 0
    words[0, 0] = 0x80000000
    assert run(mm, words, None, b).registers.view(np.uint32)[0, 0] == 0x80000000


@pytest.mark.parametrize(("dtype", "kind"), [(np.int32, "32"), (np.float32, "f32")])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_in_a_do_not_change_what_was_read(dtype, kind, threads):
    """A is read once per instruction, also where a window lets products fall on it."""
    config = MatrixUnitConfig(threads=threads, registers=40, a_bytes=16, acc_window=(0, 40))
    text = f"""
        segment ur1, $A
        segment ur2, $B
        setmm 1, 1
        ld r8, ur1:rf1:0, 4
        mm{kind} r10, ur2:rf1:0, r8
    """
    run = MatrixUnit(config).run(text, {"A": np.array([[1, 2, 3, 4]], dtype), "B": np.ones((1, 4), dtype)})
    assert run.registers[0, 8:12].view(dtype).tolist() == [1, 2, 13, 4]
