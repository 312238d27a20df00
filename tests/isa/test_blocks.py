"""Stretches run by one kernel call leave the machine exactly as the functions of the instructions do, one by one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.isa import Machine, MatrixUnit, MatrixUnitConfig, MatrixUnitError, assemble, matmul
from tilewright.isa.chip.state import same_state
from tilewright.isa.execute import run as running

THREADS, REGISTERS = 12, 40
quick = settings(max_examples=tries(20))


def both(work):
    """``work()`` with the kernel, and with every instruction's own function; how many instructions the kernel ran."""
    runs = []

    def counted(*arguments):
        before = arguments[0].executed
        done = fast(*arguments)
        runs.append(arguments[0].executed - before)
        return done

    fast = running.run_block
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run_block", counted)
        one = work()
        patch.setattr(running, "run_block", lambda *_: False)
        other = work()
    return one, other, sum(runs)


def same(one, other):
    assert one.counts == other.counts
    assert one.traffic == other.traffic
    assert (one.cycles, one.math_cycles, one.stalls, one.queue) == (
        other.cycles,
        other.math_cycles,
        other.stalls,
        other.queue,
    )
    assert one.executed == other.executed
    assert one.errors == other.errors


@quick
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(1, 90)),
    st.sampled_from(["int8", "uint8", "int4", "int16", "uint32", "float32", "float16", "bfloat16", "float8_e5m2"]),
    st.fixed_dictionaries(
        {
            "ka": st.integers(1, 3),
            "kb": st.integers(1, 3),
            "transpose_b": st.booleans(),
            "order": st.sampled_from(["k_outer", "column_outer"]),
            "block_a": st.sampled_from([1, 1, 2, 5]),
        }
    ),
    st.fixed_dictionaries(
        {
            "threads": st.sampled_from([16, 24]),
            "kb_acc": st.sampled_from(["first", "last"]),
            "ka_split": st.sampled_from(["blocked", "interleaved"]),
            "group_order": st.sampled_from(["consecutive", "strided"]),
            "retention": st.sampled_from(["bypass", "evict", "off"]),
            "l1_bytes": st.sampled_from([256, 2048]),
            "l1_ways": st.sampled_from([0, 2]),
            "columns_per_step": st.sampled_from([1, 2]),
            "bcast_depth": st.integers(1, 3),
            "l1_ports": st.integers(1, 2),
            "alu_latency": st.integers(0, 3),
            "disjoint_sets": st.booleans(),
        }
    ),
)
def test_products_are_the_same_bit_for_bit(seed, mnk, dtype, how, machine):
    m, n, k = mnk
    rng = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind in "iu":
        info = np.iinfo(kind)
        a, b = (rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(kind) for shape in ((m, k), (k, n)))
    else:
        a, b = (rng.normal(size=shape).astype(kind) for shape in ((m, k), (k, n)))
    if machine["disjoint_sets"]:
        how = how | {"ka": min(how["ka"], 2), "kb": min(how["kb"], 2)}
    if how["block_a"] > 1:
        how = how | {"kb": 1, "order": "k_outer"}
    config = MatrixUnitConfig(**machine)
    one, other, ran = both(lambda: matmul(a, b, config=config, **how))
    same(one, other)
    assert one.value.tobytes() == other.value.tobytes()
    if k > 200 // (8 // kind.itemsize) * how["kb"] and how["block_a"] == 1:
        assert ran


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("order", ["k_outer", "column_outer"])
def test_whatever_is_no_number_is_one_nan(dtype, order):
    """NaNs with bits of their own come in; which of two an addition keeps is no affair of the program's."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(12, 90)).astype(dtype), rng.normal(size=(90, 9)).astype(dtype)
    for array in (a, b):
        words = array.view(f"u{array.itemsize}")
        words[rng.random(array.shape) < 0.01] = 0x7FC01234 if dtype is np.float32 else 0xFE12
    one, other, ran = both(lambda: matmul(a, b, MatrixUnitConfig(threads=16), kb=2, transpose_b=True, order=order))
    assert ran
    assert one.value.tobytes() == other.value.tobytes()
    nan = np.isnan(one.value)
    assert nan.any()
    assert not nan.all()
    assert (one.value.view(np.uint32)[nan] == 0x7FC00000).all()


scalars = st.one_of(
    st.builds(
        "{} r{}, {}, {}".format,
        st.sampled_from(["add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "shru"]),
        st.integers(0, 5),
        st.sampled_from(["r1", "r2", "ur2", "7", "-1"]),
        st.sampled_from(["r3", "r4", "ur3", "3", "40"]),
    ),
    st.builds("add ur{}, ur{}, {}".format, st.integers(2, 4), st.integers(2, 4), st.integers(-9, 9)),
    st.builds("{}not r{}, r3".format, st.sampled_from(["", "@p1, ", "@!p2, "]), st.integers(0, 5)),
    st.builds("@p1, mov r{}, {}".format, st.integers(0, 5), st.sampled_from(["r2", "ur4", "1.5", "9"])),
    st.builds(
        "{}cmp.{} p{}, r{}, {}".format,
        st.sampled_from(["", "@p2, "]),
        st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge", "ltu", "geu"]),
        st.integers(0, 2),
        st.integers(0, 5),
        st.sampled_from(["r1", "ur2", "5"]),
    ),
    st.sampled_from(["pand p0, p1, p2", "por p1, p0, p2", "pxor p2, p1, p0", "pnot p1, p2", "nop", "mov r20, ur3"]),
    st.sampled_from(["tid r20", "segment ur5, $B", "segment ur5, $A", "segment ur6, $B", "segment ur5, $C"]),
    st.sampled_from(["setmm 4", "setmm 6, 3", "setmm ur9, 2", "setmm ur2", "setmm 3, ur2", "setmm ur9, ur8"]),
    st.sampled_from(["ld r24, ur5:rf20:1, 2", "@p1, ld.t1 r24, ur5:rf20:0", "ld.s2.n3 r24, ur5:rf20:-1, 2"]),
    st.sampled_from(
        ["mm8 r30, ur5:rf20:0, r24", "@p1, mm8.ka2.t1 r30, ur5:rf20:1, r24", "mm8.kb2 r28, ur5:rf20:0, r24"]
    ),
)


@quick
@given(st.lists(scalars, min_size=1, max_size=9), st.integers(2, 40), st.integers(-3, 9))
@example(["setmm ur9, 2", "mm8 r30, ur5:rf20:0, r24"], 14, 0)  # more columns than loaders
def test_loops_of_anything(body, times, start):
    text = f"""
        segment ur5, $B
        tid r21
        tid r3
        mul r4, r3, 1103515245
        cmp.lt p1, r21, 5
        cmp.gt p2, r4, 0
        setmm 6, 3
        mov ur2, {start}
        mov ur9, {times}
        mov ur8, 3
    again:
        br.gt ur9, 2, over
        nop
    over:
        {chr(10).join(body)}
        loop ur9, again
        mov ur9, 4
        loop ur8, again
    """
    config = MatrixUnitConfig(threads=THREADS, registers=REGISTERS, l1_bytes=128, l1_ways=1)
    rng = np.random.default_rng(start + 3)
    memory = {name: rng.integers(-128, 128, size).astype(np.int8) for name, size in (("B", (9, 50)), ("A", (7, 70)))}
    one, other, _ = both(lambda: MatrixUnit(config).run(text, memory))
    same(one, other)
    differ = [
        f.name
        for f in fields(one.state)
        if f.compare and not same_state(*(getattr(r.state, f.name) for r in (one, other)))
    ]
    assert differ == []
    assert one.state == other.state


@quick
@given(
    st.data(),
    st.sampled_from(["int8", "int8", "int16", "float32"]),
    st.fixed_dictionaries(
        {
            "line_bytes": st.sampled_from([16, 32, 64, 128]),
            "l1_bytes": st.sampled_from([4096, 256]),
            "l1_ways": st.sampled_from([0, 0, 2]),
            "columns_per_step": st.sampled_from([1, 2]),
            "bcast_depth": st.integers(1, 3),
            "alu_latency": st.integers(0, 3),
            "l1_latency": st.sampled_from([1, 4, 40]),
            "macs_per_thread_cycle": st.sampled_from([None, 1, 16]),
        }
    ),
)
def test_streams_that_read_on_where_they_ended(data, dtype, machine):
    """Every round reads on where the last one ended, or nearly: beginnings, strides, guards and ends of all kinds."""
    one_of, kind = (lambda *choices: data.draw(st.sampled_from(choices))), np.dtype(dtype)
    step = 8 // kind.itemsize
    along, reads = (one_of("", "", ".t1") for _ in range(2))
    size = one_of(40, 64, 100)
    sizes = [(one_of(6, 9), size), (size, one_of(6, 9))]
    a, b = (np.random.default_rng(n).integers(-9, 9, sizes[bool(t)]).astype(kind) for n, t in ((1, along), (2, reads)))
    (x, y), (v, w) = (("r20", "r21"), ("r21", "r20"))[bool(along)], (("r22", "r23"), ("r23", "r22"))[bool(reads)]
    of_a = one_of("r24", "r24", "r24", "r24", y, "r22")  # coordinates may be what is loaded
    load = one_of("@p1, ", "@p1, ", "@p1, ", "", "@!p1, ") + "ld" + one_of("", "", "", "", ".s2") + along
    mm = one_of("", "", "", "", "@p1, ") + {8: "mm8", 4: "mm16"}.get(step, "mm") + reads
    text = f"""
        segment ur5, $A
        segment ur6, $B
        tid {y}
        tid {w}
        tid r10
        mul r11, r10, {one_of(0, 0, 0, 0, step, 1)}
        cmp.lt p1, r10, {one_of(2, 5, 6)}
        setmm {one_of(1, 4, 5)}, {one_of(1, 5)}
        mov ur9, {one_of(3, 9, 30)}
        mov ur2, {one_of(0, 0, 0, step, 1, -step)}
    again:
        {one_of(f"mov {x}, ur2", f"add {x}, r11, ur2", f"add {x}, ur2, {one_of(0, step)}")}
        {load} {of_a}, ur5:rf20:{one_of(0, 0, 0, step)}, 2
        {one_of(f"mov {v}, ur2", f"add {v}, ur2, r11")}
        {mm} r28, ur6:rf22:0, {of_a}
        {one_of("", "", "", "", "sub ur6, 3, ur6", "sub ur5, 3, ur5")}
        add ur2, ur2, {one_of(step, step, step, step, step, step, 2 * step, 1)}
        {one_of("loop ur9, again", f"br.lt ur2, {one_of(size, 30)}, again")}
        @p1, st r28, ur5:rf20:0, 1
    """
    config = MatrixUnitConfig(threads=THREADS, registers=REGISTERS, max_instructions=400, **machine)

    def work():
        try:
            return MatrixUnit(config).run(text, {"A": a, "B": b})
        except MatrixUnitError as error:  # br never comes to its end where steps are backwards
            return error.result

    one, other, _ = both(work)
    same(one, other)
    assert one.state == other.state


@pytest.mark.parametrize(
    ("load", "of_a", "more"),
    [
        ("ld", "r24", "nop"),
        ("ld.s2", "r24", "nop"),  # no elements side by side
        ("ld", "r21", "nop"),  # what is loaded says which row comes next
        ("ld", "r24", "shr ur6, ur2, 5\nadd ur6, ur6, 1"),  # the fourth round has another segment
        ("ld", "r24", "shr ur5, ur2, 5\nadd ur5, ur5, 1"),
        ("ld", "r24", "split"),  # threads share the depth of a round
    ],
)
def test_streams_of_which_something_else_changes(load, of_a, more):
    text = f"""
        segment ur5, $A
        segment ur6, $B
        mov ur5, 1
        mov ur6, 1
        tid r21
        tid r27
        tid r10
        cmp.lt p1, r10, 5
        setmm 4, 5
        mov ur9, 12
    again:
        mov r20, ur2
        @p1, {load} {of_a}, ur5:rf20:0, 2
        mov r26, ur2
        mm8{".kb2" if more == "split" else ""} r28, ur6:rf26:0, {of_a}
        add ur2, ur2, 8
        {"nop" if more == "split" else more}
        loop ur9, again
    """
    rng = np.random.default_rng(0)
    a, b = np.zeros((9, 200), np.int8), rng.integers(-9, 9, (9, 200)).astype(np.int8)
    a[:, ::4] = rng.integers(0, 9, (9, 50))
    config = MatrixUnitConfig(threads=THREADS, registers=REGISTERS, kb_mode="split" if more == "split" else "chunk")
    one, other, _ = both(lambda: MatrixUnit(config).run(text, {"A": a, "B": b}))
    same(one, other)
    assert one.state == other.state


def test_the_kernel_takes_the_loops_of_a_product():
    a = np.ones((24, 200), np.int8)
    for order in ("k_outer", "column_outer"):
        one, other, ran = both(lambda order=order: matmul(a, a.T, order=order))
        same(one, other)
        assert ran > 0.8 * one.executed


@pytest.mark.parametrize("types", [("int8", "uint8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_bytes_without_a_sign(types):
    """More of k than is added at once, and both ends of the types; every part of the columns and rows of its own."""
    rng = np.random.default_rng(0)
    ends = [np.iinfo(kind) for kind in types]
    a, b = (rng.choice([e.min, e.max, 1], shape).astype(e.dtype) for e, shape in zip(ends, ((12, 1100), (1100, 23))))
    one, other, ran = both(lambda: matmul(a, b, MatrixUnitConfig(threads=24), ka=2, columns=19))
    same(one, other)
    assert ran
    assert np.array_equal(one.value, a.astype(np.int64) @ b.astype(np.int64))
    assert one.value.tobytes() == other.value.tobytes()


def test_memory_that_is_added_while_a_program_runs():
    """The chip's bytes are elsewhere then, and the kernel finds them."""
    machine = Machine(MatrixUnitConfig(threads=4))
    machine.system |= {"Y": np.zeros(4, np.int32), "Z": np.ones(1 << 10, np.int32)}
    machine.page_table("Y", mapped=True)
    lines = ("segment ur1, $Y", "tid r1", "mov ur9, 4200", "again:", "segget.size ur2, ur1, 1")
    machine.start("\n".join([*lines, "add r3, r3, 1", "st r3, ur1:rf1:0", "loop ur9, again"]))
    added = []
    machine.run(lambda counts: added or added.append(machine.page_table("Z", mapped=True)))
    assert added
    assert machine.tensor("Y").tolist() == [4200] * 4


