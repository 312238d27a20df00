"""The rest of the machine: arithmetic, loads and stores, page table and DMA, errors, configuration, segments."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tilewright.errors import UsageError
from tilewright.isa import MatrixUnit, MatrixUnitConfig, MatrixUnitError, Memory, RunResult
from tilewright.isa.chip.segments import make_storage
from tilewright.isa.language.config import READINGS
from tilewright.layout import paged
from tilewright.targets import target
from tilewright.trace import Slice

SMALL = MatrixUnitConfig(threads=8, registers=32)


def run(text, memory=None, config=SMALL, **kw):
    return MatrixUnit(config).run(text, memory, **kw)


def wrap(x):
    return (x + 2**31) % 2**32 - 2**31


def quotient(x, y):
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


OPERATIONS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": quotient,
    "rem": lambda x, y: 0 if y == 0 else x - y * quotient(x, y),
    "min": min,
    "max": max,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << (y % 32),
    "shr": lambda x, y: x >> (y % 32),
}
ints = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-9, 40), st.sampled_from([-(2**31), 2**31 - 1]))


@settings(max_examples=tries(20))
@given(st.sampled_from(sorted(OPERATIONS)), st.lists(st.tuples(ints, ints), min_size=8, max_size=8))
def test_arithmetic_per_thread_and_uniform(name, pairs):
    x, y = (np.array(v, np.int32) for v in zip(*pairs))
    text = f"""
        segment ur1, $X
        segment ur2, $Y
        tid r1
        ld r2, ur1:rf1:0
        ld r3, ur2:rf1:0
        {name} r4, r2, r3
        {name} r5, r2, {pairs[0][1]}
        mov ur3, {pairs[0][0]}
        {name} ur4, ur3, {pairs[0][1]}
        {name} r6, ur4, 1
    """
    result = run(text, {"X": x, "Y": y})
    operation = OPERATIONS[name]
    assert result.registers[:, 4].tolist() == [wrap(operation(a, b)) for a, b in pairs]
    assert result.registers[:, 5].tolist() == [wrap(operation(a, pairs[0][1])) for a, _ in pairs]
    uniform = wrap(operation(*pairs[0]))
    assert result.registers[:, 6].tolist() == [wrap(operation(uniform, 1))] * 8
    zeros = sum(b == 0 for _, b in pairs) + 9 * (pairs[0][1] == 0)
    assert len(result.errors) == (zeros if name in ("div", "rem") else 0)


def test_compare_predicates_and_guards():
    text = """
        tid r0
        cmp.ge p1, r0, 3
        cmp.eq p2, r0, 5
        pnot p3, p2
        pand p4, p1, p3
        por p5, p2, p4
        mov r1, 7
        @p4, mov r1, 9
        @!p5, add r1, r1, r0
        @p2, clr r0, 2
    """
    result = run(text)
    assert result.registers[:, 1].tolist() == [7, 8, 9, 9, 9, 0, 9, 9]
    assert result.registers[:, 0].tolist() == [0, 1, 2, 3, 4, 0, 6, 7]


def test_loops_run_on_uniform_registers():
    result = run("mov ur1, 0\nloop: add r1, r1, ur1\nadd ur1, ur1, 1\nbr.le ur1, 10, loop\njump end\nmov r1, 0\nend:")
    assert (result.registers[:, 1] == 55).all()
    assert result.executed == 1 + 3 * 11 + 1


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
@pytest.mark.parametrize("walk", ["", ".t1", ".s2"])
def test_loads_and_stores_leave_absent_elements_alone(dtype, walk):
    rng = np.random.default_rng(3)
    source = rng.integers(0, 100, (11, 13)).astype(dtype)
    size = source.itemsize
    text = f"""
        segment ur1, $S
        segment ur2, $D
        tid r2
        mov r1, 4
        mov r8, 0x01010101
        mov r9, 0x01010101
        ld{walk} r8, ur1:rf1:5, 2
        cmp.ne p1, r2, 3
        @p1, st{walk} r8, ur2:rf1:5, 2
    """
    start = np.full_like(source, 99)
    result = run(text, {"S": source, "D": start})
    elements = np.full((8, 8 // size), np.ones(4, np.uint8).view(dtype)[0] if size < 4 else 0x01010101, dtype)
    expected = start.copy()
    for thread in range(8):
        for u in range(8 // size):
            d1, d2 = (9, thread + u) if walk == ".t1" else (9 + u * (2 if walk == ".s2" else 1), thread)
            if d1 < 13 and d2 < 11:
                elements[thread, u] = source[d2, d1]
                if thread != 3:
                    expected[d2, d1] = source[d2, d1]
    assert (result.registers[:, 8:10].copy().view(dtype) == elements).all()
    assert (result.tensor("D") == expected).all()
    assert (result.tensor("S") == source).all()


def test_counts_per_thread():
    result = run(
        "segment ur1, $S\ntid r2\nmov r1, 0\nadd r3, r2, -2\nmov r4, 9\nst r4, ur1:rf1:0, r3",
        {"S": np.zeros((8, 6), np.int32)},
    )
    assert result.tensor("S").any(axis=1).tolist() == [False] * 3 + [True] + [True] * 4
    assert (result.tensor("S")[:, 0] == 9).tolist() == [False] * 3 + [True] * 5


def test_linear_offsets_are_the_mixed_radix_of_the_sizes():
    source = np.arange(77, dtype=np.int32).reshape(7, 11)
    text = "segment ur1, $S\ntid r1\nmul r1, r1, 10\nmov r2, -1\nld r2, ur1:rf1:1"
    config = dataclasses.replace(SMALL, offset_mode="linear")
    assert run(text, {"S": source}, config).registers[:, 2].tolist() == [1, 11, 21, 31, 41, 51, 61, 71]
    wide = run(text.replace("mul r1, r1, 10", "mul r1, r1, 30"), {"S": source}, config)
    assert wide.registers[:, 2].tolist() == [1, 31, 61, -1, -1, -1, -1, -1]


def test_three_dims_in_pages():
    source = np.arange(2 * 5 * 40, dtype=np.uint16).reshape(2, 5, 40)
    memory = Memory()
    memory.add("S", source, page=(1, 2, 32), line=(1, 1, 32), order=(2, 0, 1))
    text = "segment ur1, $S\ntid r1\nmul r1, r1, 5\nmov r2, 3\nmov r3, 1\nld r4, ur1:rf1:0"
    assert run(text, memory).registers[:, 4].copy().view(np.uint16)[:8:1].tolist() != []
    low = run(text, memory).registers[:, 4] & 0xFFFF
    assert low.tolist() == source[1, 3, 0:40:5].tolist()


def test_dma_states_faults_and_waiting():
    memory = Memory()
    memory.add("S", np.arange(128, dtype=np.int32), page=(32,), resident=False)
    read = "segment ur1, $S\ntid r1\nmul r1, r1, 16\n"
    absent = run(read + "dmastat ur2, ur1\nmov r3, ur2\nmov r4, -1\nld r4, ur1:rf1:0", memory)
    assert [e.kind for e in absent.errors] == ["page_fault"] * 8
    assert (absent.registers[:, 4] == -1).all()
    assert (absent.registers[:, 3] == 0).all()
    some = run(read + "dmain ur1, 1\nmov r4, -1\nld r4, ur1:rf1:0", memory)
    assert some.registers[:, 4].tolist() == [-1, -1, 32, 48, -1, -1, -1, -1]
    assert [e.column for e in some.errors] == [0, 1, 4, 5, 6, 7]
    assert some.queue["page"] > 300  # the load met a page that was still loading
    polled = run(
        read + "dmain ur1\npoll: dmastat ur2, ur1\nadd ur3, ur3, 1\nbr.ne ur2, 2, poll\nmov r3, ur3\nld r4, ur1:rf1:0",
        memory,
    )
    assert (polled.registers[:, 3] == 2).all()
    assert polled.registers[:, 4].tolist() == list(range(0, 128, 16))
    assert polled.errors == ()


def test_pages_moved_out_write_back_and_fault():
    memory = Memory()
    memory.add("S", np.zeros(64, np.int32), page=(32,), resident=False)
    begin = "segment ur1, $S\ntid r1\nmul r1, r1, 8\nmov r2, 5\ndmain ur1\ndmawait ur1\nst r2, ur1:rf1:0\n"
    stored = run(begin, memory)
    assert (stored.tensor("S")[::8] == 5).all()
    out = run(begin + "dmaout ur1\nld r3, ur1:rf1:0", memory)
    assert (out.tensor("S")[::8] == 5).all()
    assert [e.kind for e in out.errors] == ["page_fault"] * 8
    back = run(begin + "dmaout ur1\ndmain ur1\nld r3, ur1:rf1:0", memory)
    assert (back.registers[:, 3] == 5).all()
    assert back.errors == ()
    assert back.queue["dma"] > 0


def test_l2_has_room_for_what_fits():
    memory = Memory()
    memory.add("S", np.arange(256, dtype=np.int32), page=(64,), resident=False)
    config = dataclasses.replace(SMALL, l2_bytes=512)
    text = "segment ur1, $S\ndmain ur1\n"
    assert [(e.kind, e.column) for e in run(text, memory, config).errors] == [("l2_full", 2), ("l2_full", 3)]
    freed = run(text + "dmaout ur1, 0\ndmain ur1, 3\ntid r1\nadd r1, r1, 192\nld r2, ur1:rf1:0", memory, config)
    assert len(freed.errors) == 2
    assert freed.registers[:, 2].tolist() == list(range(192, 200))


def test_columns_on_absent_pages_are_skipped():
    memory = Memory()
    memory.add("B", np.full((8, 8), 3, np.int8), page=(2, 64), resident=False)
    text = "segment ur4, $B\ndmain ur4, 1\ntid r11\nmov r20, 0x01010101\nmm r0, ur4:rf10:0, r20"
    result = run(text, memory)
    assert [(e.kind, e.column) for e in result.errors] == [("page_fault", j) for j in (0, 1, 4, 5, 6, 7)]
    assert result.registers[0, :8].tolist() == [0, 0, 12, 12, 0, 0, 0, 0]
    assert result.counts.column_loads == 2
    assert result.counts.l2_misses == 0  # pages brought in are in L2


def slices(run):
    return [event for event in run.trace if isinstance(event, Slice)]


def test_a_pending_load_of_a_blocks_the_queue():
    """Younger instructions do not overtake an `mm` that waits for its A; with A at hand they issue at once."""
    memory = {"A": np.ones((8, 8), np.int8), "B": np.ones((8, 8), np.int8)}
    begin = "segment ur1, $A\nsegment ur4, $B\ntid r11\nsetmm 1\nld r20, ur1:rf10:0, 2\n"
    late = run(begin + "mm r0, ur4:rf10:0, r20\nmov r30, 1", memory, trace=True)
    ready = run(begin + "mm r0, ur4:rf10:0, r22\nmov r30, 1", memory, trace=True)
    arrival = next(e.start + e.duration for e in slices(late) if e.name == "ld")
    assert next(e.start for e in slices(late) if e.name == "mov") == arrival
    assert next(e.start for e in slices(ready) if e.name == "mov") < arrival
    assert (late.registers[:, 0] == 8).all()
    warm = run(begin.replace("ld", "mm r1, ur4:rf10:0, r20\nld") + "mm r0, ur4:rf10:0, r20", memory)
    assert late.stalls["A"] == 0 < warm.stalls["A"]  # B comes from far the first time, from L1 the second


WHOLE = {
    "mm r0, ur9:rf10:0, r20": "unknown_segment",
    "mm r0, ur4:rf31:0, r20": "operand_out_of_range",
    "mm r0, ur4:rf10:0, r31": "operand_out_of_range",
    "mm.ka3.kb3 r0, ur4:rf10:0, r20": "group_too_large",
    "mm16 r0, ur4:rf10:0, r20": "type_mismatch",
    "mmf16 r0, ur4:rf10:0, r20": "type_mismatch",
    "ld r31, ur4:rf10:0, 2": "operand_out_of_range",
    "ld r0, ur9:rf10:0": "unknown_segment",
    "st r0, ur4:rf31:0": "operand_out_of_range",
    "clr r30, 3": "operand_out_of_range",
    "setmm 9": "count_out_of_range",
    "setmm 0": "count_out_of_range",
    "setmm 4, 0": "count_out_of_range",
    "segment ur8, $nobody": "unknown_segment",
    "dmain ur9": "unknown_segment",
    "dmaout ur4, 7": "page_fault",
    "dmawait ur9": "unknown_segment",
    "dmastat ur8, ur4, -1": "page_fault",
}


@pytest.mark.parametrize("text", WHOLE)
def test_errors_of_whole_instructions_change_nothing(text):
    begin = "segment ur4, $B\ntid r11\n"
    memory = {"B": np.ones((8, 8), np.int8)}
    result = run(begin + text, memory)
    assert [(e.kind, e.pc, e.column) for e in result.errors] == [(WHOLE[text], 2, -1)]
    assert (result.registers == run(begin, memory).registers).all()
    assert result.errors[0].instruction in str(result.errors[0])


def test_raise_comes_after_the_work_in_range():
    text = "segment ur4, $B\ntid r11\nmov r20, 0x01010101\nsetmm 8, 8\nmm r0, ur4:rf10:0, r6\nmov r30, 1"
    memory = {"B": np.ones((8, 8), np.int8)}
    with pytest.raises(MatrixUnitError, match="register_out_of_range") as caught:
        run(text, memory, dataclasses.replace(SMALL, on_error="raise"))
    assert caught.value.exit_code == 1
    assert [r.column for r in caught.value.records] == [6, 7]
    assert isinstance(caught.value.result, RunResult)
    assert caught.value.result.counts.column_loads == 6
    assert not caught.value.result.registers[:, 30].any()
    with pytest.warns(RuntimeWarning, match=r"column 6, r6.*\(and 1 more\)"):
        warned = run(text, memory, dataclasses.replace(SMALL, on_error="warn"))
    assert len(warned.errors) == 2
    assert warned.registers[:, 30].all()


def test_a_program_without_end_is_stopped():
    with pytest.raises(MatrixUnitError, match="did not end") as caught:
        run("again: add r1, r1, 1\njump again", config=dataclasses.replace(SMALL, max_instructions=101))
    assert (caught.value.result.registers[:, 1] == 51).all()


def test_defaults_are_the_target_file():
    core = target("simt").simt
    config = MatrixUnitConfig()
    for name in (f.name for f in dataclasses.fields(core)):
        assert getattr(config, name) == getattr(core, name)


@pytest.mark.parametrize("name", READINGS)
def test_every_reading_has_a_field_and_performs_every_choice(name):
    reading = READINGS[name]
    assert getattr(MatrixUnitConfig(), name) == reading.choices[0]
    for choice in reading.choices:
        assert getattr(MatrixUnitConfig(**{name: choice}), name) == choice
    with pytest.raises(UsageError, match="not a known reading"):
        MatrixUnitConfig(**{name: "nonsense"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0},
        {"threads": 2.5},
        {"loaders": 300},
        {"a_bytes": 12},
        {"line_bytes": 48},
        {"line_bytes": 1 << 40},
        {"threads": 1 << 30},
        {"l1_bytes": 32},
        {"l1_ways": 3},
        {"acc_window": (4, 999)},
        {"macs_per_thread_cycle": 0},
        {"dram_latency": -1},
    ],
)
def test_impossible_machines(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong)).split("_")[0]):
        MatrixUnitConfig(**wrong)


@pytest.mark.parametrize(
    ("name", "array", "more", "reason"),
    [
        ("no name", np.zeros(3, np.int8), {}, "cannot be called"),
        ("X", np.zeros(3), {}, "float64"),
        ("X", np.zeros((3, 0), np.int8), {}, "shape"),
        ("X", np.int8(3), {}, "shape"),
        ("S", np.zeros(3, np.int8), {}, "cannot be called"),
    ],
)
def test_memory_refuses(name, array, more, reason):
    memory = Memory({"S": np.zeros(3, np.int8)})
    with pytest.raises(UsageError, match=reason):
        memory.add(name, array, **more)


def test_a_result_names_its_segments():
    with pytest.raises(UsageError, match="there are S"):
        run("halt", {"S": np.zeros(3, np.int8)}).tensor("T")


@settings(max_examples=tries(20))
@given(st.data())
def test_segment_tables_are_the_layouts_addresses(data):
    """The machine's addresses equal the layout's tiled index for every element, and no two elements share one."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    order = tuple(data.draw(st.permutations(range(rank))))
    line = [1] * rank
    for _ in range(3):
        line[data.draw(st.integers(0, rank - 1))] *= 2
    page = tuple(unit * data.draw(st.integers(1, 3)) for unit in line)
    segment = make_storage("S", np.zeros(shape, np.int16), 0, 16, page=page, line=line, order=order)
    layout = paged(shape, "s16", page=page, line=tuple(line), order=order)
    indices = np.array(list(np.ndindex(*shape)))
    pages, offsets = np.int64(0), np.int64(0)
    for d in range(rank):
        at = segment.starts[d] + indices[:, rank - 1 - d]
        pages, offsets = pages + segment.pages_of[at], offsets + segment.offsets_of[at]
    assert (np.stack([pages, offsets], axis=1) == layout.addresses(indices)).all()
    assert len(set(zip(pages.tolist(), offsets.tolist()))) == len(indices)


def test_figure_4_has_four_pages():
    segment = make_storage("S", np.zeros((8, 8), np.int8), 0, 4, page=(4, 4), line=(1, 4))
    assert (segment.map.num_pages, segment.page_bytes, segment.total_bytes) == (4, 16, 64)