def test_a_copy_of_a_machine_has_memory_of_its_own():
    text = "segment ur1, $Y\ntid r1\nld r2, ur1:rf1:0\nadd r2, r2, 1\nst r2, ur1:rf1:0"
    pe = running.start_state(MatrixUnitConfig(threads=4), {"Y": np.arange(4, dtype=np.int32)})
    running.run_on(pe, assemble(text))
    before, copy = deepcopy(pe), deepcopy(pe)
    assert running.run_on(copy, assemble(text)).tensor("Y").tolist() == [2, 3, 4, 5]
    assert pe == before
    assert pe.chip == before.chip


def test_a_loop_without_end_is_stopped_in_the_kernel_too():
    with pytest.raises(MatrixUnitError, match="did not end") as caught:
        MatrixUnit(MatrixUnitConfig(threads=4, max_instructions=250_001)).run("again: add r1, r1, 1\njump again")
    assert (caught.value.result.registers[:, 1] == 125_001).all()


def test_an_mm_that_is_never_reached_leaves_no_retention():
    text = "segment ur5, $B\nmov ur9, 40\nagain: br.eq ur2, 0, over\nmm8.t1 r4, ur5:rf1:0, r20\nover: loop ur9, again"
    config = MatrixUnitConfig(threads=4, registers=24)
    one, other, ran = both(lambda: MatrixUnit(config).run(text, {"B": np.ones((4, 4), np.int8)}))
    assert ran
    assert one.state == other.state


def test_a_second_program_that_is_shorter_than_the_first_is_no_loop():
    """It begins at an address below the end of the first, as a loop's head does after a branch back."""

    def work(first):
        machine = Machine(MatrixUnitConfig(threads=4))
        machine.start("\n".join(["nop"] * first))
        machine.start("mov r1, 5\nadd r2, r1, 3")
        return machine.run()[0]

    for first in (3, 20_000):  # far behind the end of the second there is no memory at all
        one, other, _ = both(lambda first=first: work(first))
        same(one, other)
        assert one.executed == first + 2
        assert one.registers[:, 1:3].tolist() == [[5, 8]] * 4


def test_a_kept_mm_that_is_not_reached_forgets_no_one_elses_retention():
    """The first loop never comes to its mm; the second one's walk of the same segment began in between."""
    text = """
        segment ur5, $B
        tid r8
        mov ur8, 3
    again:
        mov ur9, 6
    first:
        br.eq ur2, 0, over
        mm8 r0, ur5:rf8:0, r20
    over:
        loop ur9, first
        mm8.t1 r0, ur5:rf8:0, r20
        add r8, r8, 1
        loop ur8, again
    """
    config = MatrixUnitConfig(threads=4, registers=24, l1_bytes=128)
    one, other, ran = both(lambda: MatrixUnit(config).run(text, {"B": np.ones((40, 64), np.int8)}))
    assert ran
    same(one, other)
    assert one.state == other.state
